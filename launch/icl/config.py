"""The configuration of launch.icl, its presets, and what it refuses."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from icl.models.batched import Regression
from icl.problems.function_classes import KINDS, FunctionClass, Kind
from icl.problems.mixed_noise import MixedNoise
from icl.problems.sine_waves import Waves
from icl.tasks import Tasks
from icl.training import Recipe
from jexplicit.runs.command import Preset

Experiment = Literal[
    "one-step",
    "multi-step",
    "out-of-distribution",
    "rollout",
    "curvature",
    "scaling-N",
    "nonlinear",
    "copy",
    "softmax",
    "layernorm",
    "phase",
    "finite-data",
    "noisy",
    "function-classes",
]
EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)
LINEAR, BEYOND = EXPERIMENTS[:6], EXPERIMENTS[6:]  # what `all` and `beyond` stand for


class Effort(NamedTuple):
    """Training steps and runs of an experiment."""

    steps: int
    seeds: int


# Where --steps and --seeds do not say, and not 5000 steps and 5 seeds.
DEFAULT_EFFORT = {
    "nonlinear": Effort(4000, 1),
    "copy": Effort(10_000, 2),
    "softmax": Effort(5000, 3),
    "layernorm": Effort(5000, 3),
    "phase": Effort(5000, 10),
    "finite-data": Effort(5000, 1),
    "noisy": Effort(5000, 1),
    "function-classes": Effort(3000, 1),
}


@dataclass(frozen=True)
class Config:
    """Does attention learn in context by gradient descent? Constructed, solved in closed form, and trained."""

    out: str
    """Run folder to write: config, results, figures, report.md and the trained layers."""
    experiment: tuple[Experiment | Literal["all", "beyond"], ...] = ("one-step",)
    """one-step: one layer and one step of descent. multi-step: --layers layers, GD and GD++. out-of-distribution: both on other
    tasks. rollout: one layer applied 50 times. curvature: what GD++ does to eigenvalues. scaling-N: other sizes.
    all: these six.

    nonlinear: sine waves, through an embedding and an MLP. copy: tokens that hold x and y apart. softmax: one and two heads
    with softmax. layernorm: with layer normalisation. phase: when the loss drops, by seed and heads. finite-data: few training
    tasks. noisy: other covariances, noise, and noise that differs by task. function-classes: a causal transformer on other
    functions. beyond: these eight."""
    layers: int = 2
    """K, layers of multi-step and of out-of-distribution."""
    recurrent: bool = True
    """Whether these share their weights."""
    dim: int = 10
    """d, inputs."""
    context: int = 10
    """N, pairs in the context."""
    seeds: int | None = None
    """Training runs, of seeds --seed, --seed + 1, ..; all at once. Default 5; phase 10, softmax and layernorm 3, copy 2,
    nonlinear, finite-data, noisy and function-classes 1."""
    steps: int | None = None
    """Training steps from random weights, each on --batch-size fresh tasks. Default 5000; copy 10,000, nonlinear 4000,
    function-classes 3000."""
    warm_steps: int = 1000
    """multi-step: training steps from the closed form's weights; 0 leaves this out."""
    batch_size: int = 2048
    """Fresh tasks per step."""
    learning_rate: float = 1e-3
    """Of Adam. The paper's code has 0.0005 for more than three layers."""
    settings: Literal["code", "paper"] = "code"
    """Where the paper's text and its published code disagree. code: inputs U(-1/2, 1/2), Adam's b2 0.98, gradients clipped to
    0.001 (10 for K > 2), weights of variance 0.002/(K fan-in), tokens clipped to 10 for K > 3. paper: U(-1, 1), 0.999, 10,
    standard deviation 0.002/K, K > 2. Its numbers are those of the code."""
    gd_rate: Literal["optimal", "line-search"] = "optimal"
    """The rate of gradient descent. optimal: of the population. line-search: of the paper's 250, on the validation tasks."""
    validation_tasks: int = 10_000
    """Tasks of the curves, measured every 100 steps."""
    test_tasks: int = 200_000
    """Fresh tasks of the results."""
    solver_contexts: int = 20_000
    """Contexts whose eigenvalues the optimal K layers are fitted to."""
    contexts: tuple[int, ...] = (10, 25, 50, 100)
    """curvature, scaling-N: context lengths N."""
    dims: tuple[int, ...] = (2, 5, 10, 15, 20)
    """scaling-N: sizes N = d of the one-step comparison."""
    scaling_steps: int = 2000
    """scaling-N: training steps, of the first seed alone; 0 leaves training out."""
    waves: Literal["code", "paper"] = "code"
    """nonlinear: amplitudes 0.1 to 0.5 that fix the phase too, as in the paper's code; or, as in its text, 0.1 to 5, with
    phases of their own."""
    training_tasks: tuple[int, ...] = (128, 512, 2048, 8192)
    """finite-data: tasks to train on, all of them at every step."""
    noise_levels: tuple[float, ...] = (5.0,)
    """noisy: standard deviations of which each task has one; a single number is the most of a uniform law."""
    diagonal_layers: tuple[int, ...] = (1, 2, 3, 4)
    """noisy: numbers K of layers of four scalars each."""
    functions: tuple[Kind, ...] = KINDS
    """function-classes: which."""
    function_dim: int = 5
    """function-classes: inputs. The paper has 20, and 2 d + 1 points as here."""
    transformer: tuple[int, int, int] = (64, 3, 4)
    """function-classes: width, layers and heads of the transformer. The paper has 256 12 8."""
    devices: int | None = None
    """Devices to split the seeds over; default, every accelerator, or one virtual CPU device per core."""
    seed: int = 0
    """The first seed; also of the tasks that everything is measured on."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_EFFORT = Effort(5000, 5)
_TINY = Config(
    out="runs/icl_tiny",
    experiment=("all", "beyond"),
    dim=3,
    context=4,
    seeds=2,
    steps=200,
    warm_steps=100,
    batch_size=128,
    validation_tasks=500,
    test_tasks=2_000,
    solver_contexts=500,
    training_tasks=(16, 64),
    diagonal_layers=(1, 2),
    functions=("linear", "tree"),
    function_dim=2,
    transformer=(16, 1, 2),
    contexts=(4, 8),
    dims=(2, 3),
    scaling_steps=100,
)
PRESETS = {
    "tiny": Preset(_TINY, "every experiment, three inputs and 200 steps; a minute on 2 CPU cores, and numbers of no meaning."),
    "one-step": Preset(Config(out="runs/icl_one"), "the defaults: one layer is one step. Loss 0.206 for all, cosine 0.999."),
    "two-steps": Preset(
        Config(out="runs/icl_two", experiment=("multi-step",)),
        "two recurrent layers are two steps of GD++: loss 0.1105, gamma 0.175.",
    ),
    "five-steps": Preset(
        Config(
            out="runs/icl_five",
            experiment=("multi-step",),
            layers=5,
            recurrent=False,
            seeds=2,
            steps=50_000,
            warm_steps=5000,
            learning_rate=5e-4,
        ),
        "five layers of their own, the paper's 50,000 steps, some 20 CPU-ms each: 17 CPU-minutes a seed. Solved 0.017 in 10 s.",
    ),
    "all": Preset(Config(out="runs/icl", experiment=("all",)), "every experiment on linear regression, at K = 1 and 2."),
    "beyond": Preset(Config(out="runs/icl_beyond", experiment=("beyond",)), "the other experiments, the long ones shortened."),
    "beyond-full": Preset(
        Config(
            out="runs/icl_beyond_full",
            experiment=("nonlinear", "copy", "softmax", "layernorm", "phase", "finite-data", "noisy"),
            seeds=5,
            steps=20_000,
        ),
        "20,000 steps and five seeds of each; hours on 2 CPU cores.",
    ),
    "functions-full": Preset(
        Config(
            out="runs/icl_functions_full",
            experiment=("function-classes",),
            steps=500_001,
            batch_size=64,
            learning_rate=1e-4,
            function_dim=20,
            transformer=(256, 12, 8),
        ),
        "the model and steps of Garg et al., without their curriculum; for an accelerator.",
    ),
}


def effort(config: Config, experiment: str) -> Effort:
    """Training steps and seeds of an experiment."""
    steps, seeds = DEFAULT_EFFORT.get(experiment, _EFFORT)
    return Effort(config.steps or steps, config.seeds or seeds)


def chosen(config: Config) -> list[str]:
    """The experiments that were asked for, in the order in which later ones read what earlier ones train."""
    groups = {"all": LINEAR, "beyond": BEYOND}
    wanted = {name for asked in config.experiment for name in groups.get(asked, (asked,))}
    return [name for name in EXPERIMENTS if name in wanted]


def make_tasks(config: Config, *, dim: int | None = None, context: int | None = None) -> Tasks:
    """The law of the tasks: U(-1/2, 1/2) inputs by default."""
    input_range = 2.0 if config.settings == "paper" else 1.0
    return Tasks(dim=dim or config.dim, context=context or config.context, input_range=input_range)


def make_regression(config: Config, tasks: Tasks, depth: int) -> Regression:
    """K layers on tasks, their tokens held as the paper's code or text has it."""
    return Regression(tasks, depth, clip=10.0 if depth > (3 if config.settings == "code" else 2) else None)


def make_noise(config: Config) -> MixedNoise:
    """Tasks whose noise differs: twice as many pairs as inputs."""
    levels = config.noise_levels[0] if len(config.noise_levels) == 1 else config.noise_levels
    return MixedNoise(dim=config.dim, context=2 * config.dim, levels=levels)


def make_functions(config: Config, kind: Kind) -> FunctionClass:
    """A class of functions, prompts of 2 d + 1 points."""
    d = config.function_dim
    return FunctionClass(kind, dim=d, points=2 * d + 1, nonzero=min(3, d))


def make_waves(config: Config) -> Waves:
    """Sine waves of the paper's code or text."""
    paper = config.waves == "paper"
    return Waves(context=config.context, amplitude=(0.1, 5.0) if paper else (0.1, 0.5), independent=paper)


def make_recipe(config: Config, depth: int) -> Recipe:
    """How to train K layers, as the paper's code or text has it."""
    code = config.settings == "code"
    return Recipe(
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        b2=0.98 if code else 0.999,
        gradient_clip=1e-3 if code and depth <= 2 else 10.0,
    )


def init_scale(config: Config, depth: int, width: int) -> float:
    """Variance times fan-in of random weights."""
    return 0.002 / depth if config.settings == "code" else (0.002 / depth) ** 2 * width


def check(config: Config) -> None:
    """Refuse flags that make no sense, before anything is written."""
    if not config.experiment:
        raise ValueError(f"--experiment without a value: give some of {', '.join(EXPERIMENTS)}, all, or beyond")
    if not 1 <= config.layers <= 24:
        raise ValueError(f"--layers {config.layers}: stacks have 1 to 24 layers")
    for name in ("dim", "context", "seeds", "steps", "batch_size", "validation_tasks", "test_tasks", "solver_contexts"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(config, name)}: it is at least 1")
    if min(config.warm_steps, config.scaling_steps, config.seed) < 0:
        raise ValueError(
            f"--warm-steps {config.warm_steps}, --scaling-steps {config.scaling_steps}, --seed {config.seed}: not below 0"
        )
    if not config.learning_rate > 0:
        raise ValueError(f"--learning-rate {config.learning_rate}: it is above 0")
    if not config.contexts or not config.dims or min(config.contexts + config.dims) < 1:
        raise ValueError(f"--contexts {config.contexts}, --dims {config.dims}: give sizes of at least 1")
    for name in ("training_tasks", "diagonal_layers", "functions"):
        values = getattr(config, name)
        if not values or (name != "functions" and min(values) < 1):
            raise ValueError(f"--{name.replace('_', '-')} {values}: give some, numbers at least 1")
    width, layers, heads = config.transformer
    if min(config.transformer) < 1 or width % heads:
        raise ValueError(f"--transformer {width} {layers} {heads}: at least 1 each, the width a multiple of the heads")
    chosen_names = chosen(config)
    if "noisy" in chosen_names:
        make_noise(config)
    if "function-classes" in chosen_names:
        for kind in config.functions:
            make_functions(config, kind)

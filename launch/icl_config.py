"""The configuration of launch.icl, its presets, and what it refuses."""

from dataclasses import dataclass
from typing import Literal

from icl.batches import Regression
from icl.tasks import Tasks
from icl.training import Recipe
from jexplicit.runs.command import Preset

Experiment = Literal["one-step", "multi-step", "out-of-distribution", "rollout", "curvature", "scaling-N", "all"]
EXPERIMENTS: tuple[Experiment, ...] = ("one-step", "multi-step", "out-of-distribution", "rollout", "curvature", "scaling-N")


@dataclass(frozen=True)
class Config:
    """Does attention learn in context by gradient descent? Constructed, solved in closed form, and trained."""

    out: str
    """Run folder to write: config, results, figures, report.md and the trained layers."""
    experiment: tuple[Experiment, ...] = ("one-step",)
    """one-step: one layer and one step of descent. multi-step: --layers layers, GD and GD++. out-of-distribution: both on other
    tasks. rollout: one layer applied 50 times. curvature: what GD++ does to eigenvalues. scaling-N: other sizes."""
    layers: int = 2
    """K, layers of multi-step and of out-of-distribution."""
    recurrent: bool = True
    """Whether these share their weights."""
    dim: int = 10
    """d, inputs."""
    context: int = 10
    """N, pairs in the context."""
    seeds: int = 5
    """Training runs, of seeds --seed, --seed + 1, ..; all at once."""
    steps: int = 5000
    """Training steps from random weights, each on --batch-size fresh tasks."""
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
    devices: int | None = None
    """Devices to split the seeds over; default, every accelerator, or one virtual CPU device per core."""
    seed: int = 0
    """The first seed; also of the tasks that everything is measured on."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_TINY = Config(
    out="runs/icl_tiny",
    experiment=("all",),
    dim=3,
    context=4,
    seeds=2,
    steps=200,
    warm_steps=100,
    batch_size=128,
    validation_tasks=500,
    test_tasks=2_000,
    solver_contexts=500,
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
        "five layers of their own, the paper's 50,000 steps, some 18 CPU-ms each: 15 CPU-minutes a seed.",
    ),
    "all": Preset(Config(out="runs/icl", experiment=("all",)), "every experiment at K = 1 and 2."),
}


def make_tasks(config: Config, *, dim: int | None = None, context: int | None = None) -> Tasks:
    """The law of the tasks: U(-1/2, 1/2) inputs by default."""
    input_range = 2.0 if config.settings == "paper" else 1.0
    return Tasks(dim=dim or config.dim, context=context or config.context, input_range=input_range)


def make_regression(config: Config, tasks: Tasks, depth: int) -> Regression:
    """K layers on tasks, their tokens held as the paper's code or text has it."""
    return Regression(tasks, depth, clip=10.0 if depth > (3 if config.settings == "code" else 2) else None)


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
        raise ValueError(f"--experiment without a value: give some of {', '.join(EXPERIMENTS)}, or all")
    if not 1 <= config.layers <= 24:
        raise ValueError(f"--layers {config.layers}: stacks have 1 to 24 layers")
    for name in ("dim", "context", "seeds", "steps", "batch_size", "validation_tasks", "test_tasks", "solver_contexts"):
        if getattr(config, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(config, name)}: it is at least 1")
    if min(config.warm_steps, config.scaling_steps, config.seed) < 0:
        raise ValueError(
            f"--warm-steps {config.warm_steps}, --scaling-steps {config.scaling_steps}, --seed {config.seed}: not below 0"
        )
    if not config.learning_rate > 0:
        raise ValueError(f"--learning-rate {config.learning_rate}: it is above 0")
    if not config.contexts or not config.dims or min(config.contexts + config.dims) < 1:
        raise ValueError(f"--contexts {config.contexts}, --dims {config.dims}: give sizes of at least 1")

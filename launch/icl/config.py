"""The configuration of launch.icl, its presets, and what it refuses. They need no JAX, nor does `--help`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

from icl.names import KINDS, Kind
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.runs.command import Preset
from jexplicit.runs.host import host_bytes

Linear = Literal["one-step", "multi-step", "depths", "out-of-distribution", "rollout", "curvature", "scaling-N"]
Beyond = Literal["nonlinear", "copy", "softmax", "layernorm", "phase", "finite-data", "blocks", "noisy", "function-classes"]
Recent = Literal["task-diversity", "looped", "newton", "mesa", "markov"]
BlockKind = Literal["softmax", "softmax-layernorm", "linear", "linear-layernorm"]
LINEAR: tuple[Linear, ...] = get_args(Linear)  # `all`
BEYOND: tuple[Beyond, ...] = get_args(Beyond)
RECENT: tuple[Recent, ...] = get_args(Recent)  # since 2023
EXPERIMENTS: tuple[Linear | Beyond | Recent, ...] = (*LINEAR, *BEYOND, *RECENT)


class Effort(NamedTuple):
    """Training steps and runs of an experiment."""

    steps: int
    seeds: int


# Defaults of --steps and --seeds where they are not 5000 and 5.
DEFAULT_EFFORT = {
    "nonlinear": Effort(4000, 2),
    "copy": Effort(6000, 5),
    "softmax": Effort(5000, 3),
    "layernorm": Effort(5000, 3),
    "phase": Effort(5000, 10),
    "finite-data": Effort(5000, 1),
    "noisy": Effort(5000, 1),
    "function-classes": Effort(3000, 1),
    "markov": Effort(4000, 2),
    "task-diversity": Effort(2000, 1),
    "blocks": Effort(3000, 2),
}


@dataclass(frozen=True)
class Config:
    """Does attention learn in context by gradient descent? Constructed, solved in closed form, and trained."""

    GROUPS: ClassVar = {
        "out": "run",
        "experiment": "experiments",
        "layers": "task",
        "steps": "training",
        "validation_tasks": "measurements",
        "devices": "run",
    }

    out: str
    """Run folder to write: config, results, figures, report.md and the trained layers."""
    experiment: tuple[Literal[Linear, Beyond, Recent, "all", "beyond", "recent"], ...] = ("one-step",)
    """one-step: one layer against one step of descent. multi-step: --layers layers against steps of GD and GD++. depths: 1, 2,
    .. --depths layers, solved. out-of-distribution: both on shifted tasks. rollout: one layer applied 50 times. curvature: the
    effect of GD++ on eigenvalues. scaling-N: other sizes. all: these seven.

    nonlinear: sine waves, with an embedding and an MLP. copy: x and y in separate tokens. softmax: one and two softmax heads.
    layernorm: with layer normalisation. phase: when the loss drops, by seed and heads. finite-data: few training tasks. blocks:
    transformers of many blocks, with MLPs. noisy: other covariances, noise, and noise levels that differ by task.
    function-classes: a causal transformer on other functions. beyond: these nine.

    task-diversity: few or many pretraining tasks. looped: a recurrent layer, run for fewer and more loops than it was solved or
    trained for. newton: solved layers counted in steps of Newton's iteration. mesa: layers that are online estimators of a
    regression. markov: Markov chains, whose transitions two layers count in context. recent: these five, on papers since
    2023."""
    layers: Annotated[int, Bounds(at_least=1, at_most=24)] = 2
    """K, layers of multi-step and of out-of-distribution."""
    recurrent: bool = True
    """Whether these layers share their weights."""
    dim: PositiveInt = 10
    """d, inputs."""
    context: PositiveInt = 10
    """N, pairs in the context."""
    seeds: PositiveInt | None = None
    """Number of training runs, with seeds --seed, --seed + 1, ..; all train at once. Default 5; phase 10, softmax and
    layernorm 3, blocks, nonlinear and markov 2, finite-data, noisy, function-classes and task-diversity 1."""
    steps: PositiveInt | None = None
    """Training steps from random weights, each on --batch-size fresh tasks. Default 5000; copy 6000, nonlinear and markov 4000,
    blocks and function-classes 3000, task-diversity 2000."""
    warm_steps: NonNegativeInt = 1000
    """multi-step: training steps from the closed form's weights; 0 for no warm start."""
    batch_size: PositiveInt = 2048
    """Fresh tasks per step."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam. The paper's code has 0.0005 for more than three layers."""
    settings: Literal["code", "paper"] = "code"
    """Which to follow where the paper's text and its published code disagree. code: inputs U(-1/2, 1/2), Adam's b2 0.98,
    gradients clipped to 0.001 (10 for K > 2), weights of variance 0.002/(K fan-in), tokens clipped to 10 for K > 3. paper:
    U(-1, 1), 0.999, 10, standard deviation 0.002/K, K > 2. The numbers in the paper are those of its code."""
    gd_rate: Literal["optimal", "line-search"] = "optimal"
    """The rate of gradient descent. optimal: for the population. line-search: the best of the paper's 250 on the validation
    tasks."""
    validation_tasks: PositiveInt = 10_000
    """Tasks of the training curves, evaluated every 100 steps."""
    test_tasks: PositiveInt = 200_000
    """Fresh tasks of the results."""
    solver_contexts: PositiveInt = 200_000
    """Contexts whose eigenvalues the optimal K layers are solved for."""
    depths: Annotated[int, Bounds(at_least=1, at_most=24)] = 12
    """depths: largest number of layers; 1, 2, .. up to it are solved."""
    contexts: tuple[PositiveInt, ...] = (10, 25, 50, 100)
    """curvature, scaling-N: context lengths N."""
    dims: tuple[PositiveInt, ...] = (2, 5, 10, 15, 20)
    """scaling-N, task-diversity: sizes N = d of the one-step comparison, and of the thresholds."""
    scaling_steps: NonNegativeInt = 2000
    """scaling-N: training steps, of the first seed only; 0 for no training."""
    waves: Literal["code", "paper"] = "code"
    """nonlinear: amplitudes 0.1 to 0.5 that determine the phase too, as in the paper's code; or, as in its text, 0.1 to 5 with
    independent phases."""
    wave_layers: tuple[PositiveInt, ...] = (1,)
    """nonlinear: numbers of layers of attention after the MLP."""
    training_tasks: tuple[PositiveInt, ...] = (128, 512, 2048, 8192)
    """finite-data: numbers of training tasks, all of which are used at every step."""
    noise_levels: tuple[NonNegativeFloat, ...] = (5.0,)
    """noisy: standard deviations, of which each task has one; a single number is the upper bound of a uniform distribution."""
    diagonal_layers: tuple[PositiveInt, ...] = (1, 2, 3, 4)
    """noisy: numbers K of layers of four scalars each."""
    functions: tuple[Kind, ...] = KINDS
    """function-classes: which classes."""
    function_dim: PositiveInt = 5
    """function-classes: inputs. The paper has 20, and 2 d + 1 points as here."""
    transformer: tuple[PositiveInt, PositiveInt, PositiveInt] = (64, 3, 4)
    """function-classes: width, layers and heads of the transformer. The paper has 256 12 8."""
    chain_states: Annotated[int, Bounds(at_least=2)] = 3
    """markov: k, states of a chain."""
    chain_length: Annotated[int, Bounds(at_least=2)] = 64
    """markov: T, states of a sequence."""
    chain_alpha: PositiveFloat = 1.0
    """markov: parameter of the Dirichlet distribution of each row of a transition matrix."""
    tokens: PositiveInt = 100_000
    """mesa: tokens over which rounding errors are measured."""
    pretraining_tasks: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    """task-diversity: numbers of tasks that the best layer is found for."""
    diversity_points: tuple[PositiveInt, ...] = (2, 8, 32, 128, 1024)
    """task-diversity: numbers of tasks that layers are trained on."""
    blocks: tuple[PositiveInt, PositiveInt] = (12, 4)
    """blocks: number of blocks, and heads of each."""
    block_kinds: tuple[BlockKind, ...] = ("softmax",)
    """blocks: attention with softmax or linear, with or without layer normalisation. The paper has softmax without."""
    block_batch_size: PositiveInt = 512
    """blocks: tasks per step. The paper has 2048."""
    block_rate: PositiveFloat = 2e-3
    """blocks: learning rate of Adam. The paper's code has 0.0005 for many layers."""
    block_scale: PositiveFloat = 0.1
    """blocks: variance times fan-in of random weights. The paper's code has 0.002 / K, which only makes training slower."""
    block_tasks: tuple[PositiveInt, ...] = (8192,)
    """blocks: numbers of training tasks that --small-blocks blocks see again and again."""
    small_blocks: PositiveInt = 3
    """blocks: number of these blocks."""
    devices: int | None = None
    """Number of devices to split the seeds over; default, every accelerator, or one virtual CPU device per core."""
    seed: NonNegativeInt = 0
    """The first seed; also that of the validation and test tasks."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_EFFORT = Effort(5000, 5)
_TINY = Config(
    out="runs/icl_tiny",
    experiment=("all", "beyond", "recent"),
    dim=3,
    context=4,
    seeds=2,
    steps=200,
    warm_steps=100,
    batch_size=128,
    validation_tasks=500,
    test_tasks=2_000,
    solver_contexts=500,
    depths=3,
    wave_layers=(1, 2),
    training_tasks=(16, 64),
    diagonal_layers=(1, 2),
    functions=("linear", "tree"),
    function_dim=2,
    transformer=(16, 1, 2),
    chain_length=16,
    blocks=(2, 2),
    block_kinds=("softmax", "linear-layernorm"),
    block_batch_size=64,
    block_tasks=(128,),
    small_blocks=1,
    contexts=(4, 8),
    dims=(2, 3),
    scaling_steps=100,
    tokens=1000,
    pretraining_tasks=(8, 64),
    diversity_points=(8,),
)
PRESETS = {
    "tiny": Preset(
        _TINY,
        "every experiment, three inputs and 200 steps; three minutes on 2 CPU cores, later one. The numbers mean nothing.",
    ),
    "one-step": Preset(Config(out="runs/icl_one"), "the defaults: one layer is one step: loss 0.206 for all, cosine 0.999."),
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
        "five separate layers, the paper's 50,000 steps of 20 CPU-ms: 17 CPU-minutes a seed. In closed form, 0.0067 in 15 s.",
    ),
    "ten-steps": Preset(
        Config(
            out="runs/icl_ten",
            experiment=("multi-step",),
            layers=10,
            seeds=2,
            learning_rate=5e-4,
        ),
        "ten recurrent layers, the paper's 5000 steps: worse than five separate layers, as in its Fig. 7.",
    ),
    "all": Preset(Config(out="runs/icl", experiment=("all",)), "all experiments on linear regression, at K = 1 and 2."),
    "beyond": Preset(
        Config(out="runs/icl_beyond", experiment=("beyond",)), "the nine experiments beyond linear layers, long ones shortened."
    ),
    "beyond-full": Preset(
        Config(
            out="runs/icl_beyond_full",
            experiment=("nonlinear", "copy", "softmax", "layernorm", "phase", "finite-data", "noisy"),
            seeds=5,
            steps=20_000,
        ),
        "20,000 steps and five seeds each; hours on 2 CPU cores.",
    ),
    "waves-full": Preset(
        Config(out="runs/icl_waves_full", experiment=("nonlinear",), wave_layers=(1, 2), seeds=5, steps=20_000),
        "sine waves with the paper's 20,000 steps, at K = 1 and 2: 34 CPU-minutes a seed.",
    ),
    "copy-full": Preset(
        Config(out="runs/icl_copy_full", experiment=("copy",), seeds=5, steps=10_000),
        "copying with the paper's 10,000 steps: 15 CPU-minutes.",
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
    "blocks-full": Preset(
        Config(
            out="runs/icl_blocks_full",
            experiment=("blocks",),
            seeds=5,
            steps=50_000,
            block_kinds=("softmax", "softmax-layernorm", "linear"),
            block_batch_size=2048,
            block_rate=5e-4,
            block_scale=0.002 / 12,
            small_blocks=12,
        ),
        "twelve blocks with the steps, batches and rate that the paper has for many layers; for an accelerator.",
    ),
}


def effort(config: Config, experiment: str) -> Effort:
    """Training steps and seeds of an experiment."""
    steps, seeds = DEFAULT_EFFORT.get(experiment, _EFFORT)
    return Effort(config.steps or steps, config.seeds or seeds)


def selected_experiments(config: Config) -> list[str]:
    """The requested experiments, ordered so that those that train a model precede those that reuse it."""
    groups = {"all": LINEAR, "beyond": BEYOND, "recent": RECENT}
    wanted = {name for asked in config.experiment for name in groups.get(asked, (asked,))}
    return [name for name in EXPERIMENTS if name in wanted]


_copies = 8  # of a float32 batch and of the weights, while a step is computed


def check(config: Config) -> None:
    """Refuse flags without values and sizes that do not fit, before anything is written."""
    lists = "experiment contexts dims wave_layers training_tasks noise_levels diagonal_layers functions block_kinds block_tasks"
    for name in (*lists.split(), "pretraining_tasks", "diversity_points"):
        if not getattr(config, name):
            default = " ".join(map(str, getattr(Config, name)))
            raise ValueError(f"--{name.replace('_', '-')} without a value: leave the flag out, or give some, such as {default}")
    width, layers, heads = config.transformer
    if width % heads:
        raise ValueError(f"--transformer {width} {layers} {heads}: use a width that is a multiple of the heads")
    batch = config.block_batch_size
    if uneven := [tasks for tasks in config.block_tasks if tasks > batch and tasks % batch]:
        raise ValueError(f"--block-tasks {uneven[0]} in batches of {batch}: use a multiple of --block-batch-size")
    numbers = config.batch_size * (config.context + 1) * (config.dim + 1) + config.layers * (config.dim + 1) ** 2
    if (needed := _copies * 4 * numbers) > (present := host_bytes()):
        sizes = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
        raise ValueError(
            f"{sizes}: tokens and weights take {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: use less"
        )
    numbers = (max(config.dim, *config.dims) + 1) ** 4
    if "task-diversity" in selected_experiments(config) and (needed := _copies * 8 * numbers) > present:
        sizes = f"--dim {config.dim} --dims {' '.join(map(str, config.dims))}"
        raise ValueError(
            f"{sizes}: task-diversity takes {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: use fewer inputs"
        )

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
    """Does attention learn in context by gradient descent? Layers are constructed, solved in closed form, and trained."""

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
    """Which experiments to run. one-step: one layer against one step of gradient descent (GD). multi-step: --layers layers
    against steps of GD and GD++. depths: the best 1, 2, .. --depths layers, solved. out-of-distribution: one layer and --layers
    layers on shifted tasks. rollout: one layer applied 50 times. curvature: the effect of GD++ on eigenvalues. scaling-N:
    one-step with other sizes. all: these seven.

    nonlinear: sine waves, with an embedding and an MLP. copy: x and y in separate tokens. softmax: one and two heads of softmax
    attention. layernorm: with layer normalisation. phase: when the loss drops, by seed and number of heads. finite-data: few
    training tasks. blocks: transformers of many blocks, with MLPs. noisy: other covariances, noise, and noise levels that
    differ by task. function-classes: a causal transformer on other classes of functions. beyond: these nine.

    task-diversity: few or many pretraining tasks. looped: a recurrent layer, run for fewer and for more loops than it was
    solved or trained for. newton: how many steps of Newton's iteration a solved layer is worth. mesa: layers that estimate a
    regression online. markov: Markov chains, whose transitions two layers count in context. recent: these five, on papers since
    2023."""
    layers: Annotated[int, Bounds(at_least=1, at_most=24)] = 2
    """multi-step, out-of-distribution: number of layers K."""
    recurrent: bool = True
    """multi-step, out-of-distribution: whether the layers share their weights."""
    dim: PositiveInt = 10
    """Input dimension d."""
    context: PositiveInt = 10
    """Number of pairs (x, y) in the context, N."""
    seeds: PositiveInt | None = None
    """Number of training runs, with seeds --seed, --seed + 1, ..; all train at once. Default: 5; 10 for phase, 3 for softmax
    and layernorm, 2 for blocks, nonlinear and markov, 1 for finite-data, noisy, function-classes and task-diversity."""
    steps: PositiveInt | None = None
    """Number of training steps from random weights, each on --batch-size fresh tasks. Default: 5000; 6000 for copy, 4000 for
    nonlinear and markov, 3000 for blocks and function-classes, 2000 for task-diversity."""
    warm_steps: NonNegativeInt = 1000
    """multi-step: number of training steps from the weights of the closed form; 0: no warm start."""
    batch_size: PositiveInt = 2048
    """Number of fresh tasks per step."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam. The paper's code has 0.0005 for more than three layers."""
    settings: Literal["code", "paper"] = "code"
    """Which settings to use where the paper's text and its published code differ. code: inputs U(-1/2, 1/2), Adam's b2 0.98,
    gradients clipped to 0.001 (10 for K > 2), initial weights of variance 0.002/(K fan-in), tokens clipped to 10 for K > 3.
    paper: inputs U(-1, 1), b2 0.999, gradients clipped to 10, initial weights of standard deviation 0.002/K, tokens clipped for
    K > 2. The paper's numbers are those of its code."""
    gd_rate: Literal["optimal", "line-search"] = "optimal"
    """Learning rate of gradient descent. optimal: the best for the distribution of tasks. line-search: the best of the paper's
    250 rates on the validation tasks."""
    validation_tasks: PositiveInt = 10_000
    """Number of tasks of the training curves, which are evaluated every 100 steps."""
    test_tasks: PositiveInt = 200_000
    """Number of fresh tasks that results are computed on."""
    solver_contexts: PositiveInt = 200_000
    """Number of contexts whose eigenvalues the best K layers are solved for."""
    depths: Annotated[int, Bounds(at_least=1, at_most=24)] = 12
    """depths: largest number of layers; the best 1, 2, .. up to it are solved."""
    contexts: tuple[PositiveInt, ...] = (10, 25, 50, 100)
    """curvature, scaling-N: context lengths N."""
    dims: tuple[PositiveInt, ...] = (2, 5, 10, 15, 20)
    """scaling-N: sizes N = d of the one-step comparison. task-diversity: input dimensions for which the threshold is computed,
    besides --dim."""
    scaling_steps: NonNegativeInt = 2000
    """scaling-N: number of training steps, with the first seed only; 0: no training."""
    waves: Literal["code", "paper"] = "code"
    """nonlinear: distribution of the sine waves. code: as in the paper's code, amplitudes 0.1 to 0.5 that also determine the
    phase. paper: as in its text, amplitudes 0.1 to 5 and independent phases."""
    wave_layers: tuple[PositiveInt, ...] = (1,)
    """nonlinear: numbers of attention layers after the MLP."""
    training_tasks: tuple[PositiveInt, ...] = (128, 512, 2048, 8192)
    """finite-data: numbers of training tasks; every step uses all of them."""
    noise_levels: tuple[NonNegativeFloat, ...] = (5.0,)
    """noisy: standard deviations of the noise; each task has one of them. A single number is the upper bound of a uniform
    distribution."""
    diagonal_layers: tuple[PositiveInt, ...] = (1, 2, 3, 4)
    """noisy: numbers K of layers, each with four scalar parameters."""
    functions: tuple[Kind, ...] = KINDS
    """function-classes: which classes of functions."""
    function_dim: PositiveInt = 5
    """function-classes: input dimension d. The paper has d = 20, and 2 d + 1 points as here."""
    transformer: tuple[PositiveInt, PositiveInt, PositiveInt] = (64, 3, 4)
    """function-classes: width, number of layers and number of heads of the transformer. The paper has 256 12 8."""
    chain_states: Annotated[int, Bounds(at_least=2)] = 3
    """markov: number of states of a chain, k."""
    chain_length: Annotated[int, Bounds(at_least=2)] = 64
    """markov: length of a sequence, T."""
    chain_alpha: PositiveFloat = 1.0
    """markov: parameter of the Dirichlet distribution from which each row of a transition matrix is drawn."""
    tokens: PositiveInt = 100_000
    """mesa: number of tokens over which rounding errors are measured."""
    pretraining_tasks: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    """task-diversity: numbers of pretraining tasks for which the best layer is solved."""
    diversity_points: tuple[PositiveInt, ...] = (2, 8, 32, 128, 1024)
    """task-diversity: numbers of pretraining tasks on which layers are trained."""
    blocks: tuple[PositiveInt, PositiveInt] = (12, 4)
    """blocks: number of blocks, and number of heads in each."""
    block_kinds: tuple[BlockKind, ...] = ("softmax",)
    """blocks: attention with or without softmax, and with or without layer normalisation. The paper has softmax without layer
    normalisation."""
    block_batch_size: PositiveInt = 512
    """blocks: number of tasks per step. The paper has 2048."""
    block_rate: PositiveFloat = 2e-3
    """blocks: learning rate of Adam. The paper's code has 0.0005 for many layers."""
    block_scale: PositiveFloat = 0.1
    """blocks: variance of the initial weights times fan-in. The paper's code has 0.002 / K, which only makes training
    slower."""
    block_tasks: tuple[PositiveInt, ...] = (8192,)
    """blocks: sizes of a fixed set of training tasks, for a smaller network of --small-blocks blocks."""
    small_blocks: PositiveInt = 3
    """blocks: number of blocks of the network that is trained on a fixed set of tasks."""
    devices: int | None = None
    """Number of devices to split the seeds over. Default: all accelerators, or one virtual CPU device per core."""
    seed: NonNegativeInt = 0
    """First random seed; also the seed of the validation and test tasks."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


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
        "every experiment with three inputs and 200 steps; three minutes on 2 CPU cores, one minute when functions are "
        "compiled already. The numbers mean nothing.",
    ),
    "one-step": Preset(
        Config(out="runs/icl_one"),
        "the default flags: one layer is one step of gradient descent. Loss 0.206 for both, cosine of sensitivities 0.999.",
    ),
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
        "five layers with separate weights and the paper's 50,000 steps, 20 ms of CPU time each: 17 CPU-minutes per "
        "seed. The closed form has loss 0.0067 after 15 s.",
    ),
    "ten-steps": Preset(
        Config(
            out="runs/icl_ten",
            experiment=("multi-step",),
            layers=10,
            seeds=2,
            learning_rate=5e-4,
        ),
        "ten recurrent layers and the paper's 5000 steps: a higher loss than five layers with separate weights, as in "
        "its Fig. 7.",
    ),
    "all": Preset(
        Config(out="runs/icl", experiment=("all",)), "all experiments on linear regression, with one and two layers."
    ),
    "beyond": Preset(
        Config(out="runs/icl_beyond", experiment=("beyond",)),
        "the nine experiments beyond linear layers, the long ones shortened.",
    ),
    "beyond-full": Preset(
        Config(
            out="runs/icl_beyond_full",
            experiment=("nonlinear", "copy", "softmax", "layernorm", "phase", "finite-data", "noisy"),
            seeds=5,
            steps=20_000,
        ),
        "seven of the experiments of beyond, with 20,000 steps and five seeds each; hours on 2 CPU cores.",
    ),
    "waves-full": Preset(
        Config(out="runs/icl_waves_full", experiment=("nonlinear",), wave_layers=(1, 2), seeds=5, steps=20_000),
        "sine waves with the paper's 20,000 steps, one and two attention layers: 34 CPU-minutes per seed.",
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
        "the model and the number of steps of Garg et al., without their curriculum; for an accelerator.",
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
        "twelve blocks with the paper's steps, batch size and learning rate for many layers; for an accelerator.",
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
            f"{sizes}: tokens and weights take {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: use smaller "
            "values"
        )
    numbers = (max(config.dim, *config.dims) + 1) ** 4
    if "task-diversity" in selected_experiments(config) and (needed := _copies * 8 * numbers) > present:
        sizes = f"--dim {config.dim} --dims {' '.join(map(str, config.dims))}"
        raise ValueError(
            f"{sizes}: task-diversity takes {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: use fewer inputs"
        )

"""The flags of launch.icl, and its presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from icl.names import KINDS, BlockKind, Kind
from jexplicit.nn.parts.names import ScheduleName
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from launch.kit.command import Preset

Linear = Literal["one-step", "multi-step", "depths", "out-of-distribution", "rollout", "curvature", "scaling-N"]
Beyond = Literal[
    "nonlinear", "copy", "softmax", "deep-softmax", "layernorm", "phase", "finite-data", "blocks", "noisy", "function-classes"
]
Recent = Literal["task-diversity", "looped", "newton", "mesa", "markov"]
Name = Literal[Linear, Beyond, Recent]
NAMES: tuple[Name, ...] = get_args(Name)
GROUPS: dict[Any, tuple[Name, ...]] = {"all": get_args(Linear), "beyond": get_args(Beyond), "recent": get_args(Recent)}


@dataclass(frozen=True)
class Config:
    """Does attention learn in context by gradient descent? Layers are constructed, solved, and trained."""

    GROUPS: ClassVar = {
        "out": "run",
        "experiment": "experiments",
        "dim": "task",
        "seeds": "training",
        "validation_tasks": "measurements",
        "devices": "run",
    }

    out: str
    """Run folder to write: config, results, figures, report.md and the trained layers."""
    experiment: tuple[Literal[Name, "all", "beyond", "recent"], ...] = ("one-step",)
    """Which experiments to run, by name or all of a group. one-step: one layer against one step of gradient descent (GD).
    multi-step: --layers layers against steps of GD and GD++. depths: the best 1, 2, .. --depths layers, solved.
    out-of-distribution: one layer and --layers layers on shifted tasks. rollout: one layer applied 50 times. curvature:
    the effect of GD++ on eigenvalues. scaling-N: one-step with other sizes. nonlinear: sine waves, with an embedding and
    an MLP. copy: x and y in separate tokens. softmax: one and two heads of softmax attention. deep-softmax: --layers
    layers of softmax attention with two heads, from random weights and from GD++. layernorm: with layer normalisation.
    phase: when the loss drops, by seed and number of heads. finite-data: few training tasks. blocks: transformers of many
    blocks, with MLPs. noisy: other covariances, noise, and noise levels that differ by task. function-classes: a causal
    transformer on other classes of functions. task-diversity: few or many pretraining tasks. looped: a recurrent layer,
    run for fewer and for more loops than it was solved or trained for. newton: how many steps of Newton's iteration a
    solved layer is worth: those that have the same loss. mesa: layers that estimate a regression online. markov: markov
    chains, whose transitions two layers count in context. all: those on linear regression. beyond: those beyond linear
    layers. recent: those on papers since 2023."""
    dim: PositiveInt = 10
    """Input dimension d."""
    context: PositiveInt = 10
    """Number of pairs (x, y) in the context, N."""
    layers: Annotated[int, Bounds(at_least=1, at_most=24)] = 2
    """multi-step, deep-softmax, out-of-distribution: number of layers K."""
    recurrent: bool = True
    """multi-step, deep-softmax, out-of-distribution: whether the layers share their weights."""
    seeds: PositiveInt | None = None
    """Number of training runs, with seeds --seed, --seed + 1, .. Default: 5; 10 for phase, 3 for softmax and layernorm, 2 for
    blocks, nonlinear and markov, 1 for finite-data, noisy, function-classes and task-diversity."""
    steps: PositiveInt | None = None
    """Number of training steps from random weights, each on --batch-size fresh tasks. Default: 5000; 6000 for copy, 4000 for
    nonlinear and markov, 3000 for blocks and function-classes, 2000 for task-diversity."""
    batch_size: PositiveInt = 2048
    """Number of fresh tasks per step."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam at the first step. The paper's code has 0.0005 for more than three layers."""
    cooling: ScheduleName = "cosine"
    """Schedule of the learning rate over the steps of a training. cosine, linear: down to 0. exponential: down to a hundredth.
    step: a tenth after two thirds of the steps. constant: no decay, and Adam's noise decides how close training comes to the
    solution."""
    settings: Literal["code", "paper"] = "code"
    """Which settings to use where the paper's text and its published code differ. code: inputs U(-1/2, 1/2), Adam's b2 0.98,
    gradients clipped to 0.001 (10 for K > 2), initial weights of variance 0.002/(K fan-in), tokens clipped to 10 for K > 3.
    paper: inputs U(-1, 1), b2 0.999, gradients clipped to 10, initial weights of standard deviation 0.002/K, tokens clipped for
    K > 2. The paper's numbers are those of its code."""
    gd_rate: Literal["optimal", "line-search"] = "optimal"
    """Learning rate of gradient descent. optimal: the best for the distribution of tasks. line-search: the best of the paper's
    250 rates on the validation tasks."""
    warm_steps: NonNegativeInt = 1000
    """multi-step, deep-softmax: number of training steps from the weights that were solved for; 0: no warm start."""
    validation_tasks: PositiveInt = 10_000
    """Number of tasks of the training curves, which are evaluated every 100 steps, of long trainings 200 times."""
    test_tasks: PositiveInt = 200_000
    """Number of fresh tasks that results are computed on."""
    solver_contexts: PositiveInt = 200_000
    """Number of contexts whose eigenvalues the rates of the best K layers are fitted to, by least squares."""
    depths: Annotated[int, Bounds(at_least=1, at_most=24)] = 12
    """depths, newton: largest number of layers; the best 1, 2, .. up to it are solved."""
    chain_states: Annotated[int, Bounds(at_least=2)] = 3
    """markov: number of states of a chain, k."""
    chain_length: Annotated[int, Bounds(at_least=2)] = 64
    """markov: length of a sequence, T."""
    chain_alpha: PositiveFloat = 1.0
    """markov: parameter of the Dirichlet distribution from which each row of a transition matrix is drawn."""
    tokens: PositiveInt = 100_000
    """mesa: number of tokens over which rounding errors are measured."""
    contexts: tuple[PositiveInt, ...] = (10, 25, 50, 100)
    """curvature, scaling-N: context lengths N."""
    dims: tuple[PositiveInt, ...] = (2, 5, 10, 15, 20)
    """scaling-N: sizes N = d of the one-step comparison. task-diversity: input dimensions for which the threshold is computed,
    besides --dim."""
    scaling_steps: NonNegativeInt = 2000
    """scaling-N: number of training steps, with the first seed only; 0: no training."""
    pretraining_tasks: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    """task-diversity: numbers of pretraining tasks for which the best layer is solved."""
    diversity_points: tuple[PositiveInt, ...] = (2, 8, 32, 128, 1024)
    """task-diversity: numbers of pretraining tasks on which layers are trained."""
    functions: tuple[Kind, ...] = KINDS
    """function-classes: which classes of functions."""
    function_dim: PositiveInt = 5
    """function-classes: input dimension d. The paper has d = 20, and 2 d + 1 points as here."""
    transformer: tuple[PositiveInt, PositiveInt, PositiveInt] = (64, 3, 4)
    """function-classes: width, number of layers and number of heads of the transformer. The paper has 256 12 8."""
    noise_levels: tuple[NonNegativeFloat, ...] = (5.0,)
    """noisy: standard deviations of the noise; each task has one of them. A single number is the upper bound of a uniform
    distribution."""
    diagonal_layers: tuple[PositiveInt, ...] = (1, 2, 3, 4)
    """noisy: numbers K of layers, each with four scalar parameters."""
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
    training_tasks: tuple[PositiveInt, ...] = (128, 512, 2048, 8192)
    """finite-data: numbers of training tasks; every step uses all of them."""
    waves: Literal["code", "paper"] = "code"
    """nonlinear: distribution of the sine waves. code: as in the paper's code, amplitudes 0.1 to 0.5 that also determine the
    phase. paper: as in its text, amplitudes 0.1 to 5 and independent phases."""
    wave_layers: tuple[PositiveInt, ...] = (1,)
    """nonlinear: numbers of attention layers after the MLP."""
    devices: int | None = None
    """Number of devices to split the seeds over. Default: all accelerators, or one virtual CPU device per core."""
    seed: NonNegativeInt = 0
    """First random seed; also the seed of the validation and test tasks."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


def _preset(out: str, experiment: str, note: str, **flags: Any) -> Preset:
    names: Any = tuple(experiment.split())
    return Preset(Config(out=f"runs/{out}", experiment=names, **flags), note)


_tiny = {
    **{"dim": 3, "context": 4, "seeds": 2, "steps": 200, "warm_steps": 100, "batch_size": 128, "depths": 3},
    **{"validation_tasks": 500, "test_tasks": 2_000, "solver_contexts": 500, "contexts": (4, 8), "dims": (2, 3)},
    **{"scaling_steps": 100, "wave_layers": (1, 2), "training_tasks": (16, 64), "diagonal_layers": (1, 2), "tokens": 1000},
    **{"functions": ("linear", "tree"), "function_dim": 2, "transformer": (16, 1, 2), "chain_length": 16, "blocks": (2, 2)},
    **{"block_kinds": ("softmax", "linear-layernorm"), "block_batch_size": 64, "block_tasks": (128,), "small_blocks": 1},
    **{"pretraining_tasks": (8, 64), "diversity_points": (8,)},
}
_five = {"layers": 5, "recurrent": False, "seeds": 2, "steps": 50_000, "warm_steps": 5000, "learning_rate": 5e-4}
_ten = {"layers": 10, "seeds": 2, "learning_rate": 5e-4}
_full: dict[str, Any] = {"seeds": 5, "steps": 20_000, "cooling": "constant"}
_waves, _copy = _full | {"wave_layers": (1, 2)}, _full | {"steps": 10_000}
_long = "nonlinear copy softmax layernorm phase finite-data noisy"
_garg = {"steps": 500_001, "batch_size": 64, "learning_rate": 1e-4, "cooling": "constant"}
_garg |= {"function_dim": 20, "transformer": (256, 12, 8)}
_blocks = {
    **{"seeds": 5, "steps": 50_000, "block_kinds": ("softmax", "softmax-layernorm", "linear"), "block_batch_size": 2048},
    **{"block_rate": 5e-4, "block_scale": 0.002 / 12, "small_blocks": 12, "cooling": "constant"},
}
# Losses and times of 2 CPU cores.
PRESETS = {
    "tiny": _preset("icl_tiny", "all beyond recent", "all experiments; three minutes. The numbers mean nothing.", **_tiny),
    "one-step": _preset("icl_one", "one-step", "the defaults: one layer is one step of descent; loss 0.206, cosine 0.999."),
    "two-steps": _preset("icl_two", "multi-step", "two recurrent layers are two steps of GD++: loss 0.1105, gamma 0.175."),
    "five-steps": _preset("icl_five", "multi-step", "five separate layers, the paper's steps; 17 CPU-minutes a seed.", **_five),
    "ten-steps": _preset("icl_ten", "multi-step", "ten recurrent layers, the paper's 5000 steps, as in its Fig. 7.", **_ten),
    "all": _preset("icl", "all", "all experiments on linear regression, with one and two layers."),
    "beyond": _preset("icl_beyond", "beyond", "the ten experiments beyond linear layers, the long ones shortened."),
    "beyond-full": _preset("icl_beyond_full", _long, "seven of them with 20,000 steps and five seeds; hours.", **_full),
    "waves-full": _preset("icl_waves_full", "nonlinear", "sine waves, the paper's steps; 34 CPU-minutes a seed.", **_waves),
    "copy-full": _preset("icl_copy_full", "copy", "copying with the paper's 10,000 steps; 15 CPU-minutes.", **_copy),
    "functions-full": _preset("icl_functions_full", "function-classes", "as Garg et al.; for an accelerator.", **_garg),
    "blocks-full": _preset("icl_blocks_full", "blocks", "twelve blocks, the paper's steps; for an accelerator.", **_blocks),
}

"""The configurations of launch.blur: a frozen dataclass per subcommand, the designs of an ablation, checks across fields."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from icl.names import RATES, BackwardMode, Families, Feedback, Normalisation, Objective, Output, Over, Pre, Start, Update
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class BlurConfig:
    """Flags of all subcommands."""

    GROUPS: ClassVar = {"out": "run"}

    out: str
    """Run folder to write: config, results, metrics, figures, report.md, checkpoints and genomes."""
    seed: NonNegativeInt = 0
    """Seed of genomes, initial synapses, minibatches and splits."""
    devices: PositiveInt | None = None
    """Number of devices to split the genomes over; default, all accelerators, or one virtual CPU device per core."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class LearnersConfig(BlurConfig):
    """Labelled images, and the learners that are measured on them."""

    GROUPS: ClassVar = {"data": "images", "widths": "learners"}

    data: str = "digits"
    """digits: the 8x8 digits that come with scikit-learn. mnist, fashion_mnist or another name: idx files named as in MNIST.
    xor: exclusive or."""
    data_dir: str | None = None
    """Folder of the idx files; default, the folder with the name of the data in $JEXPLICIT_DATA_DIR."""
    side: Annotated[int, Bounds(at_least=1, at_most=256)] | None = None
    """Resize images to side x side: multiples repeat pixels, smaller sides average blocks of the central crop (the paper has
    mnist at 10)."""
    limit: PositiveInt | None = None
    """Use at most this many images, train and test together."""
    classes: tuple[NonNegativeInt, ...] = ()
    """Use the images of these classes only, as the classes 0, 1, ..; default, all of them."""
    widths: tuple[PositiveInt, ...] = (32,)
    """Widths of the learners' hidden layers, of every one: 256 128 for two."""
    batch_size: PositiveInt = 64
    """Examples per update."""
    learners: PositiveInt = 10
    """Learners to average an accuracy over, each with its own initial synapses and minibatches."""
    steps: PositiveInt = 100
    """Updates of each measured learner."""


@dataclass(frozen=True)
class MetaTrainingConfig(LearnersConfig):
    """Design of the learners, and meta-training of their genomes."""

    GROUPS: ClassVar = {"states": "genome", "method": "training"}

    states: int = 4
    """States per neuron, k."""
    backward: BackwardMode = "additive"
    """How a neuron combines the backward input with its state; multiplicative_second_state leaves the first state as it is."""
    symmetric: bool = True
    """Backward synapses are the transposed forward ones; otherwise they have their own initial values and updates."""
    multistate: bool = True
    """A synapse has one weight per state; otherwise all states share one."""
    normalise: Normalisation = "both"
    """Passes in which hidden layers are normalised."""
    normalise_output: bool = True
    """Normalise the output layer."""
    over: Over = "batch"
    """Normalise each neuron over the minibatch, or over minibatch and layer; mixed: the latter in the first hidden layer."""
    synapse_norm: bool = True
    """Neurons read synapses of unit norm."""
    oja: bool = False
    """Oja's decay in the update."""
    update: Update = "hebbian"
    """hebbian: the product of the states before and after a synapse. ridge: the least-squares fit of the minibatch instead."""
    aging: bool = False
    """Learning rates decay with the number of updates."""
    average: bool = False
    """Predict with averaged synapses."""
    pre: Pre = "backward"
    """States that the update uses before a synapse: those after the backward or the forward pass, or those that the updated
    synapses of the layers below give."""
    hidden_activation: Activation = "tanh"
    """Activation of the hidden layers, in both passes."""
    output_activation: Output = "softmax"
    """Activation of the output layer's state in the backward pass; logits have none."""
    backward_activation: Activation | None = None
    """Activation of the hidden layers in the backward pass; default, --hidden-activation."""
    derivative: bool = False
    """The second state of the forward pass is the derivative of the activation."""
    feedback: Feedback = "label"
    """What the outputs send back: the label, or the derivative of a loss."""
    start: Start = "random"
    """Genomes before meta-training: random; the matrices of gradient descent, with noise; or a ridge rule that works."""
    method: Literal["gradient", "evolution"] = "gradient"
    """gradient: Adam through the unrolled updates. evolution: CMA-ES on accuracy."""
    families: Families | None = None
    """Meta-train on families of tasks and networks instead of the data as it is with --widths and --batch-size. digits: 12
    families made of the data (inputs mixed, classes merged; 1 to 4 hidden layers). boolean, with --data xor: all functions of
    two inputs that are true at two corners."""
    population: PositiveInt = 4
    """Genomes trained side by side; with evolution, genomes per generation (at least 4)."""
    unroll: tuple[PositiveInt, ...] = (10, 20)
    """Updates T per learner, one number for each stage of the curriculum."""
    meta_steps: tuple[PositiveInt, ...] = (1500, 700)
    """Meta-steps, or generations, in each stage."""
    meta_rate: PositiveFloat = 0.015
    """Adam's learning rate at the start of a stage; a cosine schedule takes it to a tenth."""
    gradient_clip: PositiveFloat = 10.0
    """Largest norm of a genome's gradient."""
    objective: Objective = "end"
    """Meta-loss of a learner: that after its last update, or the area under its learning curve."""
    path: NonNegativeFloat = 0.5
    """Weight of the path loss, the loss on each minibatch before the update on it; the area has none."""
    query_size: PositiveInt = 200
    """Examples for the loss of a learner after its updates, with evolution for its accuracy."""
    fitness_learners: PositiveInt = 2
    """With evolution, learners whose mean accuracy is the fitness of a genome."""
    remat: bool = False
    """Recompute the updates in differentiation: less memory, more time."""
    every: PositiveInt = 100
    """Meta-steps between two evaluations on dev."""
    episodes: PositiveInt = 16
    """Learners per genome in an evaluation."""


@dataclass(frozen=True)
class TrainConfig(MetaTrainingConfig):
    """Meta-train a genome, and compare its learners with gradient descent at many learning rates, plain and normalised."""

    GROUPS: ClassVar = {"far": "measurements"}

    far: NonNegativeInt = 400
    """Updates to follow the learners for, far past the training horizon; 0 for no more than --steps."""
    baselines: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")
    """Optimisers of the baselines; an empty list for none."""
    baseline_activations: tuple[Activation, ...] = ("tanh", "relu")
    """Hidden activations of the baselines' networks."""
    rates: tuple[PositiveFloat, ...] = RATES
    """Learning rates of the baselines: the figure shows all, the table the best on dev for each number of updates."""


@dataclass(frozen=True)
class TransferConfig(MetaTrainingConfig):
    """Run a genome in other networks than those of its meta-training: other image sizes, widths, data and depths."""

    GROUPS: ClassVar = {"genome": "measurements"}

    population: PositiveInt = 2
    unroll: tuple[PositiveInt, ...] = (10,)
    meta_steps: tuple[PositiveInt, ...] = (800,)
    genome: str = "digits"
    """The genome to transfer: a name from the package, or the genome.json of a train run."""
    networks: tuple[str, ...] = ("16", "128", "256")
    """Other hidden layers, each the widths of one network: 256, or 256x128 for two layers."""
    sides: tuple[PositiveInt, ...] = (4, 16)
    """Other sizes of the same images."""
    others: tuple[str, ...] = ("wine", "breast_cancer")
    """Other data: wine and breast_cancer (tables of scikit-learn), xor, mnist, mnist@10 (at 10 x 10), or other images."""
    to_classes: tuple[NonNegativeInt, ...] = ()
    """The same images of these other classes, as one more place; see --classes."""
    train_depths: tuple[PositiveInt, ...] = (1, 2, 4)
    """Numbers of hidden layers to meta-train genomes with; an empty list skips the experiment on depth."""
    depths: tuple[PositiveInt, ...] = (1, 2, 4, 5, 10)
    """Numbers of hidden layers to run each of them with."""


_VARIANTS: dict[str, dict[str, Any]] = {
    "no synapse norm": {"synapse_norm": False},
    "oja": {"oja": True},
    "separate synapses": {"symmetric": False},
    "single-state synapses": {"multistate": False},
    "over layer": {"over": "layer"},
    "multiplicative": {"backward": "multiplicative"},
    "forward pre": {"pre": "forward"},
    "no path loss": {"path": 0.0},
    "tanh output": {"output_activation": "tanh"},
    "linear output": {"output_activation": "linear"},
    "backprop start": {"start": "backprop"},
    "evolution": {"method": "evolution", "population": 32, "every": 10},
}


@dataclass(frozen=True)
class AblationConfig(MetaTrainingConfig):
    """Meta-train genomes of designs that differ in one choice each, from several seeds: which differences exceed the spread
    over seeds? Normalisation, states, nonlinearities, decay, synapses, initial genome, evolution."""

    GROUPS: ClassVar = {"normalisations": "measurements"}

    population: PositiveInt = 2
    unroll: tuple[PositiveInt, ...] = (10,)
    meta_steps: tuple[PositiveInt, ...] = (600,)
    seeds: PositiveInt = 3
    """Genomes that are meta-trained for each design, from --seed on: each with other initial values and minibatches. They run
    the same learners, on the same split of the images."""
    normalisations: tuple[Normalisation, ...] = ("none", "forward", "backward", "both")
    """Passes in which hidden layers are normalised, each with and without normalisation of the output layer."""
    numbers_of_states: tuple[PositiveInt, ...] = (2, 4, 8, 16)
    """Numbers of states per neuron."""
    nonlinearities: tuple[Activation, ...] = ("tanh", "relu", "sigmoid", "linear", "relu_tanh")
    """Activations of the hidden layers, in both passes; relu_tanh is `relu(tanh z)`."""
    variants: tuple[str, ...] = tuple(_VARIANTS)
    """Other designs, each different in one choice."""
    generations: PositiveInt = 150
    """Generations of evolution, with 32 genomes each."""


@dataclass(frozen=True)
class GridConfig(LearnersConfig):
    """Gradient descent at every learning rate and momentum, plain and normalised, beside the learners of a genome."""

    GROUPS: ClassVar = {"genome": "measurements"}

    genome: str = "digits"
    """The genome to compare with: a name from the package, or the genome.json of a train run."""
    rates: tuple[PositiveFloat, ...] = RATES
    """Learning rates."""
    momenta: tuple[Annotated[float, Bounds(at_least=0, below=1)], ...] = (0.0, 0.5, 0.9, 0.95, 0.99)
    """Momentum coefficients; 0 is plain descent."""
    baseline_activation: Activation = "tanh"
    """Activation of the hidden layers under descent."""


@dataclass(frozen=True)
class SgdCheckConfig(BlurConfig):
    """Compare gradient descent as a genome with `jax.grad`, and compute the curl of a learned update on exclusive or."""

    GROUPS: ClassVar = {"genome": "measurements"}

    genome: str = "boolean"
    """The learned genome whose update is not a gradient."""
    sizes: tuple[PositiveInt, ...] = (12, 16, 5)
    """Neurons by layer."""
    deep_sizes: tuple[PositiveInt, ...] = (12, 16, 14, 10, 5)
    """Neurons by layer of a deeper network."""
    steps: PositiveInt = 50
    """Steps of gradient descent."""
    rate: PositiveFloat = 0.25
    """Learning rate."""
    batch_size: PositiveInt = 32
    """Examples per step."""
    curl_hidden: PositiveInt = 20
    """Hidden neurons of the network for exclusive or."""


def designs(config: AblationConfig) -> dict[str, AblationConfig]:
    """The configurations to compare: the reference, and others that differ from it in one choice.

    Normalisation of the hidden layers' passes and of the output are two choices: all their combinations are designs.
    """
    changes: dict[str, dict[str, Any]] = {"reference": {}}
    for passes in config.normalisations:
        changes[f"normalise {passes} + output"] = {"normalise": passes, "normalise_output": True}
        changes[f"normalise {passes}"] = {"normalise": passes, "normalise_output": False}
    changes |= {f"{states} states": {"states": states} for states in config.numbers_of_states}
    changes |= {f"{name} neurons": {"hidden_activation": name} for name in config.nonlinearities}
    changes |= {name: _VARIANTS[name] for name in config.variants}
    if "evolution" in changes:
        changes["evolution"] = changes["evolution"] | {"meta_steps": (config.generations,), "unroll": config.unroll[-1:]}
    return {name: dataclasses.replace(config, **change) for name, change in changes.items()}


def hidden_layers(network: str) -> tuple[int, ...]:
    """The widths in `256` or `256x128`.

    Raises:
        ValueError: something else.

    Example:
        >>> hidden_layers("256x128")
        (256, 128)
    """
    widths = network.split("x")
    if not all(width.isdecimal() and int(width) > 0 for width in widths):
        raise ValueError(f"--networks {network}: write the widths of the hidden layers of each network as 256 or 256x128")
    return tuple(map(int, widths))


def check(config: Any) -> None:
    """Checks across fields, before anything is written.

    Raises:
        ValueError: naming the flags.
    """
    for flag in ("rates", "momenta"):
        if not getattr(config, flag, (0,)):
            raise ValueError(f"--{flag}: give at least one")
    for flag in ("classes", "to_classes"):
        if (given := getattr(config, flag, ())) and len(set(given)) < max(2, len(given)):
            flags = f"--{flag.replace('_', '-')} {' '.join(map(str, given))}"
            raise ValueError(f"{flags}: give at least two classes, each once, or leave the flag out")
    for network in getattr(config, "networks", ()):
        hidden_layers(network)
    if getattr(config, "data", None) == "xor":
        _check_no_images(config)
    if not isinstance(config, MetaTrainingConfig):
        return
    if (config.families == "boolean") != (config.data == "xor"):
        given = f" --families {config.families}" if config.families else ""
        raise ValueError(f"--data {config.data}{given}: give --data xor and --families boolean together, or neither")
    if config.families and config.method == "evolution":
        raise ValueError(f"--families {config.families} with --method evolution: evolution has no families; use gradient")
    stages = len(config.unroll)
    if not stages or stages != len(config.meta_steps):
        raise ValueError(
            f"--unroll {config.unroll} and --meta-steps {config.meta_steps}: give one number in each for every stage"
        )
    if config.method == "evolution" and (config.population < 4 or stages > 1):
        raise ValueError(
            f"--method evolution with --population {config.population} and {stages} stages: use at least 4 genomes, one stage"
        )
    if unknown := set(getattr(config, "variants", ())) - set(_VARIANTS):
        raise ValueError(f"--variants {', '.join(sorted(unknown))}: choose some of {', '.join(map(repr, _VARIANTS))}")


def _check_no_images(config: Any) -> None:
    """Refuse flags about images where the data are the four points of exclusive or."""
    if isinstance(config, AblationConfig):
        raise ValueError("--data xor: an ablation runs its genomes on larger images too; use train, or name images")
    flags = {"side": None, "limit": None, "classes": (), "sides": (), "to_classes": ()}
    for flag, none in flags.items():
        if (given := getattr(config, flag, none)) != none:
            value = " ".join(map(str, given)) if isinstance(given, tuple) else given
            raise ValueError(
                f"--data xor with --{flag.replace('_', '-')} {value}: four points are no images; leave the flag out"
            )

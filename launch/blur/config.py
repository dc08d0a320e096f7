"""The flags of launch.blur: a frozen dataclass per subcommand, and checks across fields. JAX is not needed."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from icl.blur.design import Design
from icl.names import RATES, TASK_GROUPS, Families, Normalisation, Objective, Output, Start
from jexplicit.nn.parts.names import Activation, OptimizerName
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
    """Number of devices to split the genomes over. Default: all accelerators, or one virtual CPU device per core."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class GenomeConfig(BlurConfig):
    """A genome that a run is about."""

    GROUPS: ClassVar = {"genome": "measurements"}

    genome: str = "digits"
    """Genome: the name of one in the package, or the genome.json of a train run."""


@dataclass(frozen=True)
class LearnersConfig(BlurConfig):
    """Labelled images, and the learners that are measured on them."""

    GROUPS: ClassVar = {"data": "images", "widths": "learners"}

    data: str = "digits"
    """Data set: digits (8x8, of scikit-learn), xor (exclusive or), or idx files by name, such as mnist and fashion_mnist."""
    data_dir: str | None = None
    """Folder of the idx files. Default: the folder named after the data set in $JEXPLICIT_DATA_DIR."""
    side: Annotated[int, Bounds(at_least=1, at_most=256)] | None = None
    """Resize images to side x side pixels: repeated, or averages of blocks of the central crop. The paper has mnist at 10."""
    limit: PositiveInt | None = None
    """Use at most this many images, train and test together."""
    classes: tuple[NonNegativeInt, ...] = ()
    """Use only images of these classes, as the classes 0, 1, .. Default: all classes."""
    widths: tuple[PositiveInt, ...] = (32,)
    """Widths of the learners' hidden layers, such as 256 128 for two."""
    batch_size: PositiveInt = 64
    """Examples per update."""
    learners: PositiveInt = 10
    """Number of learners that an accuracy is averaged over, each with its own initial synapses and minibatches."""
    steps: PositiveInt = 100
    """Number of updates of each learner that is measured."""


@dataclass(frozen=True)
class MetaTrainingConfig(Design, LearnersConfig):
    """Design of the learners, and meta-training of their genomes."""

    GROUPS: ClassVar = {"states": "genome", "method": "training"}

    synapse_norm: bool = True
    hidden_activation: Activation = "tanh"
    """Activation of the hidden layers, in both passes."""
    output_activation: Output = "softmax"
    """Activation of the output layer's state in the backward pass; logits are read before it."""
    start: Start = "random"
    """Genomes before meta-training: random matrices, those of gradient descent with noise, or a ridge rule that learns."""
    method: Literal["gradient", "evolution"] = "gradient"
    """How genomes are meta-trained. gradient: Adam through the unrolled updates. evolution: CMA-ES on accuracy."""
    families: Families | None = None
    """Meta-train on families of tasks and networks, instead of --data with --widths and --batch-size. digits: 12 families
    of the data, inputs mixed and classes merged. boolean: with --data xor, the balanced functions of two bits."""
    population: PositiveInt = 4
    """Number of genomes trained in parallel; with evolution, genomes per generation (at least 4)."""
    unroll: tuple[PositiveInt, ...] = (10, 20)
    """Number of updates T of a learner, for each stage of the curriculum."""
    meta_steps: tuple[PositiveInt, ...] = (1500, 700)
    """Number of meta-steps in each stage; with evolution, of generations."""
    meta_rate: PositiveFloat = 0.015
    """Learning rate of Adam at the start of each stage; a cosine schedule lowers it to a tenth."""
    gradient_clip: PositiveFloat = 10.0
    """Maximum norm of a genome's gradient; larger gradients are scaled down to it."""
    objective: Objective = "end"
    """Meta-loss of a learner. end: its loss after the last update. curve: the area under its learning curve."""
    path: NonNegativeFloat = 0.5
    """Weight of the path loss, the loss on each minibatch before its update; not used with --objective curve."""
    query_size: PositiveInt = 200
    """Number of examples that a learner is evaluated on after its updates, by loss or, with evolution, by accuracy."""
    fitness_learners: PositiveInt = 2
    """With evolution, number of learners whose mean accuracy is the fitness of a genome."""
    remat: bool = False
    """Recompute the updates when differentiating: less memory, more time."""
    every: PositiveInt = 100
    """Number of meta-steps between two evaluations on dev."""
    episodes: PositiveInt = 16
    """Number of learners per genome in an evaluation."""


@dataclass(frozen=True)
class TrainConfig(MetaTrainingConfig):
    """Meta-train a genome, and compare its learners with gradient descent at many learning rates, with and without
    normalisation, and at equal FLOPs, and with classifiers of scikit-learn on the same examples."""

    GROUPS: ClassVar = {"far": "measurements"}

    far: NonNegativeInt = 400
    """Number of updates that the learners are followed for, far beyond those of meta-training; 0: no more than --steps."""
    baselines: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")
    """Optimisers of the baselines; an empty list: no baselines."""
    baseline_activations: tuple[Activation, ...] = ("tanh", "relu")
    """Activations of the hidden layers of the baselines."""
    rates: tuple[PositiveFloat, ...] = RATES
    """Learning rates of the baselines. The figure shows all; the table shows the best on dev for each number of updates."""


@dataclass(frozen=True)
class TransferConfig(GenomeConfig, MetaTrainingConfig):
    """Run a genome in networks other than those of its meta-training: other image sizes, widths, data and depths."""

    population: PositiveInt = 2
    unroll: tuple[PositiveInt, ...] = (10,)
    meta_steps: tuple[PositiveInt, ...] = (800,)
    networks: tuple[str, ...] = ("16", "128", "256")
    """Other networks, each as the widths of its hidden layers: 256, or 256x128 for two layers."""
    sides: tuple[PositiveInt, ...] = (4, 16)
    """Other sizes of the same images, in pixels."""
    others: tuple[str, ...] = ("wine", "breast_cancer")
    """Other data sets: wine and breast_cancer (tables of scikit-learn), xor, mnist, mnist@10 (at 10 x 10), or other images."""
    to_classes: tuple[NonNegativeInt, ...] = ()
    """Also run the genome on the images of these other classes; see --classes."""
    train_depths: tuple[PositiveInt, ...] = (1, 2, 4)
    """Numbers of hidden layers to meta-train genomes with; an empty list skips this experiment."""
    depths: tuple[PositiveInt, ...] = (1, 2, 4, 5, 10)
    """Numbers of hidden layers that each of these genomes is run with."""


VARIANTS: dict[str, dict[str, Any]] = {
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
    over seeds? Choices: normalisation, states, nonlinearities, decay, synapses, initial genome, evolution."""

    GROUPS: ClassVar = {"normalisations": "measurements"}

    population: PositiveInt = 2
    unroll: tuple[PositiveInt, ...] = (10,)
    meta_steps: tuple[PositiveInt, ...] = (600,)
    seeds: PositiveInt = 3
    """Number of genomes meta-trained for each design, with seeds --seed, --seed + 1, .. All run the same learners."""
    normalisations: tuple[Normalisation, ...] = ("none", "forward", "backward", "both")
    """Passes in which hidden layers are normalised, each with and without normalisation of the output layer."""
    numbers_of_states: tuple[PositiveInt, ...] = (2, 4, 8, 16)
    """Numbers of states per neuron."""
    nonlinearities: tuple[Activation, ...] = ("tanh", "relu", "sigmoid", "linear", "relu_tanh")
    """Activations of the hidden layers, in both passes; relu_tanh is `relu(tanh z)`."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """Other designs, each with one choice that differs from the reference."""
    generations: PositiveInt = 150
    """Number of generations of evolution, with 32 genomes each."""


@dataclass(frozen=True)
class GridConfig(GenomeConfig, LearnersConfig):
    """Gradient descent at every learning rate and momentum, with and without normalisation, beside the learners of a genome."""

    rates: tuple[PositiveFloat, ...] = RATES
    """Learning rates of gradient descent."""
    momenta: tuple[Annotated[float, Bounds(at_least=0, below=1)], ...] = (0.0, 0.5, 0.9, 0.95, 0.99)
    """Momentum coefficients; 0: no momentum."""
    baseline_activation: Activation = "tanh"
    """Activation of the hidden layers in gradient descent."""


@dataclass(frozen=True)
class SgdCheckConfig(GenomeConfig):
    """Compare gradient descent written as a genome with `jax.grad`, and compute the curl of a learned update on exclusive
    or."""

    genome: str = "boolean"
    sizes: tuple[PositiveInt, ...] = (12, 16, 5)
    """Neurons per layer."""
    deep_sizes: tuple[PositiveInt, ...] = (12, 16, 14, 10, 5)
    """Neurons per layer of a deeper network."""
    steps: PositiveInt = 50
    """Number of steps of gradient descent."""
    rate: PositiveFloat = 0.25
    """Learning rate."""
    batch_size: PositiveInt = 32
    """Examples per step."""
    curl_hidden: PositiveInt = 20
    """Number of hidden neurons of the network for exclusive or."""


@dataclass(frozen=True)
class TasksConfig(GenomeConfig):
    """Evaluate a genome, without training it, on 54 small tasks, beside SGD, momentum and Adam, each tuned for each number of
    updates.

    All tasks take an hour on 2 busy CPU cores, most of it for the baselines; with those of an earlier run, 6 to 12 minutes."""

    tasks: tuple[str, ...] = TASK_GROUPS
    """Groups of tasks (mnist needs files), data sets (wine) or single tasks (wine/128-128: data set and hidden layers)."""
    data_dir: str | None = None
    """Folder of MNIST's idx files. Default: the folder mnist in $JEXPLICIT_DATA_DIR."""
    learners: PositiveInt = 5
    """Number of learners that an accuracy is averaged over, each with its own initial synapses and minibatches."""
    batch_size: PositiveInt = 64
    """Examples per update."""
    baselines: str | None = None
    """Run folder of an earlier `launch.blur tasks`, with the same flags and versions, to take baselines from."""
    against: Literal["descent", "adam"] = "descent"
    """descent: the best of six tuned optimisers after as many updates. adam: the number of updates that tuned Adam needs for
    the rule's accuracy, and classifiers of the same examples."""


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
            raise ValueError(f"{_written(flag, given)}: give at least two classes, each once, or leave the flag out")
    if isinstance(config, TasksConfig) and config.against == "adam" and config.baselines:
        raise ValueError(
            f"--baselines {config.baselines} with --against adam, which measures no baselines: leave --baselines out"
        )
    for network in getattr(config, "networks", ()):
        hidden_layers(network)
    if getattr(config, "data", None) == "xor":
        if isinstance(config, AblationConfig):
            remedy = "use launch.blur train, or --data with images"
            raise ValueError(f"--data xor: an ablation also runs its genomes on larger images; {remedy}")
        given = [flag for flag in ("side", "limit", "classes", "sides", "to_classes") if getattr(config, flag, None)]
        if given:
            one = _written(given[0], getattr(config, given[0]))
            raise ValueError(f"--data xor with {one}: it has four points and no images; leave the flag out")
    if isinstance(config, MetaTrainingConfig):
        _check_meta_training(config)


def _check_meta_training(config: MetaTrainingConfig) -> None:
    stages, families = len(config.unroll), f"--families {config.families}"
    if (config.families == "boolean") != (config.data == "xor"):
        given = f"--data {config.data}" + f" {families}" * (config.families is not None)
        raise ValueError(f"{given}: give --data xor and --families boolean together, or neither")
    if not stages or stages != len(config.meta_steps):
        raise ValueError(f"--unroll {config.unroll} and --meta-steps {config.meta_steps}: give each flag one number per stage")
    if config.method == "evolution" and config.families:
        raise ValueError(f"{families} with --method evolution: evolution has no families; use --method gradient")
    if config.method == "evolution" and (config.population < 4 or stages > 1):
        given = f"--method evolution with --population {config.population} and {stages} stages"
        raise ValueError(f"{given}: use at least 4 genomes and one stage")
    if unknown := set(getattr(config, "variants", ())) - set(VARIANTS):
        raise ValueError(f"--variants {', '.join(sorted(unknown))}: choose some of {', '.join(map(repr, VARIANTS))}")


def _written(flag: str, given: Any) -> str:
    """A flag with its value, as one types it."""
    return f"--{flag.replace('_', '-')} {' '.join(map(str, given)) if isinstance(given, tuple) else given}"

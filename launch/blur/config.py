"""The flags and presets of launch.blur, without JAX."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from icl.blur.design import Design
from icl.names import RATES, Families, Objective, Output, Start
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.files import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, refuses
from launch.kit.command import Command, Preset, Run


@dataclass(frozen=True)
class BlurConfig(Run):
    """Flags of both commands."""

    devices: PositiveInt | None = None
    """Number of devices to split the genomes over. Default: all accelerators, or one virtual CPU device per core."""
    learners: PositiveInt = 10
    """Number of learners that an accuracy is averaged over, each with its own initial synapses and minibatches."""
    batch_size: PositiveInt = 64
    """Examples per update."""


@dataclass(frozen=True)
class TrainConfig(Design, BlurConfig):
    """Meta-train a genome, or take a known one, and compare it with descent.
    Descent is searched over many learning rates, plain and with the same normalisation, in one network or several."""

    GROUPS: ClassVar = {"states": "genome", "data": "images", "widths": "learners", "start": "training", "baselines": "descent"}

    synapse_norm: bool = True
    hidden_activation: Activation = "tanh"
    """Activation of the hidden layers, in both passes."""
    output_activation: Output = "softmax"
    """Activation of the output layer's state in the backward pass; logits are read before it."""
    genome: str | None = None
    """Measure this genome, without meta-training: the name of one in the package, or the genome.json of a run."""
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
    steps: PositiveInt = 100
    """Number of updates of each learner that is measured."""
    start: Start = "random"
    """Genomes before meta-training: random matrices, or a ridge rule that learns."""
    families: Families | None = None
    """Meta-train on families of tasks and networks, instead of --data with --widths and --batch-size. digits: 12 families
    of the data, inputs mixed and classes merged. boolean: with --data xor, the balanced functions of two bits."""
    population: PositiveInt = 4
    """Number of genomes trained in parallel."""
    unroll: tuple[PositiveInt, ...] = (10, 20)
    """Number of updates T of a learner, for each stage of the curriculum."""
    meta_steps: tuple[PositiveInt, ...] = (1500, 700)
    """Number of meta-steps in each stage."""
    meta_rate: PositiveFloat = 0.015
    """Learning rate of Adam at the start of each stage; a cosine schedule lowers it to a tenth."""
    gradient_clip: PositiveFloat = 10.0
    """Maximum norm of a genome's gradient; larger gradients are scaled down to it."""
    objective: Objective = "end"
    """Meta-loss of a learner. end: its loss after the last update. curve: the area under its learning curve."""
    path: NonNegativeFloat = 0.5
    """Weight of the path loss, the loss on each minibatch before its update; not used with --objective curve."""
    query_size: PositiveInt = 200
    """Number of examples that a learner is evaluated on after its updates."""
    every: PositiveInt = 100
    """Number of meta-steps between two evaluations on dev."""
    episodes: PositiveInt = 16
    """Number of learners per genome in an evaluation."""
    baselines: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")
    """Optimisers of the baselines; an empty list: no baselines."""
    baseline_activations: tuple[Activation, ...] = ("tanh", "relu")
    """Activations of the hidden layers of the baselines."""
    rates: tuple[PositiveFloat, ...] = RATES
    """Learning rates of the baselines. The figure shows all; the table shows the best on dev for each number of updates."""


@dataclass(frozen=True)
class TasksConfig(BlurConfig):
    """Compare a genome with tuned Adam and nearest neighbours on 12 small tasks.
    Costs are the updates and FLOPs that Adam needs for the rule's accuracy.

    All tasks take half an hour on 2 CPU cores."""

    GROUPS: ClassVar = {"genome": "measurements"}

    genome: str = "digits"
    """Genome: the name of one in the package, or the genome.json of a train run."""
    tasks: tuple[str, ...] = ()
    """Data sets, such as iris, moons and mnist@10 (from files), or tasks, such as iris/128. Default: all 12."""
    data_dir: str | None = None
    """Folder of MNIST's idx files. Default: the folder mnist in $JEXPLICIT_DATA_DIR."""
    learners: PositiveInt = 3


@refuses
def check(config: TrainConfig) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other, before anything is written."""
    one_alone = config.genome is None and (config.families == "boolean") != (config.data == "xor")
    yield config.baselines and not (config.rates and config.baseline_activations), "--baselines: give rates and activations"
    yield config.data == "xor" and (config.side or config.limit or config.classes), "--data xor: it has four points, no images"
    yield one_alone, f"--data {config.data}: give --data xor and --families boolean together, or neither"
    stages = f"--unroll {config.unroll} and --meta-steps {config.meta_steps}: give each flag one number per stage"
    yield not config.unroll or len(config.unroll) != len(config.meta_steps), stages


# --- presets -------------------------------------------------------------------------------------------------------------
# Sizes, states, batches, populations, curricula and meta-rates of `poster` are those of the paper's poster. The design is that
# of the flags' defaults; `--no-synapse-norm --path 0 --output-activation tanh` makes it the paper's own.

Fields = dict[str, Any]
_tiny: Fields = dict(
    **dict(limit=400, widths=(8,), batch_size=16, learners=2, steps=20, query_size=50, population=2, unroll=(3, 5)),
    **dict(meta_steps=(4, 4), every=4, episodes=2, rates=(0.1, 1.0), baselines=("sgd",)),
)
_ridge: Fields = dict(  # the shipped genome `digits`
    **dict(states=2, backward="multiplicative_second_state", multistate=False, normalise_output=False, over="mixed"),
    **dict(synapse_norm=False, update="ridge", aging=True, average=True, pre="sequential", derivative=True),
    **dict(hidden_activation="silu", output_activation="linear", backward_activation="linear", feedback="cross_entropy"),
    **dict(start="ridge", families="digits", objective="curve", population=1, unroll=(100,), meta_steps=(480,), every=240),
    **dict(meta_rate=6e-3, gradient_clip=0.3, episodes=2),
)
_boolean: Fields = dict(
    **dict(data="xor", widths=(20,), states=2, synapse_norm=False, families="boolean", objective="curve", population=8),
    **dict(unroll=(10,), meta_steps=(600,), meta_rate=0.01, gradient_clip=1.0, query_size=100, learners=20),
    **dict(steps=20, baselines=()),
)
_mnist: Fields = dict(data="mnist", side=10, batch_size=128, widths=(256, 128))
_poster: Fields = _mnist | dict(population=8, meta_rate=5e-4, unroll=tuple(range(10, 51, 5)), meta_steps=(10_000,) * 9)
_small: Fields = dict(baselines=("sgd", "momentum"), baseline_activations=("tanh",), learners=4, meta_steps=(1200, 500))


_train = {  # times are of 2 CPU cores
    name: Preset(TrainConfig(f"runs/blur_{name.replace('-', '_')}", **fields), note)
    for name, fields, note in (
        ("tiny", _tiny, "400 of the 8x8 digits, 8 meta-steps; under a minute. The numbers mean nothing."),
        ("digits", _ridge, "the package's `digits`: ridge updates, 12 families of tasks; half an hour."),
        ("boolean", _boolean, "the package's `boolean`: functions of two inputs; a minute."),
        ("poster", _poster, "MNIST at 10x10, hidden layers 256-128, 8 genomes, T = 10 .. 50; a week."),
        ("poster-small", _mnist | _small, "4 genomes, T = 10 and 20, 1700 meta-steps; an hour."),
    )
}
_tasks = {"tiny": Preset(TasksConfig("runs/blur_tasks_tiny", tasks=("iris",), learners=2), "one task; half a minute.")}
COMMANDS = {
    "train": Command(TrainConfig, "launch.blur.train:EXPERIMENT", _train),
    "tasks": Command(TasksConfig, "launch.blur.train:TASKS_EXPERIMENT", _tasks),
}

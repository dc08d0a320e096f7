"""The configurations of launch.blur, a frozen dataclass per subcommand, their presets, and what they refuse."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from icl.blur.baselines import RATES
from icl.blur.evolution import EvolutionRecipe
from icl.blur.meta import MetaRecipe, Stage
from icl.blur.rules import BackwardMode, Normalised, Output, Rules
from jexplicit.nn.activations import Activation
from jexplicit.nn.optimizers import OptimizerName
from jexplicit.runs.command import Preset


@dataclass(frozen=True)
class Common:
    """What all subcommands take."""

    out: str
    """Run folder to write: config, results, metrics, figures, report.md, checkpoints and genomes."""
    seed: int = 0
    """Of genomes, first synapses, minibatches and splits."""
    devices: int | None = None
    """Devices to split the genomes over; default, every accelerator, or one virtual CPU device per core."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Pictures(Common):
    """Labelled images, and the learners that are measured on them."""

    data: str = "digits"
    """digits: scikit-learn's 8x8 digits, embedded. mnist, fashion_mnist, or any name: idx files under MNIST's names."""
    data_dir: str | None = None
    """Folder of the idx files; default, the folder of the data set's name in $JEXPLICIT_DATA_DIR."""
    side: int | None = None
    """Bring images to side x side: whole multiples repeat pixels, smaller ones average blocks of the middle, as the paper has
    mnist at 10."""
    limit: int | None = None
    """Use at most this many images, train and test together."""
    hidden: tuple[int, ...] = (32,)
    """Widths of the learners' hidden layers."""
    batch_size: int = 64
    """Examples per update."""
    learners: int = 10
    """Learners that an accuracy is the mean of, each with its own first synapses and minibatches."""
    steps: int = 100
    """Updates of a measured learner."""


@dataclass(frozen=True)
class MetaTraining(Pictures):
    """How genomes are meta-trained."""

    states: int = 4
    """k, states per neuron."""
    backward: BackwardMode = "additive"
    """additive: a neuron adds what comes back to its state. multiplicative: multiplies. multiplicative_second_state: not the
    first state."""
    symmetric: bool = True
    """Synapses back are those forward, turned; otherwise they are drawn and updated on their own."""
    multistate: bool = True
    """A synapse has a weight per state; otherwise one for all."""
    normalise: Normalised = "both"
    """Passes in which hidden layers are normalised."""
    normalise_output: bool = True
    """Normalise the output layer."""
    over: Literal["batch", "layer"] = "batch"
    """Normalise every neuron over the minibatch, or over minibatch and layer."""
    synapse_norm: bool = True
    """Neurons read synapses of unit norm."""
    oja: bool = False
    """Oja's decay in the update."""
    pre: Literal["backward", "forward"] = "backward"
    """Whose states an update reads before the synapse: after the backward or after the forward pass."""
    hidden_activation: Activation = "tanh"
    """Of the hidden layers, in both passes."""
    output_activation: Output = "softmax"
    """Of the state that the output layer sends back; logits are not activated."""
    method: Literal["gradient", "evolution"] = "gradient"
    """gradient: Adam through the unrolled updates. evolution: CMA-ES on accuracy."""
    population: int = 4
    """Genomes side by side; of evolution, genomes per generation (at least 4)."""
    unroll: tuple[int, ...] = (10, 20)
    """Updates T per learner, a number for each stage of the curriculum."""
    meta_steps: tuple[int, ...] = (1500, 700)
    """Meta-steps, or generations, of each stage."""
    meta_rate: float = 0.015
    """Adam's learning rate at the start of a stage; a cosine takes it to a tenth."""
    gradient_clip: float = 10.0
    """Largest norm of a genome's gradient."""
    path: float = 0.5
    """Weight of the loss along the way, on every minibatch before it is learned from."""
    query_size: int = 200
    """Examples that a learner is asked at the end of its updates."""
    remat: bool = False
    """Recompute the updates when differentiating: less memory, more time."""
    every: int = 100
    """Meta-steps between two evaluations on the dev part."""
    episodes: int = 16
    """Learners per genome in an evaluation."""


@dataclass(frozen=True)
class TrainConfig(MetaTraining):
    """Meta-train a genome, and compare its learners with descent at every learning rate, plain and normalised alike."""

    far: int = 400
    """Updates to follow learners for, far past the training horizon; 0 leaves it out."""
    baselines: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")
    """Optimisers to compare with; none with an empty list."""
    baseline_activations: tuple[Activation, ...] = ("tanh", "relu")
    """Hidden activations of the networks that they train."""
    rates: tuple[float, ...] = RATES
    """Their learning rates: all are drawn, and the best on the dev part at each number of updates is reported."""


@dataclass(frozen=True)
class TransferConfig(MetaTraining):
    """Run a genome where it was not trained: other image sizes, widths and data; and genomes of one depth at others."""

    population: int = 2
    """Genomes side by side, of the experiment on depth."""
    unroll: tuple[int, ...] = (10,)
    """Updates T per learner, a number for each stage of the curriculum."""
    meta_steps: tuple[int, ...] = (800,)
    """Meta-steps of each stage."""
    genome: str = "digits"
    """The genome to run elsewhere: one that comes with the package, or the genome.json of a run of train."""
    widths: tuple[int, ...] = (16, 128, 256)
    """Other widths of the hidden layer."""
    sides: tuple[int, ...] = (4, 16)
    """Other sides of the same images."""
    others: tuple[str, ...] = ("wine", "breast_cancer")
    """Other data: wine and breast_cancer (tables that come with scikit-learn), mnist, mnist@10 (at 10 x 10), or any images."""
    train_depths: tuple[int, ...] = (1, 2, 4)
    """Numbers of hidden layers to meta-train genomes at; empty leaves the experiment out."""
    depths: tuple[int, ...] = (1, 2, 4, 5, 10)
    """Numbers of hidden layers to run each of them at."""


@dataclass(frozen=True)
class AblationConfig(MetaTraining):
    """Meta-train genomes that differ in one choice each: normalisation, states, decay, synapses, first matrices, evolution."""

    population: int = 2
    """Genomes side by side."""
    unroll: tuple[int, ...] = (10,)
    """Updates T per learner, a number for each stage of the curriculum."""
    meta_steps: tuple[int, ...] = (600,)
    """Meta-steps of each stage."""
    normalisations: tuple[Normalised, ...] = ("none", "forward", "backward", "both")
    """Passes in which hidden layers are normalised. none and backward leave the output layer as it is."""
    numbers_of_states: tuple[int, ...] = (2, 4, 8)
    """k."""
    variants: tuple[str, ...] = (
        "no synapse norm",
        "oja",
        "separate synapses",
        "single-state synapses",
        "over layer",
        "multiplicative",
        "forward pre",
        "no path loss",
        "tanh output",
        "linear output",
        "backprop start",
        "evolution",
    )
    """Other choices, each alone."""
    generations: int = 150
    """Of evolution, with 32 genomes each."""


@dataclass(frozen=True)
class SgdCheckConfig(Common):
    """Gradient descent as a genome, beside `jax.grad`; and the curl of a learned update on exclusive or."""

    genome: str = "digits"
    """The learned genome whose update is not a gradient."""
    sizes: tuple[int, ...] = (12, 16, 5)
    """Neurons by layer."""
    deep_sizes: tuple[int, ...] = (12, 16, 14, 10, 5)
    """The same of the deep network."""
    steps: int = 50
    """Steps of descent."""
    rate: float = 0.25
    """Its learning rate."""
    batch_size: int = 32
    """Examples per step."""
    curl_hidden: int = 20
    """Hidden neurons of the network for exclusive or."""


_TINY: dict[str, Any] = {
    "limit": 400,
    "hidden": (8,),
    "batch_size": 16,
    "learners": 2,
    "steps": 12,
    "query_size": 50,
    "population": 2,
    "unroll": (3, 5),
    "meta_steps": (4, 4),
    "every": 4,
    "episodes": 2,
}
_TINY_STAGE: dict[str, Any] = {**_TINY, "unroll": (3,), "meta_steps": (4,)}
PRESETS: dict[str, dict[str, Preset]] = {
    "train": {
        "tiny": Preset(
            TrainConfig(out="runs/blur_tiny", **_TINY, far=20, rates=(0.1, 1.0), baselines=("sgd",)),
            "400 of the 8x8 digits and 8 meta-steps; under a minute on 2 CPU cores, and numbers of no meaning.",
        ),
    },
    "transfer": {
        "tiny": Preset(
            TransferConfig(
                out="runs/blur_transfer_tiny",
                **_TINY_STAGE,
                widths=(16,),
                sides=(16,),
                others=("wine",),
                train_depths=(1,),
                depths=(1, 2),
            ),
            "the shipped genome elsewhere, and one of 4 meta-steps at two depths; under a minute on 2 CPU cores.",
        ),
    },
    "ablation": {
        "tiny": Preset(
            AblationConfig(
                out="runs/blur_ablation_tiny",
                **_TINY_STAGE,
                normalisations=("none", "both"),
                numbers_of_states=(2,),
                variants=("oja",),
                generations=2,
            ),
            "four designs, 4 meta-steps each; a minute on 2 CPU cores, and numbers of no meaning.",
        ),
    },
    "sgd-check": {
        "tiny": Preset(
            SgdCheckConfig(out="runs/blur_sgd_tiny", deep_sizes=(4, 5, 5, 5, 3), sizes=(4, 5, 3), steps=5, curl_hidden=4),
            "small networks and 5 steps; seconds on 2 CPU cores.",
        ),
    },
}

_designs: dict[str, dict[str, Any]] = {
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
    "backprop start": {},
    "evolution": {"method": "evolution", "population": 32, "every": 10},
}


def make_rules(config: MetaTraining) -> Rules:
    """The design that the flags ask for."""
    return Rules(
        states=config.states,
        backward=config.backward,
        symmetric=config.symmetric,
        multistate=config.multistate,
        normalise=config.normalise,
        normalise_output=config.normalise_output,
        over=config.over,
        synapse_norm=config.synapse_norm,
        oja=config.oja,
        pre=config.pre,
        hidden=config.hidden_activation,
        output=config.output_activation,
    )


def make_recipe(config: MetaTraining) -> MetaRecipe:
    """How to meta-train by gradient."""
    return MetaRecipe(
        hidden=config.hidden,
        batch_size=config.batch_size,
        query_size=config.query_size,
        learning_rate=config.meta_rate,
        gradient_clip=config.gradient_clip,
        path=config.path,
        remat=config.remat,
    )


def make_evolution(config: MetaTraining) -> EvolutionRecipe:
    """How to meta-train by evolution; the last stage's T."""
    return EvolutionRecipe(
        hidden=config.hidden,
        population=config.population,
        unroll=config.unroll[-1],
        batch_size=config.batch_size,
        query_size=config.query_size,
    )


def make_curriculum(config: MetaTraining) -> tuple[Stage, ...]:
    """The stages of meta-training."""
    return tuple(Stage(*stage) for stage in zip(config.unroll, config.meta_steps, strict=True))


def designs(config: AblationConfig) -> dict[str, AblationConfig]:
    """The configurations to compare, each different from the first in one choice."""
    found = {"reference": config}
    for normalise in config.normalisations:
        output = normalise in ("forward", "both")
        found[f"normalise {normalise}"] = dataclasses.replace(config, normalise=normalise, normalise_output=output)
    for states in config.numbers_of_states:
        found[f"{states} states"] = dataclasses.replace(config, states=states)
    for name in config.variants:
        steps = {"meta_steps": (config.generations,), "unroll": config.unroll[-1:]} if name == "evolution" else {}
        found[name] = dataclasses.replace(config, **_designs[name], **steps)
    return found


def check(config: Any) -> None:
    """Refuse flags that make no sense, before anything is written."""
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), f"--{field.name.replace('_', '-')}"
        if field.name in _at_least_one and value < 1:
            raise ValueError(f"{flag} {value}: it is at least 1")
        if field.name in _all_at_least_one and any(entry < 1 for entry in value):
            raise ValueError(f"{flag} {value}: every one is at least 1")
        if field.name in _positive and not 0 < value < float("inf"):
            raise ValueError(f"{flag} {value}: it is above 0, and finite")
        if field.name in ("path", "far", "seed") and not 0 <= value < float("inf"):
            raise ValueError(f"{flag} {value}: it is not below 0")
        if field.name == "rates" and not (value and all(0 < rate < float("inf") for rate in value)):
            raise ValueError(f"{flag} {value}: give some, above 0 and finite")
        if field.name in ("sizes", "deep_sizes") and len(value) < 2:
            raise ValueError(f"{flag} {value}: an input and an output layer at least")
    if isinstance(config, MetaTraining):
        _check_meta_training(config)


def _check_meta_training(config: MetaTraining) -> None:
    if not config.unroll or len(config.unroll) != len(config.meta_steps):
        raise ValueError(
            f"--unroll {config.unroll} and --meta-steps {config.meta_steps}: a number in each for every stage of the curriculum"
        )
    if config.method == "evolution" and (config.population < 4 or len(config.unroll) > 1):
        raise ValueError(
            f"--method evolution with --population {config.population} and {len(config.unroll)} stages: at least 4, one stage"
        )
    unknown = set(getattr(config, "variants", ())) - set(_designs)
    if unknown:
        raise ValueError(f"--variants {', '.join(sorted(unknown))}: choose some of {', '.join(map(repr, _designs))}")
    make_rules(config)


_at_least_one = "states batch_size learners steps population query_size every episodes generations curl_hidden".split()
_all_at_least_one = "hidden unroll meta_steps widths sides train_depths depths numbers_of_states sizes deep_sizes".split()
_positive = "meta_rate gradient_clip rate".split()

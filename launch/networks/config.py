"""The configurations of launch.networks, a frozen dataclass per subcommand, their presets, and what they refuse."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from jexplicit.nn.activations import Activation
from jexplicit.nn.initializers import INITIALIZERS, InitializerName
from jexplicit.nn.networks import Direct
from jexplicit.nn.objectives import ObjectiveName
from jexplicit.nn.optimizers import COOLINGS, OPTIMIZERS, CoolingName, OptimizerName
from jexplicit.nn.samplers import SamplerName
from jexplicit.runs.command import Preset

Start = Literal["cold", "output", "explicit", "calibrated"]


@dataclass(frozen=True)
class Common:
    """What all subcommands take."""

    out: str
    """Run folder to write: config, results, metrics, figures, report.md and the models."""
    seed: int = 0
    """Of every random choice: weights, order of the data, splits, samples."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Training(Common):
    """How networks are made and trained."""

    hidden: tuple[int, ...] = (128,)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """Of the hidden layers."""
    norm: bool = False
    """BatchNorm before each nonlinearity; running statistics for inference."""
    residual: bool = False
    """Hidden layers of equal width add their input to their output."""
    initializer: InitializerName = "he_normal"
    """Law of the weights, with the activation's gain. standard: N(0, c/n) with c E[phi(z)^2] = 1."""
    output_scale: float = 1.0
    """Factor on the random weights of the last layer; small ones begin at a loss of log N."""
    optimizer: OptimizerName = "adam"
    """An optimiser of optax."""
    learning_rate: float = 1e-3
    """Of the mean loss of a batch."""
    weight_decay: float = 0.02
    """Of adamw, times the learning rate."""
    cooling: CoolingName = "cosine"
    """Of the learning rate. step: a tenth after two thirds. exponential: down to a hundredth. linear, cosine: down to 0."""
    sampler: SamplerName = "round-robin"
    """round-robin: every example once per epoch. uniform: with replacement. balanced: as many of every class."""
    batch_size: int = 128
    """Examples per step; 0 takes all of them, full-batch descent."""
    epochs: int = 20
    """Passes over the data, at most."""
    patience: int | None = None
    """Stop after so many epochs without a lower dev loss; default, never. The best epoch's parameters are kept."""


@dataclass(frozen=True)
class Text(Common):
    """A text to model."""

    corpus: Literal["docs", "text"] = "docs"
    """docs: the documentation that comes with Python. text: the files of --train (implied by it)."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders. Every line that is not blank is a document with an end to predict.
    Without --dev, lines are shuffled and split 80/10/10."""
    dev: tuple[str, ...] = ()
    """Text to choose the epoch on; --test goes with it."""
    test: tuple[str, ...] = ()
    """Text that nothing is chosen on."""
    limit: int | None = None
    """Use at most this many documents."""
    tokenizer: Literal["bpe", "word", "char"] = "bpe"
    """bpe: subwords. word: what white space separates; spaces at the ends of a line, or several in a row, make no token. char:
    characters."""
    vocab_size: int | None = None
    """Token ids, <pad> and <unk> included; default, every character, or 1026 = 2^10 + 2 for docs and 4098 for --train."""
    context: int = 3
    """Tokens of context."""
    embedding: int = 10
    """Size of a token's embedding."""


@dataclass(frozen=True)
class Pictures(Common):
    """Labelled images."""

    data: str = "digits"
    """digits: scikit-learn's 8x8 digits, embedded. mnist, fashion_mnist, or any name: idx files under MNIST's names."""
    data_dir: str | None = None
    """Folder of the idx files; default, the folder of the data set's name in $JEXPLICIT_DATA_DIR."""
    limit: int | None = None
    """Use at most this many training images, and as many test images."""


@dataclass(frozen=True)
class MLPConfig(Text, Training):
    """A neural language model (Bengio et al. 2003), from random parameters and from explicit solutions."""

    hidden: tuple[int, ...] = (200,)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Of the hidden layers."""
    output_scale: float = 0.1
    """Factor on the random weights of the last layer; 1 shows a hockey stick in the loss."""
    optimizer: OptimizerName = "adamw"
    """An optimiser of optax."""
    learning_rate: float = 5e-3
    """Of the mean loss of a batch."""
    batch_size: int = 256
    """Examples per step; 0 takes all of them, full-batch descent."""
    epochs: int = 30
    """Passes over the data, at most."""
    direct: Direct = "none"
    """Direct connection to the output. embedding: from the embeddings. tokens: from the one-hot tokens, N^2 parameters per
    token of context."""
    starts: tuple[Start, ...] = ("cold",)
    """cold: random parameters. output: the last layer solved on random hidden features. explicit, calibrated: the direct
    connection from tokens solved, by the paper's formula or with smoothed rows and fitted exponents. All for as many steps."""
    baselines: bool = True
    """Also measure the unigram, the Kneser-Ney bigram, the explicit and the calibrated solution on the same text."""
    samples: int = 10
    """Generated documents."""


@dataclass(frozen=True)
class FCNNConfig(Pictures, Training):
    """Fully connected networks on images, beside the explicit solution."""

    bias: bool = True
    """Whether layers have biases."""
    objective: ObjectiveName = "softmax_cross_entropy"
    """What is minimised, of the outputs and one-hot targets."""


@dataclass(frozen=True)
class AutoencoderConfig(Pictures):
    """Autoencoders: linear in closed form and trained, a nonlinear bottleneck, anomalies, and memories of wide networks."""

    bottleneck: int = 16
    """k, width of the narrowest layer."""
    width: int = 64
    """Width of the layers around it."""
    anomaly: int = 8
    """The class that is left out of training, and to be found by its reconstruction error."""
    activation: Activation = "relu"
    """Of the nonlinear bottleneck."""
    optimizer: OptimizerName = "adam"
    """An optimiser of optax."""
    learning_rate: float = 3e-3
    """Of the mean loss of a batch."""
    batch_size: int = 64
    """Examples per step."""
    epochs: int = 100
    """Passes over the data of the trained autoencoders."""
    memories: int = 10
    """Training examples of the over-parameterised autoencoder."""
    memory_width: int = 256
    """Width of its hidden layers."""
    memory_depth: int = 4
    """Number of its hidden layers."""
    memory_activation: Activation = "relu"
    """Of the over-parameterised autoencoder."""
    memory_scales: tuple[float, ...] = (1.0, 0.4)
    """Factors on its random weights, He's law; a network for each. Small ones contract more."""
    memory_steps: int = 3000
    """Full-batch steps of its training."""
    memory_rate: float = 1e-3
    """Its learning rate."""
    iterations: int = 500
    """How often its map is applied."""
    noise: float = 0.5
    """Noise of the starting points, in standard deviations of the data."""


@dataclass(frozen=True)
class RateConfig(Text, Pictures, Training):
    """The search for a learning rate: a range test within one run, then a grid of separate runs around what it picks."""

    task: Literal["fcnn", "mlp-lm"] = "fcnn"
    """fcnn: images. mlp-lm: text."""
    limit: int | None = None
    """Use at most this many images or documents."""
    cooling: CoolingName = "constant"
    """Of the grid's runs."""
    lowest: float = 1e-4
    """First rate of the range test."""
    highest: float = 10.0
    """Last rate of the range test."""
    sweep_steps: int = 1000
    """Steps of the range test."""
    grid: int = 7
    """Rates of the grid, evenly in their logarithm within a decade to each side of the picked one."""
    grid_steps: int = 300
    """Steps of every run of the grid."""
    optimizer: OptimizerName = "sgd"
    """An optimiser of optax."""


@dataclass(frozen=True)
class InitializersConfig(Pictures, Training):
    """Activations and gradients by layer under each initialiser, what training makes of them, and weights of zero."""

    hidden: tuple[int, ...] = (100, 100, 100, 100, 100)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Of the hidden layers."""
    initializers: tuple[InitializerName, ...] = INITIALIZERS
    """Laws to compare."""
    optimizer: OptimizerName = "sgd"
    """An optimiser of optax."""
    learning_rate: float = 0.1
    """Of the mean loss of a batch."""
    cooling: CoolingName = "constant"
    """Of the learning rate."""
    epochs: int = 10
    """Passes over the data."""


@dataclass(frozen=True)
class OptimizersConfig(Pictures, Training):
    """Optimisers, objectives and cooling schedules side by side on one task."""

    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimisers to compare, each with the best rate of a grid of its own."""
    objectives: tuple[ObjectiveName, ...] = (
        "squared_error",
        "sigmoid_squared_error",
        "binary_cross_entropy",
        "softmax_cross_entropy",
    )
    """Objectives to compare, with --optimizer at --learning-rate."""
    coolings: tuple[CoolingName, ...] = COOLINGS
    """Schedules to compare, with --optimizer at three times --learning-rate."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
    """Learning rates that each optimiser chooses from, by the dev loss after --grid-steps steps."""
    grid_steps: int = 100
    """Steps of every run of the grid."""
    cooling: CoolingName = "constant"
    """Of the comparisons of optimisers and objectives."""
    epochs: int = 15
    """Passes over the data."""


@dataclass(frozen=True)
class CheckConfig(Pictures):
    """The checklist for training a network: overfit one example, then all of them, then biases, width and depth."""

    width: int = 128
    """Of the hidden layer."""
    widths: tuple[int, ...] = (256, 512)
    """Larger widths."""
    depths: tuple[int, ...] = (2, 3)
    """More hidden layers, of --width."""
    optimizer: OptimizerName = "adam"
    """An optimiser of optax."""
    learning_rate: float = 1e-4
    """Of the mean loss: 1e-4 goes with adam, 0.01 with sgd."""
    steps: int = 1000
    """Steps on the single example."""
    epochs: int = 200
    """Passes over all of the data."""
    batch_size: int = 32
    """Examples per step on all of the data."""
    initializer: InitializerName = "he_normal"
    """Law of the weights; zeros shows what fails."""


_TINY_TRAINING: dict[str, Any] = {"hidden": (16,), "epochs": 2, "batch_size": 64}
_TINY_DEEP: dict[str, Any] = {**_TINY_TRAINING, "hidden": (16, 16)}
_TINY_TEXT: dict[str, Any] = {"limit": 30, "tokenizer": "char", "embedding": 4}
PRESETS: dict[str, dict[str, Preset]] = {
    "mlp-lm": {
        "tiny": Preset(
            MLPConfig(
                out="runs/mlp_tiny",
                **(_TINY_TRAINING | _TINY_TEXT),
                direct="tokens",
                starts=("cold", "output", "explicit", "calibrated"),
                samples=2,
            ),
            "30 documents of docs by character, two epochs from every start; half a minute on 2 CPU cores.",
        ),
        "docs": Preset(
            MLPConfig(
                out="runs/mlp_docs",
                vocab_size=514,
                embedding=30,
                direct="tokens",
                starts=("cold", "output", "explicit", "calibrated"),
                batch_size=1024,
                epochs=8,
            ),
            "docs in 514 subwords, four starts for as many steps, 3 minutes each on 2 CPU cores. With 3 epochs: calibrated "
            "26.0, cold 20.4, from the calibrated solution 23.7 (dev perplexity).",
        ),
    },
    "fcnn": {
        "tiny": Preset(
            FCNNConfig(out="runs/fcnn_tiny", limit=200, **_TINY_TRAINING), "200 of the 8x8 digits; 15 s on 2 CPU cores."
        ),
        "mnist": Preset(
            FCNNConfig(out="runs/fcnn_mnist", data="mnist"),
            "MNIST, 784-128-10, 1 minute on 2 CPU cores: 97.9 % of the test images.",
        ),
    },
    "autoencoder": {
        "tiny": Preset(
            AutoencoderConfig(
                out="runs/autoencoder_tiny",
                limit=200,
                epochs=3,
                memories=2,
                memory_width=32,
                memory_depth=2,
                memory_scales=(0.4,),
                memory_steps=50,
                iterations=10,
            ),
            "200 of the 8x8 digits; under a minute on 2 CPU cores.",
        ),
    },
    "lr-search": {
        "tiny": Preset(
            RateConfig(out="runs/rate_tiny", limit=200, **_TINY_TRAINING, sweep_steps=100, grid=3, grid_steps=20),
            "200 of the 8x8 digits; under a minute on 2 CPU cores.",
        ),
    },
    "initializers": {
        "tiny": Preset(
            InitializersConfig(out="runs/initializers_tiny", limit=200, **_TINY_DEEP),
            "200 of the 8x8 digits, two hidden layers; under a minute on 2 CPU cores.",
        ),
    },
    "optimizers": {
        "tiny": Preset(
            OptimizersConfig(out="runs/optimizers_tiny", limit=200, **_TINY_TRAINING, rates=(1e-3, 1e-2, 0.1), grid_steps=10),
            "200 of the 8x8 digits; under a minute on 2 CPU cores.",
        ),
    },
    "check": {
        "tiny": Preset(
            CheckConfig(out="runs/check_tiny", limit=200, width=64, widths=(128,), depths=(2,), learning_rate=1e-3, steps=300),
            "200 of the 8x8 digits, a rate of 0.001 and 300 steps on the one example; half a minute on 2 CPU cores.",
        ),
    },
}


def check(config: Any) -> None:
    """Refuse flags that make no sense, before anything is written."""
    for field in dataclasses.fields(config):
        value, flag = getattr(config, field.name), f"--{field.name.replace('_', '-')}"
        if field.name in _at_least_one and value < 1:
            raise ValueError(f"{flag} {value}: it is at least 1")
        if field.name in _positive and not 0 < value < float("inf"):
            raise ValueError(f"{flag} {value}: it is above 0, and finite")
        if field.name in _not_empty and not value:
            raise ValueError(f"{flag} needs at least one value")
        if field.name in ("rates", "memory_scales") and not all(0 < rate < float("inf") for rate in value):
            raise ValueError(f"{flag} {value}: every one is above 0, and finite")
        if field.name in _widths and any(width < 1 for width in value):
            raise ValueError(f"{flag} {value}: every one is at least 1")
        if field.name in ("samples", "batch_size", "seed", "weight_decay") and value < 0:
            raise ValueError(f"{flag} {value}: it is not below 0")
    if getattr(config, "limit", None) is not None and config.limit < 30:
        raise ValueError(f"--limit {config.limit}: use at least 30")
    if getattr(config, "patience", None) is not None and config.patience < 1:
        raise ValueError(f"--patience {config.patience}: wait for at least one epoch")
    if isinstance(config, Text):
        _check_text(config)
    if isinstance(config, MLPConfig) and {"explicit", "calibrated"} & set(config.starts) and config.direct != "tokens":
        raise ValueError(f"--starts {' '.join(config.starts)} with --direct {config.direct}: add --direct tokens")
    if isinstance(config, RateConfig) and not config.lowest < config.highest:
        raise ValueError(f"--lowest {config.lowest} and --highest {config.highest}: sweep from a lower to a higher rate")


def _check_text(config: Text) -> None:
    if config.corpus == "text" and not config.train:
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if bool(config.dev) != bool(config.test):
        raise ValueError("--dev and --test go together: give both, or neither to have the lines of --train split 80/10/10")
    if config.dev and not config.train:
        raise ValueError("--dev without --train: name the training files too")


_at_least_one = (
    "context embedding epochs bottleneck width memories memory_width memory_depth memory_steps iterations steps "
    "sweep_steps grid_steps grid"
).split()
_positive = "learning_rate output_scale memory_rate lowest highest noise".split()
_not_empty = "starts initializers optimizers rates memory_scales".split()
_widths = "hidden widths depths".split()

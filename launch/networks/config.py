"""The configurations of launch.networks, a frozen dataclass per subcommand, and their presets."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

from jexplicit.data.text import Unit
from jexplicit.nn.names import (
    ACTIVATION_NAMES,
    Activation,
    ComparisonName,
    Direct,
    InitializerName,
    NormName,
    ObjectiveName,
    OptimizerName,
    SamplerName,
    ScheduleName,
)
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.runs.command import Preset
from launch.shards import check_text_flags

Start = Literal["cold", "output", "explicit", "log-linear", "layers"]
Limit = Annotated[int, Bounds(at_least=30)] | None


@dataclass(frozen=True)
class Common:
    """Flags of every subcommand."""

    GROUPS: ClassVar = {"out": "run"}

    out: str
    """Run folder to write: config, results, metrics, figures, report.md and the models."""
    seed: NonNegativeInt = 0
    """Random seed: weights, order of the data, splits, samples."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Descent(Common):
    """Training by mini-batches."""

    GROUPS: ClassVar = {"optimizer": "training"}

    optimizer: OptimizerName = "adam"
    """Optimiser, from optax."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate, for the mean loss of a batch."""
    batch_size: NonNegativeInt = 128
    """Examples per step; 0: all of them, full-batch descent."""
    epochs: PositiveInt = 20
    """Maximum number of passes over the data."""


@dataclass(frozen=True)
class Training(Descent):
    """Networks and their training."""

    GROUPS: ClassVar = {"hidden": "network", "weight_decay": "training"}

    hidden: tuple[PositiveInt, ...] = (128,)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """Nonlinearity of the hidden layers."""
    norm: NormName = "none"
    """Normalisation before each nonlinearity. batch: of a unit over the batch, running statistics in inference. layer: of an
    example over all units. group: of an example over each of 8 groups of units."""
    residual: bool = False
    """Hidden layers of equal width add their input to their output."""
    dropout: Annotated[float, Bounds(at_least=0, below=1)] = 0.0
    """Share of hidden outputs that training sets to 0 at random."""
    initializer: InitializerName = "he_normal"
    """Distribution of the weights, with the activation's gain. backward: preserves the backward pass only. fan_in_uniform:
    +-1/sqrt(n) for any activation. standard: N(0, c/n) with c E[phi(z)^2] = 1."""
    output_scale: PositiveFloat = 1.0
    """Factor on the random weights of the last layer; with small ones the loss starts at log N."""
    weight_decay: NonNegativeFloat = 0.02
    """Weight decay of adamw, multiplied by the learning rate."""
    cooling: ScheduleName = "cosine"
    """Learning rate schedule. step: a tenth after two thirds. exponential: down to a hundredth. linear, cosine: down to 0."""
    sampler: SamplerName = "round-robin"
    """round-robin: every example once per epoch. uniform: with replacement. balanced: equally many per class."""
    epoch_examples: PositiveInt | None = None
    """Examples of an epoch, after which dev is scored; default, all of them. Shorter epochs go through the examples in turn."""
    patience: PositiveInt | None = None
    """Stop after this many epochs without a lower dev loss; default: never. The best epoch's parameters are kept."""


@dataclass(frozen=True)
class Text(Common):
    """A text to model."""

    GROUPS: ClassVar = {"corpus": "text"}

    corpus: Literal["docs", "text"] = "docs"
    """docs: Python's own documentation. text: the files of --train (implied by it)."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders. Every document has an end to predict. Without --dev, documents are
    shuffled and split 80/10/10."""
    dev: tuple[str, ...] = ()
    """Text to choose the epoch on; requires --test."""
    test: tuple[str, ...] = ()
    """Text that no choice depends on."""
    field: str | None = None
    """Files of records (.jsonl, .csv, .tsv, each also .gz, and .parquet): the field that holds the text."""
    documents: Unit = "line"
    """Plain text: what a document is. line: every line that is not blank. paragraph: what stands between blank lines. file:
    each file."""
    limit: Limit = None
    """Use at most this many documents."""
    tokenizer: str = "bpe"
    """bpe: subwords. word: what white space separates; extra spaces are ignored. char: characters. Or FILE, an existing
    tokenizer: another run's folder or its tokenizer.model, any SentencePiece model, or a Hugging Face tokenizer.json."""
    vocab_size: PositiveInt | None = None
    """Token ids, including <pad> and <unk>; default: every character, or 1026 = 2^10 + 2 for docs and 4098 for --train."""
    context: PositiveInt = 3
    """Tokens of context."""
    embedding: PositiveInt = 10
    """Dimension of the embeddings."""


@dataclass(frozen=True)
class Pictures(Common):
    """Labelled images."""

    GROUPS: ClassVar = {"data": "images"}

    data: str = "digits"
    """digits: scikit-learn's 8x8 digits, embedded. mnist, fashion_mnist, or any name: idx files under MNIST's names."""
    data_dir: str | None = None
    """Folder of the idx files; default: the folder of that name in $JEXPLICIT_DATA_DIR."""
    limit: Limit = None
    """Use at most this many training images, and at most this many test images."""


@dataclass(frozen=True)
class MLPConfig(Text, Training):
    """A neural language model (Bengio et al. 2003), from random parameters and from explicit solutions."""

    GROUPS: ClassVar = {"context": "network", "starts": "experiment"}

    hidden: tuple[PositiveInt, ...] = (200,)
    activation: Activation = "tanh"
    output_scale: PositiveFloat = 0.1
    optimizer: OptimizerName = "adamw"
    learning_rate: PositiveFloat = 5e-3
    batch_size: NonNegativeInt = 256
    epochs: PositiveInt = 30
    stack: NonNegativeInt = 0
    """Number of softmax layers on tokens that replace the network: a table per offset, then N x N each. 0: the network."""
    direct: Direct = "none"
    """Direct connection to the output. embedding: from the embeddings. tokens: from the one-hot tokens, N^2 parameters per
    token of context."""
    starts: tuple[Start, ...] = ("cold",)
    """cold: random parameters. output: the last layer solved on random hidden features. explicit, log-linear: the direct
    connection from tokens solved, by the paper's formula or with smoothed rows and fitted exponents. layers: with --stack, all
    layers solved from the bottom up. All train equally long."""
    baselines: bool = True
    """Also evaluate the unigram, the Kneser-Ney bigram, the explicit and the log-linear solution on the same text."""
    samples: NonNegativeInt = 10
    """Number of documents to generate."""


@dataclass(frozen=True)
class FCNNConfig(Pictures, Training):
    """A fully connected network on images, next to the explicit solution."""

    GROUPS: ClassVar = {"bias": "network"}

    bias: bool = True
    """Whether layers have biases."""
    objective: ObjectiveName = "softmax_cross_entropy"
    """Loss, of the outputs and one-hot targets."""


@dataclass(frozen=True)
class AutoencoderConfig(Pictures, Descent):
    """Autoencoders: linear in closed form and trained, a bottleneck, anomalies, clusters in the code, memories."""

    GROUPS: ClassVar = {"bottleneck": "network", "memories": "memories"}

    bottleneck: PositiveInt = 16
    """k, width of the narrowest layer."""
    width: PositiveInt = 64
    """Width of the layers around it."""
    anomaly: NonNegativeInt = 8
    """Class to leave out of training and to detect by its reconstruction error."""
    activation: Activation = "relu"
    """Nonlinearity around the bottleneck."""
    learning_rate: PositiveFloat = 3e-3
    batch_size: NonNegativeInt = 64
    epochs: PositiveInt = 100
    memories: PositiveInt = 10
    """Number of training examples of the over-parameterised autoencoder."""
    memory_width: PositiveInt = 256
    """Width of its hidden layers."""
    memory_depth: PositiveInt = 4
    """Number of its hidden layers."""
    memory_activations: tuple[Activation, ...] = ("relu",)
    """Its nonlinearities, one network for each of them and each scale."""
    memory_scales: tuple[PositiveFloat, ...] = (1.0, 0.4)
    """Factors on its random weights (He). Small weights contract more."""
    memory_steps: PositiveInt = 3000
    """Full-batch steps of its training, and of the linear ones of these examples."""
    memory_rate: PositiveFloat = 1e-3
    """Its learning rate."""
    iterations: PositiveInt = 500
    """Number of times its map is iterated."""
    noise: PositiveFloat = 0.5
    """Noise of the starting points, in standard deviations of the data."""


@dataclass(frozen=True)
class RateConfig(Text, Pictures, Training):
    """Learning rate search: a range test within one run, then a grid of separate runs around the rate it picks."""

    GROUPS: ClassVar = {"task": "experiment"}

    task: Literal["fcnn", "mlp-lm"] = "fcnn"
    """fcnn: images. mlp-lm: text."""
    limit: Limit = None
    """Use at most this many images or documents."""
    cooling: ScheduleName = "constant"
    lowest: PositiveFloat = 1e-4
    """First rate of the range test."""
    highest: PositiveFloat = 10.0
    """Last rate of the range test."""
    sweep_steps: Annotated[int, Bounds(at_least=2)] = 1000
    """Steps of the range test."""
    grid: PositiveInt = 7
    """Rates of the grid, log-spaced within a decade on each side of the picked one."""
    grid_steps: PositiveInt = 300
    """Steps of every run of the grid."""
    optimizer: OptimizerName = "sgd"


@dataclass(frozen=True)
class CompareConfig(Pictures):
    """Vary one part of a network or of its training: each variant from several seeds, at its best learning rate."""

    GROUPS: ClassVar = {"what": "experiment", "width": "network"}

    what: tyro.conf.Positional[ComparisonName] = "activations"
    """What to exchange. activations; normalisation: norms and residual connections, by depth; objectives: from saturated and
    other outputs, with their sensitivities; initializers: and scales, with histograms by layer; optimizers: and momentum,
    schedules, spacing of rates, paths on surfaces; batch-size: at the same compute, with the noise of the gradient; samplers:
    on imbalanced classes, with recall by class; dropout: on few and on all examples."""
    seeds: PositiveInt = 3
    """Runs of every variant: --seed, --seed + 1, ..."""
    rates: tuple[PositiveFloat, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    """Learning rates to try for every variant; the best has the lowest dev loss after the last epoch. Adaptive optimisers try a
    hundredth of them too."""
    width: PositiveInt = 64
    """Width of the hidden layers."""
    depths: tuple[PositiveInt, ...] = (2, 8, 24)
    """normalisation: numbers of hidden layers."""
    epochs: PositiveInt = 30
    """Passes over the data."""
    batch_size: NonNegativeInt = 32
    """Examples per step; 0: all of them. An epoch leaves out what does not fill a batch."""


@dataclass(frozen=True)
class CheckConfig(Pictures, Descent):
    """The checklist for training a network: overfit one example, then all of them, then biases, width and depth."""

    GROUPS: ClassVar = {"width": "experiment"}

    width: PositiveInt = 128
    """Width of the hidden layer."""
    widths: tuple[PositiveInt, ...] = (256, 512)
    """Larger widths to try."""
    depths: tuple[PositiveInt, ...] = (2, 3)
    """Larger numbers of hidden layers to try, each of --width."""
    learning_rate: PositiveFloat = 1e-4
    """Learning rate, for the mean loss: try 1e-4 with adam, 0.01 with sgd."""
    steps: PositiveInt = 1000
    """Steps on the single example; --epochs and --batch-size are for all of the data."""
    epochs: PositiveInt = 200
    batch_size: NonNegativeInt = 32
    initializer: InitializerName = "he_normal"
    """Distribution of the weights; zeros shows a failure."""


_DIGITS = "200 of the 8x8 digits; under a minute on 2 CPU cores."
_TINY: dict[str, Any] = {"limit": 200, "hidden": (16,), "epochs": 2, "batch_size": 64}
_STARTS: dict[str, Any] = {"direct": "tokens", "starts": ("cold", "output", "explicit", "log-linear")}
_TINY_TEXT: dict[str, Any] = {**_TINY, **_STARTS, "limit": 30, "tokenizer": "char", "embedding": 4, "samples": 2}
_MEMORY: dict[str, Any] = {"memories": 2, "memory_width": 32, "memory_depth": 2, "memory_scales": (0.4,), "memory_steps": 50}
_TINY_CHECK: dict[str, Any] = {"width": 64, "widths": (128,), "depths": (2,), "learning_rate": 1e-3, "steps": 300}
PRESETS: dict[str, dict[str, Preset]] = {
    "mlp-lm": {
        "tiny": Preset(
            MLPConfig("runs/mlp_tiny", **_TINY_TEXT),
            "30 documents of docs by character, two epochs from every start; half a minute on 2 CPU cores.",
        ),
        "docs": Preset(
            MLPConfig("runs/mlp_docs", vocab_size=514, embedding=30, batch_size=1024, epochs=8, **_STARTS),
            "docs in 514 subwords, four starts trained equally long, 3 minutes each on 2 CPU cores. With 3 epochs: log-linear "
            "26.0, cold 20.4, from the log-linear solution 23.7 (dev perplexity).",
        ),
    },
    "fcnn": {
        "tiny": Preset(FCNNConfig("runs/fcnn_tiny", **_TINY), "200 of the 8x8 digits; 15 s on 2 CPU cores."),
        "mnist": Preset(FCNNConfig("runs/fcnn_mnist", data="mnist"), "1 minute on 2 CPU cores: 97.9 % of the test images."),
    },
    "autoencoder": {
        "tiny": Preset(AutoencoderConfig("runs/autoencoder_tiny", limit=200, epochs=3, iterations=10, **_MEMORY), _DIGITS),
        "memories": Preset(
            AutoencoderConfig("runs/memories", memory_activations=ACTIVATION_NAMES, memory_scales=(1.0, 0.4, 0.2)),
            "memories by nonlinearity and scale of the first weights: 21 networks, 10 minutes on 2 CPU cores.",
        ),
    },
    "lr-search": {"tiny": Preset(RateConfig("runs/rate_tiny", sweep_steps=100, grid=3, grid_steps=20, **_TINY), _DIGITS)},
    "compare": {
        "tiny": Preset(
            CompareConfig("runs/compare_tiny", limit=200, seeds=2, width=8, epochs=3, depths=(1, 2), rates=(0.1,)), _DIGITS
        )
    },
    "check": {"tiny": Preset(CheckConfig("runs/check_tiny", limit=200, **_TINY_CHECK), _DIGITS)},
}


def check(config: Any) -> None:
    """Check what the bounds of single fields do not cover, before anything is written.

    Raises:
        ValueError: an empty list, or flags that contradict each other.
    """
    for name in ("starts", "rates", "depths", "memory_scales", "memory_activations"):
        if getattr(config, name, None) == ():
            raise ValueError(f"--{name.replace('_', '-')} needs at least one value")
    if isinstance(config, Text):
        if config.corpus == "text" and not config.train:
            raise ValueError("--corpus text without --train: name the training files, --train FILES")
        if bool(config.dev) != bool(config.test):
            raise ValueError("--dev and --test go together: give both, or neither to split the lines of --train 80/10/10")
        if config.dev and not config.train:
            raise ValueError("--dev without --train: name the training files too")
        check_text_flags(config)
    if isinstance(config, MLPConfig) and {"explicit", "log-linear"} & set(config.starts) and config.direct != "tokens":
        raise ValueError(f"--starts {' '.join(config.starts)} with --direct {config.direct}: add --direct tokens")
    if isinstance(config, MLPConfig) and config.stack and not set(config.starts) <= {"cold", "layers"}:
        raise ValueError(f"--stack {config.stack} with --starts {' '.join(config.starts)}: use cold or layers")
    if isinstance(config, MLPConfig) and not config.stack and "layers" in config.starts:
        raise ValueError("--starts layers without a stack: add --stack 2")
    if isinstance(config, RateConfig) and not config.lowest < config.highest:
        raise ValueError(f"--lowest {config.lowest} and --highest {config.highest}: sweep from a lower to a higher rate")

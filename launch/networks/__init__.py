"""Networks trained by gradients, for comparison.

python -m launch.networks mlp-lm --train names.txt --tokenizer char --out runs/names
python -m launch.networks transformer-lm --preset shakespeare-cpu --train input.txt --out runs/transformer
python -m launch.networks autoencoder --out runs/autoencoder
python -m launch.networks compare normalisation --out runs/normalisation
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import tyro

from jexplicit.data.text import Split
from jexplicit.nn.names import Activation
from jexplicit.runs.files import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, refuses
from launch.kit.command import Command, Images, Preset, Run, run_subcommand
from launch.kit.text import Text, check_text

Limit = Annotated[int, Bounds(at_least=30)] | None


@dataclass(frozen=True)
class Descent(Run):
    """Training by Adam in mini-batches, whose learning rate falls along a cosine to 0."""

    learning_rate: PositiveFloat = 1e-3
    """Learning rate at the first step, for the mean loss of a batch."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of AdamW, which is multiplied by the learning rate; 0: Adam."""
    batch_size: NonNegativeInt = 128
    """Examples per step; 0: all of them, full-batch gradient descent."""
    epochs: PositiveInt = 20
    """Number of passes over the data. The parameters of the best epoch are kept."""


@dataclass(frozen=True)
class Pictures(Images, Run):
    """Labelled images."""

    limit: Limit = None
    """Use at most this many training images, and at most this many test images."""


@dataclass(frozen=True, kw_only=True)
class _LanguageModel(Text, Run):
    """Text to train a language model on."""

    test: tuple[str, ...] = ()
    """Test text, read once at the end."""
    limit: Limit = None
    """Most training documents to use. Dev and test have at most a tenth as many."""
    samples: NonNegativeInt = 4
    """Number of texts to generate."""


@dataclass(frozen=True)
class MLPConfig(_LanguageModel, Descent):
    """A neural language model (Bengio et al. 2003)."""

    corpus: Literal["docs", "text"] = "docs"
    """Source of the text: the documentation that comes with Python, or the files of --train (implied by it), split 80/10/10
    into train, dev and test without --dev and --test. Ends of documents are predicted, too."""
    vocab_size: PositiveInt | None = None
    """Vocabulary size, including <pad> and <unk>. Default: 1026 for docs, 4098 for --train, every character for char."""
    context: PositiveInt = 3
    """Number of context tokens."""
    embedding: PositiveInt = 10
    """Dimension of the embeddings."""
    hidden: tuple[PositiveInt, ...] = (200,)
    """Widths of the hidden layers."""
    direct: Literal["none", "embedding"] = "none"
    """Direct connection to the output, from the embeddings."""
    epoch_examples: PositiveInt | None = None
    """Number of examples in an epoch, after which the dev loss is computed. Default: all."""
    learning_rate: PositiveFloat = 5e-3
    weight_decay: NonNegativeFloat = 0.02
    batch_size: NonNegativeInt = 256
    epochs: PositiveInt = 30
    samples: NonNegativeInt = 10


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(_LanguageModel):
    """A decoder-only transformer language model, trained by AdamW with warm-up and cosine decay."""

    corpus: str = "docs"
    """Source of the text: docs, the documentation that comes with Python, or text, the files of --train (implied by it)."""
    split: Split = "blocks"
    """What is held out without --dev: every tenth block of ten documents, or the last tenth of the characters (end)."""
    eos: bool = False
    """Also predict the end of each document."""
    window: Annotated[int, Bounds(at_least=32)] = 64
    """W, the tokens that the network reads; a document does not see the one before."""
    width: PositiveInt = 128
    """Width of the embeddings and of every layer."""
    layers: PositiveInt = 4
    """Number of layers."""
    heads: PositiveInt = 4
    """Attention heads; the width is a multiple of them."""
    positions: Literal["rotary", "learned"] = "rotary"
    """Places of tokens: queries and keys are turned by angles (rotary), or a vector is added to each embedding (learned)."""
    dropout: Annotated[float, Bounds(at_least=0, below=1)] = 0.0
    """Share of the outputs of every layer that training sets to 0 at random."""
    tied: bool = True
    """Whether the output weights are the embeddings."""
    start: tuple[Literal["none", "induction"], ...] = ("none",)
    """Where training starts, a network for each. none: random weights. induction: with --no-tied and --positions learned, two
    layers that copy what followed the last token before."""
    seeds: PositiveInt = 1
    """Number of networks of each start, with seeds --seed, --seed + 1, ..."""
    steps: Annotated[int, Bounds(at_least=2)] = 2000
    """Updates in all."""
    batch_size: PositiveInt = 12
    """Windows in a batch."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate; it decays to a tenth."""
    warmup: NonNegativeInt = 100
    """Updates before the highest learning rate."""
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of matrices, which is multiplied by the learning rate."""
    evaluations: PositiveInt = 8
    """How often the dev loss is computed; the parameters of the best evaluation are kept."""
    devices: PositiveInt | None = None
    """Devices that share a batch. Default: all accelerators, or one CPU."""


@dataclass(frozen=True)
class AutoencoderConfig(Pictures, Descent):
    """Autoencoders: linear ones and a bottleneck; anomalies, codes and memories."""

    learning_rate: PositiveFloat = 3e-3
    batch_size: NonNegativeInt = 64
    epochs: PositiveInt = 100
    memory_activations: tuple[Activation, ...] = ("relu",)
    """Over-parameterised autoencoders: nonlinearities; a network for each of them and each scale."""
    memory_scales: tuple[PositiveFloat, ...] = (1.0, 0.4)
    """Over-parameterised autoencoders: factors on the initial weights (He). Maps of small weights contract more."""
    memory_steps: PositiveInt = 3000
    """Over-parameterised autoencoders: full-batch training steps."""


@dataclass(frozen=True)
class CompareConfig(Pictures):
    """Vary one part of a network or training, at its best rate."""

    what: tyro.conf.Positional[Literal["normalisation", "objectives", "initializers"]] = "normalisation"
    """Part to vary. normalisation: norms and residual connections, by depth. objectives: loss functions, from saturated and
    from small outputs. initializers: distributions and scales of the initial weights."""
    seeds: PositiveInt = 3
    """Number of runs of every variant, with seeds --seed, --seed + 1, ..."""
    rates: tuple[PositiveFloat, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    """Learning rates to try for every variant, and a tenth of each with Adam; the best has the lowest dev loss at the end."""
    width: PositiveInt = 64
    """Width of the hidden layers."""
    depths: tuple[PositiveInt, ...] = (2, 8, 24)
    """normalisation: numbers of hidden layers to compare."""
    epochs: PositiveInt = 30
    """Passes over the data."""


def checked(config: Any) -> Any:
    """The configuration to run, where --train implies --corpus text."""
    check(config)
    return replace(config, corpus="text") if getattr(config, "train", ()) else config


@refuses
def check(config: Any) -> Iterator[tuple[Any, str]]:
    """Refuse an empty list, and flags that contradict each other."""
    for name in ("start", "rates", "depths", "memory_scales", "memory_activations"):
        yield getattr(config, name, None) == (), f"--{name.replace('_', '-')} needs at least one value"
    if isinstance(config, MLPConfig):
        both = "--dev and --test go together: give both, or neither to split the lines of --train 80/10/10"
        yield bool(config.dev) != bool(config.test), both
        check_text(config)
    if isinstance(config, TransformerConfig):
        check_text(config)
        yield config.test and not config.train, "--test without --train: name the training files, --train FILES"
        copies = not config.tied and config.positions == "learned"
        yield "induction" in config.start and not copies, "--start induction: add --no-tied and --positions learned"
        yield config.warmup >= config.steps, f"--warmup {config.warmup} of {config.steps} steps: warm up for fewer"
        size, least = config.width // config.heads, "the width is a multiple of the heads"
        yield config.width % config.heads, f"--width {config.width} with --heads {config.heads}: {least}"
        rotary = f"--positions rotary with {size} numbers in a head: give an even number, --width / --heads"
        yield config.positions == "rotary" and size % 2, rotary


_digits = "200 of the 8x8 digits; under a minute on 2 CPU cores."
_small: Any = {"limit": 30, "tokenizer": "char"}
_characters: Any = {"corpus": "text", "documents": "file", "split": "end", "tokenizer": "char"}
_larger = _characters | {"steps": 5000, "evaluations": 20, "window": 256, "heads": 6}
_subwords: Any = {"corpus": "text", "window": 128, "width": 256, "batch_size": 32, "steps": 8000, "evaluations": 16}
_h100: Any = {"window": 256, "width": 512, "layers": 6, "heads": 8, "dropout": 0.1, "batch_size": 64, "steps": 3000}
_shakespeare, _own = "tiny Shakespeare with --train input.txt, ", "your own text in 4098 subwords, with --train and --dev: "
_transformers: dict[str, tuple[Any, str]] = {
    "tiny": (
        _small | {"window": 32, "width": 16, "layers": 1, "heads": 2, "steps": 8, "warmup": 2, "evaluations": 2}
        | {"batch_size": 4, "samples": 1},
        "30 documents; 20 s on 2 cores.",
    ),
    "shakespeare-cpu": (
        _characters | {"positions": "learned"},
        _shakespeare + "in nanoGPT's setting for a CPU; 4 minutes on 2 CPU cores. Loss by window 1.90 (there: 1.88).",
    ),
    "shakespeare": (
        _larger | {"width": 192, "dropout": 0.1, "batch_size": 16},
        _shakespeare + "as large as two CPU cores train in a few hours.",
    ),
    "shakespeare-gpu": (
        _larger | {"positions": "learned", "width": 384, "layers": 6, "dropout": 0.2, "batch_size": 64},
        _shakespeare + "in nanoGPT's setting for an A100 (there: 1.4697); a minute on an H100. Loss by window 1.480.",
    ),
    "babylm": (_subwords, _own + "two passes over 10 M words. Dev perplexity 39.8."),
    "babylm-gpu": (
        _subwords | _h100 | {"learning_rate": 6e-4, "warmup": 200},
        "the same with 21 M weights and three passes; 2 minutes on an H100. Dev perplexity 31.3.",
    ),
}  # fmt: skip
_of_transformers = {
    name: Preset(TransformerConfig(out=f"runs/transformer_{name.replace('-', '_')}", **fields), note)
    for name, (fields, note) in _transformers.items()
}
_mlp = MLPConfig("runs/mlp_tiny", **_small, hidden=(16,), epochs=2, batch_size=64, direct="embedding", embedding=4, samples=2)
_memories = AutoencoderConfig("runs/memories", memory_activations=get_args(Activation), memory_scales=(1.0, 0.4, 0.2))
_autoencoder = AutoencoderConfig("runs/autoencoder_tiny", limit=200, epochs=3, memory_scales=(0.4,), memory_steps=50)
_compare = CompareConfig("runs/compare_tiny", limit=200, seeds=2, width=8, epochs=3, depths=(1, 2), rates=(0.1,))
_of_autoencoders = {
    "tiny": Preset(_autoencoder, _digits),
    "memories": Preset(_memories, "memorised examples by nonlinearity and scale: 21 networks, 10 minutes on 2 CPU cores."),
}
_of_mlp = {"tiny": Preset(_mlp, "30 documents by character; ten seconds on 2 cores.")}
_of_comparisons = {"tiny": Preset(_compare, _digits)}
COMMANDS = {
    "mlp-lm": Command(MLPConfig, "launch.networks.training:MLP", _of_mlp),
    "transformer-lm": Command(TransformerConfig, "launch.networks.training:TRANSFORMER", _of_transformers),
    "autoencoder": Command(AutoencoderConfig, "launch.networks.training:AUTOENCODER", _of_autoencoders),
    "compare": Command(CompareConfig, "launch.networks.training:COMPARE", _of_comparisons),
}
main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

"""The flags of launch.bench, and its presets."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from jexplicit.experiments.bounds import Bounds, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.experiments.command import Preset
from jexplicit.lm.core.names import SUBWORD_ROWS

StreamTokens = Annotated[int, Bounds(at_least=2)]
"""Positions of a stream: at least one token and the end of its document."""
VocabSize = Annotated[int, Bounds(at_least=2, at_most=math.isqrt(2**31 - 1))]
"""Token ids: at least `<pad>` and one token; ids of pairs must fit int32."""


@dataclass(frozen=True)
class BenchConfig:
    """Flags of every bench."""

    out: str | None = None
    """New run folder. Default: the first free one of runs/bench-NAME, runs/bench-NAME-2, ..."""
    rounds: PositiveInt = 5
    """Number of rounds. Each times every case once. More rounds give steadier medians."""
    seed: NonNegativeInt = 0
    """Seed of the data, of initial parameters, and of the order of the cases in each round."""
    resume: bool = False
    """Continue the interrupted run in --out; what it has timed is not timed again."""


@dataclass(frozen=True)
class Vocabulary(BenchConfig):
    """The vocabulary of a stream."""

    vocab_size: VocabSize = 4098
    """Vocabulary size, including <pad> and, of text, <unk>."""


@dataclass(frozen=True)
class StreamFlags(Vocabulary):
    """A stream that is drawn or read."""

    stream: str = "zipf"
    """Token stream. zipf: independent draws from Zipf's law in documents of 40 tokens on average. Otherwise a .npy file with
    the token ids `<pad> document <pad> ... <pad>`, <pad> = 0, such as train.npy in the cache of launch.lm."""


@dataclass(frozen=True)
class TextFlags(Vocabulary):
    """Text that is read."""

    train: tuple[str, ...] = ()
    """Your own text to fit: files, .gz files, globs or folders. Default: the documentation that comes with Python."""


@dataclass(frozen=True)
class Counting(StreamFlags):
    """Counting pairs, jexplicit against NumPy and SciPy, and counting and smoothing contexts of several tokens, on the host and
    on devices. All count the same tables from the same stream, which is checked first."""

    tokens: StreamTokens = 10_000_000
    """Number of positions to count, document ends included; of a file, at most so many from its start."""
    radius: tuple[PositiveInt, ...] = (4,)
    """Context lengths K, in tokens, a comparison for each; K pairs per position."""
    contexts: tuple[PositiveInt, ...] = (4,)
    """Tokens of the longest context that is counted whole and smoothed, with all shorter ones, at the first million positions;
    a comparison for each."""


@dataclass(frozen=True)
class Evaluation(TextFlags):
    """The loss of one model on the same positions: computed from its distinct contexts or from counts, against position by
    position. Also scores of every token by every kind of model, beside KenLM where it is installed."""

    corpus: Literal["docs", "zipf"] = "docs"
    """Text to fit and to evaluate. docs: the documentation that comes with Python. zipf: independent draws from Zipf's law; its
    contexts repeat less than those of text, so ratios are lower at K > 1."""
    positions: StreamTokens = 200_000
    """Number of positions to evaluate, from the start of the text of the fit. Ratios grow with their number."""
    radius: tuple[PositiveInt, ...] = (1, 2, 4)
    """Context lengths K of the Cat models, in tokens, a comparison for each."""
    scored: NonNegativeInt = 20_000
    """Number of positions that every kind of model scores, from the start of the text that it was fitted to; 0: none."""


@dataclass(frozen=True)
class Training(StreamFlags):
    """Adagrad steps of a Cat model from random tables, on the summed loss of a batch: jexplicit against PyTorch, where it is
    installed (pip install 'jexplicit[torch]'). All reach the same tables, which is checked first."""

    batch_size: tuple[PositiveInt, ...] = (1024, 8192)
    """Positions per step, a comparison for each."""
    radius: tuple[PositiveInt, ...] = (1, 4)
    """Context lengths K, in tokens, a comparison for each; K tables."""


@dataclass(frozen=True)
class Icl(BenchConfig):
    """Training steps of linear attention on fresh regression tasks, each with its update: icl.training against plain
    implementations of the same step. Cases that draw the same tasks have the same losses, which is checked first."""

    layers: tuple[PositiveInt, ...] = (1, 2, 5)
    """Numbers of layers K, a comparison for each. Up to two layers share their weights, as in the paper."""
    dim: PositiveInt = 10
    """Input dimension d."""
    context: PositiveInt = 10
    """Number of pairs (x, y) in the context, N."""
    batch_size: PositiveInt = 2048
    """Number of fresh tasks per step."""
    steps: PositiveInt = 20
    """Number of steps per timed call."""


@dataclass(frozen=True)
class Blur(BenchConfig):
    """Meta-steps of bidirectional update rules on the 8x8 digits, each with the update of all genomes: icl.blur.meta against
    plain implementations of the same step. All have the same losses, which is checked first."""

    layers: tuple[PositiveInt, ...] = (1,)
    """Numbers of hidden layers, a comparison for each."""
    width: PositiveInt = 32
    """Neurons per hidden layer."""
    genomes: PositiveInt = 4
    """Number of genomes in the population."""
    states: int = 4
    """Number of states per neuron and synapse, k."""
    unroll: PositiveInt = 10
    """Number of updates of a learner, T."""
    batch_size: PositiveInt = 64
    """Examples per update."""
    steps: PositiveInt = 5
    """Number of meta-steps per timed call."""


@dataclass(frozen=True)
class Scaling(BenchConfig):
    """Weak and strong scaling of counting a Zipf stream over virtual CPU devices and processes, and the bytes that counting and
    data-parallel training exchange. All configurations count the same tables, which is checked first."""

    tokens: StreamTokens = 16_000_000
    """Number of positions per device in weak scaling; in strong scaling, all count as many as the largest one in weak."""
    vocab_size: VocabSize = 2050
    """Vocabulary size, including <pad>. The default is small, so that there are four times as many pairs as table cells."""
    radius: PositiveInt = 4
    """Context length K, in tokens: K pairs per position."""
    devices: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    """Numbers of virtual CPU devices, of all processes together. One device in one process is always measured."""
    processes: tuple[PositiveInt, ...] = (1, 2)
    """Numbers of processes, which share the devices evenly; combinations that do not divide are left out."""


@dataclass(frozen=True)
class Streaming(Vocabulary):
    """Counting a Zipf stream in shards within a memory budget, with checkpoints of partial counts, against counting the same
    stream in memory on as many devices. Both count the same tables, which is checked first."""

    shards: str | None = None
    """Folder of the stream's shards, written if missing, and kept. Default: in the run folder, deleted at the end."""
    tokens: StreamTokens = 200_000_000
    """Number of positions to count: independent draws from Zipf's law in documents of 40 tokens on average."""
    radius: PositiveInt = 4
    """Context length K, in tokens: K pairs per position."""
    memory: str = "2GB"
    """Memory budget of the process that counts from shards."""
    checkpoint_seconds: PositiveFloat = 60.0
    """Seconds between checkpoints of partial counts, as in launch.lm; the last is at the end."""
    devices: PositiveInt = 2
    """Number of virtual CPU devices; fewer are used if their tables do not fit into the memory budget."""
    rounds: PositiveInt = 3
    """Number of rounds. Each times both methods once. More rounds give steadier medians."""


@dataclass(frozen=True)
class LanguageModels(TextFlags):
    """Fitting and evaluating a 5-gram model and a mixture, beside KenLM's `lmplz`, `build_binary` and `query` on the same
    tokens, where these programs are on PATH."""

    peer: Literal["kenlm", "none"] = "kenlm"
    """Peer to compare with. kenlm: the programs of KenLM on PATH; without them there are no ratios. none: no peer."""
    dev: tuple[str, ...] = ()
    """Text to evaluate. Default: documents held out of the training text."""
    rows: tuple[str, ...] = SUBWORD_ROWS
    """The rows of the mixture, as in launch.lm."""
    rounds: PositiveInt = 3
    """Number of rounds. Each runs every job once. More rounds give steadier medians."""


@dataclass(frozen=True)
class Compressors(BenchConfig):
    """Lossless compressors: the bits per character of new text, after the training text."""

    train: tuple[str, ...] = ()
    """Your own text to read first: files, .gz files, globs or folders. Default: the documentation that comes with Python."""
    dev: tuple[str, ...] = ()
    """Text to compress after it. Default: the last tenth of the characters of --train, as launch.lm --split end has it, or
    the documents held out of the documentation."""
    rounds: PositiveInt = 3
    """Number of rounds. Each runs every compressor once. More rounds give steadier medians of the seconds."""


@dataclass(frozen=True)
class Compile:
    """Compile the most expensive functions for an accelerator that need not be present, and count their kernels. It is an error
    if a function starts more kernels than before."""

    out: str | None = None
    """New run folder. Default: the first free one of runs/bench-compile, runs/bench-compile-2, ..."""
    platform: Literal["h100", "v5e"] = "h100"
    """Device to compile for: an NVIDIA H100, or a TPU v5e."""
    functions: tuple[str, ...] = ()
    """Names of the functions to compile. Default: all of them."""
    update: bool = False
    """Write the kernels counted now to launch/bench/kernels.json, with which later counts are compared."""
    resume: bool = False
    """Continue the interrupted run in --out."""


PRESETS = {
    "counting": {
        "tiny": Preset(
            Counting(tokens=20_000, vocab_size=200, radius=(1, 2), contexts=(2,), rounds=2),
            "20,000 tokens; 5 s on 2 CPU cores.",
        ),
        "full": Preset(Counting(radius=(1, 2, 4), rounds=9), "10 M tokens; 2 minutes and 4 GB on 2 CPU cores."),
    },
    "evaluation": {
        "tiny": Preset(
            Evaluation(positions=5_000, vocab_size=512, radius=(1, 2), scored=1_000, rounds=2), "40 s on 2 CPU cores."
        ),
        "full": Preset(Evaluation(rounds=9), "200,000 positions, 20,000 of them scored; about 5 minutes on 2 CPU cores."),
    },
    "training": {
        "tiny": Preset(Training(batch_size=(64, 256), vocab_size=200, radius=(1, 2), rounds=2), "10 s on 2 CPU cores."),
        "full": Preset(Training(rounds=10), "5 minutes and 6 GB on 2 CPU cores."),
    },
    "icl": {
        "tiny": Preset(Icl(layers=(1, 2), dim=3, context=4, batch_size=64, steps=3, rounds=2), "20 s on 2 CPU cores."),
        "full": Preset(Icl(rounds=9), "2 minutes on 2 CPU cores."),
    },
    "blur": {
        "tiny": Preset(
            Blur(width=4, genomes=2, states=2, unroll=2, batch_size=8, steps=2, rounds=2), "half a minute on 2 CPU cores."
        ),
        "full": Preset(Blur(layers=(1, 2), rounds=9), "3 minutes on 2 CPU cores."),
    },
    "scaling": {
        "tiny": Preset(
            Scaling(tokens=5_000, vocab_size=100, radius=2, devices=(1, 2), processes=(1,), rounds=2),
            "5,000 tokens per device on 1 and 2 devices; half a minute on 2 CPU cores.",
        ),
        "full": Preset(Scaling(rounds=9), "16 M tokens per device; 6 minutes and 4 GB on 2 CPU cores."),
    },
    "streaming": {
        "tiny": Preset(
            Streaming(tokens=200_000, vocab_size=100, radius=2, memory="700MB", rounds=2),
            "200,000 tokens; 20 s on 2 CPU cores.",
        ),
        "full": Preset(Streaming(), "200 M tokens; 5 minutes, 4 GB of memory and 0.4 GB of disk on 2 CPU cores."),
    },
    "lm": {
        "tiny": Preset(LanguageModels(vocab_size=512, rounds=1), "the documentation of Python; 1 minute on 2 CPU cores."),
        "full": Preset(LanguageModels(rounds=5), "a vocabulary of 4098; about 4 minutes on 2 CPU cores."),
    },
    "compressors": {"tiny": Preset(Compressors(rounds=1), "the documentation of Python; 10 s on 2 CPU cores.")},
    "compile": {"tiny": Preset(Compile(functions=("explicit solution", "attribution")), "5 s on 2 CPU cores.")},
}

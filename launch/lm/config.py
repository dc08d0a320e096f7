"""The configuration of launch.lm and its presets. They need no JAX, nor does `--help`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from jexplicit.lm.names import Features, FitOptions, History, Method
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveInt, local_path
from launch.kit.command import Preset, Run, Text

# What a finished run may be continued with: more models, samples or a test text.
GROWING = ("methods", "features", "radius", "history", "samples", "train_sample", "dev_sample", "test")


@dataclass(frozen=True, kw_only=True)
class _Models(Text, Run):
    """The text, and the models of it."""

    GROUPS: ClassVar = {"corpus": "text", "features": "models"}

    corpus: str = "docs"
    """Source of the text: shards:DIR, text or docs. docs: the documentation that comes with Python. text: the files of --train
    (implied by it). shards:DIR: what launch.shards wrote to DIR, of any size."""
    test: tuple[str, ...] = ()
    """Test text, as --train. After all models are measured, those that dev chooses are evaluated on it, once: of
    each method and history the one with the lowest dev perplexity. Their rows have the test loss with its standard error over
    documents (of a single one, over blocks of 1000 tokens), and the report has each file. A file is a text of its own: what a
    history sees begins with it."""
    split: Literal["blocks", "end", "dev-test"] = "blocks"
    """Split of the training text without --dev. blocks: every tenth block of ten documents is dev. end: the last tenth of
    the characters is dev. dev-test: the last tenth of the characters is test, and the tenth before it dev; before the test, the
    chosen models are fitted again on all before it, dev included. The models that a run saves are those before."""
    limit: Annotated[int, Bounds(at_least=10)] | None = None
    """Most training documents to use. Dev has at most a tenth as many."""
    features: tuple[Features, ...] = ("sum", "cat")
    """Combination of the K context tokens, sum or cat. sum: one table shared by all offsets. cat: one table per offset."""
    radius: tuple[PositiveInt, ...] = (1, 2, 4)
    """Context lengths K, in tokens."""
    history: tuple[History, ...] = ("none",)
    """Text that context-mixing counts as it reads. none: nothing. document: the document so far. window:W: the
    last W tokens. all: the whole preceding text. adaptive: the whole preceding text, counted as it is read; adaptive:document:
    the same of the document so far."""
    eos: bool = False
    """Also predict the end of each document."""
    methods: tuple[Method, ...] = ("explicit",)
    """Models to fit. The baselines unigram and bigram are always added. explicit: the closed form. delta: explicit, its
    exponent corrected by one fitted number. cold, warm: trained by gradient descent from random tables or from the explicit
    solution. optimum: the minimum of the training loss at K = 1, from counts. log-linear: smoothed rows with one fitted
    exponent per offset. iterative-scaling: sweeps from the log-linear model, without a learning rate. ngram: modified
    Kneser-Ney of order 5. context-mixing: decisions on the path to a token, whose log-odds are a fitted sum of the evidence of
    contexts; see --history."""


@dataclass(frozen=True, kw_only=True)
class Config(FitOptions, _Models):
    """Fit language models from counts, and evaluate them."""

    GROUPS: ClassVar = {"train_sample": "measurements", "devices": "machine", "coordinator": "processes", "dry_run": "run"}

    train_sample: NonNegativeInt = 1_000_000
    """Number of positions that the train perplexity is estimated from at K > 1, drawn with --seed; 0: all. The dev perplexity
    is exact unless --dev-sample is given."""
    dev_sample: NonNegativeInt = 0
    """Number of positions that the dev perplexity at K > 1 is estimated from, with sparse tables; 0: all."""
    scaling_sample: PositiveInt = 100_000
    """Number of training positions that the figure of the scaling assumption averages over at K > 1, drawn with --seed."""
    samples: NonNegativeInt = 4
    """Number of texts to generate.
    The model with the lowest dev perplexity generates, preferably one that is not adaptive, which would count its own text."""
    devices: int | None = None
    """Devices to split the work over. Default: all accelerators, or a virtual CPU device per core. Results depend on it only by
    rounding where exponents are fitted. The fits of ngram and optimum use one."""
    memory: str | None = None
    """Memory limit, such as 2GB. Default: all memory. To stay within it, fewer devices have dense tables of their own, and
    --tables auto chooses sparse ones. A fit of context mixing that needs more is refused."""
    tables: Literal["auto", "dense", "sparse"] = "auto"
    """How counts, and the models solved from them, are stored. dense: N x N cells. sparse: only pairs that occur. auto: dense
    where a method needs it and it fits in memory, otherwise sparse. Results do not change, except for rounding. Sparse tables
    work with explicit, ngram and context-mixing."""
    coordinator: str | None = None
    """Run as several processes, on one machine or many hosts: HOST:PORT of process 0, or auto on SLURM and TPU pods. All
    processes must be able to write to --out. Results do not change. Supported --methods: unigram, bigram, explicit and ngram,
    whose contexts each process counts."""
    num_processes: int | None = None
    """Several processes: their number."""
    process_id: int | None = None
    """Several processes: the number of this one, from 0."""
    join_seconds: PositiveInt = 60
    """Several processes: seconds to wait for all of them at the start."""
    dry_run: bool = False
    """Only estimate tokens, memory, disk space and time from a part of the text; write nothing."""

    @property
    def shards(self) -> Path | None:
        """The folder DIR of --corpus shards:DIR."""
        kind, _, folder = self.corpus.partition(":")
        return local_path(folder, "--corpus") if kind == "shards" else None


_TRAINED = ("explicit", "cold", "warm")
_COUNTED: Any = {"corpus": "text", "methods": ("ngram", "context-mixing"), "radius": (1,), "history": ("none", "adaptive")}
_SAMPLES: Any = {"corpus": "text", "tables": "sparse", "train_sample": 20_000, "dev_sample": 20_000}
_PRESETS: dict[str, tuple[str, Any]] = {
    "tiny": (
        "500 documents of docs, vocabulary 512; 10 s on 2 CPU cores. Dev perplexity of cat, K = 2: 32.",
        dict(limit=500, vocab_size=512, radius=(1, 2), train_sample=20_000, scaling_sample=2_000, samples=1),
    ),
    "demo": (
        "1000 documents of docs: the explicit solution, models that generalise, and an online one; 2 "
        "minutes on 2 CPU cores. Dev perplexity of explicit, cat, K = 1, 2: 77, 144; of context mixing: 12.1 and 8.5.",
        dict(methods=("explicit", "log-linear", "ngram", "context-mixing"), features=("cat",), radius=(1, 2), samples=3)
        | dict(history=("none", "adaptive"), calibration_positions=5_000, limit=1000, vocab_size=2050),
    ),
    "starts": (
        "docs, all models of the paper's Table 1; learning rate 0.1, because the corpus is 30 times smaller than the paper's.",
        dict(methods=(*_TRAINED, "optimum"), learning_rate=0.1, patience=3),
    ),
    "shakespeare": (
        "tiny Shakespeare by character, with --train input.txt, split as in nanoGPT; 5 minutes on 2 CPU cores. Dev loss 1.372 "
        "nats per character; 1.310 with the last 256 characters, 1.218 online.",
        _COUNTED | dict(documents="file", split="end", tokenizer="char", history=("none", "window:256", "adaptive")),
    ),
    "words": (
        "words, ends of lines predicted, with --train and --dev; vocabulary 10,000. On 1 M words of Wikipedia the model has "
        "0.69 times the perplexity of the Kneser-Ney 5-gram; 0.51 times online.",
        _COUNTED | dict(tokenizer="word", vocab_size=10_000, eos=True),
    ),
    "subwords": (
        "your own text in 4098 subwords, with --train and --dev; 10 M words take 40 minutes "
        "and 8 GB on 2 CPU cores. Dev perplexity of the 5-gram 60.3, of context mixing 39.5, adaptive 30.1.",
        _COUNTED,
    ),
    "large": (
        "a vocabulary of 128,000 on your own text, with --train and --dev; 10 M words take 2 minutes on 2 CPU cores, half of "
        "them for the tokenizer. Dev perplexity of cat, K = 1, 2: 490, 2091.",
        _SAMPLES | dict(vocab_size=128_000, radius=(1, 2)),
    ),
    "babylm": (
        "the paper's experiment on your own text, with --train and --dev; 10 M words take 1 minute and 2 GB on 2 CPU cores. "
        "Dev perplexity of cat, K = 1, 2, 4: 134, 204, 1320.",
        dict(corpus="text", samples=8),
    ),
    "table1": (
        "Table 1 with the paper's settings on your own text, with --train and --dev. With 10 M words an epoch takes 4 "
        "minutes to half an hour on 2 CPU cores, and the whole run two days: use an accelerator, or --epochs 2.",
        dict(corpus="text", methods=_TRAINED, samples=0),
    ),
}
PRESETS = {name: Preset(Config(out=f"runs/{name}", **fields), note) for name, (note, fields) in _PRESETS.items()}

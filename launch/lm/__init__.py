"""Fit language models from counts, and evaluate them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from jexplicit.lm.names import Features, FitOptions, History, Method
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveInt, local_path
from launch.kit.command import Preset, Run, entry_point
from launch.kit.text import Text


@dataclass(frozen=True, kw_only=True)
class Config(FitOptions, Text, Run):
    """Fit language models from counts, and evaluate them."""

    GROUPS: ClassVar = {
        **{"corpus": "text", "features": "models", "train_sample": "measurements"},
        **{"devices": "machine", "coordinator": "processes", "dry_run": "run"},
    }

    corpus: str = "docs"
    """Source of the text: docs (the documentation that comes with Python), text (the files of --train, implied by it) or
    shards:DIR (of any size, by launch.shards)."""
    test: tuple[str, ...] = ()
    """Test text, as --train. Of each method and history the model with the lowest dev perplexity is evaluated on it, once. Each
    file is a text of its own."""
    split: Literal["blocks", "end", "dev-test"] = "blocks"
    """Split of the training text without --dev. blocks: every tenth block of ten documents is dev. end: the last tenth of the
    characters. dev-test: the last tenth is test, and the tenth before it dev, on which chosen models are fitted, too, for the
    test."""
    limit: Annotated[int, Bounds(at_least=10)] | None = None
    """Most training documents to use. Dev has at most a tenth as many."""
    features: tuple[Features, ...] = ("sum", "cat")
    """Combination of the K context tokens. sum: one table shared by all offsets. cat: one table per offset."""
    context: tuple[PositiveInt, ...] = (1, 2, 4)
    """Context lengths K, in tokens."""
    history: tuple[History, ...] = ("none",)
    """Text that context-mixing counts as it reads: none, document (so far), window:W (the last W tokens), all (before it),
    online (all, counted as it is read) or online:document."""
    eos: bool = False
    """Also predict the end of each document."""
    methods: tuple[Method, ...] = ("explicit",)
    """Models to fit, besides unigram and bigram. explicit: the closed form. delta: explicit with a corrected exponent. cold,
    warm: trained by gradient descent from random tables or from the explicit solution. optimum: the minimum of the training
    loss at K = 1. log-linear: smoothed tables with a fitted weight per offset. iterative-scaling: iterations from these.
    ngram: modified Kneser-Ney of order 5. context-mixing: the weighted evidence of contexts for decisions on the path to a
    token; see --history."""
    train_sample: NonNegativeInt = 1_000_000
    """Number of positions that the train perplexity is estimated from at K > 1, drawn with --seed; 0: all."""
    dev_sample: NonNegativeInt = 0
    """Number of positions that the dev perplexity at K > 1 is estimated from, with sparse tables; 0: all."""
    samples: NonNegativeInt = 4
    """Number of texts to generate, by the model with the lowest dev perplexity, preferably one that is not online."""
    devices: int | None = None
    """Devices to split the work over. Default: all accelerators, or a virtual CPU device per core."""
    memory: str | None = None
    """Memory limit, such as 2GB. Default: all memory. To stay within it, fewer devices have dense tables of their own, and
    --tables auto chooses sparse ones. A fit of context mixing that needs more is refused."""
    tables: Literal["auto", "dense", "sparse"] = "auto"
    """How counts, and the models solved from them, are stored. dense: N x N cells. sparse: only pairs that occur, for explicit,
    ngram and context-mixing. auto: dense where a method needs it and it fits in memory. Results change by rounding."""
    coordinator: str | None = None
    """Run as several processes, on one machine or many hosts: HOST:PORT of process 0, or auto on SLURM and TPU pods. All
    processes write to --out. They fit unigram, bigram, explicit and ngram."""
    num_processes: int | None = None
    """Several processes: their number."""
    process_id: int | None = None
    """Several processes: the number of this one, from 0."""
    join_seconds: PositiveInt = 60
    """Several processes: seconds to wait for all of them at the start."""
    dry_run: bool = False
    """Only estimate tokens, memory and disk space from a part of the text; write nothing."""

    @property
    def shards(self) -> Path | None:
        """The folder DIR of --corpus shards:DIR."""
        kind, _, folder = self.corpus.partition(":")
        return local_path(folder, "--corpus") if kind == "shards" else None


_trained = ("explicit", "cold", "warm")
_counted: Any = {"corpus": "text", "methods": ("ngram", "context-mixing"), "context": (1,), "history": ("none", "online")}
_demo: Any = {"methods": ("explicit", "log-linear", "ngram", "context-mixing"), "features": ("cat",), "context": (1, 2)}
_large: Any = {"tables": "sparse", "train_sample": 20_000, "dev_sample": 20_000, "vocab_size": 128_000, "context": (1, 2)}
_character: Any = {"documents": "file", "split": "end", "tokenizer": "char", "history": ("none", "window:256", "online")}
_presets: dict[str, tuple[str, Any]] = {
    "tiny": (
        "500 documents of docs, vocabulary 512; 10 s on 2 CPU cores. Dev perplexity of cat, K = 2: 32.",
        dict(limit=500, vocab_size=512, context=(1, 2), train_sample=20_000, samples=1),
    ),
    "demo": (
        "1000 documents of docs: the explicit solution, models that generalise, and an online one; 2 minutes on 2 CPU cores.",
        _demo | dict(history=("none", "online"), calibration_positions=5_000, limit=1000, vocab_size=2050, samples=3),
    ),
    "starts": (
        "docs, all models of the paper's Table 1; learning rate 0.1, because the corpus is 30 times smaller than the paper's.",
        dict(methods=(*_trained, "optimum"), learning_rate=0.1, patience=3),
    ),
    "shakespeare": (
        "tiny Shakespeare by character, with --train input.txt, split as in nanoGPT; 5 minutes on 2 CPU cores. Dev loss 1.372 "
        "nats per character; 1.310 with the last 256 characters, 1.218 online.",
        _counted | _character,
    ),
    "words": (
        "words, ends of lines predicted, with --train and --dev; vocabulary 10,000.",
        _counted | dict(tokenizer="word", vocab_size=10_000, eos=True),
    ),
    "subwords": (
        "your own text in 4098 subwords, with --train and --dev; 10 M words take 40 minutes and 8 GB on 2 CPU cores.",
        _counted,
    ),
    "large": (
        "a vocabulary of 128,000 on your own text, with --train and --dev; 10 M words take 2 minutes on 2 CPU cores.",
        _large | dict(corpus="text"),
    ),
    "babylm": (
        "the paper's experiment on your own text, with --train and --dev; 10 M words take 1 minute and 2 GB on 2 CPU cores.",
        dict(corpus="text", samples=8),
    ),
    "table1": (
        "Table 1 with the paper's settings on your own text, with --train and --dev. With 10 M words an epoch takes 4 "
        "minutes to half an hour on 2 CPU cores, and the whole run two days: use an accelerator, or --epochs 2.",
        dict(corpus="text", methods=_trained, samples=0),
    ),
}
PRESETS = {name: Preset(Config(out=f"runs/{name}", **fields), note) for name, (note, fields) in _presets.items()}
main = entry_point("launch.lm.run:run", Config, __doc__, PRESETS)

"""The configuration of launch.lm, its and its presets. They need no JAX, nor does `--help`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jexplicit.data.corpora import Split
from jexplicit.data.text import Unit
from jexplicit.lm.names import (
    CHARACTER_ROWS,
    CLASS_ROWS,
    GRAMMAR_ROWS,
    SUBWORD_ROWS,
    Features,
    History,
    Method,
    Smoothing,
)
from jexplicit.runs.bounds import Bounds, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jexplicit.runs.command import Preset

# What a finished run may be continued with: more models, samples or an export.
GROWING = ("methods", "features", "radius", "history", "bits", "samples", "export", "train_sample", "dev_sample", "paper")


@dataclass(frozen=True)
class Config:
    """Fit single-layer language models in closed form, in one counting pass, and measure them."""

    GROUPS: ClassVar = {
        "out": "run",
        "corpus": "text",
        "features": "models",
        "smoothing": "smoothed",
        "epochs": "trained",
        "optimum_iterations": "optimum",
        "train_sample": "measurements",
        "devices": "machine",
        "coordinator": "processes",
        "seed": "run",
    }

    out: str
    """Run folder to write: config, results, figures, report.md and the saved models."""
    corpus: str = "docs"
    """Source of the text. docs: the documentation that comes with Python. installed: the docstrings of every installed package
    too, for millions of words without a download. text: the files of --train (implied by it). shards:DIR: what launch.shards
    tokenised into DIR, of any size. tfds:NAME: a text data set of TensorFlow Datasets, where that is installed."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders; plain text, or records (see --field)."""
    dev: tuple[str, ...] = ()
    """Held-out text; default, a part of the training text, see --split."""
    split: Split = "blocks"
    """How training text is cut without --dev. blocks: every tenth block of ten documents is held out. end: the last tenth of
    the characters."""
    field: str | None = None
    """Files of records (.jsonl, .csv, .tsv, each also .gz, and .parquet): the field that holds the text."""
    documents: Unit = "line"
    """Plain text: what a document is. line: every line that is not blank. paragraph: what stands between blank lines. file:
    each file."""
    limit: Annotated[int, Bounds(at_least=10)] | None = None
    """Use at most this many training documents, and a tenth as many dev documents."""
    tokenizer: str = "bpe"
    """What the tokens are. bpe: subwords. word: what white space separates; extra spaces are ignored. char: characters. Or
    FILE, an existing tokenizer: another run's folder or its tokenizer.model, any SentencePiece model, or a Hugging Face
    tokenizer.json."""
    vocab_size: PositiveInt | None = None
    """Token ids, <pad> and <unk> included; default 4098 = 2^12 + 2, or every character."""
    features: tuple[Features, ...] = ("sum", "cat")
    """How the K context tokens are combined: sum shares one table, cat has a table per offset."""
    radius: tuple[PositiveInt, ...] = (1, 2, 4)
    """Context lengths K, in tokens."""
    history: tuple[History, ...] = ("none",)
    """What a mixture may see beyond its context, through cache rows. none: nothing. document: the document so far. window:W:
    the last W tokens. all: all of the text before."""
    rows: tuple[str, ...] = SUBWORD_ROWS
    """The rows of a mixture. offsets: single tokens, 1 to 8 back. contexts-4, contexts-8: contexts of 1 to 4 or 8 tokens. gaps,
    gaps-of-three: two or three tokens with a gap. classes: contexts of classes of tokens, and the class of the next one.
    repeats: the nearest 4 and 16 tokens, which may come again. coarse: the next class given the three before; each frequent
    token is its own class. skips: contexts that leave out the nearest token, or two. words, word-classes: of characters, the
    part of the word and the words before, or classes of these. confidence: an exponent for each of ten kinds of contexts, by
    how often they occurred, instead of one per row."""
    eos: bool = False
    """Predict the end of a document too."""
    methods: tuple[Method, ...] = ("explicit",)
    """The models to fit. explicit: the closed form. delta: its exponent corrected by a fitted number. mean-cooccurrence: its
    exact weights (Eq. 14). intercept: its tables frozen, and one number per token fitted. cold, warm: trained by gradients from
    random tables and from the explicit solution. optimum: the minimum of the training loss (a convex problem), from counts, at
    K = 1 and 2. log-linear: smoothed rows with a fitted exponent per offset. iterative-scaling: sweeps from there, without
    gradients. ngram: modified Kneser-Ney of order 5. mixture: counted rows with fitted exponents; see --rows and --history.
    bitcipher: the explicit solution with --bits features per token; word-vectors: the same with positive parts of word vectors
    from counts. The baselines unigram and bigram are always there."""
    smoothing: Smoothing = "kneser-ney"
    """Smoothing of the rows of log-linear, iterative-scaling and mixture models."""
    calibration: Literal["held-out", "leave-one-out", "pairs"] = "held-out"
    """What exponents are fitted on. held-out: documents held out of the counts (2 in 100). leave-one-out: of log-linear models,
    counted positions, each with its own pair left out (cat only). pairs (mixtures): telling held-out sentences from copies in
    which one word was moved, removed, inserted or replaced."""
    calibration_positions: Annotated[int, Bounds(at_least=10)] = 15_000
    """Positions that exponents are fitted on, drawn with --seed."""
    sweeps: PositiveInt = 10
    """Intercept and iterative scaling: sweeps over the different contexts."""
    discount: NonNegativeFloat | None = None
    """Iterative scaling: tolerance, in counts, between expected and observed co-occurrences; default, Kneser-Ney's discount. 0
    sweeps the explicit solution, noise and all, towards the optimum of the training loss."""
    bits: tuple[PositiveInt, ...] = (64, 256, 1024)
    """Bitcipher and word-vectors: features per token."""
    epochs: PositiveInt = 32
    """Training: passes over the data, at most."""
    batch_size: PositiveInt = 8192
    """Training: positions per step."""
    optimizer: str = "adagrad"
    """Training: name of an optax optimiser: adagrad, sgd, adam, rmsprop, ..."""
    learning_rate: PositiveFloat = 0.01
    """Training: learning rate, of the loss per position."""
    accumulator: NonNegativeFloat = 0.0
    """Training: initial value of Adagrad's sum of squares. The paper does not give it; optax's default is 0.1."""
    parameters: Literal["decoder", "rows"] = "decoder"
    """Training: what is optimised. decoder optimises U below the noise model, exactly. rows optimises the noisy rows that are
    read by token ids: another trajectory, whose small batches need to touch few rows only."""
    patience: PositiveInt | None = None
    """Training: stop after so many epochs without a lower dev perplexity; default, never. The best epoch's model is kept."""
    optimum_iterations: PositiveInt = 100
    """Iterations of L-BFGS towards the optimum."""
    optimum_floor: Annotated[float, Bounds(above=0, below=1)] = 1e-9
    """Count used in place of 0 in the optimum at K = 1, where the exact logits are minus infinity. Its dev perplexity is an
    artefact of this number, and infinite in the limit of 0; its train perplexity hardly depends on it."""
    train_sample: NonNegativeInt = 1_000_000
    """Positions of the train perplexity at K > 1, drawn with --seed; 0 takes them all. Dev is always exact."""
    dev_sample: NonNegativeInt = 0
    """Positions of the dev perplexity at K > 1 with sparse or sharded tables, drawn with --seed; 0 takes them all."""
    scaling_sample: PositiveInt = 100_000
    """Training positions that the figure of the scaling assumption averages over at K > 1, drawn with --seed."""
    samples: NonNegativeInt = 4
    """Lines of generated text."""
    paper: bool = False
    """Put the numbers of the paper's Table 1 beside those of the run; on in the presets babylm and starts. They are of its own
    10 M words, with 4098 subwords."""
    export: str | None = None
    """Also write the model with the lowest dev perplexity to this .safetensors file."""
    devices: int | None = None
    """Devices to split the work over; default, every accelerator, or one virtual CPU device per core. Results do not change,
    but for rounding where exponents are fitted. The fits of ngram, optimum and bitcipher, and of minimal pairs, use one."""
    memory: str | None = None
    """Memory limit for counting, such as 2GB: fewer devices get tables of their own, and contexts of several tokens are counted
    a part at a time and stored in --out until the run ends. Default: all available memory."""
    tables: Literal["auto", "dense", "sparse", "sharded"] = "auto"
    """How counts, and the models solved from them, are held. dense: N x N cells. sparse: only pairs that occur. sharded: dense,
    each device holds some of the columns. auto: dense where a method needs it and it fits, else sparse. Results do not change,
    but for rounding. Sparse tables serve explicit, ngram, mixture and bitcipher; sharded ones explicit."""
    checkpoint_seconds: PositiveFloat = 60.0
    """Seconds between two saves of partial counts, from which --resume goes on."""
    coordinator: str | None = None
    """Several processes, on one machine or many hosts: HOST:PORT of process 0, or auto on SLURM and TPU pods. --out must be
    writable by all processes. Results do not change. Supported --methods: unigram, bigram, explicit and ngram; with --memory
    each counts some of its contexts."""
    num_processes: int | None = None
    """Several processes: how many."""
    process_id: int | None = None
    """Several processes: which one this is, from 0."""
    join_seconds: PositiveInt = 60
    """Several processes: seconds to wait for each other at the start."""
    seed: NonNegativeInt = 0
    """Seed of every random choice: evaluation sample and generated text."""
    dry_run: bool = False
    """Only estimate documents, tokens, memory, disk and time, from a part of the text; nothing is written."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_TINY = Config(out="runs/tiny", limit=500, vocab_size=512, radius=(1, 2), train_sample=20_000, scaling_sample=2_000, samples=1)
PRESETS = {
    "tiny": Preset(_TINY, "500 documents of docs, vocabulary 512; 10 s on 2 CPU cores. Cat K = 2: dev perplexity 32."),
    "demo": Preset(Config(out="runs/demo"), "docs, the defaults; 25 s on 2 CPU cores. Cat K = 1, 2, 4: dev 185, 490, 8500."),
    "starts": Preset(
        Config(
            out="runs/starts",
            methods=("explicit", "cold", "warm", "optimum"),
            learning_rate=0.1,
            patience=3,
            optimum_iterations=40,
            paper=True,
        ),
        "docs, the whole of the paper's Table 1: explicit, cold and warm starts, and the optimum. The corpus is 30 times "
        "smaller than the paper's, so its 32 epochs are too few steps for the paper's learning rate of 0.01.",
    ),
    "mixture": Preset(
        Config(
            out="runs/mixture",
            methods=("explicit", "log-linear", "ngram", "mixture"),
            radius=(1, 2, 4, 8),
            history=("none", "all"),
        ),
        "docs, solutions that generalise: smoothed rows and fitted exponents, contexts of several tokens, the recent past.",
    ),
    "shakespeare": Preset(
        Config(
            out="runs/shakespeare",
            corpus="text",
            documents="file",
            split="end",
            tokenizer="char",
            methods=("ngram", "mixture"),
            radius=(1,),
            rows=CHARACTER_ROWS,
            history=("none", "window:256"),
            calibration_positions=100_000,
        ),
        "characters, with --train input.txt of tiny Shakespeare: the first 90 % to count, the last 10 % to predict, as nanoGPT "
        "splits it; 2 minutes and 2.3 GB on 2 CPU cores. 1.446 nats per character, from the last 256 characters 1.399.",
    ),
    "words": Preset(
        Config(
            out="runs/words",
            corpus="text",
            tokenizer="word",
            vocab_size=10_000,
            eos=True,
            methods=("ngram", "mixture"),
            radius=(1,),
            rows=CLASS_ROWS,
            history=("none", "all"),
        ),
        "words, one document per line and its end predicted, with --train and --dev; vocabulary 10,000. On a million words of "
        "subtitles the mixture has 0.63 of the perplexity of the Kneser-Ney 5-gram, and with the text before 0.50.",
    ),
    "babylm-mixture": Preset(
        Config(
            out="runs/babylm-mixture",
            corpus="text",
            methods=("ngram", "mixture"),
            radius=(1,),
            rows=CLASS_ROWS,
            history=("none", "all"),
            calibration_positions=30_000,
        ),
        "10 M words of yours, with --train and --dev, 4098 subwords; 3 minutes to count and fit on 2 CPU cores, 8 GB. "
        "Dev perplexity: 5-gram 60.3, mixture 49.5, with the text before 34.0.",
    ),
    "grammar": Preset(
        Config(
            out="runs/grammar",
            corpus="text",
            vocab_size=30_000,
            methods=("mixture",),
            radius=(1,),
            rows=GRAMMAR_ROWS,
            calibration="pairs",
            calibration_positions=10_000,
            tables="sparse",
            train_sample=20_000,
            dev_sample=20_000,
        ),
        "minimal pairs of grammar, with --train and --dev: a 4-gram in which frequent subwords stand for themselves and others "
        "for classes, exponents fitted to tell sentences of held-out text from the same with a word moved, dropped, put in or "
        "replaced; 10 M words in 10 minutes on 2 busy CPU cores. BLiMP: 61.2 %, a Kneser-Ney 5-gram 54.2 %.",
    ),
    "large": Preset(
        Config(
            out="runs/large",
            corpus="text",
            vocab_size=128_000,
            tables="sparse",
            radius=(1, 2),
            train_sample=20_000,
            dev_sample=20_000,
        ),
        "128,000 tokens on text of yours, with --train and --dev; 10 M words in 2 minutes on 2 CPU cores, half of "
        "them for the tokenizer. Cat K = 1, 2: dev 490, 2091.",
    ),
    "babylm": Preset(
        Config(out="runs/babylm", corpus="text", samples=8, paper=True),
        "the paper's experiment on text of yours, with --train and --dev; 10 M words in 1 minute and 2 GB on 2 CPU cores. "
        "Cat K = 1, 2, 4: dev 134, 204, 1320.",
    ),
    "table1": Preset(
        Config(out="runs/table1", corpus="text", methods=("explicit", "cold", "warm"), samples=0, paper=True),
        "Table 1 at the paper's settings on text of yours, with --train and --dev: Adagrad, learning rate 0.01, 32 epochs, K = "
        "1, 2, 4. With 10 M words an epoch takes 4 minutes to half an hour on 2 CPU cores, and all of it two days: use an "
        "accelerator, or --epochs 2.",
    ),
}

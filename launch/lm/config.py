"""The configuration of launch.lm, its presets, and what it refuses."""

from dataclasses import dataclass
from typing import Literal

import optax

from jexplicit.lm.explicit import Features
from jexplicit.lm.log_linear import Smoothing
from jexplicit.runs.command import Preset
from jexplicit.runs.devices import parse_bytes
from jexplicit.runs.processes import check_process

Method = Literal["explicit", "cold", "warm", "optimum", "calibrated", "scaling", "joint", "joint+cache", "bitcipher"]


@dataclass(frozen=True)
class Config:
    """Fit single-layer language models in closed form, in one counting pass, and measure them."""

    out: str
    """Run folder to write: config, results, figures, report.md and the saved models."""
    corpus: str = "docs"
    """docs: the documentation that comes with Python. installed: the docstrings of every installed package too, for millions
    of words without a download. text: the files of --train (implied by it). shards:DIR: what launch.shards tokenised into DIR,
    of any size. tfds:NAME: a text data set of TensorFlow Datasets, where that is installed."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders. Every line that is not blank is a document."""
    dev: tuple[str, ...] = ()
    """Held-out text; default, every tenth block of ten training documents."""
    limit: int | None = None
    """Use at most this many training documents, and a tenth as many dev documents."""
    tokenizer: Literal["bpe", "word", "char"] = "bpe"
    """bpe: subwords. word: what white space separates; spaces at the ends of a line, or several in a row, make no token. char:
    characters."""
    vocab_size: int | None = None
    """Token ids, <pad> and <unk> included; default 4098 = 2^12 + 2, or every character."""
    features: tuple[Features, ...] = ("sum", "cat")
    """How the K context tokens are combined: sum shares one table, cat has a table per offset."""
    radius: tuple[int, ...] = (1, 2, 4)
    """Context lengths K, in tokens."""
    eos: bool = False
    """Predict the end of a document too."""
    methods: tuple[Method, ...] = ("explicit",)
    """explicit: the closed form. cold, warm: trained by gradients from random tables and from the explicit solution. optimum:
    the minimum of the training loss (a convex problem), from counts, at K = 1 and 2. calibrated: smoothed rows with a fitted
    exponent per offset. scaling: iterative sweeps from there, without gradients. joint: with contexts of several tokens too;
    joint+cache: and the recent past. bitcipher: the explicit solution with --bits features per token. Baselines are always
    there."""
    smoothing: Smoothing = "kneser-ney"
    """Of the rows of calibrated, scaling and joint models."""
    calibration: Literal["held-out", "leave-one-out"] = "held-out"
    """Of calibrated models, what exponents are fitted on: documents held out of the counts (2 in 100), or counted positions,
    each with its own pair left out (cat only)."""
    calibration_positions: int = 15_000
    """Positions that exponents are fitted on, drawn with --seed."""
    sweeps: int = 10
    """Scaling: sweeps over the different contexts."""
    discount: float | None = None
    """Scaling: counts by which expected and observed co-occurrences may differ for free; default, Kneser-Ney's, from the
    counts. 0 sweeps the explicit solution, noise and all, towards the optimum of the training loss."""
    bits: tuple[int, ...] = (64, 256, 1024)
    """Bitcipher: features per token."""
    epochs: int = 32
    """Training: passes over the data, at most."""
    batch_size: int = 8192
    """Training: positions per step."""
    optimizer: str = "adagrad"
    """Training: an optimiser of optax by its name there: adagrad, sgd, adam, rmsprop, ..."""
    learning_rate: float = 0.01
    """Training: learning rate, of the loss per position."""
    accumulator: float = 0.0
    """Training: where Adagrad's sum of squares starts. The paper does not say; optax starts at 0.1."""
    parameters: Literal["decoder", "rows"] = "decoder"
    """Training: decoder optimises U below the noise model, exactly. rows optimises the noisy rows that are read by token ids:
    another trajectory, whose small batches need to touch few rows only."""
    patience: int | None = None
    """Training: stop after so many epochs without a lower dev perplexity; default, never. The best epoch's model is kept."""
    optimum_iterations: int = 100
    """Iterations of L-BFGS towards the optimum."""
    train_sample: int = 1_000_000
    """Positions of the train perplexity at K > 1, drawn with --seed; 0 takes them all. Dev is always exact."""
    dev_sample: int = 0
    """Positions of the dev perplexity at K > 1 with sparse or sharded tables, drawn with --seed; 0 takes them all."""
    scaling_sample: int = 100_000
    """Training positions that the figure of the scaling assumption averages over at K > 1, drawn with --seed."""
    samples: int = 4
    """Lines of generated text."""
    export: str | None = None
    """Also write the model with the lowest dev perplexity to this .safetensors file."""
    devices: int | None = None
    """Devices to split the work over; default, every accelerator, or one virtual CPU device per core. Results do not change."""
    memory: str | None = None
    """Most memory that counting may take, such as 2GB: fewer devices get tables of their own. Default, what is there."""
    tables: Literal["auto", "dense", "sparse", "sharded"] = "auto"
    """Of counts and of the models solved from them. dense: N x N cells. sparse: only pairs that occur. sharded: dense, each
    device holds some of the columns. auto: dense where it fits, else sparse. Results do not change, but for rounding; sparse
    and sharded tables are solved by --methods explicit only."""
    checkpoint_seconds: float = 60.0
    """Seconds between two saves of partial counts, from which --resume goes on."""
    coordinator: str | None = None
    """Several processes, on one machine or many hosts: HOST:PORT of process 0, or auto on SLURM and TPU pods. --out lies where
    all can write. Results do not change."""
    num_processes: int | None = None
    """Several processes: how many."""
    process_id: int | None = None
    """Several processes: which one this is, from 0."""
    join_seconds: int = 60
    """Several processes: seconds to wait for each other at the start."""
    seed: int = 0
    """Of every random choice: evaluation sample and generated text."""
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
        ),
        "docs, the whole of the paper's Table 1: explicit, cold and warm starts, and the optimum. The corpus is 30 times "
        "smaller than the paper's, so its 32 epochs are too few steps for the paper's learning rate of 0.01.",
    ),
    "calibrated": Preset(
        Config(out="runs/calibrated", methods=("explicit", "calibrated", "joint", "joint+cache"), radius=(1, 2, 4, 8)),
        "docs, solutions that generalise: smoothed rows and fitted exponents, contexts of several tokens, the recent past.",
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
        Config(out="runs/babylm", corpus="text", samples=8),
        "the paper's experiment on text of yours, with --train and --dev; 10 M words in 1 minute and 2 GB on 2 CPU cores. "
        "Cat K = 1, 2, 4: dev 134, 204, 1320.",
    ),
}


def check(config: Config) -> None:
    """Refuse flags that make no sense, before anything is written."""
    kind, _, name = config.corpus.partition(":")
    if kind not in (("shards", "tfds") if name else ("docs", "installed", "text")):
        raise ValueError(f"--corpus {config.corpus}: choose docs, installed, text, shards:DIR or tfds:NAME")
    several = config.coordinator is not None
    if config.coordinator is not None:
        check_process(config.coordinator, config.num_processes, config.process_id)
    if not several and (config.num_processes, config.process_id) != (None, None):
        raise ValueError(
            f"--num-processes {config.num_processes} --process-id {config.process_id} without --coordinator HOST:PORT"
        )
    if config.memory is not None:
        parse_bytes(config.memory)
    for what, allowed in (("--coordinator", several), ("--corpus shards:DIR", kind == "shards")):
        if allowed and (others := set(config.methods) - {"explicit"}):
            raise ValueError(f"{what} with --methods {' '.join(sorted(others))}: use --methods explicit there")
    if not config.checkpoint_seconds > 0 or config.join_seconds < 1:
        raise ValueError(
            f"--checkpoint-seconds {config.checkpoint_seconds}, --join-seconds {config.join_seconds}: both are above 0"
        )
    if config.corpus == "text" and not config.train:
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if config.dev and config.corpus != "text":
        raise ValueError(f"--dev with --corpus {config.corpus}: dev files go with --train FILES")
    if not config.radius or min(config.radius) < 1:
        raise ValueError(f"--radius {config.radius}: give context lengths of at least 1 token")
    if not config.features:
        raise ValueError("--features without a value: give sum, cat or both")
    if config.limit is not None and config.limit < 10:
        raise ValueError(f"--limit {config.limit}: use at least 10 documents")
    if min(config.train_sample, config.dev_sample, config.samples) < 0 or config.scaling_sample < 1:
        raise ValueError(
            "--train-sample, --dev-sample, --samples >= 0 and --scaling-sample >= 1 are numbers of positions and of texts"
        )
    if min(config.epochs, config.batch_size, config.optimum_iterations) < 1:
        raise ValueError(
            f"--epochs {config.epochs}, --batch-size {config.batch_size}, --optimum-iterations {config.optimum_iterations}: "
            "all are at least 1"
        )
    if not config.learning_rate > 0 or config.accumulator < 0:
        raise ValueError(f"--learning-rate {config.learning_rate} > 0 and --accumulator {config.accumulator} >= 0 are needed")
    if config.calibration_positions < 1:
        raise ValueError(f"--calibration-positions {config.calibration_positions}: fit exponents on at least one")
    if config.calibration == "leave-one-out" and ("sum" in config.features or config.smoothing == "noise"):
        raise ValueError(
            f"--calibration leave-one-out with --features {' '.join(config.features)} and --smoothing {config.smoothing}: it "
            "takes --features cat and a smoothing row by row, which noise is not"
        )
    if config.export and not set(config.methods) - {"joint", "joint+cache", "bitcipher"}:
        raise ValueError(
            f"--export with --methods {' '.join(config.methods)}: none of these can be exported; add explicit or calibrated"
        )
    if config.sweeps < 1 or not 0 <= (config.discount or 0) < float("inf"):
        raise ValueError(f"--sweeps {config.sweeps} >= 1 and a finite --discount {config.discount} >= 0 are needed")
    if not config.bits or min(config.bits) < 1:
        raise ValueError(f"--bits {config.bits}: give numbers of features per token, at least 1")
    if config.patience is not None and config.patience < 1:
        raise ValueError(f"--patience {config.patience}: wait for at least one epoch")
    if not callable(getattr(optax, config.optimizer, None)):
        raise ValueError(f"--optimizer {config.optimizer}: optax has none of this name; try adagrad, sgd, adam or rmsprop")

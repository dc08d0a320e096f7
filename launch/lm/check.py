"""Flags of launch.lm that make no sense together, refused before anything is written."""

from jexplicit.lm.checkpoints import FROM_COUNTS
from jexplicit.lm.fits.mixture_rows import COUNTED_ROWS, check_rows
from jexplicit.lm.model import window_of
from jexplicit.nn.optimizers import optax_optimizer
from jexplicit.runs.files import check_writable
from jexplicit.runs.host import parse_bytes
from jexplicit.runs.processes import check_process
from launch.lm.config import Config
from launch.shards import check_text_flags


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
    if config.train and config.corpus not in ("docs", "text"):  # docs is the default
        raise ValueError(f"--train with --corpus {config.corpus}: give one of the two")
    made = {"--tokenizer": config.tokenizer != "bpe", "--vocab-size": config.vocab_size, "--limit": config.limit}
    if kind == "shards" and (given := [flag for flag, value in made.items() if value]):
        raise ValueError(
            f"{' '.join(given)} with --corpus {config.corpus}: shards are tokenised already; give these flags to launch.shards"
        )
    if config.export is not None:
        check_writable(config.export, "--export")
    served = (*FROM_COUNTS, "ngram")
    cases = (("--coordinator", several, served), ("--corpus shards:DIR", kind == "shards", (*served, "mixture")))
    for what, given, served in cases:
        if given and (others := set(config.methods) - set(served)):
            raise ValueError(f"{what} with --methods {' '.join(sorted(others))}: use --methods {' '.join(served)} there")
    if kind == "shards" and "mixture" in config.methods and (others := set(config.rows) - set(COUNTED_ROWS)):
        raise ValueError(f"--rows {' '.join(sorted(others))} with --corpus shards:DIR: use {' '.join(COUNTED_ROWS)} there")
    if several and config.tables == "sharded":
        raise ValueError(
            "--tables sharded with --coordinator: the devices of one process share the columns; use --tables sparse"
        )
    if config.corpus == "text" and not config.train:
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if config.dev and not config.train:
        raise ValueError(f"--dev with --corpus {config.corpus}: dev files go with --train FILES")
    check_text_flags(config)
    for name in ("methods", "features", "radius", "history", "bits"):
        if not getattr(config, name):
            raise ValueError(f"--{name} without a value: give at least one")
    if config.calibration == "leave-one-out" and ("sum" in config.features or config.smoothing == "noise"):
        raise ValueError(
            f"--calibration leave-one-out with --features {' '.join(config.features)} and --smoothing {config.smoothing}: it "
            "needs --features cat and another smoothing than noise"
        )
    fitted = {"log-linear", "iterative-scaling"} & set(config.methods)
    if config.calibration == "pairs" and ("mixture" not in config.methods or fitted):
        raise ValueError(
            f"--calibration pairs with --methods {' '.join(config.methods)}: only a mixture is fitted on minimal pairs; use "
            "--methods mixture, or --calibration held-out"
        )
    check_rows(config.rows)
    for history in config.history:
        window_of(history)
    if set(config.history) != {"none"} and "mixture" not in config.methods:
        raise ValueError(f"--history {' '.join(config.history)} without a mixture: only --methods mixture reads preceding text")
    if {"words", "word-classes"} & set(config.rows) and config.tokenizer != "char":
        raise ValueError(
            f"--rows {' '.join(config.rows)} with --tokenizer {config.tokenizer}: these rows need --tokenizer char"
        )
    if config.split != "blocks" and (config.dev or not config.train):
        raise ValueError(f"--split {config.split}: it splits the files of --train, without --dev")
    if "optimum" in config.methods and min(config.radius) > 2:
        raise ValueError(
            f"--methods optimum with --radius {' '.join(map(str, config.radius))}: the optimum is computed at K = 1 and 2 only"
        )
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)

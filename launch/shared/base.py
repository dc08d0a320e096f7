"""The counted base of launch.networks --start base: a cross-fitted mixture, which is added to a network's logits."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.model_row import ModelRow
from jexplicit.lm.core.names import CHARACTER_ROWS, CLASS_ROWS
from jexplicit.lm.fits.base import base_at, cross_fit
from jexplicit.lm.model_files import read_model_file, save_model
from jexplicit.lm.rows.words import letters_of
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.nn.sequences import stream_distributions
from jexplicit.runs.files import load_arrays, save_arrays
from jexplicit.runs.progress import stage

_most_bytes, _at_once = 8 << 30, 1 << 14


class Base(NamedTuple):
    """log p of a mixture at every place of two texts.

    train: [L, N] of models that did not count what they predict.
    dev: [L, N] of the model of the whole training text.
    model: that model.
    seconds: of counting, fitting and reading.
    """

    train: Float[np.ndarray, "L N"]
    dev: Float[np.ndarray, "L N"]
    model: LanguageModel
    seconds: float


def counted_base(config: Any, streams: dict[str, np.ndarray], tokenizer: Tokenizer, kept: Path) -> Base:
    """The base of a run, from what an interrupted run has kept.

    Raises:
        ValueError: a text whose base would not fit in memory.
    """
    N, train = tokenizer.vocab_size, streams["train"]
    if (size := 2 * N * len(train)) > _most_bytes:
        raise ValueError(
            f"--start base for {len(train):,} tokens of {N:,} kinds needs {size / 1e9:,.0f} GB: give --limit or a smaller "
            "--vocab-size"
        )
    if (kept / "base.npz").exists():
        arrays = load_arrays(kept / "base.npz")
        model, _, about = read_model_file(kept / "base.safetensors")
        return Base(arrays["train"], arrays["dev"], model, about["seconds"])
    begin, characters = time.perf_counter(), config.tokenizer == "char"
    options = Options(
        rows=CHARACTER_ROWS if characters else CLASS_ROWS,
        history=config.base_history,
        calibration_positions=min(100_000, max(1000, len(train) // 10)),
        seed=config.seed,
    )
    text = TrainingText(train, N, eos=config.eos, letters=letters_of(tokenizer), tokenizer=tokenizer)
    crossed = cross_fit(text, options, watch=Watch(stage=stage))
    with stage("base of the training text", "tokens") as progress:
        of_train = _at_places(crossed.base_at, train, N, progress)
    with stage("base of the dev text", "tokens") as progress:
        dev = streams["dev"]
        of_dev = _at_places(lambda places: base_at(crossed.whole, dev, places), dev, N, progress)
    seconds = time.perf_counter() - begin
    kept.mkdir(parents=True, exist_ok=True)
    save_model(kept / "base.safetensors", crossed.whole, about={"seconds": seconds})
    save_arrays(kept / "base.npz", {"train": of_train, "dev": of_dev})
    return Base(of_train, of_dev, crossed.whole, seconds)


def _at_places(log_p: Any, stream: np.ndarray, N: int, progress: Any) -> Float[np.ndarray, "L N"]:
    """At every place but the first, in half precision."""
    out = np.zeros((len(stream), N), np.float16)
    for first in range(1, len(stream), _at_once):
        places = np.arange(first, min(first + _at_once, len(stream)))
        out[places] = log_p(places)
        progress(int(places[-1]), len(stream))
    return out


def window_loss(
    network: Any, variables: Any, exponent: float, base: Base, dev: np.ndarray, window: int, *, eos: bool, mesh: Any
) -> float:
    """The dev loss of a network over its base, in windows side by side, nats."""
    total, places = 0.0, np.arange(1, len(dev)) if eos else np.flatnonzero(dev[1:] != PAD) + 1
    for first in range(0, len(places), _at_once):
        some = places[first : first + _at_once]
        own = stream_distributions(network, variables, dev, some, window=window, stride=window, mesh=mesh)
        z = exponent * base.dev[some].astype(np.float32) + own
        total += float((np.logaddexp.reduce(z, axis=1) - z[np.arange(len(some)), dev[some]]).sum(dtype=np.float64))
    return total / len(places)


def based_model(base: Base, network: LanguageModel, exponent: float) -> LanguageModel:
    """The network over the mixture, as one language model."""
    rows = (ModelRow(base.model), ModelRow(network))
    return LanguageModel(rows, np.array([exponent, 1], np.float32), "none", network.eos)

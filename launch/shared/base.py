"""The counted base of launch.networks --start base: a cross-fitted mixture, which is added to a network's logits."""

import functools
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import ADAPTIVE, CHARACTER_ROWS, CLASS_ROWS
from jexplicit.lm.fits.base import CrossFit, base_at, cross_fit
from jexplicit.lm.model_files import read_model_file, save_model
from jexplicit.lm.rows.words import letters_of
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.nn.sequences import LogP
from jexplicit.runs.arrays import load_arrays, save_arrays
from jexplicit.runs.progress import stage

_most_bytes, _cells_at_once = 8 << 30, 1 << 26


class Base(NamedTuple):
    """log p of a mixture at the places of two texts.

    train: of models that did not count what they predict.
    dev: of the model of the whole training text.
    model: that model.
    seconds: of counting, fitting and reading.
    """

    train: LogP
    dev: LogP
    model: LanguageModel
    seconds: float


def counted_base(config: Any, streams: dict[str, np.ndarray], tokenizer: Tokenizer, kept: Path) -> Base:
    """The base of a run, from what an interrupted run has kept.

    Where log p of every place of the training text has room in memory it is computed once, else for every batch.

    Raises:
        ValueError: a dev text, or a training text with an adaptive mixture, whose base would not fit in memory.
    """
    N, train = tokenizer.vocab_size, streams["train"]
    large = {part: 2 * N * len(streams[part]) > _most_bytes for part in ("train", "dev")}
    if large["dev"] or (large["train"] and config.base_history in ADAPTIVE):
        size = 2 * N * max(len(streams[part]) for part in large if large[part]) / 1e9
        smaller = "give --limit or a smaller --vocab-size" + ", or another --base-history" * (not large["dev"])
        raise ValueError(f"--start base for {len(train):,} tokens of {N:,} kinds needs {size:,.0f} GB: {smaller}")
    if not (kept / "base.npz").exists():
        _keep_base(config, streams, tokenizer, kept, large["train"])
    arrays, (model, _, about) = load_arrays(kept / "base.npz"), read_model_file(kept / "base.safetensors")
    if large["train"]:
        models = tuple(read_model_file(path)[0] for path in sorted(kept.glob("fold*.safetensors")))
        of_train = functools.partial(_read, CrossFit(train, arrays["edges"], models, model))
    else:
        of_train = arrays["train"].__getitem__
    return Base(of_train, arrays["dev"].__getitem__, model, about["seconds"])


def _keep_base(config: Any, streams: dict[str, np.ndarray], tokenizer: Tokenizer, kept: Path, large: bool) -> None:
    """Count and fit the models of the base, and keep them, or what they predict, in files."""
    begin, N, train, dev = time.perf_counter(), tokenizer.vocab_size, streams["train"], streams["dev"]
    options = Options(
        rows=CHARACTER_ROWS if config.tokenizer == "char" else CLASS_ROWS,
        history=config.base_history,
        calibration_positions=min(100_000 if config.tokenizer == "char" else 30_000, max(1000, len(train) // 10)),
        seed=config.seed,
    )
    text = TrainingText(train, N, eos=config.eos, letters=letters_of(tokenizer), tokenizer=tokenizer)
    crossed = cross_fit(text, options, folds=config.base_folds, watch=Watch(stage=stage))
    arrays = {"edges": crossed.edges}
    if large:
        for n, model in enumerate(crossed.models):
            save_model(kept / f"fold{n:03}.safetensors", model)
    else:
        with stage("base of the training text", "tokens") as progress:
            arrays["train"] = _at_all_places(crossed.base_at, crossed.edges, N, progress)
    with stage("base of the dev text", "tokens") as progress:
        of_dev = functools.partial(base_at, crossed.whole, dev)
        arrays["dev"] = _at_all_places(of_dev, np.array([1, len(dev)]), N, progress)
    save_model(kept / "base.safetensors", crossed.whole, about={"seconds": time.perf_counter() - begin})
    save_arrays(kept / "base.npz", arrays)


def _read(crossed: CrossFit, places: np.ndarray) -> np.ndarray:
    """The base at places in any order and shape."""
    return crossed.base_at(places.reshape(-1)).reshape(*places.shape, -1)


def _at_all_places(log_p: LogP, edges: np.ndarray, N: int, progress: Any) -> Float[np.ndarray, "L N"]:
    """At every place of a text but the first, in half precision; a fold is read at once where it has room."""
    out = np.zeros((int(edges[-1]), N), np.float16)
    for begin, end in pairwise(edges.tolist()):
        for first in range(begin, end, max(1, _cells_at_once // N)):
            places = np.arange(first, min(first + max(1, _cells_at_once // N), end))
            out[places] = log_p(places)
            progress(int(places[-1]), len(out))
    return out

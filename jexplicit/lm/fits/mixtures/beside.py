"""Counts beside any model: the prediction of a model trained anywhere as one more row of a mixture.

    logits = sum_g a_g row_g + b log p_other,        a, b by Newton's method on a text that neither has seen

First both predictions are weighed by two numbers, `α log p + β log p_other`, and from there each row has its own exponent. So
on that text the loss is at most that of the better of the two. Probabilities add up to one as those of every model here.

Source: log-linear interpolation, Klakow 1998.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Integer

from jexplicit.data.contexts import check_stream, check_token_ids
from jexplicit.data.tokenizers import Progress
from jexplicit.lm.core.model import LanguageModel, unit_exponents
from jexplicit.lm.core.model_row import GivenRow, ModelRow
from jexplicit.lm.core.past import read_text
from jexplicit.lm.fits.mixtures.ngram_mixture import fit_rows, held_out_rows, prediction_row
from jexplicit.lm.rows.past.adaptive import AdaptiveRows
from jexplicit.lm.tables.placing import Positions

_least = -80.0  # nats: log 0 has no exponent


def beside(
    model: LanguageModel,
    other: Any,
    stream: Integer[np.ndarray, " L"],
    *,
    part: slice | Integer[np.ndarray, " m"] = slice(None),
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """A model of rows with the prediction of another one as a further row, weights fitted on a held-out text.

    Args:
        model: of counted rows: a mixture, an adaptive one, an n-gram model.
        other: any LanguageModel with the same tokens, which becomes a part of the new one; or [M, N] log-probabilities that a
            model gave to all tokens at the M predictions of the text, in nats: for another text see `with_given`.
        stream: [L] token ids of a text that neither has seen.
        part: which of its predictions are fitted on, in their order; what stands before them is read.
        mesh: devices to share the work.
        progress: called with (passes done, most passes).

    Raises:
        ValueError: models of different vocabularies, an adaptive model as the other one, log-probabilities of another shape, or
            that do not add up to one.

    Example::

        mixed = jexplicit.beside(mixture.model, log_p, stream)  # [M, N] of a model in another framework
        jexplicit.evaluate(jexplicit.with_given(mixed, log_p_of_test, test), test)
    """
    check_stream(stream)
    check_token_ids(stream, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    row = _row_of(model, other, stream)
    text = read_text(np.asarray(stream), model.radius, eos=model.eos)
    m = np.arange(len(text.Y))[part]
    read = held_out_rows((*model.rows, row), text, m, model.selectors)
    other_row = read._replace(names=("other",), tables=read.tables[-1:], positions=_last_row(read.positions))
    read = read.with_selectors() if model.selectors else read
    alone = _with_row(model, np.asarray(model.exponents))
    both = prediction_row(read, alone, mesh).beside(other_row)
    alpha, beta = fit_rows(both, start=np.array([0.5, 0.5]), ridge=0.0, mesh=mesh).exponents
    start = _weighed(model, alpha, beta)
    fitted = fit_rows(read, start=start, mesh=mesh, progress=progress)
    both = replace(model, rows=(*model.rows, row), exponents=fitted.exponents.astype(np.float32))
    if model.curvature is None:
        return both
    return replace(both, curvature=(len(m) * fitted.hessian).astype(np.float32))  # its exponents go on being fitted


def with_model(model: LanguageModel, other: LanguageModel, alpha: float = 1.0, beta: float = 1.0) -> LanguageModel:
    """`α log p + β log p_other`, normalised, as one model: the first one's exponents times α, and the other as a row.

    No exponent of it goes on being fitted: that needs the curvature that `beside` finds.

    Raises:
        ValueError: models of different vocabularies, or an adaptive model as the other one.
    """
    rows = (*model.rows, _row_of(model, other, np.zeros(0, np.int32)))
    return replace(model, rows=rows, exponents=_weighed(model, alpha, beta).astype(np.float32), curvature=None)


def with_given(model: LanguageModel, log_p: Any, stream: Integer[np.ndarray, " L"]) -> LanguageModel:
    """A model of `beside` with the log-probabilities that the other one gave at the predictions of another text.

    Raises:
        ValueError: a model without such a row; log-probabilities of another shape, or that do not add up to one.
    """
    if not isinstance(model.rows[-1], GivenRow):
        raise ValueError("no row of given log-probabilities: the other model is a part of this one, which scores any text")
    return replace(model, rows=(*model.rows[:-1], _row_of(model, log_p, stream)))


def _row_of(model: LanguageModel, other: Any, stream: np.ndarray) -> Any:
    """The other model as a row."""
    N = model.vocab_size
    if isinstance(other, LanguageModel):
        if any(isinstance(kind, AdaptiveRows) for kind in other.rows):
            raise ValueError("a model that counts as it reads, as the other one: give it first, and the one beside it second")
        if other.vocab_size != N or other.eos != model.eos:
            raise ValueError(
                f"a model of {other.vocab_size} tokens (eos {other.eos}) beside one of {N} (eos {model.eos}): both need the "
                "same tokenizer, and both must predict the end of a document or neither"
            )
        return ModelRow(other)
    text = read_text(np.asarray(stream), 1, eos=model.eos)
    other = np.asarray(other)
    if other.shape != (len(text.Y), N):
        raise ValueError(
            f"log-probabilities of shape {other.shape} for {len(text.Y)} predictions of {N} tokens: give "
            f"[{len(text.Y)}, {N}], in the order of the text"
        )
    off = float(np.abs(np.logaddexp.reduce(other.astype(np.float64), axis=1)).max(initial=0))
    if not off < 1e-2:
        raise ValueError(f"probabilities that add up to e^{off:.2g} or its inverse: give log p in nats, log_softmax of logits")
    log_p = np.zeros((len(stream), N), np.float32)
    log_p[text.past.places] = np.maximum(other, _least)
    return GivenRow(log_p)


def _last_row(positions: Positions) -> Positions:
    """The row that is read last, with one exponent."""
    rows = positions.rows[:, -1:]
    return Positions(rows, np.zeros_like(rows))


def _weighed(model: LanguageModel, alpha: float, beta: float) -> Float[np.ndarray, " S_more"]:
    """The exponents of a model times α, and β for one more row."""
    exponents = alpha * _with_row(model, np.asarray(model.exponents)).astype(np.float64)
    exponents[len(unit_exponents(model.rows))] = beta
    return exponents


def _with_row(model: LanguageModel, exponents: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S_more"]:
    """The exponents of a model with one more row that weighs nothing: a 0 after those of all rows, and zeros after those of
    each selector."""
    own, G = len(unit_exponents(model.rows)), len(model.names)
    sizes = [1, *(selector.size for selector in model.selectors)]
    parts = np.split(exponents, own + G * np.cumsum([0, *sizes[1:-1]])) if model.selectors else [exponents]
    zeros = [np.zeros(size, exponents.dtype) for size in sizes]
    return np.concatenate([array for pair in zip(parts, zeros, strict=True) for array in pair])

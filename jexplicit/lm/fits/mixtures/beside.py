"""Counts beside any model: the prediction of a model trained anywhere as one more row of a mixture.

    logits = sum_g a_g row_g + b log p_other,        a, b by Newton's method on a text that neither has seen

First both predictions are weighed by two numbers, `α log p + β log p_other`, and from there each row has its own exponent. So
on that text the loss is at most that of the better of the two. Probabilities add up to one as those of every model here.

Source: log-linear interpolation, Klakow 1998.
"""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Integer

from jexplicit.data.contexts import check_stream, check_token_ids
from jexplicit.data.tokenizers import Progress
from jexplicit.lm.core.model import LanguageModel, exponents_per_row
from jexplicit.lm.core.model_row import GivenRow, ModelRow
from jexplicit.lm.core.past import EncodedText, read_text
from jexplicit.lm.evaluation import log_distributions
from jexplicit.lm.fits.mixtures.ngram_mixture import HeldOutRows, fit_rows, held_out_rows
from jexplicit.lm.rows.past.adaptive import AdaptiveRows
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.tables.storage import Dense

_least = -80.0  # nats: log 0 has no exponent


def beside(
    model: LanguageModel,
    other: Any,
    stream: Integer[np.ndarray, " L"],
    *,
    part: slice = slice(None),
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """A model of rows with the prediction of another one as a further row, weights fitted on a held-out text.

    Args:
        model: of counted rows: a mixture, an adaptive one, an n-gram model.
        other: any LanguageModel with the same tokens, which becomes a part of the new one; or [M, N] log-probabilities that a
            model gave to all tokens at the M predictions of the text, in nats: for another text see `with_given`.
        stream: [L] token ids of a text that neither has seen.
        part: which of its predictions are fitted on; what stands before them is read.
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
    both = _predictions((ModelRow(model), row), text, m, mesh)
    alpha, beta = fit_rows(both, start=np.array([0.5, 0.5]), ridge=0.0, mesh=mesh).exponents
    read = held_out_rows((*model.rows, row), text, m, model.selectors)
    read = read.with_selectors() if model.selectors else read
    start = alpha * _with_row(model, np.asarray(model.exponents, np.float64), 0.0)
    start[_own(model)] = beta
    exponents = fit_rows(read, start=start, mesh=mesh, progress=progress).exponents
    return LanguageModel((*model.rows, row), exponents.astype(np.float32), model.features, model.eos, model.selectors)


def with_given(model: LanguageModel, log_p: Any, stream: Integer[np.ndarray, " L"]) -> LanguageModel:
    """A model of `beside` with the log-probabilities that the other one gave at the predictions of another text.

    Raises:
        ValueError: a model without such a row; log-probabilities of another shape, or that do not add up to one.
    """
    if not isinstance(model.rows[-1], GivenRow):
        raise ValueError("no row of given log-probabilities: the other model is a part of this one, which scores any text")
    rows = (*model.rows[:-1], _row_of(model, log_p, stream))
    return LanguageModel(rows, model.exponents, model.features, model.eos, model.selectors)


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


def _predictions(rows: tuple[Any, ...], text: EncodedText, m: np.ndarray, mesh: Mesh | None) -> HeldOutRows:
    """Each row's prediction at some positions, with one exponent each."""
    past, one = text.past.take(m), np.arange(len(m))[:, None]
    tables = []
    for row in rows:
        if isinstance(row, GivenRow):
            tables.append(Dense(row.log_tables(text.X[m], past)[0][0]))
        else:
            tables.append(Dense(log_distributions(row.model, text.X[m][:, : row.radius], past=past, mesh=mesh)))
    places = Positions(np.repeat(one, len(rows), axis=1), np.tile(np.arange(len(rows)), (len(m), 1)))
    return HeldOutRows(tuple(f"model {n}" for n in range(len(rows))), tuple(tables), places, text.Y[m])


def _own(model: LanguageModel) -> int:
    """Where the exponent of the further row stands: after those of all rows, before those of the selectors."""
    return sum(sum(exponents_per_row(kind)) for kind in model.rows)


def _with_row(model: LanguageModel, exponents: Float[np.ndarray, " S"], own: float) -> Float[np.ndarray, " S_more"]:
    """The exponents of a model with one more row, whose own is given; the selectors' additions to it are 0."""
    first, G = _own(model), len(model.names)
    parts, begin = [exponents[:first], np.array([own])], first
    for selector in model.selectors:
        parts += [exponents[begin : begin + G * selector.size], np.zeros(selector.size)]
        begin += G * selector.size
    return np.concatenate(parts)

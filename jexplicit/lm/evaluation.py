"""The loss of a language model on a text, for every kind of model.

A model of contexts alone costs one partition function for every *different* context, `sum_ctx n(ctx) log Z(ctx)` less the
logits of the targets, and at K = 1 nothing but the counts. A counted model and networks are read position by position.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Integer
from scipy.sparse import coo_array

from jexplicit.counts.pairs import count_sparse
from jexplicit.counts.tables import Counts, SparseCounts, check_stream
from jexplicit.data.contexts import PAD, check_token_ids, distinct_contexts
from jexplicit.data.shards import Stream
from jexplicit.data.tokenizers import Progress
from jexplicit.lm.core.model import LanguageModel, TableRows
from jexplicit.lm.core.past import EncodedText as EncodedText
from jexplicit.lm.core.past import Past as Past
from jexplicit.lm.core.past import contexts_at, draw_sample, sampled_positions
from jexplicit.lm.core.past import histories as histories
from jexplicit.lm.core.past import read_text as read_text
from jexplicit.lm.core.tables import map_contexts
from jexplicit.lm.counted.combine import distributions
from jexplicit.lm.counted.use import AnyModel, Counted, distributions_at, losses_of, score_stream
from jexplicit.lm.rows.network import SequenceRows
from jexplicit.runs.devices import check_threads

_block = 1 << 22  # tokens that are checked at once


class Evaluation(NamedTuple):
    """The loss of a model on a text: summed negative log-likelihood and predictions."""

    nll: float
    positions: int

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood, nats per position."""
        return self.nll / self.positions

    @property
    def perplexity(self) -> float:
        """`exp(nll / positions)`."""
        return float(np.exp(self.loss))


def evaluate(
    model: AnyModel,
    stream: Stream,
    *,
    counts: Counts | SparseCounts | None = None,
    sample: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The loss of any language model on a token stream.

    At K = 1 it comes from the stream's counts alone and is always exact. Beyond, a seeded sample of positions bounds the time.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        counts: the stream's counts, if known; used at K = 1.
        sample: how many positions to draw without replacement; default, all of them. Of a model that counts as it reads, they
            are the first ones.
        progress: called with (contexts done, contexts in all), or positions.

    Raises:
        ValueError: no position to predict, a token id that the model does not have, counts of another text, a sample below 1,
            or a loss that is NaN.
        RuntimeError: a process that was forked after JAX had started; a counted model reads there unless it is adaptive.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.core.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> round(evaluate(model, np.array([0, 1, 2, 0])).perplexity, 3)  # p = 1/4 for both tokens
        4.0

    Source: paper, Eq. 1; perplexity is `exp(L / M)`, Sec. 4.
    """
    _check_model(model)
    if sample is not None and (sample < 1 or sample % 1):
        raise ValueError(f"a sample of {sample} positions: draw a whole number of at least 1, or None for all")
    if isinstance(model, Counted):
        losses = losses_of(model, np.asarray(stream[:]), sample=sample, seed=seed, progress=progress)
        nll, positions = losses.sum(), len(losses)
    else:
        check_threads()
        X, Y, times, past = _positions_of(model, stream, counts, sample, seed)
        if not len(Y):
            raise ValueError("no position to predict: the text has no tokens")
        n, kind = np.ones(len(Y), np.int64) if times is None else times, model.rows
        if isinstance(kind, TableRows) and not kind.normalised:
            distinct, often = distinct_contexts(X, times, ordered=model.ordered)
            log_Z = kind.log_partition(distinct, mesh=mesh, progress=progress).astype(np.float64)
            nll = np.sum(often * log_Z) - np.sum(n * kind.target_logits(X, Y, mesh=mesh).astype(np.float64))
        else:
            log_p = log_probabilities(model, X, Y, past=past, mesh=mesh, progress=progress)
            nll = -np.sum(n * log_p.astype(np.float64))
        positions = n.sum(dtype=np.int64)
    if np.isnan(nll):
        raise ValueError("a loss that is NaN: the model has rows with NaN or with -inf alone; fit it from smoothed counts")
    return Evaluation(float(nll), int(positions))


def score(
    model: AnyModel, stream: np.ndarray, *, separate: bool = False, mesh: Mesh | None = None, progress: Progress | None = None
) -> Float[np.ndarray, " M"]:
    """`log p` of every prediction of a text given its context, in nats.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        separate: score each document as if it were the only one; otherwise models of the past see the documents before it.

    Raises:
        ValueError: a malformed stream, or a token id that the model does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.core.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> np.exp(score(model, np.array([0, 1, 2, 0]))).round(2).tolist()
        [0.25, 0.25]
    """
    _check_model(model)
    check_stream(stream)
    check_token_ids(stream, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    if isinstance(model, Counted):
        return score_stream(model, stream, separate=separate, progress=progress)
    text = read_text(stream, model.radius, eos=model.eos)
    past = text.past.within_documents() if separate else text.past
    return log_probabilities(model, text.X, text.Y, past=past, mesh=mesh, progress=progress)


def _check_model(model: Any) -> None:
    if not hasattr(model, "vocab_size"):
        raise ValueError(f"a {type(model).__name__} instead of a model: pass the `model` of a TextModel")


def log_probabilities(
    model: LanguageModel,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    past: Past | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats.

    Args:
        X: [M, K] contexts, nearest token first.
        past: where the positions stand in their text, for models that read the past.

    Raises:
        ValueError: contexts of another width, a token id that the model does not have, no past where one is needed.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.core.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> np.exp(log_probabilities(model, np.array([[0], [1]]), np.array([0, 2]))).round(2).tolist()
        [0.5, 0.25]
    """
    check_threads()
    check_positions(model, X, Y)
    if not len(Y):
        return np.zeros(0, np.float32)
    kind = model.rows
    if isinstance(kind, TableRows):
        logits = kind.target_logits(X, Y, mesh=mesh)
        return logits if kind.normalised else logits - kind.log_partition(X, mesh=mesh, progress=progress)
    if isinstance(kind, SequenceRows):
        past = _known(past)
        return kind.stream_log_probabilities(past.stream, mesh=mesh, progress=progress)[past.places - 1]
    X_and_Y = np.concatenate([X.astype(np.int32), Y.astype(np.int32)[:, None]], axis=1)
    return map_contexts(_log_p_of_target, model, X_and_Y, mesh=mesh, progress=progress)


def log_distributions(
    model: AnyModel, X: Integer[np.ndarray, "M K"], *, past: Past | None = None, mesh: Mesh | None = None
) -> Float[np.ndarray, "M N"]:
    """`log p(. | x_m)` of every position, over all tokens, in nats.

    Args:
        X: [M, K] contexts, nearest token first.
        past: where the positions stand in their text, for models that read the past.

    Raises:
        ValueError: those of `log_probabilities`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.core.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> np.exp(log_distributions(model, np.array([[0]]))).round(2).tolist()
        [[0.5, 0.25, 0.25]]
    """
    if isinstance(model, Counted):
        if past is None:
            raise ValueError("a counted model reads the text before: say where the positions stand (past)")
        return distributions_at(model, past.stream, past.places, separate=past.starts is not None)
    check_threads()
    Y = np.zeros(len(X), np.int32) if past is None else past.stream[past.places]
    check_positions(model, X, Y)
    if not len(X):
        return np.zeros((0, model.vocab_size), np.float32)
    if isinstance(model.rows, SequenceRows):
        past = _known(past)
        return model.rows.stream_distributions(past.stream, past.places, mesh=mesh)
    return map_contexts(_log_p, model, X, mesh=mesh)


def _known(past: Past | None) -> Past:
    """Places of positions in their text, for a network that reads a window."""
    if past is None:
        raise ValueError("a network that reads a window of the text: say where the positions stand (past)")
    return past


def check_positions(model: LanguageModel, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuse positions that a model has no answer for.

    Raises:
        ValueError: contexts of another width, or a token id that the model does not have.
    """
    if X.ndim != 2 or X.shape[1] != model.radius or len(X) != len(Y):
        raise ValueError(
            f"contexts of shape {X.shape} for {len(Y)} targets and a model of radius {model.radius}: "
            f"pass [{len(Y)}, {model.radius}], the nearest token first (jexplicit.contexts(stream, {model.radius}))"
        )
    for ids in (X, Y) if len(Y) else ():
        if ids.dtype.kind not in "iu":
            raise ValueError(f"token ids of {ids.dtype}: pass integers")
        check_token_ids(ids, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")


def _positions_of(
    model: LanguageModel, stream: Stream, counts: Counts | SparseCounts | None, sample: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Past | None]:
    """Contexts, targets, their frequencies (None for once) and places of a text."""
    if model.history:
        check_stream(stream)
        text = read_text(np.asarray(stream[:]), model.radius, eos=model.eos)
        m = draw_sample(len(text.Y), sample, seed)
        return text.X[m], text.Y[m], None, text.past.take(m)
    if model.radius == 1 and isinstance(model.rows, TableRows):
        N = model.vocab_size
        C: Any = coo_array((counts or count_sparse(stream, radius=1, vocab_size=N))[0])
        if counts:
            blocks = (np.asarray(stream[a : a + _block]) for a in range(1, len(stream), _block))
            f = sum((np.bincount(block, minlength=N) for block in blocks), np.zeros(N, np.int64))
            if C.shape != (N, N) or not np.array_equal(f, C.sum(axis=0)):
                raise ValueError(
                    f"counts of {C.sum(dtype=np.int64)} positions and vocabulary {C.shape[0]} for a stream of "
                    f"{len(stream) - 1} positions and a model of {N} tokens: pass the counts of this stream, or none"
                )
        wanted = np.flatnonzero(model.eos | (C.col != PAD))
        return C.row[wanted, None], C.col[wanted], C.data[wanted], None
    X, Y = sampled_positions(stream, model.radius, model.vocab_size, eos=model.eos, sample=sample, seed=seed)
    return X, Y, None, None


def _log_p_of_target(model: LanguageModel, x_and_y: Integer[Array, " K_plus_1"]) -> Float[Array, ""]:
    return jax.nn.log_softmax(model.logits(x_and_y[:-1]))[x_and_y[-1]]


def _log_p(model: LanguageModel, x: Integer[Array, " K"]) -> Float[Array, " N"]:
    return jax.nn.log_softmax(model.logits(x))


@distributions.register(LanguageModel)
def _beside_counted(model: Any, stream: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The terms that another model adds to context mixing (jexplicit.lm.counted.combine)."""
    return log_distributions(model, contexts_at(stream, places, model.radius), past=Past(stream, places))

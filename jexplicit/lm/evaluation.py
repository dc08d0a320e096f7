"""How good a model is, and why it says what it says.

Perplexity, the paper's scaling assumption, and the attribution of a prediction to its context tokens, which is exact
because the logits of a softmax layer are a sum over them.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts.dense import Counts, count
from jexplicit.counts.sparse import count_sparse
from jexplicit.counts.stream import check_stream, windows
from jexplicit.data.contexts import PAD, check_token_ids, distinct_contexts, window_contexts
from jexplicit.data.shards import Stream
from jexplicit.lm.explicit import TokenTables, with_targets
from jexplicit.lm.softmax import (
    Tables,
    log_partition,
    logits,
    negative_log_likelihood,
    negative_log_likelihood_from_counts,
    target_logits,
)
from jexplicit.solvers.explicit import column_sums

_window = 1 << 22  # positions


class Evaluation(NamedTuple):
    """The loss of a model on a text: summed negative log-likelihood in nats, over this many predictions."""

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


@runtime_checkable
class ContextModel(Protocol):
    """What a loss by distinct contexts asks of a model."""

    @property
    def radius(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def eos(self) -> bool: ...


class Scaling(NamedTuple):
    """The least-squares line `log mean = slope * log f + intercept` of the scaling assumption, and its correlation."""

    slope: float
    intercept: float
    correlation: float


class Attribution(NamedTuple):
    """Why each of M tokens was predicted as it was.

    logits: [M, K] what the k-th context token adds to the token's logit, nats; their sum is the logit.
    evidence: [M, K] the same less its mean under the model's prediction: how much the context token speaks for this token
        rather than for the others. Unlike the bare logits it does not change when a row of a table is shifted.
    log_probability: [M] nats.
    """

    logits: Float[np.ndarray, "M K"]
    evidence: Float[np.ndarray, "M K"]
    log_probability: Float[np.ndarray, " M"]


def evaluate(
    model: TokenTables,
    stream: Stream,
    *,
    counts: Counts | None = None,
    sample: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """The loss of a model on a token stream.

    At K = 1 it comes from the stream's counts alone and is always exact. Beyond, every different context costs one
    partition function, and a seeded sample of positions bounds the time.

    Args:
        model: tables.
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        counts: the stream's counts, if they are at hand.
        sample: how many positions to draw without replacement; default, all of them.
        seed: of the sample.
        mesh: devices to share the work.
        progress: called with (contexts done, contexts in all).

    Raises:
        ValueError: no position to predict, or a token id that the model does not have.

    Source: paper, Eq. 1; perplexity is `exp(L / M)`, Sec. 4.
    """
    if model.radius == 1:
        counts = counts or count(stream, radius=1, vocab_size=model.vocab_size, mesh=mesh)
        C = with_targets(counts[0], eos=model.eos)
        return Evaluation(negative_log_likelihood_from_counts(model.tables[0], C), int(C.sum(dtype=np.int64)))
    X, Y = sampled_positions(stream, model.radius, model.vocab_size, eos=model.eos, sample=sample, seed=seed)
    return Evaluation(negative_log_likelihood(model.tables, X, Y, ordered=model.ordered, mesh=mesh, progress=progress), len(Y))


def evaluate_by_contexts(
    model: ContextModel,
    stream: Stream,
    log_partition: Callable[[np.ndarray], np.ndarray],
    target_logits: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """The loss of any model of logits on a token stream: `sum_x n(x) log Z(x)` over distinct contexts less target logits.

    At K = 1 the distinct pairs are counted, in memory of their number alone, and the loss is always exact.

    Args:
        model: its sizes.
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        log_partition: `contexts [M, K] -> [M]`, nats.
        target_logits: `(contexts [M, K], tokens [M]) -> [M]`, nats.
        sample: how many positions to draw without replacement; default, all of them, and always all at K = 1.
        seed: of the sample.

    Raises:
        ValueError: no position to predict, or a token id that the model does not have.

    Source: paper, Eq. 1; perplexity is `exp(L / M)`, Sec. 4.
    """
    if model.radius == 1:
        C = count_sparse(stream, radius=1, vocab_size=model.vocab_size)[0].tocoo()
        wanted = np.flatnonzero(model.eos | (C.col != PAD))
        X, Y, times = C.row[wanted, None], C.col[wanted], C.data[wanted]
        tokens, which = np.unique(X[:, 0], return_inverse=True)
        distinct, n = tokens[:, None], np.bincount(which, times)
    else:
        X, Y = sampled_positions(stream, model.radius, model.vocab_size, eos=model.eos, sample=sample, seed=seed)
        times = np.ones(len(Y), np.int64)
        distinct, n = distinct_contexts(X, ordered=model.ordered)
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    nll = n @ log_partition(distinct).astype(np.float64) - times @ target_logits(X, Y).astype(np.float64)
    return Evaluation(float(nll), int(times.sum(dtype=np.int64)))


def sampled_positions(
    stream: Stream, K: int, vocab_size: int, *, eos: bool = False, sample: int | None = None, seed: int = 0
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of a stream, or of a seeded sample of its positions, drawn without replacement.

    The stream is read by windows; only what is drawn is kept.

    Raises:
        ValueError: a token id that the vocabulary does not have.

    Example:
        >>> X, Y = sampled_positions(np.array([0, 5, 6, 0, 7, 0]), 2, 8, sample=2)
        >>> X.shape, Y.shape
        ((2, 2), (2,))
    """
    check_stream(stream)

    def parts():
        return windows(stream, 1, len(stream), radius=K, span=_window)

    M = 0
    for tokens in parts():
        check_token_ids(tokens, vocab_size, f"and a model of {vocab_size}: use the model's own tokenizer")
        M += len(tokens) - K if eos else np.count_nonzero(tokens[K:] != PAD)
    if sample is None or sample >= M:
        drawn = np.arange(M)
    else:
        drawn = np.sort(np.random.default_rng(seed).choice(M, sample, replace=False, shuffle=False))
    X, Y, before = [], [], 0
    for tokens in parts():
        x, y = window_contexts(tokens, K, eos=eos)
        own = drawn[np.searchsorted(drawn, before) : np.searchsorted(drawn, before + len(y))] - before
        X.append(x[own])
        Y.append(y[own])
        before += len(y)
    return np.concatenate(X), np.concatenate(Y)


def log_probabilities(
    model: TokenTables,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats."""
    return target_logits(model.tables, X, Y) - log_partition(model.tables, X, progress=progress)


def attribute(model: TokenTables, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]) -> Attribution:
    """The exact contribution of each context token to each prediction.

    Args:
        model: tables.
        X: [M, K] contexts, nearest token first.
        Y: [M] the predicted tokens.
    """
    parts = _attribute(model.tables, X.astype(np.int32), Y.astype(np.int32))
    return Attribution(*(np.asarray(part) for part in parts))


def log_mean_cooccurrences(
    model: TokenTables, F: tuple[Array, ...], X: Integer[np.ndarray, "M K"], n: Int[np.ndarray, " M"] | None = None
) -> Float[np.ndarray, " N"]:
    """`log <E_G[F_i]>`: the K-power mean, over contexts, of the geometric mean of a context's co-occurrences with i.

    `<E_G[F_i]> = ((1/M) sum_m prod_d F[d, i]^H[m, d])^(1/K)`. As the logits are `log prod_d F[d, i]^H[m, d]` less
    `(K - 1) log(sum_d F[d, i])`, it follows from the model's own tables.

    Args:
        model: tables solved from F.
        F: the co-occurrence blocks.
        X: [M, K] contexts to average over.
        n: [M] how often each counts; default, once.

    Returns:
        [N] natural logarithms; the paper assumes them to be log f_i plus a constant.

    Source: paper, Eq. 11-14 and Fig. 1 left.
    """
    K = model.radius
    distinct, n = distinct_contexts(X, ordered=model.ordered) if n is None else (X, n)
    log_weights = np.log(n / n.sum())
    block = 512
    padding = -len(distinct) % block
    distinct = np.pad(distinct.astype(np.int32), ((0, padding), (0, 0))).reshape(-1, block, K)
    log_weights = np.pad(log_weights, (0, padding), constant_values=-np.inf).reshape(-1, block)
    log_power_mean = _log_mean_exp_logits(model.tables, distinct, log_weights)
    return np.asarray((log_power_mean + (K - 1) * jnp.log(column_sums(F))) / K)


def fit_scaling(f: Int[np.ndarray, " N"], log_means: Float[np.ndarray, " N"]) -> Scaling:
    """The line through `(log f_i, log <E_G[F_i]>)` by least squares, over outputs that were seen.

    The explicit solution assumes slope 1 (paper, Sec. 2.2).

    Example:
        >>> fit_scaling(np.array([1, 10, 100, 0]), np.log(np.array([2.0, 20.0, 200.0, 7.0]))).slope.__round__(6)
        1.0
    """
    seen = f > 0
    x, y = np.log(f[seen]), log_means[seen].astype(np.float64)
    slope, intercept = np.polyfit(x, y, 1)
    return Scaling(float(slope), float(intercept), float(np.corrcoef(x, y)[0, 1]))


@jax.jit
def _attribute(tables: Tables, X: Array, Y: Array) -> tuple[Array, Array, Array]:
    def one(x_and_y):
        x, y = x_and_y
        rows = jnp.stack([table[x[k]] for k, table in enumerate(tables)])
        log_p = jax.nn.log_softmax(rows.sum(axis=0))
        return rows[:, y], rows[:, y] - rows @ jnp.exp(log_p), log_p[y]

    return jax.lax.map(one, (X, Y), batch_size=16)


@jax.jit
def _log_mean_exp_logits(tables: Tables, X: Array, log_weights: Array) -> Array:
    """`log sum_m w_m exp(logits_m)` per output, over blocks of contexts."""

    def add_block(total, block):
        x, log_w = block
        terms = jax.vmap(functools.partial(logits, tables))(x) + log_w[:, None].astype(total.dtype)
        return jnp.logaddexp(total, jax.nn.logsumexp(terms, axis=0)), None

    start = jnp.full(tables[0].shape[1], -jnp.inf, tables[0].dtype)
    return jax.lax.scan(add_block, start, (X, log_weights))[0]

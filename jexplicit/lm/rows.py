"""Kinds of rows, the parts of a language model: explicit, n-grams, a network's."""

import functools
from itertools import pairwise, starmap
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer
from scipy.sparse import csr_array, issparse
from scipy.special import xlogy

from jexplicit.counts import (
    ContextLevel,
    Counts,
    SparseCounts,
    count_contexts,
    counted_radius,
    merge_offsets,
    quotient_and_rest,
    starts_of,
    sum_runs,
)
from jexplicit.data.streams import PAD
from jexplicit.lm.core.model import (
    NO_TOKEN,
    LanguageModel,
    Sparse,
    TableRows,
    find_entry,
    pytree,
    sparse_rows,
    static,
    token_model,
)
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import (
    counts_of_counts,
    discounts_of,
    noise_model,
    noisy_counts,
    noisy_rows,
    unigram,
    with_unseen_outputs,
)
from jexplicit.solvers.explicit import explicit_solution

FLOOR = 1e-9  # the count in the place of 0, at the optimum
_pairs_per_block = 1 << 20
_overlaps = 4  # windows that read a token of a text


def explicit_language_model(
    counts: Counts | SparseCounts,
    *,
    features: Features,
    radius: int | None = None,
    eos: bool = False,
    noise: bool = True,
    dtype: Any = jnp.float32,
) -> LanguageModel:
    """A single-layer language model in closed form: counts, F, U, then Ũ.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.count; of sparse ones tables are sparse, and probabilities are the same.
        features: "sum" (one table for all offsets) or "cat" (a table per offset); the same at K = 1.
        noise: the paper's noise model; without it a pair that never occurred has the logit -inf, and tables are dense.

    Raises:
        ValueError: a radius that was not counted; other features than the two.

    Example:
        >>> from jexplicit.counts import count
        >>> model = explicit_language_model(count(np.array([0, 1, 2, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> model.radius, model.vocab_size
        (2, 3)

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    options: Any = {"features": features, "radius": radius, "eos": eos, "dtype": dtype}
    sparse = len(counts) and issparse(counts[0])
    tables = _sparse_tables(counts, **options) if sparse else explicit_blocks(cast(Counts, counts), noise=noise, **options)
    return token_model(tables * ((radius or len(counts)) // len(tables)), features, eos)


def explicit_blocks(
    counts: Counts,
    *,
    features: Features,
    radius: int | None = None,
    eos: bool = False,
    noise: bool = True,
    dtype: Any = jnp.float32,
    read: bool = True,
) -> tuple[Float[Array, "N N"], ...]:
    """The dense tables Ũ = E U, or without `read` U below the noise."""
    K = _check_features(counts, features, radius)
    of_noise, f = noise_model(token_counts(counts)) if noise else None, target_counts(counts, eos=eos).astype(dtype)
    seen = (C.astype(dtype) if of_noise is None else noisy_counts(C.astype(dtype), of_noise) for C in counts[:K])
    F = [with_unseen_outputs(F_k, f) for F_k in seen]
    U = explicit_solution((functools.reduce(jnp.add, F),) if features == "sum" else tuple(F), K)
    return U if of_noise is None or not read else tuple(noisy_rows(block, of_noise) for block in U)


def _check_features(counts: Counts | SparseCounts, features: str, radius: int | None) -> int:
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    return counted_radius(counts, radius)


def _sparse_tables(counts: Any, *, features: Features, radius: int | None, eos: bool, dtype: Any) -> tuple[Sparse, ...]:
    """The same from sparse counts, up to a constant of the row.

    A pair never seen has the co-occurrence `p_j b_i`, `b = (1 - q)ᵀ C`, and one that was seen `exp(δ[j, i])` times as much:

        δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i)),     c = (K - 1)/K log colsum F
        Ũ[j, i] = (log b_i - c_i) + (1 - q_j) (pᵀδ)_i + q_j δ[j, i]
    """
    K, (q, one_minus_q, p) = _check_features(counts, features, radius), noise_model(token_counts(counts))
    targets: Any = tuple(C if eos else _without_column(C, PAD) for C in counts[:K])
    blocks = targets if features == "cat" else merge_offsets(targets)
    column: Any = sum(C.sum(axis=0, dtype=np.int64) for C in blocks)  # that of F too: noise moves nothing to another output
    c, never = (K - 1) / K * np.log(np.maximum(column, 1)), column == 0
    F_unseen = []  # the mean co-occurrences of each token, of outputs never seen
    for C in blocks:
        share = C.sum(axis=1, dtype=np.float64) / int(targets[0].sum())
        F_unseen.append(q * share + p * (one_minus_q @ share))
    c_unseen = (K - 1) / K * np.log(sum(F.sum() for F in F_unseen))
    tables = []
    for C, F in zip(blocks, F_unseen, strict=True):
        b, cells, ratio = one_minus_q @ C, np.diff(C.indptr), np.log(F / p)
        delta = csr_array((np.log1p(C.data * np.repeat(q / p, cells) / b[C.indices]), C.indices, C.indptr), shape=C.shape)
        values = (delta.data * np.repeat(q, cells)).astype(dtype)
        base = np.where(never, -np.inf, np.log(np.where(never, 1, b)) - c)
        unseen = q * ratio + one_minus_q * (p @ ratio) - c_unseen if never.any() else None  # less the constant of the row
        over = base, p @ delta, one_minus_q, unseen
        tables.append(sparse_rows(C.indptr.astype(np.int32), C.indices, values, C.shape[1], *over))
    return tuple(tables)


def _without_column(C: csr_array, i: int) -> csr_array:
    kept = C.indices != i
    indptr = np.concatenate([[0], np.cumsum(kept)])[C.indptr]
    return csr_array((C.data[kept], C.indices[kept], indptr.astype(C.indptr.dtype)), shape=C.shape)


def unigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline without context: log relative frequencies of targets."""
    counted_radius(counts, 1)  # checks them
    log_p = np.log(unigram(target_counts(counts, eos=eos).astype(np.float64)))
    return LanguageModel(BackOffChain(jnp.asarray(log_p, jnp.float32)), "none", eos)


def bigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline with one token of context: interpolated Kneser-Ney."""
    counted_radius(counts, 1)  # checks them
    C: Any = csr_array(counts[0]) if eos else _without_column(csr_array(counts[0]), PAD)
    level = ContextLevel(np.arange(C.shape[0]), C.indptr, C.indices, C.data)
    return LanguageModel(_kneser_ney_chain([level], C.shape[1], modified=False), "none", eos)


def bigram_optimum(C: Int[np.ndarray, "N N"], *, floor: float = FLOOR) -> tuple[Float[np.ndarray, "N N"], float]:
    """The optimum at K = 1, `log(C[j, i] / C(j))`, and its loss.

    The floor stands in the place of a count of 0; the summed loss is at most `N^2 * floor` above the infimum.
    """
    n = C.sum(axis=1, dtype=np.int64)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    loss = float(xlogy(n, n).sum() - sum(xlogy(row, row).sum() for row in C)) / int(n.sum())
    return np.log(np.maximum(C, floor)) - np.log(np.maximum(n, len(C) * floor))[:, None], loss


def token_counts(counts: Counts | SparseCounts) -> Int[np.ndarray, " N"]:
    """f: how often each token occurs in the stream, `<pad>` once per document."""
    return counts[0].sum(axis=0, dtype=np.int64)


def target_counts(counts: Counts | SparseCounts, *, eos: bool = False) -> Int[np.ndarray, " N"]:
    """f: the count of each target; `<pad>` only if document ends are predicted."""
    f = token_counts(counts)
    return f if eos else np.where(np.arange(len(f)) == PAD, 0, f)


def with_targets(C: np.ndarray, *, eos: bool = False) -> np.ndarray:
    """A table of counts without the column of document ends, unless they are predicted."""
    return C if eos else np.where(np.arange(C.shape[1]) == PAD, 0, C)


class Children(NamedTuple):
    """Contexts one token longer: `start[r] .. start[r+1] - 1` extend r."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


def context_numbers(children: tuple[Children, ...], context: Integer[Array, " K"]) -> Int[Array, " levels"]:
    """The number of the context at every level, -1 if absent: pure."""
    numbers = [context[0].astype(jnp.int32)]
    for n, level in enumerate(children, 1):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[n].astype(jnp.int32), most))
    return jnp.stack(numbers)


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model, each over that of a shorter context.

        row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),     log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

    base: [N] log of the distribution that the nearest token backs off to. children: how contexts are found, level by level.
    levels, log_gamma: rows and `log γ` of contexts of one token, of two, ...; zeros for a context that never occurred.
    """

    base: Any
    children: tuple[Children, ...] = ()
    levels: tuple[Sparse, ...] = ()
    log_gamma: tuple[Any, ...] = ()

    normalised = True
    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    radius = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    row_tables = property(lambda self: (jnp.asarray(self.base)[None], *self.levels))

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        return jnp.concatenate([none, context_numbers(self.children, context)]) if self.levels else none

    def entry(self, context, output):
        """`log p(output | context)`."""
        log_p = super().entry(context, output)
        for n, log_gamma in zip(self.index(context)[1:], self.log_gamma, strict=True):
            log_p += jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        return log_p


def smoothed_ngrams(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, vocab_size: int) -> BackOffChain:
    """The interpolated modified Kneser-Ney model of contexts and targets.

    The longest contexts have plain counts, shorter ones continuation counts `|{tokens t: C(h' t, i) > 0}|`.

    Source: Chen & Goodman 1999, Eq. 12 and 26 (interpolated) and Sec. 4; as additive logits, this project.
    """
    if not X.shape[1] or not len(Y):
        raise ValueError(f"{len(Y)} positions with contexts of {X.shape[1]} tokens: give at least one of each")
    return _kneser_ney_chain(count_contexts(X, Y, vocab_size), vocab_size, modified=True)


def _kneser_ney_chain(levels: list[ContextLevel], N: int, *, modified: bool) -> BackOffChain:
    """The smoothed rows of levels of contexts, and their weights γ; levels are consumed."""
    lower, small = unigram(np.bincount(levels[0].outputs, minlength=N)), np.uint16 if N <= 1 << 16 else np.int32
    children, rows, log_gammas, shorter, P = [], [], [], levels[0], lower
    while levels:
        level = levels.pop(0)  # and so no level is kept for longer than it is needed
        if (E := len(level.outputs)) >= 2**31:
            raise ValueError(f"{E} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
        if rows:
            numbers, ids = quotient_and_rest(level.contexts, N)
            children.append(Children(starts_of(numbers, len(shorter.contexts)), ids.astype(small)))
            level = level._replace(contexts=numbers.astype(np.int32))  # as the keys are large
        D = discounts_of(counts_of_counts(level.counts), modified=modified)
        values, log_gamma = np.empty(E, np.float32), np.empty(len(level.contexts), np.float32)
        own_P = np.empty(E if levels else 0)  # nothing backs off to the longest contexts
        later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
        for c in starmap(slice, pairwise(np.unique([0, *later, len(level.contexts)]).tolist())):  # pairs that fit the caches
            block, pairs = level.part(c), slice(level.start[c.start], level.start[c.stop])
            P_lower = _shorter_P(shorter, P, N, block) if rows else lower[block.outputs]
            kind, total = np.minimum(block.counts, 3), sum_runs(block.counts, block.start)
            freed = D @ [sum_runs(kind == n, block.start) for n in (1, 2, 3)]
            kept, backed_off = block.counts - D[kind - 1], block.of_pairs(freed) * P_lower
            values[pairs] = np.log1p(kept / backed_off)
            log_gamma[c] = np.log(np.where(total > 0, freed / np.maximum(total, 1), 1))
            if levels:
                own_P[pairs] = (kept + backed_off) / block.of_pairs(total)
        rows.append(sparse_rows(level.start, level.outputs, values, N))
        log_gammas.append(log_gamma)
        shorter, P = level, own_P
    arrays = np.log(lower).astype(np.float32), tuple(children), tuple(rows), tuple(log_gammas)
    return BackOffChain(*jax.device_put(arrays, may_alias=True))  # on a CPU nothing is copied


def _shorter_P(shorter: ContextLevel, P: np.ndarray, N: int, block: ContextLevel) -> np.ndarray:
    """`P(i|h')` of pairs (h, i) of a block, numbered by h'."""
    near = slice(block.contexts[0], block.contexts[-1] + 1)  # contexts stand in the order of those that they extend
    some = shorter.part(near)
    keys = some.keys(np.arange(len(some.contexts)), N)
    return P[shorter.start[near.start] :][np.searchsorted(keys, block.keys(block.contexts - near.start, N))]


@pytree
class NetworkRows:
    """The logits of a flax network of K tokens, as one row."""

    variables: Any
    network: Any = static()
    context: int = static()

    names, tokens, history = ("network",), (None,), 0
    radius = property(lambda self: self.context)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history=None):
        from jexplicit.nn.networks import network_outputs

        return [network_outputs(self.network, self.variables, context[None])[0]]


@pytree
class SequenceRows:
    """The logits of a causal flax network of W tokens, as one row."""

    variables: Any
    network: Any = static()

    names, tokens, radius = ("network",), (None,), 1
    history = property(lambda self: self.network.window)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history: Any = None):
        """The row after a history, nearest token first, within its document."""
        from jexplicit.nn.networks import network_outputs

        W = self.history
        known = jnp.where(history == NO_TOKEN, PAD, history)
        n = jnp.argmax(jnp.append(known == PAD, True))  # tokens of the document
        tokens = jnp.roll(known[::-1], -jnp.maximum(W - n - 1, 0))  # the document comes first, from its `<pad>` on
        logits = network_outputs(self.network, self.variables, tokens[None])[0]
        return [logits[jnp.minimum(n, W - 1)]]

    def log_p(self, past: Any, *, whole: bool = False, **options: Any) -> np.ndarray:
        """`log p` of the token, or of all tokens, at places of a text."""
        from jexplicit.nn.sequences import stream_distributions, stream_log_probabilities

        if past is None:
            raise ValueError("a network that reads a window of the text: say where the positions stand (past)")
        options |= {"window": self.history, "stride": -(-self.history // _overlaps)}
        if whole:
            return stream_distributions(self.network, self.variables, past.stream, past.places, **options)
        return stream_log_probabilities(self.network, self.variables, past.stream, **options)[past.places - 1]


def network_model(network: Any, variables: Any, *, context: int = 0, eos: bool = True) -> LanguageModel:
    """The language model of a network.

    Args:
        network: a flax module, [B, K] token ids -> [B, N] logits; or [B, T] -> [B, T, N], with a `window`.
        context: K, the tokens that it reads, of a network of K tokens.
        eos: whether it predicts the end of a document.

    Example:
        >>> import jax
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> network = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
        >>> model.logits(jnp.array([1, 3])).shape
        (4,)
    """
    sequence = hasattr(network, "window")
    kind = SequenceRows(variables, network) if sequence else NetworkRows(variables, network, context)
    return LanguageModel(kind, "none", eos)

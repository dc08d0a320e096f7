"""Language models of single tokens from counts: smoothing, the explicit solution, and log-linear models.

The noise model replaces the one-hot embedding of token n by `E_n = q_n e_n + (1 - q_n) p`: E is never built.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Integer
from scipy.sparse import csr_array, issparse

from jexplicit.counts import Counts, SparseCounts, counted_context, merge_offsets
from jexplicit.data.streams import contexts
from jexplicit.data.tokenizers import PAD, Progress
from jexplicit.lm.model import LanguageModel, Sparse, draw_sample, map_contexts, sparse_rows, token_model
from jexplicit.lm.names import Features, Smoothing
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch
from jexplicit.runs.devices import as_float, checked, full_precision
from jexplicit.solvers.explicit import explicit_solution

_attention_power = 4  # of the information, in the weights of Sum's shared table: lower ones blur the nearest offset


class Noise(NamedTuple):
    """Eq. 4: a token is seen rightly with probability q_n, else drawn from p.

    1 - q is kept beside q: in float32 it would be lost to rounding for the tokens seen most.
    """

    q: Float[np.ndarray, " N"]
    one_minus_q: Float[np.ndarray, " N"]
    p: Float[np.ndarray, " N"]


def noise_model(f: Integer[np.ndarray, " N"]) -> Noise:
    """One wrong observation per token type: `q_n = f_n / (f_n + 1)`.

    f: [N] how often each token of the stream was observed, `<pad>` (once per document) included.

    Example:
        >>> noise = noise_model(np.array([1, 3, 0]))
        >>> noise.q.tolist(), noise.p.tolist()
        ([0.5, 0.75, 0.0], [0.375, 0.125, 0.5])

    Source: paper, Sec. 3.1.1.
    """
    f = np.asarray(f, np.float64)
    if f.size < 2 or not f.min() >= 0 or not 0 < f.sum() < np.inf:
        raise ValueError(f"token counts {f}: the noise model needs at least two tokens and non-negative counts, not all zero")
    p = 1 - f / f.sum()
    return Noise(q=f / (f + 1), one_minus_q=1 / (f + 1), p=p / p.sum())


@jax.jit
@full_precision
def noisy_counts(C: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """Co-occurrences of the noisy embeddings, `F = Eᵀ C`, from counts [N, I].

    Example:
        >>> noisy_counts(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.5], [3.5]]

    Source: paper, Eq. 2 and 4.
    """
    C = as_float(C)
    q, one_minus_q, p = (jnp.asarray(v, C.dtype) for v in noise)
    return q[:, None] * C + p[:, None] * (one_minus_q @ C)[None, :]


@jax.jit
@full_precision
def noisy_rows(U: Float[Array, "N I"], noise: Noise) -> Float[Array, "N I"]:
    """The rows that noisy embeddings select from a decoder, `Ũ = E U`.

    Example:
        >>> noisy_rows(jnp.array([[2.0], [4.0]]), noise_model(np.array([1, 3]))).tolist()
        [[2.25], [3.625]]

    Source: paper, Eq. 4.
    """
    U = as_float(U)
    q, one_minus_q, p = (jnp.asarray(v, U.dtype) for v in noise)
    return q[:, None] * U + one_minus_q[:, None] * (p @ U)[None, :]


@jax.jit
def with_unseen_outputs(C: Float[Array, "N I"], f: Float[Array, " I"]) -> Float[Array, "N I"]:
    """For outputs never seen the column of one observation, `sum_i C[j, i] / M`."""
    independent = jnp.where(f[None, :] == 0, 0, C).sum(axis=1) / f.sum()
    return jnp.where(f[None, :] == 0, independent[:, None], C)


def unigram(f: Any) -> Any:
    """Relative frequencies [I]; every output that was never seen has one pseudo-count."""
    f = f.__array_namespace__().maximum(f, 1)
    return f / f.sum()


def _check_counts(C: Any) -> None:
    if not bool(((C >= 0) & (C % 1 == 0)).all()):
        raise ValueError("counts that are negative, fractions or not finite: Kneser-Ney discounts whole numbers of at least 0")


@checked(_check_counts)
def kneser_ney(C: Float[Array, "N I"]) -> Float[Array, "N I"]:
    """Kneser-Ney bigram: `P(i|j) = max(C[j, i] - D, 0) / C(j) + γ(j) P_cont(i)`.

    γ(j) is the mass that the discount D frees, `D n₊(j) / C(j)`. `P_cont(i)` is the share of different contexts of i (one for
    an unseen output), and the row of a context never seen. Rows [N, I] are positive and sum to 1. Counts that are no whole
    numbers of at least 0 are refused, but not under jit, vmap and grad.

    Example:
        >>> kneser_ney(jnp.array([[4.0, 0.0], [1.0, 1.0], [0.0, 2.0]])).tolist()
        [[0.9375, 0.0625], [0.5, 0.5], [0.125, 0.875]]

    Source: Kneser & Ney 1995; Chen & Goodman 1999, Eq. 12 and 17 (interpolated).
    """
    C = as_float(C)
    n = jnp.stack([jnp.sum(C == c).astype(C.dtype) for c in (1, 2, 3, 4)])
    P_cont, total = unigram(jnp.sum(C > 0, axis=0).astype(C.dtype)), C.sum(axis=1)
    taken = jnp.where(C > 0, discounts_of(n, modified=False)[0], 0)
    gamma = jnp.where(total > 0, taken.sum(axis=1) / jnp.maximum(total, 1), 1)
    return (C - taken) / jnp.maximum(total, 1)[:, None] + gamma[:, None] * P_cont[None, :]


def discounts_of(n: Any, *, modified: bool) -> Any:
    """Kneser-Ney discounts of counts 1, 2 and 3, from counts of counts.

    `D = n_1 / (n_1 + 2 n_2)` from each, or, modified, `D_c = c - (c + 1) D n_{c+1} / n_c` (Chen & Goodman 1999, Eq. 17, 26).
    A D_c without an estimate, or not above 0, is D. Without counts of 1 or 2, D is 1/2, and modified 1/2, 1 and 3/2 (KenLM).
    """
    xp, (n1, n2, n3, n4) = n.__array_namespace__(), n
    known = xp.minimum(n1, n2) > 0
    D = xp.where(known, n1 / xp.maximum(n1 + 2 * n2, 1), 0.5)
    one = xp.stack([D, D, D])
    if not modified:
        return one
    some = xp.minimum(xp.minimum(n1, n2), xp.minimum(n3, n4)) > 0
    three = xp.stack([c - (c + 1) * D * after / xp.maximum(n, 1) for c, n, after in ((1, n1, n2), (2, n2, n3), (3, n3, n4))])
    return xp.where(some & (three > 0), three, xp.where(known, one, xp.asarray([0.5, 1.0, 1.5], dtype=one.dtype)))


def counts_of_counts(counts: Any) -> Any:
    """How many counts are 1, 2, 3 and 4: NumPy and JAX alike."""
    xp = counts.__array_namespace__()
    return xp.stack([xp.count_nonzero(counts == c) for c in (1, 2, 3, 4)])


def token_counts(counts: Counts | SparseCounts) -> Int[np.ndarray, " N"]:
    """f: how often each token occurs in the stream, `<pad>` once per document."""
    return counts[0].sum(axis=0, dtype=np.int64)


def target_counts(counts: Counts | SparseCounts, *, eos: bool = False) -> Int[np.ndarray, " N"]:
    """f: the count of each target; `<pad>` only if document ends are predicted."""
    return with_targets(token_counts(counts)[None], eos=eos)[0]


def with_targets(C: Any, *, eos: bool = False) -> Any:
    """A table of counts without the column of document ends, unless they are predicted."""
    if eos:
        return C
    if not issparse(C):
        return np.where(np.arange(C.shape[1]) == PAD, 0, C)
    C = C.copy()
    C.data[C.indices == PAD] = 0
    C.eliminate_zeros()
    return C


# The explicit solution


def explicit_language_model(
    counts: Counts | SparseCounts,
    *,
    features: Features,
    context: int | None = None,
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
        ValueError: a context longer than was counted; other features than the two.

    Example:
        >>> from jexplicit.counts import count
        >>> model = explicit_language_model(count(np.array([0, 1, 2, 1, 0]), context=2, vocab_size=3), features="cat")
        >>> model.context, model.vocab_size
        (2, 3)

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    if features not in ("sum", "cat"):
        raise ValueError(f"features {features!r}: choose sum (one table) or cat (a table per offset)")
    K = counted_context(counts, context)
    if issparse(counts[0]):
        tables = _sparse_tables(counts[:K], features, eos, dtype)
        return token_model(tables * (K // len(tables)), features, eos)
    of_noise = noise_model(token_counts(counts)) if noise else None
    return decoder_model(explicit_decoder(counts[:K], of_noise, features, eos, dtype), of_noise, features, K, eos)


def explicit_decoder(
    counts: Any, noise: Noise | None, features: Features, eos: bool, dtype: Any = jnp.float32
) -> tuple[Float[Array, "N N"], ...]:
    """The explicit solution U of K dense tables, below the noise."""
    f = target_counts(counts, eos=eos).astype(dtype)
    seen = (C.astype(dtype) if noise is None else noisy_counts(C.astype(dtype), noise) for C in counts)
    F = tuple(with_unseen_outputs(F_k, f) for F_k in seen)
    return explicit_solution((functools.reduce(jnp.add, F),) if features == "sum" else F, len(counts))


def decoder_model(U: tuple[Any, ...], noise: Noise | None, features: str, context: int, eos: bool) -> LanguageModel:
    """The language model of decoders, the noise folded into their rows."""
    blocks = (jnp.asarray(block)[:, : len(block)] for block in U)
    tables = tuple(block if noise is None else noisy_rows(block, noise) for block in blocks)
    return token_model(tables * (context // len(tables)), features, eos)


def _sparse_tables(counts: Any, features: Features, eos: bool, dtype: Any) -> tuple[Sparse, ...]:
    """The same from sparse counts, up to a constant of the row.

    A pair never seen has the co-occurrence `p_j b_i`, `b = (1 - q)ᵀ C`, and one that was seen `exp(δ[j, i])` times as much:

        δ[j, i] = log(1 + q_j C[j, i] / (p_j b_i)),     c = (K - 1)/K log colsum F
        Ũ[j, i] = (log b_i - c_i) + (1 - q_j) (pᵀδ)_i + q_j δ[j, i]
    """
    K, (q, one_minus_q, p) = len(counts), noise_model(token_counts(counts))
    targets: Any = tuple(with_targets(C, eos=eos) for C in counts)
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


# Log-linear models: smoothed rows and a weight per offset
#
#     logits = mu log p + sum_k lambda_k a_k(x_k) log(P_k(.|x_k) / p),    P_k the smoothed rows of the counts at offset k
#
# Cat has a table per offset and a = 1. Sum shares one, and its *attention* a_k(x) says how much information reaches an offset.

_smoothings = {"kneser-ney": kneser_ney, "add-alpha": jax.jit(lambda C: (C + 1) / (C + 1).sum(axis=1, keepdims=True))}


class OffsetRows(NamedTuple):
    """Parts of a log-linear model; Sum's tables have their attention a_k in them."""

    log_p: Float[Array, "1 N"]
    tables: tuple[Float[Array, "N N"], ...]
    features: Features
    eos: bool
    attention: Float[Array, "K N"] | None = None


def offset_rows(
    counts: Counts, *, features: Features, context: int | None = None, eos: bool = False, smoothing: Smoothing = "kneser-ney"
) -> OffsetRows:
    """Smoothed rows of every offset over the unigram, `log(P_k(i|j) / p_i)`.

    Sum's table mixes the offsets' rows, `P(i|j) = sum_k w_k(j) P_k(i|j)` with `w_k(j) ∝ I_k(j)^4`, where
    `I_k(j) = KL(P_k(.|j) || p)` is what token j says about the token k places on; an offset reads it with the attention
    `a_k(j) = I_k(j) / I_1(j)`.

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), context=2, vocab_size=3), features="cat")
        >>> len(rows.tables), rows.tables[0].shape
        (2, (3, 3))
    """
    if features not in ("sum", "cat") or smoothing not in _smoothings:
        raise ValueError(f"features {features!r}, smoothing {smoothing!r}: choose sum or cat, {' or '.join(_smoothings)}")
    K = counted_context(counts, context)
    log_p = jnp.log(unigram(jnp.asarray(target_counts(counts, eos=eos), jnp.float32)))[None]
    targets = (jnp.asarray(with_targets(C, eos=eos), jnp.float32) for C in counts[:K])
    tables = tuple(jnp.log(_smoothings[smoothing](C)) - log_p for C in targets)
    if features == "cat" or K == 1:
        return OffsetRows(log_p, tables, features, eos)
    attention, shared = _shared(tables, log_p)
    return OffsetRows(log_p, shared, features, eos, attention)


@jax.jit
def _shared(tables: tuple[Array, ...], log_p: Array) -> tuple[Array, tuple[Array, ...]]:
    """The attention of each offset, and Sum's table read with it."""
    P = [jnp.exp(table + log_p) for table in tables]
    information = jnp.stack([jnp.sum(P_k * table, axis=1) for P_k, table in zip(P, tables, strict=True)])
    information = jnp.maximum(information, jnp.finfo(log_p.dtype).tiny ** (1 / 8))  # a token that says nothing says it evenly
    w = information**_attention_power / jnp.sum(information**_attention_power, axis=0)[None, :]
    mixed = sum(w_k[:, None] * P_k for w_k, P_k in zip(w, P, strict=True))
    attention = information / information[:1]
    return attention, tuple(a_k[:, None] * (jnp.log(mixed) - log_p) for a_k in attention)


class WeightFit(NamedTuple):
    """[mu, lambda_1 .. lambda_K], held-out loss, and last gradient."""

    weights: Float[np.ndarray, " S"]
    loss: float
    gradient: float


def fit_weights(
    rows: OffsetRows,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    ridge: float | None = None,
    tolerance: float = 1e-5,
    iterations: int = 30,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> WeightFit:
    """The weights of lowest held-out loss: `min_a L(a) + ridge/2 ||a-a_0||²`.

    With the rows r_g of a position, `L(a) = mean log Z(a) - sum_g a_g r_g[y]` is convex in a, and Newton's method needs

        dL/da_g = E_p[r_g] - r_g[y],    d²L/da_g da_h = Cov_p[r_g, r_h],    means over positions.

    The ridge, by default `max(1e-4, 3/(2M), 25/M²)` nats per position, ties weights that the positions say little about to
    a_0: 1 of the unigram, 1/k of offset k. The rows are of another text than X [M, K] and Y [M].

    Example:
        >>> rows = OffsetRows(jnp.zeros((1, 2)), (jnp.log(jnp.array([[0.8, 0.2]] * 2)),), "cat", False)
        >>> X, Y = np.array([[1], [1], [1]]), np.array([0, 0, 1])  # seen in a text: 4 to 1; in another: 2 to 1
        >>> fit_weights(rows, X, Y, ridge=0).weights[1].round(3)  # log 2 / log 4
        np.float64(0.5)

    Source: Klakow 1998 for log-linear interpolation.
    """
    M, K = X.shape
    if not M or K != len(rows.tables) or M != len(Y):
        raise ValueError(f"contexts {X.shape} of {len(Y)} targets for {len(rows.tables)} tables: hold out more of the text")
    start = np.array([1.0, *(1 / k for k in range(1, K + 1))])
    ridge = max(1e-4, 1.5 / M, 25 / M**2) if ridge is None else ridge
    positions = np.concatenate([X, Y[:, None]], axis=1).astype(np.int32)

    def moments(a: np.ndarray) -> tuple[float, float, np.ndarray, np.ndarray]:
        """The loss with and without penalty, the slope, and Newton's step."""
        read = (rows.log_p, rows.tables, jnp.asarray(a, rows.log_p.dtype))
        found, off = map_contexts(_moments_of_position, read, positions, mesh=mesh).mean(axis=0, dtype=np.float64), a - start
        S, slope = len(a), found[1 : 1 + len(a)] + ridge * off
        step = -np.linalg.lstsq(found[1 + S :].reshape(S, S) + ridge * np.eye(S), slope, rcond=1e-10)[0]
        return found[0] + ridge / 2 * off @ off, found[0], slope, step

    a, (value, loss, slope, step), passes = start, moments(start), 1
    while passes < iterations and np.abs(slope).max() >= tolerance:
        there, passes = moments(a + step), passes + 1
        if progress:
            progress(passes, iterations)
        if there[0] > value + 1e-6:  # it went too far; the rest is rounding in float32
            step = step / 4
        else:
            a, (value, loss, slope, step) = a + step, there
    return WeightFit(a, float(loss), float(np.abs(slope).max()))


@full_precision
def _moments_of_position(read: tuple[Array, tuple[Array, ...], Array], x_and_y: Integer[Array, " K_plus_1"]) -> Array:
    """-log p of the target, its gradient and Hessian by the weights, concatenated."""
    log_p, tables, a = read
    r = jnp.stack([log_p[0], *(table[j] for table, j in zip(tables, x_and_y[:-1], strict=True))])
    z = jax.nn.log_softmax(a @ r)
    p, y = jnp.exp(z), x_and_y[-1]
    centred = r - (r @ p)[:, None]
    return jnp.concatenate([-z[y][None], -centred[:, y], ((centred * p[None]) @ centred.T).ravel()])


def log_linear_model(rows: OffsetRows, weights: Float[np.ndarray, " S"]) -> LanguageModel:
    """The language model of weights (mu, lambda_1 .. lambda_K).

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), context=2, vocab_size=3), features="cat")
        >>> log_linear_model(rows, np.array([1.0, 0.8, 0.2])).context
        2
    """
    K = len(rows.tables)
    if len(weights) != 1 + K:
        raise ValueError(f"{len(weights)} weights for {K} tables: give mu and one per table")
    mu = float(weights[0])
    tables = [table * float(a) + rows.log_p * (mu / K) for table, a in zip(rows.tables, weights[1:], strict=True)]
    return token_model(tables, rows.features, rows.eos)


def rows_of_text(text: TrainingText, options: Options) -> OffsetRows:
    """The rows of a text, as the options say."""
    K = options.context
    return offset_rows(text.counts(K), features=options.features, context=K, eos=text.eos)


def fit_log_linear(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Smoothed rows of single tokens, with a weight per offset from held-out text."""
    fitted = weights_held_out(text, options, watch)
    info = {"weights": fitted.weights.tolist(), "scalars": len(fitted.weights)}
    info |= {"held_out_perplexity": float(np.exp(fitted.loss))}
    return FitResult(log_linear_model(rows_of_text(text, options), fitted.weights), info)


def weights_held_out(text: TrainingText, options: Options, watch: Watch) -> WeightFit:
    """The weights of a text's rows, fitted on documents that their counts leave out."""
    rest, held = text.parts(options.calibration_positions)
    X, Y = contexts(held, K := options.context, eos=text.eos)
    m = draw_sample(len(Y), options.calibration_positions, options.seed, shuffle=True)
    with watch.stage(f"weights, {options.features}, K = {K}") as progress:
        return fit_weights(rows_of_text(rest, options), X[m], Y[m], mesh=text.mesh, progress=progress)

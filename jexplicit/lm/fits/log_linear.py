"""Single-token models that generalise: smoothed rows and a weight per offset.

    logits = mu log p + sum_k lambda_k a_k(x_k) log(P_k(.|x_k) / p),    P_k the smoothed rows of the counts at offset k

Cat has a table per offset and a = 1. Sum shares one, and its *attention* a_k(x) says how much information reaches an offset.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Integer

from jexplicit.counts import Counts, counted_radius
from jexplicit.data.streams import contexts
from jexplicit.data.tokenizers import Progress
from jexplicit.lm.core.model import LanguageModel, draw_sample, map_contexts, token_model
from jexplicit.lm.core.names import Features, Smoothing
from jexplicit.lm.core.smoothing import kneser_ney, unigram
from jexplicit.lm.rows import target_counts, with_targets
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch
from jexplicit.runs.devices import full_precision

_attention_power = 4  # of the information, in the weights of Sum's shared table: lower ones blur the nearest offset


_smoothings = {"kneser-ney": kneser_ney, "add-alpha": jax.jit(lambda C: (C + 1) / (C + 1).sum(axis=1, keepdims=True))}


class OffsetRows(NamedTuple):
    """Parts of a log-linear model: `log p` [1, N] and weighted tables [N, N].

    attention: [K, N] a_k of Sum's shared table, which is in the tables; None for tables of their own.
    """

    log_p: Float[Array, "1 N"]
    tables: tuple[Float[Array, "N N"], ...]
    features: Features
    eos: bool
    attention: Float[Array, "K N"] | None = None


def offset_rows(
    counts: Counts, *, features: Features, radius: int | None = None, eos: bool = False, smoothing: Smoothing = "kneser-ney"
) -> OffsetRows:
    """Smoothed rows of every offset over the unigram, `log(P_k(i|j) / p_i)`.

    Sum's table mixes the offsets' rows, `P(i|j) = sum_k w_k(j) P_k(i|j)` with `w_k(j) ∝ I_k(j)^4`, where
    `I_k(j) = KL(P_k(.|j) || p)` is what token j says about the token k places on; an offset reads it with the attention
    `a_k(j) = I_k(j) / I_1(j)`.

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> len(rows.tables), rows.tables[0].shape
        (2, (3, 3))
    """
    if features not in ("sum", "cat") or smoothing not in _smoothings:
        raise ValueError(f"features {features!r}, smoothing {smoothing!r}: choose sum or cat, {' or '.join(_smoothings)}")
    K = counted_radius(counts, radius)
    log_p = jnp.log(unigram(jnp.asarray(target_counts(counts, eos=eos), jnp.float32)))[None]
    targets = (jnp.asarray(with_targets(C, eos=eos), jnp.float32) for C in counts[:K])
    tables = tuple(jnp.log(_smoothings[smoothing](C)) - log_p for C in targets)
    if features == "cat" or K == 1:
        return OffsetRows(log_p, tables, features, eos)
    attention, shared = _shared(tables, log_p)
    return OffsetRows(log_p, shared, features, eos, attention)


class ExponentFit(NamedTuple):
    """[mu, lambda_1 .. lambda_K], held-out loss, last gradient, and passes."""

    exponents: Float[np.ndarray, " S"]
    loss: float
    gradient: float
    passes: int


def fit_exponents(
    rows: OffsetRows,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    ridge: float | None = None,
    tolerance: float = 1e-5,
    iterations: int = 30,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> ExponentFit:
    """The weights of lowest held-out loss: `min_a L(a) + ridge/2 ||a-a_0||²`.

    With the rows r_g of a position, `L(a) = mean log Z(a) - sum_g a_g r_g[y]` is convex in a, and Newton's method needs

        dL/da_g = E_p[r_g] - r_g[y],    d²L/da_g da_h = Cov_p[r_g, r_h],    means over positions.

    The ridge, by default `max(1e-4, 3/(2M), 25/M²)` nats per position, ties exponents that the positions say little about to
    a_0: 1 of the unigram, 1/k of offset k. The rows are of another text than X [M, K] and Y [M].

    Example:
        >>> rows = OffsetRows(jnp.zeros((1, 2)), (jnp.log(jnp.array([[0.8, 0.2]] * 2)),), "cat", False)
        >>> X, Y = np.array([[1], [1], [1]]), np.array([0, 0, 1])  # seen in a text: 4 to 1; in another: 2 to 1
        >>> fit_exponents(rows, X, Y, ridge=0).exponents[1].round(3)  # log 2 / log 4
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
    return ExponentFit(a, float(loss), float(np.abs(slope).max()), passes)


@full_precision
def _moments_of_position(read: tuple[Array, tuple[Array, ...], Array], x_and_y: Integer[Array, " K_plus_1"]) -> Array:
    """-log p of the target, its gradient and Hessian by the weights, concatenated."""
    log_p, tables, a = read
    r = jnp.stack([log_p[0], *(table[j] for table, j in zip(tables, x_and_y[:-1], strict=True))])
    z = jax.nn.log_softmax(a @ r)
    p, y = jnp.exp(z), x_and_y[-1]
    centred = r - (r @ p)[:, None]
    return jnp.concatenate([-z[y][None], -centred[:, y], ((centred * p[None]) @ centred.T).ravel()])


def log_linear_model(rows: OffsetRows, exponents: Float[np.ndarray, " S"]) -> LanguageModel:
    """The language model of weights (mu, lambda_1 .. lambda_K).

    Example:
        >>> from jexplicit import count
        >>> rows = offset_rows(count(np.array([0, 1, 2, 1, 1, 0]), radius=2, vocab_size=3), features="cat")
        >>> log_linear_model(rows, np.array([1.0, 0.8, 0.2])).radius
        2
    """
    K = len(rows.tables)
    if len(exponents) != 1 + K:
        raise ValueError(f"{len(exponents)} exponents for {K} tables: give mu and one per table")
    mu = float(exponents[0])
    tables = [table * float(a) + rows.log_p * (mu / K) for table, a in zip(rows.tables, exponents[1:], strict=True)]
    return token_model(tables, rows.features, rows.eos)


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


def rows_of_text(text: TrainingText, options: Options) -> OffsetRows:
    """The rows of a text, as the options say."""
    K, smoothing = options.radius, options.smoothing
    return offset_rows(text.counts(K), features=options.features, radius=K, eos=text.eos, smoothing=smoothing)


def fit_log_linear(method: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Smoothed rows of single tokens, with a weight per offset from held-out text."""
    rows, fitted = rows_of_text(text, options), exponents_held_out(text, options, watch)
    a = fitted.exponents
    info = {
        "exponents": [float(weight) for weight in a],
        "implied_slope": 1 + float((1 - a[0]) / a[1:].sum()),  # of the scaling assumption
        "held_out_perplexity": float(np.exp(fitted.loss)),
        "smoothing": options.smoothing,
        "scalars": len(a),
    }
    return FitResult(log_linear_model(rows, a), info)


def exponents_held_out(text: TrainingText, options: Options, watch: Watch) -> ExponentFit:
    """The weights of a text's rows, fitted on documents that their counts leave out."""
    rest, held = text.parts(options.calibration_positions)
    X, Y = contexts(held, K := options.radius, eos=text.eos)
    m = draw_sample(len(Y), options.calibration_positions, options.seed, shuffle=True)
    with watch.stage(f"exponents, {options.features}, K = {K}") as progress:
        return fit_exponents(rows_of_text(rest, options), X[m], Y[m], mesh=text.mesh, progress=progress)

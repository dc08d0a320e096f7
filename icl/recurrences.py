"""Sequence layers that estimate a regression online, streams, and expected losses.

Functions take one sequence; use `jax.vmap` for heads or a batch.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from icl.tasks import draw
from jexplicit.runs.devices import checked, full_precision

# The state of a layer is an estimate W_t from `k_1, v_1, .., k_t, v_t`, and the output for a query is `o_t = W_t q_t`:
#
#     linear attention    W_t = γ W_{t-1} + v_t k_tᵀ                              one step on the inner product (Hebb)
#     delta rule          W_t = γ W_{t-1} + β (v_t - γ W_{t-1} k_t) k_tᵀ          a step on ||v_t - W k_t||² for every token
#     mesa                W_t = argmin_W Σ_s γ^{t-s} ||v_s - W k_s||² + tr W Λ Wᵀ     the minimum itself
#
# By conjugate gradients the mesa layer takes a chunk of tokens at a time, by matrix products only. Those for
# `x_t = (H_t + Λ)⁻¹ q_t` need only products with H_t. In a chunk that starts with the moments H, prefix sums over whole chunks,
# these are linear attention with queries x, for all tokens of the chunk at once:
#
#     H_t x_t = γ_{1..t} H x_t + Σ_{s ≤ t} γ_{s+1..t} k_s (k_sᵀ x_t)
#
# Source: Katharopoulos et al. 2020; Schlag et al. 2021, Yang et al. 2025; von Oswald et al. 2023 and 2025; the view of layers
# as estimators: Wang et al. 2025, Test-time regression.

PerToken = Any  # a number, or one per token
Penalty = Any  # a number, or one per coordinate of the keys


class Stream(NamedTuple):
    """The keys, values and queries of one sequence, [T, d], [T, m], [T, d]."""

    K: Float[Array, "T d"]
    V: Float[Array, "T m"]
    Q: Float[Array, "T d"]


def check_rates(forgetting: PerToken, penalty: Penalty = 1.0) -> None:
    """Refuse forgetting outside (0, 1], and a penalty that is not positive."""
    if not np.all((np.asarray(forgetting) > 0) & (np.asarray(forgetting) <= 1)):
        raise ValueError(f"forgetting {forgetting}: use numbers above 0 and at most 1 (1: no forgetting)")
    if not np.all((np.asarray(penalty) > 0) & np.isfinite(penalty)):
        raise ValueError(f"penalty {penalty}: use numbers above 0 and finite; without one, the first tokens have no solution")


def check_finite(outputs: Array, *args: Any, **kwargs: Any) -> None:
    """Refuse outputs of a solving layer that are not finite."""
    if not bool(jnp.isfinite(outputs).all()):
        raise ValueError(
            "outputs that are not finite: give finite numbers, with keys of norm 1, and raise the penalty or the noise"
        )


@checked(lambda stream, *, forgetting=1.0: check_rates(forgetting))
@full_precision
def linear_attention(stream: Stream, *, forgetting: PerToken = 1.0) -> Float[Array, "T m"]:
    """`o_t = W_t q_t` of `W_t = γ_t W_{t-1} + v_t k_tᵀ`.

    Args:
        forgetting: γ, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, or forgetting outside (0, 1].

    Source: Katharopoulos et al. 2020, Sec. 3.4; with forgetting: Yang et al. 2024, Gated Linear Attention.

    Example:
        >>> one = Stream(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones((2, 2)))
        >>> linear_attention(one).tolist(), linear_attention(one, forgetting=0.5).tolist()
        ([[1.0], [3.0]], [[1.0], [2.5]])

    """
    (gamma,) = per_token(stream, forgetting=forgetting)

    def step(W: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        k, v, q, gamma = token
        W = gamma * W + jnp.outer(v, k)
        return W, W @ q

    return lax.scan(step, zero_weights(stream), (*stream, gamma))[1]


@checked(lambda stream, rate, *, forgetting=1.0: check_rates(forgetting))
@full_precision
def delta_rule(stream: Stream, rate: PerToken, *, forgetting: PerToken = 1.0) -> Float[Array, "T m"]:
    """Online descent, `W_t = γ_t W_{t-1} + β_t (v_t - γ_t W_{t-1} k_t) k_tᵀ`.

    Args:
        rate: β, one number or one per token.
        forgetting: γ, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, or forgetting outside (0, 1].

    Example:
        >>> one = Stream(jnp.ones((2, 1)), jnp.array([[4.0], [8.0]]), jnp.ones((2, 1)))
        >>> delta_rule(one, 0.5).tolist()
        [[2.0], [5.0]]

    Source: Schlag et al. 2021; with forgetting: Yang et al. 2025, Gated Delta Networks.
    """
    gamma, beta = per_token(stream, forgetting=forgetting, rate=rate)

    def step(W: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        k, v, q, gamma, beta = token
        W = gamma * W
        W = W + beta * jnp.outer(v - W @ k, k)
        return W, W @ q

    return lax.scan(step, zero_weights(stream), (*stream, gamma, beta))[1]


def mesa_recursion(stream: Stream, penalty: Penalty, *, forgetting: PerToken = 1.0) -> Float[Array, "T m"]:
    """Ridge regression at every token, by a recursion stable in float32.

        o_t = G_t (H_t + Λ)⁻¹ q_t,    G_t = γ_t G_{t-1} + v_t k_tᵀ,    H_t = γ_t H_{t-1} + k_t k_tᵀ

    The state is the weights W and a square root S of the inverse, `S Sᵀ = (H + Λ)⁻¹`, which rounding cannot make indefinite.
    At each token, forgetting is followed by an update:

        L Lᵀ = γ I + (1 - γ) SᵀΛS,   S <- S L⁻ᵀ,   W <- W - (1 - γ) W Λ S Sᵀ
        p = Sᵀk,   α = 1 + pᵀp,   S <- S - S p pᵀ / (α + √α),   W <- W + (v - W k) (S p)ᵀ / α

    The first line keeps Λ constant while H decays. It costs O(d³) per token, and is skipped if forgetting is the number 1; the
    second line costs O(d²).

    Args:
        penalty: the diagonal of Λ, one number or one per coordinate of the keys.
        forgetting: γ, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, forgetting outside (0, 1], or a penalty that is not positive.

    Example:
        >>> one = Stream(jnp.ones((3, 1)), jnp.array([[2.0], [4.0], [6.0]]), jnp.ones((3, 1)))
        >>> mesa_recursion(one, 1.0).round(4).tolist()
        [[1.0], [2.0], [3.0]]

    Source: von Oswald et al. 2023 and 2025; the square root: Potter (1963), in Bierman 1977; forgetting: this package.
    """
    forgets = not (isinstance(forgetting, float | int) and forgetting == 1)
    return _mesa_recursion(stream, penalty, forgetting=forgetting, forgets=forgets)


@checked(lambda stream, penalty, *, forgetting, forgets: check_rates(forgetting, penalty), check_finite, static=("forgets",))
@full_precision
def _mesa_recursion(stream: Stream, penalty: Penalty, *, forgetting: PerToken, forgets: bool) -> Float[Array, "T m"]:
    (gamma,) = per_token(stream, forgetting=forgetting)
    Lambda = diagonal(stream, penalty)
    identity = jnp.eye(len(Lambda), dtype=Lambda.dtype)

    def forget(S: Array, W: Array, gamma: Array) -> tuple[Array, Array]:
        L = jnp.linalg.cholesky(gamma * identity + (1 - gamma) * (S.T * Lambda[None]) @ S)
        S = solve_triangular(L, S.T, lower=True).T
        return S, W - (1 - gamma) * (W * Lambda[None]) @ S @ S.T

    def absorb(S: Array, W: Array, k: Array, v: Array) -> tuple[Array, Array]:
        p = k @ S
        alpha, Sp = 1 + p @ p, S @ p
        return S - jnp.outer(Sp, p) / (alpha + jnp.sqrt(alpha)), W + jnp.outer(v - W @ k, Sp / alpha)

    def step(state: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        k, v, q, gamma = token
        S, W = absorb(*(forget(*state, gamma) if forgets else state), k, v)
        return (S, W), W @ q

    start = identity / jnp.sqrt(Lambda)[None], zero_weights(stream)
    return lax.scan(step, start, (*stream, gamma))[1]


def zero_weights(stream: Stream) -> Float[Array, "m d"]:
    """W_0 = 0."""
    return jnp.zeros((stream.V.shape[1], stream.K.shape[1]), stream.K.dtype)


def per_token(stream: Stream, *, forgetting: PerToken, **others: PerToken) -> tuple[Array, ...]:
    """Forgetting and other numbers once per token; checks shapes."""
    K, V, Q = stream
    if not (K.ndim == V.ndim == 2 and K.shape == Q.shape and len(K) == len(V) > 0):
        shapes = f"K {K.shape}, V {V.shape}, Q {Q.shape}"
        raise ValueError(f"{shapes}: wanted [T, d], [T, m], [T, d] of one sequence (for many: jax.vmap)")
    numbers = {"forgetting": forgetting} | others
    for name, value in numbers.items():
        if jnp.shape(value) not in ((), (len(K),)):
            raise ValueError(f"{name} {jnp.shape(value)} for {len(K)} tokens: give one number, or one per token")
    return tuple(jnp.broadcast_to(jnp.asarray(value, K.dtype), (len(K),)) for value in numbers.values())


def diagonal(stream: Stream, penalty: Penalty) -> Float[Array, " d"]:
    """The diagonal of Λ; checks its shape."""
    d = stream.K.shape[1]
    if jnp.shape(penalty) not in ((), (d,)):
        raise ValueError(f"penalty {jnp.shape(penalty)} for keys of {d} coordinates: give one number, or one per coordinate")
    return jnp.broadcast_to(jnp.asarray(penalty, stream.K.dtype), (d,))


def solve_rows(product: Callable[[Array], Array], B: Float[Array, "n d"], steps: int) -> Float[Array, "n d"]:
    """Solutions of n positive definite systems, by conjugate gradients; derivatives are implicit."""
    return lax.custom_linear_solve(product, B, lambda product, B: _conjugate_gradients(product, B, steps), symmetric=True)


def _conjugate_gradients(product: Callable[[Array], Array], B: Array, steps: int) -> Array:
    least = jnp.finfo(B.dtype).eps ** 2 * jnp.sum(B * B, axis=1)

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        X, R, P, rr = state
        AP = product(P)
        goes_on = rr > least
        alpha = jnp.where(goes_on, rr / jnp.where(goes_on, jnp.sum(P * AP, axis=1), 1), 0)[:, None]
        X, R = X + alpha * P, R - alpha * AP
        rr_next = jnp.sum(R * R, axis=1)
        beta = jnp.where(goes_on, rr_next / jnp.where(goes_on, rr, 1), 0)[:, None]
        return (X, R, R + beta * P, rr_next), None

    return lax.scan(step, (jnp.zeros_like(B), B, B, jnp.sum(B * B, axis=1)), None, length=steps)[0][0]


@checked(
    lambda stream, penalty, *, steps, forgetting=1.0, chunk=64: check_rates(forgetting, penalty),
    check_finite,
    static=("steps", "chunk"),
)
@full_precision
def mesa_conjugate_gradients(
    stream: Stream, penalty: Penalty, *, steps: int, forgetting: PerToken = 1.0, chunk: int = 64
) -> Float[Array, "T m"]:
    """The mesa layer, `o_t = G_t (H_t + Λ)⁻¹ q_t`, by conjugate gradients.

    The error after n steps falls as `((√κ - 1)/(√κ + 1))ⁿ` with the condition number κ of H_t + Λ; d are exact in exact
    arithmetic. Λ must be well above the rounding error of H_t. Gradients are implicit, computed by as many steps.

    Args:
        penalty, forgetting: as in `mesa_recursion`.
        chunk: tokens per chunk; changes the result by rounding only.

    Raises:
        ValueError: as `mesa_recursion`, or no steps or tokens.

    Source: von Oswald et al. 2025, MesaNet.

    Example:
        >>> one = Stream(jnp.ones((3, 1)), jnp.array([[2.0], [4.0], [6.0]]), jnp.ones((3, 1)))
        >>> mesa_conjugate_gradients(one, 1.0, steps=1, chunk=2).round(4).tolist()
        [[1.0], [2.0], [3.0]]

    """
    if steps < 1 or chunk < 1:
        raise ValueError(f"{steps} steps, chunks of {chunk} tokens: use at least one of each")
    (gamma,) = per_token(stream, forgetting=forgetting)
    Lambda, T = diagonal(stream, penalty), len(gamma)
    chunk = min(chunk, T)
    number = -(-T // chunk)

    def split(leaf: Array) -> Array:
        padded = jnp.pad(leaf, ((0, number * chunk - T), *[(0, 0)] * (leaf.ndim - 1)))
        return padded.reshape(number, chunk, *leaf.shape[1:])

    chunks = Stream(*map(split, stream))
    # log γ_{1..t} within the chunk; γ = 1 for padding. XLA takes seconds to fold a constant `cumsum`.
    decay = split(jnp.log(gamma)) @ jnp.triu(jnp.ones((chunk, chunk), gamma.dtype))
    moments = _moments_before(chunks, decay)

    def outputs(chunk: Stream, decay: Array, H: Array, G: Array) -> Array:
        K, V, Q = chunk
        causal = jnp.tril(jnp.ones((len(K), len(K)), bool))
        D = jnp.exp(jnp.where(causal, decay[:, None] - decay[None], -jnp.inf))
        d = jnp.exp(decay)[:, None]

        def product(X: Array) -> Array:
            return (D * (X @ K.T)) @ K + d * (X @ H) + X * Lambda[None]

        X = solve_rows(product, Q, steps)
        return (D * (X @ K.T)) @ V + d * (X @ G.T)

    return jax.vmap(outputs)(chunks, decay, *moments).reshape(number * chunk, -1)[:T]


def _moments_before(chunks: Stream, decay: Float[Array, "n C"]) -> tuple[Float[Array, "n d d"], Float[Array, "n m d"]]:
    """H and G before the first token of each chunk."""
    K, V, _ = chunks
    left = jnp.exp(decay[:, -1:] - decay)[..., None]  # weight of a token at the end of its chunk
    H, G = (jnp.einsum("nci,ncj->nij", left * A, K) for A in (K, V))

    def join(first: tuple[Array, ...], then: tuple[Array, ...]) -> tuple[Array, ...]:
        (a, H, G), (b, H_next, G_next) = first, then
        return a * b, b * H + H_next, b * G + G_next

    _, H, G = lax.associative_scan(join, (jnp.exp(decay[:, -1])[:, None, None], H, G))
    H, G = (jnp.concatenate([jnp.zeros_like(M[:1]), M[:-1]]) for M in (H, G))
    return H, G


# Streams of keys and values for online learning of a linear map.
#
#     y_t = W_t x_t + noise,    W_{t+1} = a W_t + sqrt(1 - a²) Ξ,    rows of W_1 and Ξ ~ N(0, I/d)
#
# At token t a layer predicts `W_{t+1} x_{t+1}` from t pairs. In a dynamical system `y_t = x_{t+1}`.


@dataclasses.dataclass(frozen=True)
class Streams:
    """A distribution of streams of pairs (x_t, y_t), x ~ N(0, diag(variances)).

    dim: d, inputs; outputs: m; tokens: T.
    noise: standard deviation σ of the noise on y.
    memory: a, the correlation of the weights of a token with those of the next; 1 for constant weights.
    variances: of the d inputs; default, 1 each.

    Raises:
        ValueError: a size below 1, noise that is not positive, memory outside [0, 1], or not d positive variances.
    """

    dim: int = 10
    tokens: int = 200
    outputs: int = 1
    noise: float = 0.5
    memory: float = 1.0
    variances: tuple[float, ...] | None = None

    def __post_init__(self):
        if min(self.dim, self.tokens, self.outputs) < 1:
            raise ValueError(f"dim {self.dim}, tokens {self.tokens}, outputs {self.outputs}: use at least 1 for each")
        if not (self.noise > 0 and 0 <= self.memory <= 1):
            raise ValueError(f"noise {self.noise}, memory {self.memory}: use noise above 0, and memory from 0 to 1")
        if self.variances is not None and (len(self.variances) != self.dim or not min(self.variances) > 0):
            raise ValueError(f"variances {self.variances} of {self.dim} inputs: give a positive one for each")

    @property
    def spectrum(self) -> tuple[float, ...]:
        """The variances of the inputs."""
        return self.variances or (1.0,) * self.dim

    @property
    def penalty(self) -> float:
        """σ² d: with this penalty ridge regression is the posterior mean of constant weights."""
        return self.noise**2 * self.dim

    @full_precision
    def sample(self, key: Array, dtype: Any = None) -> tuple[Stream, Float[Array, "T m"]]:
        """One stream of pairs (x_t, y_t), and the targets `W_{t+1} x_{t+1}`."""
        dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
        key_x, key_w, key_noise = jax.random.split(key, 3)
        T, d, m = self.tokens, self.dim, self.outputs
        X = draw(jax.random.normal, key_x, (T + 1, d), dtype=dtype) * jnp.sqrt(jnp.asarray(self.spectrum, dtype))[None]
        steps = 1 if self.memory == 1 else T + 1
        Xi = draw(jax.random.normal, key_w, (steps, m, d), dtype=dtype) / math.sqrt(d)
        if steps > 1:
            new = math.sqrt(1 - self.memory**2)

            def drift(W: Array, xi: Array) -> tuple[Array, Array]:
                W = self.memory * W + new * xi
                return W, W

            Xi = jnp.concatenate([Xi[:1], lax.scan(drift, Xi[0], Xi[1:])[1]])
        Y = jnp.einsum("tmd,td->tm", jnp.broadcast_to(Xi, (T + 1, m, d)), X)
        noise = self.noise * draw(jax.random.normal, key_noise, (T, m), dtype=dtype)
        return Stream(X[:-1], Y[:-1] + noise, X[1:]), Y[1:]


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Linear dynamical systems, `x_{t+1} = W x_t + noise`, W random orthogonal.

    dim: d; tokens: T; noise: its standard deviation. Source: von Oswald et al. 2023.
    """

    dim: int = 10
    tokens: int = 200
    noise: float = 0.1

    def __post_init__(self):
        if min(self.dim, self.tokens) < 1 or not self.noise > 0:
            raise ValueError(f"dim {self.dim}, tokens {self.tokens}, noise {self.noise}: all must be positive")

    @property
    def penalty(self) -> float:
        """σ² d: entries of an orthogonal W have variance 1/d."""
        return self.noise**2 * self.dim

    @full_precision
    def sample(self, key: Array, dtype: Any = None) -> tuple[Stream, Float[Array, "T d"]]:
        """One stream of states from `x_1 ~ N(0, I)`, and the targets `W x_{t+1}`."""
        dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
        key_x, key_w, key_noise = jax.random.split(key, 3)
        U, R = jnp.linalg.qr(draw(jax.random.normal, key_w, (self.dim, self.dim), dtype=dtype))
        W = U * jnp.sign(jnp.diagonal(R))[None]  # with these signs it is uniform
        noise = self.noise * draw(jax.random.normal, key_noise, (self.tokens, self.dim), dtype=dtype)

        def advance(x: Array, noise: Array) -> tuple[Array, Array]:
            x = W @ x + noise
            return x, x

        first = jax.random.normal(key_x, (self.dim,), dtype)
        X = jnp.concatenate([first[None], lax.scan(advance, first, noise)[1]])
        return Stream(X[:-1], X[1:], X[1:]), X[1:] @ W.T


# Online estimators of a linear map: expected errors and Kalman filter.
#
# Losses are of one output, `½ E[(W_{t+1} x_{t+1} - ŷ)²]` after t pairs of `icl.Streams`. Inputs are N(0, diag λ), and `E[x xᵀ M
# x xᵀ] = 2 ΛMΛ + tr(ΛM) Λ` closes the recursions of second moments, which are diagonal; products below are elementwise.

_iterations = 500  # of a fixed point: each shrinks its error by a factor of at most d/T, or of the noise's share


def hebbian_losses(streams: Streams, *, forgetting: Any = 1.0) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """The best factor on linear attention at each position, and its loss.

        a = E[w'²], b = E[w' w], c = E[w²] = 1/d:    a <- γ² a + 2 γ λ b + 2 λ² c + λ (λ·c) + σ² λ,    b <- a_W (γ b + λ c)
        factor (λ·b) / (λ·a),   loss ½ (λ·c - (λ·b)² / (λ·a))

    w' is a row of the layer's weights, w one of the map, and a_W its memory. With γ = 1 and a constant map it is one step of
    gradient descent at the best rate: `icl.one_step_loss`. Source: this package.

    Example:
        >>> from icl.closed_form import one_step_loss, optimal_rate
        >>> from icl.tasks import Tasks
        >>> tasks = Tasks(dim=4, context=6, inputs="normal", input_range=12**0.5, weight_scale=0.5, noise=0.5)
        >>> factors, losses = hebbian_losses(Streams(dim=4, tokens=6))
        >>> round(float(factors[-1]) * 6, 3), round(float(losses[-1] / one_step_loss(tasks, optimal_rate(tasks))), 4)
        (0.5, 1.0)

    """
    lam = jnp.asarray(streams.spectrum)
    c = jnp.full_like(lam, 1 / streams.dim)
    new = 2 * lam**2 * c + lam * (lam @ c) + streams.noise**2 * lam

    def step(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        a, b = state
        a = forgetting**2 * a + 2 * forgetting * lam * b + new
        b = streams.memory * (forgetting * b + lam * c)
        factor = lam @ b / (lam @ a)
        return (a, b), (factor, (lam @ c - factor * (lam @ b)) / 2)

    return lax.scan(step, (jnp.zeros_like(c), jnp.zeros_like(c)), None, length=streams.tokens)[1]


def delta_losses(streams: Streams, rate: Any = None) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """The best rate of the delta rule and its loss by position.

        e = E[(w - a w')²]:    e <- a² (e - 2 β λ e + β² (2 λ² e + λ (λ·e) + σ² λ)) + (1 - a²)/d,    loss ½ λ·e

    The prediction is a times the layer's output. rate: β, one number; default, the one of the lowest next loss, at every
    position. Source: Widrow and Hoff 1960, for Gaussian inputs and at the best rate: this package.

    Example:
        >>> rates, losses = delta_losses(Streams(dim=4, tokens=3))
        >>> [round(float(rate), 3) for rate in rates], bool(losses[-1] < delta_losses(Streams(dim=4, tokens=3), 0.1)[1][-1])
        ([0.143, 0.14, 0.136], True)

    """
    lam, a2 = jnp.asarray(streams.spectrum), streams.memory**2

    def step(e: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        grown = 2 * lam**2 * e + lam * (lam @ e) + streams.noise**2 * lam
        beta = (lam**2 @ e) / (lam @ grown) if rate is None else jnp.asarray(rate, lam.dtype)
        e = a2 * (e - 2 * beta * lam * e + beta**2 * grown) + (1 - a2) / streams.dim
        return e, (beta, lam @ e / 2)

    return lax.scan(step, jnp.full_like(lam, 1 / streams.dim), None, length=streams.tokens)[1]


def ridge_losses(streams: Streams) -> Float[Array, " T"]:
    """The expected loss of ridge regression with the best penalty.

        loss ½ σ² δ,    δ = Σ_i λ_i / (σ² d + t λ_i / (1 + δ))

    It is the limit of large d at fixed t/d (Marchenko and Pastur); at d = 10 it is a few percent off.

    Raises:
        ValueError: a map that drifts.

    Source: Dicker 2016, Dobriban and Wager 2018, Theorem 2.1.

    Example:
        >>> losses = ridge_losses(Streams(dim=50, tokens=150, noise=0.01))
        >>> round(float(losses[-1]) / (0.5 * 0.01**2 * 50 / (150 - 50 - 1)), 2)  # least squares
        0.99

    """
    if streams.memory != 1:
        raise ValueError(f"memory {streams.memory}: this closed form is for a constant map; use icl.kalman_filter")
    lam, t = jnp.asarray(streams.spectrum), jnp.arange(1.0, streams.tokens + 1)

    def update(_: Any, delta: Array) -> Array:
        return jnp.sum(lam[None] / (streams.penalty + (t / (1 + delta))[:, None] * lam[None]), axis=1)

    start = jnp.full(streams.tokens, jnp.sum(lam) / streams.penalty)
    return streams.noise**2 / 2 * lax.fori_loop(0, _iterations, update, start)


@checked(after=check_finite)
@full_precision
def kalman_filter(stream: Stream, noise: PerToken, memory: PerToken) -> Float[Array, "T m"]:
    """The posterior means of `W_{t+1} q_t` for a drifting map.

        g = P k / (σ² + kᵀPk),   W <- a (W + (v - W k) gᵀ),   P <- a² (P - g kᵀP) + (1 - a²) I/d

    Args:
        noise: σ, one number or one per token.
        memory: a, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, or outputs that are not finite (without noise, of repeated keys).

    Source: Kalman 1960.

    Example:
        >>> one = Stream(jnp.ones((2, 1)), jnp.array([[2.0], [4.0]]), jnp.ones((2, 1)))
        >>> kalman_filter(one, 1.0, 1.0).round(4).tolist()
        [[1.0], [2.0]]

    """
    _, sigma, a = per_token(stream, forgetting=1.0, noise=noise, memory=memory)
    prior = jnp.eye(stream.K.shape[1], dtype=stream.K.dtype) / stream.K.shape[1]

    def step(state: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (P, W), (k, v, q, sigma, a) = state, token
        g = P @ k / (sigma**2 + k @ P @ k)
        W = a * (W + jnp.outer(v - W @ k, g))
        return (a**2 * (P - jnp.outer(g, k @ P)) + (1 - a**2) * prior, W), W @ q

    return lax.scan(step, (prior, zero_weights(stream)), (*stream, sigma, a))[1]

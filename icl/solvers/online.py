"""Online estimators of a linear map: expected errors and Kalman filter.

Losses are of one output, `½ E[(W_{t+1} x_{t+1} - ŷ)²]` after t pairs of `icl.Streams`. Inputs are N(0, diag λ), and
`E[x xᵀ M x xᵀ] = 2 ΛMΛ + tr(ΛM) Λ` closes the recursions of second moments, which are diagonal; products below are elementwise.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.models.recurrences import Penalty, PerToken, Stream, check_finite, check_rates, diagonal, per_token, zero_weights
from icl.models.streams import Streams
from jexplicit.runs.checks import checked
from jexplicit.runs.devices import full_precision

_iterations = 500  # of a fixed point: each shrinks its error by a factor of at most d/T, or of the noise's share


def hebbian_losses(streams: Streams, *, forgetting: Any = 1.0) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """The best factor on linear attention at each position, and its loss.

        a = E[w'²], b = E[w' w], c = E[w²] = 1/d:    a <- γ² a + 2 γ λ b + 2 λ² c + λ (λ·c) + σ² λ,    b <- a_W (γ b + λ c)
        factor (λ·b) / (λ·a),   loss ½ (λ·c - (λ·b)² / (λ·a))

    w' is a row of the layer's weights, w one of the map, and a_W its memory. With γ = 1 and a constant map it is one step of
    gradient descent at the best rate: `icl.one_step_loss`.

    Example:
        >>> from icl.solvers.closed_form import one_step_loss, optimal_rate
        >>> from icl.tasks import Tasks
        >>> tasks = Tasks(dim=4, context=6, inputs="normal", input_range=12**0.5, weight_scale=0.5, noise=0.5)
        >>> factors, losses = hebbian_losses(Streams(dim=4, tokens=6))
        >>> round(float(factors[-1]) * 6, 3), round(float(losses[-1] / one_step_loss(tasks, optimal_rate(tasks))), 4)
        (0.5, 1.0)

    Source: this package.
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

    The prediction is a times the layer's output.

    Args:
        rate: β, one number; default, the rate with the lowest next loss, at every position.

    Example:
        >>> rates, losses = delta_losses(Streams(dim=4, tokens=3))
        >>> [round(float(rate), 3) for rate in rates], bool(losses[-1] < delta_losses(Streams(dim=4, tokens=3), 0.1)[1][-1])
        ([0.143, 0.14, 0.136], True)

    Source: Widrow and Hoff 1960, for Gaussian inputs and at the best rate: this package.
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

    Example:
        >>> losses = ridge_losses(Streams(dim=50, tokens=150, noise=0.01))
        >>> round(float(losses[-1]) / (0.5 * 0.01**2 * 50 / (150 - 50 - 1)), 2)  # least squares
        0.99

    Source: Dicker 2016, Dobriban and Wager 2018, Theorem 2.1.
    """
    if streams.memory != 1:
        raise ValueError(f"memory {streams.memory}: this closed form is for a constant map; use icl.kalman_filter")
    lam, t = jnp.asarray(streams.spectrum), jnp.arange(1.0, streams.tokens + 1)

    def update(_: Any, delta: Array) -> Array:
        return jnp.sum(lam[None] / (streams.penalty + (t / (1 + delta))[:, None] * lam[None]), axis=1)

    start = jnp.full(streams.tokens, jnp.sum(lam) / streams.penalty)
    return streams.noise**2 / 2 * lax.fori_loop(0, _iterations, update, start)


@checked(lambda stream, penalty: check_rates(1.0, penalty), check_finite)
@full_precision
def prefix_ridge(stream: Stream, penalty: Penalty) -> Float[Array, "T m"]:
    """Ridge regression at every token, by a separate solve for each.
    `o_t = (Σ_{s<=t} v_s k_sᵀ) (Σ_{s<=t} k_s k_sᵀ + Λ)⁻¹ q_t`.

    It stores T matrices of d x d numbers; mesa layers are compared with it.

    Args:
        penalty: the diagonal of Λ, one number or one per coordinate of the keys.

    Raises:
        ValueError: shapes that do not fit, or a penalty that is not positive.

    Example:
        >>> one = Stream(jnp.ones((2, 1)), jnp.array([[2.0], [4.0]]), jnp.ones((2, 1)))
        >>> prefix_ridge(one, 1.0).round(4).tolist()
        [[1.0], [2.0]]
    """
    per_token(stream, forgetting=1.0)  # checks the shapes
    K, V, Q = stream
    H, G = (jnp.cumsum(A[:, :, None] * K[:, None], axis=0) for A in (K, V))
    X = jnp.linalg.solve(H + jnp.diag(diagonal(stream, penalty))[None], Q[..., None])
    return (G @ X)[..., 0]


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

    Example:
        >>> one = Stream(jnp.ones((2, 1)), jnp.array([[2.0], [4.0]]), jnp.ones((2, 1)))
        >>> kalman_filter(one, 1.0, 1.0).round(4).tolist()
        [[1.0], [2.0]]

    Source: Kalman 1960.
    """
    _, sigma, a = per_token(stream, forgetting=1.0, noise=noise, memory=memory)
    prior = jnp.eye(stream.K.shape[1], dtype=stream.K.dtype) / stream.K.shape[1]

    def step(state: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (P, W), (k, v, q, sigma, a) = state, token
        g = P @ k / (sigma**2 + k @ P @ k)
        W = a * (W + jnp.outer(v - W @ k, g))
        return (a**2 * (P - jnp.outer(g, k @ P)) + (1 - a**2) * prior, W), W @ q

    return lax.scan(step, (prior, zero_weights(stream)), (*stream, sigma, a))[1]

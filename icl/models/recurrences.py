"""Sequence layers that estimate the regression of values on keys online.

The state of a layer is an estimate W_t from `k_1, v_1, .., k_t, v_t`, and the output for a query is `o_t = W_t q_t`:

    linear attention    W_t = γ W_{t-1} + v_t k_tᵀ                              one step on the inner product (Hebb)
    delta rule          W_t = γ W_{t-1} + β (v_t - γ W_{t-1} k_t) k_tᵀ          a step on ||v_t - W k_t||² for every token
    mesa                W_t = argmin_W Σ_s γ^{t-s} ||v_s - W k_s||² + tr W Λ Wᵀ     the minimum itself

By conjugate gradients the mesa layer takes a chunk of tokens at a time, by matrix products only. Those for
`x_t = (H_t + Λ)⁻¹ q_t` need only products with H_t. In a chunk that starts with the moments H, prefix sums over whole chunks,
these are linear attention with queries x, for all tokens of the chunk at once:

    H_t x_t = γ_{1..t} H x_t + Σ_{s ≤ t} γ_{s+1..t} k_s (k_sᵀ x_t)

Functions take one sequence; use `jax.vmap` for heads or a batch.

Source: Katharopoulos et al. 2020; Schlag et al. 2021, Yang et al. 2025; von Oswald et al. 2023 and 2025; the view of layers as
estimators: Wang et al. 2025, Test-time regression.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from icl.linalg import solve_rows
from jexplicit.runs.checks import checked
from jexplicit.runs.devices import full_precision

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

    Example:
        >>> one = Stream(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones((2, 2)))
        >>> linear_attention(one).tolist(), linear_attention(one, forgetting=0.5).tolist()
        ([[1.0], [3.0]], [[1.0], [2.5]])

    Source: Katharopoulos et al. 2020, Sec. 3.4; with forgetting: Yang et al. 2024, Gated Linear Attention.
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

    The state is the weights W and a square root S of the inverse, `S Sᵀ = (H + Λ)⁻¹`, which rounding cannot make indefinite and
    whose condition number is the square root of that of H + Λ. At each token, forgetting is followed by an update:

        L Lᵀ = γ I + (1 - γ) SᵀΛS,   S <- S L⁻ᵀ,   W <- W - (1 - γ) W Λ S Sᵀ
        p = Sᵀk,   α = 1 + pᵀp,   S <- S - S p pᵀ / (α + √α),   W <- W + (v - W k) (S p)ᵀ / α

    The first line keeps Λ constant while H decays; the eigenvalues of LLᵀ lie between γ and 1. It costs O(d³) per token, and is
    skipped if forgetting is the number 1. The second line costs O(d²).

    Without forgetting, rounding errors grow with the number of tokens: in float32 to 2e-5 of the outputs after 100,000 white
    keys, to 3e-4 after as many of condition number 10⁶.

    Args:
        penalty: the diagonal of Λ, one number or one per coordinate of the keys.
        forgetting: γ, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, forgetting outside (0, 1], or a penalty that is not positive.

    Example:
        >>> one = Stream(jnp.ones((3, 1)), jnp.array([[2.0], [4.0], [6.0]]), jnp.ones((3, 1)))
        >>> mesa_recursion(one, 1.0).round(4).tolist()
        [[1.0], [2.0], [3.0]]

    Source: von Oswald et al. 2023, Uncovering mesa-optimization algorithms; constant Λ: von Oswald et al. 2025, MesaNet; the
    square root: Potter (1963), in Bierman 1977; forgetting in that form: this package.
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


@checked(lambda stream, penalty, *, forgetting=1.0: check_rates(forgetting, penalty), check_finite)
@full_precision
def sherman_morrison(stream: Stream, penalty: Penalty, *, forgetting: PerToken = 1.0) -> Float[Array, "T m"]:
    """Recursive least squares in its textbook form, as a baseline; `mesa_recursion` is numerically stable.

        g = P k / (γ + kᵀ P k),   P <- (P - g kᵀ P) / γ,   W <- W + (v - W k) gᵀ,    P_0 = Λ⁻¹

    With γ < 1 the penalty decays as γᵗ, and P grows without bound in directions absent from recent keys; rounding makes P
    indefinite if H + Λ is ill-conditioned.

    Args:
        penalty: the diagonal of Λ.
        forgetting: γ, one number or one per token.

    Raises:
        ValueError: shapes that do not fit, forgetting outside (0, 1], or a penalty that is not positive.

    Example:
        >>> one = Stream(jnp.ones((3, 1)), jnp.array([[2.0], [4.0], [6.0]]), jnp.ones((3, 1)))
        >>> sherman_morrison(one, 1.0).round(4).tolist()
        [[1.0], [2.0], [3.0]]

    Source: von Oswald et al. 2023; Haykin, Adaptive Filter Theory, on recursive least squares.
    """
    (gamma,) = per_token(stream, forgetting=forgetting)

    def step(state: tuple[Array, Array], token: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (P, W), (k, v, q, gamma) = state, token
        g = P @ k / (gamma + k @ P @ k)
        W = W + jnp.outer(v - W @ k, g)
        return ((P - jnp.outer(g, k @ P)) / gamma, W), W @ q

    start = jnp.diag(1 / diagonal(stream, penalty)), zero_weights(stream)
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

        G_t = γ_t G_{t-1} + v_t k_tᵀ,    H_t = γ_t H_{t-1} + k_t k_tᵀ

    d steps are exact in exact arithmetic; the error after n falls as `((√κ - 1)/(√κ + 1))ⁿ` with the condition number κ of
    H_t + Λ. Λ must be well above the rounding error of H_t (`icl.mesa_recursion`: of its square root). Gradients are implicit,
    computed by as many steps.

    Args:
        penalty: the diagonal of Λ, one number or one per coordinate of the keys.
        forgetting: γ, one number or one per token.
        chunk: tokens per chunk; changes the result by rounding only.

    Raises:
        ValueError: shapes that do not fit, forgetting outside (0, 1], a penalty that is not positive, or no steps or tokens.

    Example:
        >>> one = Stream(jnp.ones((3, 1)), jnp.array([[2.0], [4.0], [6.0]]), jnp.ones((3, 1)))
        >>> mesa_conjugate_gradients(one, 1.0, steps=1, chunk=2).round(4).tolist()
        [[1.0], [2.0], [3.0]]

    Source: von Oswald et al. 2025, MesaNet.
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

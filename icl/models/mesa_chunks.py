"""The mesa layer by conjugate gradients, a chunk of tokens at a time: matrix products only, no loop over tokens.

Ridge regression at token t needs `x_t = (H_t + Λ)⁻¹ q_t`. Conjugate gradients need only products with H_t. In a chunk that
starts with the moments H these are linear attention with queries x, for all tokens of the chunk at once:

    H_t x_t = γ_{1..t} H x_t + Σ_{s ≤ t} γ_{s+1..t} k_s (k_sᵀ x_t)

The moments at the starts of chunks are prefix sums of those of whole chunks.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.linear_systems import solve_rows
from icl.models.recurrences import Penalty, PerToken, Stream, check_finite, check_rates, diagonal, per_token
from jexplicit.runs.checks import checked
from jexplicit.runs.devices import full_precision


@checked(
    lambda stream, penalty, *, steps, forgetting=1.0, chunk=64: check_rates(forgetting, penalty),
    check_finite,
    static=("steps", "chunk"),
)
@full_precision
def mesa_conjugate_gradients(
    stream: Stream, penalty: Penalty, *, steps: int, forgetting: PerToken = 1.0, chunk: int = 64
) -> Float[Array, "T m"]:
    """The mesa layer, `o_t = G_t (H_t + Λ)⁻¹ q_t`, by conjugate gradients at every token.

        G_t = γ_t G_{t-1} + v_t k_tᵀ,    H_t = γ_t H_{t-1} + k_t k_tᵀ

    d steps are exact in exact arithmetic; the error after n falls as `((√κ - 1)/(√κ + 1))ⁿ` with the condition number κ of
    H_t + Λ. Λ must be well above the rounding error of H_t (`icl.mesa_recursion`: of its square root). Gradients are implicit,
    computed by as many steps.

    Args:
        penalty: the diagonal of Λ, one number or one per coordinate of the keys.
        steps: of conjugate gradients.
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

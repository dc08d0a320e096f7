"""The same stack of layers for a whole batch of sequences, batch last: what training runs."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.attention import Layer, held, maps, unstack
from icl.contraction import contract, turned
from icl.tasks import Sequence


def predict_batch(
    layers: Layer, batch: Sequence, *, depth: int | None = None, clip: float | None = None
) -> Float[Array, "m batch"]:
    """The answers of a stack of layers to a batch: `icl.attention.predict` of each sequence, to rounding.

    Args:
        layers: [L, ...] one after the other.
        batch: with its batch axis last, as `icl.tasks.sample_tasks` gives it.
        depth: layers to apply; a single one is applied so often. Default, L.
        clip: tokens are held to [-clip, clip] after each layer; default, not at all.

    Raises:
        ValueError: as `icl.attention.predict`.

    Example:
        >>> import jax
        >>> from icl import Tasks, init_layers, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> jax.jit(predict_batch)(init_layers(jax.random.key(1), 4), batch).shape
        (1, 4)

    Source: von Oswald et al. 2023, Eq. 3.
    """
    d, m = batch.x_q.shape[0], batch.y_q.shape[0]
    stack = unstack(layers, d + m, depth)
    context = jnp.concatenate([turned(batch.X), turned(batch.Y)])  # [width, N, batch]
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[:, None]  # [width, 1, batch]
    for n, layer in enumerate(stack, 1):
        M, R = maps(layer)
        read = context
        if n < len(stack):  # of the last layer only the query is read
            context = held(context + _update(read, read, M, R), clip)
        query = held(query + _update(read, query, M, R), clip)
    return -query[d:, 0]


def _update(context: Array, tokens: Array, M: Array, R: Array) -> Array:
    """What all heads add to tokens e_j [width, n, batch]: `Σ_h Σ_i R e_i (e_iᵀ M e_j)`."""
    scores = (contract(context, jnp.einsum("ce,enb->cnb", M_h, tokens)) for M_h in M)
    values = (jnp.einsum("ce,enb->cnb", R_h, context) for R_h in R)
    return functools.reduce(jnp.add, (contract(turned(V), a) for V, a in zip(values, scores, strict=True)))

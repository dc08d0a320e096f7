"""The same stack of layers for a whole batch of sequences, batch last: what training runs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.linalg import contract, turned
from icl.models.attention import Layer, Softmax, held, layer_norm, maps, plan
from icl.tasks import Sequence, Tasks, sample_tasks


@dataclasses.dataclass(frozen=True)
class Regression:
    """Stacks of layers on regression tasks: what `icl.train` samples, and the loss that it lowers.

    tasks: their law, its numbers Python's.
    depth: K, times that a single layer is applied, or the number of layers.
    clip, softmax, layernorm: as in `icl.predict`.

    Example:
        >>> from icl import init_layers
        >>> regression = Regression(Tasks(dim=3, context=5))
        >>> batch = regression.sample(jax.random.key(0), 4)
        >>> regression.loss(init_layers(jax.random.key(1), 4), batch).shape
        ()
    """

    tasks: Tasks
    depth: int = 1
    clip: float | None = None
    softmax: Softmax = False
    layernorm: bool = False

    def sample(self, key: Array, size: int, dtype: Any = None) -> Sequence:
        """Fresh tasks, batch last."""
        return sample_tasks(key, self.tasks, size, dtype=dtype)

    def predict(self, params: Layer, batch: Sequence) -> Float[Array, "m batch"]:
        """The answers to a batch."""
        return predict_batch(params, batch, depth=self.depth, clip=self.clip, softmax=self.softmax, layernorm=self.layernorm)

    def loss(self, params: Layer, batch: Sequence) -> Float[Array, ""]:
        """Half the mean squared error of a batch, `½ mean_τ ||ŷ - y_q||²`, outputs summed."""
        return half_square(self.predict(params, batch), batch.y_q)


def half_square(y: Float[Array, "m batch"], y_q: Float[Array, "m batch"]) -> Float[Array, ""]:
    """`½ mean_τ ||ŷ - y_q||²`, outputs summed."""
    return jnp.sum((y - y_q) ** 2) / (2 * y.shape[-1])


def predict_batch(
    layers: Layer,
    batch: Sequence,
    *,
    depth: int | None = None,
    clip: float | None = None,
    softmax: Softmax = False,
    layernorm: bool = False,
) -> Float[Array, "m batch"]:
    """The answers of a stack of layers to a batch: `icl.models.attention.predict` of each sequence, to rounding.

    Args:
        layers: [L, ...] one after the other.
        batch: with its batch axis last, as `icl.tasks.sample_tasks` gives it.
        depth: layers to apply; a single one is applied so often. Default, L.
        clip: tokens are held to [-clip, clip] after each layer; default, not at all.
        softmax, layernorm: as in `icl.models.attention.predict`.

    Raises:
        ValueError: as `icl.models.attention.predict`.

    Example:
        >>> import jax
        >>> from icl import Tasks, init_layers, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> jax.jit(predict_batch)(init_layers(jax.random.key(1), 4), batch).shape
        (1, 4)

    Source: von Oswald et al. 2023, Eq. 3.
    """
    context = jnp.concatenate([turned(batch.X), turned(batch.Y)])  # [width, N, batch]
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[:, None]  # [width, 1, batch]
    query = transform_batch(layers, context, query, depth=depth, clip=clip, softmax=softmax, layernorm=layernorm)
    return -query[batch.x_q.shape[0] :, 0]


def transform_batch(
    layers: Layer,
    context: Float[Array, "width N batch"],
    query: Float[Array, "width n batch"],
    *,
    depth: int | None = None,
    clip: float | None = None,
    softmax: Softmax = False,
    layernorm: bool = False,
) -> Float[Array, "width n batch"]:
    """What a stack of layers makes of queries, while it updates the context too, which is attended to.

    Arguments and errors are those of `icl.models.attention.predict`.
    """
    for step in plan(layers, len(context), depth, softmax=softmax, layernorm=layernorm):
        M, R = maps(step.layer)
        if step.softmax:
            M = M / step.layer.W_K.shape[-2] ** 0.5
        keys, asking = (layer_norm(part, axis=0) if step.normed else part for part in (context, query))
        if not step.last:  # of the last layer only the query is read
            context = held(context + attended(keys, keys, M, R, softmax=step.softmax), clip)
        query = held(query + attended(keys, asking, M, R, softmax=step.softmax), clip)
    return query


def attended(
    context: Float[Array, "width N batch"],
    tokens: Float[Array, "width n batch"],
    M: Float[Array, "heads width width"],
    R: Float[Array, "heads width width"],
    *,
    softmax: bool = False,
) -> Float[Array, "width n batch"]:
    """What all heads add to tokens e_j: `Σ_h Σ_i R e_i a_ij`, with the scores `a_ij = e_iᵀ M e_j` or their softmax over i.

    Of several orders of the products, the same but for rounding, it takes one with few increments.
    """
    if not softmax and tokens.shape[1] > len(context):  # more tokens than coordinates: R (Σ_i e_i e_iᵀ) M e_j
        G = contract(turned(context), turned(context))
        added = (_mapped(R_h, contract(G, _mapped(M_h, tokens))) for M_h, R_h in zip(M, R, strict=True))
    else:
        scores = (contract(context, _mapped(M_h, tokens)) for M_h in M)
        if softmax:
            scores = (jax.nn.softmax(a, axis=0) for a in scores)
        added = (_summed(context, R_h, a) for R_h, a in zip(R, scores, strict=True))
    return functools.reduce(jnp.add, added)


def _summed(context: Array, R: Array, a: Array) -> Array:
    """`Σ_i R e_i a_ij`: R maps the sums, where they are fewer than the context, as for the query alone, or else the context.

    Where both are as many the second takes half the time in a step of five layers.
    """
    if a.shape[1] < a.shape[0]:
        return _mapped(R, contract(turned(context), a))
    return contract(turned(_mapped(R, context)), a)


def _mapped(M: Array, E: Array) -> Array:
    """`M e_n` of every token."""
    return jnp.einsum("ce,enb->cnb", M, E)

"""A stack of layers on a batch of sequences, batch last, for training."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.linalg import contract, transpose
from icl.models.attention import AttentionLayer, Softmax, clip_tokens, head_maps, layer_norm, layer_steps
from icl.tasks import QueryLoss, Sequence, TaskSampler
from jexplicit.runs.devices import full_precision


@dataclasses.dataclass(frozen=True)
class Regression(QueryLoss):
    """Stacks of attention layers on regression tasks: a problem for `icl.train_layers`.

    tasks: their distribution, e.g. `icl.Tasks` with Python numbers.
    depth: K, number of applications of a single layer, or the number of layers.
    clip, softmax, layernorm: as in `icl.predict`.

    Example:
        >>> from icl import Tasks, init_layers
        >>> regression = Regression(Tasks(dim=3, context=5))
        >>> batch = regression.sample(jax.random.key(0), 4)
        >>> regression.loss(init_layers(jax.random.key(1), 4), batch).shape
        ()
    """

    tasks: TaskSampler
    depth: int = 1
    clip: float | None = None
    softmax: Softmax = False
    layernorm: bool = False

    def predict(self, params: AttentionLayer, batch: Sequence) -> Float[Array, "m batch"]:
        """Predictions for a batch."""
        return predict_batch(params, batch, depth=self.depth, clip=self.clip, softmax=self.softmax, layernorm=self.layernorm)


@functools.partial(jax.jit, static_argnames=("depth", "clip", "softmax", "layernorm"))
def predict_batch(layers: AttentionLayer, batch: Sequence, **options: Any) -> Float[Array, "m batch"]:
    """The predictions of a stack of layers for a batch, batch last: `icl.predict` of each sequence, up to rounding.

    Options and errors are those of `icl.predict`: depth, clip, softmax and layernorm.

    Raises:
        ValueError: a single sequence; use `icl.predict`.

    Example:
        >>> from icl import Tasks, init_layers, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> jax.jit(predict_batch)(init_layers(jax.random.key(1), 4), batch).shape
        (1, 4)

    Source: von Oswald et al. 2023, Eq. 3.
    """
    if batch.X.ndim != 3:
        raise ValueError(f"X {batch.X.shape}: wanted [N, d, batch] of many tasks, batch last (for one task: icl.predict)")
    context = jnp.concatenate([transpose(batch.X), transpose(batch.Y)])  # [width, N, batch]
    query = jnp.concatenate([batch.x_q, jnp.zeros_like(batch.y_q)])[:, None]  # [width, 1, batch]
    return -transform_batch(layers, context, query, **options)[batch.x_q.shape[0] :, 0]


def transform_batch(
    layers: AttentionLayer,
    context: Float[Array, "width N batch"],
    query: Float[Array, "width n batch"],
    *,
    depth: int | None = None,
    clip: float | None = None,
    softmax: Softmax = False,
    layernorm: bool = False,
) -> Float[Array, "width n batch"]:
    """The queries after a stack of layers, which also updates the context. Options and errors are those of `icl.predict`."""
    for step in layer_steps(layers, len(context), depth, softmax=softmax, layernorm=layernorm):
        M, R = head_maps(step.layer)
        if step.softmax:
            M = M / step.layer.W_K.shape[-2] ** 0.5
        keys, queries = (layer_norm(part, axis=0) if step.layernorm else part for part in (context, query))
        if not step.last:  # the output depends on the query only
            context = clip_tokens(context + attention_update(keys, keys, M, R, softmax=step.softmax), clip)
        query = clip_tokens(query + attention_update(keys, queries, M, R, softmax=step.softmax), clip)
    return query


def attention_update(
    context: Float[Array, "width N batch"],
    tokens: Float[Array, "width n batch"],
    M: Float[Array, "heads width width"],
    R: Float[Array, "heads width width"],
    *,
    softmax: bool = False,
) -> Float[Array, "width n batch"]:
    """The update of tokens e_j by all heads: `Σ_h Σ_i R e_i a_ij`, with scores `a_ij = e_iᵀ M e_j` or their softmax over i.

    The order of the products is chosen for few multiplications.
    """
    if not softmax and tokens.shape[1] > len(context):  # more tokens than coordinates: R (Σ_i e_i e_iᵀ) M e_j
        G = contract(transpose(context), transpose(context))
        updates = (_apply(R_h, contract(G, _apply(M_h, tokens))) for M_h, R_h in zip(M, R, strict=True))
    else:
        scores = (contract(context, _apply(M_h, tokens)) for M_h in M)
        if softmax:
            scores = (jax.nn.softmax(a, axis=0) for a in scores)
        updates = (_weighted_values(context, R_h, a) for R_h, a in zip(R, scores, strict=True))
    return functools.reduce(jnp.add, updates)


def _weighted_values(context: Array, R: Array, a: Array) -> Array:
    """`Σ_i R e_i a_ij`: R is applied to the sums if they are fewer than the context tokens (the query alone), else before.

    For equal numbers, applying R first halves the time of a step of five layers.
    """
    if a.shape[1] < a.shape[0]:
        return _apply(R, contract(transpose(context), a))
    return contract(transpose(_apply(R, context)), a)


@full_precision
def _apply(M: Array, E: Array) -> Array:
    """`M e_n` of every token."""
    return jnp.einsum("ce,enb->cnb", M, E)

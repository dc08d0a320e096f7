"""Sums `HᵀH` and `HᵀY` over examples, of features in blocks.

Features are computed a block of examples at a time from a few numbers per example. Every device sums over its own blocks, with
one reduction over devices at the end.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, as_targets
from jexplicit.runs.devices import AXIS, default_mesh, full_precision

_strips = 8  # of the lower triangle: (1 + 1/8)/2 of the products of the full square


class ExampleBlocks(NamedTuple):
    """Examples in blocks over devices: inputs, targets, weights (0: padding)."""

    X: Float[Array, "devices blocks m r"]
    Y: Float[Array, "devices blocks m N"]
    weight: Float[Array, "devices blocks m"]


class Gram(NamedTuple):
    """Sums over M examples; only the lower triangle of the symmetric HH is valid."""

    HH: Float[Array, "D D"]
    HY: Float[Array, "D N"]
    h: Float[Array, " D"]
    y: Float[Array, " N"]
    M: Float[Array, ""]


def split_examples(X: Float[Any, "M r"], Y: Float[Any, "_ N"], *, block: int = 2048, mesh: Mesh | None = None) -> ExampleBlocks:
    """Examples as blocks, the last one padded, equally many per device of a mesh.

    Args:
        X: [M, r] inputs of the features.
        Y: [M, N] targets; or [M] labels.
        block: maximum number of examples whose features are in memory at a time.
        mesh: devices to split them over; default, all accelerators, or one CPU.

    Raises:
        ValueError: no examples, unequal numbers of them, targets that are not finite, or a block below 1.

    Example:
        >>> split_examples(jnp.ones((5, 3)), jnp.ones((5, 2)), block=2).weight.tolist()
        [[[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]]
    """
    if len(X) != len(Y) or not len(X) or block < 1:
        raise ValueError(
            f"inputs {X.shape}, targets {Y.shape}, blocks of {block}: give equally many of both, at least 1, in blocks"
        )
    Y = as_targets(Y)
    if not np.isfinite(np.asarray(Y)).all():
        raise ValueError("targets that are not finite: give one-hot rows or a distribution per row")
    mesh = mesh or default_mesh()
    devices = mesh.size
    number = -(-len(X) // (devices * block))
    m = -(-len(X) // (devices * number))

    def cut(part: Any) -> Array:
        rows = np.asarray(part)
        rows = rows if np.issubdtype(rows.dtype, np.inexact) else np.asarray(as_float(rows))  # sums of integers would wrap
        padded = np.pad(rows, [(0, devices * number * m - len(rows)), *[(0, 0)] * (rows.ndim - 1)])
        whole = padded.reshape(devices, number, m, *rows.shape[1:])
        return jax.device_put(whole, NamedSharding(mesh, PartitionSpec(AXIS)))

    return ExampleBlocks(cut(X), cut(Y), cut(np.ones(len(X), as_float(X[:1]).dtype)))


def gram_matrix(
    blocks: ExampleBlocks, features: Callable[[Array], Array], *, progress: Callable[[int, int], None] | None = None
) -> Gram:
    """`HᵀH` (its lower triangle), `HᵀY`, and the sums of H and Y over examples.

    Args:
        blocks: of examples.
        features: a function [m, r] -> [m, D], as `jax.tree_util.Partial` with its arrays.
        progress: called with (blocks done, total blocks).

    Example:
        >>> blocks = split_examples(jnp.array([[1.0], [2.0]]), jnp.eye(2))
        >>> gram = gram_matrix(blocks, jax.tree_util.Partial(lambda x: x))
        >>> gram.HH.tolist(), gram.HY.tolist(), float(gram.M)
        ([[5.0]], [[1.0, 2.0]], 2.0)
    """
    devices, number, m, _ = blocks.X.shape
    N, D = blocks.Y.shape[-1], jax.eval_shape(features, jax.ShapeDtypeStruct(blocks.X.shape[2:], blocks.X.dtype)).shape[1]
    shapes = ((D, D), (D, N), (D,), (N,), ())
    zeros = (jnp.zeros((devices, *shape), blocks.X.dtype, device=blocks.weight.sharding) for shape in shapes)
    sums = Gram(*zeros)
    for n in range(number):
        sums = add_block(sums, blocks, features, n)
        if progress:
            jax.block_until_ready(sums)  # otherwise all blocks would be queued at once
            progress(n + 1, number)
    return _total(sums)


@functools.partial(jax.jit, donate_argnums=0)
@full_precision
def add_block(sums: Gram, blocks: ExampleBlocks, features: Callable[[Array], Array], n: Array) -> Gram:
    """`sums` with block n of each device added; `sums` is donated."""

    def add(total: Gram, X: Array, Y: Array, weight: Array) -> Gram:
        H = features(X) * weight[:, None]
        HH, D = total.HH, H.shape[1]
        strip = -(-D // _strips)
        for i in range(0, D, strip):
            end = min(i + strip, D)
            HH = HH.at[i:end, :end].add(H[:, i:end].T @ H[:, :end])
        return Gram(HH, total.HY + H.T @ Y, total.h + H.sum(axis=0), total.y + Y.sum(axis=0), total.M + weight.sum())

    return jax.vmap(add)(sums, *(part[:, n] for part in blocks))


@functools.partial(jax.jit, donate_argnums=0)
def _total(sums: Gram) -> Gram:
    """The sum over devices."""
    return jax.tree.map(lambda part: part.sum(axis=0), sums)


@functools.partial(jax.jit, donate_argnums=0)
def add_grams(one: Gram, other: Gram) -> Gram:
    """The sums over the examples of both; the first is donated."""
    return jax.tree.map(jnp.add, one, other)

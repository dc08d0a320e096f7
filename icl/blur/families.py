"""Families of tasks: many small tasks made of one labelled data set, and the networks that learn them.

A task draws a way to merge the classes into fewer, a random linear map of the inputs, noise, and the examples that it has. A
genome that is meta-trained on several families meets inputs, labels and networks of many shapes, all from one data set.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.blur.data import Examples


class Source(NamedTuple):
    """What tasks are made of: the examples, and the principal axes [D, D] of their inputs, the one of most variance first."""

    examples: Examples
    axes: Any


class Family(NamedTuple):
    """A family of tasks with a learner. Hashable: a static argument of compiled functions.

    hidden: widths of the learner's hidden layers.
    batch_size: examples per update.
    inputs: number of inputs, random mixtures of the principal components, standardised; default, the inputs as they are.
    rank: principal components that are mixed; default, all.
    classes: groups that the classes are merged into at random; default, the classes as they are (their order does not matter to
        learners with random synapses).
    examples: number of examples of a task, queries not counted; default, all others.
    noise: standard deviation of noise on the mixed inputs, relative to theirs.
    """

    hidden: tuple[int, ...] = (32,)
    batch_size: int = 64
    inputs: int | None = None
    rank: int | None = None
    classes: int | None = None
    examples: int | None = None
    noise: float = 0.0


FAMILIES: dict[str, tuple[Family, ...]] = {
    "digits": (
        Family((32,)),
        Family((128, 128)),
        Family((64, 64, 64)),
        Family((32, 32, 32, 32)),
        Family((512,)),
        Family((256, 256)),
        Family((32,), inputs=12, classes=3, examples=90),
        Family((32,), inputs=30, classes=2, examples=200, noise=0.3),
        Family((16, 16), inputs=4, rank=4, classes=3, examples=80),
        Family((16, 16, 16), inputs=16, classes=5, examples=500, noise=0.3),
        Family((32, 32), inputs=2, rank=2, classes=2),
        Family((256,), inputs=2, rank=4, classes=4),
    ),
    "boolean": (Family((20,), classes=2),),
}
"""Families by name: of images with ten classes, and of four corners whose classes merge into functions of two inputs."""


def make_source(examples: Examples, *, mixed: bool = True) -> Source:
    """The source of a data set; the axes are left out where no family mixes inputs.

    Example:
        >>> make_source(Examples(np.diag([1.0, 2.0]), np.eye(2))).axes.round(3).__abs__().tolist()
        [[0.447, 0.894], [0.894, 0.447]]
    """
    examples = Examples(*map(jnp.asarray, examples))
    if not mixed:
        return Source(examples, None)
    X = np.asarray(examples.X, np.float64)
    centred = X - X.mean(axis=0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return Source(examples, jnp.asarray(axes, examples.X.dtype))


def check_family(family: Family, source: Source, query_size: int) -> None:
    """Raise a ValueError for a family that the source cannot have."""
    (M, D), N = source.examples.X.shape, source.examples.Y.shape[1]
    examples, classes = family.examples or M - query_size, family.classes or N
    if min(query_size, family.batch_size) < 1 or not family.batch_size <= examples <= M - query_size:
        raise ValueError(
            f"{query_size} queries and batches of {family.batch_size} out of {M if family.examples is None else examples} "
            "examples: use at least one of each, and fewer than the examples"
        )
    if not 2 <= classes <= N or not 1 <= (family.rank or D) <= D or (family.inputs or 1) < 1 or family.noise < 0:
        raise ValueError(f"{family}: of {N} classes and {D} inputs, use 2 to {N} classes, rank 1 to {D}, noise of at least 0")


def draw_task(key: Array, family: Family, source: Source, *more: Examples) -> list[Examples]:
    """The examples of the source as one task of the family sees them; `more` examples are seen in the same way.

    Inputs are standardised over all examples of the source.
    """
    order_key, map_key, noise_key = jax.random.split(key, 3)
    Y = source.examples.Y
    N = family.classes or Y.shape[1]
    group = jax.random.permutation(order_key, jnp.arange(Y.shape[1]) % N)
    see_inputs = functools.partial(_mix_inputs, family, map_key, source)

    def see(number: int, part: Examples) -> Examples:
        merged = family.classes is not None
        y = jax.nn.one_hot(group[jnp.argmax(part.Y, axis=1)], N, dtype=part.Y.dtype) if merged else part.Y
        return Examples(see_inputs(jax.random.fold_in(noise_key, number), part.X), y)

    return [see(number, part) for number, part in enumerate((source.examples, *more))]


def _mix_inputs(family: Family, map_key: Array, source: Source, noise_key: Array, X: Array) -> Array:
    """Random mixtures of the first principal components, standardised over the source, and noise; or X as it is."""
    if family.inputs is None:
        return X
    rank = family.rank or X.shape[1]
    axes = source.axes[:, :rank] @ jax.random.normal(map_key, (rank, family.inputs), X.dtype)
    mixed = source.examples.X @ axes
    Z = (X @ axes - mixed.mean(axis=0, keepdims=True)) / (mixed.std(axis=0, keepdims=True) + 1e-9)
    return Z + family.noise * jax.random.normal(noise_key, Z.shape, X.dtype)

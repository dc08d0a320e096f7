"""The order of the examples in an epoch, a function of (seed, epoch) only.

jexplicit.nn.training.train splits an order into batches, so a resumed run has the same batches as an uninterrupted one.
"""

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Int, Integer

from jexplicit.nn.parts.names import look_up
from jexplicit.nn.training import epoch_order

Order = Callable[[int, int], Int[np.ndarray, " M"]]


def sampler(name: str, labels: Integer[np.ndarray, " M"]) -> Order:
    """The sampler called `name`: `(seed, epoch) -> M example indices`.

    round-robin: every example once per epoch; uniform: M draws with replacement; balanced: equally many per class of `labels`.
    Source: Radhakrishnan 2024, Sec. 3.
    """
    if not len(labels):
        raise ValueError("no examples to draw batches from: give at least one")
    orders: dict[str, Order] = {
        "round-robin": functools.partial(epoch_order, size=len(labels)),
        "uniform": functools.partial(uniform_order, size=len(labels)),
        "balanced": functools.partial(balanced_order, labels=labels),
    }
    return look_up("sampler", orders, name)


def uniform_order(seed: int, epoch: int, size: int) -> Int[np.ndarray, " size"]:
    """`size` draws with replacement: an epoch misses about 1/e of the examples and repeats others."""
    return _random(seed, epoch).integers(size, size=size)


def balanced_order(seed: int, epoch: int, labels: Integer[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """Equally many draws (to within one) of every class that occurs, and within a class of every example, shuffled.

    Examples of rare classes are repeated within an epoch; only some of the frequent ones are drawn.
    """
    rng = _random(seed, epoch)
    classes = rng.permutation(np.unique(labels))
    drawn = []
    for c, part in zip(classes, np.array_split(labels, len(classes)), strict=True):
        members, n = np.flatnonzero(labels == c), len(part)
        rounds = [rng.permutation(members) for _ in range(-(-n // len(members)))]  # without replacement within a round
        drawn.append(np.concatenate([members[:0], *rounds])[:n])
    return rng.permutation(np.concatenate(drawn))


def shorter_epochs(order: Order, size: int, most: int) -> Order:
    """Epochs of `most` of `size` examples: each order is split into parts, one per epoch; a remainder is dropped."""
    if not 1 <= most <= size:
        raise ValueError(f"epochs of {most} examples, of {size}: use 1 .. {size}")
    parts = size // most

    def part(seed: int, epoch: int) -> Int[np.ndarray, " most"]:
        whole, n = divmod(epoch - 1, parts)
        return order(seed, whole + 1)[n * most : (n + 1) * most]

    return part


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))

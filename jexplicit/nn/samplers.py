"""The order in which an epoch visits the examples, a function of (seed, epoch) alone.

jexplicit.nn.training.train cuts an order into batches, so a resumed run sees exactly the batches of an uninterrupted one.
"""

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Int, Integer

from jexplicit.nn.names import look_up
from jexplicit.nn.training import epoch_order

Order = Callable[[int, int], Int[np.ndarray, " M"]]


def sampler(name: str, labels: Integer[np.ndarray, " M"]) -> Order:
    """The sampler called `name`: `(seed, epoch) -> M example indices`.

    Args:
        name: round-robin: every example once per epoch; uniform: M draws with replacement; balanced: equally many per class.
        labels: [M] classes of the examples; only balanced uses more than their number.

    Raises:
        ValueError: no examples; unknown name.

    Example:
        >>> order = sampler("balanced", np.array([0, 0, 0, 0, 0, 1]))
        >>> np.array([0, 0, 0, 0, 0, 1])[order(0, 1)].mean().item()
        0.5

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
    """`size` draws with replacement: an epoch misses about 1/e of the examples and repeats others.

    Example:
        >>> 580 < len(set(uniform_order(0, 1, 1000).tolist())) < 680
        True
    """
    return _random(seed, epoch).integers(size, size=size)


def balanced_order(seed: int, epoch: int, labels: Integer[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """Equally many draws (to within one) of every class that occurs, and within a class of every example, shuffled.

    Examples of rare classes are repeated within an epoch, and only part of the frequent ones is drawn.

    Example:
        >>> sorted(balanced_order(0, 1, np.array([7, 7, 7, 2])).tolist())[-2:]  # the only 2, twice
        [3, 3]
    """
    rng = _random(seed, epoch)
    classes = rng.permutation(np.unique(labels))
    drawn = []
    for c, part in zip(classes, np.array_split(labels, len(classes)), strict=True):
        members, n = np.flatnonzero(labels == c), len(part)
        rounds = [rng.permutation(members) for _ in range(-(-n // len(members)))]  # all members before any is drawn again
        drawn.append(np.concatenate([members[:0], *rounds])[:n])
    return rng.permutation(np.concatenate(drawn))


def shorter_epochs(order: Order, size: int, most: int) -> Order:
    """Epochs of `most` examples: each order of all `size` of them is cut into parts, and an epoch visits one.

    Args:
        order: of all of the examples.
        size: their number.
        most: examples of a shorter epoch; a remainder of `size` waits for another order.

    Raises:
        ValueError: `most` is not in 1 .. size.

    Example:
        >>> order = shorter_epochs(lambda seed, epoch: np.arange(5) + 10 * epoch, size=5, most=2)
        >>> [order(0, epoch).tolist() for epoch in (1, 2, 3)]
        [[10, 11], [12, 13], [20, 21]]
    """
    if not 1 <= most <= size:
        raise ValueError(f"epochs of {most} examples, of {size}: use 1 .. {size}")
    parts = size // most

    def part(seed: int, epoch: int) -> Int[np.ndarray, " most"]:
        whole, n = divmod(epoch - 1, parts)
        return order(seed, whole + 1)[n * most : (n + 1) * most]

    return part


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))

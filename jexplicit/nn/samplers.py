"""Which examples a mini-batch takes: the order of an epoch, as a function of (seed, epoch) alone.

An order is cut into batches by jexplicit.nn.training.train, so a resumed run sees the very batches of an uninterrupted one.
"""

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Int, Integer

from jexplicit.nn.training import epoch_order

Order = Callable[[int, int], Int[np.ndarray, " M"]]
SamplerName = Literal["round-robin", "uniform", "balanced"]
SAMPLERS: tuple[SamplerName, ...] = ("round-robin", "uniform", "balanced")


def sampler(name: str, labels: Integer[np.ndarray, " M"]) -> Order:
    """The order of a name: `(seed, epoch) -> M example indices`.

    Args:
        name: round-robin, every example once per epoch; uniform, M draws with replacement; balanced, as many of every class.
        labels: [M] classes of the examples; but for balanced only their number matters.

    Raises:
        ValueError: no examples; another name.

    Example:
        >>> order = sampler("balanced", np.array([0, 0, 0, 0, 0, 1]))
        >>> np.array([0, 0, 0, 0, 0, 1])[order(0, 1)].mean().item()
        0.5

    Source: Radhakrishnan 2024, Sec. 3, for the three procedures.
    """
    if not len(labels):
        raise ValueError("no examples to draw batches from: give at least one")
    if name == "round-robin":
        return functools.partial(epoch_order, size=len(labels))
    if name == "uniform":
        return functools.partial(uniform_order, size=len(labels))
    if name == "balanced":
        return functools.partial(balanced_order, labels=labels)
    raise ValueError(f"sampler {name!r}: choose one of {', '.join(SAMPLERS)}")


def uniform_order(seed: int, epoch: int, size: int) -> Int[np.ndarray, " size"]:
    """`size` draws with replacement: an epoch misses about 1/e of the examples, and takes others twice or more.

    Example:
        >>> 580 < len(set(uniform_order(0, 1, 1000).tolist())) < 680
        True
    """
    return _random(seed, epoch).integers(size, size=size)


def balanced_order(seed: int, epoch: int, labels: Integer[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """As many draws of every class that occurs, to within one, mixed; within a class every example as often as any other.

    So the rare classes of unbalanced data are seen more than once per epoch, and the frequent ones in part.

    Example:
        >>> sorted(balanced_order(0, 1, np.array([7, 7, 7, 2])).tolist())[-2:]  # the only 2 twice
        [3, 3]
    """
    rng = _random(seed, epoch)
    classes = rng.permutation(np.unique(labels))
    draws = [len(part) for part in np.array_split(np.arange(len(labels)), len(classes))]
    return rng.permutation(
        np.concatenate([_repeated(rng, np.flatnonzero(labels == c), n) for c, n in zip(classes, draws, strict=True)])
    )


def _repeated(rng: np.random.Generator, members: np.ndarray, n: int) -> np.ndarray:
    """n of these, through all of them before any comes again."""
    rounds = -(-n // len(members))
    return np.concatenate([rng.permutation(members) for _ in range(rounds)])[:n] if n else members[:0]


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))

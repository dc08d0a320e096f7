"""Labelled points for small tasks: two-dimensional figures and mixtures of Gaussians, drawn from a seed.

moons         two half circles that interlock           noise 0.15
circles       radius 1 and 1/2                          noise 0.1
spirals       two arms of one and a half turns          noise 0.1, radius up to 3 π
checkerboard  4 x 4 fields of alternating classes
xor           four clusters at ±1, class x1 x2 < 0      noise 0.3
mixtures      clusters at random centres, equal noise   see `mixture`
"""

import numpy as np
from jaxtyping import Float, Int

Points = tuple[Float[np.ndarray, "M D"], Int[np.ndarray, " M"]]

PLANES = ("moons", "circles", "spirals", "checkerboard", "xor")
"""Names of the figures in the plane."""


def plane(name: str, examples: int, rng: np.random.Generator) -> Points:
    """M points of two classes in the plane, one of PLANES, in random order."""
    if name not in PLANES:
        raise ValueError(f"{name!r} is not a figure in the plane: choose one of {', '.join(PLANES)}")
    labels, t = rng.integers(0, 2, examples), rng.uniform(size=examples)
    noise = rng.normal(size=(examples, 2))
    if name == "moons":
        angle, side = np.pi * t, 1 - 2 * labels
        x = np.stack([np.cos(angle) * side + labels, np.sin(angle) * side + labels / 2], axis=1)
        return x + 0.15 * noise, labels
    if name == "circles":
        return _polar(1 - labels / 2, 2 * np.pi * t) + 0.1 * noise, labels
    if name == "spirals":
        angle = 3 * np.pi * np.sqrt(t)  # constant density along an arm
        return _polar(angle, angle + np.pi * labels) + 0.1 * noise, labels
    if name == "checkerboard":
        x = rng.uniform(0, 4, size=(examples, 2))
        return x, np.floor(x).astype(np.int64).sum(axis=1) % 2
    signs = np.stack([1 - 2 * rng.integers(0, 2, examples), np.ones(examples, np.int64)], axis=1)
    signs[:, 1] = signs[:, 0] * (1 - 2 * labels)
    return signs + 0.3 * noise, labels


def mixture(
    examples: int, rng: np.random.Generator, *, inputs: int, classes: int, clusters: int = 1, distance: float = 4.0
) -> Points:
    """Points around random centres, x ~ N(centre, I), in random order.

    clusters: centres per class. distance: root mean square distance of two centres, in standard deviations of the noise.
    """
    if min(examples, inputs, classes, clusters) < 1 or not distance >= 0:
        numbers = f"{examples} points, {inputs} inputs, {classes} classes of {clusters} clusters, distance {distance}"
        raise ValueError(f"{numbers}: use at least 1 of each, and a distance of at least 0")
    centres = distance / (2 * inputs) ** 0.5 * rng.normal(size=(classes, clusters, inputs))
    labels = rng.integers(0, classes, examples)
    return centres[labels, rng.integers(0, clusters, examples)] + rng.normal(size=(examples, inputs)), labels


def _polar(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)

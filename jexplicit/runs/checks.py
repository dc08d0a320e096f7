"""Whether values can be checked: under jit, vmap and grad they are not known yet."""

from typing import Any

import jax
from jax.core import Tracer


def concrete(*trees: Any) -> bool:
    """Whether every array in some pytrees has values, so that a check may read them.

    Example:
        >>> concrete(1.0, jax.numpy.ones(2)), jax.jit(lambda x: x if concrete(x) else -x)(3).item()
        (True, -3)
    """
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))

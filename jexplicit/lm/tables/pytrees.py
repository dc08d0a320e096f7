"""Frozen dataclasses as pytrees."""

from dataclasses import dataclass, field
from typing import Any

import jax


def static(default: Any = ...) -> Any:
    """A dataclass field that is no leaf of the pytree."""
    return field(metadata={"static": True}) if default is ... else field(default=default, metadata={"static": True})


def pytree(cls: type) -> type:
    """A frozen dataclass registered with JAX: `static()` fields are metadata, all others hold leaves.

    Objects are equal if they are the same one; their `repr` has the shapes of arrays only.
    """
    if "__repr__" not in vars(cls):
        cls.__repr__ = _short_repr  # pyright: ignore[reportAttributeAccessIssue]
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False, repr=False)(cls))


def _short_repr(self: Any) -> str:
    leaves = jax.tree.leaves(self)
    return f"{type(self).__name__}({len(leaves)} arrays, {sum(getattr(leaf, 'nbytes', 0) for leaf in leaves):,} bytes)"

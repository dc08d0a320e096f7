"""Counted models in files: the types of their parts, and contexts as text."""

from typing import Any

from jexplicit.lm.counted.columns import Context, Spelling
from jexplicit.lm.counted.evidence import Cells, Statistics
from jexplicit.lm.counted.layer import Described, Layer
from jexplicit.lm.counted.mixing import Gate
from jexplicit.lm.counted.model import CountedModel, Part
from jexplicit.lm.counted.reading import CountedState
from jexplicit.lm.counted.tree import Tree

COUNTED = (CountedModel, Part, Tree, Spelling, Cells, Statistics, Gate, Described, Layer, CountedState)


def text_of(context: Context, name: str = "a context") -> dict[str, Any]:
    """A context as plain values.

    Raises:
        ValueError: a column that is a function, which no file can hold.

    Example:
        >>> text_of(Context("part", 2))
        {'columns': ['part', 2], 'window': None}
    """
    for column in context.columns:
        if not isinstance(column, int | str):
            remedy = "give it a name in jexplicit.lm.counted.columns.COLUMNS, and the context that name"
            raise ValueError(f"{name} is {context!r} with a function of its own, which no file can hold: {remedy}")
    return {"columns": list(context.columns), "window": context.window}


def context_of(text: dict[str, Any]) -> Context:
    """The context of plain values.

    Raises:
        ValueError: a column that is not known here.

    Example:
        >>> context_of({"columns": ["part", 2], "window": None})
        Context('part', 2)
    """
    return Context(*text["columns"], window=text["window"])

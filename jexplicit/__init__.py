"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

import jexplicit

model = jexplicit.fit(documents)  # a list of texts, or pathlib.Paths of files; the mixture, the model of the lowest perplexity
model.perplexity(more_documents)
model.next_token("Return the")
model.generate("Return the", 20)
model.save("model.safetensors")  # jexplicit.load_model reads it
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jexplicit.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "__version__":  # read when it is asked for
        from importlib import metadata

        return metadata.version("jexplicit")
    if not name.startswith("_"):  # importing a part of the package does not import all of it
        names = {**vars(importlib.import_module("jexplicit.api")), **globals()}  # its folders are names, too
        if name in names:
            return names[name]
    raise AttributeError(f"module 'jexplicit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(importlib.import_module("jexplicit.api"))})

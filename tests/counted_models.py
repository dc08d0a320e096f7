"""Small counted models that several test files use, each fitted once in a process."""

import functools
from typing import Any

import numpy as np
import pytest

from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from jexplicit.lm.counted.contexts import Context
from jexplicit.lm.counted.model import CountedModel, each, fit_counted, orders


def histories(*short: str, slow: tuple[str, ...] = ()) -> list[Any]:
    """Histories to test with; some only among the slow tests."""
    return [*short, *(pytest.param(history, marks=pytest.mark.slow) for history in slow)]


HISTORIES = histories("all", "adaptive:document", slow=("none", "window:40", "document", "adaptive"))
CONTEXTS = (
    *orders(0, 3),
    *(Context("part", "word"), Context("line"), Context(2, 3)),
    *each((), (1,), ("part", "word"), window=100),
)
GATES = (("place", "known"), ("place", "node"))
_words = "to be or not that is the question whether nobler in mind suffer".split()


def texts(n: int, seed: int) -> list[str]:
    """Documents of two lines."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_words, 11)) + "\n" + " ".join(rng.choice(_words[:6], 5)) for _ in range(n)]


@functools.cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(30, 0), kind="char")


@functools.cache
def fitted(history: str = "none", eos: bool = False) -> CountedModel:
    """A model of characters."""
    stream = encode_documents(tokenizer(), texts(30, 0))
    return fit_counted(stream, tokenizer().vocab_size, tokenizer(), history=history, contexts=CONTEXTS, gates=GATES, eos=eos)


def stream(n: int = 3, seed: int = 1) -> np.ndarray:
    """Another text of the same words."""
    return encode_documents(tokenizer(), texts(n, seed)).astype(np.int32)

"""Inputs of every fit: the training text with cached statistics, options, callbacks."""

import contextlib
import functools
import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jexplicit.counts import Counts, SparseCounts, count
from jexplicit.data.streams import Stream, check_stream, cut_documents, hold_out
from jexplicit.data.tokenizers import PAD, Tokenizer
from jexplicit.lm.evaluation import AnyModel
from jexplicit.lm.names import Features, FitOptions
from jexplicit.runs.devices import default_mesh
from jexplicit.runs.files import trim_heap

_pieces, _shortest_piece = 20, 2000  # of what is held out of long documents; tokens
_held_out_share, _held_out_tokens = 0.02, 50_000  # of the text: the larger of the two, but at most a tenth


@dataclass(frozen=True, kw_only=True)
class Options(FitOptions):
    """Hyperparameters of all methods; each uses its own of them, see `jexplicit.lm.fit.OPTIONS`."""

    features: Features = "cat"
    context: int = 1
    history: str = "none"
    train_sample: int | None = 1_000_000
    seed: int = 0


class FitResult(NamedTuple):
    """A model, and results of its fit: plain values by name."""

    model: AnyModel
    info: dict[str, Any]


class Watch(NamedTuple):
    """Who follows a fit, and where it can be resumed.

    stage: context manager of a named stage, which gives `progress(done, total)`, such as jexplicit.runs.progress.stage.
    """

    stage: Callable[..., Any] = lambda name, unit="": contextlib.nullcontext(lambda done, total: None)
    log: Callable[..., None] = lambda **event: None
    dev: Stream | None = None  # text that iterative methods report and stop by
    checkpoints: Path | None = None  # folder to resume from
    events: Callable[[str], list[dict[str, Any]]] = lambda name: []  # of a name, of the run that is resumed


class TrainingText:
    """A text to fit on, with counts that are made at first use.

    stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`. mesh: default, all accelerators, or one CPU. counts, sparse_counts:
    C_1 .. C_K of the stream, if known. tokenizer: that made the stream; for context mixing.

    >>> text = TrainingText(np.array([0, 1, 2, 1, 0]), 3)
    >>> text.counts(1)[0].tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """

    def __init__(
        self,
        stream: Stream,
        vocab_size: int,
        *,
        eos: bool = False,
        mesh: Mesh | None = None,
        counts: Counts = (),
        sparse_counts: SparseCounts = (),
        tokenizer: Tokenizer | None = None,
    ):
        check_stream(stream)
        self.stream, self.vocab_size, self.eos, self.tokenizer, self._mesh = stream, vocab_size, eos, tokenizer, mesh
        self._counts, self._sparse = counts, sparse_counts
        self._parts: dict[int, tuple[TrainingText, np.ndarray]] = {}  # by their size

    mesh = functools.cached_property(lambda self: self._mesh or default_mesh())
    in_memory = property(lambda self: np.asarray(self.stream[:]), doc="The whole stream as an array.")

    def counts(self, context: int) -> Counts:
        """C_1 .. C_K, dense."""
        if len(self._counts) < context:
            self._counts = count(self.stream, context=context, vocab_size=self.vocab_size, mesh=self.mesh)
        return self._counts

    def known_counts(self, context: int) -> Counts | SparseCounts:
        """C_1 .. C_K, sparse where only those are known, else dense."""
        return self._sparse[:context] if len(self._sparse) >= context and not self._counts else self.counts(context)

    def parts(self, positions: int = 0) -> "tuple[TrainingText, np.ndarray]":
        """The text in two parts: one to count, one to fit weights on."""
        wanted = max(_held_out_tokens, int(_held_out_share * len(self.stream)), positions)
        if wanted not in self._parts:
            stream = self.in_memory
            if np.count_nonzero(stream == PAD) > 2:  # of a single document the end is held out
                stream = cut_documents(stream, max(_shortest_piece, wanted // _pieces))
            rest, held = hold_out(stream, positions=wanted)
            whole = len(rest) + len(held) == len(self.stream) + 1  # pairs across a cut are in neither part
            known = self._counts if whole else ()
            held_counts = count(held, context=len(known), vocab_size=self.vocab_size, mesh=self.mesh) if known else ()
            counts = tuple(C - H for C, H in zip(known, held_counts, strict=True))  # nothing is counted twice
            self._parts[wanted] = self.like(rest, counts=counts), held
            trim_heap()
        return self._parts[wanted]

    def like(self, stream: Stream, **known: Any) -> "TrainingText":
        """Another text of the same tokens, with its known counts."""
        shape: Any = {"eos": self.eos, "mesh": self._mesh, "tokenizer": self.tokenizer}
        return TrainingText(stream, self.vocab_size, **shape, **known)

    def forget(self) -> None:
        """Clear the parts of this text and their counts."""
        self._parts.clear()
        gc.collect()  # arrays in references that go in circles
        trim_heap()


def written_for(method: str, text: TrainingText, options: Options, watch: Watch) -> dict[str, Any]:
    """The identity of a fit's checkpoints: the method, the texts and the options."""
    if watch.checkpoints is None:
        return {}
    dev = {} if watch.dev is None else {"dev": np.asarray(watch.dev[:])}
    return {"method": method, "text": text.in_memory, **dev, "eos": text.eos, **asdict(options)}

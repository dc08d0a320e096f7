"""What every search for a genome shares: its options, the best genome so far, the history of evaluations, and checkpoints."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from icl.blur.genome import Genome
from jexplicit.runs.checkpoints import load_latest, save_latest


class SearchOptions(NamedTuple):
    """Options of `icl.blur.meta_train` and `icl.blur.evolve`.

    seed: of genomes, initial synapses and minibatches.
    every: steps between two evaluations on dev.
    episodes: learners per genome in an evaluation.
    checkpoints: folder for checkpoints; a search continues from the last one in it, bit for bit.
    checkpoint_seconds: time between two checkpoints.
    on_evaluation: called with each new entry of the history.
    progress: called with the number of steps done and in total.
    """

    seed: int = 0
    every: int = 100
    episodes: int = 8
    checkpoints: Path | None = None
    checkpoint_seconds: float = 30.0
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None
    progress: Callable[[int, int], None] | None = None


class SearchResult(NamedTuple):
    """The outcome of a search.

    best: the genome with the highest dev accuracy of all evaluations (of the last stage, in a curriculum).
    score: its dev accuracy.
    genomes: the genomes of the last evaluation, genome axis first.
    history: an entry per evaluation with `step`, `unroll`, `seconds`, `loss` and `accuracy` (lists over genomes), `best`,
        `skipped` (genomes or steps that were not finite), and from evolution `fitness` and `best_fitness` of the generation.
    """

    best: Genome
    score: float
    genomes: Genome
    history: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """Wall-clock seconds, including evaluation and compilation."""
        return self.history[-1]["seconds"]

    @property
    def skipped(self) -> int:
        """Genomes or meta-steps of single genomes that were not finite."""
        return int(np.sum(self.history[-1]["skipped"]))


class Search:
    """The record of a running search; `state` is what the algorithm itself needs to continue, a pytree of arrays."""

    def __init__(self, start: Genome, options: SearchOptions) -> None:
        self.best, self.score, self.options = start, -1.0, options
        self.history: list[dict[str, Any]] = []
        self._start = self._saved = time.perf_counter()

    @property
    def done(self) -> int:
        """Steps until the last evaluation."""
        return self.history[-1]["step"] if self.history else 0

    def restore(self, state: Any) -> Any:
        """The state of the last checkpoint, or the given one if there is none.

        Raises:
            ValueError: a checkpoint of another search.
        """
        folder = self.options.checkpoints
        found = load_latest(folder, self._tree(state)) if folder is not None else None
        if found is None:
            return state
        self.best, self.history = found["best"], json.loads(found["history"].tobytes())
        self.score = self.history[-1]["best"]
        self._start -= self.history[-1]["seconds"]
        return found["state"]

    def record(
        self, step: int, total: int, state: Any, genomes: Genome, losses: np.ndarray, accuracy: np.ndarray, **entry: Any
    ) -> None:
        """Add an evaluation on dev to the history, update the best genome, and save a checkpoint if one is due."""
        finite, (folder, interval) = np.isfinite(losses), (self.options.checkpoints, self.options.checkpoint_seconds)
        accuracy = np.where(finite, accuracy, 0.0)
        if accuracy.max() > self.score:
            self.score = float(accuracy.max())
            self.best = jax.tree.map(lambda leaf: leaf[int(accuracy.argmax())], genomes)
        results = {
            "step": step,
            "seconds": time.perf_counter() - self._start,
            "loss": [float(loss) if ok else None for loss, ok in zip(losses, finite, strict=True)],
            "accuracy": accuracy.tolist(),
            "best": self.score,
        }
        self.history.append({**results, **entry})
        if self.options.on_evaluation:
            self.options.on_evaluation(self.history[-1])
        if folder is not None and time.perf_counter() - self._saved > interval and step < total:
            save_latest(folder, step, self._tree(state))
            self._saved = time.perf_counter()

    def _tree(self, state: Any) -> dict[str, Array | Any]:
        text = json.dumps(self.history).encode() if self.history else b""
        return {"state": state, "best": self.best, "history": np.frombuffer(text, np.uint8)}

"""The mixture of counted rows: the rows of `mixture_rows`, with exponents that are fitted on held-out text.

    logits = a_0 log p + sum_g a_g row_g

What is fitted is one exponent per row, or one for each of a few confidences, and one for each class of the selectors. With
exponents 1 for the unigram and the contexts, and 0 elsewhere, the mixture is the Kneser-Ney n-gram model itself.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from jexplicit.data.tokenizers import Progress
from jexplicit.lm.core.model import LanguageModel, add_selected, exponents_per_row, selected
from jexplicit.lm.evaluation import EncodedText, read_tables
from jexplicit.lm.fits.mixtures.calibration import Calibration, default_ridge, fit_exponents
from jexplicit.lm.fits.mixtures.mixture_rows import chain_rows, unigram_row
from jexplicit.lm.rows.backoff import BackOffChain
from jexplicit.lm.rows.ngrams import Ngrams
from jexplicit.lm.rows.selectors import SELECTORS
from jexplicit.lm.tables.contexts import vmap_contexts
from jexplicit.lm.tables.placing import Positions, prepare, prune_rows
from jexplicit.lm.tables.reader import log_p_of_all, read_positions
from jexplicit.lm.tables.storage import Dense
from jexplicit.runs.devices import default_mesh

_positions_of_a_guess = 5000
_least_gain = 1e-5  # nats per position: 0.001 % of a perplexity
_ridge_with_selectors = 2e-3  # at least: so many exponents suit text of another kind better the nearer they stay to the start
_starts = {
    "model": 1.0,
    "adaptive": 0.1,
    "begun": 0.0,
    "indirect": 0.0,
    "recency": 0.0,
    "observed-expected": 0.2,  # where a fit begins, by kind of row
    "unigram": 0.6,
    "context": 0.7,
    "gap": 0.1,
    "skip": 0.2,
    "word": 0.3,
    "class": 0.1,
    "line": 0.1,
    "next": 0.1,
    "repeat": 0.2,
    "cache": 0.2,
}


def ngram_model(chain: Ngrams, f: Int[np.ndarray, " N"], *, eos: bool = False) -> LanguageModel:
    """The interpolated modified Kneser-Ney model: the chain's rows over the unigram, all exponents 1.

    Args:
        chain: of `smoothed_ngrams` with offsets 1, 2, ... .
        f: [N] how often each token is a target of the text.
        eos: whether the text predicts the end of a document.

    Example:
        >>> from jexplicit.lm.training_text import TrainingText
        >>> from jexplicit.lm.generation import next_token
        >>> text = TrainingText(np.array([0, 2, 3, 2, 4, 2, 3, 0]), 5)
        >>> model = ngram_model(text.ngrams((1, 2)), text.target_counts)
        >>> round(float(np.exp(next_token(model, np.array([2]))[3])), 3)  # two times of three, discounted
        0.754

    Source: Chen & Goodman 1999, Sec. 4.
    """
    rows = BackOffChain(unigram_row(f), *chain_rows(chain, f), chain.log_gamma)
    return LanguageModel((rows,), np.ones(1 + len(chain.offsets), np.float32), "none", eos)


class HeldOutRows(NamedTuple):
    """What the positions of a held-out text read of counted rows, and nothing else of them: for several fits.

    names: the row of every exponent; those of selectors come last.
    tables, positions: what is read.
    Y: [M] targets.
    classes, sizes: [M, selectors] the class of every position, and how many there are; they count after `with_selectors`.
    added: how many exponents are those of selectors.
    """

    names: tuple[str, ...]
    tables: tuple[Any, ...]
    positions: Positions
    Y: Int[np.ndarray, " M"]
    classes: Int[np.ndarray, "M selectors"] | None = None
    sizes: tuple[int, ...] = ()
    added: int = 0

    @property
    def row(self) -> Int[np.ndarray, " S"]:
        """The number of the row of every exponent of its own; those of one row stand side by side."""
        names = self.names[: len(self.names) - self.added]
        return np.cumsum([False, *(one != other for one, other in pairwise(names))])

    @property
    def kinds(self) -> list[str]:
        """The kinds of rows: first words of their names; and "selectors"."""
        kinds = list(dict.fromkeys(name.split()[0] for name in self.names))
        return kinds + [SELECTORS] if self.added else kinds

    def has(self, kinds: Sequence[str]) -> Bool[np.ndarray, " S"]:
        """Which exponents weigh rows of some kinds."""
        own = np.arange(len(self.names)) < len(self.names) - self.added
        return np.array([name.split()[0] in kinds for name in self.names]) & (own | (SELECTORS in kinds))

    def scalars(self, kinds: Sequence[str]) -> int:
        """How many exponents some kinds have."""
        return int(self.has(kinds).sum())

    def only(self, exponents: Float[np.ndarray, " S"], kinds: Sequence[str]) -> Float[np.ndarray, " S"]:
        """The exponents of some kinds, 0 for the others."""
        return np.where(self.has(kinds), exponents, 0)

    def take(self, m: slice | np.ndarray) -> "HeldOutRows":
        """Some of the positions, and what they read."""
        classes = None if self.classes is None else self.classes[m]
        tables, positions = prune_rows(self.tables, self.positions.take(m))
        return self._replace(tables=tables, positions=positions, Y=self.Y[m], classes=classes)

    def of_kinds(self, kinds: Sequence[str]) -> "HeldOutRows":
        """What the rows of some kinds are; exponents keep their numbers."""
        rows, exponents = self.positions
        if self.added and SELECTORS not in kinds:
            exponents = exponents[:, :, 0]
        columns = np.flatnonzero(self.has(kinds)[self.positions.parts[:, :, 0]].any(axis=0)).tolist()
        positions = Positions(rows, exponents).columns(columns)
        return self._replace(tables=tuple(self.tables[g] for g in columns), positions=positions)

    def keeping(self, kinds: Sequence[str]) -> "HeldOutRows":
        """The rows of some kinds and their exponents alone, which get new numbers."""
        has, some = self.has(kinds), self.of_kinds(kinds)
        number = np.cumsum(has) - 1
        positions = Positions(some.positions.rows, number[some.positions.exponents])
        names = tuple(name for name, mine in zip(self.names, has, strict=True) if mine)
        return some._replace(names=names, positions=positions, added=int(has[len(has) - self.added :].sum()))

    def beside(self, more: "HeldOutRows") -> "HeldOutRows":
        """These rows and more, read at the same positions."""
        rows = np.concatenate([self.positions.rows, more.positions.rows], axis=1)
        exponents = np.concatenate([self.positions.exponents, len(self.names) + more.positions.exponents], axis=1)
        names, tables = self.names + more.names, self.tables + more.tables
        return self._replace(names=names, tables=tables, positions=Positions(rows, exponents))

    def with_selectors(self) -> "HeldOutRows":
        """The rows with the exponents of the selectors."""
        if self.classes is None or self.added:
            return self
        exponents = add_selected(self.positions.exponents, self.classes, len(self.names), self.sizes)
        of_row = [name for name, _ in groupby(self.names)]
        added = tuple(name for size in self.sizes for name in of_row for _ in range(size))
        positions = Positions(self.positions.rows, exponents)
        return self._replace(names=self.names + added, positions=positions, added=len(added))


def held_out_rows(rows: tuple[Any, ...], held_out: EncodedText, m: np.ndarray, selectors: tuple[Any, ...] = ()) -> HeldOutRows:
    """Read what positions m of a text need of rows of another one, and their classes; without the selectors' exponents."""
    model = LanguageModel(rows, starting_exponents(rows))
    X = held_out.X[m][:, : model.radius]
    tables, positions, _ = read_tables(model, X, held_out.past.take(m))
    classes = vmap_contexts(selected, (model.counted, selectors), X) if selectors else None
    read = HeldOutRows(tuple(exponent_names(rows)), *prune_rows(tables, positions), held_out.Y[m])
    return read._replace(classes=classes, sizes=tuple(selector.size for selector in selectors))


def prediction_row(read: HeldOutRows, exponents: Float[np.ndarray, " S"], mesh: Mesh | None = None) -> HeldOutRows:
    """The prediction of the rows with their exponents, as the one row "model"."""
    mesh = mesh or default_mesh()
    prepared = prepare(read.tables, read.tables[0].vocab_size, mesh)
    log_p = read_positions(log_p_of_all, prepared, exponents, read.positions, read.Y, mesh)
    one = np.arange(len(read.Y), dtype=np.int32)[:, None]
    return HeldOutRows(("model",), (Dense(log_p),), Positions(one, 0 * one), read.Y, read.classes, read.sizes)


def fit_mixture(
    rows: tuple[Any, ...],
    held_out: EncodedText,
    m: np.ndarray,
    *,
    ridge: float | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions m of a text that the rows have not seen.

    Args:
        rows: of another text.
        held_out: the text to fit on.
        m: which of its positions.
        ridge: strength of the penalty on the distance from `starting_exponents`, or with several exponents per row, from the
            best single ones; default, that of `fit_exponents`.
        mesh: devices to spread the positions over; default, all accelerators, or one CPU.
        progress: called with (passes done, most passes).

    Raises:
        ValueError: no positions.

    Example::

        rows = mixture_rows(text, ("contexts-4",))
        held_out = read_text(stream, 5)  # of another text
        fitted = fit_mixture(rows, held_out, np.arange(len(held_out.Y)))
        LanguageModel(rows, fitted.exponents)
    """
    return fit_rows(held_out_rows(rows, held_out, m), ridge=ridge, mesh=mesh, progress=progress)


def fit_rows(
    read: HeldOutRows,
    *,
    guess: Float[np.ndarray, " S"] | None = None,
    ridge: float | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """The same as `fit_mixture`, of rows that have been read.

    Args:
        read: the rows.
        guess: where the fit begins; default, at the exponents that the penalty draws to: rough guesses, or of several per row
            the best single ones.
        ridge, mesh, progress: of `fit_mixture`.
    """
    own, positions, Y, M = len(read.names) - read.added, read.positions, read.Y, len(read.Y)
    ridge = ridge_of(read) if ridge is None else ridge
    gain = _least_gain if M >= _positions_of_a_guess else 0.0  # few positions cost little
    fit = partial(fit_exponents, read.tables, ridge=ridge, gain=gain, mesh=mesh, progress=progress)
    some = slice(None, None, max(1, M // _positions_of_a_guess))  # most of Newton's steps need few positions
    row, start = read.row, np.array([_guess(name) for name in read.names[:own]])
    if read.added or row[-1] + 1 < own:  # one exponent per row is where those of its confidences begin, and drawn to
        tied = Positions(positions.rows[some], row[positions.parts[some][:, :, 0]])
        start = fit(tied, Y[some], start[np.unique(row, return_index=True)[1]]).exponents[row]
    elif guess is None and M >= 2 * _positions_of_a_guess:
        guess = fit(positions.take(some), Y[some], start).exponents
    start = np.concatenate([start, np.zeros(read.added)])
    return fit(positions, Y, start, guess=guess)


def ridge_of(read: HeldOutRows) -> float:
    """The penalty on exponents of rows, nats per position."""
    return max(default_ridge(len(read.Y)), _ridge_with_selectors if read.added else 0)


def starting_exponents(rows: tuple[Any, ...]) -> Float[np.ndarray, " S"]:
    """Rough guesses that a fit starts from."""
    return np.array([_guess(name) for name in exponent_names(rows)])


def _guess(name: str) -> float:
    kind, _, number = name.partition(" ")
    if kind == "offset" and number.isdecimal():
        return 0.1 / int(number)
    return 0.5 if name == "context 1" else _starts.get(kind, 0.2)


def exponent_names(rows: tuple[Any, ...]) -> list[str]:
    """The row of every exponent."""
    return [name for kind in rows for name, n in zip(kind.names, exponents_per_row(kind), strict=True) for _ in range(n)]

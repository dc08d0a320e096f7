"""Rows of everything before a prediction, counted as it is read: adaptive contexts over what a model predicts without them.

A context h that occurred n times before, with d different tokens after it, gives

    q(i|h) = max(c_i - D, 0)/n + (D d/n) b_i,      row[i] = log(q(i|h)/b_i) = log(1 + max(c_i - D, 0)/(D d b_i)) + constant,

with b the prediction of the model that these rows are added to, or for longer contexts of a chain the shorter one's q. So with
exponents of 1 a chain is interpolated absolute discounting over the model, and 0 takes it out. A context that has not occurred
has no row. Counts may begin with those of the training text. A recency row is 1 for the token that came last after its context.

Source: Ney, Essen & Kneser 1994 for the discount; Shazeer, Pelemans & Chelba 2015 for log-linear weights by counts; here, both
together, over any model.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import HISTORY, pytree, static
from jexplicit.lm.core.names import AdaptiveKind
from jexplicit.lm.core.past import Past, contexts_at
from jexplicit.lm.rows.ngrams import CONFIDENCES
from jexplicit.lm.rows.past import balance, growing, on_devices
from jexplicit.lm.rows.past.balance import empty_balance
from jexplicit.lm.rows.past.growing import Row, Run, add_run, cells_of, count_run, joined_rows
from jexplicit.lm.rows.past.keys import CONTEXTS, Block, hashed, mix
from jexplicit.lm.rows.past.latest import Latest, LatestRun, latest, merge_latest
from jexplicit.lm.tables.storage import SparseRows
from jexplicit.runs.devices import on_accelerator

_block = 1 << 12  # positions
_repeats = (2, 3, 4, 6, 11)
_begun = ("begun", "indirect")  # kinds whose counts begin with those of the training text


class Adaptive(NamedTuple):
    """A row of one context.

    context: a name of CONTEXTS.
    kind: adaptive, counts of the text that is read; begun, counts that begin with those of the training text; indirect, the
        same of the context with the two tokens that followed it last; recency, the token that came last after the context,
        there or in the training text; observed-expected, counts beside expected ones.
    over: the shorter context of a chain, with whose q it is interpolated; "" for the prediction of the model.
    """

    context: str
    kind: AdaptiveKind = "adaptive"
    over: str = ""

    @property
    def name(self) -> str:
        """Such as "adaptive last 3"."""
        return f"{self.kind} {self.context}"

    @property
    def latest(self) -> str:
        """The context whose latest tokens it needs; "" for none."""
        return self.context if self.kind in ("recency", "indirect") else ""


class Growth(NamedTuple):
    """What has been counted of a text.

    place: how many of its tokens.
    counts, balances: of every row; empty for rows of other kinds.
    latest: of every context whose latest tokens are needed.
    """

    place: int
    counts: tuple[tuple[Run, ...], ...]
    balances: tuple[Any, ...]
    latest: tuple[tuple[LatestRun, ...], ...]


@pytree
class AdaptiveRows:
    """Adaptive contexts over the prediction of a model.

    rows: which.
    text: [L] the training text, for counts that begin with it.
    letters, ends: [N] which tokens are letters, and ends of lines; None where tokens are no characters.
    vocabulary, radius: N and K.
    discount, prior: D and κ.
    within_documents: whether nothing before the document is seen.
    """

    rows: tuple[Adaptive, ...] = static()
    text: Any = None
    letters: Any = None
    ends: Any = None
    vocabulary: int = static(0)
    radius: int = static(8)
    discount: float = static(0.7)
    prior: float = static(2.0)
    within_documents: bool = static(False)

    names = property(lambda self: tuple(row.name for row in self.rows))
    tokens = property(lambda self: (HISTORY,) * len(self.rows))
    history = 1
    vocab_size = property(lambda self: self.vocabulary)
    exponents_per_row = property(lambda self: (len(CONFIDENCES),) * len(self.rows))
    followed = property(lambda self: tuple(dict.fromkeys(row.latest for row in self.rows if row.latest)))

    def read(self, context, history=None):
        raise ValueError("a model that counts what it reads has no rows of a context alone: read a text (jexplicit.lm.reading)")

    def log_tables(self, X: np.ndarray, past: Past, log_p: Float[np.ndarray, "M N"]) -> list[tuple[Any, np.ndarray, None, Any]]:
        """A table of a row per position for each context, and which exponent each position takes."""
        return self.grow(past, log_p)[0]

    def grow(
        self, past: Past, log_p: Float[np.ndarray, "M N"]
    ) -> tuple[list[tuple[Any, np.ndarray, None, np.ndarray]], Growth]:
        """The same, and what the text is counted to after the last position.

        Raises:
            ValueError: positions that are not in the order of the text, or lie before what has been read.
        """
        past = past.within_documents() if self.within_documents else past
        places, growth = past.places, past.growth or self.nothing()
        if (np.diff(places, prepend=max(growth.place, 1)) < 0).any():
            raise ValueError("positions out of order, or read already: a model that counts as it reads goes forward; sort them")
        parts, growth = self._read_on(
            growth, past.stream, int(places.max(initial=0)) + 1, places, log_p, past.starts is not None
        )
        return [joined_rows(part) for part in parts], growth

    def count_on(self, growth: Growth | None, stream: np.ndarray, end: int) -> Growth:
        """What the first `end` tokens of a text are counted to, where no row is wanted."""
        none, no_log_p = np.zeros(0, np.int64), np.zeros((0, self.vocabulary))
        return self._read_on(growth or self.nothing(), stream, end, none, no_log_p, self.within_documents)[1]

    def _read_on(
        self, growth: Growth, stream: np.ndarray, end: int, wanted: np.ndarray, log_p: np.ndarray, separate: bool
    ) -> tuple[list[list[Row]], Growth]:
        """The rows at the wanted places of the next tokens of a text up to `end`, of each block; and what is counted there."""
        parts: list[list[Row]] = [[] for _ in self.rows]
        for begin in range(max(growth.place, 1), end, _block):
            block = np.arange(begin, min(begin + _block, end))
            m = np.flatnonzero((wanted >= begin) & (wanted < begin + _block))
            found, growth = self.read_block(growth, stream, block, wanted[m] - begin, log_p[m], separate)
            for part, row in zip(parts, found, strict=True):
                part.append(row)
        return parts, growth

    def nothing(self) -> Growth:
        """Of a text that has not begun."""
        n = len(self.rows)
        return Growth(0, ((),) * n, (empty_balance(self.vocabulary),) * n, ((),) * len(self.followed))

    def read_block(
        self,
        growth: Growth,
        stream: np.ndarray,
        places: Int[np.ndarray, " B"],
        m: Int[np.ndarray, " n"],
        log_p: Float[np.ndarray, "n N"],
        separate: bool = False,
    ) -> tuple[list[Row], Growth]:
        """The rows at some of the places that come next in a text, and what is counted after them.

        Args:
            growth: what the text before is counted to.
            stream: the text.
            places: in it.
            m: at which of them rows are wanted.
            log_p: the model's own prediction there.
            separate: whether every document is read as if it were the only one.
        """
        N, begun, tokens = self.vocabulary, self.begun(), self._tokens(stream, places)
        pads = np.flatnonzero(stream == PAD) if separate else None
        document = None if pads is None else pads[np.searchsorted(pads, places) - 1]
        keys, facts, newest = self._keys(growth, begun, self.block_of(stream, places), tokens, document)
        q_of, rows, counts, balances = {}, [], [], []
        there: Any = (on_devices, on_devices, on_devices.probabilities)
        counting, balancing, probabilities = there if on_accelerator() else (growing, balance, np.exp)
        p = probabilities(log_p)
        for n, (row, (key, own_key)) in enumerate(zip(self.rows, keys, strict=True)):
            counted, balanced = (), growth.balances[n]
            if row.kind == "recency":
                rows.append(_recency_row(facts[row.latest].take(m), N))
            elif row.kind == "observed-expected":
                table, balanced = balancing.balance_rows(balanced, key[m], tokens[m], p, self.prior)
                rows.append(Row(table, np.zeros(len(m), np.int64)))
            else:
                first = begun.counts[n] if row.kind in _begun else ()
                base = q_of[row.kind, row.over] if row.over else p
                found, q_of[row.kind, row.context] = counting.counted_row(
                    key, tokens, N, growth.counts[n], first, own_key, m, base=base, D=self.discount
                )
                rows.append(found)
                counted = counting.add_block(growth.counts[n], key, tokens, N)
            counts.append(counted)
            balances.append(balanced)
        return rows, Growth(int(places[-1]) + 1, tuple(counts), tuple(balances), newest)

    def _keys(
        self, growth: Growth, begun: Growth, block: Block, tokens: np.ndarray, document: np.ndarray | None = None
    ) -> tuple[list[tuple[np.ndarray, np.ndarray]], dict[str, Latest], tuple[tuple[LatestRun, ...], ...]]:
        """The key of every row's context in the text and in the training text; the latest tokens, and these after the block."""
        made: dict[str, np.ndarray] = {}

        def key_of(name: str) -> np.ndarray:
            if name not in made:
                if name not in CONTEXTS:
                    raise ValueError(
                        f"context {name!r} is not known here: put its function into jexplicit.lm.rows.past.keys.CONTEXTS"
                    )
                made[name] = CONTEXTS[name](block)
            return made[name]

        def of_document(key: np.ndarray) -> np.ndarray:
            return key if document is None else mix(key, document)

        facts, newest, keys = {}, [], []
        for name, own, first in zip(self.followed, growth.latest, begun.latest, strict=True):
            facts[name], run = latest(own, of_document(key_of(name)), tokens, first, key_of(name))
            newest.append(add_run(own, run, merge_latest))
        for row in self.rows:
            key = key_of(row.context)
            if row.kind == "indirect":
                key = hashed(key, facts[row.context].last, facts[row.context].before)
            keys.append((of_document(key), key))
        return keys, facts, tuple(newest)

    def _tokens(self, stream: np.ndarray, places: np.ndarray) -> Int[np.ndarray, " B"]:
        """The tokens at some places, -1 for `<pad>`, which is not counted."""
        tokens = stream[places].astype(np.int64)
        return np.where(tokens == PAD, -1, tokens)

    def block_of(self, stream: np.ndarray, places: Int[np.ndarray, " B"]) -> Block:
        """The contexts of some places."""
        X = contexts_at(stream, places, self.radius)
        letters, ends = (None if array is None else np.asarray(array) for array in (self.letters, self.ends))
        return Block(X, letters, ends, {})

    def begun(self) -> Growth:
        """What the training text is counted to, at its first use."""
        name = f"_begun_{on_accelerator()}"
        if name not in self.__dict__:
            text, growth = np.zeros(1, np.int64) if self.text is None else np.asarray(self.text), self.nothing()
            cells: list[list[np.ndarray]] = [[] for _ in self.rows]
            for begin in range(1, len(text), _block << 4):
                places = np.arange(begin, min(begin + (_block << 4), len(text)))
                tokens = self._tokens(text, places)
                keys, _, newest = self._keys(growth, self.nothing(), self.block_of(text, places), tokens)
                growth = growth._replace(latest=newest)
                for row, (key, _), own in zip(self.rows, keys, cells, strict=True):
                    if row.kind in _begun:
                        own.append(cells_of(key, tokens, self.vocabulary)[tokens >= 0])
            counts: Any = tuple((count_run(np.concatenate(own)),) if own else () for own in cells)
            if on_accelerator():  # they stay there
                counts = tuple(on_devices.on_device(runs) if runs else () for runs in counts)
            self.__dict__[name] = growth._replace(counts=counts)
        return self.__dict__[name]


def _recency_row(facts: Latest, N: int) -> Row:
    some = facts.times > 0
    start = np.concatenate([[0], np.cumsum(some)])
    rows = SparseRows(start, facts.last[some].astype(np.min_scalar_type(N - 1)), np.ones(start[-1], np.float32))
    return Row(rows, np.searchsorted(_repeats, facts.repeats, side="right"))

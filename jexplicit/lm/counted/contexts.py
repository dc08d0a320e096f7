"""Contexts of a place as 64-bit numbers, its token as decisions along a tree.

Equal columns have equal numbers, others hardly ever. Every function sees the tokens before a place and nothing else.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, UInt8, UInt64
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds
from threadpoolctl import threadpool_limits

from jexplicit.data.tokenizers import PAD, Tokenizer

Column = Integer[np.ndarray, " L"]  # not below zero
_q = np.uint64(0xD1342543DE82EF95)  # odd, so that it has an inverse modulo 2^64
_q_inverse = np.uint64(pow(0xD1342543DE82EF95, -1, 1 << 64))
_shortest_window = 32
_remembered = 10_000  # tokens
_rank = 64  # of word vectors
_merged = 400  # tokens of the largest tree that is merged from below; larger ones are halved from above
_columns = 700  # pairs of tokens before
_short = 20_000  # tokens of a text below which classes are cuts of the tree, too
_most = 1 << 28  # decisions of a text, whose numbers fit the keys that sort them
_k1, _k2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


def mix(a: UInt64[np.ndarray, "*n"] | np.uint64, b: UInt64[np.ndarray, "*n"] | np.uint64) -> Any:
    """A 64-bit number for each pair of numbers."""
    with np.errstate(over="ignore"):
        h = (a ^ b) * _k1 + b
        return (h ^ (h >> np.uint64(29))) * _k2


class Spelling(NamedTuple):
    """Properties of tokens for columns.

    kind: 1 a piece of a word (letters and apostrophes, subwords with one), 2 one with a capital, 3 white space, 4 the end of a
    line, 5 the end of a sentence, 6 all else.
    """

    begins: Bool[np.ndarray, " N"]  # a word, as at `▁the`; and all outside words
    folded: Int[np.ndarray, " N"]  # a number that upper and lower case share
    kind: UInt8[np.ndarray, " N"]
    classes: dict[int, Int[np.ndarray, " N"]]  # of each size

    inside = property(lambda self: (self.kind == 1) | (self.kind == 2))  # tokens that belong to a word
    line = property(lambda self: self.kind == 4)  # tokens that end a line, and <pad>


def spelling(tokenizer: Tokenizer | None, N: int) -> Spelling:
    """The spelling of a tokenizer's tokens; without one, tokens are numbers."""
    pieces = tokenizer.pieces() if tokenizer else [""] * N
    characters = tokenizer is not None and tokenizer.kind == "char"
    inside = np.array([any(c.isalpha() or c == "'" for c in piece) and not (characters and len(piece) > 1) for piece in pieces])
    inside[PAD] = False
    begins = ~inside | np.array([not characters and piece.startswith("▁") for piece in pieces])
    line = np.array([piece == "\n" for piece in pieces])
    line[PAD] = begins[PAD] = True
    known: dict[str, int] = {}
    folded = np.array([known.setdefault(piece.lower(), i) if piece else i for i, piece in enumerate(pieces)], np.int32)
    capital = np.array([piece != piece.lower() for piece in pieces])
    space, stop = (np.array([piece.strip("▁ \t") in some for piece in pieces]) for some in (("",), (".", "!", "?")))
    kind = np.select([line, inside & ~capital, inside, space, stop], [4, 1, 2, 3, 5], 6).astype(np.uint8)
    return Spelling(begins, folded, kind, {})


@dataclass(init=False, repr=False, unsafe_hash=True)
class Context:
    """Some columns together: numbers of tokens back, names, or functions of `Text`.

    window: counts of the last so many tokens alone; None for all that the history lets it see.

    >>> Context("part", "word")
    Context('part', 'word')
    """

    columns: "tuple[int | str | Callable[[Text], Column], ...]"
    window: int | None

    def __init__(self, *columns: "int | str | Callable[[Text], Column]", window: int | None = None):
        for column in columns:
            known = column >= 1 if isinstance(column, int) else callable(column) or column in COLUMNS
            if not known and not re.fullmatch(r"\d+:[1-9]\d*", str(column)):
                names = ", ".join(COLUMNS)
                raise ValueError(
                    f"column {column!r}: give k >= 1 for the token k back, CLASSES:k, a function, or one of {names}"
                )
        self.columns, self.window = columns, window
        self.of_last = window is None and 0 < len(columns) and columns == tuple(range(1, len(columns) + 1))  # 1, 2, ... tokens

    def __repr__(self) -> str:
        named = [column if isinstance(column, int | str) else column.__name__ for column in self.columns]
        window = [] if self.window is None else [f"window={self.window}"]
        return f"Context({', '.join([*map(repr, named), *window])})"


def window_of(history: str) -> int | None:
    """The tokens that a history of "window:W" has; None for the others.

    >>> window_of("window:256"), window_of("all")
    (256, None)
    """
    kind, _, size = history.removesuffix(":document").partition(":")
    if history in ("none", "document", "all", "online", "online:document"):
        return None
    if kind == "window" and size.isdecimal() and len(size) <= 9 and int(size) >= _shortest_window:
        return int(size)
    windows = f"window:W (W at least {_shortest_window} tokens, in up to 9 digits)"
    raise ValueError(f"history {history!r}: choose none, document, {windows}, all, online or online:document")


class Text:
    """A text and its columns, made at first use, without look-ahead.

    ids: [L] tokens; `<pad>` before, between and after documents. spelling: of the tokens. history: of a model; columns end with
    a window of tokens, and with the document unless the history goes on.
    """

    def __init__(self, ids: Integer[np.ndarray, " L"], spelling: Spelling, history: str = "none"):
        self.ids, self.spelling, self.made = np.asarray(ids), spelling, {}
        self.at, alone = np.arange(len(ids), dtype=np.int32), history == "none" or "document" in history
        self.document = self.latest(self.ids == PAD, self.at) if alone else np.zeros_like(self.at)
        self.window = window_of(history)
        self.begin = self.document if self.window is None else np.maximum(self.document, self.at - self.window)

    def __getitem__(self, column: Any) -> Any:
        """A column, a context or tuple of columns, or any function of the text."""
        if isinstance(column, Context | tuple):
            columns = column if isinstance(column, tuple) else column.columns
            h = np.full(len(self.ids), len(columns), np.uint64)
            for one in columns:
                h = mix(h + np.uint64(1), np.asarray(self[one], np.uint64))
            return h
        if column not in self.made:
            make = COLUMNS.get(column, column)
            if callable(make):
                found = make(self)
            else:  # values[t - k] + 1, and 0 before the document
                size, k = (0, column) if isinstance(column, int) else map(int, column.split(":"))
                values = self.spelling.classes[size][self.ids] if size else self.ids
                found = np.zeros(len(self.ids), np.uint64)
                found[k:] = np.where(self.begin[k:] <= self.at[:-k], values[:-k].astype(np.uint64) + np.uint64(1), 0)
            if len(self.made) > max(4, (1 << 25) // len(self.ids)):  # within 256 MB
                self.made.pop(next(iter(self.made)))
            self.made[column] = found
        return self.made[column]

    def span(self, start: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"] | None = None, *, folded: bool = False) -> Column:
        """The number of the tokens from each start to each end, 0 for none."""
        if ("sums", folded) not in self.made:
            c = mix(np.uint64(7), (self.spelling.folded[self.ids] if folded else self.ids).astype(np.uint64))
            powers, inverse = (np.append(np.uint64(1), np.full(len(c), base)) for base in (_q, _q_inverse))
            G = np.append(np.uint64(0), np.cumsum(c * np.multiply.accumulate(powers)[:-1], dtype=np.uint64))
            self.made["sums", folded] = G, np.multiply.accumulate(inverse)
        G, inverse = self.made["sums", folded]
        return ((G[: len(self.ids)] if end is None else G[end]) - G[start]) * inverse[start]  # sum_i c_i q^(i - start)

    def latest(self, event: Bool[np.ndarray, " L"], values: np.ndarray, default: int = 0) -> Int[np.ndarray, " L"]:
        """For each place the value at the last event before it."""
        last = np.append(np.int32(-1), np.maximum.accumulate(np.where(event, self.at, np.int32(-1)))[:-1])
        return np.where(last >= 0, values[np.maximum(last, 0)], default)


# Words. Of characters a word is a run of letters; of subwords it begins at a `▁`.
class Words(NamedTuple):
    """Words of a text, and for each place the words before it."""

    begin: Int[np.ndarray, " words"]
    end: Int[np.ndarray, " words"]
    start: Int[np.ndarray, " L"]  # of the place's own word
    before: Int[np.ndarray, " L"]  # words before that
    first: Int[np.ndarray, " L"]  # words before the document


def _words(text: Text) -> Words:
    inside = text.spelling.inside[text.ids]
    continues = np.append(False, inside[:-1])
    starts = inside & (text.spelling.begins[text.ids] | ~continues)
    begin, end = np.flatnonzero(starts), np.flatnonzero(starts | ~inside)
    end = np.append(end, len(inside))[np.searchsorted(end, begin, side="right")]
    start = np.where(continues, text.latest(starts, text.at), text.at)
    return Words(begin, end, start, np.searchsorted(begin, start), np.searchsorted(begin, text.begin))


def _word(text: Text, k: int, *, folded: bool = False) -> Column:
    """The k-th word that ended before the place, if any."""
    words = text[_words]
    n, spans = words.before - k, text.span(words.begin, words.end, folded=folded)
    return np.where(n >= words.first, np.append(spans, np.uint64(0))[np.maximum(n, 0)], np.uint64(0))


def _since(text: Text) -> Column:
    """All since the last finished word."""
    words = text[_words]
    n = words.before - 1
    last = np.append(words.end, 0)[np.maximum(n, 0)]
    return text.span(np.where(n >= words.first, last, np.minimum(text.begin + 1, text.at)))


def _line_start(text: Text) -> np.ndarray:
    return np.maximum(np.minimum(text.latest(text.spelling.line[text.ids], text.at + 1), text.at), text.begin)


def _opens(text: Text) -> Bool[np.ndarray, " L"]:
    """Whether a place is in the first line of a paragraph."""
    start = text[_line_start]
    empty, before = text.spelling.line[text.ids] & (start == text.at), np.maximum(start - 1, 0)
    return (start > text.begin) & ((text.ids[before] == PAD) | empty[before])


def _speaker(text: Text, k: int) -> Column:
    """The first line of the k-th paragraph back, 1 for the last."""
    start = text[_line_start]
    ends = np.flatnonzero(text.spelling.line[text.ids] & (start < text.at) & text[_opens])
    n = np.searchsorted(ends, text.at) - k
    place = np.append(ends, 0)[np.maximum(n, 0)]
    return np.where((n >= 0) & (start[place] > text.begin), text.span(start)[place], np.uint64(0))


def _line_before(text: Text, what: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Column:
    """A number of the line before, by its ends; 0 without one."""
    start = text[_line_start]
    end = np.maximum(start - 1, 0)
    return np.where(start > text.begin + 1, what(np.maximum(start[end], text.begin), end), 0)


def _last_of(text: Text, *kinds: int) -> np.ndarray:
    """The last place with some kinds of token, or that before the first token."""
    return np.maximum(text.latest(np.isin(text.spelling.kind[text.ids], kinds), text.at, -1), text.begin)


def _since_place(text: Text, event: np.ndarray, place: np.ndarray) -> Column:
    """The number of events from a place on."""
    return np.searchsorted(event, text.at) - np.searchsorted(event, place)


def _shape(text: Text) -> Column:
    """The kinds of the last eight tokens, with runs of small letters as one."""
    kind = text.spelling.kind[text.ids].astype(np.uint64)
    kept = np.flatnonzero((kind != 1) | np.append(True, kind[:-1] != 1))
    n, found = np.searchsorted(kept, text.at), np.zeros(len(kind), np.uint64)
    for k in range(8):
        place = kept[np.maximum(n - 1 - k, 0)]
        found |= np.where((n > k) & (place > text.begin), kind[place], 0).astype(np.uint64) << np.uint64(3 * k)
    return found


def _place(text: Text) -> Column:
    """0 at line starts, 1 and 2 outside, 3 to 7 inside words."""
    part, width = text.at - text[_words].start, text.at - text[_line_start]
    others = text.at - text.latest(text.spelling.inside[text.ids], text.at + 1)
    return np.where(part > 0, np.minimum(part + 2, 7), np.where(width > 0, np.clip(others, 1, 2), 0))


def _followed(text: Text, *back: int) -> Column:
    """The token that came last after the same tokens; 0 without one."""
    h, within = mix(text[back], text.document.astype(np.uint64)), min(_remembered, text.window or _remembered)
    order, found = np.argsort(h, kind="stable"), np.zeros(len(h), np.uint64)
    same = (h[order[1:]] == h[order[:-1]]) & (np.diff(order) <= within)
    found[order[1:]] = np.where(same, mix(np.uint64(0), text.ids[order[:-1]].astype(np.uint64) + np.uint64(1)), np.uint64(0))
    return found


COLUMNS: dict[str, Callable[[Text], Column]] = {
    "part": lambda text: text.span(text[_words].start),
    "word": lambda text: _word(text, 1),
    "word before": lambda text: _word(text, 2),
    "since": _since,
    "line": lambda text: text.span(text[_line_start]),
    "width": lambda text: text.at - text[_line_start],
    "speaker": lambda text: _speaker(text, 1),
    "speaker before": lambda text: _speaker(text, 2),
    "paragraph": lambda text: text[_opens] * (1 + (text[_line_start] == text.at)),  # 2 where it may begin, 1 in its first line
    "first": lambda text: np.where((start := text[_line_start]) < text.at, text.ids[start] + 1, 0),
    "words in line": lambda text: _since_place(text, text[_words].end, text[_line_start]),
    "width before": lambda text: _line_before(text, lambda start, end: end - start + 1),
    "line end": lambda text: _line_before(text, lambda start, end: text.ids[np.maximum(end - 1, 0)] + 1),
    "sentence": lambda text: _since_place(text, text[_words].begin, _last_of(text, 5)),  # words that have begun in it
    "punctuation": lambda text: np.where((last := _last_of(text, 5, 6)) > text.begin, text.ids[last] + 1, 0),
    "shape": _shape,
    "place": _place,
    "followed": lambda text: _followed(text, 1),
    "followed two": lambda text: _followed(text, 1, 2),
    "folded part": lambda text: text.span(text[_words].start, folded=True),
    "folded word": lambda text: _word(text, 1, folded=True),
}


class Tree(NamedTuple):
    """The paths of N tokens through N - 1 nodes; 0 is the root."""

    node: Int[np.ndarray, "N D"]  # from the root on, 0 after the end of a path
    bit: Int[np.ndarray, "N D"]  # which way it goes at each
    length: Int[np.ndarray, " N"]  # decisions of a path

    within = property(lambda self: np.arange(self.node.shape[1]) < self.length[:, None])  # [N, D] which entries are of a path
    # [nodes] how deep each is
    depths = property(lambda self: np.nonzero(self.within)[1][np.unique(self.node[self.within], return_index=True)[1]])

    def log_probabilities(self, log_odds: Float[np.ndarray, "*B nodes"]) -> Float[np.ndarray, "*B N"]:
        """`log P` of every token from the log-odds of all nodes."""
        signed = np.where(self.bit == 1, -1, 1) * np.take(log_odds, self.node, axis=-1)
        return -np.sum(np.where(self.within, np.logaddexp(0, signed), 0), axis=-1)

    def classes(self, size: int, counts: Integer[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The class of every token by a cut of the tree."""
        N, D = self.node.shape
        below = np.bincount(self.node[self.within], np.repeat(counts, self.length), N)  # occurrences below each node
        small = self.within & (below[self.node] <= counts.sum() / size)
        depth = np.where(small.any(axis=1), small.argmax(axis=1), self.length)
        top = np.where(depth < self.length, self.node[np.arange(N), np.minimum(depth, D - 1)], N + np.arange(N))
        return np.unique(top, return_inverse=True)[1].astype(np.int32)


def grow(ids: Integer[np.ndarray, " L"], N: int, sizes: Iterable[int] = ()) -> tuple[Tree, dict[int, Int[np.ndarray, " N"]]]:
    """The tree of a text's tokens, and classes of each size.

    Few tokens are merged from below by the tokens that stand before them, and classes are cuts of their tree. Many are split
    from above by their word vectors, and classes are clusters of these; class 0 has what never occurs.
    """
    if N < 2:
        raise ValueError(f"a vocabulary of {N} token: a tree of decisions needs at least two")
    ids = np.asarray(ids, np.int64)  # sums of small integers would wrap
    counts = np.bincount(ids, minlength=N)
    if N <= _merged:
        pair = ids[:-2] * N + ids[1:-1]  # tokens after the commonest pairs, and after single tokens
        kinds, n = np.unique(pair, return_counts=True)
        common = np.sort(kinds[np.argsort(-n, kind="stable")[:_columns]])
        column, width = len(common) + ids[1:-1], len(common) + N
        known = np.isin(pair, common)
        column[known] = np.searchsorted(common, pair[known])
        tree = agglomerate(np.bincount(ids[2:] * width + column, minlength=N * width).reshape(N, width).astype(float))
        return tree, {size: tree.classes(size, counts) for size in sizes}
    C = csr_array((np.ones(len(ids) - 1, np.int64), (ids[1:], ids[:-1])), shape=(N, N))
    x = word_vectors([C, C.T.tocsr()], _rank)  # from the tokens before, and after
    tree, occurs = bisect(x, counts), np.flatnonzero(counts)
    if len(ids) < _short:
        return tree, {size: tree.classes(size, counts) for size in sizes}
    from sklearn.cluster import KMeans  # it takes a second to import

    classes = {size: np.zeros(N, np.int32) for size in sizes}
    with threadpool_limits(1):  # several threads would add in another order each time
        for size, found in classes.items():
            kmeans = KMeans(min(size, len(occurs)), n_init=1, max_iter=30, random_state=0)  # pyright: ignore[reportArgumentType]
            found[occurs] = 1 + kmeans.fit_predict(x[occurs], sample_weight=np.sqrt(counts[occurs]))
    return tree, classes


def agglomerate(J: Float[np.ndarray, "N C"]) -> Tree:
    """The tree that merges the two clusters that lose least information (Slonim, Tishby 1999)."""
    N = len(J)
    J = J[:, J.any(axis=0) | (np.arange(J.shape[1]) == 0)] + 1e-9  # also of a text without neighbours

    def lost(v: np.ndarray) -> np.ndarray | np.floating:
        total = v.sum(axis=-1)
        return total * np.log(total) - (v * np.log(v)).sum(axis=-1)

    rows = np.concatenate([J, np.zeros((N - 1, J.shape[1]))])
    own, live = np.zeros(2 * N - 1), np.arange(2 * N - 1) < N
    own[:N] = lost(J)
    cost = np.full((2 * N - 1, 2 * N - 1), np.inf)
    for a in range(N - 1):
        cost[a, a + 1 : N] = lost(J[a] + J[a + 1 :]) - own[a] - own[a + 1 : N]
    children = {}
    for new in range(N, 2 * N - 1):
        a, b = map(int, np.unravel_index(np.argmin(cost), cost.shape))
        children[new], rows[new] = (a, b), rows[a] + rows[b]
        own[new], live[[a, b]] = lost(rows[new]), False
        cost[[a, b]] = np.inf
        cost[:, [a, b]] = np.inf
        others = np.flatnonzero(live)
        cost[others, new] = lost(rows[others] + rows[new]) - own[others] - own[new]
        live[new] = True
    return as_tree(children, 2 * N - 2, N)


def word_vectors(pairs: Sequence[csr_array], rank: int) -> Float[np.ndarray, "N R"]:
    """Unit word vectors from counts of pairs, side by side (Levy and Goldberg 2014).

    Leading singular vectors of positive pointwise mutual information `log(n_ij / (n_i q_j))`, with q the distribution of the
    second tokens to the power .75, scaled by root singular values.
    """
    found = []
    for counts in pairs:
        N, C, q = len(counts.indptr) - 1, counts.tocoo(), np.asarray(counts.sum(axis=0)) ** 0.75
        q = q / max(q.sum(), 1e-30)
        information = np.log(C.data / (np.bincount(C.row, C.data, minlength=N)[C.row] * q[C.col]))
        kept = information > 0
        positive = csr_array((information[kept], (C.row[kept], C.col[kept])), shape=(N, N))
        u, s, _ = svds(positive, k=min(rank, N - 2), v0=np.ones(N) / np.sqrt(N))
        found.append(u * np.sqrt(np.maximum(s, 0)))
    x = np.concatenate(found, axis=1)
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-6)


def bisect(x: Float[np.ndarray, "N R"], counts: Integer[np.ndarray, " N"]) -> Tree:
    """The tree that splits sets of tokens by 2-means of unit vectors x.

    Each half keeps a fifth of the occurrences, where the tokens allow it: paths stay short.
    """
    N, children, weight = len(counts), {}, counts + 1e-3
    number, todo = N, [(np.arange(N), None)]
    while todo:
        at, parent = todo.pop()
        own, number = (number, number + 1) if len(at) > 1 else (int(at[0]), number)
        if parent is not None:
            children.setdefault(parent, []).append(own)
        if len(at) == 1:
            continue
        w, left, threshold = weight[at], np.zeros(len(at), bool), None  # the weighted median first
        z, root = x[at] - w @ x[at] / w.sum(), np.sqrt(w)
        v = z[np.argmax((z * z).sum(axis=1) * w)]
        for _ in range(12):  # the power method
            v = (w * (z @ v)) @ z
            v = v / (np.sqrt(v @ v) + 1e-12)
        score = z @ v
        for _ in range(11):
            order = np.argsort(score, kind="stable")
            share = np.cumsum(w[order]) / w.sum()
            n = np.searchsorted(share, 0.5) + 1 if threshold is None else np.count_nonzero(score <= threshold)
            low, high = np.searchsorted(share, 0.2) + 1, np.searchsorted(share, 1 - 0.2)
            low, high = (low, high) if low <= high else (1, len(w) - 1)  # a token may have more than all others
            before, left = left, np.zeros(len(w), bool)
            left[order[: np.clip(n, max(low, 1), min(high, len(w) - 1))]] = True
            if (left == before).all():
                break
            a, b = (root[side] @ z[side] / root[side].sum() for side in (left, ~left))
            score, threshold = z @ (b - a), float(b @ b - a @ a) / 2
        left = left if len(at) > 2 else np.array([True, False])
        todo += [(at[~left], own), (at[left], own)]
    return as_tree(children, N, N)


def as_tree(children: dict[int, tuple[int, int]] | dict[int, list[int]], root: int, N: int) -> Tree:
    """The paths of a tree given by the children of inner nodes."""
    paths: dict[int, tuple[tuple[int, int], ...]] = {root: ()}
    order, number = [root], {}
    for x in order:  # the root first, then its children, and theirs
        if x in children:
            number[x] = len(number)
            for bit, y in enumerate(children[x]):
                paths[y] = (*paths[x], (number[x], bit))
                order.append(y)
    D = max(len(paths[i]) for i in range(N))
    padded = np.array([paths[i] + ((0, 0),) * (D - len(paths[i])) for i in range(N)], np.int32).reshape(N, D, 2)
    return Tree(padded[..., 0], padded[..., 1].astype(np.int8), np.array([len(paths[i]) for i in range(N)], np.int32))


class Decisions(NamedTuple):
    """The decisions of a text: place, block, node of the tree, 0 or 1."""

    place: Int[np.ndarray, " B"]
    block: Int[np.ndarray, " B"]
    node: Integer[np.ndarray, " B"]
    bit: Int[np.ndarray, " B"]


def predicted_places(ids: Integer[np.ndarray, " L"], eos: bool, start: int = 1) -> Int[np.ndarray, " P"]:
    """The places of a stream from `start` on whose tokens are predicted."""
    return np.arange(start, len(ids)) if eos else np.flatnonzero(ids[start:] != PAD) + start


def decisions(
    ids: Integer[np.ndarray, " L"], tree: Tree, places: Int[np.ndarray, " P"], block: np.ndarray | None = None
) -> Decisions:
    """The decisions of the tokens at some places; block: [L] below 256.

    >>> decisions(np.array([0, 1, 2, 0]), as_tree({3: (0, 4), 4: (1, 2)}, 3, 3), np.array([1, 2])).node.tolist()
    [0, 1, 0, 1]
    """
    token = ids[places]
    length = tree.length[token]
    if (B := int(length.sum(dtype=np.int64))) > _most:
        raise ValueError(f"a text of {B:,} decisions: context mixing counts {_most:,} at most; give less text")
    first = np.append(np.int32(0), np.cumsum(length, dtype=np.int32))
    small = np.uint16 if len(tree.length) <= 1 << 16 else np.int32
    node, bit = np.empty(first[-1], small), np.empty(first[-1], np.int8)
    place = np.repeat(places.astype(np.int32), length)
    for d in range(tree.node.shape[1]):
        longer = np.flatnonzero(length > d)
        at = first[longer] + d
        node[at], bit[at] = tree.node[token[longer], d], tree.bit[token[longer], d]
    own = np.zeros(len(bit), np.uint8) if block is None else np.repeat(block[places].astype(np.uint8), length)
    return Decisions(place, own, node, bit)

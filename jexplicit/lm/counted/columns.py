"""Columns and contexts: facts about the tokens before each place, as 64-bit numbers.

A *column* is a pure function of the tokens before a place: the token k back, the part of the word that is there, the words
before, the line so far. A *context* is some columns together: `Context("part", "word")`. Two places with equal columns have
equal numbers, other places hardly ever.

A span of tokens is numbered by a polynomial, so that all spans of a text come from one cumulative sum modulo 2^64:

    G[t] = sum_{i < t} c_i q^i,        span(s, t) = (G[t] - G[s]) q^-s
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt8, UInt64

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer

Column = UInt64[np.ndarray, " L"]
_q = np.uint64(0xD1342543DE82EF95)  # odd, so that it has an inverse modulo 2^64
_q_inverse = np.uint64(pow(0xD1342543DE82EF95, -1, 1 << 64))
_k1, _k2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


def mix(a: Column | np.uint64, b: Column | np.uint64) -> Any:
    """A 64-bit number for each pair of numbers.

    Example:
        >>> one, two = np.uint64(1), np.uint64(2)
        >>> bool(mix(one, two) == mix(two, one))
        False
    """
    with np.errstate(over="ignore"):
        h = (a ^ b) * _k1 + b
        return (h ^ (h >> np.uint64(29))) * _k2


class Spelling(NamedTuple):
    """Properties of tokens for columns, [N] each.

    begins: which tokens begin a word. `▁the` of subwords or words, and every character that is not in a word.
    folded: a number that upper and lower case share.
    kind: 1 a piece of a word (letters and apostrophes, subwords with one), 2 one with a capital, 3 white space, 4 the end of a
        line, 5 the end of a sentence, 6 all else.
    classes: for each size, the class of each token.
    """

    begins: Bool[np.ndarray, " N"]
    folded: Int[np.ndarray, " N"]
    kind: UInt8[np.ndarray, " N"]
    classes: dict[int, Int[np.ndarray, " N"]]

    inside = property(lambda self: (self.kind == 1) | (self.kind == 2))  # tokens that belong to a word
    line = property(lambda self: self.kind == 4)  # tokens that end a line, and <pad>


def spelling(tokenizer: Tokenizer | None, N: int) -> Spelling:
    """The spelling of a tokenizer's tokens; without one, tokens are numbers.

    Example:
        >>> from jexplicit.data.tokenizers import train_tokenizer
        >>> spelling(train_tokenizer(["a b"], kind="char"), 5).inside.sum()
        np.int64(2)
    """
    pieces = [tokenizer.piece(i) for i in range(N)] if tokenizer else [""] * N
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


class Context:
    """Some columns together: numbers of tokens back, names, or functions of `Text`.

    Args:
        columns: of the context.
        window: counts of the last so many tokens alone; None for all that the history lets it see.

    Raises:
        ValueError: a column that is none of these.

    Example:
        >>> Context("part", "word")
        Context('part', 'word')
    """

    def __init__(self, *columns: "int | str | Callable[[Text], Column]", window: int | None = None):
        for column in columns:
            known = column >= 1 if isinstance(column, int) else callable(column) or column in COLUMNS or _class(column)
            if not known:
                names = ", ".join(COLUMNS)
                raise ValueError(
                    f"column {column!r}: give k >= 1 for the token k back, CLASSES:k, a function, or one of {names}"
                )
        self.columns, self.window = columns, window

    def __repr__(self) -> str:
        named = [column if isinstance(column, int | str) else column.__name__ for column in self.columns]
        window = [] if self.window is None else [f"window={self.window}"]
        return f"Context({', '.join([*map(repr, named), *window])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and (self.columns, self.window) == (other.columns, other.window)

    def __hash__(self) -> int:
        return hash((self.columns, self.window))

    def __call__(self, text: "Text") -> Column:
        """[L] the number of the context before each place of a text."""
        h = np.full(len(text.ids), len(self.columns), np.uint64)
        for column in self.columns:
            h = mix(h + np.uint64(1), text[column])
        return h


class Text:
    """A text and its columns, made at first use, without look-ahead.

    Args:
        ids: [L] tokens; `<pad>` before, between and after documents.
        spelling: of the tokens.
        across: whether columns see documents before the current one.
        border: the first place of another text, which sees nothing of this one.
        window: how many tokens back columns see; None for all.
    """

    def __init__(
        self,
        ids: Integer[np.ndarray, " L"],
        spelling: Spelling,
        *,
        across: bool = False,
        border: int | None = None,
        window: int | None = None,
    ):
        self.ids, self.spelling, self.window, self.made = np.asarray(ids), spelling, window, {}
        at = np.arange(len(ids), dtype=np.int32)
        self.document = np.zeros_like(at) if across else _latest(self.ids == PAD, at)
        if border is not None:
            self.document[border:] = np.maximum(self.document[border:], border)
        self.begin = self.document if window is None else np.maximum(self.document, at - window)

    def __getitem__(self, column: "int | str | Callable[[Text], Column]") -> Column:
        if column not in self.made:
            if isinstance(column, int):
                found = self.back(self.ids, column)
            elif callable(column):
                found = np.asarray(column(self), np.uint64)
            elif size := _class(column):
                found = self.back(self.spelling.classes[size[0]][self.ids], size[1])
            else:
                found = COLUMNS[column](self)
            if len(self.made) > max(4, (1 << 25) // len(self.ids)):  # within 256 MB
                self.made.pop(next(iter(self.made)))
            self.made[column] = found
        return self.made[column]

    def back(self, values: Integer[np.ndarray, " L"], k: int) -> Column:
        """`values[t - k] + 1`, and 0 before the document."""
        found = np.zeros(len(self.ids), np.uint64)
        found[k:] = np.where(self.begin[k:] <= np.arange(len(self.ids) - k), values[:-k].astype(np.uint64) + np.uint64(1), 0)
        return found

    def span(self, start: Int[np.ndarray, " n"], end: Int[np.ndarray, " n"] | None = None, values=None) -> Column:
        """The number of the tokens from each start to each end, 0 for none.

        Args:
            start: [n] places.
            end: [n] places; default, all.
            values: [N] numbers in the place of tokens.
        """

        def powers(base: np.uint64) -> np.ndarray:
            return np.multiply.accumulate(np.append(np.uint64(1), np.full(len(self.ids), base)))

        def sums() -> tuple[np.ndarray, np.ndarray | None]:
            c = mix(np.uint64(7), (self.ids if values is None else values[self.ids]).astype(np.uint64))
            return np.append(np.uint64(0), np.cumsum(c * powers(_q)[:-1], dtype=np.uint64)), values  # whose id stays its own

        (G, _), inverse = self.number(f"sums {id(values)}", sums), self.number("inverse", lambda: powers(_q_inverse))
        return ((G[: len(self.ids)] if end is None else G[end]) - G[start]) * inverse[start]

    def number(self, name: str, make: Callable[[], Any]) -> Any:
        """What several columns share."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


def _latest(event: Bool[np.ndarray, " L"], values: np.ndarray, default: int = 0) -> Int[np.ndarray, " L"]:
    """For each place the value at the last event before it."""
    at = np.arange(len(event))
    last = np.maximum.accumulate(np.where(event, at, -1))
    last = np.append(-1, last[:-1])
    return np.where(last >= 0, values[np.maximum(last, 0)], default)


def _class(column: object) -> tuple[int, int] | None:
    """(60, 2) of the column "60:2": about 60 classes, 2 tokens back."""
    size, colon, k = column.partition(":") if isinstance(column, str) else ("", "", "")
    return (int(size), int(k)) if colon and size.isdigit() and k.isdigit() and int(k) else None


# Words. Of characters a word is a run of letters; of subwords it begins at a `▁`.
class Words(NamedTuple):
    """Words of a text: begins, ends, and the continued word by place."""

    begin: Int[np.ndarray, " words"]
    end: Int[np.ndarray, " words"]
    start: Int[np.ndarray, " L"]


def _words(text: Text) -> Words:
    def make() -> Words:
        inside, at = text.spelling.inside[text.ids], np.arange(len(text.ids))
        starts = inside & (text.spelling.begins[text.ids] | ~np.append(False, inside[:-1]))
        begin = np.flatnonzero(starts)
        end = np.flatnonzero(starts | ~inside)
        end = np.append(end, len(at))[np.searchsorted(end, begin, side="right")]
        continues = np.append(False, inside[:-1])
        return Words(begin, end, np.where(continues, _latest(starts, at), at))

    return text.number("words", make)


def _finished(text: Text, k: int) -> tuple[np.ndarray, np.ndarray]:
    """[L] the k-th word that ended before the place, if any."""
    words = _words(text)
    n = np.searchsorted(words.begin, words.start) - k
    known = (n >= 0) & (n >= np.searchsorted(words.begin, text.begin))
    return np.maximum(n, 0), known


def _part(text: Text, values: np.ndarray | None = None) -> Column:
    return text.span(_words(text).start, values=values)


def _word(text: Text, k: int, values: np.ndarray | None = None) -> Column:
    words, (n, known) = _words(text), _finished(text, k)
    if not len(words.begin):
        return np.zeros(len(n), np.uint64)
    return np.where(known, text.span(words.begin, words.end, values)[n], np.uint64(0))


def _since(text: Text) -> Column:
    """All since the last finished word."""
    n, known = _finished(text, 1)
    ends, at = _words(text).end, np.arange(len(text.ids))
    last = ends[n] if len(ends) else n
    return text.span(np.where(known, last, np.minimum(text.begin + 1, at)))


def _line_start(text: Text) -> np.ndarray:
    at = np.arange(len(text.ids))
    return text.number(
        "line start", lambda: np.maximum(np.minimum(_latest(text.spelling.line[text.ids], at + 1), at), text.begin)
    )


def _opens(text: Text) -> Bool[np.ndarray, " L"]:
    """Whether a place is in the first line of a paragraph."""
    at, start = np.arange(len(text.ids)), _line_start(text)
    empty, before = text.spelling.line[text.ids] & (start == at), np.maximum(start - 1, 0)
    return (start > text.begin) & ((text.ids[before] == PAD) | empty[before])


def _speaker(text: Text, k: int) -> Column:
    """The first line of the k-th paragraph back, 1 for the last."""
    at, start = np.arange(len(text.ids)), _line_start(text)
    ends = np.flatnonzero(text.spelling.line[text.ids] & (start < at) & _opens(text))
    n = np.searchsorted(ends, at) - k
    place = np.append(ends, 0)[np.maximum(n, 0)]
    return np.where((n >= 0) & (start[place] > text.begin), text.span(start)[place], np.uint64(0))


def _paragraph(text: Text) -> Column:
    """2 where a paragraph may begin, 1 in its first line, else 0."""
    return (_opens(text) * (1 + (_line_start(text) == np.arange(len(text.ids))))).astype(np.uint64)


def _in_line(text: Text) -> Column:
    """How many words of the line have ended."""
    ends = _words(text).end
    return (np.searchsorted(ends, np.arange(len(text.ids))) - np.searchsorted(ends, _line_start(text))).astype(np.uint64)


def _line_before(text: Text, what: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Column:
    """A number of the line before, by its ends; 0 without one."""
    start = _line_start(text)
    end = np.maximum(start - 1, 0)
    return np.where(start > text.begin + 1, what(np.maximum(start[end], text.begin), end), 0).astype(np.uint64)


def _of_kind(text: Text, kinds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[L] the last place with some kinds of token, if any."""
    at = np.arange(len(text.ids))
    last = _latest(np.isin(text.spelling.kind[text.ids], kinds), at, -1)
    return np.maximum(last, 0), last > text.begin


def _sentence(text: Text) -> Column:
    """How many words have begun since the end of the sentence before."""
    begin, (stop, known) = _words(text).begin, _of_kind(text, (5,))
    first = np.where(known, stop, text.begin)
    return (np.searchsorted(begin, np.arange(len(text.ids))) - np.searchsorted(begin, first)).astype(np.uint64)


def _punctuation(text: Text) -> Column:
    """The last token that is neither word nor white space."""
    last, known = _of_kind(text, (5, 6))
    return np.where(known, text.ids[last].astype(np.uint64) + np.uint64(1), np.uint64(0))


def _shape(text: Text, length: int = 8) -> Column:
    """The kinds of the last tokens, with runs of small letters as one."""
    kind, at = text.spelling.kind[text.ids].astype(np.uint64), np.arange(len(text.ids))
    kept = np.flatnonzero((kind != 1) | np.append(True, kind[:-1] != 1))
    n, found = np.searchsorted(kept, at), np.zeros(len(at), np.uint64)
    for k in range(length):
        place = kept[np.maximum(n - 1 - k, 0)]
        found |= np.where((n > k) & (place > text.begin), kind[place], 0).astype(np.uint64) << np.uint64(3 * k)
    return found


def _above(text: Text) -> Column:
    """The two tokens that stand above the place, in the line before."""
    at, start = np.arange(len(text.ids)), _line_start(text)
    before = _line_start(text)[np.maximum(start - 1, 0)]
    place = before + (at - start)
    known = (place < start - 1) & (place > text.begin) & (start > text.begin + 1)
    ids = text.ids.astype(np.uint64) + np.uint64(1)
    return np.where(known, mix(ids[np.minimum(place, len(at) - 1)], ids[np.minimum(place + 1, len(at) - 1)]), np.uint64(0))


def place_in_word(text: Text) -> Int[np.ndarray, " L"]:
    """0 at line starts, 1 and 2 outside, 3 to 7 inside words."""
    at = np.arange(len(text.ids))
    part = at - _words(text).start
    others = at - _latest(text.spelling.inside[text.ids], at + 1)
    width = at - _line_start(text)
    return np.where(part > 0, np.minimum(part + 2, 7), np.where(width > 0, np.clip(others, 1, 2), 0)).astype(np.int32)


def follower(context: Context, n: int = 2, window: int = 10_000) -> Callable[[Text], Column]:
    """A column: the last n continuations of the same context; 0 without one."""

    def followed(text: Text) -> Column:
        h, within = mix(context(text), text.document.astype(np.uint64)), min(window, text.window or window)
        order = np.argsort(h, kind="stable")
        sorted_h, ids, found = h[order], text.ids[order].astype(np.uint64) + np.uint64(1), np.zeros(len(h), np.uint64)
        for k in range(1, n + 1):
            same = (sorted_h[k:] == sorted_h[:-k]) & (order[k:] - order[:-k] <= within)
            found[k:] = np.where(same, mix(found[k:], ids[:-k]), found[k:])
        out = np.empty_like(found)
        out[order] = found
        return out

    followed.__name__ = f"followed {context!r}"
    return followed


COLUMNS: dict[str, Callable[[Text], Column]] = {
    "part": _part,
    "word": lambda text: _word(text, 1),
    "word before": lambda text: _word(text, 2),
    "two words before": lambda text: _word(text, 3),
    "since": _since,
    "line": lambda text: text.span(_line_start(text)),
    "width": lambda text: (np.arange(len(text.ids)) - _line_start(text)).astype(np.uint64),
    "speaker": lambda text: _speaker(text, 1),
    "speaker before": lambda text: _speaker(text, 2),
    "paragraph": _paragraph,
    "first": lambda text: np.where((at := _line_start(text)) < np.arange(len(text.ids)), text.ids[at] + 1, 0).astype(np.uint64),
    "words in line": _in_line,
    "width before": lambda text: _line_before(text, lambda start, end: end - start + 1),
    "line end": lambda text: _line_before(text, lambda start, end: text.ids[np.maximum(end - 1, 0)] + 1),
    "sentence": _sentence,
    "punctuation": _punctuation,
    "shape": _shape,
    "above": _above,
    "place": lambda text: place_in_word(text).astype(np.uint64),
    "followed": follower(Context(1), 1),
    "followed two": follower(Context(1, 2), 1),
    "folded part": lambda text: _part(text, text.spelling.folded),
    "folded word": lambda text: _word(text, 1, text.spelling.folded),
}

"""ARPA files of n-gram models, as KenLM, SRILM and speech decoders read them.

An n-gram that occurred stands with log10 P(i|h), its context with the back-off weight log10 γ(h), and the recursion of ARPA,
P(i|h) = γ(h) P(i|h') for all others, h' without the furthest token, gives the model's own interpolated numbers.

`<pad>` is `<s>` in a context and `</s>` as what is predicted. A model that does not predict the end of a document (no `eos`)
has `</s>` at log10 p = -99: score without it. Contexts of the start of a document end at their first `<s>`, as in decoders.
"""

import contextlib
import gzip
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.inputs import file_lines
from jexplicit.data.tokenizers import UNK_ID, Tokenizer
from jexplicit.lm.core.model import LanguageModel, Sparse, sparse_rows
from jexplicit.lm.rows import BackOffChain, Children
from jexplicit.runs.files import local_path

NEVER = -99.0  # log10 p of what is not predicted, as SRILM writes it
_block, _ln10 = 1 << 16, float(np.log(10))  # lines at a time
_off_by = 1e-2  # of the sum of the unigrams: files of five digits
_escaped = re.compile(r"[\s\0]|\\(?=u[0-9a-f]{4})")
_reserved = ("<s>", "</s>", "<unk>", "<UNK>")
_end = "the end of the file"
_write_again = "the file is cut short, or its header counts other n-grams: write or download it again"


def is_arpa(path: str | os.PathLike) -> bool:
    """Whether a path names an ARPA file, .arpa or .arpa.gz, in any case."""
    return str(path).lower().endswith((".arpa", ".arpa.gz"))


def arpa_words(tokenizer: Tokenizer) -> list[str]:
    """The ARPA word of each token id: its piece without a space mark.

    White space in a piece is written `\\uXXXX`, and so is the first character of a piece such as `</s>`, or of one that would
    read like another. A decoder scores `" ".join(words[i] for i in tokenizer.encode(text))`.

    >>> from jexplicit.data.tokenizers import train_tokenizer
    >>> arpa_words(train_tokenizer(["to be\\n</s>"], kind="word"))[1:]
    ['<unk>', '\\\\u000a', '\\\\u003c/s>', 'be', 'to']
    """
    pieces = tokenizer.pieces()
    if tokenizer.kind == "words":  # of an ARPA file
        return pieces
    if tokenizer.kind == "word":
        pieces = [piece.removeprefix("▁") for piece in pieces]
    words = [
        f"\\u{ord(piece[0]):04x}{piece[1:]}" if piece in _reserved else _escaped.sub(lambda m: f"\\u{ord(m[0]):04x}", piece)
        for piece in pieces
    ]
    words[UNK_ID] = "<unk>"
    seen: set[str] = set()
    for i, word in enumerate(words):  # `▁` is a space, and the character itself
        words[i] = f"\\u{ord(word[0]):04x}{word[1:]}" if word in seen else word
        if not word or words[i] in seen:
            raise ValueError(f"the tokenizer has {word!r} as several pieces: an ARPA file tells tokens apart by their text")
        seen.add(words[i])
    return words


class Level(NamedTuple):
    """Contexts of one length, and the n-grams that they begin; in nats.

    keys: [R] `shorter context * N + token`: context r. entries: [E] `context * N + output`.
    """

    keys: np.ndarray
    entries: np.ndarray
    log_p: np.ndarray
    weight: np.ndarray


def _search(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of every wanted key, and whether it is there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def _backed_off(levels: Sequence[Level], base: np.ndarray, contexts: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """`log P(i|h)` for contexts of the last level, by the recursion of ARPA."""
    if not levels:
        return base[outputs]
    level, N = levels[-1], len(base)
    place, there = _search(level.entries, contexts * N + outputs)
    log_p, new = level.log_p[place] if len(level.log_p) else np.empty(len(outputs)), np.flatnonzero(~there)
    if len(new):
        h = contexts[new]
        log_p[new] = level.weight[h] + _backed_off(levels[:-1], base, level.keys[h] // N, outputs[new])
    return log_p


def _levels_of(chain: BackOffChain) -> tuple[np.ndarray, list[Level]]:
    """`log p` without context, and the levels of a model's rows."""
    base, N, levels = np.asarray(chain.base, np.float64), chain.vocab_size, []

    def keys_of(start: Any, ids: Any) -> np.ndarray:
        sizes = np.diff(np.asarray(start).astype(np.int64))
        return np.repeat(np.arange(len(sizes)) * N, sizes) + np.asarray(ids).astype(np.int64)

    for n, (rows, log_gamma) in enumerate(zip(chain.levels, chain.log_gamma, strict=True)):
        keys, weight = keys_of(*chain.children[n - 1]) if n else np.arange(N), np.asarray(log_gamma, np.float64)
        context, output = np.divmod(entries := keys_of(rows.start, rows.ids), N)
        lower = _backed_off(levels, base, keys[context] // N, output)
        levels.append(Level(keys, entries, lower + np.asarray(rows.values, np.float64) + weight[context], weight))
    return base, levels


def _seen_once(levels: Sequence[Level], N: int) -> list[np.ndarray]:
    """Which contexts of every level have `<pad>` once at most."""
    pairs = zip(levels, levels[1:], strict=False)
    return [np.ones(N, bool), *(above.keys[level.keys // N] % N != PAD for above, level in pairs)]


def _fold_starts(levels: Sequence[Level], N: int) -> list[Level]:
    """Merge contexts w `<pad>` `<pad>` ...: `<s>` w stands for all of them."""
    levels, once = list(levels), _seen_once(levels, N)
    for n in range(len(levels) - 2, -1, -1):
        (short, long), deeper = levels[n : n + 2], ~once[n + 1]
        parent, own = long.keys // N, np.flatnonzero(deeper[long.entries // N])
        shifted = np.zeros(len(short.weight))
        shifted[parent[deeper]] = long.weight[deeper]
        log_p = short.log_p + shifted[short.entries // N]
        place, _ = _search(short.entries, parent[long.entries[own] // N] * N + long.entries[own] % N)
        log_p[place] = long.log_p[own]
        levels[n] = short._replace(log_p=log_p, weight=short.weight + shifted)
    return levels


def _weights(levels: Sequence[Level], N: int) -> list[np.ndarray]:
    """Back-off weights of n-grams as contexts, from the unigrams on."""
    once, weights = _seen_once(levels, N), [levels[0].weight if levels else np.zeros(N)]
    found, nearest, rest = np.ones(N, bool), np.arange(N), np.zeros(N, np.int64)  # rest: without the nearest token
    for n, (above, level) in enumerate(zip(levels, levels[1:], strict=False), 1):
        parent, token = np.divmod(level.keys, N)
        rest, there = _search(above.keys, rest[parent] * N + token)
        found, nearest = found[parent] & there, nearest[parent]
        place, listed = _search(above.entries, rest * N + nearest)
        if not np.all(found & listed | ~once[n]):
            raise ValueError("the model has a context, and not the one without its first token: fit it on whole documents")
        weights.append(np.zeros(len(above.entries)))
        weights[n][place[once[n]]] = level.weight[once[n]]
    return [*weights, np.zeros(len(levels[-1].entries))] if levels else weights


def _context_tokens(levels: Sequence[Level], N: int) -> np.ndarray:
    """[R, n] the tokens of every context of the last level, the nearest last."""
    tokens, parent = [levels[-1].keys % N], levels[-1].keys // N
    for level in reversed(levels[:-1]):
        tokens.append(level.keys[parent] % N)
        parent = level.keys[parent] // N
    return np.stack(tokens, axis=1).astype(np.int32)


def write_arpa(path: str | os.PathLike, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Write a model of methods ngram, unigram or bigram as an ARPA file.

    Source: Chen & Goodman 1999, Sec. 2.8, interpolated models in back-off form; the format is that of SRILM's ngram-format(5).
    """
    path, words, N = local_path(path), arpa_words(tokenizer), model.vocab_size
    if len(words) != N:
        raise ValueError(f"a tokenizer of {len(words)} tokens and a model of {N}: use the model's own")
    if not isinstance(model.rows, BackOffChain):
        name = type(model.rows).__name__
        raise ValueError(f"a model of {name} is no n-gram model, which an ARPA file holds: choose the method ngram")
    base, levels = _levels_of(model.rows)
    levels = _fold_starts(levels, N)
    once, weights = _seen_once(levels, N), _weights(levels, N)
    sections: list[tuple[int, Iterator[list[str]]]] = [(N + 1, iter([_unigram_lines(base, weights[0], words, eos=model.eos)]))]
    for n, level in enumerate(levels, 1):
        kept = np.flatnonzero(once[n - 1][level.entries // N])
        sections.append((len(kept), _lines(levels[:n], kept, weights[n], words, last=n == len(levels))))
    if not levels:
        sections.append((0, iter(())))  # KenLM reads no file of order 1, but one without bigrams
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(partial, "wb", compresslevel=5) if path.suffix.lower() == ".gz" else open(partial, "wb") as file:
            file.write(b"\\data\\\n")
            file.writelines(f"ngram {n}={size}\n".encode() for n, (size, _) in enumerate(sections, 1))
            for n, (_, lines) in enumerate(sections, 1):
                file.write(f"\n\\{n}-grams:\n".encode())
                file.writelines("".join(block).encode() for block in lines)
            file.write(b"\n\\end\\\n")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ValueError(f"{path} cannot be written ({error}): make room, or choose another place") from error


def _unigram_lines(base: np.ndarray, weight: np.ndarray, words: list[str], *, eos: bool) -> list[str]:
    p, b = (base / _ln10).tolist(), (weight / _ln10).tolist()
    start, end = f"{NEVER:g}\t<s>\t{b[PAD]:.8g}\n", f"{p[PAD] if eos else NEVER:.8g}\t</s>\t0\n"
    unk, *others = (f"{p[i]:.8g}\t{words[i]}\t{b[i]:.8g}\n" for i in range(len(p)) if i != PAD)
    return [unk, start, end, *others]


def _lines(
    levels: Sequence[Level], kept: np.ndarray, weight: np.ndarray, words: list[str], *, last: bool
) -> Iterator[list[str]]:
    """The lines of the n-grams `kept` of the last level, block by block."""
    level, N = levels[-1], len(words)
    tokens, inside, outputs = _context_tokens(levels, N), list(words), list(words)
    inside[PAD], outputs[PAD] = "<s>", "</s>"
    for m in range(0, len(kept), _block):
        e = kept[m : m + _block]
        context, output = np.divmod(level.entries[e], N)
        first = context[0]
        texts = [" ".join(inside[i] for i in row) for row in tokens[first : context[-1] + 1].tolist()]
        numbers = zip((level.log_p[e] / _ln10).tolist(), (context - first).tolist(), output.tolist(), strict=True)
        ends = [""] * len(e) if last else [f"\t{b:.8g}" for b in (weight[e] / _ln10).tolist()]
        yield [f"{p:.8g}\t{texts[c]} {outputs[i]}{end}\n" for (p, c, i), end in zip(numbers, ends, strict=True)]


class Order(NamedTuple):
    """N-grams of one order: word ids (-1 for `</s>`), log p and weights."""

    words: np.ndarray
    log_p: np.ndarray
    weight: np.ndarray


class ArpaFile:
    """The n-grams of an ARPA file by order; its unigrams number the words."""

    def __init__(self, path: str):
        self.path, self.words, self.orders = path, ["<pad>", "<unk>"], list[Order]()
        self._line, self._lines = 0, file_lines(path)
        while (text := self._next()) != "\\data\\":  # some programs write comments first
            if text.startswith("\\") or text == _end:
                raise self._error(f"{text[:40]!r} instead of \\data\\; give an ARPA file, as launch.export or lmplz write it")
        sizes: list[int] = []
        while match := re.fullmatch(rf"ngram\s+{len(sizes) + 1}\s*=\s*(\d{{1,18}})", text := self._next()):
            sizes.append(int(match[1]))
        if not any(sizes[:1]):
            raise self._error(f"{text[:40]!r} instead of `ngram 1=...`; write the file again")
        ids = {"<s>": 0, "<unk>": 1, "<UNK>": 1}
        for n, size in enumerate(sizes, 1):
            self._expect(text, f"\\{n}-grams:")
            self.orders.append(self._read(n, size, ids))
            text = self._next()
        self._expect(text, "\\end\\")
        self._expect(self._next(), _end)  # which is that of a compressed file, with its checksum

    def _read(self, n: int, size: int, ids: dict[str, int]) -> Order:
        found, numbers = array("q"), array("d")
        for _ in range(size):
            fields = re.split(r"[ \t]+", line := self._next())
            words = fields[1 : n + 1]
            try:
                log_p, weight = float(fields[0]), float(fields[n + 1]) if len(fields) > n + 1 else 0.0
                if len(words) < n or len(fields) > n + 2 or not log_p <= 0 or np.isnan(weight):
                    raise ValueError
                if n == 1 and words[0] not in ids:
                    ids[words[0]] = -1 if words[0] == "</s>" else len(self.words)
                    self.words += [word for word in words if word != "</s>"]
                found.extend([ids[word] for word in words])
                numbers.extend((log_p, weight))
            except (KeyError, ValueError):
                wanted = f"a log10 probability of at most 0, {n} of the unigrams and at most one weight"
                raise self._error(f"{line[:60]!r} is not {wanted}; {_write_again}") from None
        log_p, weight = np.maximum(np.array(numbers).reshape(-1, 2).T, NEVER) * _ln10
        return Order(np.array(found, np.int64).reshape(-1, n), log_p, weight)

    def _next(self) -> str:
        """The next line that is not blank."""
        for line in self._lines:
            self._line += 1
            if line := line.strip(" \t\r\n"):
                return line
        return _end

    def _expect(self, text: str, wanted: str) -> None:
        if text != wanted:
            raise self._error(f"{text[:40]!r} instead of {wanted}; {_write_again}")

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self.path}, line {self._line}: {what}")


def read_arpa(path: str | os.PathLike, tokenizer: Tokenizer | None = None) -> tuple[LanguageModel, Tokenizer]:
    """The language model of an ARPA file of any order, and its tokenizer.

    Args:
        path: of the file, .gz or not; `write_arpa`'s, KenLM's lmplz's, SRILM's.
        tokenizer: whose tokens the words of the file are, in the spelling of `arpa_words`; default, words that white space
            separates.

    Returns:
        a model of n-gram rows, and the tokenizer. The model predicts `<pad>` (`eos`) where the file gives `</s>` more than -99.

    Raises:
        ValueError: with file, line and remedy: no ARPA file, or one cut short; counts that are not those of its sections; a
            word that is no unigram; an n-gram that stands twice; words other than the tokenizer's; unigrams that do not sum
            to 1.

    Example::

        model, tokenizer = read_arpa("lm.arpa.gz")
        TextModel(model, tokenizer, {}).score(["to be"])
    """
    file = ArpaFile(str(local_path(path)))
    words = file.words if tokenizer is None else arpa_words(tokenizer)
    tokenizer, N = tokenizer or Tokenizer("\n".join(words[2:]).encode(), "words"), len(words)
    if differ := set(words[2:]) ^ set(file.words[2:]):
        has = "has" if min(differ) in file.words else "does not have"
        raise ValueError(f"{file.path} {has} {min(differ)!r}, unlike the tokenizer: pass the model's own tokenizer, or none")
    ids = {word: i for i, word in enumerate(words)}
    renamed = np.array([0, 1, *(ids[word] for word in file.words[2:]), PAD])  # the last one is that of </s>, -1
    base, eos = _unigrams(file, renamed, N)
    levels = _numbered(file, [order for order in file.orders if len(order.log_p)], renamed, N)
    rows: list[Sparse] = []
    for n, level in enumerate(levels):
        context, output = np.divmod(level.entries, N)
        lower = _backed_off(levels[:n], base, level.keys[context] // N, output)
        values = (level.log_p - level.weight[context] - lower).astype(np.float32)
        rows.append(sparse_rows(*_rows_of(level.entries, len(level.keys), N), values, N))
    children = (Children(*_rows_of(level.keys, len(above.keys), N)) for above, level in zip(levels, levels[1:], strict=False))
    log_gamma = tuple(jnp.asarray(level.weight, jnp.float32) for level in levels)
    chain = BackOffChain(jnp.asarray(base, jnp.float32), tuple(children), tuple(rows), log_gamma)
    return LanguageModel(chain, "none", eos), tokenizer


def _unigrams(file: ArpaFile, renamed: np.ndarray, N: int) -> tuple[np.ndarray, bool]:
    """log p of every token, and whether document ends are predicted."""
    named, log_p = file.orders[0].words[:, 0], file.orders[0].log_p
    if len(np.unique(named)) < len(named):
        raise ValueError(f"{file.path}: a unigram stands in it twice; write the file again")
    base = np.full(N, NEVER * _ln10)
    base[renamed[named[named > 0]]] = log_p[named > 0]
    end = float(log_p[named == -1].max(initial=NEVER * _ln10))
    eos, left = end > (NEVER + 1) * _ln10, 1 - float(np.sum(np.exp(base[PAD + 1 :])))
    if abs(left - np.exp(end) if eos else min(left, 0)) > _off_by:
        total = 1 - left + (np.exp(end) if eos else 0)
        raise ValueError(f"{file.path}: the unigrams sum to {total:.5g}: renormalise the model (SRILM: ngram -renorm)")
    base[PAD] = end if eos else np.log(max(left, 10**NEVER))  # the rest is that of `<pad>`, which no text asks for
    return base, eos


def _numbered(file: ArpaFile, orders: list[Order], renamed: np.ndarray, N: int) -> list[Level]:
    """Contexts by level, numbered as in jexplicit.lm.rows."""
    read = []
    for order in orders[1:]:  # nearest token first, the output last
        context, output = order.words[:, -2::-1], order.words[:, -1]
        alive = (context >= 0).all(axis=1) & (output != 0) & (context[:, :-1] != 0).all(axis=1)
        read.append((renamed[context[alive]], renamed[output[alive]], order.log_p[alive]))
    numbers, keys = [context[:, 0] for context, *_ in read], [np.arange(N)]
    for m in range(1, len(read)):
        wanted = [numbers[n] * N + read[n][0][:, m] for n in range(m, len(read))]
        found, inverse = np.unique(np.concatenate(wanted), return_inverse=True)
        numbers[m:] = np.split(inverse, np.cumsum([len(part) for part in wanted])[:-1])
        keys.append(found)
    levels = []
    for n, (_, output, log_p) in enumerate(read):
        order = np.argsort(entries := numbers[n] * N + output, kind="stable")
        if (np.diff(entries[order]) == 0).any():
            raise ValueError(f"{file.path}: a {n + 2}-gram stands in it twice; write the file again")
        levels.append(Level(keys[n], entries[order], log_p[order], _weights_of_file(orders[n], keys[: n + 1], renamed, N)))
    return levels


def _weights_of_file(order: Order, keys: list[np.ndarray], renamed: np.ndarray, N: int) -> np.ndarray:
    """Back-off weights of a level's contexts, 0 where the file has none."""
    spelled = np.flatnonzero((order.words >= 0).all(axis=1))
    tokens = renamed[order.words[spelled, ::-1]]
    number, there = tokens[:, 0], np.ones(len(spelled), bool)
    for n in range(1, len(keys)):
        number, found = _search(keys[n], number * N + tokens[:, n])
        there &= found
    weights = np.zeros(len(keys[-1]))
    weights[number[there]] = order.weight[spelled[there]]
    return weights


def _rows_of(keys: np.ndarray, rows: int, N: int) -> tuple[Any, Any]:
    """Starts and ids of rows by sorted keys `row * N + id`."""
    start = np.searchsorted(keys, np.arange(rows + 1) * N)
    if len(keys) >= 2**31:
        raise ValueError(f"{len(keys)} n-grams of one order: rows number at most 2^31 - 1; prune the file")
    return jnp.asarray(start.astype(np.int32)), jnp.asarray((keys % N).astype(np.uint16 if N <= 1 << 16 else np.int32))

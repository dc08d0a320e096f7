"""ARPA files of n-gram models, as KenLM, SRILM and speech decoders read them.

A chain of n-gram rows is a back-off model: with P(i|h') of the context h' without its furthest token,

    P(i|h) = P(i|h') exp(row_h[i]) / Z(h),      Z(h) = 1 + sum_{i after h} P(i|h') (exp(row_h[i]) - 1)

so an n-gram that occurred is written with log10 P(i|h), its context with the back-off weight -log10 Z(h), and the recursion of
ARPA, P(i|h) = 10^weight(h) P(i|h') for all others, gives the model's own interpolated numbers. Read again, a row is
log P(i|h) less what the file backs off to; the weights cancel in the softmax, for all models whose probabilities sum to 1.

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
from jexplicit.lm.core.model import Constant, LanguageModel, SparseRows
from jexplicit.lm.rows import BackOffChain, Children, SparseTables
from jexplicit.runs.files import local_path

NEVER = -99.0  # log10 p of what is not predicted, as SRILM writes it
_block, _ln10 = 1 << 16, float(np.log(10))  # lines at a time
_off_by = 1e-2  # of the sum of a context's probabilities: files of five digits and large weights
_escaped = re.compile(r"[\s\0]|\\(?=u[0-9a-f]{4})")
_reserved = ("<s>", "</s>", "<unk>", "<UNK>")


def is_arpa(path: str | os.PathLike) -> bool:
    """Whether a path names an ARPA file, .arpa or .arpa.gz, in any case.

    >>> is_arpa("lm.arpa.gz"), is_arpa("lm.safetensors")
    (True, False)
    """
    return str(path).lower().endswith((".arpa", ".arpa.gz"))


def arpa_words(tokenizer: Tokenizer) -> list[str]:
    """The ARPA word of each token id: its piece without a space mark.

    White space in a piece is written `\\uXXXX`, and so is the first character of a piece such as `</s>`, or of one that would
    read like another. The words of a text are those of its token ids: `" ".join(words[i] for i in tokenizer.encode(text))` is
    what a decoder scores.

    >>> from jexplicit.data.tokenizers import train_tokenizer
    >>> arpa_words(train_tokenizer(["to be\\n</s>"], kind="word"))[1:]
    ['<unk>', '\\\\u000a', '\\\\u003c/s>', 'be', 'to']
    """
    pieces = tokenizer.pieces()
    if tokenizer.kind == "words":  # of an ARPA file
        return pieces
    if tokenizer.kind == "word":
        pieces = [piece.removeprefix("▁") for piece in pieces]
    words = [_escape(piece) for piece in pieces]
    words[UNK_ID] = "<unk>"
    seen: set[str] = set()
    for i, word in enumerate(words):  # `▁` is a space, and the character itself
        words[i] = f"\\u{ord(word[0]):04x}{word[1:]}" if word in seen else word
        if not word or words[i] in seen:
            raise ValueError(f"the tokenizer has {word!r} as several pieces: an ARPA file tells tokens apart by their text")
        seen.add(words[i])
    return words


def _escape(piece: str) -> str:
    if piece in _reserved:
        return f"\\u{ord(piece[0]):04x}{piece[1:]}"
    return _escaped.sub(lambda match: f"\\u{ord(match[0]):04x}", piece)


class BackoffLevel(NamedTuple):
    """The contexts of one number of tokens, and the n-grams that they begin.

    keys: [R] sorted `shorter context * N + token`: context r.
    entries: [E] sorted `context * N + output`.
    log_p: [E] of the entries, in nats or log10.
    weight: [R] what a context adds to the outputs that it backs off for.
    """

    keys: np.ndarray
    entries: np.ndarray
    log_p: np.ndarray
    weight: np.ndarray


def search(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of every wanted key, and whether it is there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def backed_off_log_p(levels: Sequence[BackoffLevel], base: np.ndarray, contexts: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """`log P(i|h)` for contexts of the last level, by the recursion of ARPA."""
    if not levels:
        return base[outputs]
    level, N = levels[-1], len(base)
    place, there = search(level.entries, contexts * N + outputs)
    log_p = np.empty(len(outputs))
    log_p[there] = level.log_p[place[there]]
    new = np.flatnonzero(~there)
    if len(new):
        h = contexts[new]
        log_p[new] = level.weight[h] + backed_off_log_p(levels[:-1], base, level.keys[h] // N, outputs[new])
    return log_p


def context_tokens(levels: Sequence[BackoffLevel], N: int) -> np.ndarray:
    """[R, n] the tokens of every context of the last level, the nearest first."""
    tokens = [levels[-1].keys % N]
    parent = levels[-1].keys // N
    for level in reversed(levels[:-1]):
        tokens.append(level.keys[parent] % N)
        parent = level.keys[parent] // N
    return np.stack(tokens[::-1], axis=1).astype(np.int32)


def backoff_chain(model: LanguageModel) -> tuple[np.ndarray, list[BackoffLevel]]:
    """`log p` without context, and levels of `log P(i|h)` and `-log Z(h)` in nats."""
    (base, rows, children), N = _chain_rows(model), model.vocab_size
    base = base - np.logaddexp.reduce(base)
    levels: list[BackoffLevel] = []
    for n, (start, outputs, values) in enumerate(rows):
        keys = np.arange(N) if n == 0 else _keys(children[n - 1].start, children[n - 1].tokens, N)
        entries = _keys(start, outputs, N)
        order = slice(None) if np.all(entries[1:] > entries[:-1]) else np.argsort(entries)
        entries, values = entries[order], values[order]
        context, output = np.divmod(entries, N)
        lower = backed_off_log_p(levels, base, keys[context] // N, output)
        log_Z = np.log1p(np.bincount(context, np.exp(lower) * np.expm1(values), minlength=len(keys)))
        levels.append(BackoffLevel(keys, entries, lower + values - log_Z[context], 0.0 - log_Z))
    return base, levels


def _keys(start: Any, ids: Any, N: int) -> np.ndarray:
    """`row * N + id` of rows from their starts."""
    sizes = np.diff(np.asarray(start).astype(np.int64))
    return np.repeat(np.arange(len(sizes)) * N, sizes) + np.asarray(ids).astype(np.int64)


def _chain_rows(model: LanguageModel) -> tuple[np.ndarray, list[SparseRows], tuple[Children, ...]]:
    """The row of no context, rows of longer contexts, and the look-up of contexts."""
    kind = model.rows
    if isinstance(kind, Constant):
        return np.asarray(kind.row, np.float64), [], ()
    if isinstance(kind, BackOffChain):
        return np.asarray(kind.base, np.float64), list(map(_on_host, kind.levels)), kind.children
    if isinstance(kind, SparseTables) and kind.radius == 1 and kind.weight is None and not kind.unseen:
        return np.asarray(kind.bases[0], np.float64), [_on_host(kind.corrections[0])], ()
    name = type(kind).__name__
    raise ValueError(f"a model of {name} is no n-gram model, which an ARPA file holds: choose the method ngram")


def _on_host(table: SparseRows) -> SparseRows:
    start, outputs, values = (np.asarray(part) for part in table)
    return SparseRows(start.astype(np.int64), outputs.astype(np.int64), values.astype(np.float64))


def prefix_keys(levels: Sequence[BackoffLevel], N: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The n-grams that contexts spell, as keys of the entries of the level before.

    Returns:
        of every level, `context * N + output` of its contexts, and whether the level before has that context.
    """
    found, nearest, rest = np.ones(N, bool), np.arange(N), np.zeros(N, np.int64)  # rest: without the nearest token
    keys = []
    for above, level in zip(levels, levels[1:], strict=False):
        parent, token = np.divmod(level.keys, N)
        rest, there = search(above.keys, rest[parent] * N + token)
        found, nearest = found[parent] & there, nearest[parent]
        keys.append((rest * N + nearest, found))
    return keys


def seen_once(levels: Sequence[BackoffLevel], N: int) -> list[np.ndarray]:
    """Which contexts of every level have `<pad>` once at most."""
    pairs = zip(levels, levels[1:], strict=False)
    return [np.ones(N, bool), *(above.keys[level.keys // N] % N != PAD for above, level in pairs)]


def complete_chain(base: np.ndarray, levels: Sequence[BackoffLevel]) -> list[BackoffLevel]:
    """The chain with all n-grams of a file, including unchanged back-offs."""
    levels, N = list(levels), len(base)
    once, prefixes = seen_once(levels, N), prefix_keys(levels, N)
    for n in range(len(levels) - 2, -1, -1):
        long, (spelled, found) = levels[n + 1], prefixes[n]
        context, output = np.divmod(long.entries, N)
        starts = ~once[n + 1][context]
        wanted = np.concatenate([spelled[found & once[n + 1]], long.keys[context[starts]] // N * N + output[starts]])
        _, there = search(levels[n].entries, wanted)
        new = np.unique(wanted[~there])
        entries = np.concatenate([levels[n].entries, new])
        log_p = np.concatenate([levels[n].log_p, backed_off_log_p(levels[: n + 1], base, *np.divmod(new, N))])
        order = np.argsort(entries, kind="stable") if len(new) else slice(None)
        levels[n] = levels[n]._replace(entries=entries[order], log_p=log_p[order])
    return levels


def fold_starts(levels: Sequence[BackoffLevel], N: int) -> list[BackoffLevel]:
    """Merge contexts that reach the start of a document: `<pad>` once, not many times.

    A model has contexts w `<pad>` `<pad>` ..., a row for each; in the file `<s>` w stands for all of them.
    """
    levels, once = list(levels), seen_once(levels, N)
    for n in range(len(levels) - 2, -1, -1):
        (short, long), deeper = levels[n : n + 2], ~once[n + 1]
        parent, own = long.keys // N, np.flatnonzero(deeper[long.entries // N])
        shifted = np.zeros(len(short.weight))
        shifted[parent[deeper]] = long.weight[deeper]
        log_p = short.log_p + shifted[short.entries // N]
        place, _ = search(short.entries, parent[long.entries[own] // N] * N + long.entries[own] % N)
        log_p[place] = long.log_p[own]
        levels[n] = short._replace(log_p=log_p, weight=short.weight + shifted)
    return levels


def write_arpa(path: str | os.PathLike, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Write an n-gram model as an ARPA file; NAME.gz is gzipped.

    Args:
        path: of the file; its folder is made.
        model: of methods "ngram", "unigram" or "bigram", or read from an ARPA file; exponents may be fitted.
        tokenizer: the model's own; see `arpa_words` for how its tokens are spelled.

    Raises:
        ValueError: a model of other rows than these; a tokenizer of another size; a file that cannot be written.

    Source: Chen & Goodman 1999, Sec. 2.8, interpolated models in back-off form; the format is that of SRILM's ngram-format(5).
    """
    path, words = local_path(path), arpa_words(tokenizer)
    if len(words) != model.vocab_size:
        raise ValueError(f"a tokenizer of {len(words)} tokens and a model of {model.vocab_size}: use the model's own")
    base, levels = backoff_chain(model)
    sections = _sections(base, levels, words, eos=model.eos)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(partial, "wb", compresslevel=5) if path.suffix.lower() == ".gz" else open(partial, "wb") as file:
            file.write(b"\\data\\\n")
            file.writelines(f"ngram {n + 1}={size}\n".encode() for n, (size, _) in enumerate(sections))
            for n, (_, lines) in enumerate(sections):
                file.write(f"\n\\{n + 1}-grams:\n".encode())
                file.writelines("".join(block).encode() for block in lines)
            file.write(b"\n\\end\\\n")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ValueError(f"{path} cannot be written ({error}): make room, or choose another place") from error


def _sections(
    base: np.ndarray, levels: list[BackoffLevel], words: list[str], *, eos: bool
) -> list[tuple[int, Iterator[list[str]]]]:
    """The number of n-grams of every order, and blocks of their lines."""
    N, orders = len(base), max(2, len(levels) + 1)  # KenLM reads no file of order 1, but one without bigrams
    levels = fold_starts(complete_chain(base, levels), N)
    once, weights = seen_once(levels, N), _weights(levels, words)
    sections = [(N + 1, iter([_unigram_lines(base, weights[0], words, eos=eos)]))]
    for n, level in enumerate(levels):
        kept = np.flatnonzero(once[n][level.entries // N])
        sections.append((len(kept), _lines(levels[: n + 1], kept, weights[n + 1], words, last=n + 2 == orders)))
    return [*sections, *[(0, iter(()))] * (orders - len(sections))]


def _weights(levels: list[BackoffLevel], words: list[str]) -> list[np.ndarray]:
    """Back-off weights of n-grams as contexts: of the unigrams, and of every level."""
    N = len(words)
    once, weights = seen_once(levels, N), [levels[0].weight if levels else np.zeros(N)]
    for n, (spelled, found) in enumerate(prefix_keys(levels, N), 1):
        place, there = search(levels[n - 1].entries, spelled)
        if not np.all(found & there | ~once[n]):
            tokens = context_tokens(levels[: n + 1], N)[np.argmin(found & there | ~once[n]), ::-1]
            missing = " ".join(words[i] for i in tokens)
            raise ValueError(
                f"the model has a context {missing!r}, and not the one without its first token: fit it on whole documents"
            )
        weights.append(np.zeros(len(levels[n - 1].entries)))
        weights[n][place[once[n]]] = levels[n].weight[once[n]]
    return [*weights, np.zeros(len(levels[-1].entries))] if levels else weights


def _unigram_lines(base: np.ndarray, weight: np.ndarray, words: list[str], *, eos: bool) -> list[str]:
    p, b = (base / _ln10).tolist(), (weight / _ln10).tolist()
    start, end = f"{NEVER:g}\t<s>\t{b[PAD]:.8g}\n", f"{p[PAD] if eos else NEVER:.8g}\t</s>\t0\n"
    unk, *others = (f"{p[i]:.8g}\t{words[i]}\t{b[i]:.8g}\n" for i in range(len(p)) if i != PAD)
    return [unk, start, end, *others]


def _lines(
    levels: list[BackoffLevel], kept: np.ndarray, weight: np.ndarray, words: list[str], *, last: bool
) -> Iterator[list[str]]:
    """The lines of the n-grams `kept` of the last level, block by block."""
    level, N = levels[-1], len(words)
    tokens, inside, outputs = context_tokens(levels, N)[:, ::-1], list(words), list(words)
    inside[PAD], outputs[PAD] = "<s>", "</s>"
    for m in range(0, len(kept), _block):
        e = kept[m : m + _block]
        context, output = np.divmod(level.entries[e], N)
        first = context[0]
        texts = [" ".join(inside[i] for i in row) for row in tokens[first : context[-1] + 1].tolist()]
        numbers = zip((level.log_p[e] / _ln10).tolist(), (context - first).tolist(), output.tolist(), strict=True)
        ends = [""] * len(e) if last else [f"\t{b:.8g}" for b in (weight[e] / _ln10).tolist()]
        yield [f"{p:.8g}\t{texts[c]} {outputs[i]}{end}\n" for (p, c, i), end in zip(numbers, ends, strict=True)]


_spaces, _end = " \t\r\n", "the end of the file"


class Order(NamedTuple):
    """The n-grams of one order: words, log10 p, back-off weights, first line."""

    words: np.ndarray
    log_p: np.ndarray
    weight: np.ndarray
    line: int


class ArpaFile:
    """The lines of an ARPA file by section; unigrams number the words."""

    def __init__(self, path: str):
        self.path, self.line, self.words = path, 0, ["<pad>", "<unk>"]
        self._ids, self._lines = {"<s>": 0, "<unk>": 1, "<UNK>": 1}, file_lines(path)
        first = text = self._next()
        while text != "\\data\\":  # some programs write comments first
            if text.startswith("\\") or text == _end:
                remedy = "give an ARPA file, as launch.export or lmplz write it"
                raise self.error(f"{first[:40]!r} instead of \\data\\", remedy, 1)
            text = self._next()
        sizes: list[int] = []
        while match := re.fullmatch(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", text := self._next()):
            if int(match[1]) != len(sizes) + 1:
                raise self.error(f"{text!r}: orders count 1, 2, ...", "write the file again")
            sizes.append(int(match[2]))
        if not any(sizes[:1]):
            raise self.error(f"{text[:40]!r} instead of `ngram 1=...`", "write the file again")
        self.orders: list[Order] = []
        for n, size in enumerate(sizes, 1):
            if text != f"\\{n}-grams:":
                raise self.error(f"{text[:40]!r} instead of \\{n}-grams:", self._remedy(n - 1))
            first, ids, numbers = self.line + 1, array("q"), array("d")
            for _ in range(size):
                words, of_words = self._read(n)
                ids.extend(words)
                numbers.extend(of_words)
            log_p, weight = np.maximum(np.array(numbers).reshape(-1, 2).T, NEVER)
            self.orders.append(Order(np.array(ids, np.int64).reshape(-1, n), log_p, weight, first))
            text = self._next()
        if text != "\\end\\":
            raise self.error(f"{text[:40]!r} instead of \\end\\", self._remedy(len(sizes)))
        if (text := self._next()) != _end:  # which is that of a compressed file, with its checksum
            raise self.error(f"{text[:40]!r} after \\end\\", "remove what is not of the model")

    def error(self, what: str, remedy: str, line: int | None = None) -> ValueError:
        return ValueError(f"{self.path}, line {self.line if line is None else line}: {what}; {remedy}")

    def _remedy(self, n: int) -> str:
        return f"the file is cut short, or its header counts other than its {n}-grams: write or download it again"

    def _next(self) -> str:
        """The next line that is not blank."""
        for line in self._lines:
            self.line += 1
            if line := line.strip(_spaces):
                return line
        return _end

    def _read(self, n: int) -> tuple[list[int], tuple[float, float]]:
        """The words, log10 p and weight of the next n-gram."""
        if (line := self._next()) == _end or line.startswith("\\"):
            raise self.error(f"{line[:40]!r} instead of a {n}-gram", self._remedy(n))
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        words = fields[1 : n + 1]
        try:
            numbers = float(fields[0]), float(fields[n + 1]) if len(fields) > n + 1 else 0.0
            if len(words) < n or len(fields) > n + 2 or not numbers[0] <= 0 or np.isnan(numbers[1]):
                raise ValueError
            if n == 1 and words[0] not in self._ids:
                self._ids[words[0]] = -1 if words[0] == "</s>" else len(self.words)
                self.words += [word for word in words if word != "</s>"]
            return [self._ids[word] for word in words], numbers
        except KeyError as unknown:
            raise self.error(f"{unknown} is not among the unigrams", "write the file again") from None
        except ValueError:
            wanted = f"a log10 probability of at most 0, {n} words and at most one weight"
            raise self.error(f"{line[:60]!r} is not {wanted}", "write the file again") from None


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
            word that is no unigram; an n-gram that stands twice; words other than the tokenizer's; probabilities that do not
            sum to 1.

    Example::

        model, tokenizer = read_arpa("lm.arpa.gz")
        TextModel(model, tokenizer, {}).score(["to be"])
    """
    file = ArpaFile(str(local_path(path)))
    orders = file.orders
    while len(orders) > 1 and not len(orders[-1].log_p):  # `ngram 2=0`
        orders.pop()
    words = file.words if tokenizer is None else arpa_words(tokenizer)
    tokenizer = tokenizer or Tokenizer("\n".join(words[2:]).encode(), "words")
    base, eos, renamed = _vocabulary(file, orders[0], words)
    N = len(words)
    levels, children = _numbered(file, orders, renamed, N)
    rows: list[SparseRows] = []
    for n, level in enumerate(levels):
        context, output = np.divmod(level.entries, N)
        lower = backed_off_log_p(levels[:n], base, level.keys[context] // N, output)
        _check_sums(file, levels[: n + 1], context, lower, words)
        values = (level.log_p - level.weight[context] - lower) * _ln10
        rows.append(SparseRows(*_rows_of(level.entries, len(level.keys), N), jnp.asarray(values, jnp.float32)))
    longest = tuple(table.longest for table in rows)
    chain = BackOffChain(jnp.asarray(base * _ln10, jnp.float32), tuple(children), tuple(rows), longest=longest)
    return LanguageModel(chain, "none", eos), tokenizer


def _vocabulary(file: ArpaFile, unigrams: Order, words: list[str]) -> tuple[np.ndarray, bool, np.ndarray]:
    """log10 p of every token, whether document ends are predicted, and ids of words."""
    ids = {word: i for i, word in enumerate(words[2:], 2)}
    remedy = "pass the model's own tokenizer, or none"
    if unknown := [word for word in file.words[2:] if word not in ids]:
        raise ValueError(f"{file.path} has {unknown[0]!r}, which is no token of the tokenizer: {remedy}")
    if missing := set(ids) - set(file.words[2:]):
        raise ValueError(f"{file.path} does not have {min(missing, key=ids.__getitem__)!r} of the tokenizer: {remedy}")
    renamed = np.array([0, 1, *(ids[word] for word in file.words[2:])])
    named = unigrams.words[:, 0]
    order = np.argsort(named, kind="stable")
    _check_once(file, unigrams, named[order], order)
    base = np.full(len(words), NEVER)
    base[renamed[named[named > 0]]] = unigrams.log_p[named > 0]
    left = 1 - float(np.sum(10 ** base[PAD + 1 :]))
    end = float(unigrams.log_p[named == -1].max(initial=NEVER))
    eos = end > NEVER + 1
    if abs(left - 10**end if eos else min(left, 0)) > _off_by:
        total = 1 - left + (10**end if eos else 0)
        raise file.error(f"the unigrams sum to {total:.5g}", "renormalise the model (SRILM: ngram -renorm)", unigrams.line)
    base[PAD] = end if eos else np.log10(max(left, 10**NEVER))  # the rest is that of `<pad>`, which no text asks for
    return base, eos, renamed


def _check_once(file: ArpaFile, order: Order, keys: np.ndarray, places: np.ndarray) -> None:
    """Refuse an n-gram that occurs twice, by equal neighbours among sorted keys."""
    if len(twice := np.flatnonzero(keys[1:] == keys[:-1])):
        raise file.error(
            "this n-gram stands in the file before", "write the file again", order.line + int(places[twice[0] + 1])
        )


def _numbered(file: ArpaFile, orders: list[Order], renamed: np.ndarray, N: int) -> tuple[list[BackoffLevel], list[Children]]:
    """Contexts by level, numbered as in jexplicit.lm.rows, and their look-up."""
    read, lines = [], []
    for order in orders[1:]:  # nearest token first, the output last; contexts that no text has are left out
        context, output = order.words[:, -2::-1], order.words[:, -1]
        alive = (context >= 0).all(axis=1) & (output != 0) & (context[:, :-1] != 0).all(axis=1)
        read.append((renamed[np.maximum(context[alive], 0)], np.where(output[alive] < 0, PAD, renamed[output[alive]])))
        lines.append((order, np.flatnonzero(alive)))
    numbers, keys, children = [context[:, 0] for context, _ in read], [np.arange(N)], []
    for m in range(1, len(read)):
        wanted = [numbers[n] * N + read[n][0][:, m] for n in range(m, len(read))]
        found, inverse = np.unique(np.concatenate(wanted), return_inverse=True)
        numbers[m:] = np.split(inverse, np.cumsum([len(part) for part in wanted])[:-1])
        children.append(Children(*_rows_of(found, len(keys[-1]), N)))
        keys.append(found)
    levels = []
    for n, (_, output) in enumerate(read):
        entries = numbers[n] * N + output
        order = np.argsort(entries, kind="stable")
        _check_once(file, lines[n][0], entries[order], lines[n][1][order])
        log_p = lines[n][0].log_p[lines[n][1]][order]
        levels.append(BackoffLevel(keys[n], entries[order], log_p, _weights_of_file(orders[n], keys[: n + 1], renamed, N)))
    return levels, children


def _weights_of_file(order: Order, keys: list[np.ndarray], renamed: np.ndarray, N: int) -> np.ndarray:
    """log10 back-off weights of a level's contexts, 0 where the file has none."""
    spelled = np.flatnonzero((order.words >= 0).all(axis=1))
    tokens = renamed[order.words[spelled, ::-1]]
    number, there = tokens[:, 0], np.ones(len(spelled), bool)
    for n in range(1, len(keys)):
        number, found = search(keys[n], number * N + tokens[:, n])
        there &= found
    weights = np.zeros(len(keys[-1]))
    weights[number[there]] = order.weight[spelled[there]]
    return weights


def _check_sums(file: ArpaFile, levels: list[BackoffLevel], context: np.ndarray, lower: np.ndarray, words: list[str]) -> None:
    """Refuse contexts whose probabilities do not sum to 1: a softmax changes them."""
    level = levels[-1]
    seen, backed_off = (np.bincount(context, 10**log_p, minlength=len(level.keys)) for log_p in (level.log_p, lower))
    total = seen + 10**level.weight * (1 - backed_off)
    worst = int(np.argmax(np.abs(total - 1)))
    if abs(total[worst] - 1) > _off_by:
        h = " ".join(words[i] if i != PAD else "<s>" for i in context_tokens(levels, len(words))[worst, ::-1])
        raise ValueError(
            f"{file.path}: the probabilities after {h!r} sum to {total[worst]:.5g}: renormalise the model "
            "(SRILM: ngram -renorm), or write the file again"
        )


def _rows_of(keys: np.ndarray, rows: int, N: int) -> tuple[Any, Any]:
    """Starts and ids of rows by sorted keys `row * N + id`."""
    start = np.searchsorted(keys, np.arange(rows + 1) * N)
    if len(keys) >= 2**31:
        raise ValueError(f"{len(keys)} n-grams of one order: rows number at most 2^31 - 1; prune the file")
    return jnp.asarray(start.astype(np.int32)), jnp.asarray((keys % N).astype(np.uint16 if N <= 1 << 16 else np.int32))

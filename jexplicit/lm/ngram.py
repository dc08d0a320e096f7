"""N-gram models, interpolated modified Kneser-Ney as rows of contexts, and ARPA files."""

import contextlib
import gzip
import os
import re
from array import array
from collections.abc import Iterator
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer
from scipy.sparse import csr_array

from jexplicit.counts import (
    ContextLevel,
    Counts,
    SparseCounts,
    count_contexts,
    counted_context,
    quotient_and_rest,
    starts_of,
    sum_runs,
)
from jexplicit.data.text import file_lines
from jexplicit.data.tokenizers import PAD, UNK_ID, Tokenizer
from jexplicit.lm.layers import counts_of_counts, discounts_of, target_counts, unigram, with_targets
from jexplicit.lm.model import LanguageModel, Sparse, TableRows, find_entry, map_contexts, pytree, sparse_rows
from jexplicit.runs.files import local_path, write_whole

NEVER = -99.0  # log10 p of what is not predicted, as SRILM writes it
_pairs_per_block = 1 << 20
_block, _ln10 = 1 << 16, float(np.log(10))  # lines at a time
_off_by = 1e-2  # of the sum of the unigrams: files of five digits
_escaped = re.compile(r"[\s\0]|\\(?=u[0-9a-f]{4})")
_reserved = ("<s>", "</s>", "<unk>", "<UNK>")
_end = "the end of the file"


class Children(NamedTuple):
    """Contexts one token longer: `start[r] .. start[r+1] - 1` extend r."""

    start: Any  # [shorter contexts + 1] integers
    tokens: Any  # [contexts] token ids, of the smallest type that holds them


def context_numbers(children: tuple[Children, ...], context: Integer[Array, " K"]) -> Int[Array, " levels"]:
    """The number of the context at every level, -1 if absent: pure."""
    numbers = [context[0].astype(jnp.int32)]
    for n, level in enumerate(children, 1):
        most = min(len(level.tokens), jnp.iinfo(level.tokens.dtype).max + 1)  # tokens of a context are different
        numbers.append(find_entry(*level, numbers[-1], context[n].astype(jnp.int32), most))
    return jnp.stack(numbers)


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model, each over that of a shorter context.

        row_h[i] = log(P(i|h) / (γ(h) P(i|h'))),     log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

    base: [N] log of the distribution that the nearest token backs off to. children: how contexts are found, level by level.
    levels, log_gamma: rows and `log γ` of contexts of one token, of two, ...; zeros for a context that never occurred.
    """

    base: Any
    children: tuple[Children, ...] = ()
    levels: tuple[Sparse, ...] = ()
    log_gamma: tuple[Any, ...] = ()

    normalised = True
    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    context = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    row_tables = property(lambda self: (jnp.asarray(self.base)[None], *self.levels))

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        return jnp.concatenate([none, context_numbers(self.children, context)]) if self.levels else none

    def entry(self, context, output):
        """`log p(output | context)`."""
        log_p = super().entry(context, output)
        for n, log_gamma in zip(self.index(context)[1:], self.log_gamma, strict=True):
            log_p += jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        return log_p


def unigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline without context: log relative frequencies of targets."""
    counted_context(counts, 1)  # checks them
    log_p = np.log(unigram(target_counts(counts, eos=eos).astype(np.float64)))
    return LanguageModel(BackOffChain(jnp.asarray(log_p, jnp.float32)), "none", eos)


def bigram_model(counts: Counts | SparseCounts, *, eos: bool = False) -> LanguageModel:
    """The baseline with one token of context: interpolated Kneser-Ney."""
    counted_context(counts, 1)  # checks them
    C: Any = with_targets(csr_array(counts[0]), eos=eos)
    level = ContextLevel(np.arange(C.shape[0]), C.indptr, C.indices, C.data)
    return LanguageModel(_kneser_ney_chain([level], C.shape[1], modified=False), "none", eos)


def smoothed_ngrams(X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, vocab_size: int) -> BackOffChain:
    """The interpolated modified Kneser-Ney model of contexts and targets.

    Source: Chen & Goodman 1999, Eq. 12 and 26 (interpolated) and Sec. 4; as additive logits, this project.
    """
    if not X.shape[1] or not len(Y):
        raise ValueError(f"{len(Y)} positions with contexts of {X.shape[1]} tokens: give at least one of each")
    return _kneser_ney_chain(count_contexts(X, Y, vocab_size), vocab_size, modified=True)


def _kneser_ney_chain(levels: list[ContextLevel], N: int, *, modified: bool) -> BackOffChain:
    """The smoothed rows of levels of contexts, and their weights γ; levels are consumed."""
    lower, small = unigram(np.bincount(levels[0].outputs, minlength=N)), np.uint16 if N <= 1 << 16 else np.int32
    children, rows, log_gammas, shorter, P = [], [], [], levels[0], lower
    while levels:
        level = levels.pop(0)  # and so no level is kept for longer than it is needed
        if (E := len(level.outputs)) >= 2**31:
            raise ValueError(f"{E} different pairs: rows of contexts number at most 2^31 - 1; fit on less text")
        if rows:
            numbers, ids = quotient_and_rest(level.contexts, N)
            children.append(Children(starts_of(numbers, len(shorter.contexts)), ids.astype(small)))
            level = level._replace(contexts=numbers.astype(np.int32))  # as the keys are large
        D = discounts_of(counts_of_counts(level.counts), modified=modified)
        values, log_gamma = np.empty(E, np.float32), np.empty(len(level.contexts), np.float32)
        own_P = np.empty(E if levels else 0)  # nothing backs off to the longest contexts
        later = np.searchsorted(level.start, np.arange(_pairs_per_block, level.start[-1], _pairs_per_block), "right") - 1
        for c in starmap(slice, pairwise(np.unique([0, *later, len(level.contexts)]).tolist())):  # pairs that fit the caches
            block, pairs = level.part(c), slice(level.start[c.start], level.start[c.stop])
            P_lower = lower[block.outputs]
            if rows:  # P(i|h') of the pairs (h, i), numbered by h'; contexts stand in the order of those that they extend
                near = slice(block.contexts[0], block.contexts[-1] + 1)
                some = shorter.part(near)
                place = np.searchsorted(some.keys(np.arange(len(some.contexts)), N), block.keys(block.contexts - near.start, N))
                P_lower = P[shorter.start[near.start] :][place]
            kind, total = np.minimum(block.counts, 3), sum_runs(block.counts, block.start)
            freed = D @ [sum_runs(kind == n, block.start) for n in (1, 2, 3)]
            kept, backed_off = block.counts - D[kind - 1], block.of_pairs(freed) * P_lower
            values[pairs] = np.log1p(kept / backed_off)
            log_gamma[c] = np.log(np.where(total > 0, freed / np.maximum(total, 1), 1))
            if levels:
                own_P[pairs] = (kept + backed_off) / block.of_pairs(total)
        rows.append(sparse_rows(level.start, level.outputs, values, N))
        log_gammas.append(log_gamma)
        shorter, P = level, own_P
    arrays = np.log(lower).astype(np.float32), tuple(children), tuple(rows), tuple(log_gammas)
    return BackOffChain(*jax.device_put(arrays, may_alias=True))  # on a CPU nothing is copied


# ARPA files have P(i|h) of n-grams that occurred and back-off weights log10 γ; P(i|h) = γ(h) P(i|h') of all others, h' without
# the furthest token. `<pad>` is `<s>` in a context, which ends there, and `</s>` as a target: log10 p = -99 without `eos`.


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


def write_arpa(path: str | os.PathLike, model: Any, tokenizer: Tokenizer) -> None:
    """Write a model of methods ngram, unigram or bigram as an ARPA file.

    Source: Chen & Goodman 1999, Sec. 2.8, interpolated models in back-off form; the format is that of SRILM's ngram-format(5).
    """
    path, words, N, chain = local_path(path), arpa_words(tokenizer), model.vocab_size, getattr(model, "rows", model)
    if len(words) != N:
        raise ValueError(f"a tokenizer of {len(words)} tokens and a model of {N}: use the model's own")
    if not isinstance(chain, BackOffChain):
        kind = type(chain).__name__
        raise ValueError(f"a model of {kind} is no n-gram model, which an ARPA file holds: choose the method ngram")
    base, (weight, _) = np.asarray(chain.base) / _ln10, _weights(chain, np.arange(N)[:, None])
    unk, *others = (f"{base[i]:.8g}\t{words[i]}\t{weight[i]:.8g}\n" for i in range(N) if i != PAD)
    end = f"{base[PAD] if model.eos else NEVER:.8g}\t</s>\t0\n"
    sections = [(N + 1, iter([[unk, f"{NEVER:g}\t<s>\t{weight[PAD]:.8g}\n", end, *others]]))]
    contexts = np.arange(N, dtype=np.int32)[:, None]  # [R, n] nearest token first
    for n, rows in enumerate(chain.levels, 1):
        if n > 1:
            start, tokens = map(np.asarray, chain.children[n - 2])
            contexts = np.column_stack([np.repeat(contexts, np.diff(start), axis=0), tokens.astype(np.int32)])
        sections.append(_section(chain, n, contexts, rows, words))
    if not chain.levels:
        sections.append((0, iter(())))  # KenLM reads no file of order 1, but one without bigrams

    def write(file: Any) -> None:
        with gzip.GzipFile("", "wb", 5, file) if path.suffix.lower() == ".gz" else contextlib.nullcontext(file) as out:
            out.write(b"\\data\\\n")
            out.writelines(f"ngram {n}={size}\n".encode() for n, (size, _) in enumerate(sections, 1))
            for n, (_, lines) in enumerate(sections, 1):
                out.write(f"\n\\{n}-grams:\n".encode())
                out.writelines("".join(block).encode() for block in lines)
            out.write(b"\n\\end\\\n")

    write_whole(path, write)


def _whole(chain: BackOffChain, X: np.ndarray) -> np.ndarray:
    """Contexts [M, K], padded from the start of the document on."""
    return np.pad(X, ((0, 0), (0, chain.context - X.shape[1])), constant_values=PAD)


def _weights(chain: BackOffChain, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log10 γ of contexts [M, n], and whether the model has them."""
    M, n = X.shape
    if n > len(chain.levels):
        return np.zeros(M), np.zeros(M, bool)
    numbers = map_contexts(context_numbers, chain.children, _whole(chain, X), block=4096).T[n - 1 :]
    numbers = np.where((X[:, :-1] != PAD).all(axis=1), numbers, -1)  # `<s>` begins a context
    gammas = [np.where(m >= 0, np.asarray(g, float)[m], 0) for m, g in zip(numbers, chain.log_gamma[n - 1 :], strict=True)]
    return np.where(X[:, -1] == PAD, sum(gammas), gammas[0]) / _ln10, numbers[0] >= 0


def _section(chain: BackOffChain, n: int, X: np.ndarray, rows: Sparse, words: list[str]) -> tuple[int, Iterator[list[str]]]:
    """The number of n-grams that contexts [R, n] begin, and their lines in blocks."""
    r, i = np.repeat(np.arange(len(X)), np.diff(rows.start)), np.asarray(rows.ids).astype(np.int32)
    kept = (X[:, :-1] != PAD).all(axis=1)[r]
    r, i = r[kept], i[kept]
    shorter = BackOffChain(chain.base, chain.children[: n - 1], chain.levels[:n], chain.log_gamma[:n])
    log_p, starts = shorter.target_logits(X[r], i).astype(float), X[r, -1] == PAD
    log_p[starts] = chain.target_logits(_whole(chain, X[r[starts]]), i[starts])
    log_p, (weight, known) = log_p / _ln10, _weights(chain, np.column_stack([i, X[r]]))
    if n < len(chain.levels):
        start, once = np.asarray(chain.children[n - 1].start), (X != PAD).all(axis=1)
        if np.count_nonzero(once[np.repeat(np.arange(len(X)), np.diff(start))]) != np.count_nonzero(known):
            raise ValueError("the model has a context, and not the one without its first token: fit it on whole documents")

    def lines() -> Iterator[list[str]]:
        inside, outputs = list(words), list(words)
        inside[PAD], outputs[PAD] = "<s>", "</s>"
        for m in range(0, len(r), _block):
            e = slice(m, m + _block)
            texts = {c: " ".join(inside[j] for j in X[c, ::-1].tolist()) for c in np.unique(r[e]).tolist()}
            ends = [f"\t{w:.8g}" for w in weight[e].tolist()] if n < len(chain.levels) else [""] * len(r[e])
            numbers = zip(log_p[e].tolist(), r[e].tolist(), i[e].tolist(), ends, strict=True)
            yield [f"{p:.8g}\t{texts[c]} {outputs[j]}{end}\n" for p, c, j, end in numbers]

    return len(r), lines()


class Order(NamedTuple):
    """N-grams of one order."""

    words: np.ndarray  # [n-grams, n] ids, -1 for `</s>`
    log_p: np.ndarray
    weight: np.ndarray


def _read_orders(path: str, opened: Iterator[str]) -> tuple[list[str], list[Order]]:
    """The words of an ARPA file in its order, and its n-grams."""
    words, ids, orders, at = ["<pad>", "<unk>"], {"<s>": 0, "<unk>": 1, "<UNK>": 1}, list[Order](), 0
    lines = ((number, text) for number, line in enumerate(opened, 1) if (text := line.strip(" \t\r\n")))

    def following() -> str:
        """The next line that is not blank."""
        nonlocal at
        at, text = next(lines, (at, _end))
        return text

    def expect(found: object, text: str, wanted: str) -> None:
        if not found:
            raise ValueError(f"{path}, line {at}: {text[:60]!r} instead of {wanted}; write or download the file again")

    while (text := following()) != "\\data\\":  # some programs write comments first
        expect(not text.startswith("\\") and text != _end, text, "\\data\\ of an ARPA file, as launch.export or lmplz write it")
    sizes: list[int] = []
    while match := re.fullmatch(rf"ngram\s+{len(sizes) + 1}\s*=\s*(\d{{1,18}})", text := following()):
        sizes.append(int(match[1]))
    expect(any(sizes[:1]), text, "`ngram 1=...`")
    for n, size in enumerate(sizes, 1):
        expect(text == (section := f"\\{n}-grams:"), text, f"{section}: it is cut short, or its header counts other n-grams")
        found, numbers = array("q"), array("d")
        for _ in range(size):
            fields = re.split(r"[ \t]+", line := following())
            own = fields[1 : n + 1]
            try:
                log_p, weight = float(fields[0]), float(fields[n + 1]) if len(fields) > n + 1 else 0.0
                if len(own) < n or len(fields) > n + 2 or not log_p <= 0 or np.isnan(weight):
                    raise ValueError
                if n == 1 and own[0] not in ids:
                    ids[own[0]] = -1 if own[0] == "</s>" else len(words)
                    words += [word for word in own if word != "</s>"]
                found.extend([ids[word] for word in own])
                numbers.extend((log_p, weight))
            except (KeyError, ValueError):
                expect(None, line, f"a log10 probability of at most 0, {n} of the unigrams and at most one weight")
        log_p, weight = np.maximum(np.array(numbers).reshape(-1, 2).T, NEVER) * _ln10
        orders.append(Order(np.array(found, np.int64).reshape(-1, n), log_p, weight))
        text = following()
    expect(text == "\\end\\", text, "\\end\\: it is cut short, or its header counts other n-grams")
    expect((text := following()) == _end, text, _end)  # which is that of a compressed file, with its checksum
    return words, orders


def read_arpa(path: str | os.PathLike, tokenizer: Tokenizer | None = None) -> tuple[LanguageModel, Tokenizer]:
    """The language model of an ARPA file of any order, and its tokenizer.

    path: of the file, .gz or not. The model predicts `<pad>` (`eos`) where the file gives `</s>` more than -99.

    tokenizer: whose tokens the words of the file are, in the spelling of `arpa_words`; default, words that white space
    separates. ValueError, with file, line and remedy: no ARPA file, or one cut short; counts that are not those of its
    sections; a word that is no unigram; an n-gram that stands twice; words other than the tokenizer's; unigrams that do not sum
    to 1.
    """
    file = str(local_path(path))
    with contextlib.closing(file_lines(file)) as opened:
        of_file, orders = _read_orders(file, opened)
    words = of_file if tokenizer is None else arpa_words(tokenizer)
    tokenizer, N = tokenizer or Tokenizer("\n".join(words[2:]).encode(), "words"), len(words)
    if differ := set(words[2:]) ^ set(of_file[2:]):
        has = "has" if min(differ) in of_file else "does not have"
        raise ValueError(f"{file} {has} {min(differ)!r}, unlike the tokenizer: pass the model's own tokenizer, or none")
    ids = {word: i for i, word in enumerate(words)}
    renamed = np.array([0, 1, *(ids[word] for word in of_file[2:]), PAD])  # the last one is that of </s>, -1
    orders = [order for order in orders if len(order.log_p)]
    if any(order.words.shape[1] != n for n, order in enumerate(orders, 1)):
        raise ValueError(f"{file}: n-grams of an order, and none of the order below; write the file again")
    named, log_p, base = orders[0].words[:, 0], orders[0].log_p, np.full(N, NEVER * _ln10)
    if len(np.unique(named)) < len(named):
        raise ValueError(f"{file}: a unigram stands in it twice; write the file again")
    base[renamed[named[named > 0]]] = log_p[named > 0]
    end = float(log_p[named == -1].max(initial=NEVER * _ln10))
    eos, left = end > (NEVER + 1) * _ln10, 1 - float(np.sum(np.exp(base[PAD + 1 :])))
    if abs(left - np.exp(end) if eos else min(left, 0)) > _off_by:
        total = 1 - left + (np.exp(end) if eos else 0)
        raise ValueError(f"{file}: the unigrams sum to {total:.5g}: renormalise the model (SRILM: ngram -renorm)")
    base[PAD] = end if eos else np.log(max(left, 10**NEVER))  # the rest is that of `<pad>`, which no text asks for
    read, children, sizes = [], list[Children](), [N]  # numbers of contexts
    for order in orders[1:]:  # nearest token first
        X, Y = order.words[:, -2::-1], order.words[:, -1]
        alive = (X >= 0).all(axis=1) & (Y != 0) & (X[:, :-1] != 0).all(axis=1)
        read.append((renamed[X[alive]], renamed[Y[alive]], order.log_p[alive]))
    numbers = [X[:, 0] for X, *_ in read]
    for m in range(1, len(read)):
        wanted = [numbers[n] * N + read[n][0][:, m] for n in range(m, len(read))]
        found, inverse = np.unique(np.concatenate(wanted), return_inverse=True)
        numbers[m:] = np.split(inverse, np.cumsum([len(part) for part in wanted])[:-1])
        children.append(Children(*_rows_of(found, sizes[-1], N)))
        sizes.append(len(found))
    chain = BackOffChain(np.asarray(base, np.float32))
    for n, (X, Y, log_p) in enumerate(read):
        keys, weight = numbers[n] * N + Y, np.zeros(sizes[n])
        if (np.diff(keys[order := np.argsort(keys)]) == 0).any():
            raise ValueError(f"{file}: a {n + 2}-gram stands in it twice; write the file again")
        spelled = (orders[n].words >= 0).all(axis=1)
        number = map_contexts(context_numbers, tuple(children[:n]), renamed[orders[n].words[spelled, ::-1]], block=4096)[:, n]
        weight[number[number >= 0]] = orders[n].weight[spelled][number >= 0]
        values = (log_p - weight[numbers[n]] - chain.target_logits(X[:, : max(n, 1)], Y))[order]
        rows = sparse_rows(*_rows_of(keys[order], sizes[n], N), values.astype(np.float32), N)
        gammas = *chain.log_gamma, weight.astype(np.float32)
        chain = BackOffChain(chain.base, tuple(children[:n]), (*chain.levels, rows), gammas)
    return LanguageModel(jax.device_put(chain), "none", eos), tokenizer


def _rows_of(keys: np.ndarray, rows: int, N: int) -> tuple[Any, Any]:
    """Starts and ids of rows by sorted keys `row * N + id`."""
    start = np.searchsorted(keys, np.arange(rows + 1) * N).astype(np.int32)
    return start, (keys % N).astype(np.uint16 if N <= 1 << 16 else np.int32)

"""Language models from ARPA files."""

import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.arpa.chain import BackoffLevel, backed_off_log_p, context_tokens, search
from jexplicit.lm.arpa.parser import NEVER, ArpaFile, Order
from jexplicit.lm.arpa.words import arpa_words
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.rows.backoff import BackOffChain
from jexplicit.lm.rows.ngrams import Children
from jexplicit.lm.tables.storage import SparseRows

_ln10 = float(np.log(10))
_off_by = 1e-2  # of the sum of a context's probabilities: files of five digits and large weights


def read_arpa(path: str | os.PathLike, tokenizer: Tokenizer | None = None) -> tuple[LanguageModel, Tokenizer]:
    """The language model of an ARPA file of any order, and the tokenizer whose ids it speaks of.

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
    file = ArpaFile(str(Path(path).expanduser()))
    orders = [file.read_section(n) for n in range(1, len(file.counts) + 1)]
    file.read_end()
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
    """log10 p of every token id, whether the end of a document is predicted, and the id of every word of the file."""
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
        raise file.error(f"the unigrams sum to {total:.4f}", "renormalise the model (SRILM: ngram -renorm)", unigrams.line)
    base[PAD] = end if eos else np.log10(max(left, 10**NEVER))  # the rest is that of `<pad>`, which no text asks for
    return base, eos, renamed


def _check_once(file: ArpaFile, order: Order, keys: np.ndarray, places: np.ndarray) -> None:
    """Refuse an n-gram that stands twice: two equal keys among the sorted ones, of lines at these places."""
    if len(twice := np.flatnonzero(keys[1:] == keys[:-1])):
        raise file.error(
            "this n-gram stands in the file before", "write the file again", order.line + int(places[twice[0] + 1])
        )


def _numbered(file: ArpaFile, orders: list[Order], renamed: np.ndarray, N: int) -> tuple[list[BackoffLevel], list[Children]]:
    """The levels of contexts, each numbered as jexplicit.lm.rows.ngrams does it, and how they are found."""
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
        levels.append(BackoffLevel(keys[n], entries[order], log_p, _weights(orders[n], keys[: n + 1], renamed, N)))
    return levels, children


def _weights(order: Order, keys: list[np.ndarray], renamed: np.ndarray, N: int) -> np.ndarray:
    """log10 back-off weights of the contexts of a level, 0 where the file has none."""
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
    """Refuse contexts whose probabilities do not sum to 1: the softmax would give others than the file does."""
    level = levels[-1]
    seen, backed_off = (np.bincount(context, 10**log_p, minlength=len(level.keys)) for log_p in (level.log_p, lower))
    total = seen + 10**level.weight * (1 - backed_off)
    worst = int(np.argmax(np.abs(total - 1)))
    if abs(total[worst] - 1) > _off_by:
        h = " ".join(words[i] if i != PAD else "<s>" for i in context_tokens(levels, len(words))[worst, ::-1])
        raise ValueError(
            f"{file.path}: the probabilities after {h!r} sum to {total[worst]:.4f}: renormalise the model "
            "(SRILM: ngram -renorm), or write the file again"
        )


def _rows_of(keys: np.ndarray, rows: int, N: int) -> tuple[Any, Any]:
    """Starts and ids of the rows of sorted keys `row * N + id`, of the smallest types."""
    start = np.searchsorted(keys, np.arange(rows + 1) * N)
    if len(keys) >= 2**31:
        raise ValueError(f"{len(keys)} n-grams of one order: rows number at most 2^31 - 1; prune the file")
    return jnp.asarray(start.astype(np.int32)), jnp.asarray((keys % N).astype(np.uint16 if N <= 1 << 16 else np.int32))

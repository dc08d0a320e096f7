"""N-gram models as back-off chains: the numbers that an ARPA file has, of the rows that a model has."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import Constant, LanguageModel, TokenTables
from jexplicit.lm.rows.backoff import BackOffChain
from jexplicit.lm.rows.ngrams import Children
from jexplicit.lm.rows.sparse import SparseTables
from jexplicit.lm.tables.storage import SparseRows


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
    """`log p` without context, and the levels with `log P(i|h)` and `-log Z(h)` in nats."""
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
    """The row of no context, the rows of contexts of 1, 2, ... tokens, and how contexts are found."""
    kind = model.rows
    if isinstance(kind, Constant):
        return np.asarray(kind.row, np.float64), [], ()
    if isinstance(kind, BackOffChain):
        return np.asarray(kind.base, np.float64), list(map(_on_host, kind.levels)), kind.children
    if kind.radius == 1 and (read := _one_token_rows(kind, model.features)):
        return np.asarray(read[0], np.float64), [_on_host(read[1])], ()
    name = type(kind).__name__
    raise ValueError(f"a model of {name} is no n-gram model, which an ARPA file holds: choose the method ngram")


def _one_token_rows(kind: Any, features: str) -> tuple[Any, SparseRows] | None:
    """A base row and sparse rows of the nearest token, of kinds that are such a sum."""
    if isinstance(kind, SparseTables) and kind.weight is None and not kind.unseen:
        return kind.bases[0], kind.corrections[0]
    if isinstance(kind, TokenTables) and features == "none":  # the dense bigram
        table = np.asarray(kind.tables[0])
        table = table - table.min(axis=1, keepdims=True)  # of an output that was rare and never seen here: its back-off weight
        base = table.min(axis=0)
        table = np.where(table - base > 4e-6, table - base, 0)  # float32 logarithms differ by less
        j, i = np.nonzero(table)
        return base, SparseRows(np.searchsorted(j, np.arange(len(table) + 1)), i, table[j, i])
    return None


def _on_host(table: SparseRows) -> SparseRows:
    start, outputs, values = (np.asarray(part) for part in table)
    return SparseRows(start.astype(np.int64), outputs.astype(np.int64), values.astype(np.float64))


def prefix_keys(levels: Sequence[BackoffLevel], N: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which n-gram of the level before every context spells, from the second level on: as keys of its entries.

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
    """The chain with the n-grams that a file needs and rows leave out, as they back off to the same: those that contexts spell,
    and at the start of a document those of longer contexts."""
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
    """Contexts that reach the start of a document, with what their longer forms say: `<pad>` once instead of many times.

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

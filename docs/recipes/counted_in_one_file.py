"""Counted language models in one file: from a text to counts, from counts to exponents, a loss, and samples. All in NumPy.

    python counted_in_one_file.py input.txt

The model predicts the next character i from the characters before it, its context:

    log P(i | context) = sum_r a_r row_r[i] - log Z.

Each row r looks at a part h of the context, such as its last three characters, and backs off to a smaller part h', such as its
last two. The row says by how much h makes a character likelier than h' does:

    P(i|h) = (C(h, i) - D) / C(h) + gamma(h) P(i|h'),        row_r[i] = log(P(i|h) / (gamma(h) P(i|h'))),

and 0 for a character that never followed h. C are counts, D is a discount, and gamma(h) is what the discounts leave to P(i|h').
With exponents a_r = 1 the rows of the last 1, 2, ..., 8 characters add up to log P(i | 8 characters): a smoothed n-gram model.

Rows are counted. Exponents are fitted to a tenth of the text whose characters were not counted. This problem is convex and small,
so Newton's method solves it in a few steps: no gradient descent, no backpropagation, no learning rate.
"""

import sys
import time
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np

# 1. What a prediction looks at. A row is a tuple of columns, and backs off to the row without its last column.


def chain(*columns: int | str) -> list[tuple]:
    """The rows that look at the first column, at the first two, and so on."""
    return [columns[:n] for n in range(1, len(columns) + 1)]


CHAINS = [
    chain(1, 2, 3, 4, 5, 6, 7, 8),  # the last characters, the nearest first
    chain(2, 3, 4, 5),  # the same without the nearest one
    chain(3, 4, 5, 6),  # and without the nearest two
    chain("part", "word", "word before"),  # the letters of the current word, and the words before it
    chain("since", "word", "word before"),  # the same, with what separates the current word from the last
    chain("since", "word before"),
    chain("since", "width"),  # how long the current line is: when will it end?
    chain("width", 1, 2),
    chain("line"),  # all of the current line
    chain("since", "speaker"),  # the last line that ended in a colon; in a play, who speaks
]
ROWS = list(dict.fromkeys(row for rows in CHAINS for row in rows))  # each once
COLUMNS = ("since", "part", "word", "word before", "line", "width", "speaker", "place")
PLACES = 8  # of a character in its word


def mix(a, b):
    """A 64-bit number for a pair of numbers, or of arrays. Two pairs have the same one only if they are equal, or by a rare chance."""
    h = (a ^ b) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return h ^ (h >> 32)


def look(text: str) -> dict:
    """All columns, as arrays [len(text) + 1]: entry m belongs to the prediction of text[m], and sees only text[:m]."""
    since = part = word = word_before = line = width = speaker = length = gap = 0
    last, seen = "\n", [(0,) * len(COLUMNS)]
    for c in text:
        in_word = c.isalpha() or c == "'"
        if part and not in_word:  # a word has ended
            since, word, word_before = 0, part, word
        since = mix(since, ord(c))
        part, length, gap = (mix(part, ord(c)), length + 1, 0) if in_word else (0, 0, gap + 1)
        if c == "\n":
            line, width, speaker = 0, 0, line if last == ":" else speaker
        else:
            line, width = mix(line, ord(c)), width + 1
        place = min(2 + length, PLACES - 1) if in_word else 0 if c == "\n" else min(gap, 2)
        last = c
        seen.append((since, part, word, word_before, line, width, speaker, place))
    codes = np.array([0] * 8 + [ord(c) for c in text], np.uint64)
    back = {k: codes[8 - k : len(codes) - k + 1] for k in range(1, 9)}  # the character k places back
    return back | dict(zip(COLUMNS, np.array(seen, np.uint64).T, strict=True))


def contexts(text: str) -> dict:
    """For each row, the numbers of the contexts [len(text) + 1] that it looks at; and the places."""
    columns = look(text)
    numbers = {(): np.zeros(len(text) + 1, np.uint64)}
    for row in ROWS:
        numbers[row] = mix(numbers[row[:-1]], columns[row[-1]])
    return numbers | {"place": columns["place"].astype(int)}


# 2. Counts.


class Table(NamedTuple):
    """The counted contexts of a row, sorted. Context c has the entries start[c] .. start[c + 1] - 1; the last one is empty."""

    contexts: np.ndarray
    start: np.ndarray
    outputs: np.ndarray  # of each entry: a character
    values: np.ndarray  # of each entry: row[character]
    bucket: np.ndarray  # of each context: how well it is known


def count(contexts: np.ndarray, y: np.ndarray, P_shorter: np.ndarray) -> tuple[Table, np.ndarray]:
    """Count and smooth the characters y [M] that followed some contexts [M].

    P_shorter [M] is P(y|h') at each position. Returned beside the table is P(y|h), for the rows that back off to this one.
    """
    pairs, first, pair_at, C = np.unique(contexts >> 16 << 16 | y, return_index=True, return_inverse=True, return_counts=True)
    h, start, of, different = np.unique(pairs >> 16, return_index=True, return_inverse=True, return_counts=True)
    D = discounts(C)
    total, freed = np.bincount(of, C), np.bincount(of, D)
    backed_off = (freed / total)[of] * P_shorter[first]  # gamma(h) P(i|h')
    P = (C - D) / total[of] + backed_off
    bucket = 2 * np.searchsorted([2, 4, 11, 51], total, "right") + (different > 1)
    start, outputs = np.append(start, [len(pairs)] * 2), (pairs & 0xFFFF).astype(int)
    return Table(h, start, outputs, np.log(P / backed_off).astype(np.float32), np.append(bucket, 0)), P[pair_at]


def discounts(C: np.ndarray) -> np.ndarray:
    """What is taken off counts of 1, of 2, and of 3 or more (Chen and Goodman 1999)."""
    n = [max(1, np.sum(C == c)) for c in (1, 2, 3, 4)]
    Y = n[0] / (n[0] + 2 * n[1])
    D = [c - (c + 1) * Y * n[c] / n[c - 1] for c in (1, 2, 3)]
    return np.clip(D, 0.1, [0.9, 1.9, 2.9])[np.minimum(C, 3) - 1]  # the limits are for small texts


# 3. The model.

BUCKETS = 10  # of counts 1, 2-3, 4-10, 11-50 and more; apart where only one character ever followed
KINDS = BUCKETS + PLACES  # numbers of a row. Its exponent is the sum of two of them: one by bucket, one by place


class Model(NamedTuple):
    alphabet: list
    unigram: np.ndarray  # [N] log P(i)
    tables: list
    exponents: np.ndarray  # [(1 + rows) KINDS]


def count_model(numbers: dict, y: np.ndarray, alphabet: list, exponents: np.ndarray) -> Model:
    """Count all rows of the positions whose characters are y; the contexts of later positions are left alone."""
    M, N = len(y), len(alphabet)
    P = (np.bincount(y, minlength=N) + 1) / (M + N)
    P_at, tables = {(): P[y]}, []
    for row in ROWS:
        table, P_at[row] = count(numbers[row][:M], y.astype(np.uint64), P_at[row[:-1]])
        tables.append(table)
    return Model(alphabet, np.log(P), tables, exponents)


def read(model: Model, numbers: dict, positions: slice) -> tuple[np.ndarray, np.ndarray]:
    """The rows [M, R, N] of some positions, the unigram's first; and the two numbers [2, M, R] that exponents are sums of."""
    place = numbers["place"][positions]
    rows = np.zeros((len(place), 1 + len(ROWS), len(model.alphabet)), model.tables[0].values.dtype)
    rows[:, 0] = model.unigram
    kind = np.zeros((2, len(place), 1 + len(ROWS)), int)
    kind[1] = BUCKETS + place[:, None]
    for r, (row, table) in enumerate(zip(ROWS, model.tables, strict=True), start=1):
        wanted = numbers[row][positions] >> 16
        c = np.searchsorted(table.contexts, wanted)
        c[np.append(table.contexts, 0)[c] != wanted] = len(table.contexts)  # unknown: the empty one
        many = table.start[c + 1] - table.start[c]
        entries = np.arange(many.sum()) + np.repeat(table.start[c + 1] - np.cumsum(many), many)
        rows[np.repeat(np.arange(len(c)), many), r, table.outputs[entries]] = table.values[entries]
        kind[0, :, r] = table.bucket[c]
    return rows, kind + KINDS * np.arange(1 + len(ROWS))


def predict(a: np.ndarray, rows: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """log P [M, N]: the softmax of the weighted sum of the rows."""
    exponents = a[kind].sum(0).astype(rows.dtype)
    logits = (exponents[:, None] @ rows)[:, 0]
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def blocks(positions: range, size: int = 2000) -> Iterator[slice]:
    """Positions a few at a time: what a block needs fits the caches."""
    return (slice(m, min(m + size, positions.stop)) for m in positions[::size])


def loss(model: Model, numbers: dict, y: np.ndarray, positions: range) -> float:
    """Nats per character."""
    log_P = (predict(model.exponents, *read(model, numbers, b))[np.arange(len(y[b])), y[b]] for b in blocks(positions))
    return -float(np.concatenate(list(log_P)).mean())


# 4. Exponents.


def moments(a: np.ndarray, model: Model, numbers: dict, y: np.ndarray, positions: range) -> tuple:
    """The loss, its gradient E_P[row] - row[y] and its Hessian Cov_P[row, row], means over positions."""
    S = len(a)
    value, gradient, hessian = 0.0, np.zeros(S), np.zeros(S * S)
    for b in blocks(positions):
        rows, kind = read(model, numbers, b)
        log_P, each = predict(a, rows, kind), np.arange(len(rows))
        P = np.exp(log_P)[:, None]
        mean = (rows * P).sum(2)
        covariance = (rows * P) @ rows.transpose(0, 2, 1) - mean[:, :, None] * mean[:, None]
        value -= log_P[each, y[b]].sum(dtype=float)
        for k in kind:
            gradient += np.bincount(k.ravel(), (mean - rows[each, :, y[b]]).ravel(), S)
            for l in kind:
                hessian += np.bincount((S * k[:, :, None] + l[:, None]).ravel(), covariance.ravel(), S * S)
    return value / len(positions), gradient / len(positions), hessian.reshape(S, S) / len(positions)


def fit(model: Model, numbers: dict, y: np.ndarray, positions: range, ridge: float = 1e-3) -> np.ndarray:
    """The exponents of the least loss + ridge/2 |a - start|^2, by Newton's method. A step that goes too far is halved."""
    start = a = model.exponents
    here, step, least = moments(a, model, numbers, y, positions), 0 * a, np.inf
    for n in range(20):
        there = moments(a + step, model, numbers, y, positions)
        value = there[0] + ridge / 2 * np.sum((a + step - start) ** 2)
        print(f"  Newton {n}: {there[0]:.4f} nats per held-out character", flush=True)
        if value > least:
            step /= 2
            continue
        a, gain, least = a + step, least - value, value
        if gain < 1e-4:
            break
        step = -np.linalg.solve(there[2] + ridge * np.eye(len(a)), there[1] + ridge * (a - start))
    return a


# 5. From a text to a model, and back to text.


def train(text: str, alphabet: list | None = None) -> Model:
    """Count nine tenths, fit the exponents to the last tenth, and count everything with these exponents."""
    alphabet = alphabet or sorted(set(text))
    numbers, y = contexts(text), encode(text, alphabet)
    start = np.zeros((1 + len(ROWS), KINDS))
    start[0, 0] = 1
    start[1:, :BUCKETS] = 1 / len(CHAINS)
    held_out = range(len(y) * 9 // 10, len(y))
    model = count_model(numbers, y[: held_out.start], alphabet, start.ravel())
    return count_model(numbers, y, alphabet, fit(model, numbers, y, held_out))


def encode(text: str, alphabet: list) -> np.ndarray:
    number = {c: i for i, c in enumerate(alphabet)}
    return np.array([number[c] for c in text])


def sample(model: Model, text: str, length: int, seed: int = 0, reach: int = 400) -> str:
    """Continue a text by characters drawn from the model, each of which looks at the last few hundred."""
    rng = np.random.default_rng(seed)
    for _ in range(length):
        numbers = contexts(text[-reach:])
        P = np.exp(predict(model.exponents, *read(model, numbers, slice(-1, None)))[0].astype(float))
        text += rng.choice(model.alphabet, p=P / P.sum())
    return text


def main(path: str | None = None) -> None:
    started = time.time()
    text = open(path).read() if path else "\n".join(topics.values())
    print(f"{path or 'no file is given: the help texts of Python'}: {len(text):,} characters")
    cut = len(text) * 9 // 10
    model = train(text[:cut], sorted(set(text)))
    entries = sum(len(table.values) for table in model.tables)
    print(f"{entries:,} counted numbers, {len(model.exponents)} fitted ones, after {time.time() - started:.0f} s")
    found = loss(model, contexts(text), encode(text, model.alphabet), range(cut, len(text)))
    print(f"{found:.4f} nats per character on the last tenth of the text, after {time.time() - started:.0f} s\n")
    print(sample(model, "\n", 500))


if __name__ == "__main__":
    main(*sys.argv[1:2])

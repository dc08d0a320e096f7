"""A counted language model in one file: from a text to counts, to exponents, to a loss and to samples. It needs NumPy alone.

    python counted_in_one_file.py input.txt

It predicts the next character i from its context, which is all that stands before it:

    log P(i | context) = sum_r a_r row_r[i] - log Z.

A row r looks at a part h of the context, say the last three characters, and backs off to a smaller part h', the last two. It
says how much likelier h makes each character that has ever followed h; the others have 0:

    P(i|h) = (C(h, i) - D) / C(h) + gamma(h) P(i|h'),        row_r[i] = log(P(i|h) / (gamma(h) P(i|h'))).

C are counts, D are discounts, and gamma(h) is what the discounts leave to P(i|h'). If all exponents a_r are 1, the rows of the
last 0, 1, ..., 8 characters add up to log P(i | 8 characters): an n-gram model. Better exponents are fitted on a part of the
text that was not counted: a small convex problem, for Newton's method. No backpropagation, no learning rate.
"""

import sys
import time
from collections import namedtuple
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

# 1. What a prediction looks at: columns. A row looks at the first few columns of a chain, and backs off to one column fewer.
CHAINS = [
    (1, 2, 3, 4, 5, 6, 7, 8),  # the last characters, the nearest first
    (2, 3, 4, 5),  # all but the nearest
    (3, 4, 5, 6),
    ("part", "word", "word before"),  # the current word as far as it goes, and the two words before it
    ("since", "word", "word before"),  # the same, with the space or other signs before the current word
    ("since", "word before"),
    ("width", 1, 2),  # how long the current line is
    ("line",),  # all of the current line
    ("since", "speaker"),  # the last line that ended in a colon: in a play, who speaks
]
IN_CHAINS = [chain[:n] for chain in CHAINS for n in range(len(chain) + 1)]
ROWS = list(dict.fromkeys(IN_CHAINS))  # the first is (), which looks at nothing and backs off to equal probabilities


def mix(a, b):
    """A 64-bit number for a pair of numbers, or arrays of them for arrays. Two pairs hardly ever share one."""
    h = (a ^ b) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return h ^ (h >> 32)


def look(text):
    """The columns, [len(text) + 1] each: entry m is for the prediction of text[m], and depends on text[:m] alone."""
    names = "since", "part", "word", "word before", "line", "width", "speaker", "place"
    since = part = word = before = line = width = speaker = letters = others = 0
    last, seen = "\n", [(0,) * len(names)]
    for c in text:
        in_word = c.isalpha() or c == "'"
        if part and not in_word:  # a word has ended
            since, word, before = 0, part, word
        since, line, width = mix(since, ord(c)), mix(line, ord(c)), width + 1
        part, letters, others = (mix(part, ord(c)), letters + 1, 0) if in_word else (0, 0, others + 1)
        if c == "\n":
            line, width, speaker = 0, 0, line if last == ":" else speaker
        place = min(letters + 2, 7) if in_word else min(others, 2) if width else 0
        seen.append((since, part, word, before, line, width, speaker, place))
        last = c
    codes = np.array([0] * 8 + [ord(c) for c in text], np.uint64)
    back = {k: codes[8 - k : len(codes) - k + 1] for k in range(1, 9)}  # the character k places back
    return back | dict(zip(names, np.array(seen, np.uint64).T, strict=True))


def contexts(text):
    """h [R + 1, len(text) + 1]: for each row a number for what it looks at, then the place in the word, for the exponents."""
    columns = look(text)
    h: dict = {(): np.zeros(len(text) + 1, np.uint64)}
    for row in ROWS[1:]:
        h[row] = mix(h[row[:-1]], columns[row[-1]])
    return np.stack([*h.values(), columns["place"]])


# 2. Counts. The upper 48 bits of a number stand for a context, and the lower 16 are left to the character that follows.
Table = namedtuple("Table", "contexts start bucket outputs values")  # context c has the entries start[c] .. start[c + 1] - 1


def count(h, y, P_shorter):
    """The table of the contexts h [M] of characters y [M], from P(y|h') [M]; and P(y|h) [M], for rows that back off to this."""
    pairs, first, pair, C = np.unique(h >> 16 << 16 | y, return_index=True, return_inverse=True, return_counts=True)
    known, start, of, different = np.unique(pairs >> 16, return_index=True, return_inverse=True, return_counts=True)
    D = np.array([0.7, 1.0, 1.3])[np.minimum(C, 3) - 1]  # taken off counts of 1, 2 and more
    total, freed = np.bincount(of, C), np.bincount(of, D)
    backed_off = (freed / total)[of] * P_shorter[first]  # gamma(h) P(i|h')
    P = (C - D) / total[of] + backed_off
    bucket = 2 * np.searchsorted([2, 4, 11, 51], total, "right") + (different > 1)
    start, bucket = np.append(start, [len(pairs)] * 2), np.append(bucket, 0)  # the last context is an empty one
    return Table(known, start, bucket, (pairs & 0xFFFF).astype(int), np.log(P / backed_off).astype(np.float32)), P[pair]


def count_all(h, y, N):
    """The tables of all rows."""
    tables, P = [], {(): np.full(len(y), 1 / N)}
    for row, of_row in zip(ROWS, h[:-1], strict=True):
        table, P[row] = count(of_row, y, P[row[:-1]])
        tables.append(table)
    return tables


# 3. Predictions. The exponent of a row is the sum of two parts: one for how often its context occurred (once, 2-3, 4-10, 11-50
# times, or more; and whether different characters followed), and one for the place in the word.
BUCKETS, PLACES = 10, 8
Model = namedtuple("Model", "alphabet tables a")  # a [R * (BUCKETS + PLACES)]: the parts of exponents


def read(tables, h, N):
    """The rows [M, R, N] of contexts h [R + 1, M], and which two parts [2, M, R] make up their exponents."""
    R, M = len(tables), h.shape[1]
    rows, parts = np.zeros((M, R, N), tables[0].values.dtype), np.zeros((2, M, R), int)
    parts[1] = BUCKETS + h[-1].astype(int)[:, None]
    for r, table in enumerate(tables):
        c = np.searchsorted(table.contexts, h[r] >> 16)
        c[np.append(table.contexts, 0)[c] != h[r] >> 16] = len(table.contexts)  # it never occurred: the empty one
        end, many = table.start[c + 1], table.start[c + 1] - table.start[c]
        entries = np.arange(many.sum()) + np.repeat(end - np.cumsum(many), many)
        rows[np.repeat(np.arange(M), many), r, table.outputs[entries]] = table.values[entries]
        parts[0, :, r] = table.bucket[c]
    return rows, parts + (BUCKETS + PLACES) * np.arange(R)


def predict(model, h, size=2000):
    """log P [M, N] of some contexts at a time; with it, which contexts these are, and their rows and parts."""
    for block in (slice(m, m + size) for m in range(0, h.shape[1], size)):
        rows, parts = read(model.tables, h[:, block], len(model.alphabet))
        logits = (model.a[parts].sum(0).astype(rows.dtype)[:, None] @ rows)[:, 0]
        logits -= logits.max(1, keepdims=True)
        yield logits - np.log(np.exp(logits).sum(1, keepdims=True)), block, rows, parts


# 4. Exponents.
def moments(model, h, y):
    """The loss in nats per character, its gradient E_P[row] - row[y] and Hessian Cov_P[row, row'], means over positions."""
    loss, S = 0.0, len(model.a)
    gradient, hessian = np.zeros(S), np.zeros(S * S)
    for log_P, block, rows, parts in predict(model, h):
        at, P = np.arange(len(rows)), np.exp(log_P)[:, None]
        mean, square = (rows * P).sum(2), (rows * P) @ rows.transpose(0, 2, 1)
        covariance = square - mean[:, :, None] * mean[:, None]
        loss -= log_P[at, y[block]].sum(dtype=float)
        for one in parts:
            gradient += np.bincount(one.ravel(), (mean - rows[at, :, y[block]]).ravel(), S)
            for other in parts:
                hessian += np.bincount((S * one[:, :, None] + other[:, None]).ravel(), covariance.ravel(), S * S)
    return loss / len(y), gradient / len(y), hessian.reshape(S, S) / len(y)


def fit(model, h, y, ridge=2e-3):
    """The exponents with the least loss + ridge/2 |a - start|^2, by Newton's method. A step that goes too far is halved."""
    start, a, step, least = model.a, model.a, 0 * model.a, np.inf
    for _ in range(30):
        loss, gradient, hessian = moments(model._replace(a=a + step), h, y)
        print(f"  {loss:.4f} nats per held-out character", flush=True)
        loss += ridge / 2 * np.sum((a + step - start) ** 2)
        if loss > least:
            step = step / 2
            continue
        a, least, gradient = a + step, loss, gradient + ridge * (a + step - start)
        step = -np.linalg.solve(hessian + ridge * np.eye(len(a)), gradient)
        if -step @ gradient / 2 < 1e-4:  # the step would gain no more than this
            break
    return model._replace(a=a)


# 5. From a text to a model, and back to text.
def train(text, alphabet):
    """Count nine tenths of a text, fit the exponents on the last tenth, and count all of it."""
    h, y, N = contexts(text)[:, :-1], np.searchsorted(alphabet, list(text)).astype(np.uint64), len(alphabet)
    cut = len(text) * 9 // 10
    a = [[IN_CHAINS.count(row) / len(CHAINS)] * BUCKETS + [0] * PLACES for row in ROWS]  # the geometric mean of the chains
    model = fit(Model(alphabet, count_all(h[:, :cut], y[:cut], N), np.ravel(a)), h[:, cut:], y[cut:])
    return model._replace(tables=count_all(h, y, N))


def sample(model, text, length, temperature=0.8, seed=0):
    """Append characters drawn from the model, each from a context of 400 characters."""
    rng = np.random.default_rng(seed)
    for _ in range(length):
        ((log_P, *_),) = predict(model, contexts(text[-400:])[:, -1:])
        P = np.exp(log_P[0].astype(float) / temperature)
        text += rng.choice(model.alphabet, p=P / P.sum())
    return text


def main(path=None):
    started, text = time.time(), Path(path).read_text() if path else "\n".join(topics.values())
    print(f"{path or 'No file given, hence the help texts of Python'}: {len(text):,} characters")
    cut, alphabet = len(text) * 9 // 10, sorted(set(text))
    model = train(text[:cut], alphabet)
    print(f"{sum(len(t.values) for t in model.tables):,} numbers counted, {len(model.a)} fitted, {time.time() - started:.0f} s")
    loss, *_ = moments(model, contexts(text)[:, cut:-1], np.searchsorted(alphabet, list(text[cut:])))
    print(f"{loss:.4f} nats per character on the last tenth of the text\n{sample(model, chr(10), 500)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

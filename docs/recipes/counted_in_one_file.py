"""A counted language model in one file of NumPy: `python counted_in_one_file.py input.txt` counts, fits, predicts and writes.

A character is a path of decisions y, 0 or 1, through a tree of characters. A context is a fact about the text before, such as
its last three characters; a context and a node of the tree make a cell. What a cell has seen is evidence on its next decision,
measured against the log-odds b of a simpler prediction p = sigma(b):

    counted     log-odds of what followed elsewhere in the text after the same numbers of 0 and 1 and the same last two, less b
    residual    sum(y - p) / (sum p (1 - p) + 2), one Newton step for the cell's own correction of b

The log-odds of a decision are w.x, with x the evidence of all contexts and w from one Newton fit, plus d.z for each gate. A
gate divides decisions into sets, say by node of the tree. A set has weights d of its own for some directions z of x, in which
gradients of the sets scatter more than chance; the inverse of that variance is a ridge. No backpropagation, no learning rate.
An online model learns from all before a character, a static one from the training text alone."""

import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

NAMES = ("since", "part", "word", "before", "line", "width", "speaker", "place")  # of columns
CHAIN = [tuple(range(1, k + 1)) for k in range(8)]  # the last 0 to 7 characters, each measured against the ones before
WORDS = [("part",), ("part", "word"), ("part", "word", "before"), ("since", "word"), ("since", "before"), ("part", "before")]
LINES = [("line",), ("width", 1), ("width", 1, 2), ("since", "speaker"), ("line", "speaker")]
CONTEXTS = [*CHAIN, *WORDS, *LINES, (2, 3, 4), (1, 3, 4), (2, 3, 4, 5)]
SIZES = np.searchsorted([1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 120], np.arange(122), "right")  # 12 classes of a count
BINS, WIDTH = 25, 0.6  # of log-odds
TIME, MASK = 26, 0xFFFFFFFFFFFFFFFF  # a key: 38 bits for the cell, 25 for the number of the decision, 1 for y


def mix(a, b):
    """A 64-bit number for a pair of numbers, or arrays of them for arrays. Two pairs hardly ever share one."""
    h = ((a ^ b) * 0x9E3779B97F4A7C15 & MASK) + b & MASK
    return (h ^ (h >> 29)) * 0xD6E8FEB86659FD93 & MASK


def sigma(a):
    return 1 / (1 + np.exp(-a))


def contexts(text):
    """h [C + 1, len(text) + 1]: a number for each context, and the place in the word. Entry t depends on text[:t] alone."""
    since = part = word = before = line = width = speaker = letters = others = 0
    last, seen = "\n", [(0,) * 8]
    for c in text:
        in_word, code = c.isalpha() or c == "'", ord(c.lower())
        if part and not in_word:  # a word has ended
            since, word, before = 0, part, word
        since, line, width = mix(since, code), mix(line, code), width + 1
        part, letters, others = (mix(part, code), letters + 1, 0) if in_word else (0, 0, others + 1)
        if c == "\n":
            line, width, speaker = 0, 0, line if last == ":" else speaker
        place = min(letters + 2, 7) if in_word else min(others, 2) if width else 0
        seen.append((since, part, word, before, line, width, speaker, place))
        last = c
    codes = np.array([0] * 8 + [ord(c) for c in text], np.uint64)
    columns = {k: codes[8 - k : len(codes) - k + 1] for k in range(1, 9)}  # the character k places back
    columns |= zip(NAMES, np.array(seen, np.uint64).T, strict=True)
    h = np.zeros((len(CONTEXTS) + 1, len(text) + 1), np.uint64)
    h[-1] = columns["place"]
    for c, context in enumerate(CONTEXTS):
        for name in context:
            h[c] = mix(h[c] + np.uint64(1), columns[name])
    return h


def grow_tree(ids, N):
    """node, y [N, depth], depth [N]: paths. Merge the two clusters that lose least information about the character before."""
    rows = np.bincount(ids[1:] * N + ids[:-1], minlength=N * N).reshape(N, N) + 1e-9
    clusters, paths = [[i] for i in range(N)], [[] for _ in range(N)]
    for node in range(N - 2, -1, -1):  # node 0, the last one, is the root
        pair, own = rows[:, None] + rows, (rows * np.log(rows / rows.sum(1, keepdims=True))).sum(1)
        lost = own[:, None] + own - (pair * np.log(pair / pair.sum(2, keepdims=True))).sum(2) + np.diag(rows[:, 0] + np.inf)
        a, b = np.sort(np.unravel_index(np.argmin(lost), lost.shape))
        for i in clusters[a] + clusters[b]:
            paths[i].insert(0, (node, int(i in clusters[b])))
        rows[a] += rows[b]
        rows, clusters[a] = np.delete(rows, b, 0), clusters[a] + clusters.pop(b)
    depth = np.array([len(path) for path in paths])
    padded = [path + [(0, 0)] * (max(depth) - len(path)) for path in paths]
    return *np.moveaxis(np.array(padded), 2, 0), depth


def count(h, place, node, y, b, until, end):
    """Sort decisions by (cell, time): what a cell sees before until[t] is an interval. Returns keys, evidence(begin, stop, b)
    of intervals from a cell's beginning, and the evidence of the decisions themselves; its table is counted before the end."""
    at = np.arange(len(y))
    key = np.sort(mix(h[place], node.astype(np.uint64)) >> TIME << TIME | (at << 1 | y).astype(np.uint64))
    time, y = (key & (1 << TIME) - 1).astype(int) >> 1, (key & 1).astype(np.int32)
    new = np.append(True, key[1:] >> TIME != key[:-1] >> TIME)
    begin, cell, p = np.maximum.accumulate(new * at), np.cumsum(new) * len(h), sigma(b[time])
    stop = np.searchsorted(cell + place[time], cell + until[place[time]])
    sums = [(np.cumsum(v) - (np.cumsum(v) - v)[begin]).astype(np.float32) for v in (y * 1.0, y - p, p * (1 - p))]

    def state(begin, stop, b):
        n, n1 = stop - begin, np.where(stop > begin, sums[0][stop - 1], 0).astype(int)
        bits = sum(k * y[np.maximum(stop - k, 0)] * (n >= k) for k in (1, 2))
        x = np.clip(b / WIDTH + BINS // 2, 0, BINS - 1.001)
        return n, n1, (SIZES[np.minimum(n - n1, 121)] * 12 + SIZES[np.minimum(n1, 121)]) * 4 + bits, x.astype(int), x % 1

    n, _, s, j, part = state(begin, stop, b[time])
    of, middle = (n > 0) & (time < end), (np.arange(BINS) - BINS // 2) * WIDTH
    # how often 0 and 1 followed a state and a base in a bin, linear between bins, and two pseudo-counts as the base has it
    near = [np.bincount(((y * 576 + s) * BINS + j + k)[of], abs(1 - k - part)[of], 1152 * BINS) for k in (0, 1)]
    table = np.diff(np.log(sum(near).reshape(2, 576, BINS) + 2 * sigma(np.outer([-1, 1], middle))[:, None]), axis=0)[0]

    def evidence(begin, stop, b):
        n, n1, s, j, part = state(begin, stop, b)
        counted = (1 - part) * table[s, j] + part * table[s, j + 1]
        counted = np.where(n > 60, (counted + np.log((n1 + 0.3) / (n - n1 + 0.3))) / 2, counted) - b
        return counted * (n > 0), sums[1][stop - 1] / (sums[2][stop - 1] + 2) * (n > 0)

    found = np.empty((2, len(y)), np.float32)
    found[:, time] = evidence(begin, stop, b[time])
    return key, evidence, found


def sets_of(place, node, x):
    """Two gates: place in the word with the longest known order of the chain; place with the node."""
    return place * len(CHAIN) + (x[3 : 2 * len(CHAIN) : 2] != 0).sum(0), place * 256 + np.minimum(node, 255)


def read_gate(x, y, log_odds, sets, M, some, learn, scale, K=16):
    """The log-odds with a gate's, which learns up to a decision; directions U [F, K] and weights D [S, K] of its sets."""
    S, X, p, g = 8 * 256, x[:, some].T @ M, sigma(log_odds[some]), sets[some]
    order, h = np.argsort(g), np.bincount(g, p * (1 - p), S)
    (known, first), v = np.unique(g[order], return_index=True), 1 / (h + 300)
    G = np.add.reduceat((X * (y[some] - p)[:, None])[order], first) * v[known, None]
    variance, U = np.linalg.eigh((G.T @ G - (X * (p * (1 - p) * v[g] ** 2)[:, None]).T @ X) / np.sum((v * h) ** 2))
    U, ridge = M @ U[:, -K:], scale / np.maximum(variance[-K:], 1e-9)
    out, D, H = np.empty(len(y)), np.zeros((S, K)), np.zeros((S, K))
    for start in range(0, len(y), 128):
        at = slice(start, start + 128)
        z, g = np.clip(x[:, at].T @ U, -8, 8), sets[at]
        out[at] = np.clip(log_odds[at] + (D[g] * z).sum(1), -9.5, 9.5)
        if start + 128 <= learn:  # Newton's step for each decision, from the error after the step, to first order
            p, step = sigma(out[at]), z / (H[g] + ridge)
            np.add.at(D, g, ((y[at] - p) / (1 + p * (1 - p) * (z * step).sum(1)))[:, None] * step)
            np.add.at(H, g, (p * (1 - p))[:, None] * z * z)
    return out, (U, D)


def train(text, cut, online):
    """A model of text[:cut]: alphabet, tree, cells, decisions, w, gates. And its loss in nats on each character of the rest."""
    alphabet, h, T = np.array(sorted(set(text))), contexts(text), len(text)
    ids = np.searchsorted(alphabet, list(text))
    node, y, depth = tree = grow_tree(ids[:cut], len(alphabet))
    place, first = np.repeat(np.arange(T), depth[ids]), np.append(0, np.cumsum(depth[ids]))
    way, end = (ids[place], np.arange(first[-1]) - first[place]), first[cut]
    node, y, b, x, cells = node[way], y[way], np.zeros(first[-1], np.float32), [], []
    tenths = np.append(np.arange(10) * cut // 10, cut)  # static: a place of the training text sees the tenths before its own
    until = np.arange(T) if online else tenths[np.searchsorted(tenths, np.arange(T), "right") - 1]
    for c in range(len(CONTEXTS)):
        *cell, found = count(h[c], place, node, y, b, until, end)
        b, x, cells = b + found[0] * (c < len(CHAIN)), [*x, *found], [*cells, cell]
    x = np.array([*x, np.full(len(y), 0.3)], np.float32)
    some = np.random.default_rng(0).choice(np.arange(end * 2 // 5, end), min(200_000, end // 2), replace=False)
    X, w = x[:, some].T.astype(float), np.zeros(len(x))
    w[: 2 * len(CHAIN) : 2] = 1  # counted evidence of the chain alone
    for _ in range(20):  # Newton's method for the logistic loss + 5/2 |w|^2; log-odds move by 8 at most
        p = sigma(X @ w)
        F, g = (X * (p * (1 - p))[:, None]).T @ X, X.T @ (p - y[some]) + 5 * w
        w = w - (step := np.linalg.solve(F + 5 * np.eye(len(w)), g)) / max(1, np.abs(X @ step).max() / 8)
    F /= (p * (1 - p)).sum()
    M = np.linalg.inv(np.linalg.cholesky(F + 1e-4 * np.diag(np.diag(F)) + 1e-6 * np.eye(len(w)))).T  # F is the identity there
    log_odds, gates, learn, scale = np.clip(w @ x, -9.5, 9.5), [], len(y) if online else end, 3 if online else 300
    for sets in sets_of(h[-1, place].astype(int), node, x):
        log_odds, gate = read_gate(x, y, log_odds, sets, M, np.arange(end // 20, end, 4), learn, scale)
        gates.append(gate)
    return (alphabet, tree, cells, end, w, gates), np.add.reduceat(np.logaddexp(0, (1 - 2 * y) * log_odds), first[:-1])[cut:]


def predict(model, h):
    """log P [N] after a text with the contexts h [C + 1]: the decisions of all nodes, and their sums along the paths."""
    alphabet, (node, y, depth), cells, end, w, gates = model
    nodes, b, x = np.arange(len(alphabet) - 1), np.zeros(len(alphabet) - 1), []
    for c, (key, evidence) in enumerate(cells):
        cell = mix(h[c], nodes.astype(np.uint64)) >> TIME
        x += evidence(np.searchsorted(key, cell << TIME), np.searchsorted(key, (cell << TIME) + np.uint64(2 * end)), b)
        b = b + x[-2] * (c < len(CHAIN))
    x = np.array([*x, np.full(len(nodes), 0.3)])
    log_odds = np.clip(w @ x, -9.5, 9.5)
    for (U, D), sets in zip(gates, sets_of(int(h[-1]), nodes, x), strict=True):
        log_odds = np.clip(log_odds + (D[sets] * np.clip(x.T @ U, -8, 8)).sum(1), -9.5, 9.5)
    return -np.sum(np.logaddexp(0, (1 - 2 * y) * log_odds[node]) * (np.arange(node.shape[1]) < depth[:, None]), 1)


def main(path=None):
    text, rng = Path(path).read_text() if path else "\n".join(topics.values()), np.random.default_rng(0)
    print(f"{path or 'the help texts of Python'}: {len(text):,} characters; nats on each of the last tenth:")
    for kind in ("online", "static"):
        model, nats = train(text, len(text) * 9 // 10, kind == "online")
        print(f"{kind}: {nats.mean():.4f}", flush=True)
    for _ in range(500):  # samples of temperature 0.8
        text += rng.choice(model[0], p=(P := np.exp(predict(model, contexts(text[-2000:])[:, -1]) / 0.8)) / P.sum())
    print(text[-500:])


if __name__ == "__main__":
    main(*sys.argv[1:2])

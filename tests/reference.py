"""Slow NumPy loops straight from the paper: what the fast code is compared with. JAX is not imported here."""

import numpy as np
from numpy.typing import DTypeLike

PAD = 0

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house and then it was there".split()


def random_documents(seed: int, number: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Documents of 1..longest tokens, ids 1..vocab_size-1, the small ids frequent as in real text."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, vocab_size)
    ids = np.arange(1, vocab_size)
    return [rng.choice(ids, rng.integers(1, longest + 1), p=p / p.sum()).tolist() for _ in range(number)]


def stream_of(documents: list[list[int]], dtype: DTypeLike = np.uint16) -> np.ndarray:
    """`<pad> d_1 <pad> ... d_n <pad>`."""
    stream = [PAD]
    for document in documents:
        stream += [*document, PAD]
    return np.array(stream, dtype)


def windows(documents: list[list[int]], K: int, *, eos: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Sec. 2: the K tokens before every token of every document, nearest first; early positions see `<pad>`."""
    X, Y = [], []
    for document in documents:
        targets = [*document, PAD] if eos else document
        for m, target in enumerate(targets):
            X.append([document[m - k] if m >= k else PAD for k in range(1, K + 1)])
            Y.append(target)
    return np.array(X, np.int64).reshape(-1, K), np.array(Y, np.int64)


def cooccurrences(documents: list[list[int]], K: int, vocab_size: int) -> list[np.ndarray]:
    """`C_k[j, i] = sum_m [x_{m-k} = j] [x_m = i]`, ends of documents included."""
    C = [np.zeros((vocab_size, vocab_size), np.int64) for _ in range(K)]
    X, Y = windows(documents, K, eos=True)
    for context, target in zip(X, Y, strict=True):
        for k in range(K):
            C[k][context[k], target] += 1
    return C


def generalized_cooccurrences(H: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Eq. 2: the sum of outer products `sum_m H_m ⊗ Y_m`."""
    F = np.zeros((H.shape[1], Y.shape[1]))
    for h, y in zip(H, Y, strict=True):
        for j in range(len(h)):
            for i in range(len(y)):
                F[j, i] += h[j] * y[i]
    return F


def one_hot(ids: np.ndarray, size: int) -> np.ndarray:
    """A unit vector per id."""
    rows = np.zeros((len(ids), size))
    for m, i in enumerate(ids):
        rows[m, i] = 1
    return rows


def noise_parameters(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sec. 3.1.1: `q_n = f_n / (f_n + 1)` and `p = (1 - f/M) / ||1 - f/M||_1`."""
    N, M = len(f), int(sum(f))
    q, p = np.zeros(N), np.zeros(N)
    for n in range(N):
        q[n] = f[n] / (f[n] + 1)
        p[n] = 1 - f[n] / M
    return q, p / sum(p)


def noisy_embedding(f: np.ndarray) -> np.ndarray:
    """Eq. 4, dense: row n is `q_n e_n + (1 - q_n) p`."""
    q, p = noise_parameters(f)
    N = len(f)
    E = np.zeros((N, N))
    for n in range(N):
        for j in range(N):
            E[n, j] = q[n] * (n == j) + (1 - q[n]) * p[j]
    return E


def features(X: np.ndarray, E: np.ndarray, kind: str) -> np.ndarray:
    """Sec. 3.1.2: the dense layer inputs H, `sum_k E[x_{m-k}]` for Sum and `[E[x_{m-k}]]_k` for Cat."""
    rows = []
    for context in X:
        embedded = [E[j] for j in context]
        rows.append(sum(embedded) if kind == "sum" else np.concatenate(embedded))
    return np.array(rows)


def column_for_unseen_outputs(F: np.ndarray, H: np.ndarray, f: np.ndarray) -> np.ndarray:
    """An output that was never seen gets the co-occurrences that one observation has on average: the mean of H."""
    F = F.copy()
    for i in range(len(f)):
        if f[i] == 0:
            F[:, i] = H.sum(axis=0) / len(H)
    return F


def explicit_solution(F: np.ndarray, K: float) -> np.ndarray:
    """Eq. 3 and 5: `U[j, i] = log F[j, i] - (K - 1)/K log sum_d F[d, i]`."""
    U = np.zeros(F.shape)
    for i in range(F.shape[1]):
        column = sum(F[d, i] for d in range(F.shape[0]))
        for j in range(F.shape[0]):
            U[j, i] = np.log(F[j, i]) - (K - 1) / K * np.log(column)
    return U


def log_softmax(row: np.ndarray) -> np.ndarray:
    """`log φ` of one row of logits."""
    highest = max(row)
    return row - highest - np.log(sum(np.exp(u - highest) for u in row))


def negative_log_likelihood(H: np.ndarray, U: np.ndarray, Y: np.ndarray) -> float:
    """Eq. 1: `-sum_m log φ(H_m U)_{i_m}`."""
    return float(-sum(log_softmax(h @ U)[i] for h, i in zip(H, Y, strict=True)))


def gradient_of_loss(H: np.ndarray, U: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The derivative of Eq. 1: `dL/dU = sum_m H_m ⊗ (φ(H_m U) - Y_m)`."""
    G = np.zeros(U.shape)
    for h, target in zip(H, Y, strict=True):
        wrong = np.exp(log_softmax(h @ U))
        wrong[target] -= 1
        G += np.outer(h, wrong)
    return G


def misplaced_cooccurrences(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: int) -> float:
    """First-order condition of Eq. 1: `||H^T (Y - P)||_1 / (K M)`."""
    return float(sum(abs(g) for g in gradient_of_loss(H, U, Y).flat)) / (K * len(Y))


def adagrad_step(U: np.ndarray, G: np.ndarray, squares: np.ndarray, rate: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Duchi et al. 2011: `s += g^2`, `u -= rate g / sqrt(s + eps)`; where no gradient came yet, nothing."""
    U, squares = U.copy(), squares.copy()
    for d in range(U.shape[0]):
        for i in range(U.shape[1]):
            squares[d, i] += G[d, i] ** 2
            if squares[d, i] > 0:
                U[d, i] -= rate * G[d, i] / np.sqrt(squares[d, i] + eps)
    return U, squares


def language_model(documents: list[list[int]], K: int, vocab_size: int, kind: str, *, eos: bool, noise: bool = True):
    """Sec. 3.1 with everything dense: embedding E, co-occurrences F and decoder U of the text's own explicit solution."""
    f = np.zeros(vocab_size, np.int64)
    for document in documents:
        for token in [*document, PAD]:
            f[token] += 1
    E = noisy_embedding(f) if noise else np.eye(vocab_size)
    X, Y = windows(documents, K, eos=eos)
    H = features(X, E, kind)
    targets = one_hot(Y, vocab_size)
    F = column_for_unseen_outputs(generalized_cooccurrences(H, targets), H, targets.sum(axis=0))
    return E, F, explicit_solution(F, K)


def kneser_ney(C: np.ndarray) -> np.ndarray:
    """Interpolated Kneser-Ney (Chen & Goodman 1999), with the conventions of `smoothing` for what is never seen."""
    n1, n2 = sum(c == 1 for c in C.flat), sum(c == 2 for c in C.flat)
    D = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    followed = np.array([max(sum(c > 0 for c in column), 1) for column in C.T])
    P = np.zeros(C.shape)
    for j, row in enumerate(C):
        for i, c in enumerate(row):
            P_cont = followed[i] / sum(followed)
            P[j, i] = (max(c - D, 0) + D * sum(row > 0) * P_cont) / sum(row) if sum(row) else P_cont
    return P


def log_mean_cooccurrences(H: np.ndarray, F: np.ndarray, K: float) -> np.ndarray:
    """Eq. 11-13: the K-power mean over m of the geometric means `(prod_d F[d, i]^H[m, d])^(1/K)`, as a logarithm."""
    means = []
    for i in range(F.shape[1]):
        total = 0.0
        for h in H:
            geometric = np.prod([F[d, i] ** h[d] for d in range(len(h))]) ** (1 / K)
            total += geometric**K
        means.append((total / len(H)) ** (1 / K))
    return np.log(means)


def smallest_nucleus(p: np.ndarray, top_p: float) -> set[int]:
    """The fewest likeliest tokens that hold at least top_p of the probability."""
    kept: list[int] = []
    for i in sorted(range(len(p)), key=lambda i: -p[i]):
        if kept and sum(p[j] for j in kept) >= top_p:
            break
        kept.append(i)
    return set(kept)


def greedy(tables: list[np.ndarray], prompt: list[int], length: int, banned: set[int]) -> list[int]:
    """The likeliest allowed token every time; after `<pad>`, `<pad>` only."""
    K, text = len(tables), list(prompt)
    for _ in range(length):
        if len(text) > len(prompt) and text[-1] == PAD:
            text.append(PAD)
            continue
        context, ended = [], False
        for k in range(1, K + 1):
            j = text[-k] if len(text) >= k else PAD
            ended = ended or j == PAD
            context.append(PAD if ended else j)
        row = np.sum([table[j] for table, j in zip(tables, context, strict=True)], axis=0)
        text.append(max((i for i in range(len(row)) if i not in banned), key=lambda i: row[i]))
    return text[len(prompt) :]


def scaling_sweep(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: float) -> np.ndarray:
    """Generalised iterative scaling (Darroch & Ratcliff 1972), `U + (1/K) log(F / Hᵀ φ(H U))`, for rows of H that sum to K."""
    F = generalized_cooccurrences(H, one_hot(Y, U.shape[1]))
    return U + np.log(F / (gradient_of_loss(H, U, Y) + F)) / K


def scaling_sweep_of_pairs_that_occur(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: float) -> np.ndarray:
    """Darroch & Ratcliff 1972, cell by cell; a feature and an output that never occur together stay as they are."""
    F, E, U = np.zeros(U.shape), np.zeros(U.shape), U.copy()
    for h, target in zip(H, Y, strict=True):
        P = np.exp(log_softmax(h @ U))
        for j in range(len(h)):
            F[j, target] += h[j]
            E[j] += h[j] * P
    for j in range(U.shape[0]):
        for i in range(U.shape[1]):
            if F[j, i] > 0:
                U[j, i] += np.log(F[j, i] / E[j, i]) / K
    return U


def sweep_near(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: float, D: float, U0: np.ndarray) -> np.ndarray:
    """A sweep with a Laplace prior around U0, cell by cell, by search: the lowest point of each pair's own term."""
    F = H.T @ np.eye(U.shape[1])[Y]
    E = H.T @ np.exp([log_softmax(h @ U) for h in H])
    moved = U.copy()
    for j in range(U.shape[0]):
        for i in range(U.shape[1]):

            def term(d, j=j, i=i):
                return E[j, i] * np.exp(K * d) / K - F[j, i] * d + D * abs(U[j, i] + d - U0[j, i])

            steps = [U0[j, i] - U[j, i]]  # the kink, and where the term is flat on either side of it
            steps += [np.log((F[j, i] + sign * D) / E[j, i]) / K for sign in (-1, 1) if F[j, i] + sign * D > 0]
            moved[j, i] += min(steps, key=term)
    return moved


def pixel_features(images: np.ndarray, levels: int) -> np.ndarray:
    """Sec. 3.2: `H_m = flatten((X_m + 1)/levels)`."""
    rows = []
    for image in images:
        rows.append([(int(pixel) + 1) / levels for line in image for pixel in line])
    return np.array(rows)


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows whose largest logit is at their label."""
    return sum(max(range(len(row)), key=lambda i: row[i]) == label for row, label in zip(logits, labels, strict=True)) / len(
        labels
    )


def softmax_stack(H: np.ndarray, decoders: list[np.ndarray]) -> np.ndarray:
    """Sec. 3.3: logits of the last of several softmax layers, `φ(.. φ(H U1) ..) UL`."""
    for U in decoders[:-1]:
        H = np.array([np.exp(log_softmax(h @ U)) for h in H])
    return np.array([h @ decoders[-1] for h in H])


def slack_feature(H: np.ndarray) -> np.ndarray:
    """Darroch & Ratcliff 1972: the features with one more, `max_m ||H_m||_1 - ||H_m||_1`, so that all rows have one norm."""
    norms = [sum(h) for h in H]
    return np.array([[*h, max(norms) - norm] for h, norm in zip(H, norms, strict=True)])


def patch_answers(image: np.ndarray, W: np.ndarray, b: np.ndarray, threshold: float, grid: int) -> np.ndarray:
    """Positive parts of `patch · W - b` at every place, summed over a grid: [grid, grid, 2 n], row by row."""
    size = int(np.sqrt(len(W)))
    places = [side - size + 1 for side in image.shape]
    cells = np.zeros((grid, grid, 2 * W.shape[1]))
    for i in range(places[0]):
        for j in range(places[1]):
            z = image[i : i + size, j : j + size].reshape(-1) @ W - b
            parts = [max(value - threshold, 0) for value in z] + [max(-value - threshold, 0) for value in z]
            cells[i * grid // places[0], j * grid // places[1]] += parts
    return cells


def rows_of_smoothing(C: np.ndarray, smoothing: str) -> np.ndarray:
    """The rows of a smoothing by its name."""
    return kneser_ney(C) if smoothing == "kneser-ney" else (C + 1) / (C + 1).sum(axis=1, keepdims=True)


def single_discount(counts: list[int]) -> float:
    """Chen & Goodman 1999, Eq. 17; 1/2 where nothing was counted once, or nothing twice."""
    n1, n2 = counts.count(1), counts.count(2)
    return n1 / (n1 + 2 * n2) if n1 and n2 else 0.5


def modified_discounts(counts: list[int]) -> list[float]:
    """Chen & Goodman 1999, Eq. 26: what is taken from counts of 0, 1, 2 and 3+; the single discount stands in where it has no
    estimate or none above 0; KenLM's fallback where nothing was counted once, or nothing twice."""
    Y, n = single_discount(counts), [0, *(counts.count(c) for c in (1, 2, 3, 4))]
    if not (n[1] and n[2]):
        return [0.0, 0.5, 1.0, 1.5]
    D = [0.0]
    for c in (1, 2, 3):
        estimate = c - (c + 1) * Y * n[c + 1] / n[c] if all(n[1:]) else 0
        D.append(estimate if estimate > 0 else Y)
    return D


def attention_layer(E: np.ndarray, heads: list[tuple[np.ndarray, ...]], damping: float = 1.0) -> np.ndarray:
    """von Oswald et al. 2023, Eq. 3: every token, the query (last) too, attends to the tokens of the context."""
    updated = [list(map(float, e)) for e in E]
    for W_K, W_Q, W_V, P in heads:
        for j in range(len(E)):
            added = np.zeros(E.shape[1])
            for i in range(len(E) - 1):
                added += (W_V @ E[i]) * ((W_K @ E[i]) @ (W_Q @ E[j]))
            updated[j] += damping * P @ added
    return np.array(updated)


def attention_update(E: np.ndarray, heads: list[tuple[np.ndarray, ...]], *, softmax: bool, normalise: bool) -> np.ndarray:
    """von Oswald et al. 2023, Sec. 3: heads on the context (all tokens but the last), token by token.

    normalise: whether they read tokens of mean 0 and variance 1.
    """
    read = np.array([(e - e.mean()) / np.sqrt(e.var() + 1e-5) for e in E]) if normalise else E
    after = E.astype(float).copy()
    for W_K, W_Q, W_V, P in heads:
        for j in range(len(E)):
            scores = np.array([(W_K @ read[i]) @ (W_Q @ read[j]) for i in range(len(E) - 1)])
            if softmax:
                scores = np.exp(scores / len(W_K) ** 0.5) / sum(np.exp(score / len(W_K) ** 0.5) for score in scores)
            for i in range(len(E) - 1):
                after[j] += scores[i] * (P @ (W_V @ read[i]))
    return after


def descent_step(W: np.ndarray, X: np.ndarray, Y: np.ndarray, eta: float) -> np.ndarray:
    """von Oswald et al. 2023, Eq. 6: one step on `1/(2N) Σ ||W x_i - y_i||²`."""
    change = np.zeros_like(W)
    for x, y in zip(X, Y, strict=True):
        for o in range(W.shape[0]):
            for c in range(W.shape[1]):
                change[o, c] -= eta / len(X) * (W[o] @ x - y[o]) * x[c]
    return W + change


def gd_plus_plus(X: np.ndarray, Y: np.ndarray, x_q: np.ndarray, eta: list[float], gamma: list[float]) -> np.ndarray:
    """von Oswald et al. 2023, App. A.10: inputs and targets move at once, the query with them; its answer."""
    X, Y = np.vstack([X, x_q]).astype(float), np.vstack([Y, np.zeros(Y.shape[1])]).astype(float)
    N = len(X) - 1
    for e, g in zip(eta, gamma, strict=True):
        X_new, Y_new = X.copy(), Y.copy()
        for j in range(N + 1):
            for i in range(N):
                X_new[j] -= g * X[i] * (X[i] @ X[j])
                Y_new[j] -= e / N * Y[i] * (X[i] @ X[j])
        X, Y = X_new, Y_new
    return -Y[-1]


def log_linear(tables: list[np.ndarray], exponents: np.ndarray, rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """`log φ(sum_g a_g row_g)` position by position; feature g reads a row of tables[g], or none (-1)."""
    out = []
    for read, weighed in zip(rows, which, strict=True):
        logits = np.zeros(tables[0].shape[1])
        for table, r, s in zip(tables, read, weighed, strict=True):
            if r >= 0:
                logits = logits + exponents[s] * table[r]
        out.append(log_softmax(logits))
    return np.array(out)


def chain_counts(X: np.ndarray, Y: np.ndarray, offsets: tuple[int, ...]) -> list[dict[tuple[tuple[int, ...], int], int]]:
    """Counts of (context, output) by context length: how often, for the longest; for the others, after how many different
    tokens further back (Kneser & Ney 1995), down to the empty context."""
    counts: list[dict[tuple[tuple[int, ...], int], int]] = [{}]
    for x, y in zip(X, Y, strict=True):
        pair = (tuple(int(x[offset - 1]) for offset in offsets), int(y))
        counts[0][pair] = counts[0].get(pair, 0) + 1
    while len(next(iter(counts[0]))[0]):
        shorter: dict[tuple[tuple[int, ...], int], int] = {}
        for context, i in counts[0]:
            shorter[context[:-1], i] = shorter.get((context[:-1], i), 0) + 1
        counts.insert(0, shorter)
    return counts


class Chain:
    """Interpolated modified Kneser-Ney of any order (Chen & Goodman 1999, Eq. 24 to 26), pair by pair from dictionaries."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, offsets: tuple[int, ...], vocab_size: int):
        self.counts = chain_counts(X, Y, offsets)
        self.D = [modified_discounts(list(level.values())) for level in self.counts]
        followed = [max(self.counts[0].get(((), i), 0), 1) for i in range(vocab_size)]
        self.lowest = [n / sum(followed) for n in followed]

    def seen(self, context: tuple[int, ...]) -> list[int]:
        """The outputs that followed a context."""
        return sorted(i for c, i in self.counts[len(context)] if c == context)

    def gamma(self, context: tuple[int, ...]) -> float:
        """What the discounts free in a context's row; 1 where it never occurred."""
        row = [n for (c, _), n in self.counts[len(context)].items() if c == context]
        D = self.D[len(context)]
        return sum(D[min(n, 3)] for n in row) / sum(row) if row else 1.0

    def P(self, context: tuple[int, ...], i: int) -> float:
        """`P(i|h)`, the context's nearest token first."""
        if not context:
            return self.lowest[i]
        level, lower = self.counts[len(context)], self.gamma(context) * self.P(context[:-1], i)
        n = level.get((context, i), 0)
        total = sum(m for (c, _), m in level.items() if c == context)
        return (n - self.D[len(context)][min(n, 3)]) / total + lower if total else lower

    def row(self, context: tuple[int, ...]) -> np.ndarray:
        """How much more likely what followed a context is there, `log P(i|h) / (gamma(h) P(i|h'))`; 0 for all else."""
        row = np.zeros(len(self.lowest))
        for i in self.seen(context):
            row[i] = np.log(self.P(context, i) / (self.gamma(context) * self.P(context[:-1], i)))
        return row


def sentences(seed: int, number: int) -> list[str]:
    """Sentences whose words depend on the two before, so that contexts of several tokens tell something."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(number):
        words = list(rng.choice(len(WORDS), 2))
        for _ in range(rng.integers(3, 9)):
            follows = (3 * words[-1] + words[-2]) % len(WORDS)
            words.append(int(follows) if rng.random() < 0.6 else int(rng.integers(len(WORDS))))
        out.append(" ".join(WORDS[w] for w in words))
    return out

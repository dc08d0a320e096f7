"""Formulas of the papers in plain NumPy, which the fast code is compared with. JAX is not imported here."""

from collections import Counter

import numpy as np
from numpy.typing import DTypeLike
from scipy.special import log_softmax, softmax

PAD = 0


def random_documents(seed: int, number: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Documents of 1..longest tokens, ids 1..vocab_size-1, the small ids frequent as in real text."""
    rng = np.random.default_rng(seed)
    ids = np.arange(1, vocab_size)
    p = 1 / ids
    return [rng.choice(ids, rng.integers(1, longest + 1), p=p / p.sum()).tolist() for _ in range(number)]


def stream_of(documents: list[list[int]], dtype: DTypeLike = np.uint16) -> np.ndarray:
    """`<pad> d_1 <pad> ... d_n <pad>`."""
    return np.array([PAD, *(token for document in documents for token in [*document, PAD])], dtype)


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
    for context, target in zip(*windows(documents, K, eos=True), strict=True):
        for table, token in zip(C, context, strict=True):
            table[token, target] += 1
    return C


def generalized_cooccurrences(H: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Eq. 2: the sum of outer products `sum_m H_m ⊗ Y_m`."""
    return sum((np.outer(h, y) for h, y in zip(H, Y, strict=True)), start=np.zeros((H.shape[1], Y.shape[1])))


def one_hot(ids: np.ndarray, size: int) -> np.ndarray:
    """A unit vector per id."""
    return np.eye(size)[np.asarray(ids, int)]


def noisy_embedding(f: np.ndarray) -> np.ndarray:
    """Eq. 4, dense: row n is `q_n e_n + (1 - q_n) p`, with `q_n = f_n / (f_n + 1)` and `p = (1 - f/M) / ||1 - f/M||_1`."""
    q, p = f / (f + 1), 1 - f / sum(f)
    return np.diag(q) + np.outer(1 - q, p / sum(p))


def features(X: np.ndarray, E: np.ndarray, kind: str) -> np.ndarray:
    """Sec. 3.1.2: the dense layer inputs H, `sum_k E[x_{m-k}]` for Sum and `[E[x_{m-k}]]_k` for Cat."""
    rows = [[E[j] for j in context] for context in X]
    return np.array([sum(row) if kind == "sum" else np.concatenate(row) for row in rows])


def column_for_unseen_outputs(F: np.ndarray, H: np.ndarray, f: np.ndarray) -> np.ndarray:
    """An output that was never seen gets the co-occurrences that one observation has on average: the mean of H."""
    return np.where(f == 0, H.mean(axis=0)[:, None], F)


def explicit_solution(F: np.ndarray, K: float) -> np.ndarray:
    """Eq. 3 and 5: `U[j, i] = log F[j, i] - (K - 1)/K log sum_d F[d, i]`."""
    F = np.asarray(F, float)
    return np.log(F) - (K - 1) / K * np.log(F.sum(axis=0))


def negative_log_likelihood(H: np.ndarray, U: np.ndarray, Y: np.ndarray) -> float:
    """Eq. 1: `-sum_m log φ(H_m U)_{i_m}`."""
    return float(-sum(log_softmax(h @ U)[i] for h, i in zip(H, Y, strict=True)))


def gradient_of_loss(H: np.ndarray, U: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The derivative of Eq. 1: `dL/dU = sum_m H_m ⊗ (φ(H_m U) - Y_m)`."""
    wrong = [softmax(h @ U) - target for h, target in zip(H, one_hot(Y, U.shape[1]), strict=True)]
    return generalized_cooccurrences(H, np.array(wrong))


def language_model(documents: list[list[int]], K: int, vocab_size: int, kind: str, *, eos: bool, noise: bool = True):
    """Sec. 3.1 with everything dense: embedding E, co-occurrences F and decoder U of the text's own explicit solution."""
    f = np.bincount(stream_of(documents)[1:], minlength=vocab_size)
    E = noisy_embedding(f) if noise else np.eye(vocab_size)
    X, Y = windows(documents, K, eos=eos)
    H, targets = features(X, E, kind), one_hot(Y, vocab_size)
    F = column_for_unseen_outputs(generalized_cooccurrences(H, targets), H, targets.sum(axis=0))
    return E, F, explicit_solution(F, K)


def kneser_ney(C: np.ndarray) -> np.ndarray:
    """Interpolated Kneser-Ney (Chen & Goodman 1999), with the conventions of `smoothing` for what is never seen."""
    D = single_discount(C.ravel().tolist())
    followed = np.maximum((C > 0).sum(axis=0), 1)
    P_cont = followed / followed.sum()
    rows = [(np.maximum(row - D, 0) + D * sum(row > 0) * P_cont) / sum(row) if sum(row) else P_cont for row in C]
    return np.array(rows)


def log_mean_cooccurrences(H: np.ndarray, F: np.ndarray, K: float) -> np.ndarray:
    """Eq. 11-13: the K-power mean over m of the geometric means `(prod_d F[d, i]^H[m, d])^(1/K)`, as a logarithm."""
    geometric = np.prod(F[None] ** H[:, :, None], axis=1) ** (1 / K)
    return np.log(np.mean(geometric**K, axis=0) ** (1 / K))


def smallest_nucleus(p: np.ndarray, top_p: float) -> set[int]:
    """The fewest likeliest tokens that hold at least top_p of the probability."""
    order = np.argsort(-p, kind="stable")
    before = np.cumsum([0, *p[order][:-1]])  # the probability of all that are likelier
    return set(order[(before < top_p) | (before == 0)].tolist())


def scaling_sweep(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: float) -> np.ndarray:
    """Generalised iterative scaling (Darroch & Ratcliff 1972), `U + (1/K) log(F / Hᵀ φ(H U))`, for rows of H that sum to K.

    A feature and an output that never occur together stay as they are.
    """
    F = generalized_cooccurrences(H, one_hot(Y, U.shape[1]))
    ratio = np.divide(F, gradient_of_loss(H, U, Y) + F, out=np.ones(F.shape), where=F > 0)
    return U + np.log(ratio) / K


def sweep_near(H: np.ndarray, U: np.ndarray, Y: np.ndarray, K: float, D: float, U0: np.ndarray) -> np.ndarray:
    """A sweep with a Laplace prior around U0, cell by cell, by search: the lowest point of each pair's own term."""
    F = generalized_cooccurrences(H, one_hot(Y, U.shape[1]))
    E = gradient_of_loss(H, U, Y) + F
    moved = U.copy()
    for j, i in np.ndindex(U.shape):

        def term(d, j=j, i=i):
            return E[j, i] * np.exp(K * d) / K - F[j, i] * d + D * abs(U[j, i] + d - U0[j, i])

        steps = [U0[j, i] - U[j, i]]  # the kink, and where the term is flat on either side of it
        steps += [np.log((F[j, i] + sign * D) / E[j, i]) / K for sign in (-1, 1) if F[j, i] + sign * D > 0]
        moved[j, i] += min(steps, key=term)
    return moved


def pixel_features(images: np.ndarray, levels: int) -> np.ndarray:
    """Sec. 3.2: `H_m = flatten((X_m + 1)/levels)`."""
    return (images.reshape(len(images), -1).astype(float) + 1) / levels


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
    estimates = [c - (c + 1) * Y * n[c + 1] / n[c] if all(n[1:]) else 0 for c in (1, 2, 3)]
    return [0.0, *(estimate if estimate > 0 else Y for estimate in estimates)]


def attention_layer(E: np.ndarray, heads: list[tuple[np.ndarray, ...]], *, softmax_of_scores: bool = False) -> np.ndarray:
    """von Oswald et al. 2023, Eq. 3: every token, the query (last) too, attends to the tokens of the context."""
    updated = E.astype(float)
    for W_K, W_Q, W_V, P in heads:
        for j, query in enumerate(E):
            scores = np.array([(W_K @ e) @ (W_Q @ query) for e in E[:-1]])
            if softmax_of_scores:
                scores = softmax(scores / len(W_K) ** 0.5)
            updated[j] += P @ sum(score * (W_V @ e) for score, e in zip(scores, E[:-1], strict=True))
    return updated


def descent_step(W: np.ndarray, X: np.ndarray, Y: np.ndarray, eta: float) -> np.ndarray:
    """von Oswald et al. 2023, Eq. 6: one step on `1/(2N) Σ ||W x_i - y_i||²`."""
    return W - eta * np.mean([np.outer(W @ x - y, x) for x, y in zip(X, Y, strict=True)], axis=0)


def gd_plus_plus(X: np.ndarray, Y: np.ndarray, x_q: np.ndarray, eta: list[float], gamma: list[float]) -> np.ndarray:
    """von Oswald et al. 2023, App. A.10: inputs and targets move at once, the query with them; its answer."""
    X, Y = np.vstack([X, x_q]).astype(float), np.vstack([Y, np.zeros(Y.shape[1])]).astype(float)
    N = len(X) - 1
    for e, g in zip(eta, gamma, strict=True):
        X_new, Y_new = X.copy(), Y.copy()
        for j, i in np.ndindex(N + 1, N):
            X_new[j] -= g * X[i] * (X[i] @ X[j])
            Y_new[j] -= e / N * Y[i] * (X[i] @ X[j])
        X, Y = X_new, Y_new
    return -Y[-1]


class Chain:
    """Interpolated modified Kneser-Ney of any order (Chen & Goodman 1999, Eq. 24 to 26), pair by pair from dictionaries."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, vocab_size: int):
        pairs = [(tuple(map(int, x)), int(y)) for x, y in zip(X, Y, strict=True)]
        self.counts = [Counter(pairs)]  # by length: how often, for the longest; for others, after how many tokens further back
        for _ in X.T:
            self.counts.insert(0, Counter((context[:-1], i) for context, i in self.counts[0]))
        self.D = [modified_discounts(list(level.values())) for level in self.counts]
        followed = [max(self.counts[0].get(((), i), 0), 1) for i in range(vocab_size)]
        self.lowest = [n / sum(followed) for n in followed]

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

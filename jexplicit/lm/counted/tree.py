"""A tree of tokens: a token is a path of binary decisions.

    P(token) = prod_d p(bit_d | node_d),        p = sigma(log-odds)

Nothing is normalised over the N tokens. Tokens that occur after the same tokens share the upper part of their paths, so the
upper nodes are classes of tokens.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

_merged = 400  # tokens of the largest tree that is merged from below; larger ones are halved from above
_columns = 700  # pairs of tokens before
_short = 20_000  # tokens of a text below which classes are cuts of the tree, too


class Tree(NamedTuple):
    """The paths of N tokens through N - 1 nodes; 0 is the root.

    node: [N, D] the nodes of a path from the root on, 0 after its end.
    bit: [N, D] which way the path goes at each.
    length: [N] decisions of a path.
    """

    node: Int[np.ndarray, "N D"]
    bit: Int[np.ndarray, "N D"]
    length: Int[np.ndarray, " N"]

    @property
    def within(self) -> Bool[np.ndarray, "N D"]:
        """Which entries belong to a path."""
        return np.arange(self.node.shape[1]) < self.length[:, None]

    @property
    def depths(self) -> Int[np.ndarray, " nodes"]:
        """How deep each node is.

        Example:
            >>> as_tree({3: (0, 4), 4: (1, 2)}, 3, 3).depths.tolist()
            [0, 1]
        """
        found = np.zeros(len(self.length) - 1, np.int32)
        place, depth = np.nonzero(self.within)
        found[self.node[place, depth]] = depth
        return found

    def log_probabilities(self, log_odds: Float[np.ndarray, "*B nodes"]) -> Float[np.ndarray, "*B N"]:
        """`log P` of every token from the log-odds of all nodes.

        Example:
            >>> tree = as_tree({2: (0, 1)}, 2, 2)
            >>> np.exp(tree.log_probabilities(np.array([0.0]))).tolist()
            [0.5, 0.5]
        """
        signed = np.where(self.bit == 1, -1, 1) * np.take(log_odds, self.node, axis=-1)
        return -np.sum(np.where(self.within, np.logaddexp(0, signed), 0), axis=-1)

    def classes(self, size: int, counts: Integer[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """The class of every token by a cut of the tree.

        Example:
            >>> as_tree({4: (0, 1), 5: (2, 3), 6: (4, 5)}, 6, 4).classes(2, np.array([1, 1, 1, 1])).tolist()
            [0, 0, 1, 1]
        """
        N, D = self.node.shape
        below = np.bincount(self.node[self.within], np.repeat(counts, self.length), N)  # occurrences below each node
        small = self.within & (below[self.node] <= counts.sum() / size)
        depth = np.where(small.any(axis=1), small.argmax(axis=1), self.length)
        top = np.where(depth < self.length, self.node[np.arange(N), np.minimum(depth, D - 1)], N + np.arange(N))
        return np.unique(top, return_inverse=True)[1].astype(np.int32)

    def leaves(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, "nodes 3"]]:
        """The tokens from left to right, and the leaves of each node.

        Example:
            >>> order, spans = as_tree({2: (1, 0)}, 2, 2).leaves()
            >>> order.tolist(), spans.tolist()
            ([1, 0], [[0, 1, 2]])
        """
        N, D = self.node.shape
        order = np.lexsort([np.where(self.within, self.bit, -1)[:, d] for d in range(D - 1, -1, -1)])
        spans = np.full((max(N - 1, 0), 3), N, np.int64)
        spans[:, 1:] = 0
        place, depth = np.nonzero(self.within[order])
        node, bit = self.node[order][place, depth], self.bit[order][place, depth]
        np.minimum.at(spans[:, 0], node, place)
        np.maximum.at(spans[:, 2], node, place + 1)
        np.maximum.at(spans[:, 1], node[bit == 0], place[bit == 0] + 1)
        return order, spans


def grow(ids: Integer[np.ndarray, " L"], N: int) -> Tree:
    """The tree of the tokens of a text, see `grow_with_classes`."""
    return grow_with_classes(ids, N, ())[0]


def grow_with_classes(
    ids: Integer[np.ndarray, " L"], N: int, sizes: Iterable[int]
) -> tuple[Tree, dict[int, Int[np.ndarray, " N"]]]:
    """The tree of a text's tokens, and classes of each size.

    Few tokens are merged from below by the tokens that stand before them, and classes are cuts of their tree. Many are split
    from above by their word vectors, and classes are clusters of these; class 0 has what never occurs.

    Args:
        ids: [L] tokens.
        N: how many there are.
        sizes: how many classes.

    Raises:
        ValueError: fewer than two tokens.
    """
    if N < 2:
        raise ValueError(f"a vocabulary of {N} token: a tree of decisions needs at least two")
    ids = np.asarray(ids, np.int64)  # sums of small integers would wrap
    counts = np.bincount(ids, minlength=N)
    if N <= _merged:
        tree = agglomerate(_before(ids, N))
        return tree, {size: tree.classes(size, counts) for size in sizes}
    x = unit(vectors(ids, N))
    tree = bisect(x, counts)
    return tree, {size: tree.classes(size, counts) if len(ids) < _short else cluster(x, counts, size) for size in sizes}


def _before(ids: np.ndarray, N: int) -> np.ndarray:
    """Counts of each token after the commonest pairs and single tokens."""
    pair = ids[:-2].astype(np.int64) * N + ids[1:-1]
    kinds, n = np.unique(pair, return_counts=True)
    common = np.sort(kinds[np.argsort(-n, kind="stable")[:_columns]])
    at = np.searchsorted(common, pair)
    known = (at < len(common)) & (common[np.minimum(at, len(common) - 1)] == pair) if len(common) else np.zeros(0, bool)
    column = np.where(known, at, len(common) + ids[1:-1])
    width = len(common) + N
    return np.bincount(ids[2:] * width + column, minlength=N * width).reshape(N, width).astype(float)


def agglomerate(J: Float[np.ndarray, "N C"]) -> Tree:
    """The tree that merges the two clusters that lose least information.

    Args:
        J: [N, C] how often each token stands with each column.

    Source: agglomerative information bottleneck, Slonim and Tishby 1999; Brown et al. 1992.
    """
    N = len(J)
    J = J[:, J.any(axis=0) | (np.arange(J.shape[1]) == 0)] + 1e-9  # also of a text without neighbours

    def lost(v: np.ndarray) -> np.ndarray | np.floating:
        total = v.sum(axis=-1)
        return total * np.log(total) - (v * np.log(v)).sum(axis=-1)

    rows = np.concatenate([J, np.zeros((N - 1, J.shape[1]))])
    own, live = np.zeros(2 * N - 1), np.arange(2 * N - 1) < N
    own[:N] = lost(J)
    cost = np.full((2 * N - 1, 2 * N - 1), np.inf)
    for a in range(N - 1):
        cost[a, a + 1 : N] = lost(J[a] + J[a + 1 :]) - own[a] - own[a + 1 : N]
    children = {}
    for new in range(N, 2 * N - 1):
        a, b = map(int, np.unravel_index(np.argmin(cost), cost.shape))
        children[new], rows[new] = (a, b), rows[a] + rows[b]
        own[new], live[[a, b]] = lost(rows[new]), False
        cost[[a, b]] = np.inf
        cost[:, [a, b]] = np.inf
        others = np.flatnonzero(live)
        cost[others, new] = lost(rows[others] + rows[new]) - own[others] - own[new]
        live[new] = True
    return as_tree(children, 2 * N - 2, N)


def vectors(ids: Integer[np.ndarray, " L"], N: int, rank: int = 64) -> Float[np.ndarray, "N R"]:
    """Word vectors from counts of the tokens before and after, concatenated."""
    C = csr_array((np.ones(len(ids) - 1, np.int64), (ids[1:], ids[:-1])), shape=(N, N)).tocsr()
    return np.concatenate([singular_vectors(C, rank), singular_vectors(C.T.tocsr(), rank)], axis=1)


def cluster(x: Float[np.ndarray, "N R"], counts: Integer[np.ndarray, " N"], size: int) -> Int[np.ndarray, " N"]:
    """A class of every token by k-means of word vectors, weighted."""
    from sklearn.cluster import KMeans  # it takes a second to import
    from threadpoolctl import threadpool_limits

    occurs, found = np.flatnonzero(counts), np.zeros(len(counts), np.int32)
    kmeans = KMeans(min(size, len(occurs)), n_init=1, max_iter=30, random_state=0)  # pyright: ignore[reportArgumentType]
    with threadpool_limits(1):  # several threads would add in another order each time
        found[occurs] = 1 + kmeans.fit_predict(x[occurs], sample_weight=np.sqrt(counts[occurs]))
    return found


def singular_vectors(counts: csr_array, rank: int) -> Float[np.ndarray, "N R"]:
    """Leading singular vectors of positive pointwise mutual information, scaled by root singular values.

    Args:
        counts: [N, N] of pairs of tokens.
        rank: R, and at most N - 2.

    Source: Levy and Goldberg 2014.
    """
    N = len(counts.indptr) - 1
    M, q = counts.tocoo(), np.asarray(counts.sum(axis=0)) ** 0.75
    p = np.bincount(M.row, M.data, minlength=N)
    information = np.log(M.data / (p[M.row] * (q / max(q.sum(), 1e-30))[M.col]))
    kept = information > 0
    positive = csr_array((information[kept], (M.row[kept], M.col[kept])), shape=(N, N))
    u, s, _ = svds(positive, k=min(rank, N - 2), v0=np.ones(N) / np.sqrt(N))
    return u * np.sqrt(np.maximum(s, 0))


def unit(x: Float[np.ndarray, "*n R"]) -> Float[np.ndarray, "*n R"]:
    """Vectors of length 1, and of 0 those that are 0.

    Example:
        >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).round(3).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return x / (np.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)


def bisect(x: Float[np.ndarray, "N R"], counts: Integer[np.ndarray, " N"]) -> Tree:
    """The tree that splits sets of tokens in two by 2-means.

    Each half keeps a fifth of the occurrences, where the tokens allow it: paths stay short.

    Args:
        x: [N, R] word vectors of length 1.
        counts: [N] occurrences, the weights.
    """
    N, children, weight = len(counts), {}, counts + 1e-3
    number, todo = N, [(np.arange(N), None)]
    while todo:
        at, parent = todo.pop()
        if len(at) > 1:
            own, number = number, number + 1
            left = _halve(x[at], weight[at])
            todo += [(at[~left], own), (at[left], own)]
        else:
            own = int(at[0])
        if parent is not None:
            children.setdefault(parent, []).append(own)
    return as_tree(children, N, N)


def _halve(x: Float[np.ndarray, "n R"], w: Float[np.ndarray, " n"], least: float = 0.2) -> Bool[np.ndarray, " n"]:
    """The tokens in the first of two clusters of bounded shares."""
    if len(x) == 2:
        return np.array([True, False])
    x = x - w @ x / w.sum()
    v = x[np.argmax((x * x).sum(axis=1) * w)]
    for _ in range(12):  # the power method
        v = (w * (x @ v)) @ x
        v = v / (np.sqrt(v @ v) + 1e-12)

    def first(score: np.ndarray, threshold: float | None) -> np.ndarray:
        """The tokens up to a threshold of scores, with bounded shares."""
        order = np.argsort(score, kind="stable")
        share = np.cumsum(w[order]) / w.sum()
        n = np.searchsorted(share, 0.5) + 1 if threshold is None else np.count_nonzero(score <= threshold)
        low, high = np.searchsorted(share, least) + 1, np.searchsorted(share, 1 - least)
        low, high = (low, high) if low <= high else (1, len(w) - 1)  # a token may have more than all others
        found = np.zeros(len(w), bool)
        found[order[: np.clip(n, max(low, 1), min(high, len(w) - 1))]] = True
        return found

    left, root = first(x @ v, None), np.sqrt(w)
    for _ in range(10):
        a, b = (root[side] @ x[side] / root[side].sum() for side in (left, ~left))
        again = first(x @ (b - a), float(b @ b - a @ a) / 2)
        if (again == left).all():
            break
        left = again
    return left


def as_tree(children: dict[int, tuple[int, int]] | dict[int, list[int]], root: int, N: int) -> Tree:
    """The paths of a tree given by the children of inner nodes.

    Example:
        >>> as_tree({3: (0, 4), 4: (1, 2)}, 3, 3).bit.tolist()
        [[0, 0], [1, 0], [1, 1]]
    """
    paths: dict[int, tuple[tuple[int, int], ...]] = {root: ()}
    order, number = [root], {}
    for x in order:  # the root first, then its children, and theirs
        if x in children:
            number[x] = len(number)
            for bit, y in enumerate(children[x]):
                paths[y] = (*paths[x], (number[x], bit))
                order.append(y)
    D = max(len(paths[i]) for i in range(N))
    padded = np.array([paths[i] + ((0, 0),) * (D - len(paths[i])) for i in range(N)], np.int32).reshape(N, D, 2)
    return Tree(padded[..., 0], padded[..., 1].astype(np.int8), np.array([len(paths[i]) for i in range(N)], np.int32))

"""A softmax layer on word vectors, in closed form, as evidence.

    x = clip(theta_n . z, +-8),      theta_n = (h_n F_n + ridge S)^-1 G_n,      G_n = sum (y - p) z,      h_n = sum p (1 - p)

The input z describes what stands before a token: the vectors of the last two tokens, and the mean vectors of the last 20 and of
the last 100. The layer has a row theta_n for each node of the tree, one Newton step of the logistic regression of its decisions
over the log-odds that contexts give. F_n is the mean of p (1 - p) z z' over the decisions of the nodes near n, per unit of
p (1 - p), and S that of z z' over all places, so that only G_n and h_n are a node's own.

A training decision is measured with rows of the blocks of the text before its own.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float, Float32, Int, Integer
from scipy.sparse import csr_array

from jexplicit.data.contexts import PAD
from jexplicit.lm.counted.columns import Text
from jexplicit.lm.counted.evidence import Decisions, sigma
from jexplicit.lm.counted.mixing import CLIP
from jexplicit.lm.counted.tree import Tree, singular_vectors, unit, vectors

_rank, _topic_rank, _span = 32, 64, 10
_offsets, _windows = (1, 2), (20, 100)
_ridge, _near = 200.0, 2.0  # of rows; the weight of S in F_n
_deepest, _of_group = 10, 1 << 15  # depth of nodes that share F, at most, and how many decisions share it, about
_places, _for_fisher = 1 << 15, 1 << 13  # at once; decisions that F is measured on, about
_decisions = 1 << 14  # at once


class Described(NamedTuple):
    """Word vectors, and the tokens before a place that they describe.

    table: [N, R] unit vectors; 0 of `<pad>`.
    offsets: k for the vector of the token k back.
    windows: W for the direction of the sum of the last W vectors.
    """

    table: Float32[np.ndarray, "N R"]
    offsets: tuple[int, ...]
    windows: tuple[int, ...]

    def inputs(self, text: Text, places: Integer[np.ndarray, " P"]) -> list[Float32[np.ndarray, "P R"]]:
        """The inputs at some ascending places, 0 before the document; see `described`."""
        found, start, ids = [], text.begin[places], text.ids
        for k in self.offsets:
            there = places - k > start
            found.append(self.table[ids[np.maximum(places - k, 0)]] * there[:, None])
        if self.windows:
            first = max(int(places[0]) - max(self.windows), 0)
            sums = np.cumsum(self.table[ids[first : places[-1]]], axis=0, dtype=np.float64)
            sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
            for W in (min(W, text.window or W) for W in self.windows):
                total = sums[places - first] - sums[np.maximum(np.maximum(start, places - W) - first, 0)]
                found.append(unit(total).astype(np.float32))
        return found


class Layer(NamedTuple):
    """A solved layer.

    vectors: that describe places.
    theta: [nodes, R] the rows of the nodes of a tree.
    step: the weight with which it is added to the log-odds of contexts.
    """

    vectors: tuple[Described, ...]
    theta: Float32[np.ndarray, "nodes R"]
    step: float

    def evidence(self, text: Text, d: Decisions) -> Float32[np.ndarray, " B"]:
        """Of every decision."""
        return product(self.theta, self.vectors, text, d.place, d.node)


def topic_vectors(text: Text, L: int, N: int) -> Float[np.ndarray, "N R"]:
    """Word vectors from pairs at most ten tokens apart, first L places."""
    ids, at, pairs = text.ids[:L].astype(np.int64), np.arange(L), csr_array((N, N), dtype=np.int64)
    for k in range(1, _span + 1):
        there = (at[k:] - k > text.begin[k:L]) & (ids[k:] != PAD) & (ids[:-k] != PAD)
        i, j = ids[k:][there], ids[: L - k][there]
        pairs = pairs + csr_array((np.ones(len(i), np.int64), (i, j)), shape=(N, N))
    return singular_vectors((pairs + pairs.T).tocsr(), _topic_rank)


def describing(text: Text, L: int, N: int) -> tuple[Described, ...]:
    """Vectors from the first L places: of neighbours, and of topics."""

    def table(rows: np.ndarray) -> np.ndarray:
        rows = unit(rows).astype(np.float32)
        rows[PAD] = 0
        return rows

    adjacent = vectors(text.ids[:L].astype(np.int64), N, _rank)
    return (
        Described(table(adjacent), _offsets, ()),
        Described(table(topic_vectors(text, L, N)), (), _windows),
    )


def described(vectors: tuple[Described, ...], text: Text, places: Integer[np.ndarray, " P"]) -> Float32[np.ndarray, "P R"]:
    """z of some ascending places of a text, the last number a constant."""
    found = [x for v in vectors for x in v.inputs(text, places)]
    return np.concatenate([*found, np.full((len(places), 1), 0.3, np.float32)], axis=1)


def product(
    theta: Float32[np.ndarray, "nodes R"],
    vectors: tuple[Described, ...],
    text: Text,
    place: Integer[np.ndarray, " B"],
    node: Integer[np.ndarray, " B"],
) -> Float32[np.ndarray, " B"]:
    """`clip(theta_n . z, +-8)` of decisions in the order of their places."""
    out = np.empty(len(place), np.float32)
    for a in range(0, len(place), _decisions):
        at = slice(a, a + _decisions)
        new = np.append(True, np.diff(place[at]) > 0)[: len(place[at])]
        places, inverse = place[at][new], np.cumsum(new) - 1
        z = described(vectors, text, places)
        out[at] = np.clip(np.einsum("br,br->b", z[inverse], theta[node[at]]), -CLIP, CLIP)
    return out


def near(tree: Tree, top: int) -> Int[np.ndarray, " nodes"]:
    """For each node the ancestor at depth `top`, which shares F."""
    found = np.arange(len(tree.length) - 1)
    for depth in range(top, tree.node.shape[1]):
        there = tree.length > depth
        found[tree.node[there, depth]] = tree.node[there, top]
    return found


class Sums(NamedTuple):
    """The sums that solve the rows of a layer.

    G: [blocks, nodes, R] sum of (y - p) z.
    h: [blocks, nodes] sum of p (1 - p).
    group: [nodes] which F each node has.
    U: [groups, R, R] and s: [groups, R] such that U' F U = diag(s) and U' S U = 1.
    """

    G: Float[np.ndarray, "blocks nodes R"]
    h: Float[np.ndarray, "blocks nodes"]
    group: Int[np.ndarray, " nodes"]
    U: Float32[np.ndarray, "groups R R"]
    s: Float32[np.ndarray, "groups R"]

    def rows(self, blocks: int) -> Float32[np.ndarray, "nodes R"]:
        """theta of the first blocks of the text: (h F + ridge S)^-1 G."""
        G, h = self.G[:blocks].sum(axis=0), self.h[:blocks].sum(axis=0)
        theta, order = np.zeros(G.shape, np.float32), np.argsort(self.group, kind="stable")
        edges = np.searchsorted(self.group[order], np.arange(len(self.U) + 1))
        for U, s, a, e in zip(self.U, self.s, edges[:-1], edges[1:], strict=True):
            some = order[a:e]
            theta[some] = ((G[some] @ U) / (h[some, None] * s + _ridge)) @ U.T
        return theta


def chunks(d: Decisions, end: int) -> Iterator[tuple[np.ndarray, slice]]:
    """Some places at a time, and their decisions, of those before `end`."""
    last = int(np.searchsorted(d.first, end))
    for a in range(0, last, _places):
        e = min(a + _places, last)
        yield d.places[a:e], slice(int(d.first[a]), int(d.first[e]))


def sums(
    vectors: tuple[Described, ...], text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree, end: int
) -> Sums:
    """The sums that solve the rows, before `end`, in one pass."""
    R, nodes, blocks = sum(v.table.shape[1] * (len(v.offsets) + len(v.windows)) for v in vectors) + 1, len(tree.length) - 1, 0
    blocks = int(d.block[end - 1]) + 1
    tops, group = np.unique(near(tree, min(_deepest, max(end // _of_group, 1).bit_length() - 1)), return_inverse=True)
    every = max(1, end // (len(tops) * _for_fisher))
    G, h = np.zeros((blocks, nodes, R), np.float32), np.zeros((blocks, nodes))
    F, weight = np.zeros((len(tops), R, R), np.float32), np.zeros(len(tops))
    S, n = np.zeros((R, R)), 0
    for places, at in chunks(d, end):
        z, p, node = described(vectors, text, places), sigma(base[at]), d.node[at].astype(np.int64)
        v, row = p * (1 - p), d.place[at]
        row = np.searchsorted(places, row)
        for block in np.unique(d.block[at]):
            some = d.block[at] == block
            error = csr_array(((d.bit[at] - p)[some], (node[some], row[some])), shape=(nodes, len(places)))
            touched = np.flatnonzero(np.diff(error.indptr))
            G[block, touched] += error[touched] @ z
            h[block] += np.bincount(node[some], v[some], nodes)
        S, n = S + z[::every].T @ z[::every], n + len(z[::every])
        own = group[node]
        measured = np.argsort(own, kind="stable")[::every]
        found, first = np.unique(own[measured], return_index=True)
        for g, some in zip(found, np.split(measured, first[1:]), strict=True):
            x = z[row[some]]
            F[g] += (x * v[some, None]).T @ x
            weight[g] += v[some].sum()
    S = S / n + 1e-5 * np.trace(S) / n / R * np.eye(R)
    whiten = np.linalg.inv(np.linalg.cholesky(S)).T.astype(np.float32)  # W' S W = 1
    U, s = np.empty_like(F), np.empty((len(tops), R), np.float32)
    for g in range(len(tops)):
        own_F = whiten.T @ (F[g] / (weight[g] + _near)) @ whiten + np.eye(R) * _near / (weight[g] + _near)
        s[g], turn = scipy.linalg.eigh(own_F, overwrite_a=True, check_finite=False)
        U[g] = whiten @ turn
    return Sums(G, h, group, U, s)


def solve_layer(
    text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree, *, L: int, end: int, at: Int[np.ndarray, " n"]
) -> tuple[Layer, Float32[np.ndarray, " n"]]:
    """A layer over the log-odds of contexts, and its evidence.

    Args:
        text: the training text and perhaps another.
        d: its decisions.
        base: [B] log-odds.
        tree: of tokens.
        L: places of the training text.
        end: decisions of the training text.
        at: [n] the decisions whose evidence is wanted, ascending.
    """
    vectors = describing(text, L, len(tree.length))
    found = sums(vectors, text, d, base, tree, end)
    x, block, blocks = np.zeros(len(at), np.float32), d.block[at], len(found.G)
    for k in range(1, blocks + 1):
        some = (block == k) & (at < end) if k < blocks else at >= end
        theta = found.rows(k)
        x[some] = product(theta, vectors, text, d.place[at[some]], d.node[at[some]])
    return Layer(vectors, found.rows(blocks), 1.0), x

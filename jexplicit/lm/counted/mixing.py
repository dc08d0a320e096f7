"""Mixing evidence: a regression, gates with random effects, and a layer on word vectors.

    log-odds = w.x + sum_g D_g[s_g].z_g,        z_g = clip(U_g' x, +-8)

The weights w are shared by all decisions and come from one Newton fit. A *gate* divides decisions into sets s, say by node of
the tree; a set has weights D of its own for the few directions U of x (of the first numbers of it: later evidence is measured
against what the gate has made of these) in which the gradients of the sets scatter more than chance. The inverse of that
variance is the ridge of a direction (empirical Bayes). A set's weights are solved as it goes: an implicit step
D += e z / (H + ridge) with e the error after the step and H its sum of p (1 - p) z^2. No learning rate.

A *layer* is one more number of evidence, a softmax layer on word vectors in closed form, one Newton step over the log-odds:

    x = clip(theta_n . z, +-8),      theta_n = (h_n F_n + ridge S)^-1 G_n,      G_n = sum (y - p) z,      h_n = sum p (1 - p)

for each node n of the tree; z has the vectors of the last two tokens and the mean vectors of the last 20 and the last 100.
F_n is the mean of p (1 - p) z z' over the decisions of the nodes near n, per unit of p (1 - p), and S that of z z' over all
places. A training decision is measured with rows of the blocks of the text before its own.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float, Float32, Int, Integer
from scipy.sparse import csr_array
from scipy.special import expit

from jexplicit.data.streams import PAD
from jexplicit.lm.counted.contexts import Text, Tree, singular_vectors
from jexplicit.lm.counted.evidence import MOST, Decisions, threads
from jexplicit.runs.devices import check_threads

CLIP = 8.0  # of directions
BLOCK = 64  # decisions from one change of the weights to the next, about
NO_BLOCKS = np.zeros(0, np.int64)  # of weights that stay as they are
_sizes, _wider = (1 << 4, 1 << 8, 1 << 11), 16  # blocks that a call is padded to, and decisions that its blocks are
_rows, _wide = 1 << 14, 1 << 17  # decisions of a product, and of those that threads share
_parts = 4  # of a sum over decisions, which threads share
_sets = 1 << 13  # of every gate, so that gates share a program


class Gate(NamedTuple):
    """The weights of the sets of a gate, and H, the curvature of each."""

    U: Float32[np.ndarray, "F K"]
    ridge: Float32[np.ndarray, " K"]
    D: Float32[np.ndarray, "S K"]
    H: Float32[np.ndarray, "S K"]


def newton(X: Float[np.ndarray, "B F"], y: np.ndarray, start: np.ndarray, ridge: float, offset: np.ndarray | float = 0.0):
    """`argmin_w sum log(1 + exp(-+ (offset + X w))) + ridge/2 |w - start|^2`."""
    w, step, least = np.asarray(start, np.float64), np.zeros(len(start)), np.inf
    y = y.astype(np.float32)
    for _ in range(40):
        a = offset + X @ (w + step).astype(np.float32)
        loss = np.logaddexp(0, np.where(y > 0, -a, a)).sum(dtype=float) + ridge / 2 * ((w + step - start) ** 2).sum()
        if not loss <= least:
            step = step / 2
            if np.abs(step).max() < 1e-7:
                break
            continue
        w, least, p = w + step, loss, expit(a)
        g = X.T @ (p - y) + ridge * (w - start)
        v = p * (1 - p)
        F = (X * v[:, None]).T @ X
        step = -np.linalg.solve(F + ridge * np.eye(len(w)), g)
        if -g @ step < 1e-3:
            break
    return w


def log_likelihoods(bit: Integer[np.ndarray, " B"], log_odds: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """`log p` of every decision, in nats."""
    return -np.logaddexp(0, (1 - 2 * bit.astype(np.float32)) * log_odds)


def directions(X, y, log_odds, sets, M, *, sets_in_all: int, size: int, ridge: float, halves: np.ndarray | None = None) -> Gate:
    """Directions in which the gradients of sets scatter, and weights of 0.

    G_s = sum (y - p) x,  h_s = sum p (1 - p),  A = sum_s c_s^2 (G_s G_s' - F_s) / sum_s c_s^2 h_s^2,  c_s = 1 / (h_s + 3000)

    With halves [B] of the text, 0 and 1, the product of their gradients stands for the square less chance. Static cells do not
    move, so that errors repeat within a half; this product leaves them out with chance.

    Args:
        X: [F, B] evidence, of any floating type.
        y, log_odds, sets: [B] decisions, the mix so far, and the set of each, of sets_in_all.
        M: [F, F] whitening.
        size: K, directions at most.
        ridge: factor of the inverse variances.
    """
    p, half = expit(log_odds), np.zeros(len(y), int) if halves is None else halves.astype(int)
    h, M = np.bincount(sets, p * (1 - p), sets_in_all), M.astype(np.float32)
    c = 1 / (h + 3000)

    def sums(first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        G, chance = np.zeros((2 * sets_in_all, len(X))), np.zeros(M.shape)
        for at in (slice(a, min(a + _rows, end)) for a in range(first, end, _rows)):
            s, Z, error = sets[at], X[:, at].T.astype(np.float32) @ M, (y - p)[at]
            weight = (p * (1 - p))[at] * c[s] ** 2
            chance += (Z * weight.astype(np.float32)[:, None]).T @ Z
            G += csr_array((error, (half[at] * sets_in_all + s, np.arange(len(s)))), shape=(len(G), len(s))) @ Z
        return G, chance

    edges = [len(y) * part // _parts for part in range(_parts + 1)]
    found = [*threads().map(sums, edges[:-1], edges[1:])]
    G, chance = (np.sum([part[n] for part in found], axis=0) for n in range(2))
    one, two = G.reshape(2, sets_in_all, len(X)) * c[:, None]
    A = one.T @ one - chance if halves is None else 2 * (one.T @ two + two.T @ one)
    variance, U = np.linalg.eigh(A / (np.sum((c * h) ** 2) + 1e-12))
    wide, low = np.zeros((len(M), size), np.float32), np.full(size, np.inf, np.float32)  # a direction of no variance stays 0
    keep = np.flatnonzero(variance > 1e-9)[-size:]
    wide[:, : len(keep)], low[: len(keep)] = M @ U[:, keep], ridge / variance[keep]
    zeros = np.zeros((max(sets_in_all, _sets), size), np.float32)
    return Gate(wide, low, zeros, zeros)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _learn(D, H, ridge, z, log_odds, sets, y):
    """Log-odds with a gate's, block by block, and its weights after."""
    K = z.shape[-1]

    def step(W, block):  # W = [D, H], since a gather and a scatter cost more than all else
        z, a, s, y = block
        D, H = W[s, :K], W[s, K:]
        out = jnp.clip(a + jnp.sum(D * z, axis=1), -MOST, MOST)
        rate = z / (H + ridge[None])
        reach = jnp.sum(z * rate, axis=1)
        d = jnp.zeros_like(out)
        for _ in range(3):  # d = reach (y - sigma(out + d)), by Newton's method
            p = jax.nn.sigmoid(out + d)
            d = d - (d - reach * (y - p)) / (1 + reach * p * (1 - p))
        there = (y >= 0).astype(z.dtype)
        p, error = jax.nn.sigmoid(out), y - jax.nn.sigmoid(out + d)
        learned = (there * error)[:, None] * rate, (there * p * (1 - p))[:, None] * z * z
        return W.at[s].add(jnp.concatenate(learned, axis=1)), out

    W, out = jax.lax.scan(step, jnp.concatenate([D, H], axis=1), (z, log_odds, sets, y))
    return W[:, :K], W[:, K:], out


def blocks_of(place: Integer[np.ndarray, " B"], before: int = 0) -> Integer[np.ndarray, " B"]:
    """The block of every decision, by the first one of its token.

    >>> blocks_of(np.repeat(np.arange(20), 10))[[59, 60, 69, 70]].tolist()
    [0, 0, 0, 1]
    """
    new = np.append(True, place[1:] != place[:-1])[: len(place)]
    return (np.maximum.accumulate(np.where(new, np.arange(len(place)), 0)) + before) // BLOCK


def read_gate(
    gate: Gate, x, log_odds: np.ndarray, sets: np.ndarray, y: np.ndarray, blocks: Integer[np.ndarray, " learn"] = NO_BLOCKS
) -> tuple[np.ndarray, Gate]:
    """The log-odds of decisions with a gate's, which learns by block.

    x: [F, B] evidence, of any floating type. log_odds, sets, y: [B] before, of the gate, decisions. blocks: of the decisions
    that are learned from, `blocks_of` them.
    """
    B, learn, D, H, out = len(y), len(blocks), gate.D, gate.H, np.empty(len(y), np.float32)
    if learn:
        check_threads()
    first = np.flatnonzero(np.diff(blocks, prepend=-1))  # decision of each block
    row, column = np.repeat([np.arange(len(first)), first], np.diff(np.append(first, learn)), axis=1)
    column = np.arange(learn) - column
    wide = -(-max(column.max(initial=0) + 1, BLOCK + 1) // _wider) * _wider
    for n, e in itertools.pairwise([*first[:: _sizes[-1]].tolist(), *range(learn, B, _wide), B]):
        at, parts = slice(n, e), (x[:, a : min(a + _rows, e)] for a in range(n, e, _rows))
        each = map if e - n <= _rows else threads().map
        z = np.concatenate([*each(lambda part: np.clip(part.T.astype(np.float32) @ gate.U, -CLIP, CLIP), parts)])
        if n >= learn:
            out[at] = np.clip(log_odds[at] + np.einsum("bk,bk->b", D[sets[at]], z), -MOST, MOST)
            continue
        some = row[at] - row[n], column[at]
        size = next(size for size in _sizes if size > some[0][-1])
        Z, s = np.zeros((size, wide, gate.U.shape[1]), np.float32), np.zeros((size, wide), np.int32)
        a, of = np.zeros((2, size, wide), np.float32)
        Z[some], s[some], a[some], of[...], of[some] = z, sets[at], log_odds[at], -1, y[at]
        D, H, found = map(np.asarray, _learn(*map(jax.device_put, (np.array(D), np.array(H), gate.ridge, Z, a, s, of))))
        out[at] = found[some]
    return out, gate._replace(D=D, H=H)


# A softmax layer on word vectors, in closed form, as evidence

_rank, _topic_rank, _span = 32, 64, 10
_offsets, _windows = (1, 2), (20, 100)
_layer_ridge, _near = 200.0, 2.0  # of rows; the weight of S in F_n
_deepest, _of_group = 10, 1 << 15  # depth of nodes that share F, at most, and how many decisions share it, about
_places, _for_fisher = 1 << 15, 1 << 13  # at once; decisions that F is measured on, about
_decisions = 1 << 14  # at once


class Described(NamedTuple):
    """Word vectors, and the tokens before a place that they describe.

    table: [N, R] unit vectors; 0 of `<pad>`. offsets: k for the vector of the token k back. windows: W for the direction of the
    sum of the last W vectors.
    """

    table: Float32[np.ndarray, "N R"]
    offsets: tuple[int, ...]
    windows: tuple[int, ...]


class Layer(NamedTuple):
    """A solved layer, with its weight `step` in the log-odds."""

    vectors: tuple[Described, ...]
    theta: Float32[np.ndarray, "nodes R"]
    step: float

    def evidence(self, text: Text, place: Integer[np.ndarray, " B"], node: Integer[np.ndarray, " B"]):
        """[B] `clip(theta_n . z, +-8)` of decisions in the order of their places."""
        out = np.empty(len(place), np.float32)
        for a in range(0, len(place), _decisions):
            at = slice(a, a + _decisions)
            new = np.append(True, np.diff(place[at]) > 0)[: len(place[at])]
            z, row = described(self.vectors, text, place[at][new]), np.cumsum(new) - 1
            out[at] = np.clip(np.einsum("br,br->b", z[row], self.theta[node[at]]), -CLIP, CLIP)
        return out


def described(vectors: tuple[Described, ...], text: Text, places: Integer[np.ndarray, " P"]) -> Float32[np.ndarray, "P R"]:
    """z of some ascending places of a text, 0 before the document."""
    found, start, ids = [], text.begin[places], text.ids
    for table, offsets, windows in vectors:
        for k in offsets:
            there = places - k > start
            found.append(table[ids[np.maximum(places - k, 0)]] * there[:, None])
        if windows:
            first = max(int(places[0]) - max(windows), 0)
            sums = np.cumsum(table[ids[first : places[-1]]], axis=0, dtype=np.float64)
            sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
            for W in (min(W, text.window or W) for W in windows):
                total = sums[places - first] - sums[np.maximum(np.maximum(start, places - W) - first, 0)]
                found.append((total / (np.linalg.norm(total, axis=1, keepdims=True) + 1e-6)).astype(np.float32))
    return np.concatenate([*found, np.full((len(places), 1), 0.3, np.float32)], axis=1)


def layer_rows(
    vectors: tuple[Described, ...], text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree
) -> Float32[np.ndarray, "blocks nodes R"]:
    """theta of the first 1, 2, ... blocks: (h F + ridge S)^-1 G."""
    R = sum(v.table.shape[1] * (len(v.offsets) + len(v.windows)) for v in vectors) + 1
    nodes, blocks = len(tree.length) - 1, int(d.block[-1]) + 1
    top, near = min(_deepest, max(len(d.bit) // _of_group, 1).bit_length() - 1), np.arange(nodes)
    for depth in range(top, tree.node.shape[1]):  # the ancestor at depth `top` of each node, which shares F
        there = tree.length > depth
        near[tree.node[there, depth]] = tree.node[there, top]
    tops, group = np.unique(near, return_inverse=True)
    every = max(1, len(d.bit) // (len(tops) * _for_fisher))
    G, h = np.zeros((blocks, nodes, R), np.float32), np.zeros((blocks, nodes))
    F, weight = np.zeros((len(tops), R, R), np.float32), np.zeros(len(tops))
    S, n = np.zeros((R, R)), 0  # G_n and h_n of each block, then of all before; F of each group times its weight
    first = np.append(np.flatnonzero(np.diff(d.place, prepend=-1)), len(d.bit))  # decision of each place
    for a in range(0, len(first) - 1, _places):
        e = min(a + _places, len(first) - 1)
        at, places = slice(first[a], first[e]), d.place[first[a:e]]
        z, p, node = described(vectors, text, places), 1 / (1 + np.exp(-base[at])), d.node[at].astype(np.int64)
        v, row = p * (1 - p), np.searchsorted(places, d.place[at])
        for block in np.unique(d.block[at]):
            some = d.block[at] == block
            error = csr_array(((d.bit[at] - p)[some], (node[some], row[some])), shape=(nodes, len(places)))
            touched = np.flatnonzero(np.diff(error.indptr))
            G[block, touched] += error[touched] @ z
            h[block] += np.bincount(node[some], v[some], nodes)
        S, n = S + z[::every].T @ z[::every], n + len(z[::every])
        own = group[node]
        measured = np.argsort(own, kind="stable")[::every]
        found, begin = np.unique(own[measured], return_index=True)
        for g, some in zip(found, np.split(measured, begin[1:]), strict=True):
            x = z[row[some]]
            F[g] += (x * v[some, None]).T @ x
            weight[g] += v[some].sum()
    S = S / n + 1e-5 * np.trace(S) / n / R * np.eye(R)
    whiten = np.linalg.inv(np.linalg.cholesky(S)).T.astype(np.float32)  # W' S W = 1
    for k in range(1, blocks):
        G[k], h[k] = G[k] + G[k - 1], h[k] + h[k - 1]
    for g in range(len(tops)):  # U' F U = diag(s) and U' S U = 1
        own = whiten.T @ (F[g] / (weight[g] + _near)) @ whiten + np.eye(R) * _near / (weight[g] + _near)
        s, turn = scipy.linalg.eigh(own, overwrite_a=True, check_finite=False)
        U, s, some = (whiten @ turn).astype(np.float32), s.astype(np.float32), np.flatnonzero(group == g)
        for k in range(blocks):
            G[k, some] = ((G[k, some] @ U) / (h[k, some, None] * s + _layer_ridge)) @ U.T
    return G


def solve_layer(
    text: Text, d: Decisions, base: Float32[np.ndarray, " B"], tree: Tree, at: Int[np.ndarray, " n"]
) -> tuple[Layer, Float32[np.ndarray, " n"]]:
    """A layer over the log-odds of contexts, and evidence of decisions `at`.

    Its word vectors are those of pairs of neighbours, and of pairs at most ten tokens apart.
    """
    N, ids = len(tree.length), text.ids.astype(np.int64)
    C = csr_array((np.ones(len(ids) - 1, np.int64), (ids[1:], ids[:-1])), shape=(N, N))
    pairs = csr_array((N, N), dtype=np.int64)
    for k in range(1, _span + 1):
        there = (np.arange(len(ids) - k) > text.begin[k:]) & (ids[k:] != PAD) & (ids[:-k] != PAD)
        i, j = ids[k:][there], ids[:-k][there]
        pairs = pairs + csr_array((np.ones(len(i), np.int64), (i, j)), shape=(N, N))
    found = singular_vectors([C, C.T.tocsr()], _rank), singular_vectors([(pairs + pairs.T).tocsr()], _topic_rank)
    near, far = ((x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-6)).astype(np.float32) for x in found)
    near[PAD] = far[PAD] = 0
    vectors = Described(near, _offsets, ()), Described(far, (), _windows)
    theta, x, block = layer_rows(vectors, text, d, base, tree), np.zeros(len(at), np.float32), d.block[at]
    for k in range(1, len(theta)):
        some = at[block == k]
        x[block == k] = Layer(vectors, theta[k - 1], 1.0).evidence(text, d.place[some], d.node[some])
    return Layer(vectors, theta[-1].copy(), 1.0), x

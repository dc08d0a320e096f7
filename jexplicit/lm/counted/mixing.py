"""Mixing evidence: logistic regression, solved, and gates whose weights are random effects.

    log-odds = w.x + sum_g D_g[s_g].z_g,        z_g = clip(U_g' x, +-8)

of all evidence, or of the first numbers of it, where a gate has a row of U for each of them: later evidence is measured against
what the gate has made of these.

The weights w are shared by all decisions and come from one Newton fit. A *gate* divides decisions into sets s, say by node of
the tree; a set has weights D of its own for the few directions U of x in which the gradients of the sets scatter more than
chance. The inverse of that variance is the ridge of a direction (empirical Bayes). A set's weights are solved as it goes: an
implicit step D += e z / (H + ridge) with e the error after the step and H its sum of p (1 - p) z^2. No learning rate.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Integer
from scipy.sparse import csr_array
from scipy.special import expit

from jexplicit.lm.counted.evidence import MOST, threads
from jexplicit.runs.devices import check_threads

CLIP = 8.0  # of directions
BLOCK = 64  # decisions from one change of the weights to the next, about
NO_BLOCKS = np.zeros(0, np.int64)  # of weights that stay as they are
_sizes, _wider = (1 << 4, 1 << 8, 1 << 11), 16  # blocks that a call is padded to, and decisions that its blocks are
_rows, _wide = 1 << 14, 1 << 17  # decisions of a product, and of those that threads share
_parts = 4  # of a sum over decisions, which threads share
_sets = 1 << 13  # of every gate, so that gates share a program


class Gate(NamedTuple):
    """The weights of the sets of a gate.

    U: [F, K] directions of the evidence.
    ridge: [K].
    D: [S, K] weights.
    H: [S, K] what each has learnt from.
    """

    U: Float32[np.ndarray, "F K"]
    ridge: Float32[np.ndarray, " K"]
    D: Float32[np.ndarray, "S K"]
    H: Float32[np.ndarray, "S K"]


def newton(X: Float[np.ndarray, "B F"], y: np.ndarray, start: np.ndarray, ridge: float, offset: np.ndarray | float = 0.0):
    """`argmin_w sum log(1 + exp(-+ (offset + X w))) + ridge/2 |w - start|^2`.

    Example:
        >>> w = newton(np.ones((400, 1), np.float32), np.tile([0, 1, 1, 1], 100), np.zeros(1), 1e-6)
        >>> np.round(w, 2).tolist()  # log 3; the last step gains less than a thousandth of a nat
        [1.1]
    """
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


def information(X: Float[np.ndarray, "B F"], log_odds: Float[np.ndarray, " B"]) -> Float[np.ndarray, "F F"]:
    """The Fisher information of weights of evidence, per unit of p (1 - p).

    Example:
        >>> information(np.array([[1.0], [3.0]]), np.zeros(2)).tolist()
        [[5.0]]
    """
    v = expit(log_odds) * expit(-log_odds)
    return (X * v[:, None]).T @ X / max(v.sum(), 1e-30)


def log_likelihoods(bit: Integer[np.ndarray, " B"], log_odds: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """`log p` of every decision, in nats.

    Example:
        >>> log_likelihoods(np.array([0, 1]), np.zeros(2)).round(3).tolist()
        [-0.693, -0.693]
    """
    return -np.logaddexp(0, (1 - 2 * bit.astype(np.float32)) * log_odds)


def whitening(F: np.ndarray) -> np.ndarray:
    """M such that M' F M is the identity, F nearly singular."""
    C = np.linalg.cholesky(F + 1e-4 * np.diag(np.diag(F)) + 1e-6 * np.eye(len(F)))
    return np.linalg.inv(C).T


def directions(X, y, log_odds, sets, M, *, sets_in_all: int, size: int, ridge: float, halves: np.ndarray | None = None) -> Gate:
    """Directions in which the gradients of sets scatter, and weights of 0.

    G_s = sum (y - p) x,  h_s = sum p (1 - p),  A = sum_s c_s^2 (G_s G_s' - F_s) / sum_s c_s^2 h_s^2,  c_s = 1 / (h_s + 3000)

    With halves, the product of the gradients of the two halves of a text stands for the square less chance. Static cells do not
    move, so that errors repeat within a half; this product leaves them out with chance.

    Args:
        X: [F, B] evidence, of any floating type.
        y: [B] decisions.
        log_odds: [B] the mix so far.
        sets: [B] of each decision.
        M: [F, F] whitening.
        sets_in_all: S.
        size: K, directions at most.
        ridge: factor of the inverse variances.
        halves: [B] 0 or 1.
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

    Args:
        place: [B] of the token of each decision, ascending.
        before: decisions before these.

    Example:
        >>> blocks_of(np.repeat(np.arange(20), 10))[[59, 60, 69, 70]].tolist()
        [0, 0, 0, 1]
    """
    new = np.append(True, place[1:] != place[:-1])[: len(place)]
    return (np.maximum.accumulate(np.where(new, np.arange(len(place)), 0)) + before) // BLOCK


def read_gate(
    gate: Gate, x, log_odds: np.ndarray, sets: np.ndarray, y: np.ndarray, blocks: Integer[np.ndarray, " learn"] = NO_BLOCKS
) -> tuple[np.ndarray, Gate]:
    """The log-odds of decisions with a gate's, which learns by block.

    Args:
        gate: its weights before.
        x: [F, B] evidence, of any floating type.
        log_odds: [B] before.
        sets: [B].
        y: [B] decisions.
        blocks: [learn] of those that are learned from, `blocks_of` them.
    """
    B, D, H = len(y), gate.D, gate.H
    out, learn = np.empty(B, np.float32), len(blocks)
    if learn:
        check_threads()
        first = np.flatnonzero(np.diff(blocks, prepend=-1))
        row, column = np.repeat([np.arange(len(first)), first], np.diff(np.append(first, learn)), axis=1)
        column = np.arange(learn) - column
        wide = -(-max(column.max() + 1, BLOCK + 1) // _wider) * _wider
        for r in range(0, len(first), _sizes[-1]):
            at = slice(first[r], first[r + _sizes[-1]] if r + _sizes[-1] < len(first) else learn)
            some = row[at] - r, column[at]
            size = next(size for size in _sizes if size > some[0][-1])
            z, s = np.zeros((size, wide, gate.U.shape[1]), np.float32), np.zeros((size, wide), np.int32)
            a, of = np.zeros((2, size, wide), np.float32)
            z[some], s[some], a[some], of[...], of[some] = project(gate, x[:, at]), sets[at], log_odds[at], -1, y[at]
            D, H, found = _learn(*map(jax.device_put, (np.array(D), np.array(H), gate.ridge, z, a, s, of)))
            out[at] = np.asarray(found)[some]
    D, H = np.asarray(D), np.asarray(H)
    for a in range(learn, B, _wide):
        at = slice(a, a + _wide)
        z = project(gate, x[:, at])
        out[at] = np.clip(log_odds[at] + np.einsum("bk,bk->b", D[sets[at]], z), -MOST, MOST)
    return out, gate._replace(D=D, H=H)


def project(gate: Gate, x: np.ndarray) -> Float32[np.ndarray, "B K"]:
    """`clip(U' x)` of each decision, on the host."""

    def part(a: int) -> np.ndarray:
        return np.clip(x[:, a : a + _rows].T.astype(np.float32) @ gate.U, -CLIP, CLIP)

    firsts = range(0, max(x.shape[1], 1), _rows)
    return np.concatenate([*(map if len(firsts) == 1 else threads().map)(part, firsts)])

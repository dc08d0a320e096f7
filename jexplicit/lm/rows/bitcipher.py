"""Bit-cipher codes: explicit dimensionality reduction, b features per token instead of N (a limitation named in Sec. 5).

Tokens are ordered by frequency. The b most frequent have a bit of their own, the next share two bits, then three:

    code(n) = (1/w) sum_{d in bits(n)} e_d,    w = |bits(n)|,    w = 1 for the first b tokens, 2 for the next b(b-1)/2, ...

Codes are >= 0 and have L1 norm 1, so a context of K tokens has norm K in D = b (Sum) or K b (Cat) features, and the explicit
solution applies unchanged: `F_k = sum_m code(x_{m-k}) ⊗ y_m`, b x N, then Eq. 3. Nothing of size N x N exists at any time.

The order of the codes of one weight is by *gaps*: bits (s, s + g_1, s + g_1 + g_2, ...) modulo b, gaps with the smallest sum
first, and for every tuple of gaps all b starts s. So each run of b tokens uses every bit equally often, where lexicographic
order would put all of the first b - 1 pairs on bit 0, which is the most frequent token's.

*Noise.* The embedding with the paper's noise, `E_n = q_n e_n + (1 - q_n) p` (Eq. 4), is coded unchanged: token n has features
`q_n code(n) + (1 - q_n) p̄`, where `p̄ = sum_j p_j code(j)` is positive in every bit that is used. These have norm 1 too, and no
co-occurrence of a bit with an output is zero. With b = N the codes are one-hot and all this is `explicit_language_model`.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer
from scipy.sparse import csr_array

from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import PAD, check_token_ids
from jexplicit.lm.core.model import Features, LanguageModel, RowsByOffset, pytree, static, unit_exponents
from jexplicit.lm.core.smoothing import noise_model
from jexplicit.lm.rows.explicit import solve_tables
from jexplicit.lm.tables.storage import Dense, take_dense
from jexplicit.runs.devices import full_precision


class Codes(NamedTuple):
    """Sparse feature vectors of N tokens, `code(n) = sum_s weights[n, s] e_bits[n, s]`.

    bits: [N, w] which features; a slot that a token does not need has weight 0.
    weights: [N, w] non-negative, rows sum to 1.
    size: b, the number of features.
    """

    bits: Int[np.ndarray, "N w"]
    weights: Float[np.ndarray, "N w"]
    size: int

    def matrix(self) -> csr_array:
        """The codes as a sparse matrix H, [N, b]."""
        N, w = self.bits.shape
        return csr_array((self.weights.ravel(), self.bits.ravel(), w * np.arange(N + 1)), shape=(N, self.size))

    def mean(self, p: Float[np.ndarray, " N"]) -> Float[np.ndarray, " b"]:
        """`sum_n p_n code(n)`."""
        return np.bincount(self.bits.ravel(), (p[:, None] * self.weights).ravel(), self.size)


@pytree
class CodedTables(RowsByOffset):
    """Rows of coded tokens: the token k back reads `code(x_k) @ table` of its offset.

    bits, weights: [N, w] of the codes; with noise they have one feature more, the mean one, whose row of every table is `p̄ᵀU`.
    tables: the different tables, [b', N] each; Sum's offsets share one.
    table_of_offset: for k = 1 .. K, which of them.
    """

    bits: Any
    weights: Any
    tables: tuple[Any, ...]
    table_of_offset: tuple[int, ...] = static()

    different = property(lambda self: tuple(Coded(self.bits, self.weights, table) for table in self.tables))


@pytree
class Coded:
    """A table whose row r is `sum_s weights[r, s] features[bits[r, s]]`."""

    bits: Any
    weights: Any
    features: Any

    vocab_size = property(lambda self: self.features.shape[1])

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        return self._sum(r, lambda bit: jnp.asarray(self.features)[bit])

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        return self._sum(r, lambda bit: jnp.asarray(self.features)[bit, i])

    def take(self, r: Int[np.ndarray, " n"]) -> Dense:
        """Rows r."""
        return take_dense(self, r)

    def _sum(self, r: Array, read: Callable[[Array], Array]) -> Array:
        """A slot that a token does not need must not turn an infinite logit into NaN."""
        slots = zip(jnp.asarray(self.bits)[r], jnp.asarray(self.weights)[r], strict=True)
        return functools.reduce(jnp.add, [jnp.where(a > 0, a * read(bit), 0) for bit, a in slots])


def bit_cipher(f: Integer[np.ndarray, " N"], bits: int) -> Codes:
    """The code of every token: the more frequent, the fewer bits.

    Args:
        f: [N] how often each token occurs; ties go by token id.
        bits: b, the number of features.

    Raises:
        ValueError: b < 1, fewer different codes than tokens (2^b - 1 < N), or more bits than tokens.

    Example:
        >>> (6 * bit_cipher(np.array([1, 9, 5, 2, 7, 4, 3]), 3).matrix()).toarray().astype(int).tolist()
        [[2, 2, 2], [6, 0, 0], [0, 0, 6], [3, 0, 3], [0, 6, 0], [3, 3, 0], [0, 3, 3]]

    Source: arXiv 2311.11012 for codes by frequency and number of bits; the order within a number of bits is that above.
    """
    N, b = len(f), bits
    check_bits(b, N)
    order = np.argsort(-np.asarray(f, np.int64), kind="stable")
    chosen = list(itertools.islice(_codewords(b), N))
    w = len(chosen[-1])
    slots, weights = np.zeros((N, w), np.int32), np.zeros((N, w))
    for n, word in zip(order, chosen, strict=True):
        slots[n, : len(word)], weights[n, : len(word)] = word, 1 / len(word)
    return Codes(slots, weights, b)


def check_bits(b: int, N: int) -> None:
    """Refuse more bits than tokens, and fewer than make N different codes."""
    if not 1 <= b <= N:
        raise ValueError(f"{b} bits for a vocabulary of {N}: use 1 to {N}; with {N} the codes are one-hot")
    if b < 64 and 2**b - 1 < N:
        raise ValueError(f"{b} bits make {2**b - 1} different codes for a vocabulary of {N}: use at least {N.bit_length()}")


@full_precision
def coded_language_model(
    stream: np.ndarray,
    codes: Codes,
    *,
    features: Features,
    radius: int,
    eos: bool = False,
    noise: bool = True,
    dtype=jnp.float32,
    progress: Callable[[int, int], None] | None = None,
) -> LanguageModel:
    """Fit a language model on coded contexts in closed form: text -> F -> U, with b K N numbers for Cat and b N for Sum.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        codes: of the tokens, `bit_cipher(np.bincount(stream[1:], minlength=N), bits)` for one.
        features: "sum" (one table for all offsets) or "cat" (a table per offset).
        radius: K, the context length in tokens.
        eos: predict `<pad>` at the end of a document.
        noise: the paper's noise model; without it a bit and an output that never met have the logit -inf.
        dtype: of the tables.
        progress: called with (positions counted, positions in all).

    Raises:
        ValueError: other features than the two; those of `coded_cooccurrences`.

    Example:
        >>> stream = np.array([0, 1, 2, 1, 3, 1, 0])
        >>> model = coded_language_model(stream, bit_cipher(np.bincount(stream[1:]), 3), features="cat", radius=2)
        >>> model.radius, model.vocab_size, model.rows[0].tables[0].shape
        (2, 4, (4, 4))

    Source: paper, Eq. 3-5; arXiv 2311.11012.
    """
    K, N = radius, len(codes.bits)
    check_token_ids(stream, N, f"and codes of {N} tokens: make the codes from this tokenizer's counts")
    counts = count_sparse(stream, radius=K, vocab_size=N, progress=progress)
    f = counts[0].sum(axis=0, dtype=np.int64)
    targets = f if eos else np.where(np.arange(N) == PAD, 0, f)
    if not targets.any():
        raise ValueError("no position to predict: the text has no tokens")
    mean, H = np.zeros(codes.size), codes.matrix()
    if noise:
        q, one_minus_q, p = noise_model(f)
        mean = codes.mean(p)
        codes = Codes(  # the last feature is the mean code, which noise adds to every token's own
            np.pad(codes.bits, ((0, 0), (0, 1)), constant_values=codes.size),
            np.concatenate([codes.weights * q[:, None], one_minus_q[:, None]], axis=1),
            codes.size + 1,
        )
        H = codes.matrix()

    def encode(C: csr_array) -> Array:
        F = (H.T @ C).toarray()
        return jnp.asarray(F[:-1] + mean[:, None] * F[-1][None, :] if noise else F, dtype)

    def read(U: Array) -> Array:
        return jnp.concatenate([U, (jnp.asarray(mean, dtype) @ U)[None, :]]) if noise else U

    tables, of_offset = solve_tables(map(encode, counts), targets.astype(dtype), features, read)
    rows = CodedTables(jnp.asarray(codes.bits), jnp.asarray(codes.weights, dtype), tables, of_offset)
    return LanguageModel((rows,), unit_exponents((rows,), dtype), features, eos)


def _codewords(b: int) -> Iterator[tuple[int, ...]]:
    """All non-empty sets of bits, each once: by size, then by gaps, then by start."""
    for w in range(1, b + 1):
        met: set[tuple[int, ...]] = set()
        for span in range(w - 1, b):
            for gaps in _compositions(span, w - 1):
                offsets = (0, *itertools.accumulate(gaps))
                for s in range(b):
                    word = tuple(sorted((s + offset) % b for offset in offsets))
                    if word not in met:
                        met.add(word)
                        yield word


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All tuples of that many numbers >= 1 with that sum, the smallest first number first."""
    if parts == 0:
        if total == 0:
            yield ()
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)

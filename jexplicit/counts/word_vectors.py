"""Word vectors from counts: singular vectors of positive pointwise mutual information.

Source: Levy & Goldberg 2014.
"""

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int, Integer


def word_vectors(C: Integer[np.ndarray, "N N"], d: int) -> Float[np.ndarray, "N d"]:
    """Signed vectors `S_d Σ_d^½` of positive pointwise mutual information `S Σ Tᵀ`.

    The largest entry of each column is positive, so that vectors do not depend on the solver.

    Args:
        C: [N, N] how often token i came after token j.
        d: dimensions, 1 .. N - 1.

    Raises:
        ValueError: d out of range, or no counts.

    Example:
        >>> C = np.array([[0, 4, 0], [0, 0, 4], [4, 4, 0]])
        >>> word_vectors(C, 2).shape
        (3, 2)

    Source: Levy & Goldberg 2014.
    """
    N, total = len(C), int(C.sum(dtype=np.int64))
    if not 1 <= d < N:
        raise ValueError(f"word vectors of {d} dimensions for a vocabulary of {N}: use 1 to {N - 1}")
    if not total:
        raise ValueError("no counts to make word vectors of: give a text with at least one pair of tokens")
    pairs = scipy.sparse.coo_array(C)
    row, column = pairs.coords
    j, i, information = pair_information(row, column, pairs.data, C.sum(axis=0, dtype=np.float64) / total)
    ppmi = scipy.sparse.csr_array((information, (j, i)), shape=C.shape)
    S, sigma, _ = scipy.sparse.linalg.svds(ppmi, k=d, v0=np.ones(N))
    V = (S * np.sqrt(sigma)[None, :])[:, ::-1]  # the largest first
    return V * np.sign(V[np.abs(V).argmax(axis=0), np.arange(d)])[None, :]


def pair_information(
    i: Int[np.ndarray, " E"], j: Int[np.ndarray, " E"], n: Integer[np.ndarray, " E"], q: Float[np.ndarray, " N"]
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """The pairs with positive pointwise mutual information, and that: `log(n_ij / (n_i q_j))`.

    Args:
        i, j: the tokens of each pair that occurs.
        n: how often.
        q: [N] the distribution of the second tokens.

    Source: Levy & Goldberg 2014.
    """
    information = np.log(n / (np.bincount(i, n, minlength=len(q))[i] * q[j]))
    kept = information > 0
    return i[kept], j[kept], information[kept]

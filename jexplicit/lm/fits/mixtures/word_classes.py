"""Classes of tokens, or of words of characters, from counts: vectors by a truncated SVD, and their clusters.

    PPMI[i, (d, j)] = max(0, log( C_d[i, j] / (C_d[i, .] q_j) )),    q_j = n_j^0.75 / sum n^0.75,

for neighbours j at distances d = -2, -1, 1, 2; vectors are the left singular vectors, scaled by the square roots of the
singular values, of length 1. Nothing is trained by gradients.

Source: Levy & Goldberg 2014 for PPMI and its SVD; Brown et al. 1992 for classes in n-gram models.
"""

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array, hstack

from jexplicit.counts.sparse import SparseCounts
from jexplicit.counts.word_vectors import pair_information
from jexplicit.data.contexts import PAD


def neighbour_ppmi(counts: SparseCounts) -> csr_array:
    """Positive pointwise mutual information of every token with its neighbours, [N, 4 N].

    Args:
        counts: C_1 and C_2 of jexplicit.counts.sparse; `<pad>` is no neighbour.

    Example:
        >>> from jexplicit.counts.sparse import count_sparse
        >>> counts = count_sparse(np.array([0, 1, 2, 1, 2, 0]), radius=2, vocab_size=3)
        >>> neighbour_ppmi(counts).toarray()[1].round(2).tolist()  # 2 stands left of 1, and right of it, at a distance of 1
        [0.0, 0.69, 0.0, 0.0, 0.0, 0.69, 0.0, 0.0, 0.69, 0.0, 0.69, 0.0]
    """
    n = np.asarray(counts[0].sum(axis=0)).astype(float)
    n[PAD] = 0
    q = n**0.75 / np.sum(n**0.75)
    C_1, C_2 = counts[:2]
    return csr_array(hstack([_positive_information(coo_array(C), q) for C in (C_2.T, C_1.T, C_1, C_2)]))


def _positive_information(C: coo_array, q: Float[np.ndarray, " N"]) -> coo_array:
    i, j = C.coords
    inside = (i != PAD) & (j != PAD)
    i, j, information = pair_information(i[inside], j[inside], C.data[inside], q)
    return coo_array((information, (i, j)), shape=C.shape)


def neighbour_vectors(counts: SparseCounts, *, dimensions: int = 150, seed: int = 0) -> Float[np.ndarray, "N D"]:
    """A vector of length 1 for every token that has neighbours, and zeros for the others.

    Args:
        counts: C_1 and C_2 of a text.
        dimensions: D, at most one less than N.
        seed: of the random projection of the SVD.
    """
    from sklearn.utils.extmath import randomized_svd

    N = len(counts[0].indptr) - 1
    P = neighbour_ppmi(counts).astype(np.float32)
    U, s, _ = randomized_svd(P, min(dimensions, N - 1), n_iter=3, random_state=seed)  # pyright: ignore[reportArgumentType]
    vectors = U.astype(np.float64) * np.sqrt(s)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def cluster(
    vectors: Float[np.ndarray, "N D"], counts: Int[np.ndarray, " N"], classes: int, *, seed: int = 0
) -> Int[np.ndarray, " N"]:
    """A class for every token, by k-means with the square roots of the counts as weights; class 0 for those that never occur.

    Args:
        vectors: [N, D].
        counts: [N] how often each token occurs.
        classes: how many, beside class 0; fewer where there are fewer tokens.
        seed: of the first centres.
    """
    from sklearn.cluster import KMeans  # scikit-learn takes 2 s of CPU time to import

    occurs = np.flatnonzero(counts)
    C = min(classes, len(occurs))
    found = np.zeros(len(counts), np.int64)
    kmeans = KMeans(C, n_init=1, max_iter=30, random_state=seed)  # pyright: ignore[reportArgumentType]
    found[occurs] = 1 + kmeans.fit_predict(vectors[occurs], sample_weight=np.sqrt(counts[occurs]))
    return found

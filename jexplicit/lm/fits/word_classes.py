"""Classes of tokens, or of words of characters, from counts: vectors by a truncated SVD, and their clusters.

    PPMI[i, (d, j)] = max(0, log( C_d[i, j] / (C_d[i, .] q_j) )),    q_j = n_j^0.75 / sum n^0.75,

for neighbours j at distances d = -2, -1, 1, 2; vectors are the left singular vectors, scaled by the square roots of the
singular values, of length 1. Nothing is trained by gradients.

Source: Levy & Goldberg 2014 for PPMI and its SVD; Brown et al. 1992 for classes in n-gram models.
"""

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.sparse import coo_array, csr_array, hstack
from sklearn.cluster import KMeans
from sklearn.utils.extmath import randomized_svd

from jexplicit.data.contexts import PAD

_distances = (-2, -1, 1, 2)


def neighbour_ppmi(stream: Integer[np.ndarray, " L"], vocab_size: int) -> csr_array:
    """Positive pointwise mutual information of every token with its neighbours, [N, 4 N].

    Args:
        stream: [L] ids; `<pad>` is no neighbour, and none is counted across it.
        vocab_size: N.

    Example:
        >>> neighbour_ppmi(np.array([0, 1, 2, 1, 2, 0]), 3).toarray()[1].round(2).tolist()  # 2 stands right of 1, twice
        [0.0, 0.69, 0.0, 0.0, 0.0, 0.69, 0.0, 0.0, 0.69, 0.0, 0.69, 0.0]
    """
    tokens, N = stream.astype(np.int64), vocab_size
    n = np.bincount(tokens, minlength=N).astype(float)
    n[PAD] = 0
    q = n**0.75 / (n**0.75).sum()
    documents = np.cumsum(tokens == PAD)
    blocks = []
    for d in _distances:
        own, other = (slice(None, -d), slice(d, None)) if d > 0 else (slice(-d, None), slice(None, d))
        i, j = tokens[own], tokens[other]
        inside = (i != PAD) & (j != PAD) & (documents[own] == documents[other])
        cells, counts = np.unique(i[inside] * N + j[inside], return_counts=True)
        i, j = cells // N, cells % N
        total = np.bincount(i, counts, minlength=N)
        information = np.log(counts / (total[i] * q[j]))
        kept = information > 0
        blocks.append(coo_array((information[kept], (i[kept], j[kept])), shape=(N, N)))
    return csr_array(hstack(blocks))


def word_vectors(
    stream: Integer[np.ndarray, " L"], vocab_size: int, *, dimensions: int = 150, seed: int = 0
) -> Float[np.ndarray, "N D"]:
    """A vector of length 1 for every token that has neighbours, and zeros for the others.

    Args:
        stream: [L] ids.
        vocab_size: N.
        dimensions: D, at most one less than N.
        seed: of the random projection of the SVD.
    """
    P = neighbour_ppmi(stream, vocab_size)
    U, s, _ = randomized_svd(P, min(dimensions, vocab_size - 1), random_state=seed)
    vectors = U * np.sqrt(s)
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
    occurs = np.flatnonzero(counts)
    C = min(classes, len(occurs))
    found = np.zeros(len(counts), np.int64)
    kmeans = KMeans(C, n_init=1, max_iter=30, random_state=seed)  # pyright: ignore[reportArgumentType]
    found[occurs] = 1 + kmeans.fit_predict(vectors[occurs], sample_weight=np.sqrt(counts[occurs]))
    return found

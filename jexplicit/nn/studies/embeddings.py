"""What an embedding has learned: the nearest neighbours of tokens, and a map of them in two dimensions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Neighbours(NamedTuple):
    """The k nearest tokens of each of n tokens, nearest first, and their cosines."""

    ids: Int[np.ndarray, "n k"]
    cosines: Float[np.ndarray, "n k"]


def nearest_neighbours(C: Float[np.ndarray, "N d"], tokens: Int[np.ndarray, " n"], k: int) -> Neighbours:
    """The tokens whose embeddings have the largest cosine with those of some tokens, themselves left out.

    Args:
        C: [N, d] embeddings; a row of zeros has the cosine 0 with all.
        tokens: [n] ids.
        k: neighbours of each, 1 .. N - 1.

    Raises:
        ValueError: k out of range.

    Example:
        >>> nearest_neighbours(np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]), np.array([0]), 2).ids.tolist()
        [[1, 2]]
    """
    if not 1 <= k < len(C):
        raise ValueError(f"{k} neighbours of tokens, of {len(C)} tokens: use 1 .. {len(C) - 1}")
    norms = np.linalg.norm(C, axis=1)
    unit = C / np.where(norms > 0, norms, 1)[:, None]
    cosines = unit[tokens] @ unit.T
    cosines[np.arange(len(tokens)), tokens] = -np.inf
    ids = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(ids, np.take_along_axis(cosines, ids, axis=1))


def embedding_map(C: Float[np.ndarray, "n d"], seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """Points in the plane whose near neighbours are those of the embeddings, by t-SNE on cosine distances.

    Raises:
        ValueError: fewer than 4 tokens.

    Source: van der Maaten & Hinton 2008, by scikit-learn.
    """
    from sklearn.manifold import TSNE

    if len(C) < 4:
        raise ValueError(f"a map of {len(C)} tokens: give at least 4")
    tsne = TSNE(2, perplexity=min(30.0, (len(C) - 1) / 3), metric="cosine", init="random", random_state=seed)
    return tsne.fit_transform(np.asarray(C, np.float32))

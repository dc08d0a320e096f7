"""Learned embeddings: nearest neighbours of tokens, and their map in two dimensions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Neighbours(NamedTuple):
    """The k nearest tokens of each of n tokens, nearest first, and their cosines."""

    ids: Int[np.ndarray, "n k"]
    cosines: Float[np.ndarray, "n k"]


def nearest_neighbours(C: Float[np.ndarray, "N d"], tokens: Int[np.ndarray, " n"], k: int) -> Neighbours:
    """The k other tokens of largest cosine with each of some tokens; a zero embedding has cosine 0 with all."""
    if not 1 <= k < len(C):
        raise ValueError(f"{k} neighbours of tokens, of {len(C)} tokens: use 1 .. {len(C) - 1}")
    norms = np.linalg.norm(C, axis=1)
    unit = C / np.where(norms > 0, norms, 1)[:, None]
    cosines = unit[tokens] @ unit.T
    cosines[np.arange(len(tokens)), tokens] = -np.inf
    ids = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return Neighbours(ids, np.take_along_axis(cosines, ids, axis=1))


def embedding_map(C: Float[np.ndarray, "n d"], seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """t-SNE of embeddings on cosine distances (van der Maaten & Hinton 2008), for at least 4 tokens."""
    from sklearn.manifold import TSNE

    if len(C) < 4:
        raise ValueError(f"a map of {len(C)} tokens: give at least 4")
    tsne = TSNE(2, perplexity=min(30.0, (len(C) - 1) / 3), metric="cosine", init="random", random_state=seed)
    return tsne.fit_transform(np.asarray(C, np.float32))

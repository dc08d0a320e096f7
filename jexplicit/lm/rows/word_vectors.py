"""Word vectors as the features of an explicit language model: signed vectors split into positive parts.

The paper names vectors with negative components, as GloVe's or GPT-2's, as what its solution cannot take (Sec. 5): a
co-occurrence may then be negative and has no logarithm. Split into `[relu(v), relu(-v)]`, and each token's parts divided by
their sum, they are features >= 0 of L1 norm 1, and with H [N, b] one row per token

    F_k = Hᵀ C_k,    U from F (Eq. 3),    Ũ_k = H U_k,

so that token j at offset k reads row j of Ũ_k. With H = I all this is the explicit solution without noise.

Vectors of one's own text come from its counts: the singular vectors of the positive pointwise mutual information of a token
and what follows it, weighed by the roots of the singular values (Levy & Goldberg 2014).
"""

import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts.dense import Counts, counted_radius
from jexplicit.features.positive import positive_parts, unit_rows
from jexplicit.lm.core.model import Features, LanguageModel, token_model
from jexplicit.lm.rows.explicit import solve_tables, target_counts
from jexplicit.runs.devices import full_precision


def word_vectors(C: Integer[np.ndarray, "N N"], d: int) -> Float[np.ndarray, "N d"]:
    """Signed vectors of tokens, `V = S_d Σ_d^½` with `S Σ Tᵀ = max(0, log(C[j, i] M / (C[j, :] C[:, i])))`.

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
    check_dimensions(d, N)
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


def check_dimensions(d: int, N: int) -> None:
    """Refuse more dimensions than N tokens span."""
    if not 1 <= d < N:
        raise ValueError(
            f"word vectors of {d} dimensions, {2 * d} features, for a vocabulary of {N}: use 2 to {2 * N - 2} features"
        )


def vector_features(V: Float[np.ndarray, "N d"]) -> Float[Array, "N b"]:
    """Features > 0 of L1 norm 1, b = 2 d, from signed vectors; a vector of zeros has all features alike.

    Example:
        >>> vector_features(np.array([[3.0, -1.0], [0.0, 0.0]])).round(2).tolist()
        [[0.75, 0.0, 0.0, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """
    H = positive_parts(jnp.asarray(V, jnp.float32))
    return unit_rows(jnp.where(H.sum(axis=1, keepdims=True) > 0, H, 1))


@full_precision
def vector_language_model(
    counts: Counts, H: Float[Array, "V b"], *, features: Features, radius: int | None = None, eos: bool = False
) -> LanguageModel:
    """Fit a language model on word vectors in closed form: counts -> F = HᵀC -> U -> Ũ = H U.

    Args:
        counts: C_1 .. C_K' of jexplicit.counts.dense.count.
        H: [N, b] features of the tokens, above 0, rows of L1 norm 1.
        features: "sum" (one U for all offsets) or "cat" (a U per offset).
        radius: K <= K'; default, all the counted offsets.
        eos: predict `<pad>` at the end of a document.

    Raises:
        ValueError: a radius that was not counted; features of another vocabulary, not above 0, or of another norm than 1.

    Example:
        >>> from jexplicit.counts.dense import count
        >>> counts = count(np.array([0, 1, 2, 1, 0]), radius=2, vocab_size=3)
        >>> model = vector_language_model(counts, vector_features(word_vectors(counts[0], 1)), features="cat")
        >>> model.radius, model.vocab_size
        (2, 3)

    Source: paper, Eq. 3-5 and Sec. 5.
    """
    K, N = counted_radius(counts, radius), len(counts[0])
    norms = np.asarray(H.sum(axis=1))
    if len(H) != N or not float(H.min()) > 0 or np.abs(norms - 1).max() > 1e-3:
        raise ValueError(
            f"features of {len(H)} tokens from {float(H.min()):g} on, with norms {norms.min():g} to {norms.max():g}, for a "
            f"vocabulary of {N}: use features above 0 of norm 1, such as vector_features(V)"
        )
    F = (H.T @ jnp.asarray(C, H.dtype) for C in counts[:K])
    f = target_counts(counts, eos=eos).astype(H.dtype)
    tables, of_offset = solve_tables(F, f, features, lambda U: H @ U)
    return token_model([tables[t] for t in of_offset], features, eos)

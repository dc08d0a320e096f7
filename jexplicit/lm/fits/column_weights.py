"""The delta-corrected exponent of the explicit solution, another weight of its columns.

The logits are `log prod_k F[x_k, i] + K log w_i`, and the paper derives (Eq. 12-14)

    w_i ∝ f_i^(1/K) / <E_G[F_i]>  ∝  f_i^((1 - K)/K)     where <E_G[F_i]> ∝ f_i,

with <E_G[F_i]> the K-power mean over contexts of the geometric mean of a context's co-occurrences with i. Where it grows as
f_i^s (Fig. 1 left), the logits change by -δ log f_i, δ = K (s - 1): Sec. 2.2.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.lm.core.model import LanguageModel, is_token_model, token_model
from jexplicit.lm.core.softmax import logits
from jexplicit.solvers.frequency_exponent import DeltaFit, fit_delta


def shift_tokens(model: LanguageModel, v: Float[np.ndarray, " N"]) -> LanguageModel:
    """The same tables with v added to every context's logits: each of the K rows of a context has v/K more.

    Raises:
        ValueError: a model that is not plain tables.

    Example:
        >>> model = shift_tokens(token_model([jnp.zeros((2, 2))] * 2, "sum", False), np.array([1.0, 2.0]))
        >>> model.logits(jnp.array([0, 1])).tolist()
        [1.0, 2.0]
    """
    tables = _tables(model)
    blocks = tables[:1] if model.features == "sum" else tables
    blocks = tuple(U + jnp.asarray(v / model.radius, U.dtype)[None, :] for U in blocks)
    return token_model(blocks * (model.radius // len(blocks)), model.features, model.eos)


def fit_token_delta(
    model: LanguageModel, f: Int[np.ndarray, " N"], X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]
) -> DeltaFit:
    """The δ of `w_i = f_i^((1 - K - δ)/K)` with the lowest loss on these positions.

    Args:
        model: the explicit solution.
        f: [N] how often each token is a target; once where it never is.
        X: [M, K] contexts.
        Y: [M] targets.

    Raises:
        ValueError: see jexplicit.solvers.frequency_exponent.fit_delta.

    Source: paper, Sec. 2.2.
    """
    tables = _tables(model)
    log_f = jnp.asarray(np.log(np.maximum(f, 1)), tables[0].dtype)
    ones = jnp.ones(len(Y), log_f.dtype)
    return fit_delta(lambda x: logits(tables, x), jnp.asarray(X, jnp.int32), ones, jnp.asarray(Y, jnp.int32), log_f)


def _tables(model: LanguageModel) -> tuple[Array, ...]:
    if not is_token_model(model):
        raise ValueError("column weights of a model that is not plain tables: use an explicit solution with dense tables")
    return tuple(map(jnp.asarray, model.tables))

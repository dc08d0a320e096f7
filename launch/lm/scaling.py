"""The paper's assumptions on real text (Sec. 2.2).

Mean co-occurrences grow as counts (Eq. 12-14, Fig. 1 left); partition functions do not depend on the context (Eq. 11).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, Real

from jexplicit.data.contexts import distinct_contexts
from jexplicit.lm.core.model import LanguageModel


class Scaling(NamedTuple):
    """The least-squares line `log mean = slope * log f + intercept`, with correlation."""

    slope: float
    intercept: float
    correlation: float


def log_mean_cooccurrences(
    model: LanguageModel, f: Real[np.ndarray, " N"], X: Integer[np.ndarray, "M K"], n: Int[np.ndarray, " M"] | None = None
) -> Float[np.ndarray, " N"]:
    """`log <E_G[F_i]>`, `<E_G[F_i]> = ((1/M) sum_m prod_d F[d, i]^H[m, d])^(1/K)` (Eq. 11-14).

    As the logits are `log prod_d F[d, i]^H[m, d]` less `(K - 1) log(sum_d F[d, i])`, and `sum_d F[d, i] = K f_i`, it follows
    from the model's own tables. f: [N] counts of the targets; n: [M] how often each context counts, default once.
    """
    K, block = model.radius, 512
    distinct, n = distinct_contexts(X, ordered=model.ordered) if n is None else (X, n)
    padding = -len(distinct) % block
    blocks = np.pad(distinct.astype(np.int32), ((0, padding), (0, 0))).reshape(-1, block, K)
    log_weights = np.pad(np.log(n / n.sum()), (0, padding), constant_values=-np.inf).reshape(-1, block)
    log_power_mean = _log_mean_exp_logits(model, blocks, log_weights)
    column = K * np.maximum(f, 1)  # sum_d F[d, i]
    return np.asarray((log_power_mean + (K - 1) * np.log(column).astype(log_power_mean.dtype)) / K)


def partition_spread(model: LanguageModel, X: Integer[np.ndarray, "M K"], n: Int[np.ndarray, " M"] | None = None) -> float:
    """The standard deviation of `log Z` over contexts, in nats (0 in Eq. 11)."""
    distinct, n = distinct_contexts(X, ordered=model.ordered) if n is None else (X, n)
    log_Z = model.rows.log_partition(distinct).astype(np.float64)
    return float(np.sqrt(np.cov(log_Z, fweights=n, ddof=0)))


def fit_scaling(f: Int[np.ndarray, " N"], log_means: Float[np.ndarray, " N"]) -> Scaling:
    """The least-squares line through `(log f_i, log <E_G[F_i]>)` of outputs seen.

    Example:
        >>> fit_scaling(np.array([1, 10, 100, 0]), np.log(np.array([2.0, 20.0, 200.0, 7.0]))).slope.__round__(6)
        1.0
    """
    seen = f > 0
    x, y = np.log(f[seen]), log_means[seen].astype(np.float64)
    if len(np.unique(x)) < 2 or not np.isfinite(y).all():
        raise ValueError(f"{len(np.unique(x))} different counts of outputs: a line needs two, and finite means; use more text")
    slope, intercept = np.polyfit(x, y, 1)
    return Scaling(float(slope), float(intercept), float(np.corrcoef(x, y)[0, 1]))


@jax.jit
def _log_mean_exp_logits(model: LanguageModel, X: Array, log_weights: Array) -> Array:
    """`log sum_m w_m exp(logits_m)` per output, over blocks of contexts."""

    def add_block(total, block):
        x, log_w = block
        terms = jax.vmap(model.logits)(x) + log_w[:, None].astype(total.dtype)
        return jnp.logaddexp(total, jax.nn.logsumexp(terms, axis=0)), None

    start = jnp.full(model.vocab_size, -jnp.inf, model.tables[0].dtype)
    return jax.lax.scan(add_block, start, (X, log_weights))[0]

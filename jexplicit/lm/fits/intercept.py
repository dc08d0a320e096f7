"""The best intercept of a language model with frozen tables: one number per token, so that each is as likely as it was seen.

    min_v  L(v) = (1/M) sum_m log sum_i exp(logits(x_m)_i + v_i) - (logits(x_m) + v)_{y_m}

L is convex. The one feature that v weighs is the constant 1, of norm 1, and so a sweep of iterative scaling is

    v += log(f / E),    E = sum_m P(x_m),

with f the counts of the targets. No sweep raises L, and at the minimum E = f. The number of a token that is never a target
stays 0, and the model goes on giving it a little.

Source: paper, Sec. 5 (its warm start freezes F and fits an intercept); Darroch & Ratcliff 1972.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array

from jexplicit.data.contexts import check_token_ids, contexts, distinct_contexts
from jexplicit.lm.fits.gradient import decoder_model, initial_state, text_gradient
from jexplicit.lm.model import LanguageModel
from jexplicit.lm.softmax import target_logits
from jexplicit.runs.devices import data_mesh


class InterceptFit(NamedTuple):
    """A language model, and the nats per training position at the start and after each sweep."""

    model: LanguageModel
    losses: list[float]


def fit_token_intercept(
    model: LanguageModel,
    stream: np.ndarray,
    *,
    sweeps: int,
    mesh: Mesh | None = None,
    chunk: int = 1 << 18,
    progress: Callable[[int, int], None] | None = None,
) -> InterceptFit:
    """Lower the training loss of tables by an intercept alone, sweep by sweep: `v += log(f / E)`.

    A context has K tokens: `v/K` added to every row of the tables is v added to the logits, and the result is tables again.

    Args:
        model: dense tables, such as the explicit solution.
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        sweeps: how many; each takes one partition function per different context. 0 measures the start.
        mesh: devices to split the tables' columns over; default, the first device.
        chunk: contexts at a time; it changes the memory, not the result.
        progress: called with (sweeps done, sweeps in all).

    Raises:
        ValueError: fewer than 0 sweeps; ids that the model does not have; no position to predict.

    Example:
        >>> from jexplicit import count, explicit_language_model
        >>> stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
        >>> start = explicit_language_model(count(stream, radius=2, vocab_size=3), features="cat")
        >>> [round(loss, 3) for loss in fit_token_intercept(start, stream, sweeps=2).losses]
        [0.61, 0.59, 0.576]
    """
    if sweeps < 0 or chunk < 1:
        raise ValueError(f"{sweeps} sweeps of {chunk} contexts at a time: use at least 0 and 1")
    K, mesh = model.radius, mesh or data_mesh(1)
    check_token_ids(stream, model.vocab_size)
    X, Y = contexts(stream, K, eos=model.eos)
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    blocks = model.tables[:1] if model.features == "sum" else model.tables
    params = initial_state(blocks, optax.identity(), mesh).params
    f = np.bincount(Y, minlength=params[0].shape[1])  # columns that only fill the mesh are no targets
    distinct, n = distinct_contexts(X, ordered=model.ordered)
    observed, losses = float(target_logits(model.tables, X, Y).sum(dtype=np.float64)), []
    while True:
        log_Z, expected = text_gradient(params, distinct, n, X[:0], Y[:0], features=model.features, mesh=mesh, chunk=chunk)
        losses.append((log_Z - observed) / len(Y))
        if progress and sweeps:
            progress(len(losses) - 1, sweeps)
        if len(losses) > sweeps:  # the last pass only measures
            return InterceptFit(decoder_model(params, features=model.features, radius=K, eos=model.eos, noise=None), losses)
        step = _step(jnp.asarray(f, params[0].dtype), expected[0])
        observed += float(f @ np.asarray(step, np.float64))
        params = tuple(U + step[None, :] / K for U in params)


@jax.jit
def _step(f: Array, expected: Array) -> Array:
    """`log(f / E)`: a position adds its distribution once to a table of Cat and K times to that of Sum."""
    E = expected.sum(axis=0)
    return jnp.where(f > 0, jnp.log(jnp.maximum(f, 1)) - jnp.log(E * (f.sum() / E.sum())), 0)

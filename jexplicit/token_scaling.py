"""Generalised iterative scaling of a language model: sweeps over its different contexts, with no autodiff and no learning rate.

The K tokens of a context are features of L1 norm K, which is the condition of Darroch & Ratcliff (1972). A sweep moves every
parameter by how far the model's co-occurrences are from those of the text,

    U[j, i] += (1/K) log(F[j, i] / E[j, i]),    E = HᵀP,    P = softmax(H U),

where Sum's offsets share a table and add up in F and in E. *Why it never raises the loss.* Let the step be d. With
`log z <= z - 1`, and Jensen's inequality for the average over the K tokens of a context,

    L(U + d) - L(U) = sum_m log sum_i P[m, i] exp((H d)[m, i]) - <F, d>
                   <= sum_{j,i} (E[j, i] exp(K d[j, i]) - E[j, i]) / K - F[j, i] d[j, i].

Every pair has a term of its own, convex in its d and lowest at the step above. So the loss falls by at least
`(1/K) sum F log(F/E) - F + E >= 0`, *any* pairs may be left where they are (d = 0 adds nothing), and a shorter step in the same
direction helps too. That settles what to do with pairs that never occur, whose optimum is at minus infinity:

* `noise=False`: they stay where they start, and the sweeps go to the best model that has these logits there. A start without
  noise has them at minus infinity, where they belong.
* `noise=True`: the parameters are those of the noisy features `H̃ = H E_noise` (jexplicit.smoothing), whose rows have norm K
  as well. Noise is a linear map of both co-occurrences, so that with E_noise = diag(q) + (1 - q) ⊗ p a sweep of the tables that
  are read by token ids is `Ũ += (1/K) E_noise log(E_noiseᵀ F / E_noiseᵀ E)`: finite, as no noisy co-occurrence is zero. The
  guarantee is that of the training loss itself, because F and E belong to the same features; smoothing F alone would void it.

An output that never occurs (`<pad>`, where ends of documents are not predicted) stays where it starts in both.

Both fit the training text alone, ever closer. `discount=D` instead minimises `L(U) + D sum_{F > 0} (U - base)` over U >= base,
the exponential prior of Goodman (2004), under which a pair that occurs speaks for itself only as far as it was seen more than D
times. Its term in the bound is still one of its own, `U = max(base, U + (1/K) log((F - D)/E))` is its lowest point, and so
every sweep lowers the penalised loss. At its minimum expected counts are *discounted* ones, `E = F - D`, as in Kneser-Ney.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jexplicit.contexts import contexts, distinct_contexts
from jexplicit.cooccurrence import Counts, merge_counts
from jexplicit.language_model import TokenTables, token_counts, with_targets
from jexplicit.neural.decoder import initial_state, text_gradient, token_tables
from jexplicit.runs.mesh import check_memory, data_mesh
from jexplicit.smoothing import Noise, noise_model, noisy_counts, noisy_rows


class Swept(NamedTuple):
    """A language model and how it came about.

    losses: nats per training position at the start and after each sweep.
    penalties: what the prior adds to them, in the same unit; 0 without one.
    """

    model: TokenTables
    losses: list[float]
    penalties: list[float]


def token_scaling_sweeps(
    model: TokenTables,
    counts: Counts,
    stream: np.ndarray,
    *,
    sweeps: int,
    noise: bool = True,
    discount: float = 0.0,
    base: TokenTables | None = None,
    mesh: Mesh | None = None,
    chunk: int = 1 << 18,
    on_sweep: Callable[[int, float, TokenTables], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Swept:
    """Lower the training loss of a language model, sweep by sweep: `U += (1/K) log(F / HᵀP)`.

    A sweep takes one partition function per different context. The number of devices changes the speed, and the result by
    rounding only.

    Args:
        model: where to start: the explicit solution, for one. Features, radius, eos and dtype are its own.
        counts: C_1 .. C_K' of the stream, K' >= K (jexplicit.cooccurrence.count).
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        sweeps: how many; 0 measures the start.
        noise: whether the parameters are those of the noisy features; without, pairs that never occur stay as they are.
        discount: D, the rate of the prior, in counts; needs `noise=False`. What falls is then the loss with its penalty.
        base: the tables from which the prior measures, of the same kind as the model; a pair that never occurs has its logit
            there, and a start below it is lifted. Default, the start itself.
        mesh: devices to split the tables' columns over; default, the first device.
        chunk: contexts at a time; it changes the memory, not the result.
        on_sweep: called with (sweeps done, loss, model), from 0 sweeps on.
        progress: called with (sweeps done, sweeps in all).

    Raises:
        ValueError: fewer than 0 sweeps; a negative discount, or one together with noise; a base without a discount, or of
            another kind than the model; counts of another stream, radius or vocabulary; no position to predict.
        FloatingPointError: a start that gives no chance to a pair that occurs.

    Example:
        >>> from jexplicit import count, explicit_language_model
        >>> stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
        >>> counts = count(stream, radius=2, vocab_size=3)
        >>> start = explicit_language_model(counts, features="cat")
        >>> [round(loss, 2) for loss in token_scaling_sweeps(start, counts, stream, sweeps=2).losses]
        [0.61, 0.54, 0.5]

    Source: Darroch & Ratcliff 1972; Goodman 2004 for the prior; paper, Eq. 1 and 4.
    """
    K, mesh = model.radius, mesh or data_mesh(1)
    if sweeps < 0 or chunk < 1:
        raise ValueError(f"{sweeps} sweeps of {chunk} contexts at a time: use at least 0 and 1")
    if not 0 <= discount < np.inf or (discount and noise):
        raise ValueError(
            f"a discount of {discount} with noise={noise}: use a finite one >= 0, and noise=False with one above 0"
        )
    F, positions = _observed(model, counts)
    X, Y = contexts(stream, K, eos=model.eos)
    _check_stream(counts, X, Y, model)
    distinct, n = distinct_contexts(X, ordered=model.ordered)
    blocks = model.tables[: len(F)]
    check_memory(mesh, 10 * len(blocks) * blocks[0].nbytes // mesh.size, "tables and their co-occurrences")
    params = initial_state(blocks, optax.identity(), mesh).params
    observed = initial_state(tuple(jnp.asarray(F_b, blocks[0].dtype) for F_b in F), optax.identity(), mesh).params
    floor = _floor(model, base, len(F), discount, mesh)
    if floor is not None:
        params = tuple(
            jnp.where(F_b > 0, jnp.maximum(U, low), low) for U, F_b, low in zip(params, observed, floor, strict=True)
        )
    of_noise = noise_model(token_counts(counts)) if noise else None
    as_model = functools.partial(token_tables, features=model.features, radius=K, eos=model.eos, noise=None)
    losses, penalties = [], []
    while True:
        log_Z, expected = text_gradient(params, distinct, n, X[:0], Y[:0], features=model.features, mesh=mesh, chunk=chunk)
        losses.append((log_Z - _total(_matched_logits, observed, params)) / positions)
        penalties.append(0.0 if floor is None else discount * _total(_above, observed, params, floor) / positions)
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(
                f"loss {losses[-1]} after {len(losses) - 1} sweeps: the start gives no chance to a pair that occurs; start "
                "from tables of the same stream (jexplicit.explicit_language_model)"
            )
        if on_sweep:
            on_sweep(len(losses) - 1, losses[-1], as_model(params))
        if progress and sweeps:
            progress(len(losses) - 1, sweeps)
        if len(losses) > sweeps:
            return Swept(as_model(params), losses, penalties)  # the last pass only measures
        if floor is None:
            params = tuple(_moved(U, F_b, E, of_noise, K) for U, F_b, E in zip(params, observed, expected, strict=True))
        else:
            blocks = zip(params, observed, expected, floor, strict=True)
            params = tuple(_discounted_move(U, F_b, E, low, discount, K) for U, F_b, E, low in blocks)


def _observed(model: TokenTables, counts: Counts) -> tuple[tuple[np.ndarray, ...], int]:
    """F as the model's blocks, and the number of positions."""
    K, N = model.radius, model.vocab_size
    if len(counts) < K or counts[0].shape != (N, N):
        raise ValueError(
            f"counts of {len(counts)} offsets and vocabulary {len(counts[0])} for radius {K} and vocabulary {N}: count with "
            "the model's own radius and tokenizer"
        )
    F = tuple(with_targets(C, eos=model.eos) for C in counts[:K])
    if not (positions := int(F[0].sum(dtype=np.int64))):
        raise ValueError("no position to predict: the text has no tokens")
    return (functools.reduce(merge_counts, [(C,) for C in F]) if model.features == "sum" else F), positions


def _floor(
    model: TokenTables, base: TokenTables | None, blocks: int, discount: float, mesh: Mesh
) -> tuple[Float[Array, "N I"], ...] | None:
    """The tables of the prior, split over the mesh; None without a prior."""
    if not discount:
        if base is not None:
            raise ValueError("a base without a discount: pass a discount above 0, or no base")
        return None
    base = model if base is None else base
    kind, wanted = ((m.features if m.radius > 1 else "", m.radius, m.vocab_size) for m in (base, model))
    if kind != wanted:
        raise ValueError(f"a base of (features, radius, vocabulary) {kind} and a model of {wanted}: give both the same")
    tables = tuple(U.astype(model.tables[0].dtype) for U in base.tables[:blocks])
    if not all(bool(jnp.isfinite(U).all()) for U in tables):
        raise ValueError(
            "a base with infinite logits: the prior needs a finite one, e.g. jexplicit.unigram_model's rows over K"
        )
    return initial_state(tables, optax.identity(), mesh).params


def _check_stream(counts: Counts, X: np.ndarray, Y: np.ndarray, model: TokenTables) -> None:
    """The stream is that of the counts, as far as the frequencies of targets and of context tokens tell."""
    N = model.vocab_size
    f = with_targets(counts[0].sum(axis=0, dtype=np.int64)[None, :], eos=model.eos)[0]
    n = [with_targets(C, eos=model.eos).sum(axis=1, dtype=np.int64) for C in counts[: model.radius]]
    seen = [Y, *X.T]
    if not all(int(ids.max(initial=0)) < N for ids in seen) or not all(
        np.array_equal(np.bincount(ids, minlength=N), wanted) for ids, wanted in zip(seen, [f, *n], strict=True)
    ):
        raise ValueError(
            f"a stream of {len(Y)} positions and counts of {int(f.sum())} that do not belong together: pass the counted stream"
        )


def _total(rows: Callable[..., Array], *blocks: tuple[Array, ...]) -> float:
    """The sum of `rows(...)` over blocks and rows, in float64."""
    return sum(float(np.asarray(rows(*block), np.float64).sum()) for block in zip(*blocks, strict=True))


@jax.jit
def _above(F: Float[Array, "N I"], U: Float[Array, "N I"], low: Float[Array, "N I"]) -> Float[Array, " N"]:
    """What the prior measures, row by row."""
    return jnp.where(F > 0, U - low, 0).sum(axis=1)


@jax.jit
def _matched_logits(F: Float[Array, "N I"], U: Float[Array, "N I"]) -> Float[Array, " N"]:
    """`<F, U>` row by row; a pair that never occurs may have an infinite logit."""
    return jnp.where(F > 0, F * U, 0).sum(axis=1)


@functools.partial(jax.jit, static_argnames="K")
def _moved(U: Float[Array, "N I"], F: Float[Array, "N I"], E: Float[Array, "N I"], noise: Noise | None, K: int) -> Array:
    """The tables after a sweep."""
    if noise is None:
        return U + _log_ratio(F, E) / K
    F = jnp.maximum(F, 0)  # columns that only fill the mesh
    return U + noisy_rows(_log_ratio(noisy_counts(F, noise), noisy_counts(E, noise)), noise) / K


@functools.partial(jax.jit, static_argnames=("D", "K"))
def _discounted_move(
    U: Float[Array, "N I"], F: Float[Array, "N I"], E: Float[Array, "N I"], low: Float[Array, "N I"], D: float, K: int
) -> Array:
    """The tables after a sweep with a prior; what was seen D times or less is back at the base."""
    return jnp.where(F > D, jnp.maximum(low, U + _log_ratio(F - D, E) / K), low)


def _log_ratio(F: Array, E: Array) -> Array:
    """`log(F/E)`, 0 for what never occurs; an E lost to underflow only makes the step shorter."""
    return jnp.where(F > 0, jnp.log(jnp.where(F > 0, F, 1) / jnp.maximum(E, jnp.finfo(E.dtype).tiny)), 0)

"""The optimum of the training loss from counts alone, for contexts of one and two tokens.

The single-layer problem is convex, so "how near to optimal is the explicit solution?" has a number for an answer. With n(ctx)
positions in each context the loss per position is

    L(U) = (1/M) (sum_ctx n(ctx) log Z(ctx) - sum_k <C_k, U_k>).

At K = 1 its infimum is the conditional entropy of the counts. At K = 2 all N^2 partition functions are one matrix product,
`Z = E_1 E_2ᵀ` with `E = exp(U)`, and the gradient takes two more, `E_1 * (W E_2) - C_1` with `W = n / Z`: the text is never
looked at again, and its length costs nothing. A pair that never occurs has its optimum at minus infinity, so where counts have
zeros the infimum is approached and not attained; the KKT residual says how near.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Integer
from optax.tree_utils import tree_get, tree_set

from jexplicit.counts.dense import Counts
from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import LanguageModel, token_model
from jexplicit.lm.rows.explicit import with_targets
from jexplicit.runs.devices import check_memory, data_mesh, full_precision

TableBlocks = tuple[Float[Array, "N N"], ...]  # one table for Sum, K for Cat
Info = dict[str, Float[Array, ""]]  # loss, in nats per position, and kkt_residual

_pseudo_count = 0.01  # of the curvature where nothing was counted; 0.01 .. 1 converge alike, the small ones slightly faster


class Optimum(NamedTuple):
    """The outcome of a minimisation.

    model: the tables reached.
    loss: nats per training position; of these tables, or the infimum itself (`bigram_optimum`).
    kkt_residual: `||gradient of the summed loss||_1 / (K M)`, 0 at the optimum: twice the share of misplaced co-occurrences.
    iterations: taken from the start.
    """

    model: LanguageModel
    loss: float
    kkt_residual: float
    iterations: int


class Problem(NamedTuple):
    """What the loss depends on, in floats and divided by M: co-occurrences per block (Sum's offsets are added up), positions
    per context ([N, 1] at K = 1), and 1/M itself."""

    counts: TableBlocks
    contexts: Float[Array, "N J"]
    position: Float[Array, ""]

    @property
    def radius(self) -> int:
        """K, the context length in tokens."""
        return 1 if self.contexts.shape[1] == 1 else 2


class State(NamedTuple):
    """Tables, and the optimiser's state, which holds the loss and the gradient there."""

    blocks: TableBlocks
    optimizer: Any


def context_pairs(stream: np.ndarray, vocab_size: int, *, eos: bool = False) -> Int[np.ndarray, "N N"]:
    """How many positions have each context of two tokens, `n[j_1, j_2] = sum_m [x_{m-1} = j_1] [x_{m-2} = j_2]`.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        vocab_size: N.
        eos: whether the ends of documents are predictions too.

    Example:
        >>> context_pairs(np.array([0, 1, 2, 1, 0]), 3).tolist()  # the contexts (0, 0), (1, 0), (2, 1)
        [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    """
    j = contexts(stream, 2, eos=eos)[0].astype(np.int64)
    if not 0 <= j.min(initial=0) <= j.max(initial=0) < vocab_size:
        raise ValueError(f"token ids {j.min()} .. {j.max()} in a vocabulary of {vocab_size}: pass the tokenizer's vocab_size")
    return np.bincount(j[:, 0] * vocab_size + j[:, 1], minlength=vocab_size**2).reshape(vocab_size, vocab_size)


def bigram_optimum(counts: Counts, *, eos: bool = False, floor: float = 1e-9, dtype=jnp.float32) -> Optimum:
    """The optimum at K = 1 in closed form: conditional relative frequencies, whose loss is their conditional entropy.

    `U[j, i] = log(C[j, i] / C(j))`, `L = -(1/M) sum_{j,i} C[j, i] log(C[j, i] / C(j))`; the loss is that of the infimum.

    Args:
        counts: C_1; further offsets are not looked at.
        eos: predict `<pad>` at the end of a document.
        floor: the count that stands for 0 in the table, as log 0 = -inf; the summed loss of the table is at most
            `N^2 * floor` above the infimum. A context that never occurs gets equal probabilities.
        dtype: of the table.

    Raises:
        ValueError: no position to predict; a floor outside (0, 1).

    Example:
        >>> round(bigram_optimum((np.array([[3, 1], [0, 4]]),), eos=True).loss, 4)  # H(1/4) / 2
        0.2812

    Source: paper, Eq. 1 and 3, at K = 1.
    """
    if not 0 < floor < 1:
        raise ValueError(f"floor {floor}: the count that stands for 0 lies between 0 and 1")
    C = with_targets(counts[0], eos=eos)
    n = C.sum(axis=1, dtype=np.int64)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    loss = -sum(float(c[c > 0] @ np.log(c[c > 0] / n_j)) for c, n_j in zip(C, n, strict=True)) / int(n.sum())
    table = np.log(np.maximum(C, floor)) - np.log(np.maximum(n, len(C) * floor))[:, None]
    return Optimum(token_model((jnp.asarray(table, dtype),), "cat", eos), loss, 0.0, 0)


def find_optimum(
    start: LanguageModel,
    counts: Counts,
    pairs: Integer[np.ndarray, "J J"] | None = None,
    *,
    iterations: int = 100,
    tolerance: float = 1e-4,
    memory: int = 4,
    on_iteration: Callable[[Mapping[str, float]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Optimum:
    """Minimise the training loss; the cost of an iteration does not depend on the number of positions.

    Args:
        start: tables to start from, those of `explicit_language_model` for one; features, radius, eos and dtype are theirs.
        counts: C_1 .. C_K' of jexplicit.counts.dense.count, K' >= K.
        pairs: `context_pairs` of the same stream; needed at K = 2.
        iterations: at most; 0 measures the start.
        tolerance: of the KKT residual, to stop at. The end is also where rounding hides what an iteration gains.
        memory: of L-BFGS, in pairs of copies of the tables. 3 to 12 converge alike.
        on_iteration: called with `iteration`, `loss` and `kkt_residual`, from iteration 0 on.
        progress: called with (iterations done, iterations at most).

    Raises:
        ValueError: K > 2; a start, counts and pairs that do not belong together; infinite logits.
        FloatingPointError: a partition function below the range of the dtype.

    Example:
        >>> from jexplicit import count, explicit_language_model
        >>> stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
        >>> counts, pairs = count(stream, radius=2, vocab_size=3), context_pairs(stream, 3)
        >>> start = explicit_language_model(counts, features="cat")
        >>> [round(find_optimum(start, counts, pairs, iterations=n).loss, 1) for n in (0, 50)]
        [0.6, 0.2]

    Source: paper, Eq. 1; Liu & Nocedal 1989.
    """
    if iterations < 0 or memory < 1 or not tolerance >= 0:
        raise ValueError(f"iterations {iterations}, memory {memory}, tolerance {tolerance}: use at least 0, 1 and 0")
    problem = make_problem(start, counts, pairs)
    blocks = start.tables[: len(problem.counts)]
    if not all(bool(jnp.isfinite(U).all()) for U in blocks):
        raise ValueError("a start with infinite logits: start from smoothed counts (noise=True)")
    check_memory(data_mesh(1), (2 * memory + 12) * len(blocks) * blocks[0].nbytes, "tables, gradients and their history")
    state, info = initial_state(problem, blocks, memory=memory)
    done, past = 0, []
    while True:
        values = {name: float(value) for name, value in jax.device_get(info).items()}
        if not math.isfinite(values["loss"]):
            raise FloatingPointError(
                f"loss {values['loss']} after {done} iterations: the two tokens of a context agree on no output, so that Z is "
                f"below the range of {blocks[0].dtype}; start from smoother tables, or float64 ones (jax_enable_x64)"
            )
        if on_iteration:
            on_iteration({"iteration": done, **values})
        past.append((values["loss"], values["kkt_residual"]))
        if done == iterations or values["kkt_residual"] <= tolerance or _stalled(past, blocks[0].dtype):
            tables = state.blocks * (start.radius // len(state.blocks))
            return Optimum(token_model(tables, start.features, start.eos), **values, iterations=done)
        state, info = minimization_step(problem, state, memory=memory)
        done += 1
        if progress:
            progress(done, iterations)


def make_problem(model: LanguageModel, counts: Counts, pairs: Integer[np.ndarray, "J J"] | None = None) -> Problem:
    """The training problem of a model's kind; arguments and errors are those of `optimum`."""
    K, N, dtype = model.radius, model.vocab_size, model.tables[0].dtype
    if K > 2:
        raise ValueError(
            f"a model of radius {K}: only at K = 1 and 2 do counts give all partition functions; beyond, train it on the text "
            "(method 'warm')"
        )
    if len(counts) < K or counts[0].shape != (N, N):
        have = f"counts of {len(counts)} offsets and vocabulary {len(counts[0])}"
        raise ValueError(f"{have} for radius {K} and vocabulary {N}: count with the model's own radius and tokenizer")
    C = [with_targets(C_k, eos=model.eos) for C_k in counts[:K]]
    rows = [C_k.sum(axis=1, dtype=np.int64) for C_k in C]
    if not (M := int(rows[0].sum())):
        raise ValueError("no position to predict: the text has no tokens")
    n = rows[0][:, None] if K == 1 else pairs
    if n is None or (K == 2 and not all(map(np.array_equal, (n.sum(axis=1), n.sum(axis=0)), rows))):
        wrong = "missing context pairs" if n is None else "context pairs that do not add up to the counts"
        raise ValueError(f"{wrong}: pass context_pairs of the counted stream, with vocabulary {N} and eos={model.eos}")
    C = [np.sum(C, axis=0, dtype=np.int64)] if model.features == "sum" else C
    return Problem(tuple(jnp.asarray(C_b / M, dtype) for C_b in C), jnp.asarray(n / M, dtype), jnp.asarray(1 / M, dtype))


def initial_state(problem: Problem, blocks: TableBlocks, *, memory: int = 4) -> tuple[State, Info]:
    """The state of a minimisation that starts from these tables, and what the loss is there."""
    loss, gradient = loss_and_gradient(problem, blocks)
    optimizer = tree_set(_lbfgs(problem, memory).init(blocks), value=loss, grad=gradient)
    # copies, as the state is donated; of the tables' precision, whatever optax's default is
    copy = functools.partial(jax.tree.map, lambda a: jnp.array(a, loss.dtype if a.dtype.kind == "f" else a.dtype))
    return copy(State(blocks, optimizer)), _info(problem, loss, gradient)


@functools.partial(jax.jit, static_argnames="memory", donate_argnames="state")
@full_precision
def minimization_step(problem: Problem, state: State, *, memory: int = 4) -> tuple[State, Info]:
    """One iteration; the state is donated."""
    optimizer, value_fn = _lbfgs(problem, memory), functools.partial(_loss, problem)
    now = {name: tree_get(state.optimizer, name) for name in ("value", "grad")}
    with jax.numpy_dtype_promotion("standard"):  # within optax
        updates, after = optimizer.update(now["grad"], state.optimizer, state.blocks, value_fn=value_fn, **now)
    info = _info(problem, tree_get(after, "value"), tree_get(after, "grad"))
    return State(jax.tree.map(jnp.add, state.blocks, updates), after), info


@jax.jit
@full_precision
def loss_and_gradient(problem: Problem, blocks: TableBlocks) -> tuple[Float[Array, ""], TableBlocks]:
    """Loss in nats per position, and its gradient: expected less observed co-occurrences, `E_1 * (W E_2) - C_1`.

    The loss is infinite where a partition function leaves the range of the dtype. Source: paper, Eq. 1.
    """
    n, C = problem.contexts, problem.counts
    U1, U2 = blocks[0], blocks[-1] if problem.radius == 2 else jnp.zeros_like(blocks[0][:1])
    (E1, a1), (E2, a2) = _unfused(_exponentials, U1), _unfused(_exponentials, U2)
    W, n_log_Z = _unfused(_weights, E1 @ E2.T, n)
    shifts = n.sum(axis=1) @ a1 + n.sum(axis=0) @ a2
    loss = n_log_Z + shifts - sum(_total(C_b * U_b) for C_b, U_b in zip(C, blocks, strict=True))
    expected = [E1 * (W @ E2), E2 * (W.T @ E1)][: problem.radius]
    expected = [sum(expected)] if len(blocks) == 1 else expected
    return loss, tuple(F_b - C_b for F_b, C_b in zip(expected, C, strict=True))


def _stalled(past: list[tuple[float, float]], dtype: Any) -> bool:
    """Whether three iterations together lowered the loss by no more than rounding, and the KKT residual by less than 1 %.

    A line search that can gain nothing takes all its steps, for nothing.
    """
    if len(past) < 4:
        return False
    (loss, residual), (loss_now, residual_now) = past[-4], past[-1]
    return loss - loss_now <= 2 * float(jnp.finfo(dtype).eps) * abs(loss) and residual_now > 0.99 * residual


def _exponentials(U: Array) -> tuple[Array, Array]:
    a = U.max(axis=1)
    return jnp.exp(U - a[:, None]), a


def _weights(Z: Array, n: Array) -> tuple[Array, Array]:
    """`n / Z` and `<n, log Z>`; infinite where Z is so small that terms lost to underflow would show."""
    safe = Z > (jnp.finfo(Z.dtype).tiny / jnp.finfo(Z.dtype).eps * len(Z)).astype(Z.dtype)
    n_log_Z = jnp.where(n > 0, n * jnp.where(safe, jnp.log(Z), jnp.inf), 0)
    return jnp.where((n > 0) & safe, n / Z, 0), _total(n_log_Z)


def _unfused(f: Callable[..., Any], x: Array, *more: Array) -> Any:
    """`f(x, *more)` in a branch of its own: fused into the matrix product that reads it, f would cost XLA:CPU its fast GEMM
    (measured: 6 times slower). NaN if x has diverged."""
    return lax.cond(x[0, 0] < jnp.inf, f, lambda *xs: jax.tree.map(lambda y: y * jnp.nan, f(*xs)), x, *more)


@jax.custom_vjp
def _loss(problem: Problem, blocks: TableBlocks) -> Array:
    return loss_and_gradient(problem, blocks)[0]


_loss.defvjp(loss_and_gradient, lambda gradient, g: (None, jax.tree.map(lambda G: g * G, gradient)))


def _lbfgs(problem: Problem, memory: int) -> optax.GradientTransformationExtraArgs:
    """L-BFGS on `U sqrt(C)`, with a line search.

    The curvature in a logit is about its expected count or less, at the optimum C: anything up to 10^5. In units of 1/sqrt(C)
    L-BFGS gets further in 5 iterations than without them in 100 (measured).
    """
    lbfgs = optax.scale_by_lbfgs(memory)
    units = tuple(lax.rsqrt(C + _pseudo_count * problem.position) for C in problem.counts)

    def update(updates, state, params=None):
        updates = jax.tree.map(jnp.multiply, updates, units)
        updates, state = lbfgs.update(updates, state, jax.tree.map(jnp.divide, params, units))
        return jax.tree.map(jnp.multiply, updates, units), state

    line_search = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")
    return optax.chain(optax.GradientTransformation(lbfgs.init, update), optax.scale(-1.0), line_search)


def _info(problem: Problem, loss: Array, gradient: TableBlocks) -> Info:
    return {"loss": loss, "kkt_residual": jnp.asarray(sum(_total(jnp.abs(G)) for G in gradient) / problem.radius)}


def _total(x: Array) -> Array:
    """The sum of all cells, by rows: in float32 one running sum would lose digits."""
    return x.sum(axis=1).sum()

"""Regression on finitely many tasks, and on tasks of mixed noise levels."""

import dataclasses
from collections.abc import Sequence as Numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jaxtyping import Array, Float, Int

from icl.attention import AttentionLayer, head_tensor
from icl.closed_form import (
    Head,
    all_heads_solution,
    exact_moments,
    gaussian_tasks,
    heads_loss,
    one_head_solution,
    optimal_solution,
    solution_loss,
    token_moments,
)
from icl.descent import ridge
from icl.tasks import Sequence, Tasks, contract, initial_weights, sample_tasks, sequences, transpose
from jexplicit.runs.checks import checked, is_concrete, key_of_seed
from jexplicit.runs.devices import full_precision

#     w ~ U{w_1, .., w_M},    y_i = wᵀ x_i + ε_i,    w_m ~ N(0, c² I) drawn once
#
# Given the M tasks, the best prediction is the posterior mean of w, a softmax over them (*discrete MMSE*). On fresh tasks it is
# ridge regression (`icl.ridge`). A model pretrained on M tasks may become either. `diversity_curve` solves the best layer of
# linear attention, and its loss on fresh tasks, for all M at once.
#
# Source: Raventós, Paul, Chen, Ganguli 2023, Sec. 2; linear attention: Lu, Letey, Zavatone-Veth, Maiti, Pehlevan 2024.

_at_once = 250  # sequences of the Bayes-optimal predictors, which have no exact losses
_nodes = 2000  # of the integral over eigenvalues, whose error falls faster than any power


@dataclasses.dataclass(frozen=True)
class FiniteTasks:
    """Sequences of M fixed tasks, drawn uniformly, e.g. for training by `Regression(FiniteTasks(..))`.

    tasks: the distribution of the M tasks, of one output.
    number: M.
    seed: of the M tasks. With the same seed, the tasks of a smaller M are the first of a larger one.

    Raises:
        ValueError: no task, or several outputs.

    Source: Raventós et al. 2023, Sec. 2.
    """

    tasks: Tasks
    number: int
    seed: int = 0

    def __post_init__(self):
        if self.number < 1 or self.tasks.outputs != 1:
            raise ValueError(f"{self.number} tasks of {self.tasks.outputs} outputs: use at least one task, of one output")

    def weights(self, dtype: Any = None) -> Float[Array, "M d"]:
        """w_1, .., w_M."""

        def one(m: Array) -> Array:
            return jax.random.normal(jax.random.fold_in(key_of_seed(self.seed), m), (self.tasks.dim,), dtype)

        dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
        return jnp.asarray(self.tasks.weight_scale, dtype) * jax.vmap(one)(jnp.arange(self.number))

    def sample(self, key: Array, *batch: int, dtype: Any = None) -> Sequence:
        """A sequence of one of the tasks, or a batch of them, batch last."""
        key, key_task = jax.random.split(key)
        # weight scale 0: samples inputs and noise only
        noise = sample_tasks(key, dataclasses.replace(self.tasks, weight_scale=0.0), *batch, dtype=dtype)
        w = self.weights(noise.X.dtype)[jax.random.randint(key_task, batch, 0, self.number)]
        w = jnp.moveaxis(w, -1, 0)[:, None]
        y_q = contract(w, noise.x_q[:, None])[:, 0]
        return noise._replace(Y=contract(transpose(noise.X), w) + noise.Y, y_q=y_q)


@checked(lambda sequence, W, v, *, block=256: _check_noise(v, block), static=("block",))
@full_precision
def discrete_mmse(sequence: Sequence, W: Float[Array, "M d"], v: Any, *, block: int = 256) -> Float[Array, " 1"]:
    """The best prediction for a task among M, all equally likely.

        ŷ = x_qᵀ Σ_m p_m w_m,    p = softmax_m(-||y - X w_m||² / (2 v))

    Args:
        W: [M, d] the tasks.
        v: variance of the noise.
        block: tasks at a time; changes memory, and the result by rounding only.

    Raises:
        ValueError: shapes that do not fit, no task, or a variance or a block that is not positive.

    Source: Raventós et al. 2023, Sec. 2.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> discrete_mmse(one, jnp.array([[1.0, 2.0], [2.0, 1.0]]), 0.01).tolist()
        [3.0]

    """
    initial_weights(sequence)  # checks the shapes
    X, Y, x_q, _ = sequence
    if W.ndim != 2 or not len(W) or W.shape[1] != len(x_q) or Y.shape[1] != 1:
        raise ValueError(f"W {W.shape}, Y {Y.shape}: wanted [M, {len(x_q)}] for at least one task, and one output")
    _check_noise(v, block)
    M, d = W.shape
    block = min(block, M)
    missing = -M % block
    blocks = jnp.pad(W, ((0, missing), (0, 0))).reshape(-1, block, d)
    present = (jnp.arange(M + missing) < M).reshape(-1, block)

    def add(state: tuple[Array, ...], part: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        peak, total, mean = state  # the largest exponent so far, and sums relative to it
        W, present = part
        log_p = jnp.where(present, -jnp.sum((Y - X @ W.T) ** 2, axis=0) / (2 * v), -jnp.inf)
        higher = jnp.maximum(peak, jnp.max(log_p))
        p, shrink = jnp.exp(log_p - higher), jnp.exp(peak - higher)
        return (higher, shrink * total + jnp.sum(p), shrink * mean + p @ W), None

    start = jnp.asarray(-jnp.inf, X.dtype), jnp.zeros((), X.dtype), jnp.zeros(d, X.dtype)
    (_, total, mean), _ = lax.scan(add, start, (blocks, present))
    return ((mean / total) @ x_q)[None]


@jax.jit
def bayes_predictions(batch: Sequence, W: Float[Array, "M d"], v: Any) -> dict[str, Float[Array, "1 batch"]]:
    """The Bayes-optimal predictions: `dmmse` for tasks among M, `ridge` for fresh ones."""

    def one(sequence: Sequence) -> dict[str, Array]:
        return {"dmmse": discrete_mmse(sequence, W, v), "ridge": ridge(sequence, v)}

    return jax.tree.map(jnp.transpose, lax.map(one, sequences(batch), batch_size=_at_once))


def _check_noise(v: Any, block: int) -> None:
    if block < 1 or (is_concrete(v) and not v > 0):
        raise ValueError(f"variance {v}, block {block}: use numbers above 0; without noise the tasks are told apart exactly")


class LayerLosses(NamedTuple):
    """Exact half mean squared errors of a layer by the number of tasks, [numbers].

    pretraining: on these tasks; fresh: on all tasks w ~ N(0, c² I).
    """

    pretraining: Float[Array, " numbers"]
    fresh: Float[Array, " numbers"]


class DiversityCurve(NamedTuple):
    """The best single layers for the first M of some tasks, by M.

    descent: without the blocks XᵀX and yᵀy, `icl.optimal_solution`, a step of preconditioned descent.
    one_head, all_heads: the best layers with one head and with any number of heads.
    heads: the one head of each M, stacked.
    limit: the loss on fresh tasks as M grows to infinity, the same for all three.
    """

    descent: LayerLosses
    one_head: LayerLosses
    all_heads: LayerLosses
    heads: Head
    limit: Float[Array, ""]


def diversity_curve(tasks: Tasks, W: Float[Array, "M d"], numbers: Numbers[int]) -> DiversityCurve:
    """The best single layers for the first M tasks, and exact losses.

    Args:
        tasks: their distribution, with noise.
        W: [largest M, d] the tasks.

    Raises:
        ValueError: a number below 1 or above the number of tasks, or labels without noise.

    Example:
        >>> tasks = Tasks(dim=2, context=5, noise=0.5)
        >>> curve = diversity_curve(tasks, FiniteTasks(tasks, 64).weights(), [1, 8, 64])
        >>> bool((curve.all_heads.pretraining <= curve.one_head.pretraining).all()), curve.descent.fresh.shape
        (True, (3,))
    """
    if not numbers or min(numbers) < 1 or max(numbers) > len(W):
        raise ValueError(f"numbers {list(numbers)} of {len(W)} tasks: give some, from 1 to {len(W)}")
    if not tasks.noise > 0:
        raise ValueError(f"noise {tasks.noise}: use a number above 0; without noise few tasks do not determine the layer")
    with jax.enable_x64(True):
        found = _curve(tasks, jnp.asarray(np.asarray(W, np.float64)), jnp.asarray(np.asarray(numbers)))
        return jax.tree.map(np.asarray, found)


@jax.jit
@full_precision
def _curve(tasks: Tasks, W: Array, numbers: Int[Array, " numbers"]) -> DiversityCurve:
    every = token_moments(tasks, *gaussian_tasks(tasks))
    gaussian = exact_moments(tasks)

    def at(M: Array) -> tuple[LayerLosses, LayerLosses, LayerLosses, Head]:
        few = token_moments(tasks, W, jnp.where(jnp.arange(len(W)) < M, 1 / M, 0.0))
        own = exact_moments(tasks, C=few.ww)
        G, head, H = optimal_solution(own), one_head_solution(few), all_heads_solution(few)
        descent = LayerLosses(*(solution_loss(G, moments) for moments in (own, gaussian)))
        one, many = (LayerLosses(*(heads_loss(T, moments) for moments in (few, every))) for T in (head.tensor, H))
        return descent, one, many, head

    descent, one, many, heads = lax.map(at, numbers)
    return DiversityCurve(descent, one, many, heads, solution_loss(optimal_solution(gaussian), gaussian))


def layer_losses(layer: AttentionLayer, few: FiniteTasks) -> tuple[float, float]:
    """The exact losses of a layer on fresh tasks and on M."""
    W = np.asarray(few.weights(), np.float64)
    with jax.enable_x64(True):
        H = head_tensor(jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), layer), few.tasks.context)
        fresh, own = token_moments(few.tasks, *gaussian_tasks(few.tasks)), token_moments(few.tasks, jnp.asarray(W))
        return float(heads_loss(H, fresh)), float(heads_loss(H, own))


@jax.jit
def limiting_excess(tasks: Tasks, M: Any) -> Float[Array, ""]:
    """The excess loss on fresh tasks of `icl.optimal_solution`, at large d.

        γ ∫ (f(λ) - 1/γ)² dρ(λ) / (1 - 1/γ),    f(λ) = λ / ((1 + 1/N) λ + τ),
        τ = (κ - 3 + d + v/(s c²)) / N,    γ = 1 + 1/N + τ

    in units of the loss for all tasks, with ρ the Marchenko-Pastur law, for d/M, of the eigenvalues of `(1/M) Σ_m w_m w_mᵀ`
    where c² = 1; M is any number. Source: this package, in the limit of Lu et al. 2024.
    """
    dtype = jnp.zeros(()).dtype
    N, ratio = tasks.context, tasks.dim / jnp.asarray(M, dtype)
    tau = (tasks.kurtosis - 3 + tasks.dim + tasks.noise**2 / (tasks.variance * tasks.weight_scale**2)) / N
    gamma = 1 + 1 / N + tau
    theta = (jnp.arange(_nodes, dtype=dtype) + 0.5) * (jnp.pi / _nodes)
    values = 1 + ratio + 2 * jnp.sqrt(ratio) * jnp.cos(theta)
    density = 2 * jnp.sin(theta) ** 2 / (_nodes * values)  # for d > M the rest of the eigenvalues are 0, where f is 0
    f = values / ((1 + 1 / N) * values + tau)
    error = jnp.sum(density * (f - 1 / gamma) ** 2) + (1 - jnp.sum(density)) / gamma**2
    return gamma * error / (1 - 1 / gamma)


def diversity_threshold(tasks: Tasks, *, tolerance: float = 0.05) -> float:
    """The M at which `limiting_excess` equals a tolerance, proportional to d.

    Raises:
        ValueError: a tolerance that is not positive, or so large that one task is enough.

    Example:
        >>> round(diversity_threshold(Tasks(dim=10, context=10, inputs="normal", input_range=12**0.5, noise=0.5)))
        46

    Source: this package; Raventós et al. 2023, Sec. 4, find that the threshold of transformers grows linearly with d.
    """

    def excess(log: float) -> float:
        return float(limiting_excess(tasks, float(np.exp(log)))) / tolerance - 1

    ends = float(np.log(tasks.dim / 100)), float(np.log(1e4 * tasks.dim))
    with jax.enable_x64(True):
        if not tolerance > 0 or excess(ends[0]) <= 0 or excess(ends[1]) >= 0:
            raise ValueError(f"tolerance {tolerance}: use a positive number that the excess of one task exceeds, such as 0.05")
        root: Any = scipy.optimize.brentq(excess, *ends)
    return float(np.exp(root))


def crossing(numbers: Numbers[int], excess: Numbers[float] | Float[np.ndarray, " numbers"], level: float) -> float | None:
    """The number at which a falling excess finally crosses a level, log-interpolated.

    None if the last excess is above the level; the first number if all are below.
    """
    above = [n for n, value in enumerate(excess) if value > level]
    if not above or above[-1] == len(excess) - 1:
        return None if above else float(numbers[0])
    n = above[-1]
    part = np.log(excess[n] / level) / np.log(excess[n] / max(excess[n + 1], np.finfo(float).tiny))
    return float(numbers[n] * (numbers[n + 1] / numbers[n]) ** part)


# Regression with a noise level of each task, and its optimum.
#
#     σ_τ ~ p(σ),    y_i = wᵀ x_i + σ_τ ε_i,    w ~ N(0, I)
#
# A *diagonal* layer updates tokens by four scalars,
#
#     x_j <- x_j + w_xx Σ_i x_i x_iᵀ x_j + w_xy Σ_i x_i y_i y_j,    y_j <- y_j + w_yx Σ_i y_i x_iᵀ x_j + w_yy Σ_i y_i² y_j
#
# of which GD++ has only w_xx and w_yx. They are fitted by L-BFGS on many tasks at once, starting from the optimal polynomial of
# GD++. The *adjusted loss* of a predictor is its loss minus that of ridge regression with known σ_τ.
#
# Source: Vladymyrov, von Oswald, Miller, Sandler 2024.

"""The best single layer of linear attention in closed form, for any tasks."""

import dataclasses
from collections.abc import Sequence as Numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jaxtyping import Array, Float

from icl.attention import AttentionLayer, ridge
from icl.tasks import Sequence, Tasks, contract, initial_weights, sample_tasks, sequences, transpose
from jexplicit.runs.devices import checked, full_precision, is_concrete, key_of_seed

# One layer of linear attention predicts `ŷ = pᵀ (Σ_i e_i e_iᵀ) A x_q`. As tasks W and -W are equally likely, only the part
# `ŷ = x_qᵀ G Xᵀ y / N` can lower the loss, for any number of heads; it is linear in G, so the best layer is an ordinary
# least squares solution. With `S = XᵀX/N`, `L = E[x xᵀ]`, `C = Cov(w)` and noise of variance v,
#
#     G = C L (E[S C S] + (v/N) L)⁻¹.
#
# For independent symmetric coordinates of variance s and kurtosis κ, and C = c² I, it is one step of gradient descent with
# `η = N / (s (κ + d + N - 2) + v/c²)`; for Gaussian inputs of any covariance it is the optimum of Zhang et al. 2024.

Matrix = Array | np.ndarray  # formulas of JAX's arrays, which are traced, or of NumPy's, in float64 on the host
_sweeps = 100  # of alternating least squares


class Moments(NamedTuple):
    """The moments that the optimal layer depends on.

    L: E[x xᵀ] of the context's inputs; C: covariance of the weights; SCS: E[S C S] with `S = XᵀX/N`.
    N: pairs in the context; v: variance of the noise on their y.
    """

    L: Float[Any, "d d"]
    C: Float[Any, "d d"]
    SCS: Float[Any, "d d"]
    N: int
    v: Any


def optimal_rate(tasks: Tasks) -> Any:
    """The best single-layer rate, `η = N / (s (κ+d+N-2) + v/c²)`.

    Raises:
        ValueError: inputs without independent symmetric coordinates; inputs or weights that are all 0.

    Example:
        >>> round(optimal_rate(Tasks(dim=10, context=10)) / 10, 6)
        0.606061

    Source: this package; Gaussian inputs: Zhang et al. 2024, Theorem 4.1 (with L = s I).
    """
    d, N, s = tasks.dim, tasks.context, tasks.variance
    if is_concrete(tasks) and not (np.all(s) and np.all(tasks.weight_scale)):
        raise ValueError(f"input_range {tasks.input_range}, weight_scale {tasks.weight_scale}: use numbers above 0")
    return N / (s * (tasks.kurtosis + d + N - 2) + tasks.noise**2 / tasks.weight_scale**2)


def one_step_loss(tasks: Tasks, eta: Any) -> Any:
    """Half the mean squared error of one descent step from zero, exactly.

        (m/2) d s (c² (1 - 2 η s + η² s² (κ + d + N - 2)/N) + η² s v/N)

    Example:
        >>> tasks = Tasks(dim=10, context=10)
        >>> round(one_step_loss(tasks, optimal_rate(tasks)), 6), round(one_step_loss(tasks, 0.0), 6)
        (0.206229, 0.416667)
    """
    d, N, s, c, v = tasks.dim, tasks.context, tasks.variance, tasks.weight_scale, tasks.noise**2
    descended = 1 - 2 * eta * s + eta**2 * s**2 * (tasks.kurtosis + d + N - 2) / N
    return tasks.outputs * d * s / 2 * (c**2 * descended + eta**2 * s * v / N)


@full_precision
def exact_moments(tasks: Tasks, *, factor: Float[Array, "d d"] | None = None, C: Float[Array, "d d"] | None = None) -> Moments:
    """The moments of inputs `x = A z`, z independent with kurtosis κ.

        N E[S C S] = (N - 1) L C L + A (2 C' + tr(C') I + (κ - 3) diag C') Aᵀ,    C' = Aᵀ C A,  L = A Aᵀ

    Args:
        factor: A; default, the diagonal of the inputs' standard deviations.
        C: symmetric covariance of the weights; default, c² I.

    Raises:
        ValueError: matrices that are not [d, d].

    Example:
        >>> optimal_solution(exact_moments(Tasks(dim=2, context=10))).diagonal().round(3).tolist()
        [10.169..., 10.169...]
    """
    d, dtype = tasks.dim, jnp.zeros(()).dtype if factor is None else factor.dtype
    A = jnp.diag(jnp.asarray(tasks.input_stds, dtype)) if factor is None else jnp.asarray(factor)
    C = jnp.asarray(tasks.weight_scale, dtype) ** 2 * jnp.eye(d, dtype=dtype) if C is None else jnp.asarray(C)
    if A.shape != (d, d) or C.shape != (d, d):
        raise ValueError(f"factor {A.shape}, C {C.shape}: wanted {(d, d)}, the inputs of the tasks")
    return _exact_moments(tasks, A, C)


def _exact_moments(tasks: Tasks, A: Matrix, C: Matrix) -> Moments:
    """The moments in the arrays of A and C, JAX's or NumPy's."""
    xp, N = A.__array_namespace__(), tasks.context
    L, inner = A @ A.T, A.T @ C @ A
    fourth = 2 * inner + inner.trace() * xp.eye(len(A), dtype=A.dtype) + (tasks.kurtosis - 3) * xp.diag(xp.diag(inner))
    return Moments(L, C, (1 - 1 / N) * L @ C @ L + A @ fourth @ A.T / N, N, tasks.noise**2)


@full_precision
def sampled_moments(X: Float[Array, "T N d"], *, C: Float[Array, "d d"] | None = None, v: Any = 0.0) -> Moments:
    """The moments of any inputs, from T sampled contexts.

    Args:
        X: [T, N, d] inputs.
        C: covariance of the weights; default, the identity.
        v: variance of the noise.

    Raises:
        ValueError: fewer than one context.

    Example:
        >>> sampled_moments(jnp.ones((3, 5, 1))).SCS.tolist()
        [[1.0]]
    """
    if X.ndim != 3 or 0 in X.shape:
        raise ValueError(f"X {X.shape}: wanted [T, N, d], at least one context")
    T, N, d = X.shape
    C = jnp.eye(d, dtype=X.dtype) if C is None else C
    S = jnp.einsum("tni,tnj->tij", X, X) / N
    return Moments(S.mean(axis=0), C, jnp.einsum("tij,jk,tkl->il", S, C, S) / T, N, v)


def optimal_solution(moments: Moments) -> Float[Array, "d d"]:
    """The G of the best layer, `C L (E[S C S] + (v/N) L)⁻¹`.

    The query's covariance cancels. `icl.descent_layers(.., 1.0, preconditioner=G.T)` are its weights.

    Raises:
        ValueError: inputs that do not span all dimensions (a check of values, which tracers skip).

    Example:
        >>> tasks = Tasks(dim=10, context=10)
        >>> bool(jnp.allclose(optimal_solution(exact_moments(tasks)), optimal_rate(tasks) * jnp.eye(10), atol=1e-4))
        True
    """
    G, A = _solve_compiled(moments)
    if is_concrete(A, G) and not (bool(jnp.isfinite(G).all()) and int(jnp.linalg.matrix_rank(A)) == len(A)):
        raise ValueError(
            "E[S C S] cannot be inverted: draw more contexts, drop inputs that are 0, or scale them to the order of 1"
        )
    return G


@full_precision
def _solve_moments(moments: Moments) -> tuple[Matrix, Matrix]:
    """The solution, and the matrix of its equations."""
    L, C, SCS, N, v = moments
    A = SCS + v / N * L
    return A.__array_namespace__().linalg.solve(A.T, (C @ L).T).T, A


_solve_compiled = jax.jit(_solve_moments)


@full_precision
def solution_loss(G: Float[Any, "d d"], moments: Moments) -> Any:
    """Half the mean squared error of `ŷ = x_qᵀ G Xᵀ y / N`.

    ½ tr(L (C - G L C - C L Gᵀ + G (E[S C S] + (v/N) L) Gᵀ))
    """
    L, C, SCS, N, v = moments
    error = C - G @ L @ C - C @ L @ G.T + G @ (SCS + v / N * L) @ G.T
    return (L @ error).trace() / 2


# The best layer for any tasks.
#
# With tokens `e_i = (x_i, y_i)` and `Z = (1/N) Σ_i e_i e_iᵀ`, a layer with readouts `p_h` and score matrices `A_h` predicts
#
#     ŷ = Σ_h p_hᵀ Z A_h x_q = Σ_abj H_abj Z_ab x_q,j,    H = Σ_h p_h ⊗ A_h
#
# The loss is quadratic in H, and depends on w by E[Z_ab Z_cd], E[Z_ab w_j] and E[w wᵀ] alone. Given w, tokens are linear in
# independent numbers, `e = B_w z`, so that with `Σ = B_w B_wᵀ`
#
#     E[Z_ab Z_cd | w] = Σ_ab Σ_cd + (Σ_ac Σ_bd + Σ_ad Σ_bc + (κ - 3) Σ_i B_ai B_bi B_ci B_di) / N
#
# For symmetric tasks, w and -w equally likely, only `H = e_y ⊗ Gᵀ` remains (`icl.optimal_solution`). A finite set of tasks is
# not symmetric, and the blocks XᵀX and yᵀy of Z are informative of w, too. With at least d + 1 heads H is any tensor, and the
# best one is an ordinary least squares solution. One head is a tensor of rank one, found by alternating least squares: the loss
# is quadratic in p and in A.


class TokenMoments(NamedTuple):
    """The moments in the loss of a layer, D = d + 1.

    ZZ: E[Z_ab Z_cd]; Zw: E[Z_ab w_j]; ww: E[w wᵀ]; L: E[x_q x_qᵀ].
    """

    ZZ: Float[Any, "D D D D"]
    Zw: Float[Any, "D D d"]
    ww: Float[Any, "d d"]
    L: Float[Any, "d d"]


class Head(NamedTuple):
    """A head with readout p and scores A: `pᵀ Z A x_q`."""

    p: Float[Any, " D"]
    A: Float[Any, "D d"]

    @property
    def tensor(self) -> Float[Any, "D D d"]:
        """`H = p ⊗ A`."""
        return self.p[:, None, None] * self.A[None]


@jax.jit
@full_precision
def token_moments(
    tasks: Tasks, W: Float[Array, "M d"], probabilities: Float[Array, " probabilities"] | None = None
) -> TokenMoments:
    """The exact moments of M tasks: inputs and noise are integrated out.

    Args:
        W: [M, d] the tasks.
        probabilities: [M] of the tasks; default, all equal.

    Raises:
        ValueError: shapes that do not fit, or several outputs.
    """
    d, M = tasks.dim, len(W)
    if W.ndim != 2 or not M or W.shape[1] != d or tasks.outputs != 1:
        raise ValueError(f"W {W.shape}, {tasks.outputs} outputs: wanted [M, {d}] for at least one task, and one output")
    if probabilities is not None and probabilities.shape != (M,):
        raise ValueError(f"probabilities {probabilities.shape} for {M} tasks: wanted one for each")
    return _token_moments(tasks, W, jnp.full(M, 1 / M, W.dtype) if probabilities is None else probabilities)


def _token_moments(tasks: Tasks, W: Matrix, probabilities: Matrix) -> TokenMoments:
    """The moments in the arrays of W, JAX's or NumPy's."""
    xp, dtype = W.__array_namespace__(), W.dtype
    M, d = W.shape
    D = d + 1
    A = xp.diag(xp.asarray(tasks.input_stds, dtype=dtype))
    B = xp.concatenate([xp.broadcast_to(A, (M, d, d)), (W @ A)[:, None]], axis=1)  # without the column of the noise
    corner = xp.asarray(np.eye(D)[d] * np.eye(D)[d][:, None], dtype=dtype)
    covariance = B @ B.mT + (xp.asarray(tasks.noise, dtype=dtype) ** 2 * corner)[None]

    def mean_products(F: Matrix) -> Matrix:
        """Mean products [D, D, D, D] of features F [M, D²]."""
        return (F.T @ (probabilities[:, None] * F)).reshape(D, D, D, D)

    means = mean_products(covariance.reshape(M, -1))
    around = xp.permute_dims(means, (0, 2, 1, 3)) + xp.permute_dims(means, (0, 2, 3, 1))
    if tasks.kurtosis != 3:
        fourth = sum(mean_products((B[:, :, None, i] * B[:, None, :, i]).reshape(M, -1)) for i in range(d))
        around = around + xp.asarray(tasks.kurtosis - 3, dtype=dtype) * fourth
    Zw = xp.einsum("mab,mj->abj", covariance, probabilities[:, None] * W)
    return TokenMoments(means + around / tasks.context, Zw, W.T @ (probabilities[:, None] * W), A @ A)


def gaussian_tasks(tasks: Tasks) -> tuple[Float[np.ndarray, "M d"], Float[np.ndarray, " M"]]:
    """2d² + 1 weighted tasks with five moments of `N(0, c² I)` (McNamee 1967)."""
    d, eye = tasks.dim, np.eye(tasks.dim)
    i, j = np.triu_indices(d, 1)
    pairs = [a * eye[i] + b * eye[j] for a in (1, -1) for b in (1, -1)]
    W = 3**0.5 * np.concatenate([np.zeros((1, d)), eye, -eye, *pairs])
    return tasks.weight_scale * W, np.repeat([1 + d * (d - 7) / 18, (4 - d) / 18, 1 / 36], [1, 2 * d, 4 * len(i)])


@jax.jit
@full_precision
def heads_loss(H: Float[Array, "D D d"], moments: TokenMoments) -> Float[Array, ""]:
    """Half the mean squared error of `ŷ = Σ_abj H_abj Z_ab x_q,j`, exactly.

        ½ (tr(L E[w wᵀ]) - 2 Σ H_abi E[Z_ab w_j] L_ij + Σ H_abi E[Z_ab Z_cd] H_cdj L_ij)

    H may be any tensor, also of a trained layer (`icl.head_tensor`).
    """
    return _heads_loss(H, moments)


def _heads_loss(H: Matrix, moments: TokenMoments) -> Any:
    ZZ, Zw, ww, L = moments
    HL = H @ L
    squares = (HL.reshape(-1, len(L)) * (ZZ.reshape(len(ZZ) ** 2, -1) @ H.reshape(-1, len(L)))).sum()
    return ((L * ww).sum() - 2 * (HL * Zw).sum() + squares) / 2


@checked(lambda moments: _check_invertible(moments))
@full_precision
def all_heads_solution(moments: TokenMoments) -> Float[Array, "D D d"]:
    """The H of the best layer with any number of heads.

    Raises:
        ValueError: moments that do not determine H (a check of values, which tracers skip).

    Example:
        >>> tasks = Tasks(dim=2, context=10, noise=0.1)
        >>> moments = token_moments(tasks, jnp.eye(2))
        >>> best, one = all_heads_solution(moments), one_head_solution(moments).tensor
        >>> bool(heads_loss(best, moments) < heads_loss(one, moments))
        True
    """
    return _all_heads(moments)


def _all_heads(moments: TokenMoments) -> Any:
    ZZ, Zw, *_ = moments
    xp, D = ZZ.__array_namespace__(), len(ZZ)
    a, b = np.triu_indices(D)  # Z is symmetric
    place = np.zeros((D, D), int)
    place[a, b] = place[b, a] = np.arange(len(a))
    half = xp.asarray(np.where(a == b, 1.0, 0.5)[:, None], dtype=ZZ.dtype)
    return (half * xp.linalg.solve(ZZ[a, b][:, a, b], Zw[a, b]))[place]


@checked(after=lambda head, moments, *, sweeps=_sweeps: _check_invertible(moments), static=("sweeps",))
@full_precision
def one_head_solution(moments: TokenMoments, *, sweeps: int = _sweeps) -> Head:
    """The best single layer with one head, by alternating least squares.

        p fixed:  A = E[Z p pᵀ Z]⁻¹ E[Z p wᵀ],      A fixed:  p = E[Z A L Aᵀ Z]⁻¹ E[Z A L w]

    It starts at the p that explains most of E[Z_ab w_j], the direction in which gradient descent leaves small weights. No sweep
    raises the loss. Some random starts end in local minima; no case is known for this start.

    Raises:
        ValueError: fewer than one sweep, or moments that do not determine the head (a check that tracers skip).

    Example:
        >>> moments = token_moments(Tasks(dim=2, context=10, noise=0.1), jnp.eye(2))
        >>> head = one_head_solution(moments)
        >>> head.p.shape, head.A.shape
        ((3,), (3, 2))
    """
    if sweeps < 1:
        raise ValueError(f"{sweeps} sweeps: use at least 1")
    p, _ = lax.scan(lambda p, _: (_alternate(p, moments), None), _first_readout(moments), length=sweeps)
    return Head(p, _best_scores(p, moments))


def _first_readout(moments: TokenMoments) -> Matrix:
    flat = moments.Zw.reshape(len(moments.Zw), -1)
    return flat.__array_namespace__().linalg.eigh(flat @ flat.T)[1][:, -1]


def _best_scores(p: Matrix, moments: TokenMoments) -> Matrix:
    """The best A for a readout p."""
    xp = p.__array_namespace__()
    ZZ, Zw, *_ = moments
    return xp.linalg.solve(xp.einsum("a,abcd,c->bd", p, ZZ, p, optimize=True), xp.einsum("abj,a->bj", Zw, p))


def _alternate(p: Matrix, moments: TokenMoments) -> Matrix:
    """The best p for its best A, of norm 1: A takes the scale."""
    xp = p.__array_namespace__()
    ZZ, Zw, _, L = moments
    A = _best_scores(p, moments)
    p = xp.linalg.solve(xp.einsum("abcd,bd->ac", ZZ, A @ L @ A.T), xp.einsum("abj,bj->a", Zw, A @ L))
    return p / xp.linalg.norm(p)


def _check_invertible(moments: TokenMoments) -> None:
    """Refuse E[Z Z] of symmetric matrices that has no inverse in its precision."""
    a, b = np.triu_indices(len(moments.ZZ))
    values = np.linalg.eigvalsh(np.asarray(moments.ZZ)[a, b][:, a, b])
    if not values[0] > len(a) * np.finfo(values.dtype).eps * values[-1]:
        raise ValueError(
            "E[Z Z] cannot be inverted, as the labels follow from the inputs: give the tasks noise, more tasks, or float64"
        )


# Finitely many tasks, drawn once: w ~ U{w_1, .., w_M},    y_i = wᵀ x_i + ε_i,    w_m ~ N(0, c² I)
#
# Given the M tasks, the best prediction is the posterior mean of w, a softmax over them (*discrete MMSE*). On fresh tasks it is
# ridge regression (`icl.ridge`). A model pretrained on M tasks may become either. `diversity_curve` solves the best layer of
# linear attention, and its loss on fresh tasks, for all M at once.
#
# Source: Raventós, Paul, Chen, Ganguli 2023, Sec. 2; linear attention: Lu, Letey, Zavatone-Veth, Maiti, Pehlevan 2024.

_at_once = 100  # sequences of the Bayes-optimal predictors, which have no exact losses
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


@checked(lambda sequence, W, v: _check_noise(v))
@full_precision
def discrete_mmse(sequence: Sequence, W: Float[Array, "M d"], v: Any) -> Float[Array, " 1"]:
    """The best prediction for a task among M, all equally likely.

        ŷ = x_qᵀ Σ_m p_m w_m,    p = softmax_m(-||y - X w_m||² / (2 v))

    Args:
        W: [M, d] the tasks.
        v: variance of the noise.

    Raises:
        ValueError: shapes that do not fit, no task, or a variance that is not positive.

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
    p = jax.nn.softmax(-jnp.sum((Y - X @ W.T) ** 2, axis=0) / (2 * v))
    return ((p @ W) @ x_q)[None]


@jax.jit
def bayes_predictions(batch: Sequence, W: Float[Array, "M d"], v: Any) -> dict[str, Float[Array, "1 batch"]]:
    """The Bayes-optimal predictions: `dmmse` for tasks among M, `ridge` for fresh ones."""

    def one(sequence: Sequence) -> dict[str, Array]:
        return {"dmmse": discrete_mmse(sequence, W, v), "ridge": ridge(sequence, v)}

    return jax.tree.map(jnp.transpose, lax.map(one, sequences(batch), batch_size=_at_once))


def _check_noise(v: Any) -> None:
    if not v > 0:
        raise ValueError(f"variance {v}: use a number above 0; without noise the tasks are told apart exactly")


class LayerLosses(NamedTuple):
    """Exact half mean squared errors of a layer by the number of tasks, [numbers].

    pretraining: on these tasks; fresh: on all tasks w ~ N(0, c² I).
    """

    pretraining: Float[np.ndarray, " numbers"]
    fresh: Float[np.ndarray, " numbers"]


class DiversityCurve(NamedTuple):
    """The best single layers for the first M of some tasks, by M.

    descent: without the blocks XᵀX and yᵀy, `icl.optimal_solution`, a step of preconditioned descent.
    one_head, all_heads: the best layers with one head and with any number of heads.
    limit: the loss on fresh tasks as M grows to infinity, the same for all three.
    """

    descent: LayerLosses
    one_head: LayerLosses
    all_heads: LayerLosses
    limit: float


def diversity_curve(tasks: Tasks, W: Float[Any, "M d"], numbers: Numbers[int]) -> DiversityCurve:
    """The best single layers for the first M tasks: on the host, in float64.

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
    W, stds = np.asarray(W, np.float64), np.diag(np.array(tasks.input_stds, np.float64))
    every = _token_moments(tasks, *gaussian_tasks(tasks))
    gaussian = _exact_moments(tasks, stds, every.ww)
    found: list[list[Any]] = []
    for M in numbers:
        few = _token_moments(tasks, W[:M], np.full(M, 1 / M))
        own = _exact_moments(tasks, stds, few.ww)
        G = _solve_moments(own)[0]
        p = _first_readout(few)
        for _ in range(_sweeps):
            p = _alternate(p, few)
        one = Head(p, _best_scores(p, few)).tensor
        of_heads = [(_heads_loss(H, few), _heads_loss(H, every)) for H in (one, _all_heads(few))]
        found.append([(solution_loss(G, own), solution_loss(G, gaussian)), *of_heads])
    descent, one, many = (LayerLosses(*np.array(losses).T) for losses in zip(*found, strict=True))
    return DiversityCurve(descent, one, many, solution_loss(_solve_moments(gaussian)[0], gaussian))


def layer_losses(layer: AttentionLayer, few: FiniteTasks) -> tuple[float, float]:
    """The exact losses of a layer on fresh tasks and on M."""
    W_K, W_Q, W_V, P = (np.asarray(leaf[0], np.float64) for leaf in layer)
    H = -few.tasks.context * np.einsum("ha,hbj->abj", (P @ W_V)[:, -1], (W_K.mT @ W_Q)[:, :, :-1])
    W = np.asarray(few.weights(), np.float64)
    tasks = gaussian_tasks(few.tasks), (W, np.full(len(W), 1 / len(W)))
    fresh, own = (float(_heads_loss(H, _token_moments(few.tasks, *some))) for some in tasks)
    return fresh, own


def limiting_excess(tasks: Tasks, M: float) -> float:
    """The excess loss on fresh tasks of `icl.optimal_solution`, at large d.

        γ ∫ (f(λ) - 1/γ)² dρ(λ) / (1 - 1/γ),    f(λ) = λ / ((1 + 1/N) λ + τ),
        τ = (κ - 3 + d + v/(s c²)) / N,    γ = 1 + 1/N + τ

    in units of the loss for all tasks, with ρ the Marchenko-Pastur law, for d/M, of the eigenvalues of `(1/M) Σ_m w_m w_mᵀ`
    where c² = 1; M is any number. Source: this package, in the limit of Lu et al. 2024.
    """
    N, ratio = tasks.context, tasks.dim / M
    tau = (tasks.kurtosis - 3 + tasks.dim + tasks.noise**2 / (tasks.variance * tasks.weight_scale**2)) / N
    gamma = 1 + 1 / N + tau
    theta = (np.arange(_nodes) + 0.5) * (np.pi / _nodes)
    values = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(theta)
    density = 2 * np.sin(theta) ** 2 / (_nodes * values)  # for d > M the rest of the eigenvalues are 0, where f is 0
    f = values / ((1 + 1 / N) * values + tau)
    error = np.sum(density * (f - 1 / gamma) ** 2) + (1 - np.sum(density)) / gamma**2
    return float(gamma * error / (1 - 1 / gamma))


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
        return limiting_excess(tasks, float(np.exp(log))) / tolerance - 1

    ends = float(np.log(tasks.dim / 100)), float(np.log(1e4 * tasks.dim))
    if not tolerance > 0 or excess(ends[0]) <= 0 or excess(ends[1]) >= 0:
        raise ValueError(f"tolerance {tolerance}: use a positive number that the excess of one task exceeds, such as 0.05")
    root: Any = scipy.optimize.brentq(excess, *ends)
    return float(np.exp(root))


def crossing(numbers: Numbers[int], excess: Numbers[float] | Float[np.ndarray, " numbers"], level: float) -> float | None:
    """The number at which a falling excess finally crosses a level, log-interpolated."""
    above = [n for n, value in enumerate(excess) if value > level]
    if not above or above[-1] == len(excess) - 1:
        return None if above else float(numbers[0])
    n = above[-1]
    part = np.log(excess[n] / level) / np.log(excess[n] / max(excess[n + 1], np.finfo(float).tiny))
    return float(numbers[n] * (numbers[n + 1] / numbers[n]) ** part)

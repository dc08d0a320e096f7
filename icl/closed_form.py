"""The best single layer of linear attention in closed form, for any tasks."""

import dataclasses
from collections.abc import Sequence as Numbers
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jaxtyping import Array, Float, Int

from icl.attention import AttentionLayer, head_tensor, ridge
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


class Moments(NamedTuple):
    """The moments that the optimal layer depends on.

    L: E[x xᵀ] of the context's inputs; C: covariance of the weights; SCS: E[S C S] with `S = XᵀX/N`.
    N: pairs in the context; v: variance of the noise on their y.
    """

    L: Float[Array, "d d"]
    C: Float[Array, "d d"]
    SCS: Float[Array, "d d"]
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
    d, N = tasks.dim, tasks.context
    dtype = jnp.zeros(()).dtype if factor is None else factor.dtype
    A = jnp.diag(jnp.asarray(tasks.input_stds, dtype)) if factor is None else factor
    C = jnp.asarray(tasks.weight_scale, dtype) ** 2 * jnp.eye(d, dtype=dtype) if C is None else C
    if A.shape != (d, d) or C.shape != (d, d):
        raise ValueError(f"factor {A.shape}, C {C.shape}: wanted {(d, d)}, the inputs of the tasks")
    L, inner = A @ A.T, A.T @ C @ A
    fourth = 2 * inner + jnp.trace(inner) * jnp.eye(d, dtype=dtype) + (tasks.kurtosis - 3) * jnp.diag(jnp.diag(inner))
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
    G, A = _solve_moments(moments)
    if is_concrete(A, G) and not (bool(jnp.isfinite(G).all()) and int(jnp.linalg.matrix_rank(A)) == len(A)):
        raise ValueError(
            "E[S C S] cannot be inverted: draw more contexts, drop inputs that are 0, or scale them to the order of 1"
        )
    return G


@jax.jit
@full_precision
def _solve_moments(moments: Moments) -> tuple[Array, Array]:
    """The solution, and the matrix of its equations."""
    L, C, SCS, N, v = moments
    A = SCS + v / N * L
    return jnp.linalg.solve(A.T, (C @ L).T).T, A


@full_precision
def solution_loss(G: Float[Array, "d d"], moments: Moments, query: Float[Array, "d d"] | None = None) -> Float[Array, ""]:
    """Half the mean squared error of `ŷ = x_qᵀ G Xᵀ y / N`.

    ½ tr(L_q (C - G L C - C L Gᵀ + G (E[S C S] + (v/N) L) Gᵀ))
    """
    L, C, SCS, N, v = moments
    error = C - G @ L @ C - C @ L @ G.T + G @ (SCS + v / N * L) @ G.T
    return jnp.trace((L if query is None else query) @ error) / 2


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

    ZZ: Float[Array, "D D D D"]
    Zw: Float[Array, "D D d"]
    ww: Float[Array, "d d"]
    L: Float[Array, "d d"]


class Head(NamedTuple):
    """A head with readout p and scores A: `pᵀ Z A x_q`."""

    p: Float[Array, " D"]
    A: Float[Array, "D d"]

    @property
    def tensor(self) -> Float[Array, "D D d"]:
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
    d, N, kurtosis = tasks.dim, tasks.context, tasks.kurtosis
    if W.ndim != 2 or not len(W) or W.shape[1] != d or tasks.outputs != 1:
        raise ValueError(f"W {W.shape}, {tasks.outputs} outputs: wanted [M, {d}] for at least one task, and one output")
    M, D = len(W), d + 1
    if probabilities is None:
        probabilities = jnp.full(M, 1 / M, W.dtype)
    elif probabilities.shape != (M,):
        raise ValueError(f"probabilities {probabilities.shape} for {M} tasks: wanted one for each")
    A = jnp.diag(jnp.asarray(tasks.input_stds, W.dtype))
    B = jnp.concatenate([jnp.broadcast_to(A, (M, d, d)), (W @ A)[:, None]], axis=1)  # without the column of the noise
    covariance = (B @ B.mT).at[:, d, d].add(jnp.asarray(tasks.noise, W.dtype) ** 2)

    def mean_products(F: Array) -> Array:
        """Mean products [D, D, D, D] of features F [M, D²]."""
        return (F.T @ (probabilities[:, None] * F)).reshape(D, D, D, D)

    means = mean_products(covariance.reshape(M, -1))
    around = jnp.einsum("acbd->abcd", means) + jnp.einsum("adbc->abcd", means)
    if kurtosis != 3:
        products = jnp.einsum("mai,mbi->imab", B, B).reshape(d, M, -1)
        fourth = lax.scan(lambda total, F: (total + mean_products(F), None), jnp.zeros_like(means), products)[0]
        around = around + jnp.asarray(kurtosis - 3, W.dtype) * fourth
    Zw = jnp.einsum("mab,mj->abj", covariance, probabilities[:, None] * W)
    return TokenMoments(means + around / N, Zw, W.T @ (probabilities[:, None] * W), A @ A)


def gaussian_tasks(tasks: Tasks, *, dtype: Any = None) -> tuple[Float[Array, "M d"], Float[Array, " M"]]:
    """2d² + 1 weighted tasks with five moments of `N(0, c² I)` (McNamee 1967)."""
    d, eye = tasks.dim, np.eye(tasks.dim)
    i, j = np.triu_indices(d, 1)
    pairs = [a * eye[i] + b * eye[j] for a in (1, -1) for b in (1, -1)]
    W = 3**0.5 * np.concatenate([np.zeros((1, d)), eye, -eye, *pairs])
    probabilities = np.repeat([1 + d * (d - 7) / 18, (4 - d) / 18, 1 / 36], [1, 2 * d, 4 * len(i)])
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    return jnp.asarray(tasks.weight_scale, dtype) * jnp.asarray(W, dtype), jnp.asarray(probabilities, dtype)


@jax.jit
@full_precision
def heads_loss(H: Float[Array, "D D d"], moments: TokenMoments) -> Float[Array, ""]:
    """Half the mean squared error of `ŷ = Σ_abj H_abj Z_ab x_q,j`, exactly.

        ½ (tr(L E[w wᵀ]) - 2 Σ H_abi E[Z_ab w_j] L_ij + Σ H_abi E[Z_ab Z_cd] H_cdj L_ij)

    H may be any tensor, also of a trained layer (`icl.head_tensor`).
    """
    ZZ, Zw, ww, L = moments
    HL = H @ L
    return (jnp.sum(L * ww) - 2 * jnp.sum(HL * Zw) + jnp.einsum("abi,abcd,cdi->", HL, ZZ, H)) / 2


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
    ZZ, Zw, *_ = moments
    D = len(ZZ)
    a, b = np.triu_indices(D)  # Z is symmetric
    half = np.where(a == b, 1.0, 0.5)[:, None]
    found = jnp.asarray(half, ZZ.dtype) * jnp.linalg.solve(ZZ[a, b][:, a, b], Zw[a, b])
    return jnp.zeros(Zw.shape, ZZ.dtype).at[a, b].set(found).at[b, a].set(found)


@checked(after=lambda head, moments, *, sweeps=100: _check_invertible(moments), static=("sweeps",))
@full_precision
def one_head_solution(moments: TokenMoments, *, sweeps: int = 100) -> Head:
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
    ZZ, Zw, _, L = moments

    def scores(p: Array) -> Array:
        return jnp.linalg.solve(jnp.einsum("a,abcd,c->bd", p, ZZ, p), jnp.einsum("abj,a->bj", Zw, p))

    def sweep(p: Array, _: None) -> tuple[Array, None]:
        A = scores(p)
        p = jnp.linalg.solve(jnp.einsum("abcd,bd->ac", ZZ, A @ L @ A.T), jnp.einsum("abj,bj->a", Zw, A @ L))
        return p / jnp.linalg.norm(p), None  # A takes the scale

    flat = Zw.reshape(len(Zw), -1)
    p, _ = lax.scan(sweep, jnp.linalg.eigh(flat @ flat.T)[1][:, -1], length=sweeps)
    return Head(p, scores(p))


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
    """The number at which a falling excess finally crosses a level, log-interpolated."""
    above = [n for n, value in enumerate(excess) if value > level]
    if not above or above[-1] == len(excess) - 1:
        return None if above else float(numbers[0])
    n = above[-1]
    part = np.log(excess[n] / level) / np.log(excess[n] / max(excess[n + 1], np.finfo(float).tiny))
    return float(numbers[n] * (numbers[n + 1] / numbers[n]) ** part)

"""The optimal single layer in closed form: a ratio of moments.

One layer of linear attention predicts `ŷ = pᵀ (Σ_i e_i e_iᵀ) A x_q`. As tasks W and -W are equally likely, only the part
`ŷ = x_qᵀ G Xᵀ y / N` can lower the loss, for any number of heads; it is linear in G, so the best layer is an ordinary
least squares solution. With `S = XᵀX/N`, `L = E[x xᵀ]`, `C = Cov(w)` and noise of variance v,

    G = C L (E[S C S] + (v/N) L)⁻¹.

For independent symmetric coordinates of variance s and kurtosis κ, and C = c² I, it is one step of gradient descent with
`η = N / (s (κ + d + N - 2) + v/c²)`; for Gaussian inputs of any covariance it is the optimum of Zhang et al. 2024.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.tasks import Tasks
from jexplicit.runs.checks import is_concrete
from jexplicit.runs.devices import full_precision


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

    Args:
        tasks: the distribution; η may be optimal for another one.
        eta: η.

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
        ValueError: inputs without independent symmetric coordinates, or matrices that are not [d, d].

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

    The query's covariance cancels. `icl.models.constructions.descent_layers(.., 1.0, preconditioner=G.T)` are its weights.

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

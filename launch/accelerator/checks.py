"""Results of an accelerator compared with NumPy loops, integers and float64.

Each check returns the greatest difference and how much of it is allowed. A product that is rounded to
TF32 is off by more than 1e-4. What a check needs is imported by it: where a package is missing, the others still run.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from launch.accelerator.texts import draw_stream


def apart(ours: object, theirs: object) -> float:
    """The greatest difference of two arrays of one shape."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else float("inf")


def pairs_by_scatter() -> tuple[float, float]:
    """Counts of pairs, two tokens back, equal a loop's counts."""
    from jexplicit.counts.dense import count
    from jexplicit.runs.devices import data_mesh

    x, N = draw_stream(300, 20), 20
    counted = np.zeros((2, N, N), int)
    for k in (1, 2):
        for m in range(1, len(x)):
            j = x[m - k] if m >= k and x[m - k : m].all() else 0  # `<pad>` once a nearer token is one
            counted[k - 1, j, x[m]] += 1
    return apart(count(x, radius=2, vocab_size=N, mesh=data_mesh(1)), counted), 0


def pairs_by_segment_sum() -> tuple[float, float]:
    """Features summed by label, small whole numbers, equal NumPy's sums."""
    from jexplicit.solvers.explicit import dense_cooccurrence

    rng = np.random.default_rng(0)
    H, labels = rng.integers(0, 256, (200, 12)), rng.integers(0, 7, 200)
    F = dense_cooccurrence(jnp.asarray(H, jnp.float32), jnp.asarray(labels, jnp.int32), 7)
    return apart(F, H.T @ np.eye(7, dtype=int)[labels]), 0


def closed_form() -> tuple[float, float]:
    """`explicit_solution` of counts: ten roundings of logarithms below 10, in float32."""
    from jexplicit.solvers.explicit import explicit_solution

    F = np.random.default_rng(0).integers(1, 1000, (50, 20)).astype(np.float32)
    return apart(explicit_solution(jnp.asarray(F), 4.0), np.log(F) - 3 / 4 * np.log(F.sum(axis=0, dtype=float))), 1e-5


def sweep_of_images() -> tuple[float, float]:
    """One sweep with a bound on the curvature, from small weights, beside float64."""
    from jexplicit.solvers.curvature_bound import curvature_bound_sweep, curvature_problem

    rng = np.random.default_rng(0)
    H, Y, U = rng.normal(size=(64, 12)), np.eye(5)[rng.integers(0, 5, 64)], rng.normal(size=(12, 5)) / 4
    problem = curvature_problem(*(jnp.asarray(Z, jnp.float32) for Z in (H, Y)), 1e-4)
    swept, _ = curvature_bound_sweep(jnp.asarray(U, jnp.float32), problem)
    A, P = H.T @ H / len(H), np.exp(H @ U)
    penalty = 1e-4 * np.trace(A) / len(A)
    ascent = H.T @ (Y - P / P.sum(axis=1, keepdims=True)) / len(H) - penalty * U
    return apart(swept, U + 2 * np.linalg.solve(A + 2 * penalty * np.eye(len(A)), ascent)), 1e-5


def least_squares() -> tuple[float, float]:
    """Ridge regression's prediction beside NumPy's least squares of the examples and the penalty's rows."""
    from icl.descent import ridge
    from icl.tasks import Sequence

    X, Y, x = (np.random.default_rng(n).normal(size=size) for n, size in enumerate([(20, 5), (20, 1), (5,)]))
    ours = ridge(Sequence(*(jnp.asarray(Z, jnp.float32) for Z in (X, Y, x, Y[0]))), 0.1)
    W = np.linalg.lstsq(np.vstack([X, 0.1**0.5 * np.eye(5)]), np.vstack([Y, np.zeros((5, 1))]), rcond=None)[0]
    return apart(ours, W.T @ x), 1e-5


def ngrams_of_tokens() -> tuple[float, float]:
    """Probabilities of the n-gram model sum to 1 in every context."""
    from jexplicit.data.contexts import contexts
    from jexplicit.lm.core.model import LanguageModel
    from jexplicit.lm.rows import smoothed_ngrams

    N = 20
    X, Y = contexts(draw_stream(300, N), 2)
    model = LanguageModel(smoothed_ngrams(X, Y, vocab_size=N), "none")
    X, outputs = np.repeat(X[:8], N, axis=0), np.tile(np.arange(N), 8)
    log_p = model.rows.target_logits(X, outputs)
    return apart(np.exp(log_p).reshape(8, N).sum(axis=1), np.ones(8)), 2e-5


def adagrad_steps() -> tuple[float, float]:
    """Two steps of Adagrad at rate 0.1, compared with float64 loops."""
    from jexplicit.lm.fits.gradient import initial_state, make_batch, training_step
    from jexplicit.nn.optimizers import adagrad
    from jexplicit.runs.devices import data_mesh

    N, rng, mesh = 12, np.random.default_rng(0), data_mesh(1)
    U, X, Y = rng.normal(size=(2, N, N)), rng.integers(0, N, (2, 40, 2)), rng.integers(0, N, (2, 40))
    step = training_step(adagrad(0.1), features="cat", noise=None, mesh=mesh)
    state, squares = initial_state(tuple(jnp.asarray(table, jnp.float32) for table in U), adagrad(0.1), mesh), np.zeros_like(U)
    for x, y in zip(X, Y, strict=True):
        state, _ = step(state, make_batch(x, y, features="cat", size=40))
        G = np.zeros_like(U)
        for (i, j), target in zip(x, y, strict=True):
            p = np.exp(U[0, i] + U[1, j])
            G[[0, 1], [i, j]] += p / p.sum() - np.eye(N)[target]
        squares += G**2
        U = U - 0.1 * G / np.sqrt(squares + 1e-30)
    return apart(jnp.stack(state.params), U), 1e-5


def linear_attention_gradient() -> tuple[float, float]:
    """The loss of linear attention and a slope, compared with float64."""
    from icl.attention import Regression, init_layers
    from icl.tasks import Tasks

    problem, rng = Regression(Tasks(dim=3, context=8)), np.random.default_rng(0)
    batch = problem.sample(jax.random.key(0), 16, jnp.float32)
    layer = jax.tree.map(lambda W: (W / 3).astype(jnp.float32), init_layers(jax.random.key(1), 4, scale=1.0))
    loss, gradient = jax.jit(jax.value_and_grad(problem.loss))(layer, batch)
    W, directions = ([np.asarray(leaf, float) for leaf in layer], [rng.normal(size=leaf.shape) for leaf in layer])
    X, Y, x_q, y_q = (np.asarray(part, float) for part in batch)

    def loss_of(h: float) -> float:
        (W_K, W_Q, W_V, P), total = ((w + h * d)[0, 0] for w, d in zip(W, directions, strict=True)), 0.0
        for b in range(16):
            E, e = np.hstack([X[..., b], Y[..., b]]), np.append(x_q[:, b], 0)
            total += float((-(P @ W_V @ E.T @ (E @ W_K.T @ W_Q @ e))[3] - y_q[0, b]) ** 2) / 32
        return total

    slope = sum(np.sum(np.asarray(g, float) * d) for g, d in zip(gradient, directions, strict=True))
    differences = (loss_of(1e-5) - loss_of(-1e-5)) / 2e-5
    return max(apart(loss, loss_of(0)) / loss_of(0), apart(slope / differences, 1)), 1e-5


Check = Callable[[], tuple[float, float]]
CHECKS: tuple[Check, ...] = (
    *(pairs_by_scatter, pairs_by_segment_sum, closed_form, sweep_of_images, least_squares),
    *(ngrams_of_tokens, adagrad_steps, linear_attention_gradient),
)

"""Finitely many tasks: moments, best layers, losses and Bayes optima, against loops and simulation."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import LAWS, ones_of, task, within_error

from icl import Tasks, closed_form, descent_layers, predict, predict_batch
from icl.attention import AttentionLayer, head_layer, head_tensor
from icl.closed_form import gaussian_tasks
from icl.diversity import FiniteTasks, crossing, discrete_mmse, diversity_curve, diversity_threshold, limiting_excess
from icl.tasks import Sequence

# compiled whole, which takes less time than compiling every operation
token_moments, heads_loss = closed_form.token_moments, closed_form.heads_loss
optimum = jax.jit(lambda *args, **more: closed_form.optimal_solution(closed_form.exact_moments(*args, **more)))
optimal_loss = jax.jit(lambda G, *args, **more: closed_form.solution_loss(G, closed_form.exact_moments(*args, **more)))
sample = jax.jit(lambda tasks, key, number: tasks.sample(key, number), static_argnums=(0, 2))
TASKS = Tasks(dim=3, context=4, inputs="normal", input_range=12**0.5, noise=0.5)


@functools.cache
def weights() -> np.ndarray:
    """Five tasks, [5, 3]."""
    return np.asarray(FiniteTasks(TASKS, 5).weights())


@functools.cache
def few(tasks: Tasks = TASKS, number: int = 5):
    """The moments of these tasks."""
    return token_moments(tasks, jax.device_put(weights()[:number]))


@functools.cache
def every(tasks: Tasks = TASKS):
    """The moments of all tasks."""
    return token_moments(tasks, *gaussian_tasks(tasks))


@jax.jit
def solutions(moments):
    """The tensors of the best layers with any number of heads and with one, and the one head."""
    head = closed_form.one_head_solution(moments)
    return closed_form.all_heads_solution(moments), head.tensor, head


@pytest.fixture(scope="module")
def own() -> Sequence:
    """100,000 sequences of the five tasks."""
    return sample(FiniteTasks(TASKS, 5), jax.random.key(1), 100_000)


@pytest.fixture(scope="module")
def fresh() -> Sequence:
    """As many, each of a task of its own."""
    return task(8, 3, 4, 1, (100_000,), inputs="normal", input_range=12**0.5, noise=0.5)


def first(batch: Sequence, number: int) -> Sequence:
    return Sequence(*(jax.device_put(np.asarray(leaf)[..., :number]) for leaf in batch))


def tensor_of(G) -> np.ndarray:
    """The tensor of `ŷ = x_qᵀ G Xᵀ y / N`."""
    H = np.zeros((len(G) + 1, len(G) + 1, len(G)))
    H[-1, :-1] = np.asarray(G).T
    return H


def token_products(batch: Any) -> np.ndarray:
    """Z of every task, [B, D, D]."""
    E = np.concatenate([np.asarray(batch.X), np.asarray(batch.Y)], axis=1)
    return np.einsum("nab,ncb->bac", E, E) / len(E)


def simulated_losses(H, batch: Sequence) -> np.ndarray:
    y = np.einsum("abj,Bab,jB->B", np.asarray(H), token_products(batch), np.asarray(batch.x_q), optimize=True)
    return (y - np.asarray(batch.y_q)[0]) ** 2 / 2


def loss_of(H, moments) -> float:
    return float(heads_loss(jax.device_put(H), moments))


# Finitely many tasks and the Bayes optimum


def test_sequences_are_of_the_tasks_and_more_tasks_have_the_fewer(own):
    W = weights()
    np.testing.assert_array_equal(FiniteTasks(TASKS, 2).weights(), W[:2])
    quiet = FiniteTasks(Tasks(dim=3, context=4, weight_scale=2.0), 5)
    np.testing.assert_array_equal(quiet.weights(), 2 * W)
    X, Y, x_q, y_q = map(np.asarray, sample(quiet, jax.random.key(1), 3000))
    found = (np.linalg.pinv(np.moveaxis(X, -1, 0)) @ np.moveaxis(Y, -1, 0))[..., 0]
    distances = np.linalg.norm(found[:, None] - 2 * W, axis=2)
    assert distances.min(axis=1).max() < 1e-6  # contexts without noise; the worst-conditioned of 3000 loses some digits
    shares = np.bincount(distances.argmin(axis=1), minlength=5) / 3000
    np.testing.assert_allclose(shares, 0.2, atol=4 * np.sqrt(0.16 / 3000))  # four standard errors
    np.testing.assert_allclose(y_q[0], np.sum(found.T * x_q, axis=0), atol=1e-6)
    y = np.asarray(own.Y)[:, 0]  # E[y²] = mean |w|² + v; relative error of a variance sqrt(2 / 400,000), times four and some
    assert np.mean(y**2) == pytest.approx(np.mean(np.sum(W**2, axis=1)) + 0.25, rel=0.02)


def posterior_loop(sequence: Sequence, W: np.ndarray, v: float) -> float:
    """The posterior mean by a loop over tasks and pairs."""
    weights, answers = [], []
    for w in W:
        likelihood = 1.0
        for x, y in zip(np.asarray(sequence.X), np.asarray(sequence.Y)[:, 0], strict=True):
            likelihood *= np.exp(-((y - sum(a * b for a, b in zip(w, x, strict=True))) ** 2) / (2 * v))
        weights.append(likelihood)
        answers.append(float(np.dot(w, sequence.x_q)))
    return float(np.average(answers, weights=weights))


def test_discrete_mmse_is_the_posterior_mean_whatever_the_block(own):
    some, W = first(own, 6), weights()

    @jax.jit
    @functools.partial(jax.vmap, in_axes=-1)
    def ours(one):
        return [discrete_mmse(one, jax.device_put(W), 0.25, block=block)[0] for block in (1, 2, 3, 5, 100)]

    expected = [posterior_loop(one, W, 0.25) for one in ones_of(some)]
    for found in ours(some):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_discrete_mmse_in_float32_survives_exponents_of_thousands():
    rng = np.random.default_rng(0)
    many = (30 * rng.normal(size=(3000, 3))).astype(np.float32)
    X, x_q = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    one = Sequence(*map(jax.device_put, (X, (X @ many[2500])[:, None], x_q, many[2500:2501] @ x_q)))

    @jax.jit
    @jax.value_and_grad
    def mean(x_q):
        return discrete_mmse(one._replace(x_q=x_q), jax.device_put(many), jnp.float32(0.01))[0]

    found, slope = mean(one.x_q)
    assert found.dtype == np.float32 and float(found) == pytest.approx(float(many[2500] @ x_q), rel=1e-5)
    np.testing.assert_allclose(slope, many[2500], rtol=1e-5)


# Moments


@pytest.mark.parametrize("inputs", ["normal", "uniform", "laplace"])
def test_moments_are_those_of_samples(inputs):
    tasks = Tasks(dim=3, context=4, inputs=inputs, input_range=12**0.5, noise=0.5, scales=(1.0, 0.5, 1.5))
    rng, found = np.random.default_rng(6), few(tasks)
    X, x_q = (np.array(tasks.scales)[:, None] * LAWS[inputs](rng, (*n, 3, 100_000)) for n in ((4,), ()))
    w = weights()[rng.integers(0, 5, 100_000)].T
    Y = np.einsum("ndB,dB->nB", X, w) + 0.5 * rng.normal(size=(4, 100_000))
    E = np.concatenate([X, Y[:, None]], axis=1)
    Z = np.einsum("naB,ncB->Bac", E, E, optimize=True) / 4
    y_q = np.sum(w * x_q, axis=0)  # E[Z y_q x_q] = E[Z w] L
    for products, expected in (
        (np.einsum("Bab,Bcd->Babcd", Z, Z), found.ZZ),  # 256 numbers, 55 of them different
        (np.einsum("Bab,jB,B->Babj", Z, x_q, y_q), np.asarray(found.Zw) @ np.asarray(found.L)),
    ):
        error = products.std(axis=0) / np.sqrt(len(Z))
        assert (abs(products.mean(axis=0) - np.asarray(expected).reshape(error.shape)) < 4.5 * error).all()


@pytest.mark.parametrize("dim", [1, 3])
def test_weighted_tasks_have_the_moments_of_a_gaussian(dim):
    points, p = map(np.asarray, gaussian_tasks(Tasks(dim=dim, weight_scale=2.0)))
    points = points / 2
    for order in range(6):
        for at in itertools.combinations_with_replacement(range(dim), order):
            powers = np.bincount(np.array(at, int), minlength=dim)
            # E[x^k] is 0 for odd k, and 1, 1, 3 for k = 0, 2, 4
            expected = 0 if (powers % 2).any() else np.prod(np.where(powers == 4, 3, 1))
            assert float(p @ np.prod(points**powers, axis=1)) == pytest.approx(expected, abs=1e-12)


# The best layers


slope_of = jax.jit(jax.grad(closed_form.heads_loss))


def test_without_the_other_blocks_losses_and_optimum_are_those_of_the_closed_form():
    C, G = weights().T @ weights() / 5, np.random.default_rng(1).normal(size=(3, 3))
    for tasks in (TASKS, Tasks(dim=3, context=4, noise=0.2, scales=(1.0, 0.5, 2.0))):
        assert loss_of(tensor_of(G), few(tasks)) == pytest.approx(float(optimal_loss(G, tasks, C=C)), rel=1e-12)
        slope = np.asarray(slope_of(tensor_of(optimum(tasks, C=C)), few(tasks)))
        np.testing.assert_allclose(slope[-1, :-1], np.zeros((3, 3)), atol=1e-12)


@pytest.mark.parametrize("inputs", ["normal", "uniform"])
def test_for_all_tasks_every_family_has_the_optimum_of_gaussian_tasks(inputs):
    tasks = Tasks(dim=3, context=4, inputs=inputs, weight_scale=1.5, noise=0.5, scales=(1.0, 0.5, 2.0))
    G = optimum(tasks)
    symmetric = (tensor_of(G) + tensor_of(G).swapaxes(0, 1)) / 2
    many, one, _ = solutions(every(tasks))
    # solved in float64 from a system of condition 1e3 to 1e4
    np.testing.assert_allclose(many, symmetric, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(one, tensor_of(G), rtol=1e-9, atol=1e-10)
    assert loss_of(symmetric, every(tasks)) == pytest.approx(float(optimal_loss(G, tasks)), rel=1e-12)


def test_losses_are_those_of_simulation_on_the_tasks_and_on_fresh_ones(own, fresh):
    for H in (*solutions(few())[:2], 0.1 * np.random.default_rng(2).normal(size=(4, 4, 3))):
        assert within_error(simulated_losses(H, own), loss_of(H, few()))
        assert within_error(simulated_losses(H, fresh), loss_of(H, every()))


@jax.jit
@jax.value_and_grad
def loss_of_head(head, moments):
    return heads_loss(head[0][:, None, None] * head[1][None], moments)


def test_no_layer_near_the_best_is_better():
    H, tensor, head = solutions(few())
    best = [loss_of(T, few()) for T in (H, tensor, tensor_of(optimum(TASKS, C=weights().T @ weights() / 5)))]
    assert best[0] < best[1] < best[2]  # each family has the next
    np.testing.assert_allclose(slope_of(H, few()), np.zeros(H.shape), atol=1e-12)
    for part in loss_of_head(tuple(head), few())[1]:
        np.testing.assert_allclose(part, np.zeros(part.shape), atol=1e-5)  # where alternating steps have come in 100 sweeps


def test_tensors_are_layers_of_attention(fresh):
    _, tensor, head = solutions(few())
    layer, batch = head_layer(head.p, head.A, TASKS.context), first(fresh, 4)
    y = np.einsum("abj,Bab,jB->B", tensor, token_products(batch), batch.x_q)
    np.testing.assert_allclose(np.asarray(predict_batch(layer, batch))[0], y, rtol=1e-12)
    np.testing.assert_allclose(head_tensor(layer, TASKS.context), tensor, rtol=1e-12)
    G = np.random.default_rng(4).normal(size=(3, 3))
    descent = descent_layers(3, 4, 1.0, preconditioner=jax.device_put(G.T))
    np.testing.assert_allclose(head_tensor(descent, 4), tensor_of(G), atol=1e-14)
    several = AttentionLayer(*map(jax.device_put, np.random.default_rng(11).normal(size=(4, 1, 3, 4, 4)) / 2))
    H, one = np.asarray(head_tensor(several, 4)), ones_of(batch)[0]
    expected = np.einsum("abj,ab,j->", H, token_products(batch)[0], one.x_q)
    assert float(np.asarray(predict(several, one))[0]) == pytest.approx(float(expected), rel=1e-12)


# Curves over M


def test_a_curve_is_the_solution_for_each_number_of_tasks():
    W, numbers = weights(), [1, 3, 5]
    curve = diversity_curve(TASKS, jax.device_put(W), numbers)
    for n, M in enumerate(numbers):
        moments = few(number=M)
        many, one, _ = solutions(moments)
        for name, H in (("one_head", one), ("all_heads", many)):
            losses = getattr(curve, name)
            assert float(losses.pretraining[n]) == pytest.approx(loss_of(H, moments), rel=1e-9)
            if M > 1:  # for one task many heads are best, and they differ on fresh ones
                assert float(losses.fresh[n]) == pytest.approx(loss_of(H, every()), rel=1e-6)
        G = optimum(TASKS, C=W[:M].T @ W[:M] / M)
        assert float(curve.descent.fresh[n]) == pytest.approx(loss_of(tensor_of(G), every()), rel=1e-9)
    assert float(curve.limit) == pytest.approx(float(optimal_loss(optimum(TASKS), TASKS)), rel=1e-12)


def test_the_limit_of_large_d_is_met_at_some_size():
    tasks = Tasks(dim=40, context=40, inputs="uniform", input_range=3.0, weight_scale=0.5, noise=0.4)
    best = float(optimal_loss(optimum(tasks), tasks))
    for M in (10, 40, 200):
        draws = (0.5 * np.random.default_rng(seed).normal(size=(M, 40)) for seed in range(8))
        layers = [optimum(tasks, C=some.T @ some / M) for some in draws]
        excess = np.mean([float(optimal_loss(G, tasks)) for G in layers]) / best - 1
        # corrections of order 1/d; the mean of 8 draws is within 1 %
        assert excess == pytest.approx(float(limiting_excess(tasks, M)), rel=2.5 / 40)


def test_the_threshold_is_where_the_limit_has_the_tolerance_and_grows_with_d():
    tasks = [Tasks(dim=d, context=d, inputs="normal", input_range=12**0.5, noise=0.5) for d in (10, 1000, 2000)]
    found = [diversity_threshold(one) for one in tasks]
    for one, M in zip(tasks, found, strict=True):
        assert float(limiting_excess(one, M)) == pytest.approx(0.05, rel=1e-9)
    assert found[2] / found[1] == pytest.approx(2, rel=1e-2)  # the noise and the 1/N of γ matter less and less


def test_crossings_are_interpolated():
    assert crossing([1, 10, 100], [1.0, 0.1, 0.01], 0.03) == pytest.approx(10 / 0.3, rel=1e-12)  # 1/M
    assert crossing([2, 4], [0.01, 0.02], 0.1) == 2.0 and crossing([2, 4], [1.0, 0.2], 0.1) is None
    assert crossing([1, 2, 4, 8], [1.0, 0.05, 0.2, 0.05], 0.1) == pytest.approx(4 * 2**0.5, rel=1e-12)  # the last one

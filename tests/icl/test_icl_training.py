"""Training and comparison: the step by hand, blocks, seeds, devices, resuming, measures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interruption import resumed_after

from icl import (
    Recipe,
    Regression,
    Sequence,
    Tasks,
    descent_layers,
    difference,
    head_maps,
    init_layers,
    interpolate,
    predict,
    predictions,
    sample_tasks,
)
from icl.problems.comparison import (
    condition_numbers,
    curvature_after_step,
    descent_rates,
    path_losses,
    sweep_loss,
)
from icl.solvers.closed_form import optimal_rate
from icl.solvers.descent import gd_plus_plus, gradient_descent
from icl.tasks import sequences, vmap_tasks
from icl.training import blocked_gradient, train_layers

TASKS, RECIPE = Tasks(dim=2, context=3), Recipe(batch_size=24)
PROBLEM = Regression(TASKS, depth=2)


def start(seeds: int):
    layers = [init_layers(jax.random.key(n), 3, scale=0.1) for n in range(seeds)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def summary(params):
    return {"sum": np.asarray(jnp.sum(params.P, axis=(1, 2, 3, 4))).tolist()}


@pytest.fixture(scope="module")
def trained():
    """An uninterrupted run of three seeds that the other runs are compared with."""
    return train_layers(start(3), PROBLEM, RECIPE, steps=7, seeds=[0, 1, 2], every=3, evaluate=summary, devices=2)


def test_blocks_of_a_batch_give_the_gradient_of_the_batch():
    layers, batch = init_layers(jax.random.key(0), 3, scale=0.5), sample_tasks(jax.random.key(1), TASKS, 24)
    whole = jax.jit(jax.value_and_grad(PROBLEM.loss))(layers, batch)
    ours = jax.jit(lambda p: blocked_gradient(p, batch, PROBLEM.loss, block=8))(layers)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)  # float64 sums of 24 terms


def test_the_first_step_is_adam_s_by_hand(trained):
    """Whose first step is `rate * g / (|g| + eps)`, of the clipped gradient."""
    key = jax.random.fold_in(jax.random.key(1), 0)
    params = jax.tree.map(lambda leaf: leaf[1], start(3))
    batch = sample_tasks(key, TASKS, 24)
    loss, g = jax.jit(jax.value_and_grad(lambda p: PROBLEM.loss(p, batch)))(params)
    assert trained.losses[1, 0] == pytest.approx(float(loss), rel=1e-6)
    norm = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in g))
    one = train_layers(start(3), PROBLEM, RECIPE, steps=1, seeds=[0, 1, 2], devices=2)
    for before, after, slope in zip(params, one.params, g, strict=True):
        clipped = np.asarray(slope) * min(1, 1e-3 / norm)
        np.testing.assert_allclose(after[1], before - 1e-3 * clipped / (np.abs(clipped) + 1e-8), rtol=1e-6, atol=1e-9)


@dataclasses.dataclass(frozen=True)
class Slope:
    """A loss of slope 1 everywhere, for which an update of Adam is its learning rate."""

    def sample(self, key, size, dtype=None):
        return jnp.zeros((1, size), dtype)

    def loss(self, params, batch):
        return params + jnp.mean(batch)


@pytest.mark.parametrize(
    "cooling, rate",
    [
        ("constant", lambda n: 1.0),
        ("linear", lambda n: 1 - n / 7),
        ("cosine", lambda n: (1 + np.cos(np.pi * n / 7)) / 2),
    ],
)
def test_the_learning_rate_follows_its_schedule_from_the_first_step_to_the_last(cooling, rate, tmp_path):
    recipe = Recipe(batch_size=1, learning_rate=0.1, cooling=cooling)
    run = functools.partial(train_layers, jnp.zeros(1), Slope(), recipe, steps=7, seeds=[0], every=2, devices=1)
    losses = np.append(run().losses[0], run(checkpoints=tmp_path).params)  # before each step, and after the last
    np.testing.assert_allclose(-np.diff(losses), [0.1 * rate(n) for n in range(7)], rtol=1e-4, atol=1e-7)  # ε of Adam, float32


def test_a_seed_s_run_does_not_depend_on_the_others_nor_on_the_devices(trained):
    seeds = [2, 1]  # of three on two devices
    params = jax.tree.map(lambda leaf: leaf[jnp.array(seeds)], start(3))
    alone = train_layers(params, PROBLEM, RECIPE, steps=7, seeds=seeds, every=3, devices=1)
    for n, seed in enumerate(seeds):
        np.testing.assert_array_equal(alone.losses[n], trained.losses[seed])
        np.testing.assert_array_equal(alone.params.P[n], trained.params.P[seed])


def test_a_process_splits_the_seeds_over_its_own_devices_not_over_those_of_other_hosts(monkeypatch):
    own, seeds = jax.devices(), list(range(9))  # more than the 8 devices of this process
    monkeypatch.setattr(jax, "devices", lambda *_: own * 2)  # as on a slice of two hosts
    assert train_layers(start(9), PROBLEM, RECIPE, steps=1, seeds=seeds).losses.shape == (9, 1)


def test_an_interrupted_run_resumes_bit_for_bit(trained, tmp_path):
    run = functools.partial(train_layers, start(3), PROBLEM, RECIPE, steps=7, seeds=[0, 1, 2], every=3, devices=2)
    resumed = resumed_after(2, functools.partial(run, evaluate=summary), tmp_path)
    for a, b in zip(jax.tree.leaves(resumed[::2]), jax.tree.leaves(trained[::2]), strict=True):
        np.testing.assert_array_equal(a, b)
    histories = [[{**entry, "seconds": 0, "cpu_seconds": 0} for entry in one.history] for one in (resumed, trained)]
    assert histories[0] == histories[1] and [entry["step"] for entry in resumed.history] == [0, 3, 6, 7]


def test_the_history_has_the_losses_of_training_since_the_entry_before(trained):
    assert "training_loss" not in trained.history[0]
    for entry, steps in zip(trained.history[1:], (slice(0, 3), slice(3, 6), slice(6, 7)), strict=True):
        np.testing.assert_allclose(entry["training_loss"], trained.losses[:, steps].mean(axis=1), rtol=1e-6)


def test_training_reaches_the_closed_form():
    """d = 2, N = 3: a warm start stays, a cold one arrives."""
    one, recipe = Regression(TASKS), Recipe(batch_size=512, learning_rate=3e-3)
    cold = train_layers(start(1), one, recipe, steps=800, seeds=[0], every=200)
    layer = descent_layers(2, 3, optimal_rate(TASKS))
    warm = train_layers(jax.tree.map(lambda leaf: leaf[None], layer), one, recipe, steps=200, seeds=[0], every=200)
    batch = sample_tasks(jax.random.key(5), TASKS, 20_000)
    loss_of = jax.jit(one.loss)
    best = float(loss_of(layer, batch))
    for run in (cold, warm):
        loss = float(loss_of(jax.tree.map(lambda leaf: leaf[0], run.params), batch))
        assert best - 1e-4 * best < loss < 1.005 * best  # paired; Adam's noise


def test_a_loss_that_is_not_finite_ends_training():
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, start(3))
    with pytest.raises(FloatingPointError, match="seed 4 at step 0.*learning rate"):
        train_layers(bad, PROBLEM, RECIPE, steps=3, seeds=[4, 5, 6], devices=2)


def told(model, batch):
    """The predictions of a model of one sequence."""
    return jax.jit(lambda batch: predictions(vmap_tasks(model), batch))(batch)


def test_sensitivities_are_the_weights_that_descent_finds():
    tasks = Tasks(dim=3, context=5, outputs=2)
    batch = sample_tasks(jax.random.key(0), tasks, 6)
    said = told(lambda s: gradient_descent(s, 0.7)[-1], batch)
    for n, one in enumerate(zip(*sequences(batch), strict=True)):
        one = Sequence(*one)
        W = 0.7 / 5 * np.asarray(one.Y).T @ np.asarray(one.X)
        np.testing.assert_allclose(said.sensitivity[:, :, n], W, rtol=1e-12)
        np.testing.assert_allclose(said.y[:, n], W @ one.x_q, rtol=1e-12)
        assert said.loss[n] == pytest.approx(float(jnp.sum((W @ one.x_q - one.y_q) ** 2)) / 2, rel=1e-12)


def test_differences_are_their_definitions():
    batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 40)
    a, b = (told(lambda s, e=e: gd_plus_plus(s, e, 0.5, steps=2)[-1], batch) for e in (1.0, 4.0))
    apart = difference(a, b)
    g, h = np.asarray(a.sensitivity)[0].T, np.asarray(b.sensitivity)[0].T
    cosines = [x @ z / np.linalg.norm(x) / np.linalg.norm(z) for x, z in zip(g, h, strict=True)]
    assert float(apart.cosine) == pytest.approx(np.mean(cosines), abs=1e-6)  # 1e-8 is added to norms of order 0.1
    assert float(apart.model_difference) == pytest.approx(np.mean(np.linalg.norm(g - h, axis=1)), rel=1e-12)
    assert float(apart.prediction_difference) == pytest.approx(np.mean(np.abs(np.asarray(a.y - b.y))), rel=1e-12)
    same = difference(a, a)
    assert float(same.cosine) == pytest.approx(1, abs=1e-6) and float(same.prediction_difference) == 0


def test_interpolation_is_half_way_between_the_maps_whatever_their_scale():
    trained, constructed = init_layers(jax.random.key(0), 4, scale=1.0), descent_layers(3, 5, 0.7)
    (M, R), (M_gd, R_gd) = head_maps(trained), head_maps(constructed)
    b = float(jnp.mean(jnp.diagonal(M[0, 0])[:3]))
    M_mean, R_mean = head_maps(interpolate(trained, constructed, dim=3))
    np.testing.assert_allclose(M_mean, (M / b + M_gd) / 2, rtol=1e-12)
    np.testing.assert_allclose(R_mean, (R * b + R_gd) / 2, rtol=1e-12)
    scaled = trained._replace(W_K=trained.W_K / 7, P=trained.P * 7)
    one = sample_tasks(jax.random.key(1), Tasks(dim=3, context=5))
    mixed = (predict(interpolate(layers, constructed, dim=3), one) for layers in (trained, scaled))
    np.testing.assert_allclose(*mixed, rtol=1e-10)


def assert_same_maps(ours, theirs):
    """Equal up to the scales that change nothing, to rounding in float64."""
    for a, b in zip(head_maps(ours), head_maps(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_layers_of_their_own_are_interpolated_each_with_its_own_scale():
    trained = init_layers(jax.random.key(0), 4, layers=3, scale=1.0)
    constructed = descent_layers(3, 5, np.array([0.7, 0.4, 0.2]), gamma=np.array([0.1, 0.2, 0.0]))
    mean = interpolate(trained, constructed, dim=3)
    for n in range(3):
        one, other, apart = (jax.tree.map(lambda leaf, n=n: leaf[n][None], layers) for layers in (trained, constructed, mean))
        assert_same_maps(apart, interpolate(one, other, dim=3))
    factors = jnp.array([5.0, -0.3, 2.0])[:, None, None, None]  # which change nothing that the layers do
    assert_same_maps(
        interpolate(trained._replace(W_Q=trained.W_Q * factors, W_V=trained.W_V / factors), constructed, dim=3), mean
    )
    itself = interpolate(constructed._replace(W_Q=constructed.W_Q * factors, P=constructed.P / factors), constructed, dim=3)
    assert_same_maps(itself, constructed)


def test_rates_are_read_back_from_scaled_weights():
    layer = jax.tree.map(lambda leaf: leaf[0], descent_layers(3, 5, 0.7, gamma=0.2))
    rates = jax.jit(descent_rates, static_argnames=("dim", "context"))
    eta, gamma = rates(layer._replace(W_Q=4 * layer.W_Q, W_V=layer.W_V / 4), dim=3, context=5)
    assert (float(eta), float(gamma)) == pytest.approx((0.7, 0.2))


def test_a_sweep_over_weight_scales_is_a_square_and_compiles_once():
    traces = 0

    def half(scale, batch):
        nonlocal traces
        traces += 1
        return scale * batch.y_q

    loss = sweep_loss(jax.random.key(0), half, 100)
    one, two, three = (float(loss(jnp.array(0.5), Tasks(weight_scale=c))) for c in (1.0, 2.0, 3.0))
    assert (two / one, three / one) == pytest.approx((4, 9)) and traces == 1


def test_paths_are_means_over_tasks():
    batch = sample_tasks(jax.random.key(0), TASKS, 5)
    ours = jax.jit(lambda batch: path_losses(lambda s: gradient_descent(s, 1.0, steps=3), batch))(batch)
    said = told(lambda s: gradient_descent(s, 1.0, steps=3)[-1], batch)
    assert ours.shape == (3,) and float(ours[-1]) == pytest.approx(float(said.loss.mean()), rel=1e-12)


def test_gd_plus_plus_turns_the_eigenvalues_of_the_context():
    one = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5))
    G = np.asarray(one.X.T @ one.X)
    turned = np.asarray(one.X) @ (np.eye(3) - 0.3 * G)
    values = curvature_after_step(np.linalg.eigvalsh(G), 0.3)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(turned.T @ turned), rtol=1e-10)
    assert condition_numbers(np.linalg.eigvalsh(G)[None])[0] == pytest.approx(np.linalg.cond(G), rel=1e-8)

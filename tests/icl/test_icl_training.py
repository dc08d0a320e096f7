"""Training and comparison: the step by hand, blocks, seeds, devices, resuming, measures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, ones_of, task
from interruption import resumed_after
from reference import descent_step

from icl import Recipe, Regression, Tasks, descent_layers, difference, interpolate, predictions, sample_tasks
from icl.attention import AttentionLayer
from icl.descent import descent_rates, gradient_descent
from icl.tasks import vmap_tasks
from icl.training import blocked_gradient, train_layers

TASKS, RECIPE = Tasks(dim=2, context=3), Recipe(batch_size=24)
PROBLEM = Regression(TASKS, depth=2)


def random_layers(seed: int, width: int, *stack: int, scale: float = 0.1) -> AttentionLayer:
    """Weights of variance scale / width, one head."""
    weights = np.random.default_rng(seed).normal(size=(4, *stack, 1, width, width)) * (scale / width) ** 0.5
    return AttentionLayer(*map(jax.device_put, weights))


def start(seeds: int) -> AttentionLayer:
    return random_layers(0, 3, seeds, 1)


def summary(params):
    return {"sum": np.sum(np.asarray(params.P), axis=(1, 2, 3, 4)).tolist()}


@pytest.fixture(scope="module")
def trained():
    """An uninterrupted run of three seeds that the other runs are compared with."""
    return train_layers(start(3), PROBLEM, RECIPE, steps=7, seeds=[0, 1, 2], every=3, evaluate=summary, devices=2)


def test_blocks_of_a_batch_give_the_gradient_of_the_batch():
    layers, batch = random_layers(0, 3, 1, scale=0.5), task(1, 2, 3, 1, (24,))

    @jax.jit
    def found(layers, batch):
        return blocked_gradient(layers, batch, PROBLEM.loss, block=8), jax.value_and_grad(PROBLEM.loss)(layers, batch)

    for a, b in zip(*map(jax.tree.leaves, found(layers, batch)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)  # float64 sums of 24 terms


def test_the_first_step_is_adam_s_by_hand_and_the_next_has_tasks_of_its_own(trained):
    """Whose first step is `rate * g / (|g| + eps)`, of the clipped gradient."""
    first, second = (sample_tasks(jax.random.fold_in(jax.random.key(1), n), TASKS, 24) for n in (0, 1))
    params = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[1]), start(3))
    gradient = jax.jit(jax.value_and_grad(PROBLEM.loss))
    loss, g = gradient(params, first)
    assert trained.losses[1, 0] == pytest.approx(float(loss), rel=1e-6)
    norm = np.sqrt(sum(np.sum(np.asarray(leaf) ** 2) for leaf in g))
    one = train_layers(start(3), PROBLEM, RECIPE, steps=1, seeds=[0, 1, 2], devices=2)
    for before, after, slope in zip(params, one.params, g, strict=True):
        clipped = np.asarray(slope) * min(1, 1e-3 / norm)
        np.testing.assert_allclose(
            np.asarray(after)[1], np.asarray(before) - 1e-3 * clipped / (np.abs(clipped) + 1e-8), rtol=1e-6, atol=1e-9
        )
    after = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[1]), one.params)
    assert trained.losses[1, 1] == pytest.approx(float(gradient(after, second)[0]), rel=1e-6)


@dataclasses.dataclass(frozen=True)
class Slope:
    """A loss of slope 1 everywhere, for which an update of Adam is its learning rate."""

    def sample(self, key, size, dtype=None):
        return jnp.zeros((1, size), dtype)

    def loss(self, params, batch):
        return params + jnp.mean(batch)


@pytest.mark.parametrize(
    "cooling, rate",
    [("constant", lambda n: 1.0), ("linear", lambda n: 1 - n / 7), ("cosine", lambda n: (1 + np.cos(np.pi * n / 7)) / 2)],
)
def test_the_learning_rate_follows_its_schedule_from_the_first_step_to_the_last(cooling, rate, tmp_path):
    recipe = Recipe(batch_size=1, learning_rate=0.1, cooling=cooling)
    run = functools.partial(train_layers, np.zeros(1), Slope(), recipe, steps=7, seeds=[0], every=2, devices=1)
    trained = run(checkpoints=tmp_path)
    losses = np.append(trained.losses[0], trained.params)  # before each step, and after the last
    np.testing.assert_allclose(-np.diff(losses), [0.1 * rate(n) for n in range(7)], rtol=1e-4, atol=1e-7)  # ε of Adam, float32


def test_a_seed_s_run_does_not_depend_on_the_others_nor_on_the_devices(trained):
    seeds = [2, 1]  # of three on two devices
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[seeds], start(3))
    alone = train_layers(params, PROBLEM, RECIPE, steps=7, seeds=seeds, every=3, devices=1)
    np.testing.assert_array_equal(alone.losses, trained.losses[seeds])
    np.testing.assert_array_equal(alone.params.P, np.asarray(trained.params.P)[seeds])


def test_a_process_splits_the_seeds_over_its_own_devices_not_over_those_of_other_hosts(monkeypatch):
    own, seeds = jax.devices(), list(range(9))  # more than the 8 devices of this process
    monkeypatch.setattr(jax, "devices", lambda *_: own * 2)  # as on a slice of two hosts
    trained = train_layers(np.zeros(9), Slope(), RECIPE, steps=1, seeds=seeds)
    np.testing.assert_array_equal(trained.losses, np.zeros((9, 1)))


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


def test_a_loss_that_is_not_finite_ends_training():
    bad = jax.tree.map(lambda leaf: np.nan * np.asarray(leaf), start(3))
    with pytest.raises(FloatingPointError, match="seed 4 at step 0.*learning rate"):
        train_layers(bad, PROBLEM, RECIPE, steps=3, seeds=[4, 5, 6], devices=2)


BATCH = functools.cache(lambda: task(0, 3, 5, 2, (6,)))
# compiled whole, which takes less time than compiling every operation
descended = jax.jit(lambda batch, eta: predictions(vmap_tasks(lambda s: gradient_descent(s, eta, steps=3)[-1]), batch))


def descent_loop(n: int, eta: float) -> list[np.ndarray]:
    """W after 1, 2, 3 steps on task n."""
    X, Y, _ = arrays(ones_of(BATCH())[n])
    Ws = [np.zeros((2, 3))]
    for _ in range(3):
        Ws.append(descent_step(Ws[-1], X, Y, eta))
    return Ws[1:]


def test_sensitivities_are_the_weights_that_descent_finds():
    said = jax.tree.map(np.asarray, descended(BATCH(), 0.7))
    for n, one in enumerate(ones_of(BATCH())):
        Ws, x_q, y_q = descent_loop(n, 0.7), np.asarray(one.x_q), np.asarray(one.y_q)
        np.testing.assert_allclose(said.sensitivity[:, :, n], Ws[-1], rtol=1e-12)
        np.testing.assert_allclose(said.y[:, n], Ws[-1] @ x_q, rtol=1e-12)
        assert said.loss[n] == pytest.approx(np.sum((Ws[-1] @ x_q - y_q) ** 2) / 2, rel=1e-12)


def test_differences_are_their_definitions():
    a, b = (descended(BATCH(), eta) for eta in (0.2, 0.7))
    apart, same = difference(a, b), difference(a, a)
    g, h = (np.array([descent_loop(n, eta)[-1] for n in range(6)]) for eta in (0.2, 0.7))  # [task, output, input]
    norms = np.linalg.norm(g, axis=2) * np.linalg.norm(h, axis=2)
    assert float(apart.cosine) == pytest.approx(np.mean((g * h).sum(axis=2) / norms), abs=1e-6)  # 1e-8 is added to norms
    assert float(apart.model_difference) == pytest.approx(np.mean(np.linalg.norm(g - h, axis=2)), rel=1e-12)
    expected = np.mean(np.abs(np.asarray(a.y) - np.asarray(b.y)))
    assert float(apart.prediction_difference) == pytest.approx(expected, rel=1e-12)
    assert float(same.cosine) == pytest.approx(1, abs=1e-6) and float(same.prediction_difference) == 0


def maps_of(layers: AttentionLayer) -> tuple[np.ndarray, np.ndarray]:
    """M and R of a stack of layers of one head."""
    W_K, W_Q, W_V, P = (np.asarray(leaf)[:, 0] for leaf in layers)
    return W_K.swapaxes(1, 2) @ W_Q, P @ W_V


def test_interpolation_is_half_way_between_the_maps_each_layer_with_its_own_scale():
    trained = random_layers(0, 4, 3, scale=1.0)
    constructed = descent_layers(3, 5, np.array([0.7, 0.4, 0.2]), gamma=np.array([0.1, 0.2, 0.0]))
    mean = maps_of(interpolate(trained, constructed, dim=3))
    (M, R), (M_gd, R_gd) = maps_of(trained), maps_of(constructed)
    b = np.trace(M[:, :3, :3], axis1=1, axis2=2)[:, None, None] / 3
    np.testing.assert_allclose(mean[0], (M / b + M_gd) / 2, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mean[1], (R * b + R_gd) / 2, rtol=1e-12, atol=1e-15)
    factors = np.array([5.0, -0.3, 2.0])[:, None, None, None]  # which change nothing that the layers do

    def scaled(layers: AttentionLayer) -> AttentionLayer:
        W_K, W_Q, W_V, P = map(np.asarray, layers)
        return AttentionLayer(*map(jax.device_put, (W_K, W_Q * factors, W_V, P / factors)))

    itself = interpolate(scaled(constructed), constructed, dim=3)
    for ours, theirs in ((interpolate(scaled(trained), constructed, dim=3), mean), (itself, maps_of(constructed))):
        for a, b in zip(maps_of(ours), theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_rates_are_read_back_from_scaled_weights():
    W_K, W_Q, W_V, P = (np.asarray(leaf)[0] for leaf in descent_layers(3, 5, 0.7, gamma=0.2))
    scaled = AttentionLayer(*map(jax.device_put, (W_K, 4 * W_Q, W_V / 4, P)))
    eta, gamma = jax.jit(descent_rates, static_argnames=("dim", "context"))(scaled, dim=3, context=5)
    assert (float(eta), float(gamma)) == pytest.approx((0.7, 0.2))

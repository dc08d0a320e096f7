"""Tasks, attention, descent and training: distributions, loops, constructions, invariances, devices, resumption, refusals."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from drawn import arrays, heads_of, ones_of, random_layers, task, two_classes
from interruption import resumed_after
from reference import attention_layer, descent_step
from reference import gd_plus_plus as gd_plus_plus_loop
from sklearn.linear_model import Ridge
from tables import refuse

import icl
from icl import Recipe, Regression, attention, blur, descent_layers, difference, gd_plus_plus, gradient_descent
from icl.attention import AttentionLayer, interpolate, predict, predict_batch, predictions, squared_error
from icl.blur.baselines import select_tasks, task_sets
from icl.blur.learning import resize_images
from icl.blur.rules import forward
from icl.closed_form import all_heads_solution
from icl.problems import Chains, copying_tokens, induction_model
from icl.rates import Spectrum, least_loss
from icl.recurrences import Stream
from icl.tasks import KURTOSIS, Sequence, Tasks, contract, sample_tasks, sequences, tokens, vmap_tasks
from icl.training import blocked_gradient, train_layers
from jexplicit.data.images import read_images

# compiled whole, which takes less time than compiling every operation
ridge = jax.jit(attention.ridge)
EXACT: Any = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a few hundred terms of order 1


def drawn(seed: int, tasks: Tasks, *batch: int) -> Sequence:
    return jax.tree.map(np.asarray, sample_tasks(jax.random.key(seed), tasks, *batch))


def picked(tree: Any, at: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[at]), tree)


@pytest.mark.parametrize("inputs", sorted(KURTOSIS))
def test_inputs_weights_and_noise_have_their_moments(inputs):
    tasks = Tasks(dim=5, context=9, outputs=2, inputs=inputs, input_range=2.0, weight_scale=0.5, noise=0.5)
    batch = drawn(0, tasks, 20_000)
    x, n = batch.X, batch.X.size
    # 900,000 draws: the variance is off by some sqrt((kurtosis - 1) / n) = 0.25 % of itself at most
    assert x.mean() == pytest.approx(0, abs=4 * np.sqrt(tasks.variance / n))
    assert x.var() == pytest.approx(tasks.variance, rel=4 * np.sqrt((KURTOSIS[inputs] - 1) / n))
    # the fourth moment of a Laplace law is off by sqrt(E[x^8] / n) / E[x^4] = 0.9 %
    assert np.mean(x**4) / x.var() ** 2 == pytest.approx(KURTOSIS[inputs], rel=0.04)
    clean = 5 * tasks.variance * 0.25  # E[y_q²] = d s c²; the context's y have the noise's variance too
    assert [np.mean(batch.y_q**2), np.mean(batch.Y**2)] == pytest.approx([clean, clean + 0.25], rel=0.03)
    if inputs == "uniform":
        assert 0.999 < x.max() <= 1 and -1 <= batch.x_q.min() < -0.999


def test_answers_are_linear_in_the_inputs_of_one_task_and_a_batch_is_many_of_them():
    one, many = (drawn(2, Tasks(dim=3, context=20, outputs=2), *batch) for batch in ((), (4,)))
    for X, Y, x_q, y_q in (one, *ones_of(many)):
        W = np.linalg.lstsq(X, Y, rcond=None)[0].T
        np.testing.assert_allclose(X @ W.T, Y, atol=1e-12)
        np.testing.assert_allclose(W @ x_q, y_q, atol=1e-12)
    assert len({float(value) for value in many.y_q[0]}) == 4
    by_task = sequences(Sequence(*map(jax.device_put, many)))
    chex.assert_trees_all_equal(by_task, jax.tree.map(lambda leaf: np.moveaxis(leaf, -1, 0), many))


# Layers that are given, and those that perform descent


@pytest.mark.parametrize("context", [6, 7])  # tokens of 6 coordinates: sums come in another order past 6
@pytest.mark.parametrize("softmax", [False, True])
def test_a_stack_is_the_loop_of_the_paper(context, softmax):
    batch = task(context=context, batch=(3,))
    for layers in (1, 2):
        weights = random_layers(1, 6, layers, 2)
        ours = np.asarray(predict_batch(weights, batch, depth=2, softmax=softmax))
        for number, one in enumerate(ones := ones_of(batch)):
            E = np.asarray(tokens(one))
            for n in range(2):
                E = attention_layer(E, heads_of(weights, min(n, layers - 1)), softmax_of_scores=softmax)
            np.testing.assert_allclose(ours[:, number], -E[-1, 4:], **EXACT)
        np.testing.assert_allclose(predict(weights, ones[-1], depth=2, softmax=softmax), ours[:, -1], **EXACT)


def test_softmax_layers_are_linear_ones_on_keys_that_are_centred():
    """Layers of GD++ by a loop over tokens; a tenth of the sharpness is a hundredth of the difference."""
    linear = descent_layers(4, 6, np.array([0.7, 1.5]), gamma=np.array([0.1, 0.3]), outputs=2)
    batch, expected = task(batch=(4,)), []
    for one in ones_of(batch):
        E = np.asarray(tokens(one))
        for k in range(2):
            ((W_K, W_Q, W_V, P),) = heads_of(linear, k)
            keys, values = E[:-1] @ W_K.T, E[:-1] @ W_V.T
            E = E + (E @ W_Q.T) @ (keys - keys.mean(axis=0)).T @ values @ P.T
        expected.append(-E[-1, 4:])

    @jax.jit
    def answers(sharpness):
        return predict_batch(attention.softmax_layers(linear, 6, sharpness=sharpness), batch, softmax=True)

    far, near = (np.abs(answers(np.array([0.01, 0.02]) * by) - np.transpose(expected)).max() for by in (1, 0.1))
    assert far < 1e-4 and near == pytest.approx(far / 100, rel=0.05)


@pytest.mark.parametrize(("dim", "outputs", "context"), [(1, 1, 1), (4, 2, 6)])
def test_layers_are_steps_of_gradient_descent(dim, outputs, context):
    one = task(3, dim, context, outputs)
    X, Y, x_q = arrays(one)
    etas, tied = np.array([0.5, 0.9, 0.2]), descent_layers(dim, context, 0.3, outputs=outputs)
    for start in (np.random.default_rng(9).normal(size=(outputs, dim)), np.zeros((outputs, dim))):
        W, given = start, jax.device_put(start)
        path = np.asarray(gradient_descent(one, etas, steps=3, W0=given))
        for n, eta in enumerate(etas):
            W = descent_step(W, X, Y, eta)
            np.testing.assert_allclose(path[n], W @ x_q, **EXACT)
        layers = descent_layers(dim, context, etas, W0=given)
        np.testing.assert_allclose(predict(layers, one, W0=given), W @ x_q, **EXACT)
        slope = np.asarray(jax.grad(squared_error)(given, one.X, one.Y))
        np.testing.assert_allclose(start - 0.3 * slope, descent_step(start, X, Y, 0.3), **EXACT)
    for _ in range(4):
        start = descent_step(start, X, Y, 0.3)
    np.testing.assert_allclose(predict(tied, one, depth=4), start @ x_q, **EXACT)


def test_gd_plus_plus_is_the_loop_and_its_layers():
    one, etas, gamma = task(5), np.array([0.5, 0.8, 0.3]), np.array([0.02, 0.05, 0.9])
    expected = gd_plus_plus_loop(*arrays(one), etas.tolist(), gamma.tolist())
    for last in (0.9, -7.0):  # which has no effect
        found = gd_plus_plus(one, etas, np.array([0.02, 0.05, last]), steps=3)
        np.testing.assert_allclose(np.asarray(found)[-1], expected, **EXACT)
    layers = descent_layers(4, 6, etas, gamma=gamma, outputs=2)
    np.testing.assert_allclose(predict(layers, one), expected, **EXACT)


def test_preconditioned_descent_is_its_layer():
    one, G = task(6), np.random.default_rng(1).normal(size=(4, 4))
    X, Y, x_q = arrays(one)
    W, more = np.zeros((2, 4)), {"preconditioner": jax.device_put(G)}
    for _ in range(3):
        W = W + (descent_step(W, X, Y, 0.4) - W) @ G
    layer = descent_layers(4, 6, 0.4, outputs=2, **more)
    for ours in (gradient_descent(one, 0.4, steps=3, **more)[-1], predict(layer, one, depth=3)):
        np.testing.assert_allclose(ours, W @ x_q, **EXACT)
    assert np.abs(predict(layer, one, depth=3, clip=0.1)).max() <= 0.1 < np.abs(W @ x_q).max()


def test_ridge_meets_least_squares_and_descent_that_has_converged():
    one = task(7)
    X, Y, x_q = arrays(one)
    W = np.linalg.lstsq(X, Y, rcond=None)[0].T
    np.testing.assert_allclose(ridge(one, 0.0), W @ x_q, **EXACT)
    np.testing.assert_allclose(np.asarray(gradient_descent(one, 1.5, steps=3000))[-1], W @ x_q, atol=1e-9)
    fitted = Ridge(alpha=0.7, fit_intercept=False).fit(X, Y)
    np.testing.assert_allclose(ridge(one, 0.7), fitted.predict(x_q[None])[0], **EXACT)


# Training

TASKS, RECIPE = Tasks(dim=2, context=3), Recipe(batch_size=24)
PROBLEM = Regression(TASKS, depth=2)


def start(seeds: int) -> AttentionLayer:
    return random_layers(0, 3, seeds, 1, 1, scale=0.1)


def summary(params):
    return {"sum": np.sum(np.asarray(params.P), axis=(1, 2, 3, 4)).tolist()}


@pytest.fixture(scope="module")
def trained():
    """An uninterrupted run of three seeds that the other runs are compared with."""
    return train_layers(start(3), PROBLEM, RECIPE, steps=7, seeds=[0, 1, 2], every=3, evaluate=summary, devices=2)


def test_blocks_of_a_batch_give_the_gradient_of_the_batch():
    layers, batch = random_layers(0, 3, 1, 1), task(1, 2, 3, 1, (24,))
    ours = jax.jit(functools.partial(blocked_gradient, loss=PROBLEM.loss, block=8))(layers, batch)
    theirs = jax.jit(jax.value_and_grad(PROBLEM.loss))(layers, batch)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-10, atol=1e-14)  # float64 sums of 24 terms


def test_the_first_step_is_adam_s_by_hand_and_the_next_has_tasks_of_its_own(trained):
    """`rate * g / (|g| + eps)`, of the clipped gradient."""
    first, second = (sample_tasks(jax.random.fold_in(jax.random.key(1), n), TASKS, 24) for n in (0, 1))
    gradient, params = jax.jit(jax.value_and_grad(PROBLEM.loss)), picked(start(3), 1)
    loss, g = gradient(params, first)
    norm = np.sqrt(sum(np.sum(np.asarray(leaf) ** 2) for leaf in g))
    one = picked(train_layers(start(3), PROBLEM, RECIPE, steps=1, seeds=[0, 1, 2], devices=2).params, 1)
    for before, after, slope in zip(params, one, g, strict=True):
        clipped = np.asarray(slope) * min(1, 1e-3 / norm)
        by_hand = np.asarray(before) - 1e-3 * clipped / (np.abs(clipped) + 1e-8)
        np.testing.assert_allclose(after, by_hand, rtol=1e-6, atol=1e-9)
    assert trained.losses[1, :2] == pytest.approx([float(loss), float(gradient(one, second)[0])], rel=1e-6)


@dataclasses.dataclass(frozen=True)
class Slope:
    """A loss of slope 1 everywhere, for which an update of Adam is its learning rate."""

    def sample(self, key, size, dtype=None):
        return jnp.zeros((1, size), dtype)

    def loss(self, params, batch):
        return params + jnp.mean(batch)


def test_the_learning_rate_follows_its_schedule_from_the_first_step_to_the_last():
    recipe = Recipe(batch_size=1, learning_rate=0.1, cooling="cosine")
    trained = train_layers(np.zeros(1), Slope(), recipe, steps=7, seeds=[0], every=2, devices=1)
    losses = np.append(trained.losses[0], trained.params)  # before each step, and after the last
    rates = [0.05 * (1 + np.cos(np.pi * n / 7)) for n in range(7)]
    np.testing.assert_allclose(-np.diff(losses), rates, rtol=1e-4, atol=1e-7)  # ε of Adam, float32


def test_a_seed_s_run_does_not_depend_on_the_others_nor_on_the_devices_nor_on_the_evaluations(trained):
    seeds = [2, 1]  # of three on two devices
    alone = train_layers(picked(start(3), seeds), PROBLEM, RECIPE, steps=7, seeds=seeds, every=7, devices=1)
    np.testing.assert_array_equal(alone.losses, trained.losses[seeds])
    np.testing.assert_array_equal(alone.params.P, np.asarray(trained.params.P)[seeds])


def test_a_process_splits_the_seeds_over_its_own_devices_not_over_those_of_other_hosts(monkeypatch):
    own = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: own * 2)  # as on a slice of two hosts; 9 seeds, and 8 devices here
    trained = train_layers(np.zeros(9), Slope(), RECIPE, steps=1, seeds=list(range(9)))
    np.testing.assert_array_equal(trained.losses, np.zeros((9, 1)))


def test_an_interrupted_run_resumes_bit_for_bit_and_its_history_has_the_losses_since_the_entry_before(trained, tmp_path):
    run = functools.partial(train_layers, start(3), PROBLEM, RECIPE, steps=7, seeds=[0, 1, 2], every=3, devices=2)
    resumed = resumed_after(2, functools.partial(run, evaluate=summary), tmp_path)
    chex.assert_trees_all_equal(resumed[::2], trained[::2])
    histories = [[{**entry, "seconds": 0, "cpu_seconds": 0} for entry in one.history] for one in (resumed, trained)]
    assert histories[0] == histories[1] and [entry["step"] for entry in resumed.history] == [0, 3, 6, 7]
    assert "training_loss" not in trained.history[0]
    for entry, steps in zip(trained.history[1:], (slice(0, 3), slice(3, 6), slice(6, 7)), strict=True):
        np.testing.assert_allclose(entry["training_loss"], trained.losses[:, steps].mean(axis=1), rtol=1e-6)


def test_a_loss_that_is_not_finite_ends_training():
    with pytest.raises(FloatingPointError, match="seed 4 at step 0.*learning rate"):
        train_layers(np.array([0.0, np.nan]), Slope(), RECIPE, steps=3, seeds=[3, 4], devices=1)


# Comparison of predictors


def test_differences_of_predictors_are_their_definitions_and_sensitivities_the_weights_that_descent_finds():
    batch = task(0, 3, 5, 2, (6,))
    found = jax.jit(lambda eta: predictions(vmap_tasks(lambda s: gradient_descent(s, eta, steps=3)[-1]), batch))
    a, b = map(found, (0.2, 0.7))
    weights = []
    for eta, said in ((0.2, a), (0.7, b)):
        Ws = [np.zeros((2, 3))] * 6
        for n, one in enumerate(ones_of(batch)):
            X, Y, x_q = arrays(one)
            for _ in range(3):
                Ws[n] = descent_step(Ws[n], X, Y, eta)
            np.testing.assert_allclose(said.y[:, n], Ws[n] @ x_q, rtol=1e-12)
            assert said.loss[n] == pytest.approx(np.sum((Ws[n] @ x_q - np.asarray(one.y_q)) ** 2) / 2, rel=1e-12)
        np.testing.assert_allclose(said.sensitivity, np.stack(Ws, axis=-1), rtol=1e-12)
        weights.append(np.stack(Ws))  # [task, output, input]
    (g, h), apart = weights, difference(a, b)
    norms = np.linalg.norm(g, axis=2) * np.linalg.norm(h, axis=2)
    assert float(apart.cosine) == pytest.approx(np.mean((g * h).sum(axis=2) / norms), abs=1e-6)  # 1e-8 is added to norms
    assert float(apart.model_difference) == pytest.approx(np.mean(np.linalg.norm(g - h, axis=2)), rel=1e-12)
    expected = np.mean(np.abs(np.asarray(a.y) - np.asarray(b.y)))
    assert float(apart.prediction_difference) == pytest.approx(expected, rel=1e-12)


def maps_of(layers: AttentionLayer) -> tuple[np.ndarray, np.ndarray]:
    """M and R of a stack of layers of one head."""
    W_K, W_Q, W_V, P = (np.asarray(leaf)[:, 0] for leaf in layers)
    return W_K.swapaxes(1, 2) @ W_Q, P @ W_V


def test_interpolation_is_half_way_between_the_maps_each_layer_with_its_own_scale():
    trained, factors = random_layers(0, 4, 3, 1, scale=1.0), np.array([5.0, -0.3, 2.0])[:, None, None, None]
    constructed = descent_layers(3, 5, np.array([0.7, 0.4, 0.2]), gamma=np.array([0.1, 0.2, 0.0]))
    (M, R), (M_gd, R_gd) = maps_of(trained), maps_of(constructed)
    b = np.trace(M[:, :3, :3], axis1=1, axis2=2)[:, None, None] / 3
    for one, expected in ((trained, ((M / b + M_gd) / 2, (R * b + R_gd) / 2)), (constructed, (M_gd, R_gd))):
        scaled = one._replace(W_Q=one.W_Q * factors, P=one.P / factors)  # which does the same
        chex.assert_trees_all_close(maps_of(interpolate(scaled, constructed, dim=3)), expected, rtol=1e-12, atol=1e-15)
    rates = jax.jit(attention.descent_rates, static_argnames=("dim", "context"))
    eta, gamma = rates(picked(scaled, 0), dim=3, context=5)
    assert (float(eta), float(gamma)) == pytest.approx((0.7, 0.1))


# What functions of icl refuse, and how accelerators run them


def filled(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Parameters of the shapes that a function draws from a key, in NumPy's numbers."""
    shapes, rng = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0)), np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(rng.normal(size=leaf.shape) / 2, leaf.dtype)), shapes)


def refusals() -> list[tuple[str, Callable[[], Any]]]:
    """Parts of messages, and the calls."""
    KEY, device, traced = jax.random.key(0), jax.device_put, jax.eval_shape
    TASKS, PLAIN = icl.Tasks(dim=3, context=5, outputs=2), icl.Tasks(dim=3, context=5)
    BATCH, ONE, SINGLE = filled(icl.sample_tasks, TASKS, 4), filled(icl.sample_tasks, TASKS), filled(icl.sample_tasks, PLAIN)
    LAYERS, PAIR = filled(icl.init_layers, 5), filled(icl.init_layers, 5, layers=2)
    W, FIRST = device(np.ones((5, 3))), np.ones((2, 4))
    STREAM = K, V, Q = Stream(*(device(np.ones((23, n))) for n in (4, 2, 4)))
    REGRESSION, RECIPE = icl.Regression(icl.Tasks(dim=2, context=3)), icl.Recipe(batch_size=24)
    STARTS = filled(lambda key: jax.vmap(lambda key: icl.init_layers(key, 3))(jax.random.split(key)))
    RULES, GENOME, DATA = blur.Rules(states=2), filled(blur.random_genome, 2), two_classes()
    GENOMES = jax.tree.map(lambda leaf: device(np.asarray(leaf)[None]), GENOME)
    SYNAPSES, (x, _) = filled(blur.init_synapses, GENOME, RULES, (3, 4, 2)), map(device, two_classes(5))
    META, TEN = blur.MetaRecipe(hidden=(4,), batch_size=6, query_size=8), two_classes(10)
    CURVE = functools.partial(blur.learning_curves, GENOME, RULES, (5,), DATA, DATA, steps=6, batch_size=8, seeds=(0,))
    mesa, nothing = functools.partial(icl.mesa_conjugate_gradients, STREAM, 1.0), Spectrum(np.ones(0), np.ones(0), 1.0)
    return [
        ("'cauchy'.*uniform", lambda: icl.Tasks(inputs=cast(Any, "cauchy"))),
        ("give one for each", lambda: icl.Tasks(dim=3, scales=(1.0,))),
        ("jax.vmap", lambda: icl.tokens(BATCH)),
        (r"W0 \(1, 4\)", lambda: icl.tokens(ONE, np.zeros((1, 4)))),
        # attention and descent
        ("depth 3 of 2 layers", lambda: icl.predict(PAIR, ONE, depth=3)),
        (r"X \(5, 3\): wanted \[N, d, batch\].*icl.predict", lambda: icl.predict_batch(LAYERS, ONE)),
        ("a batch of type NoneType: give icl.sample_tasks", lambda: icl.predict_batch(LAYERS, cast(Any, None))),
        ("give one rate", lambda: icl.descent_layers(4, 6, np.ones(2), gamma=np.ones(3))),
        ("start from zero", lambda: icl.descent_layers(4, 6, 0.1, gamma=0.1, W0=cast(Any, FIRST))),
        ("dim 0", lambda: icl.descent_layers(0, 6, 0.1)),
        ("2 steps, eta", lambda: icl.gd_plus_plus(ONE, np.ones(3), 0.1, steps=2)),
        ("width 2.5, .*use whole numbers", lambda: icl.init_layers(KEY, cast(Any, 2.5))),
        # training and comparison
        ("parameters of 2 seeds", lambda: icl.train_layers(STARTS, REGRESSION, RECIPE, steps=1, seeds=[0])),
        ("one head", lambda: icl.interpolate(filled(icl.init_layers, 4, heads=2), filled(icl.init_layers, 4), dim=3)),
        # solvers
        (r"X \(0, 3, 2\)", lambda: icl.sampled_moments(device(np.zeros((0, 3, 2))))),
        ("without noise", lambda: least_loss(nothing, icl.Tasks(noise=0.1), 2)),
        ("0 eigenvalues", lambda: icl.optimal_polynomials(nothing, icl.Tasks(), layers=2, tied=True)),
        ("bound 0", lambda: icl.chebyshev_rates(0.0, 10, 2)),
        # finitely many tasks
        ("2 outputs", lambda: icl.FiniteTasks(TASKS, 3)),
        ("variance 0.0", lambda: icl.discrete_mmse(SINGLE, W, 0.0)),
        (r"probabilities \(0,\)", lambda: icl.token_moments(icl.Tasks(dim=3), W, np.ones(0))),
        ("from 1 to 5", lambda: icl.diversity_curve(icl.Tasks(dim=3, noise=0.5), W, [6])),
        ("tolerance 0.0", lambda: icl.diversity_threshold(icl.Tasks(dim=3, noise=0.5), tolerance=0.0)),
        ("wanted a stack of one layer", lambda: icl.head_tensor(filled(icl.init_layers, 4, layers=2), 4)),
        # other problems
        ("2 outputs", lambda: copying_tokens(ONE)),
        ("1 states, length 64", lambda: Chains(states=1)),
        *((f"alpha {alpha}", lambda alpha=alpha: Chains(alpha=alpha)) for alpha in cast(Any, (0.0, 1e-40, "1"))),
        (r"shape \(2,\) for 3 states", lambda: traced(lambda: induction_model(3, 4, np.ones(2)))),
        # streams and their layers
        ("noise 0.0", lambda: icl.Streams(noise=0.0)),
        ("variances .* of 2 inputs", lambda: icl.Streams(dim=2, variances=(1.0,))),
        ("memory 0.9", lambda: icl.ridge_losses(icl.Streams(memory=0.9))),
        *(
            (r"K \(.*wanted \[T, d\]", functools.partial(icl.linear_attention, bad))
            for bad in (Stream(K[:5], V, Q), Stream(K, V, Q[:, :2]), Stream(K[None], V, Q), Stream(K[:0], V[:0], Q[:0]))
        ),
        *(("at most 1", lambda gamma=gamma: mesa(steps=1, forgetting=gamma)) for gamma in (0.0, 1.1, float("nan"))),
        *(("use numbers above 0", functools.partial(icl.mesa_recursion, STREAM, bad)) for bad in (0.0, -np.ones(4))),
        (r"penalty \(3,\) for keys of 4", lambda: icl.mesa_recursion(STREAM, np.ones(3))),
        ("0 steps", lambda: mesa(steps=0)),
        # update rules
        ("1 states.*at least 2", lambda: blur.Rules(states=1)),
        ("average with synapse_norm", lambda: blur.Rules(average=True, synapse_norm=True)),
        ("genome of 2 states, and rules of 4", lambda: forward(GENOME, blur.Rules(states=4), SYNAPSES, x)),
        (r"targets \(5, 1\)", lambda: traced(lambda y: blur.learn(GENOME, RULES, SYNAPSES, x, y), np.ones((5, 1)))),
        ("cross_entropy of tanh outputs", lambda: blur.sgd_rules("tanh", "cross_entropy", output="tanh")),
        ("batches of 9 out of 8", lambda: blur.minibatches(0, 8, steps=1, batch_size=9)),
        *(("ascending numbers from 0 to 6", functools.partial(CURVE, at=at)) for at in ((), (1, 0), (0, 7))),
        ("no learning rates", lambda: blur.descent_curves("sgd", (), (5,), DATA, DATA, normalised=False, steps=1)),
        ("8 queries and batches of 6", lambda: blur.meta_train(GENOMES, RULES, META, (blur.Stage(2, 4),), TEN, TEN)),
        (r"stages \[\(0, 4\)\]", lambda: blur.meta_train(GENOMES, RULES, META, (blur.Stage(0, 4),), DATA, DATA)),
        ("neither a file nor one of boolean, digits", lambda: blur.learner("nothing")),
        ("28 x 28 to a side of 30", lambda: resize_images(np.ones((1, 28, 28)), 30)),
        ("classes 3 of digits: use at least two of 0 .. 9", lambda: blur.image_sets(read_images("digits"), classes=(3,))),
        ("tasks whine: choose some of mnist@7.*iris", lambda: select_tasks(["iris", "whine"])),
        ("tasks on MNIST: .*leave them out, and name the other tasks: iris moons", lambda: task_sets("mnist@7")),
        ("data 'mnist@8': choose one of mnist@7", lambda: task_sets("mnist@8")),
    ]


def test_values_that_have_no_answer_are_refused():
    quiet = icl.token_moments(icl.Tasks(dim=3, context=4), jax.device_put(np.ones((1, 3))))
    nothing = jax.jit(icl.sampled_moments)(np.zeros((2, 3, 2)))
    rows: list[tuple[str, Callable[[], Any]]] = [
        ("above 0", lambda: induction_model(3, 4, -1.0)),
        ("sharpness 0", lambda: icl.softmax_layers(icl.descent_layers(3, 5, 0.7), 5, sharpness=0.0)),
        ("cannot be inverted", lambda: icl.optimal_solution(nothing)),
        ("cannot be inverted", lambda: all_heads_solution(quiet)),
        ("cannot be inverted", lambda: icl.one_head_solution(quiet)),
        ("tolerance 100.0", lambda: icl.diversity_threshold(icl.Tasks(dim=3, noise=0.5), tolerance=100.0)),
    ]
    refuse(rows, of_values=True)
    unchecked = jax.jit(lambda X: icl.optimal_solution(icl.sampled_moments(X)))(np.zeros((2, 3, 2)))
    assert not jnp.isfinite(unchecked).all()  # under jit nothing can be refused


def test_what_does_not_fit_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    refuse(refusals())


def test_contractions_are_products_of_matrices_and_so_is_their_gradient_as_accelerators_compute_them_too(elsewhere):
    A, B, G = (np.random.default_rng(0).normal(size=shape) for shape in ((7, 3, 5), (7, 2, 5), (3, 2, 5)))

    def found():
        product, backward = jax.jit(lambda A, B: jax.vjp(contract, A, B))(A, B)
        return product, *jax.jit(backward)(G)

    of_A, of_B = np.einsum("kjb,ijb->kib", B, G), np.einsum("kib,ijb->kjb", A, G)
    for compute in (found, functools.partial(elsewhere, found)):
        chex.assert_trees_all_close(compute(), (np.einsum("kib,kjb->ijb", A, B), of_A, of_B), rtol=1e-13, atol=1e-13)

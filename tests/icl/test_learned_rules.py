"""Beyond the paper's rules: the ridge update, synapses that age and are averaged, families of tasks, the drop-in learner."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_blur as reference

from icl.blur import MetaRecipe, Rules, Stage, image_sets, learn, learner, learning_curves, load_genome, meta_train, search
from icl.blur import rules as passes
from icl.blur.learning import Examples, accuracy_of
from icl.blur.rules import Genome, Synapse, backprop_genome
from icl.blur.search import Family, cross_entropy, make_source, meta_loss
from jexplicit.data.images import read_images

# compiled whole, which takes less time than compiling every operation
ridge_update = jax.jit(passes.ridge_update, static_argnames="iterations")
init_synapses = jax.jit(passes.init_synapses, static_argnums=(2, 3))
predict = jax.jit(passes.predict, static_argnums=1)
draw_task = jax.jit(search.draw_task, static_argnums=1)
draw_family_episode = jax.jit(search.draw_family_episode, static_argnums=1, static_argnames=("unroll", "query_size"))
RULES = Rules(
    states=2,
    backward="multiplicative_second_state",
    hidden="relu",
    output="linear",
    backward_activation="linear",
    derivative=True,
    feedback="cross_entropy",
    multistate=False,
    normalise_output=False,
    update="ridge",
    aging=True,
    average=True,
)
SCALARS = {"eta": 1.3, "f": 0.7, "f_synapse": 0.9, "eta_synapse": -0.3, "m": 0.8, "s": 0.1, "m_output": 1.7}
SCALARS |= {"eta_output": 2.5, "floor": 0.2, "aging": 0.4, "lam": 0.7, "lam_output": 1.9, "average": 0.6}
SCALARS |= {"floor_output": 0.4, "width": 0.3, "depth": 0.6, "decay": 0.2, "trust": 0.7}


def blobs(examples: int = 60, seed: int = 0, classes: int = 4, dtype: Any = np.float32) -> Examples:
    """Four classes in five dimensions."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, examples)
    X = rng.normal(size=(examples, 5)) + 3 * np.eye(5)[labels]
    return Examples(X.astype(dtype), np.eye(classes, dtype=dtype)[labels])


def test_the_ridge_update_is_that_of_normal_equations_and_has_hebb_s_rule_and_the_exact_fit_as_its_limits():
    """float64, systems of 6 equations: 6 iterations of conjugate gradients are exact to 1e-9 at condition numbers of 100."""
    rng = np.random.default_rng(0)
    A, E = rng.normal(size=(2, 6, 4)), rng.normal(size=(2, 6, 3))
    found = np.asarray(ridge_update(A, E, 0.1, iterations=8))
    for c in range(2):
        alpha = np.mean(np.sum(A[c] ** 2, axis=1))
        primal = np.linalg.solve(A[c].T @ A[c] / alpha + 0.1 * np.eye(4), A[c].T @ E[c]) / np.sqrt(alpha)  # push-through
        np.testing.assert_allclose(found[c], primal, rtol=1e-9, atol=1e-10)
    A, E = rng.normal(size=(1, 3, 8)), rng.normal(size=(1, 3, 2))
    root = np.mean(np.sum(A**2, axis=2)) ** 0.5
    heavy, exact = (np.asarray(ridge_update(A, E, penalty, iterations=3)) for penalty in (1e8, 0.0))
    np.testing.assert_allclose(heavy * 1e8, A.swapaxes(1, 2) @ E / root, rtol=1e-6)  # the error is 1/λ times |K| = 3
    np.testing.assert_allclose(A @ exact, root * E, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_eight_iterations_are_enough_for_a_minibatch_of_digits():
    """λ = 1, 64 images, 10 or 70 columns (for more than 64 the inverse is applied): the worst fit is 2 % from the exact one."""
    sets = image_sets(read_images("digits"))
    A, Y, one = jax.device_put(sets.train.X[:64]), jax.device_put(sets.train.Y[:64] - 0.1), jnp.ones((), np.float32)
    root = jnp.sqrt(jnp.mean(jnp.sum(A**2, axis=1)))
    K = A @ A.T / root**2
    for E in (Y, jnp.tile(Y, 7)):
        fitted = A @ ridge_update(A, E, one, iterations=8) / root
        exact = K @ jnp.linalg.solve(K + jnp.eye(64, dtype=K.dtype), E)
        assert float(jnp.max(jnp.linalg.norm(fitted - exact, axis=0) / jnp.linalg.norm(exact, axis=0))) < 0.02
    nothing = ridge_update(A, jnp.zeros_like(Y), one, 1.0, iterations=8)
    assert float(jnp.abs(nothing).max()) == 0  # nothing to learn: no division by zero


@pytest.mark.parametrize(
    "change",
    [
        {"multistate": True},
        {"pre": "sequential", "over": "mixed"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"pre": "sequential", "update": "hebbian", "feedback": "label"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_step_with_ridge_updates_is_the_sums_of_loops(change):
    """float64; the loops invert matrices of 5 x 5 with condition numbers below 1e3, hence 1e-9. Averages by hand."""
    rules, rng = dataclasses.replace(RULES, **change), np.random.default_rng(0)
    genome = jax.tree.map(jax.device_put, Genome(*rng.normal(size=(4, 2, 2)), **SCALARS))
    synapses = []
    for n_in, n_out in ((3, 4), (4, 3), (3, 2)):
        W, S = (jax.device_put(rng.normal(size=(1 + rules.multistate, n_in + 1, n_out)) / 2) for _ in range(2))
        synapses.append(Synapse(W, jax.device_put(np.asarray(W)[:, :-1].swapaxes(1, 2)), S, jax.device_put(3.0)))
    x, y = jax.device_put(rng.normal(size=(5, 3))), jax.device_put(np.eye(2)[rng.integers(0, 2, 5)])
    new, logits = jax.jit(functools.partial(learn, rules=rules))(genome, synapses=tuple(synapses), x=x, y=y)
    Ws, g = [np.moveaxis(np.asarray(synapse.W), 0, -1) for synapse in synapses], jax.tree.map(np.asarray, genome._asdict())
    Ws, z = reference.step(g, dataclasses.asdict(rules), Ws, np.asarray(x), np.asarray(y), age=3.0)
    np.testing.assert_allclose(logits, z, rtol=1e-10, atol=1e-11)
    for synapse, old, W in zip(new, synapses, Ws, strict=True):
        np.testing.assert_allclose(np.moveaxis(synapse.W, 0, -1), W, rtol=1e-9, atol=1e-10)
        average = 0.6 * np.asarray(old.S) + 0.4 * np.asarray(synapse.W)
        np.testing.assert_allclose(synapse.S, average, rtol=1e-12)  # 0.6 < 3/4
        assert float(synapse.n) == 4


def test_rates_stay_positive_far_past_meta_training():
    """With floors below 0 and an age of a million, a step is that of 1 % of the rate; float32, hence 1e-5."""
    aged = backprop_genome(2, eta_synapse=-0.5, floor=-0.5, floor_output=-0.2)
    plain = aged._replace(eta_synapse=np.float32(-0.005))
    old = tuple(s._replace(n=np.float32(1e6)) for s in init_synapses(jax.random.key(0), aged, RULES, (5, 3, 4)))

    @jax.jit
    def both(old, X, Y):
        return learn(aged, RULES, old, X, Y)[0], learn(plain, dataclasses.replace(RULES, aging=False), old, X, Y)[0]

    for a, b, before in zip(*both(old, *blobs(20)), old, strict=True):
        np.testing.assert_allclose(a.W, b.W, rtol=1e-5, atol=1e-6)
        assert np.abs(np.asarray(a.W) - np.asarray(before.W)).max() > 1e-4


def test_averages_begin_with_the_mean_of_all_and_predictions_read_them():
    genome = backprop_genome(2, eta_synapse=-0.1, average=1.0)
    synapses = init_synapses(jax.random.key(0), genome, RULES, (5, 3, 4))
    X, Y = blobs(30)
    step, states = jax.jit(functools.partial(learn, genome, RULES)), []
    for n in range(3):
        synapses, _ = step(synapses, X[10 * n : 10 * n + 10], Y[10 * n : 10 * n + 10])
        states.append(synapses)
    for layer, synapse in enumerate(synapses):
        mean = np.mean([np.asarray(state[layer].W) for state in states], axis=0)
        np.testing.assert_allclose(synapse.S, mean, rtol=1e-5, atol=1e-6)  # float32
    moved = tuple(synapse._replace(W=synapse.S) for synapse in synapses)
    plain = dataclasses.replace(RULES, average=False)
    np.testing.assert_array_equal(predict(genome, RULES, synapses, X), predict(genome, plain, moved, X))


@pytest.mark.slow
def test_tasks_relabel_and_mix_as_they_say():
    source = make_source(blobs(200))
    axes = np.asarray(source.axes)
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-5)  # float32
    assert np.all(np.diff((np.asarray(source.examples.X) @ axes).var(axis=0)) < 0)
    family = Family(inputs=7, rank=2, classes=2)
    task, again = draw_task(jax.random.key(0), family, source, source.examples)
    assert task.X.shape == (200, 7) and task.Y.shape == (200, 2) and float(task.Y.sum()) == 200
    np.testing.assert_array_equal(task.X, again.X)  # more examples are seen in the same way
    np.testing.assert_allclose(task.X.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(task.X.std(axis=0), 1, rtol=1e-4)
    assert np.linalg.matrix_rank(np.asarray(task.X), tol=1e-2) == 2
    constant = make_source(source.examples._replace(X=np.full((200, 5), 3, np.float32)))
    assert not np.any(draw_task(jax.random.key(0), family, constant)[0].X)
    old, new = (np.argmax(part.Y, axis=1).tolist() for part in (source.examples, task))
    merged = dict(zip(old, new, strict=True))
    assert [merged[label] for label in old] == new and sorted(merged.values()) == [0, 0, 1, 1]
    noisy = draw_task(jax.random.key(0), family._replace(noise=0.5), source)[0]
    assert float((noisy.X - task.X).std()) == pytest.approx(0.5, rel=0.05)  # 1400 draws: a deviation within 2 %
    same = draw_task(jax.random.key(1), Family(), source)[0]
    np.testing.assert_array_equal(same.X, source.examples.X)
    np.testing.assert_array_equal(same.Y, source.examples.Y)


def test_the_curve_objective_is_the_weighted_log_loss_of_every_update():
    """By the pure functions one update after another; float32, sums of six terms: 1e-4."""
    genome, source = backprop_genome(2, eta_synapse=-0.2), make_source(blobs())
    episode = draw_family_episode(jax.random.key(0), Family((3,), 8, examples=30), source, unroll=6, query_size=10)
    assert episode.x.shape == (6, 8, 5)
    assert len(np.unique(np.asarray(episode.x).reshape(-1, 5), axis=0)) == 30  # of 48 in turn

    @jax.jit
    def found(genome, episode, key):
        def update(synapses, minibatch):
            synapses, _ = learn(genome, RULES, synapses, *minibatch)
            logits = passes.predict(genome, RULES, synapses, episode.x_q)
            return synapses, (cross_entropy(logits, episode.y_q), accuracy_of(logits, episode.y_q))

        synapses = passes.init_synapses(key, genome, RULES, (5, 3, 4))
        scores = jax.lax.scan(update, synapses, (episode.x, episode.y))[1]
        return meta_loss(genome, RULES, (3,), key, episode, objective="curve")[:2], scores

    (loss, share), (losses, shares) = jax.tree.map(np.asarray, found(genome, episode, jax.random.key(1)))
    w = 1 / np.arange(5, 11)
    assert loss == pytest.approx(np.average(np.log(0.02 + losses), weights=w), rel=1e-4)
    assert share == pytest.approx(np.average(shares, weights=w), rel=1e-4)


@pytest.mark.slow
def test_families_take_turns():
    recipe = MetaRecipe(families=(Family((3,), 8), Family((4, 4), 6, inputs=3, classes=2)), objective="curve", query_size=10)
    start = jax.tree.map(lambda leaf: jax.device_put(leaf)[None], backprop_genome(2, eta_synapse=-0.2))
    whole = meta_train(start, RULES, recipe, (Stage(3, 8),), blobs(), blobs(20, 1), every=3, episodes=2)
    assert [entry["step"] for entry in whole.history] == [3, 6, 8] and whole.skipped == 0
    assert float(jnp.abs(whole.genomes.lam - start.lam).max()) > 1e-3


@pytest.mark.slow
def test_the_learner_is_the_rule_it_is_named_after():
    rule, loaded, (X, Y) = learner("digits"), load_genome("digits"), blobs(64, classes=5)
    state = rule.init(jax.random.key(0), (5, 8, 5))
    expected = passes.init_synapses(jax.random.key(0), loaded.genome, loaded.rules, (5, 8, 5))
    for _ in range(2):
        state, logits = rule.update(X, Y, state)
        expected, theirs = jax.jit(functools.partial(learn, loaded.genome, loaded.rules))(expected, X, Y)
        np.testing.assert_array_equal(logits, theirs)
    np.testing.assert_array_equal(rule.predict(state, X), jax.jit(functools.partial(passes.predict, *loaded[:2]))(expected, X))
    assert float(accuracy_of(rule.predict(state, X), jax.device_put(Y))) > 0.8  # classes three deviations apart
    broken = jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(np.nan), state)
    with pytest.raises(FloatingPointError, match="synapses are not finite after this update"):
        rule.update(X, Y, broken)


@pytest.mark.slow
@pytest.mark.parametrize("name, hidden", [("boolean", (20,)), ("digits", (16, 16, 16))])
def test_shipped_rules_learn_exclusive_or(name, hidden):
    corners = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)
    parity = Examples(np.tile(corners, (16, 1)), np.tile(np.eye(2, dtype=np.float32)[[0, 1, 1, 0]], (16, 1)))
    rule = load_genome(name)
    curves = learning_curves(rule.genome, rule.rules, hidden, parity, parity, steps=20, batch_size=32, seeds=(0, 1, 2))
    assert curves[:, -1].min() == 1

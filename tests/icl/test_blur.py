"""Bidirectional update rules: the paper's loops, descent as a genome, invariances, meta-training, files, the ridge update,
synapses that age and are averaged, families of tasks, the drop-in learner.
"""

import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_blur as reference
from interruption import resumed_after
from samples import two_classes as data

from icl import blur
from icl.blur import MetaRecipe, Rules, Stage, learn, learner, learning_curves, load_genome, meta_train, search
from icl.blur import rules as passes
from icl.blur.learning import Examples, accuracy_of, resize_images
from icl.blur.rules import Genome, Synapse, backprop_genome, save_genome
from icl.blur.search import Family, cross_entropy, draw_episode, make_source, meta_loss
from jexplicit.data.images import read_images

SIZES = (3, 4, 3, 2)


def assert_equal(a: Any, b: Any, **tolerance: Any) -> None:
    """All leaves of two trees, in their order."""
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def made_learner(rules: blur.Rules, sizes: tuple[int, ...] = SIZES, dtype: Any = np.float64):
    """A genome with nothing at its neutral value, synapses, and a minibatch."""
    rng, channels = np.random.default_rng(0), rules.states if rules.multistate else 1
    odd = {"f": 0.7, "eta": 1.3, "f_synapse": 0.9, "eta_synapse": 0.3, "m": 0.8, "s": 0.1, "m_output": 1.7}
    genome = Genome(*rng.normal(size=(4, rules.states, rules.states)), **odd, rescale=1.2, sigma=1.0)
    synapses = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:], strict=True):
        W = rng.normal(size=(channels, n_in + 1, n_out)) / 2
        synapses.append(Synapse(W, W[:, :-1].swapaxes(1, 2)))
    x, labels = rng.normal(size=(5, sizes[0])), rng.integers(0, sizes[-1], 5)
    return jax.tree.map(
        lambda leaf: jax.device_put(np.asarray(leaf, dtype)), (genome, tuple(synapses), x, np.eye(sizes[-1])[labels])
    )


DESIGNS = {
    "unit": blur.Rules(states=3, synapse_norm=True, output="softmax", over="mixed"),
    "one weight": blur.Rules(2, "multiplicative_second_state", False, "backward", normalise_output=False, hidden="relu"),
    "default": blur.Rules(states=2),
    "forward": blur.Rules(states=3, normalise="forward", output="linear"),
}
_slow = [pytest.param(rules, marks=pytest.mark.slow, id=name) for name, rules in list(DESIGNS.items())[2:]]


@pytest.mark.parametrize("rules", [*(pytest.param(DESIGNS[name], id=name) for name in ("unit", "one weight")), *_slow])
def test_a_step_is_the_paper_s_sums(rules):
    """float64, sums of at most 50 terms of order 1 in another order: 1e-12."""
    genome, synapses, x, y = made_learner(rules)
    new, logits = jax.jit(functools.partial(blur.learn, rules=rules))(genome, synapses=synapses, x=x, y=y)
    W, ours = ([np.moveaxis(np.asarray(synapse.W), 0, -1) for synapse in some] for some in (synapses, new))
    g = jax.tree.map(np.asarray, genome._asdict())
    assert_equal(
        (ours, logits), reference.step(g, dataclasses.asdict(rules), W, np.asarray(x), np.asarray(y)), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize(
    "sizes, hidden, output, loss, dtype, most",
    [
        ((6, 7, 4), "tanh", "linear", "cross_entropy", np.float64, 1e-12),
        pytest.param((6, 7, 5, 6, 4), "relu", "linear", "cross_entropy", np.float32, 1e-6, marks=pytest.mark.slow),
        pytest.param((6, 7, 5, 6, 4), "sigmoid", "sigmoid", "squared_error", np.float64, 1e-12, marks=pytest.mark.slow),
        pytest.param((6, 7, 4), "relu", "linear", "squared_error", np.float64, 1e-12, marks=pytest.mark.slow),
        pytest.param((6, 7, 4), "tanh", "tanh", "squared_error", np.float32, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_descent_is_a_genome(sizes, hidden, output, loss, dtype, most):
    """The bounds of the task after 50 steps: 1e-12 in float64 (some 1e4 roundings of 1e-16), 1e-6 in float32."""
    found = blur.sgd_difference(blur.sgd_rules(hidden, loss, output=output), sizes, dtype=dtype)
    assert found.one_step <= found.all_steps + most and found.all_steps < most < 1e-2 < found.change


def test_synapses_that_would_overflow_are_brought_back_unread():
    """f̃ = 3 for 100 updates, 3^100 = 5e47 in float32. After 20 updates one more weighs 1e-6: what is read stays, to 1e-3."""
    rules = blur.Rules(states=2, synapse_norm=True)
    genome, synapses, x, y = made_learner(rules, (3, 4, 2), dtype=np.float32)
    grows = genome._replace(f_synapse=jnp.float32(3))
    step = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda _, s: blur.learn(grows, rules, s, x, y)[0], synapses))
    some, many = ([np.moveaxis(np.asarray(synapse.W, float), 0, -1) for synapse in step(n)] for n in (20, 100))
    for a, b in zip(some, many, strict=True):
        assert 1e5 < np.abs(b).max() <= 1.001e6
        np.testing.assert_allclose(reference.unit(a), reference.unit(b), atol=1e-3)


# --- meta-training -------------------------------------------------------------------------------------------------------

SMALL = blur.Rules(states=2, synapse_norm=True, output="softmax")
RECIPE = blur.MetaRecipe(hidden=(4,), batch_size=6, query_size=8, path=0.5, learning_rate=0.02)
STAGES = (blur.Stage(2, 4), blur.Stage(2, 4))  # alike, so that both are one compiled call


@functools.cache
def genomes(number: int = 3):
    made = jax.jit(lambda key: jax.vmap(lambda key: blur.random_genome(key, 2))(jax.random.split(key, number)))
    return made(jax.random.key(7))


def meta(start, **more):
    shared = {"every": 2, "episodes": 2, "seed": 5, "devices": 2}
    return blur.meta_train(start, SMALL, RECIPE, STAGES, data(), data(20, seed=1), **{**shared, **more})


@pytest.fixture(scope="module")
def meta_trained():
    """An uninterrupted run of three genomes that the other runs are compared with."""
    return meta(genomes())


@pytest.fixture(scope="module")
def meta_problem():
    """A genome in float64, and its meta-loss over an episode of three updates."""
    parts = jax.tree.map(jax.device_put, data(dtype=np.float64))

    @jax.jit
    def made(key):
        episode = draw_episode(jax.random.fold_in(key, 1), parts, unroll=3, batch_size=6, query_size=8)
        return blur.random_genome(key, 2, dtype=np.float64), episode

    genome, episode = made(jax.random.key(0))

    def loss(genome, **how: Any):
        return meta_loss(genome, SMALL, (4,), jax.random.key(2), episode, path=0.5, **how)[0]

    return genome, loss, jax.jit(jax.value_and_grad(loss))


def test_the_meta_gradient_is_that_of_finite_differences(meta_problem):
    """float64, central differences of 1e-5 along two directions: their error is 1e-10 of third derivatives, 1e-6 allowed."""
    genome, _, loss = meta_problem
    rng = np.random.default_rng(10)
    for _ in range(2):
        d = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), genome)
        moved = (jax.tree.map(lambda leaf, v, h=h: jax.device_put(np.asarray(leaf) + h * v), genome, d) for h in (1e-5, -1e-5))
        ahead, behind = (float(loss(one)[0]) for one in moved)
        along = sum(np.sum(np.asarray(a) * b) for a, b in zip(loss(genome)[1], d, strict=True))
        assert along == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)


@pytest.mark.slow
def test_a_genome_s_run_does_not_depend_on_the_others_nor_on_the_devices(meta_trained):
    alone = meta(jax.tree.map(lambda leaf: leaf[:1], genomes()), devices=1)
    for a, b in zip(alone.history[:2], meta_trained.history[:2], strict=True):
        assert (a["accuracy"][0], a["loss"][0]) == (b["accuracy"][0], b["loss"][0])


def test_an_interrupted_meta_run_resumes_bit_for_bit(meta_trained, tmp_path):
    resumed = resumed_after(3, functools.partial(meta, genomes()), tmp_path)  # in the second stage
    assert_equal(resumed[:3], meta_trained[:3], rtol=0)
    assert [entry["step"] for entry in resumed.history] == [2, 4, 6, 8]


def test_each_stage_begins_with_the_best_and_keeps_the_best(meta_trained):
    later = [max(entry["accuracy"]) for entry in meta_trained.history[2:]]
    assert meta_trained.score == max(later) and meta_trained.skipped == 0
    spread = [np.asarray(leaf).std(axis=0).max() for leaf in (genomes().nu, meta_trained.genomes.nu)]
    assert spread[1] < 0.2 < spread[0]  # four steps of at most 0.02 from the same genome


def test_genomes_that_are_not_finite_are_skipped_and_counted(meta_trained):
    start = genomes()
    spoiled = np.array([1.0, np.nan, 1.0], np.float32)[:, None, None] * np.asarray(start.nu)
    bad = start._replace(nu=jax.device_put(spoiled))
    found = blur.meta_train(bad, SMALL, RECIPE, STAGES[:1], data(), data(20, seed=1), every=2, episodes=2, seed=5, devices=2)
    assert found.history[-1]["skipped"] == [0, 4, 0] and found.skipped == 4
    assert found.history[-1]["loss"][1] is None and found.history[-1]["accuracy"][1] == 0
    np.testing.assert_array_equal(np.asarray(found.genomes.mu)[1], np.asarray(bad.mu)[1])
    assert np.isfinite(np.asarray(found.best.nu)).all()
    assert [entry["accuracy"][0] for entry in found.history] == [entry["accuracy"][0] for entry in meta_trained.history[:2]]
    with pytest.raises(FloatingPointError, match="no genome has a finite loss after 2 meta-steps"):
        meta(start._replace(nu=jax.device_put(np.nan * spoiled)))


# --- curl, files, data ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_descent_has_no_curl_and_a_learned_update_has():
    """float64: a Jacobian of entries of order 0.1, symmetric to rounding. The learned one is that of differences by hand."""
    x, y = map(jax.device_put, blur.xor())

    def jacobian(genome, rules):
        synapses = blur.init_synapses(jax.random.key(1), genome, rules, (2, 3, 2))
        return synapses, jax.jit(functools.partial(blur.update_jacobian, genome, rules))(synapses, x, y)

    _, J = jacobian(blur.sgd_genome(0.25, dtype=np.float64), blur.sgd_rules("tanh", "cross_entropy"))
    assert blur.curl(J).largest < 1e-14 and float(jnp.abs(J).max()) > 0.01
    genome, rules, h = blur.random_genome(jax.random.key(0), 2, dtype=np.float64), blur.Rules(states=2), 1e-6
    synapses, J = jacobian(genome, rules)
    assert blur.curl(J).relative > 0.1
    step = jax.jit(lambda W: blur.learn(genome, rules, (Synapse(W, jnp.matrix_transpose(W[:, :-1])), synapses[1]), x, y)[0])
    ends = (step(synapses[0].W.at[0, 1, 2].add(s * h)) for s in (1, -1))
    ahead, behind = (jnp.concatenate([synapse.W.ravel() for synapse in end]) for end in ends)
    column, at = np.array((ahead - behind) / (2 * h)), 1 * 3 + 2  # of W[0, 1, 2] in [2, 3, 3] raveled
    column[at] -= 1  # the synapse itself
    np.testing.assert_allclose(J[:, at], column, atol=1e-7)


def test_a_genome_comes_back_from_its_file_to_the_last_bit(tmp_path):
    learned, file, bad = blur.load_genome("hebbian"), tmp_path / "genome.json", tmp_path / "bad.json"
    save_genome(file, learned)
    again = blur.load_genome(file)
    assert again.rules == learned.rules and again.provenance == learned.provenance
    assert_equal(again.genome, learned.genome, rtol=0)
    content = json.loads(file.read_text())
    for change, message in (
        ({"genome": {**content["genome"], "nu": [[1.0]]}}, "for 4 states"),
        ({"genome": {**content["genome"], "f": float("nan")}}, "not finite"),
        ({"rules": {}, "genome": {}}, "cannot be read as a genome"),
        ({"rules": {**content["rules"], "states": [4]}}, "cannot be read as a genome"),
        ({"genome": {**content["genome"], "f": 10**400}}, "cannot be read as a genome"),
        ({"provenance": 7}, "cannot be read as a genome"),
        *(({"genome": value}, "cannot be read as a genome") for value in (None, 7, [1])),
    ):
        bad.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            blur.load_genome(bad)


@pytest.mark.slow
def test_shipped_genomes_say_where_they_come_from_and_learn():
    """Two learners of ten updates: within 3 points of the reported test accuracy."""
    sets = blur.image_sets(read_images("digits"))
    for name in blur.shipped_genomes():
        learned = blur.load_genome(name)
        assert {"config", "seed", "data", "dev_accuracy", "test_accuracy", "meta_steps", "versions"} <= set(learned.provenance)
    learned = blur.load_genome("digits")
    curves = blur.learning_curves(learned.genome, learned.rules, (32,), sets.train, sets.test, steps=10, seeds=(20, 21))
    assert curves[:, 10].mean() > learned.provenance["test_accuracy"]["10"] - 0.03 > 0.9
    assert curves[:, 0].mean() < 0.3


def test_images_are_parted_centred_and_resized():
    images = read_images("digits")
    sets, some = blur.image_sets(images), blur.image_sets(images, classes=(7, 2, 5))
    assert [len(part.X) for part in sets[:3]] == [1050, 150, 597]
    assert (sets.inputs, sets.outputs, some.outputs) == (64, 10, 3)
    np.testing.assert_allclose(sets.train.X.mean(axis=0), 0, atol=1e-5)
    assert [float(one.train.X.std()) for one in (sets, some)] == pytest.approx([1, 1], rel=1e-4)
    assert len(np.unique(np.concatenate([part.X for part in sets[:3]]), axis=0)) == 1797  # no image is in two parts
    for part in (slice(2), slice(2, 3)):  # train and dev together, test: the same images as of all classes, in their order
        every, ours = (np.concatenate([examples.Y.argmax(axis=1) for examples in one[part]]) for one in (sets[:3], some[:3]))
        np.testing.assert_array_equal(np.array([7, 2, 5])[ours], every[np.isin(every, (7, 2, 5))])
    by_hand = np.arange(28.0 * 28).reshape(28, 28)
    middle = resize_images(by_hand[None], 10)
    assert middle.shape == (1, 10, 10) and middle[0, 1, 2] == by_hand[6:8, 8:10].mean()
    np.testing.assert_array_equal(resize_images(images.test_images, 16)[0, 2:4, 2:4], float(images.test_images[0, 1, 1]))


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

"""Public closed forms and measures with constant, duplicate, zero, rank-deficient and tiny input: finite, or a ValueError."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import icl
import icl.blur
import jexplicit
from icl.tasks import Sequence, Tasks
from jexplicit.features.descriptors import fit_axes
from jexplicit.lm.core.smoothing import discounts_of, kneser_ney

rng = np.random.default_rng(0)
Y = jnp.eye(2, dtype="f4")[jnp.arange(12) % 2]
MADE = {
    "constant": np.ones((12, 3), "f4"),
    "duplicate": np.repeat(rng.random((12, 1), "f4"), 3, axis=1),
    "zero": np.zeros((12, 3), "f4"),
    "a column of zeros": np.concatenate([rng.random((12, 2), "f4"), np.zeros((12, 1), "f4")], axis=1),
    "more columns than rows": rng.random((12, 30), "f4"),
    "tiny": 1e-12 * rng.random((12, 3), "f4"),
    "large": 1e12 * rng.random((12, 3), "f4"),
    "one example of each": np.tile(np.eye(2, 3, dtype="f4"), (6, 1)) + 1e-3,
}
FEATURES = {name: jnp.asarray(H) for name, H in MADE.items()}


def solve(H):
    return jexplicit.explicit_solution(jexplicit.dense_cooccurrence(H, Y), max(1.0, float(jexplicit.priming_number(H))))


FITS = {
    "explicit": lambda H: H @ solve(H),
    "sweeps": lambda H: jexplicit.iterative_scaling_sweeps(H, Y, jnp.zeros((H.shape[1], 2), "f4"), sweeps=3).logits(H),
    "bound": lambda H: jexplicit.curvature_bound_sweeps(H, Y, sweeps=3).logits(H),
    "least squares": lambda H: jexplicit.gram_least_squares(
        jexplicit.gram_matrix(jexplicit.split_examples(H, Y), jax.tree_util.Partial(lambda X: X))
    ).logits(H),
    "layers": lambda H: jexplicit.solve_layers(H, Y, [jexplicit.SoftmaxLayer()] * 2),
}


def finite(tree):
    return all(bool(jnp.isfinite(jnp.asarray(leaf, float)).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("fit", FITS)
def test_a_fit_of_degenerate_features_is_finite_or_refused(fit, features):
    try:
        logits = FITS[fit](FEATURES[features])
    except ValueError as error:
        assert "\n" not in str(error) and "dtype" not in str(error)
    else:
        assert finite(logits)


def test_a_feature_that_is_never_on_changes_nothing():
    H = jnp.asarray(rng.random((12, 3), "f4"))
    with_dead = jnp.concatenate([H, jnp.zeros((12, 1), "f4")], axis=1)
    U, V = (jexplicit.explicit_solution(jexplicit.dense_cooccurrence(X, Y), 2.0) for X in (H, with_dead))
    np.testing.assert_array_equal(V[:3], U)
    np.testing.assert_array_equal(V[3], 0)
    slopes = jax.grad(lambda F: jexplicit.explicit_solution(F, 2.0).sum())(jexplicit.dense_cooccurrence(with_dead, Y))
    assert finite(slopes)


def test_features_that_are_all_zero_are_refused_as_such():
    with pytest.raises(ValueError, match="features that are all 0"):
        jexplicit.iterative_scaling_sweeps(FEATURES["zero"], Y, jnp.zeros((3, 2), "f4"), sweeps=3)


@pytest.mark.parametrize(
    "measure",
    [
        lambda z: jexplicit.accuracy(z, jnp.array([0, 1])),
        lambda z: jexplicit.mean_loss(z, jnp.eye(2)),
        lambda z: jexplicit.calibration_error(z, jnp.array([0, 1])),
    ],
)
def test_a_measure_refuses_nan_and_passes_jit(measure):
    with pytest.raises(ValueError, match="25.0% of the logits are NaN"):
        measure(jnp.array([[1.0, jnp.nan], [0.0, 1.0]]))


def test_measures_pass_jit_and_grad():
    z, labels = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([0, 0])
    assert float(jax.jit(jexplicit.accuracy)(z, labels)) == jexplicit.accuracy(z, labels) == 0.5
    loss = jax.jit(jexplicit.mean_loss)(z, jnp.eye(2)[labels])
    assert float(loss) == pytest.approx(jexplicit.mean_loss(z, jnp.eye(2)[labels]), rel=1e-6)  # float32
    assert finite(jax.grad(lambda z: jexplicit.mean_loss(z, jnp.eye(2)[labels]))(z))


@pytest.mark.parametrize(
    ("n", "modified", "plain"),
    [
        ([7, 0, 0, 0], [0.5, 1.0, 1.5], 0.5),  # KenLM's fallback
        ([0, 3, 1, 1], [0.5, 1.0, 1.5], 0.5),
        ([0, 0, 0, 0], [0.5, 1.0, 1.5], 0.5),
        ([4, 2, 0, 0], [0.5, 0.5, 0.5], 0.5),
        ([4, 2, 1, 1], [0.5, 1.25, 1.0], 0.5),  # c - (c + 1) n_{c+1} / (2 n_c)
    ],
)
def test_discounts_have_a_fallback_where_counts_of_counts_vanish(n, modified, plain):
    for counts in (np.array(n), jnp.array(n, float)):
        np.testing.assert_allclose(discounts_of(counts, modified=True), modified, rtol=1e-6)
        np.testing.assert_allclose(discounts_of(counts, modified=False), plain, rtol=1e-6)


def test_singletons_are_learned():
    P = kneser_ney(jnp.roll(jnp.eye(8), 1, axis=1))
    assert float(P[0, 1]) > 0.5 and finite(jnp.log(P))
    days = ["mon tue wed thu fri sat sun", "jan feb mar apr may jun jul aug", "one two three four five six"]
    for method in ("bigram", "ngram", "log-linear"):
        model = jexplicit.fit(days, method, tokenizer="word")
        assert dict(model.next_token("jan feb", top=30))["▁mar"] > 0.2  # 1 / 25 would be uniform


@pytest.mark.parametrize("images", [np.full((20, 8, 8), 7, np.uint8), np.arange(64, dtype=np.uint8).reshape(1, 8, 8) % 17])
def test_axes_of_images_without_variance_are_refused(images):
    pools = jax.tree_util.Partial(lambda X: X.reshape(len(X), -1))
    with pytest.raises(ValueError, match="without variance: principal axes need images that differ"):
        fit_axes(pools, images, 17, dimensions=3)


@pytest.mark.parametrize("scale", [1e-3, 0.0, np.nan])
def test_a_learned_rule_refuses_inputs_that_it_cannot_learn_from(scale):
    rule = icl.blur.learner("digits")
    state = rule.init(jax.random.key(0), (4, 3, 2))
    x, y = jnp.ones((8, 4)), jnp.eye(2)[jnp.arange(8) % 2]
    with pytest.raises(ValueError, match=r"inputs of root mean square .*: standardise them"):
        rule.update(x * scale, y, state)
    remedy = (jnp.asarray(rng.random((8, 4), "f4")) * 1e-3 - 5e-4) / (1e-3 / 12**0.5)
    assert finite(rule.update(remedy, y, state))


CONTEXTS = {
    "constant": np.ones((5, 3), "f4"),
    "duplicate": np.tile(rng.normal(size=(1, 3)), (5, 1)).astype("f4"),
    "zero": np.zeros((5, 3), "f4"),
    "fewer examples than inputs": rng.normal(size=(1, 3)).astype("f4"),
    "tiny": (1e-12 * rng.normal(size=(5, 3))).astype("f4"),
}
PREDICTORS = {
    "gradient descent": lambda c: icl.gradient_descent(c, 0.1, steps=3),
    "GD++": lambda c: icl.gd_plus_plus(c, 0.1, 0.1, steps=3),
    "layers": lambda c: icl.predict(icl.descent_layers(3, len(c.X), 0.1, gamma=0.1, layers=2, dtype="f4"), c),
    "ridge": lambda c: icl.ridge(c, 1e-3),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_a_predictor_of_degenerate_contexts_is_finite(predictor, context):
    X = CONTEXTS[context]
    sequence = Sequence(*(jnp.asarray(part) for part in (X, X[:, :1], np.ones(3, "f4"), np.ones(1, "f4"))))
    assert finite(PREDICTORS[predictor](sequence))


@pytest.mark.parametrize("tasks", [Tasks(dim=1, context=1), Tasks(dim=4, context=1), Tasks(dim=2, context=64)])
def test_solutions_of_small_tasks_are_finite(tasks):
    assert finite(icl.optimal_solution(icl.exact_moments(tasks))) and finite(icl.optimal_rate(tasks))

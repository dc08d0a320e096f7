"""Public closed forms and measures with constant, duplicate, zero, rank-deficient and tiny input: finite, or a ValueError."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import icl
import icl.blur
import jexplicit
from icl.models.recurrences import Stream
from icl.tasks import Sequence, Tasks
from jexplicit.data.sizes import TextSizes
from jexplicit.features.descriptors import fit_axes
from jexplicit.lm.comparison import paired_difference
from jexplicit.lm.core.smoothing import discounts_of, kneser_ney
from jexplicit.lm.measures import comparable_measures
from jexplicit.lm.minimal_pairs import judgement
from jexplicit.lm.scaling_assumption import fit_scaling


@pytest.fixture(autouse=True)
def no_type_checks(monkeypatch):
    """As in a user's program, where annotations are not checked."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


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


LOGITS, TWO = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.eye(2)
H = FEATURES["duplicate"]
IMAGES = rng.integers(0, 17, (20, 8, 8)).astype(np.uint8)
TABLE = (np.array([[0, 2, 0], [1, 0, 1], [0, 1, 0]], np.int32),)
UNIFORM = jexplicit.token_model([jnp.zeros((3, 3))], "cat", False)
KEY = jax.random.key(0)
WIDE = Sequence(jnp.ones((1, 3)), jnp.ones((1, 1)), jnp.ones(3), jnp.zeros(1))
SAME = Stream(jnp.ones((3, 2)), jnp.ones((3, 1)), jnp.ones((3, 2)))
ZEROS = jax.tree.map(jnp.zeros_like, icl.sample_tasks(KEY, Tasks(dim=3, context=4), 20))
REFUSED = [
    *((lambda y=y: jexplicit.accuracy(LOGITS, jnp.array(y)), "label") for y in ([0], [[0], [1]], [0, 2], [-1, 0], [0, 0.5])),
    *((lambda y=y: jexplicit.calibration_error(LOGITS, jnp.array(y)), "label") for y in ([0], [0, 2], [-1, 0])),
    *((lambda y=y: jexplicit.fit_temperature(LOGITS, jnp.array(y)), "label") for y in ([0], [0, 2], [-1, 0])),
    *((lambda x=x: jexplicit.accuracy(LOGITS.at[0].set(x), jnp.array([0, 1])), f"example 0 is {x}") for x in (np.inf, -np.inf)),
    (lambda: jexplicit.accuracy(LOGITS[:0], jnp.zeros(0, int)), r"logits \(0, 2\)"),
    *(
        (lambda Y=Y: jexplicit.mean_loss(LOGITS, Y), "targets")
        for Y in (TWO[:1], jnp.array([0, 1]), -TWO, TWO * jnp.nan, 2 * TWO)
    ),
    (lambda: jexplicit.explicit_solution(TWO + 1, jnp.array([2.0, 3.0])), "priming number"),
    (lambda: jexplicit.explicit_solution((), 2.0), "no co-occurrences"),
    *((lambda y=y: jexplicit.dense_cooccurrence(H, y), "targets") for y in (-Y, Y * jnp.nan, Y[:1], Y[:, 0])),
    *((lambda X=X: jexplicit.priming_number(X), "mean norm") for X in (H[:0], H * jnp.nan)),
    *((lambda y=y: FITS_OF[0](H, y), "targets") for y in (-Y, Y * jnp.nan, 2 * Y)),
    *((lambda y=y: FITS_OF[1](H, y), "targets") for y in (-Y, Y * jnp.nan, 2 * Y)),
    (lambda: jexplicit.split_examples(H, Y * jnp.nan), "targets that are not finite"),
    (lambda: jexplicit.solve_layers(Y, Y, [jexplicit.SoftmaxLayer()] * 2), "layer 1 has weights that are not finite"),
    (lambda: jexplicit.priming_scan(H[:0], H.T @ Y, jnp.zeros(0, int), jnp.ones(1)), "none of them empty"),
    (lambda: jexplicit.priming_scan(-H, H.T @ Y, jnp.arange(12) % 2, jnp.ones(1)), "finite features >= 0"),
    (lambda: jexplicit.merge_counts((TABLE[0] * 0.5,), TABLE), "integers of at least 0"),
    *((lambda c=c: jexplicit.bigram_model((c,)), "whole numbers") for c in (TABLE[0] * 0.5, TABLE[0] - np.eye(3, dtype=int))),
    *((lambda x=x: kneser_ney(jnp.array([[x, 1.0], [1.0, 1.0]])), "whole numbers") for x in (-1.0, 0.5, np.nan, np.inf)),
    (lambda: jexplicit.noise_model(np.array([np.nan, 1.0])), "token counts"),
    (lambda: jexplicit.negative_log_likelihood([jnp.zeros((3, 3))], np.array([[0], [1]]), np.array([0])), "contexts"),
    (lambda: jexplicit.negative_log_likelihood([jnp.zeros((3, 3))], np.array([[0]]), np.array([-1])), "token id -1"),
    (lambda: jexplicit.negative_log_likelihood([jnp.full((3, 3), jnp.nan)], np.array([[0]]), np.array([1])), "NaN"),
    (lambda: jexplicit.log_probabilities(UNIFORM, np.array([[0.0]]), np.array([1])), "pass integers"),
    (lambda: jexplicit.evaluate(UNIFORM, np.array([0, 1, 0]), sample=0), "a sample of 0"),
    (lambda: jexplicit.generate(KEY, UNIFORM, np.array([1.5]), 2), "integers"),
    (lambda: jexplicit.generate(KEY, UNIFORM, [], 2), r"\[\[\]\]"),
    (lambda: jexplicit.token_model([], "cat", False), "at least one"),
    (lambda: paired_difference(np.ones(2), np.ones(1), np.ones(2, int)), "one of each"),
    (lambda: paired_difference(np.ones(2), np.ones(2), np.zeros(2, int)), "0 bytes"),
    *((lambda d=d: judgement(np.array(d)), "at least one pair") for d in ([], [1.0, np.nan])),
    (lambda: comparable_measures(np.nan, None), "NaN"),
    (lambda: fit_scaling(np.array([3, 3]), np.ones(2)), "a line needs two"),
    *(
        (lambda m=m, n=n: jexplicit.patch_filters(IMAGES[:m], n, size=3, number=2), "grey levels")
        for m, n in ((0, 17), (9, 1), (9, 2))
    ),
    (lambda: jexplicit.patch_filters(IMAGES, 17, size=3, number=2, noise=-1.0), "noise -1.0"),
    (lambda: jexplicit.draw_copies(KEY, IMAGES / 17), "integers"),
    *((lambda x=x: jexplicit.fourier_features(jnp.full((1, 2), x), jnp.ones((2, 2))), "phases") for x in (np.nan, 1e20)),
    *((lambda x=x: jexplicit.random_features(jnp.array([[x, 1.0]]), jnp.ones((2, 2))), "finite") for x in (np.nan, np.inf)),
    (lambda: jexplicit.unit_rows(H, K=np.inf), "finite"),
    (lambda: jexplicit.positive_parts(H, np.nan), "threshold"),
    (lambda: jexplicit.scattering_pools(-jnp.ones((1, 8, 8)), jexplicit.wavelets((8, 8), octaves=1, angles=2, grid=2)), "grey"),
    *((lambda p=p: icl.ridge(WIDE, p), "penalty") for p in (0.0, -1.0, np.nan, np.inf)),
    (lambda: icl.line_search(ZEROS, steps=1, rates=jnp.full(2, jnp.nan)), "no finite loss"),
    *((lambda scalar=scalar: icl.least_squares_solution(ZEROS, scalar=scalar), "do not determine") for scalar in (False, True)),
    (lambda: icl.optimal_solution(icl.sampled_moments(jnp.ones((1, 1, 3)))), "cannot be inverted"),
    (lambda: icl.optimal_rate(Tasks(input_range=0.0)), "above 0"),
    *((lambda x=x: Tasks(noise=x), "noise") for x in (-1.0, np.nan, np.inf)),
    (lambda: icl.half_mse(jnp.zeros((1, 5)), jnp.zeros((1, 1))), "one of each"),
    (lambda: icl.squared_error(jnp.zeros((1, 2)), jnp.zeros((3, 2)), jnp.zeros((1, 1))), "at least one pair"),
    (lambda: icl.kalman_filter(SAME, 0.0, 1.0), "not finite"),
    (lambda: icl.mesa_conjugate_gradients(SAME, np.inf, steps=2), "above 0 and finite"),
]
FITS_OF = (
    lambda H, Y: jexplicit.iterative_scaling_sweeps(H, Y, jnp.zeros((3, 2), "f4"), sweeps=1),
    lambda H, Y: jexplicit.curvature_bound_sweeps(H, Y, sweeps=1),
)


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_has_no_answer_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


WHOLE = np.array([[200, 100], [100, 200], [7, 250], [90, 3]])
ANY_TYPE = {
    "co-occurrences": lambda H: jexplicit.dense_cooccurrence(H, jnp.asarray(WHOLE > 99, H.dtype)),
    "norm": jexplicit.priming_number,
    "explicit": lambda H: jexplicit.explicit_solution(H, 2.0),
    "sweeps": lambda H: jexplicit.iterative_scaling_sweeps(H, TWO[jnp.arange(4) % 2], jnp.zeros((2, 2)), sweeps=2).losses,
    "bound": lambda H: jexplicit.curvature_bound_sweeps(H, TWO[jnp.arange(4) % 2], sweeps=2).losses,
    "least squares": lambda H: (
        jexplicit.gram_least_squares(
            jexplicit.gram_matrix(jexplicit.split_examples(H, TWO[jnp.arange(4) % 2]), jax.tree_util.Partial(lambda X: X))
        ).U
    ),
    "positive parts": jexplicit.positive_parts,
    "unit rows": jexplicit.unit_rows,
    "noise": lambda H: jexplicit.noisy_counts(H[:2], jexplicit.noise_model(np.array([1, 3]))),
    "Kneser-Ney": kneser_ney,
}


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("function", ANY_TYPE)
def test_whole_numbers_do_not_wrap(function, dtype):
    expected = ANY_TYPE[function](jnp.asarray(WHOLE, float))
    np.testing.assert_allclose(ANY_TYPE[function](jnp.asarray(WHOLE, dtype)), expected, rtol=1e-6)


def test_logits_of_minus_infinity_are_probabilities_of_0():
    assert jexplicit.mean_loss(jnp.array([[0.0, -jnp.inf]]), TWO[:1]) == 0
    model = jexplicit.token_model([jnp.log(jnp.eye(3))], "cat", False)
    assert jexplicit.explain(model, np.array([[0]]), np.array([0])).evidence.tolist() == [[0.0]]


def test_an_output_without_an_example_is_fitted():
    blocks = jexplicit.split_examples(H, jnp.concatenate([Y, jnp.zeros((12, 1), "f4")], axis=1))
    features = jax.tree_util.Partial(lambda X: X)
    fit = jexplicit.gram_softmax_sweeps(jexplicit.gram_matrix(blocks, features), blocks, features, sweeps=3)
    assert finite(fit) and (fit.logits(H).argmax(axis=1) < 2).all()


def test_random_features_of_equal_numbers_are_0():
    X = jnp.full((1, 700), 0.1, "f4")  # their mean is rounded
    assert not jexplicit.random_features(X, jnp.ones((700, 3), "f4")).any()


def test_text_without_words_has_no_word_perplexity():
    found = comparable_measures(1.0, TextSizes(documents=1, bytes=1, characters=1, words=0))
    assert found["word_perplexity"] is None and found["bits_per_byte"] == pytest.approx(1 / np.log(2))

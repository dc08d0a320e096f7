"""Closed forms and measures with constant, zero, rank-deficient and tiny input: finite, or a message whose remedy works."""

import functools
import io
import json
from inspect import unwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from refusals import refused
from tables import each_row, refuse

import icl
import icl.blur
import jexplicit
from icl.blur.learning import image_sets
from icl.recurrences import Stream
from icl.tasks import Sequence, Tasks
from jexplicit import lm, solvers
from jexplicit.data.streams import check_stream
from jexplicit.data.text import TextSizes
from jexplicit.features import fit_axes, fourier_directions
from jexplicit.lm.evaluation import comparable_measures, judgement, log_probabilities, paired_difference
from jexplicit.lm.layers import kneser_ney
from jexplicit.lm.model import token_model
from jexplicit.lm.ngram import bigram_model, unigram_model
from jexplicit.runs.devices import key_of_seed
from jexplicit.runs.progress import json_line
from jexplicit.solvers.explicit import calibration_error, fit_delta, fit_temperature
from jexplicit.solvers.feature_machine import feature_machine
from launch.lm.run import fit_scaling


@pytest.fixture(autouse=True)
def no_type_checks(monkeypatch):
    """As in a user's program, where annotations are not checked."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


rng = np.random.default_rng(0)
TARGETS = np.eye(2, dtype="f4")[np.arange(12) % 2]
MADE = {
    "constant": np.ones((12, 3), "f4"),
    "duplicate": np.repeat(rng.random((12, 1), "f4"), 3, axis=1),
    "zero": np.zeros((12, 3), "f4"),
    "a column of zeros": np.concatenate([rng.random((12, 2), "f4"), np.zeros((12, 1), "f4")], axis=1),
    "tiny": 1e-12 * rng.random((12, 3), "f4"),
    "large": 1e12 * rng.random((12, 3), "f4"),
    "one example of each": np.tile(np.eye(2, 3, dtype="f4"), (6, 1)) + 1e-3,
}
WIDE = {"more columns than rows": rng.random((12, 30), "f4")}


def solve(H, Y):
    return jexplicit.explicit_solution(solvers.dense_cooccurrence(H, Y), max(1.0, float(solvers.priming_number(H))))


def zeros(*shape):
    return jax.device_put(np.zeros(shape, "f4"))


def gram_fit(H, Y, ridge=1e-4):
    gram = solvers.gram_matrix(solvers.split_examples(H, Y), jax.tree_util.Partial(lambda X: X))
    return solvers.gram_least_squares(gram, ridge=ridge)


TEXTS = ["the cat sat on the mat", "a dog ran to the log"] * 10
fit = functools.partial(jexplicit.fit, tokenizer="word")
FITS = {
    "explicit": lambda H, Y: H @ solve(H, Y),
    "sweeps": lambda H, Y: solvers.iterative_scaling_sweeps(H, Y, zeros(H.shape[1], 2), sweeps=3).logits(H),
    "bound": lambda H, Y: solvers.curvature_bound_sweeps(H, Y, sweeps=3).logits(H),
    "least squares": lambda H, Y: gram_fit(H, Y).logits(H),
    "layers": lambda H, Y: jexplicit.solve_layers(H, Y, [solvers.SoftmaxLayer()] * 2),
}


def finite(tree):
    return all(np.isfinite(np.asarray(leaf, float)).all() for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("fit", [*list(FITS)[:-1], pytest.param("layers", marks=pytest.mark.slow)])
def test_a_fit_of_degenerate_features_is_finite_or_refused(fit):
    def check(name, H):
        try:
            fitted = FITS[fit](jax.device_put(H), jax.device_put(TARGETS))
        except ValueError as error:
            assert "\n" not in str(error) and "dtype" not in str(error)
        else:
            assert finite(fitted)

    each_row(check, (MADE | (WIDE if fit == "least squares" else {})).items())


def test_a_learned_rule_refuses_inputs_that_it_cannot_learn_from():
    rule, rng = icl.blur.learner("digits"), np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: rule.init(key, (4, 3, 2)), jax.random.key(0))
    state = jax.tree.map(lambda leaf: jax.device_put(rng.normal(size=leaf.shape).astype(leaf.dtype)), shapes)
    y = jax.device_put(np.eye(2, dtype="f4")[np.arange(8) % 2])
    inputs = [jax.device_put(np.full((8, 4), scale, "f4")) for scale in (1e-3, np.nan)]
    words = r"inputs of root mean square .*: standardise them"
    refuse([(words, lambda x=x: rule.update(x, y, state)) for x in inputs], of_values=True)


def test_a_predictor_of_degenerate_contexts_is_finite():
    for X in (made[:5] for name, made in MADE.items() if name != "large"):
        c = Sequence(*jax.device_put((X, X[:, :1], np.ones(3, "f4"), np.ones(1, "f4"))))
        assert finite(icl.gradient_descent(c, 0.1, steps=3)) and finite(icl.gd_plus_plus(c, 0.1, 0.1, steps=3))
        assert finite(icl.predict(icl.descent_layers(3, len(X), 0.1, gamma=0.1, layers=2, dtype="f4"), c))
        assert finite(icl.ridge(c, 1e-3))


def refusals():
    """Parts of messages, and calls of each value that follows."""
    device, KEY, FLAT = jax.device_put, jax.random.key(0), jax.tree_util.Partial(lambda X: X.reshape(len(X), -1))
    image = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
    logits, two, features = np.array([[1.0, 0.0], [0.0, 2.0]]), np.eye(2), MADE["duplicate"]
    LOGITS, TWO, H, Y = map(device, (logits, two, features, TARGETS))
    TABLE = np.array([[0, 2, 0], [1, 0, 1], [0, 1, 0]], np.int32)
    UNIFORM, NAN = token_model([zeros(3, 3)], "cat", False), TARGETS * np.nan
    wavelets = jexplicit.features.wavelets((8, 8), octaves=1, angles=2, grid=2)
    WIDE = Sequence(*device((np.ones((1, 3)), np.ones((1, 1)), np.ones(3), np.zeros(1))))
    SAME = Stream(*device((np.ones((3, 2)), np.ones((3, 1)), np.ones((3, 2)))))
    RARE = features * np.where(np.arange(24).reshape(12, 2)[:, :1] % 4 == 2, [1, 1, 0], 1).astype("f4")

    def scaling(H, U=None):
        return solvers.iterative_scaling_sweeps(H, Y, zeros(3, 2) if U is None else U, sweeps=1)

    def machine(X=H, **options):
        return feature_machine(X, Y, solves=2, **options)

    def waves(shape, octaves, angles, grid):
        return jexplicit.features.wavelets(shape, octaves=octaves, angles=angles, grid=grid)

    def delta_of(n):
        return fit_delta(lambda x: x, *device((np.zeros((n, 2)), np.ones(n), np.ones(n, int), np.array([0.0, 1.0]))))

    ZEROS, TOKEN = (np.zeros((3, 3), np.int32),), np.array([0, 1, 2, 1, 0])
    rows = [
        ("label", lambda y: solvers.accuracy(LOGITS, device(np.array(y))), [0], [0, 2], [0, 0.5]),
        ("example 0 is -?inf", lambda x: solvers.accuracy(device(np.array([[x, x], [0, 2]])), device(two[0])), np.inf, -np.inf),
        (r"logits \(0, 2\)", lambda n: solvers.accuracy(zeros(n, 2), device(np.zeros(n, int))), 0),
        ("targets", lambda y: solvers.mean_loss(LOGITS, device(y)), two[:1], -two, two * np.nan, 2 * two),
        ("number K = .*rescale the features", lambda K: jexplicit.explicit_solution(TWO, K), 0.5, np.nan, device(two[0])),
        ("K = 0.5", lambda K: jexplicit.solve_layers(H, Y, [solvers.SoftmaxLayer(K=K)]), 0.5),
        ("no layer", lambda layers: jexplicit.solve_layers(H, Y, layers), []),
        ("value (nan|inf)", lambda x: jexplicit.explicit_solution((TWO, device(np.full((1, 2), x))), 2.0), np.nan, np.inf),
        ("output 1 never.*with_unseen_outputs", lambda F: jexplicit.explicit_solution(device(F), 2.0), two * two[0]),
        (r"features between.*nan.*relu\(-x\)", lambda X: solvers.dense_cooccurrence(device(X), Y), features * np.nan),
        ("split signed features", lambda X: scaling(device(X)), -features),
        ("feature 2 never co-occurs with output 1", lambda X: scaling(device(X)), RARE),
        ("finite parameters", lambda x: scaling(H, device(np.full((3, 2), x, "f4"))), np.nan),
        (r"U \(2, 2\)", lambda U: scaling(H, U), zeros(2, 2)),
        (r"U \(2, 2\)", lambda U: solvers.curvature_bound_sweeps(H, Y, U, sweeps=1), zeros(2, 2)),
        ("-1 sweeps", lambda n: solvers.curvature_bound_sweeps(H, Y, sweeps=n), -1),
        ("ridge 0.0", lambda ridge: solvers.curvature_bound_sweeps(H, Y, sweeps=1, ridge=ridge), 0.0),
        ("features that are not finite", lambda X: solvers.curvature_bound_sweeps(device(X), Y, sweeps=1), features * np.nan),
        ("features that are not finite", lambda X: gram_fit(X, TARGETS), features * np.inf),
        (r"features \(12, 3\), targets \(11, 2\)", lambda Y: gram_fit(features, Y), TARGETS[:-1]),
        ("ridge (0|nan)", lambda ridge: gram_fit(features, TARGETS, ridge), 0, np.nan),
        ("factorised with ridge 1e-09: .* not constant", lambda X: gram_fit(X, TARGETS, 1e-9), MADE["constant"]),
        ("blocks of 0", lambda block: solvers.split_examples(features, TARGETS, block=block), 0),
        ("0 examples", lambda z: fit_temperature(z, device(np.zeros(0, int))), zeros(0, 2)),
        ("finite logits", lambda x: fit_temperature(device(x * two), device(np.zeros(2, int))), np.nan),
        (r"logits \(0, 2\)", lambda z: calibration_error(z, device(np.zeros(0, int))), zeros(0, 2)),
        ("no (examples|delta within)", delta_of, 0, 3),
        ("kernel 'cubic'.* quadratic or gaussian or laplace", lambda kernel: machine(kernel=kernel), "cubic"),
        ("power nan", lambda power: machine(power=power), np.nan),
        ("0 landmarks: use .* numbers above 0", lambda n: machine(landmarks=n), 0),
        ("solve . is not finite: use a ridge above", lambda X: machine(device(X)), 1e30 * features),
        ("give an array", lambda F: jexplicit.explicit_solution(F, 2.0), TWO[0], two.tolist(), ()),
        ("mean norm", lambda X: solvers.priming_number(device(X)), np.zeros((0, 3), "f4"), features * np.nan),
        ("targets", lambda y: FITS["bound"](H, device(y)), 2 * TARGETS),
        ("targets", lambda y: solvers.dense_cooccurrence(H, device(y)), -TARGETS, NAN, TARGETS[:1]),
        ("targets that are not finite", lambda y: solvers.split_examples(features, y), NAN),
        ("layer 1 has weights that are not finite", lambda y: jexplicit.solve_layers(y, y, [solvers.SoftmaxLayer()] * 2), Y),
        ("without variance", lambda X: fit_axes(FLAT, X, 17, dimensions=3), np.full((20, 8, 8), 7, np.uint8)),
        ("counts with a sum of 0", lambda C: lm.explicit_language_model(C, features="cat"), ZEROS),
        ("counts with a sum of 0", unigram_model, ZEROS),
        ("no counts: count a text first", lambda C: lm.explicit_language_model(C, features="cat", context=None), ()),
        ("pass an array", unwrap(check_stream), [0, 1, 0]),
        ("seed -1: use a whole number", lambda seed: fourier_directions(seed, 3, 4), -1),
        ("temperature inf", lambda x: jexplicit.generate(KEY, UNIFORM, TOKEN[:1], 3, temperature=x), np.inf),
        ("to a side of 0", lambda n: image_sets(jexplicit.data.read_images("digits"), side=n), 0),
        ("integers of at least 0", lambda C: jexplicit.counts.merge_counts((C,), (TABLE,)), TABLE * 0.5),
        ("whole numbers", lambda C: bigram_model((C,)), TABLE * 0.5, TABLE - np.eye(3, dtype=int)),
        ("whole numbers", lambda x: kneser_ney(device(np.array([[x, 1.0], [1.0, 1.0]]))), -1.0, 0.5, np.nan),
        ("token counts", lm.noise_model, np.array([np.nan, 1.0])),
        ("pass integers", lambda X: log_probabilities(UNIFORM, X, np.array([1])), np.array([[0.0]])),
        ("a sample of 0", lambda n: jexplicit.evaluate(UNIFORM, np.array([0, 1, 0]), sample=n), 0),
        (r"integers|\[\[\]\]", lambda X: jexplicit.generate(KEY, UNIFORM, X, 2), np.array([1.5]), []),
        ("at least one", lambda tables: token_model(tables, "cat", False), []),
        ("one of each", lambda x: paired_difference(np.ones(2), x, np.ones(2, int)), np.ones(1)),
        ("0 bytes", lambda sizes: paired_difference(np.ones(2), np.ones(2), sizes), np.zeros(2, int)),
        ("at least one pair", lambda d: judgement(np.array(d)), [], [1.0, np.nan]),
        ("NaN", lambda loss: comparable_measures(loss, None), np.nan),
        ("a line needs two", lambda x: fit_scaling(x, np.ones(2)), np.array([3, 3])),
        ("grey levels", lambda n: fit_axes(FLAT, image[:9], n, dimensions=3), 1),
        ("0 dimensions", lambda n: fit_axes(FLAT, image, 17, dimensions=n), 0),
        ("scale 0.0", lambda scale: fourier_directions(KEY, 3, 5, scale=scale), 0.0),
        ("0 directions", lambda n: fourier_directions(KEY, 3, n), 0),
        ("9 x 12: use 1 to 2 oct", lambda sizes: waves((9, 12), *sizes), (0, 3, 2), (3, 3, 2), (2, 0, 2), (2, 3, 10)),
        (r"of \(6, 6\) and wavelets for \(8, 8\)", lambda X: jexplicit.features.scattering_pools(X, wavelets), zeros(1, 6, 6)),
        ("phases", lambda x: jexplicit.features.fourier_features(device(np.full((1, 2), x)), TWO), 1e20),
        ("grey", lambda X: jexplicit.features.scattering_pools(device(X), wavelets), -np.ones((1, 8, 8))),
        ("penalty", lambda p: icl.ridge(WIDE, p), 0.0, np.nan),
        ("above 0", lambda r: icl.optimal_rate(Tasks(input_range=r)), 0.0),
        ("noise", lambda x: Tasks(noise=x), -1.0, np.nan),
        ("one of each", lambda y: icl.half_mse(y, zeros(1, 1)), zeros(1, 5)),
        ("at least one pair", lambda X: icl.squared_error(zeros(1, 2), X, zeros(1, 1)), zeros(3, 2)),
        ("not finite", lambda noise: icl.kalman_filter(SAME, noise, 1.0), 0.0),
        ("divide each row", lambda y: solvers.accuracy(LOGITS, device(y)), 3 * two),
        (r"table\['text'\]", fit, {"id": [*range(len(TEXTS))], "text": TEXTS}),
        (r"sorted\(texts\)", fit, set(TEXTS)),
        (r"the string 'the cat' instead of texts: pass a list, \[text\], or a pathlib.Path", fit, "the cat"),
        ("no text in 0 documents: give some", fit, []),
        (r"text 1 is (int '7'|PosixPath 'a'): .*pass either strings", fit, ["the cat", 7], ["the cat", Path("a")]),
        ("field='text', documents='line' with strings", lambda field: fit(TEXTS, field=field), "text"),
        ("method 'magic': choose one of", lambda method: fit(TEXTS, method), "magic"),
        ("lm.pt.*safetensors.*arpa.gz", fit(TEXTS, "bigram").save, "lm.pt"),
        ("above 0 and finite", lambda penalty: icl.mesa_conjugate_gradients(SAME, penalty, steps=2), np.inf),
    ]
    return [(message, functools.partial(call, value)) for message, call, *values in rows for value in values]


def test_what_has_no_answer_is_refused():
    refuse(refusals(), errors=(ValueError, FloatingPointError), of_values=True)


WHOLE = np.array([[200, 100], [100, 200], [7, 250], [90, 3]])
HALVES = np.eye(2)[np.arange(4) % 2]
ANY_TYPE = {
    "co-occurrences": lambda H: solvers.dense_cooccurrence(H, (WHOLE > 99).astype(H.dtype)),
    "norm": solvers.priming_number,
    "sweeps": lambda H: (
        solvers.iterative_scaling_sweeps(H, jax.device_put(HALVES), jax.device_put(np.zeros((2, 2))), sweeps=2).losses
    ),
    "bound": lambda H: solvers.curvature_bound_sweeps(H, jax.device_put(HALVES), sweeps=2).losses,
    "positive parts": jexplicit.features.positive_parts,
    "noise": lambda H: lm.noisy_counts(H[:2], lm.noise_model(np.array([1, 3]))),
    "Kneser-Ney": kneser_ney,
}


def test_whole_numbers_do_not_wrap():
    @jax.jit
    def every(H):
        return {name: function(H) for name, function in ANY_TYPE.items()}

    expected = every(jax.device_put(WHOLE.astype(float)))
    for name, found in every(jax.device_put(WHOLE.astype(np.uint8))).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-6, err_msg=name)
    one, other = (gram_fit(WHOLE.astype(kind), HALVES).U for kind in (np.uint8, float))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_has_an_answer_in_the_limit_has_it():
    assert solvers.mean_loss(*jax.device_put((np.array([[0.0, -np.inf]]), np.eye(2)[:1]))) == 0  # a probability of 0
    model = token_model([jnp.log(jnp.eye(3))], "cat", False)
    assert jexplicit.explain(model, np.array([[0]]), np.array([0])).evidence.tolist() == [[0.0]]
    found = comparable_measures(1.0, TextSizes(documents=1, bytes=1, characters=1, words=0))
    assert found["word_perplexity"] is None and found["bits_per_byte"] == pytest.approx(1 / np.log(2))


def test_every_name_can_be_printed_as_json():
    name = "caf\N{LATIN SMALL LETTER E WITH ACUTE} b\ud83d"
    for encoding in ("utf-8", "ascii"):
        with pytest.MonkeyPatch.context() as patch:
            out = io.TextIOWrapper(io.BytesIO(), encoding)
            patch.setattr("sys.stdout", out)
            print(json_line({"id": name}), file=out, flush=True)
        assert json.loads(out.buffer.getvalue().decode(encoding)) == {"id": name}


def test_every_seed_has_a_key_of_its_own_and_others_are_refused():
    seeds = [0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**40, 2**62 + 5, 2**63 - 1]
    keys = [tuple(jax.random.key_data(key_of_seed(seed)).tolist()) for seed in seeds]
    assert len(set(keys)) == len(seeds)
    assert keys[:5] == [tuple(jax.random.key_data(jax.random.key(seed)).tolist()) for seed in seeds[:5]]
    assert key_of_seed(np.int64(5)) == key_of_seed(5) == key_of_seed(jax.random.key(5)) == jax.jit(key_of_seed)(np.uint32(5))
    model = fit(TEXTS, "bigram")
    for seed in (2**63, -1):
        refused(f"seed {seed}: use a whole number from 0 to 2\\^63 - 1", model.generate, "the", 2, seed=seed)
    refused("seed -1: use a whole number", fit, TEXTS, "context-mixing", seed=-1)
    assert model.generate("the", 2, seed=2**63 - 1)

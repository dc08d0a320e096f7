"""What functions of icl refuse, and how they behave under jit, vmap and grad and as accelerators run them."""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from samples import two_classes
from tables import each_row, refuse

import icl
from icl import blur
from icl.attention import Regression, init_layers
from icl.blocks import induction_model, init_model, next_outputs
from icl.blur import MetaRecipe, Rules, Stage, descent_curves, learning_curves, random_genome
from icl.blur.baselines import mixture, plane, select_tasks, task_sets
from icl.blur.learning import resize_images
from icl.blur.rules import forward
from icl.blur.search import Family, MetaState, make_source, mean_scores, meta_optimizer, meta_steps
from icl.closed_form import all_heads_solution, exact_moments, sampled_moments, solution_loss
from icl.problems import Chains, Copying, Waves, copying_layers, init_network, predict_waves, separate_tokens
from icl.rates import Spectrum, losses_by_context
from icl.recurrences import Dynamics, Stream
from icl.tasks import Tasks, contract
from icl.training import Recipe, TrainingState, blocked_gradient, make_optimizer, training_steps
from jexplicit.data.images import read_images
from jexplicit.runs.devices import data_mesh


def filled(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a function draws from a key, in shape alone: ones."""
    shapes = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.device_put(np.ones(leaf.shape, leaf.dtype)), shapes)


def refusals() -> list[tuple[str, Callable[[], Any]]]:
    """Parts of messages, and the calls."""
    KEY, device, traced = jax.random.key(0), jax.device_put, jax.eval_shape
    TASKS = icl.Tasks(dim=3, context=5, outputs=2)
    BATCH = filled(icl.sample_tasks, TASKS, 4)
    ONE = filled(icl.sample_tasks, TASKS)
    SINGLE = filled(icl.sample_tasks, icl.Tasks(dim=3, context=5))
    LAYERS, PAIR = filled(icl.init_layers, 5), filled(icl.init_layers, 5, layers=2)
    W = device(np.ones((5, 3)))
    FIRST: Any = np.ones((2, 4))
    STREAM = Stream(*(device(np.ones((23, n))) for n in (4, 2, 4)))
    K, V, Q = STREAM
    REGRESSION, RECIPE = icl.Regression(icl.Tasks(dim=2, context=3)), icl.Recipe(batch_size=24)
    STARTS = filled(lambda key: jax.vmap(lambda key: icl.init_layers(key, 3))(jax.random.split(key)))
    WAVES = Waves(context=6)
    RULES, GENOME, DATA = blur.Rules(states=2), filled(blur.random_genome, 2), two_classes()
    GENOMES = jax.tree.map(lambda leaf: device(np.asarray(leaf)[None]), GENOME)
    SYNAPSES = filled(blur.init_synapses, GENOME, RULES, (3, 4, 2))
    x, y = map(device, two_classes(5))
    META = blur.MetaRecipe(hidden=(4,), batch_size=6, query_size=8)
    SEVERAL = META._replace(families=(Family(classes=5),))
    CURVE = functools.partial(blur.learning_curves, GENOME, RULES, (5,), DATA, DATA, steps=6, batch_size=8, seeds=(0,))
    quiet = filled(lambda key: icl.token_moments(icl.Tasks(dim=3, context=4), jnp.ones((1, 3))))
    digits = functools.cache(lambda: read_images("digits"))
    mesa = functools.partial(icl.mesa_conjugate_gradients, STREAM, 1.0)
    RECURRENCES = {
        "linear attention": lambda gamma: icl.linear_attention(STREAM, forgetting=gamma),
        "delta rule": lambda gamma: icl.delta_rule(STREAM, 0.1, forgetting=gamma),
        "recursion": lambda gamma: icl.mesa_recursion(STREAM, 0.5, forgetting=gamma),
        "gradients": lambda gamma: icl.mesa_conjugate_gradients(STREAM, 0.5, steps=3, forgetting=gamma),
    }
    RIDGES = (
        functools.partial(icl.mesa_conjugate_gradients, steps=12, chunk=5),
        icl.mesa_recursion,
    )
    return [
        ("context 0", lambda: icl.Tasks(context=0)),
        ("'cauchy'.*uniform", lambda: icl.Tasks(inputs="cauchy")),  # pyright: ignore[reportArgumentType]
        ("give one for each", lambda: icl.Tasks(dim=3, scales=(1.0,))),
        ("no single variance", lambda: icl.Tasks(dim=1, scales=(1.0,)).variance),
        (r"X \(4, 3\)", lambda: icl.tokens(ONE._replace(X=np.ones((4, 3))))),
        ("jax.vmap", lambda: icl.tokens(BATCH)),
        (r"W0 \(1, 4\)", lambda: icl.tokens(ONE, np.zeros((1, 4)))),
        # attention and descent
        ("depth 3 of 2 layers", lambda: icl.predict(PAIR, ONE, depth=3)),
        ("width 6", lambda: icl.predict(LAYERS, filled(icl.sample_tasks, icl.Tasks(dim=5)))),
        ("softmax .* for 1 layers", lambda: icl.predict(LAYERS, ONE, softmax=(True, False))),
        (r"X \(5, 3\): wanted \[N, d, batch\].*icl.predict", lambda: icl.predict_batch(LAYERS, ONE)),
        ("give one rate", lambda: icl.descent_layers(4, 6, np.ones(2), gamma=np.ones(3))),
        ("start from zero", lambda: icl.descent_layers(4, 6, 0.1, gamma=0.1, W0=FIRST)),
        ("dim 0", lambda: icl.descent_layers(0, 6, 0.1)),
        ("preconditioner", lambda: icl.descent_layers(4, 6, 0.1, preconditioner=device(np.eye(3)))),
        ("0 steps", lambda: icl.gradient_descent(ONE, 0.1, steps=0)),
        (r"W0 \(2, 4\)", lambda: icl.gradient_descent(ONE, 0.1, W0=np.zeros((2, 4)))),
        ("2 steps, eta", lambda: icl.gd_plus_plus(ONE, np.ones(3), 0.1, steps=2)),
        (r"y_q \(3,\)", lambda: icl.ridge(ONE._replace(y_q=np.zeros(3)), 0.1)),
        ("scale 0", lambda: icl.init_layers(KEY, 4, scale=0)),
        ("width 2.5, .*use whole numbers", lambda: icl.init_layers(KEY, 2.5)),  # pyright: ignore[reportArgumentType]
        ("a batch of type NoneType: give icl.sample_tasks", lambda: icl.predict_batch(LAYERS, None)),  # pyright: ignore[reportArgumentType]
        # training and comparison
        ("block 7 for batches of 24", lambda: blocked_gradient(PAIR, np.ones(24), REGRESSION.loss, block=7)),
        ("parameters of 2 seeds", lambda: icl.train_layers(STARTS, REGRESSION, RECIPE, steps=1, seeds=[0])),
        ("0 steps", lambda: icl.train_layers(STARTS, REGRESSION, RECIPE, steps=0, seeds=[0, 1])),
        ("one head", lambda: icl.interpolate(filled(icl.init_layers, 4, heads=2), filled(icl.init_layers, 4), dim=3)),
        ("same shape", lambda: icl.interpolate(filled(icl.init_layers, 4, layers=3), filled(icl.init_layers, 4), dim=3)),
        # solvers
        ("factor", lambda: traced(lambda A: exact_moments(icl.Tasks(), factor=A), np.eye(3))),
        (r"X \(0, 3, 2\)", lambda: icl.sampled_moments(device(np.zeros((0, 3, 2))))),
        ("0 layers", lambda: icl.optimal_polynomials(Spectrum(np.ones(2), np.ones(2), 1.0), icl.Tasks(), layers=0, tied=True)),
        (
            "0 eigenvalues",
            lambda: icl.optimal_polynomials(Spectrum(np.ones(0), np.ones(0), 1.0), icl.Tasks(), layers=2, tied=True),
        ),
        ("0 contexts", lambda: icl.spectral_law(KEY, icl.Tasks(), 0)),
        ("bound 0", lambda: icl.chebyshev_rates(0.0, 10, 2)),
        # finitely many tasks
        ("0 tasks", lambda: icl.FiniteTasks(TASKS, 0)),
        ("2 outputs", lambda: icl.FiniteTasks(TASKS, 3)),
        ("variance 0.0", lambda: icl.discrete_mmse(SINGLE, W, 0.0)),
        ("block 0", lambda: icl.discrete_mmse(SINGLE, W, 0.25, block=0)),
        (r"W \(5, 2\)", lambda: icl.discrete_mmse(SINGLE, np.ones((5, 2)), 0.25)),
        (r"W \(0, 3\)", lambda: icl.token_moments(icl.Tasks(dim=3), np.ones((0, 3)))),
        (r"probabilities \(0,\)", lambda: icl.token_moments(icl.Tasks(dim=3), W, np.ones(0))),
        ("0 sweeps", lambda: icl.one_head_solution(quiet, sweeps=0)),
        ("from 1 to 5", lambda: icl.diversity_curve(icl.Tasks(dim=3, noise=0.5), W, [6])),
        ("noise 0.0", lambda: icl.diversity_curve(icl.Tasks(dim=3), W, [1])),
        ("tolerance 0.0", lambda: icl.diversity_threshold(icl.Tasks(dim=3, noise=0.5), tolerance=0.0)),
        ("wanted a stack of one layer", lambda: icl.head_tensor(filled(icl.init_layers, 4, layers=2), 4)),
        ("context 0", lambda: icl.head_layer(np.ones(4), np.ones((4, 3)), 0)),
        # other problems
        ("2 outputs", lambda: Copying(icl.Tasks(outputs=2))),
        ("width 3", lambda: Copying(icl.Tasks(), codes=3)),
        ("2 outputs", lambda: separate_tokens(ONE)),
        ("amplitude", lambda: Waves(amplitude=(0.5, 0.1))),
        ("context 0", lambda: Waves(context=0)),
        ("1 channels", lambda: init_network(KEY, channels=1)),
        ("-1 layers", lambda: init_network(KEY, layers=-1)),
        (
            "depth 3 of 2 layers",
            lambda: traced(
                functools.partial(predict_waves, depth=3),
                filled(init_network, channels=5, layers=2),
                filled(lambda key: WAVES.sample(key, 2)),
            ),
        ),
        ("1 states, length 64", lambda: Chains(states=1)),
        ("length 1", lambda: Chains(length=1)),
        *((f"alpha {alpha}", lambda alpha=alpha: Chains(alpha=alpha)) for alpha in cast(Any, (0.0, 1e-40, float("inf"), "1"))),
        ("0 chains: draw at least one", lambda: Chains().sample(KEY, 0)),
        ("1 states", lambda: traced(lambda: induction_model(1, 4, 1.0))),
        (r"shape \(2,\) for 3 states", lambda: traced(lambda: induction_model(3, 4, np.ones(2)))),
        ("0 states", lambda: init_model(KEY, 0, 4)),
        (
            "6 tokens for a layer with 5 distances",
            lambda: traced(next_outputs, filled(init_model, 2, 5), np.zeros(6, np.int32)),
        ),
        # streams and their layers
        ("dim 0", lambda: icl.Streams(dim=0)),
        ("noise 0.0", lambda: icl.Streams(noise=0.0)),
        ("memory 1.5", lambda: icl.Streams(memory=1.5)),
        ("variances .* of 2 inputs", lambda: icl.Streams(dim=2, variances=(1.0,))),
        ("a positive one", lambda: icl.Streams(dim=2, variances=(1.0, 0.0))),
        ("tokens 0", lambda: Dynamics(tokens=0)),
        ("noise -1.0", lambda: Dynamics(noise=-1.0)),
        ("memory 0.9", lambda: icl.ridge_losses(icl.Streams(memory=0.9))),
        *(
            (r"K \(.*wanted \[T, d\]", functools.partial(icl.linear_attention, bad))
            for bad in (Stream(K[:5], V, Q), Stream(K, V, Q[:, :2]), Stream(K[None], V, Q), Stream(K[:0], V[:0], Q[:0]))
        ),
        *(
            ("above 0 and at most 1", functools.partial(layer, gamma))
            for layer in RECURRENCES.values()
            for gamma in (0.0, -0.5, 1.1, float("nan"), np.full(23, 1.5))
        ),
        *(
            ("use numbers above 0", functools.partial(layer, STREAM, penalty))
            for layer in RIDGES
            for penalty in (0.0, -1.0, np.array([1.0, 1.0, 0.0, 1.0]))
        ),
        *((r"penalty \(3,\) for keys of 4", functools.partial(layer, STREAM, np.ones(3))) for layer in RIDGES),
        (r"forgetting \(3,\) for 23 tokens", lambda: icl.mesa_recursion(STREAM, 1.0, forgetting=np.ones(3))),
        (r"rate \(2,\)", lambda: icl.delta_rule(STREAM, np.ones(2))),
        ("0 steps", lambda: mesa(steps=0)),
        ("chunks of 0", lambda: mesa(steps=1, chunk=0)),
        # update rules
        ("1 states.*at least 2", lambda: blur.Rules(states=1)),
        ("average with synapse_norm", lambda: blur.Rules(average=True, synapse_norm=True)),
        ("genome of 2 states, and rules of 4", lambda: forward(GENOME, blur.Rules(states=4), SYNAPSES, x)),
        (r"inputs \(5, 2\): wanted \[batch, 3\]", lambda: forward(GENOME, RULES, SYNAPSES, device(np.ones((5, 2))))),
        (
            r"targets \(5, 1\) and outputs \(5, 2\)",
            lambda: traced(lambda y: blur.learn(GENOME, RULES, SYNAPSES, x, y), np.ones((5, 1))),
        ),
        (r"layers of \(3,\)", lambda: blur.init_synapses(KEY, GENOME, RULES, (3,))),
        ("zeta: the scalars", lambda: traced(lambda: blur.random_genome(KEY, 2, zeta=1.0))),
        ("cross_entropy of tanh outputs", lambda: blur.sgd_rules("tanh", "cross_entropy", output="tanh")),
        ("batches of 9 out of 8", lambda: blur.minibatches(0, 8, steps=1, batch_size=9)),
        *(
            ("of 6 updates: give ascending numbers from 0 to 6", functools.partial(CURVE, at=at))
            for at in ((), (1, 0), (0, 7), (-1, 2), (2, 2))
        ),
        (
            "no learning rates: give at least one",
            lambda: blur.descent_curves("sgd", (), (5,), DATA, DATA, normalised=False, steps=1),
        ),
        (
            "8 queries and batches of 6 out of 10 examples",
            lambda: blur.meta_train(GENOMES, RULES, META, (blur.Stage(2, 4),), two_classes(10), two_classes(10)),
        ),
        (r"stages \[\(0, 4\)\]", lambda: blur.meta_train(GENOMES, RULES, META, (blur.Stage(0, 4),), DATA, DATA)),
        ("use 2 to 2 classes", lambda: blur.meta_train(GENOMES, RULES, SEVERAL, (blur.Stage(1, 1),), two_classes(300), DATA)),
        ("neither a file nor one of boolean, digits", lambda: blur.load_genome("nothing")),
        ("neither a file nor one of", lambda: blur.learner("nothing")),
        ("28 x 28 to a side of 30", lambda: resize_images(np.ones((1, 28, 28)), 30)),
        ("60 images of digits: at least 100", lambda: blur.image_sets(digits(), limit=60)),
        ("classes 3 of digits: use at least two of 0 .. 9", lambda: blur.image_sets(digits(), classes=(3,))),
        ("classes 3 10 of digits", lambda: blur.image_sets(digits(), classes=(3, 10))),
        # small tasks
        ("tasks whine: choose some of mnist@7.*iris", lambda: select_tasks(["iris", "whine"])),
        ("tasks none: choose some of", lambda: select_tasks([])),
        ("tasks on MNIST: .*leave them out, and name the other tasks: iris moons", lambda: task_sets("mnist@7")),
        ("data 'mnist@8': choose one of mnist@7", lambda: task_sets("mnist@8")),
        ("'sun' is not a figure in the plane: choose one of moons", lambda: plane("sun", 4, np.random.default_rng(0))),
        ("0 inputs", lambda: mixture(4, np.random.default_rng(0), inputs=0, classes=2)),
    ]


def test_values_that_have_no_answer_are_refused():
    quiet = icl.token_moments(icl.Tasks(dim=3, context=4), jax.device_put(np.ones((1, 3))))
    nothing = jax.jit(icl.sampled_moments)(np.zeros((2, 3, 2)))
    rows: list[tuple[str, Callable[[], Any]]] = [
        ("above 0", lambda: induction_model(3, 4, -1.0)),
        ("sharpness 0", lambda: icl.softmax_descent_layer(3, 5, 0.7, sharpness=0.0)),
        ("cannot be inverted", lambda: icl.optimal_solution(nothing)),
        ("cannot be inverted", lambda: all_heads_solution(quiet)),
        ("cannot be inverted", lambda: icl.one_head_solution(quiet)),
        ("tolerance 100.0", lambda: icl.diversity_threshold(icl.Tasks(dim=3, noise=0.5), tolerance=100.0)),
    ]
    refuse(rows, of_values=True)


def test_what_does_not_fit_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    refuse(refusals())


TASKS = icl.Tasks(dim=3, context=5)
RATES = np.array([0.3, 0.8])
DRIFT = icl.Streams(dim=3, tokens=12, outputs=2, noise=0.4, memory=0.9, variances=(0.5, 1.0, 2.0))
RNG: Any = np.random.default_rng(0)


def regression(*batch: int) -> icl.Sequence:
    """Linear regressions of uniform inputs in [-1, 1], of NumPy."""
    X, W, x_q = RNG.uniform(-1, 1, (5, 3, *batch)), RNG.normal(size=(1, 3, *batch)), RNG.uniform(-1, 1, (3, *batch))
    return icl.Sequence(X, np.einsum("md...,nd...->nm...", W, X), x_q, np.einsum("md...,d...->m...", W, x_q))


BATCH = regression(50)


CONSTRUCTIONS = {
    "gd": lambda eta: icl.descent_layers(3, 5, eta),
    "gd++": lambda eta: icl.descent_layers(3, 5, eta, gamma=eta / 10, layers=2),
    "weights": lambda eta: icl.descent_layers(3, 5, eta, W0=eta * jnp.ones((1, 3)), preconditioner=eta * jnp.eye(3)),
    "softmax": lambda eta: icl.softmax_descent_layer(3, 5, eta, sharpness=eta / 10),
    "copying": lambda eta: copying_layers(3, 5, eta),
}
SOLVERS = {
    "optimal rate": lambda x: icl.optimal_rate(icl.Tasks(noise=x)),
    "one-step loss": lambda x: icl.one_step_loss(icl.Tasks(weight_scale=x), 1.0),
    "optimal solution": lambda x: icl.optimal_solution(exact_moments(icl.Tasks(dim=3, noise=x))),
    "sampled moments": lambda x: icl.optimal_solution(sampled_moments(jnp.moveaxis(BATCH.X, -1, 0), v=x)),
    "solution loss": lambda x: solution_loss(x * jnp.eye(3), exact_moments(TASKS)),
    "polynomial": lambda x: losses_by_context(jnp.ones((4, 3)), x[None], jnp.zeros(1), TASKS),
    "losses of the delta rule": lambda x: icl.delta_losses(DRIFT, x / 2),
}


def drawn(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Parameters of the shapes that a function draws."""
    shapes = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0))
    return jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape) / 2, shapes)


@functools.cache
def predictors() -> dict[str, Callable[[Any], Any]]:
    STACK = drawn(icl.init_layers, 4, layers=2, heads=2)
    NETWORK = drawn(init_network, channels=5, hidden=7)
    return {
        "attention": lambda batch: icl.predict_batch(of_type(STACK, batch), batch, clip=2.0),
        "softmax": lambda batch: icl.predict_batch(of_type(STACK, batch), batch, softmax=True, layernorm=True),
        "gd++": icl.vmap_tasks(lambda one: icl.gd_plus_plus(one, 0.5, 0.05, steps=3)[-1]),
        "ridge": icl.vmap_tasks(lambda one: icl.ridge(one, 0.5)),
        "waves": lambda batch: predict_waves(of_type(NETWORK, batch), batch).final,
    }


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_jit_vmap_and_grad_give_the_values_and_slopes_of_differences(plain):
    """Values and slopes at two rates and beside the first, in one program for each function."""
    h = 1e-5
    at = np.array([*RATES, RATES[0] + h, RATES[0] - h])

    def total(values):
        return sum(jnp.sum(leaf * np.cos(np.arange(leaf.size)).reshape(leaf.shape)) for leaf in jax.tree.leaves(values))

    def check(name, function):
        def value(x):
            values = function(x)
            return total(values), values

        (numbers, mapped), slopes = jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.value_and_grad(value, has_aux=True)))(at))
        # the difference is off by h² times the third derivative, and by 1e-16 / h times the value
        assert slopes[0] == pytest.approx((numbers[2] - numbers[3]) / (2 * h), rel=1e-4, abs=1e-8)
        if not plain:
            return
        for ours, theirs in zip(*map(jax.tree.leaves, (mapped, function(jax.device_put(RATES[0])))), strict=True):
            np.testing.assert_allclose(ours[0], theirs, rtol=1e-10, atol=1e-12)  # float64; solves of 3 x 3 systems

    each_row(check, (CONSTRUCTIONS | SOLVERS).items())


def test_values_are_not_checked_under_jit():
    assert not jnp.isfinite(jax.jit(lambda X: icl.optimal_solution(sampled_moments(X)))(np.zeros((2, 3, 2)))).all()


def of_type(params, batch):
    """Parameters in the precision of a batch."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, batch.X.dtype), params)


def test_the_order_of_the_context_the_answer_and_other_tasks_do_not_matter_and_precision_little():
    def check(name, predictor):
        predictor = jax.jit(predictor)
        of_waves = name == "waves"
        batch = jax.tree.map(lambda leaf: leaf[..., :4], BATCH)
        if of_waves:
            batch = jax.tree.map(
                lambda leaf: RNG.normal(size=leaf.shape),
                jax.eval_shape(lambda key: Waves(context=6).sample(key, 4), jax.random.key(0)),
            )
        whole = predictor(jax.device_put(batch))
        other = jax.tree.map(lambda leaf: np.concatenate([leaf[..., 1:3], leaf[..., :2] + 1], axis=-1), batch)
        turned = batch._replace(X=batch.X[::-1], Y=batch.Y[::-1], y_q=batch.y_q + 5)
        np.testing.assert_allclose(predictor(turned), whole, rtol=1e-10, atol=1e-11)  # float64, hundreds of terms of order 1
        few = np.asarray(predictor(jax.device_put(other)))[:, :2]
        np.testing.assert_allclose(few, np.asarray(whole)[:, 1:3], rtol=1e-10, atol=1e-11)
        single = predictor(jax.device_put(jax.tree.map(lambda leaf: leaf.astype("f4"), batch)))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, whole, rtol=1e-4, atol=1e-4)  # a few hundred roundings of 6e-8

    each_row(check, predictors().items())


# Tolerances: the same float32 operations in another order, a few hundred of them one after the other, each with a relative
# rounding of 6e-8: 1e-4. Accuracies are shares of whole predictions: one more is a
# larger difference.

RULES = Rules(states=2, synapse_norm=True)
HIDDEN = (4,)


@functools.cache
def examples():
    return jax.tree.map(jnp.asarray, two_classes())


@functools.cache
def genomes():
    return jax.vmap(lambda key: random_genome(key, 2))(jax.random.split(jax.random.key(0), 3))


def contractions():
    """In float64: 7 products of numbers of size 1, whose sum rounds by less than 1e-14."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(7, 3, 5)), rng.normal(size=(7, 2, 5))
    return jax.jit(jax.value_and_grad(lambda A, B: jnp.sum(jnp.sin(contract(A, B))), (0, 1)))(A, B)


def scores_of_genomes():
    learners = {"rules": RULES, "family": Family(HIDDEN, 8), "unroll": 3, "query_size": 10, "learners": 2}
    return mean_scores(genomes(), jax.random.key(1), make_source(examples()), **learners)


def curves_of_a_rule_and_of_descent():
    shared = {"steps": 3, "batch_size": 8, "seeds": (0, 1)}
    genome, data = jax.tree.map(lambda leaf: leaf[0], genomes()), examples()
    descent = descent_curves("sgd", (0.1, 0.5), HIDDEN, data, data, normalised=True, **shared)
    return learning_curves(genome, RULES, HIDDEN, data, data, **shared), descent


def losses_of_meta_steps():
    recipe, stage = MetaRecipe(hidden=HIDDEN, batch_size=8, query_size=10), Stage(2, 10)
    moments = jax.vmap(meta_optimizer(recipe, 10).init)(genomes())
    state = MetaState(jax.tree.map(jnp.copy, genomes()), moments, jnp.zeros(3, int))
    run = meta_steps(RULES, recipe, recipe.tasks[0], stage, 2, data_mesh(1))
    return run(state, jnp.arange(3), jax.random.key(1), jnp.asarray(0), make_source(examples()))[1]


def losses_of_training_steps():
    problem, recipe = Regression(Tasks(dim=2, context=3), 2), Recipe(batch_size=256)

    @jax.jit
    def start(key):
        params = jax.vmap(lambda key: init_layers(key, 3))(jax.random.split(key, 2))
        return TrainingState(params, jax.vmap(make_optimizer(recipe, 3).init)(params)), jax.random.split(key)

    state, keys = start(jax.random.key(0))
    return training_steps(problem, recipe, 3, data_mesh(1))(state, keys, jax.device_put(np.array(0)))[1]


@pytest.mark.parametrize(
    "compute, rounding",
    [
        (contractions, 1e-13),
        (losses_of_training_steps, 1e-4),
        pytest.param(scores_of_genomes, 1e-4, marks=pytest.mark.slow),
        pytest.param(curves_of_a_rule_and_of_descent, 1e-4, marks=pytest.mark.slow),
        pytest.param(losses_of_meta_steps, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_accelerators_compute_what_a_cpu_does(compute, rounding, elsewhere):
    for ours, theirs in zip(*map(jax.tree.leaves, (compute(), elsewhere(compute))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=1e-13)

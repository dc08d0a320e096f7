"""What the package refuses: sizes below one, shapes that do not fit, unknown names. Messages name the value or the remedy."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from samples import two_classes
from tables import refuse

from icl import (
    FiniteTasks,
    Recipe,
    Regression,
    Streams,
    Tasks,
    chebyshev_rates,
    context_eigenvalues,
    delta_rule,
    descent_layers,
    discrete_mmse,
    diversity_curve,
    diversity_threshold,
    gd_plus_plus,
    gradient_descent,
    head_layer,
    head_tensor,
    init_layers,
    interpolate,
    linear_attention,
    mesa_conjugate_gradients,
    mesa_recursion,
    one_head_solution,
    optimal_polynomials,
    optimal_rate,
    optimal_solution,
    predict,
    predict_batch,
    prefix_ridge,
    ridge,
    ridge_losses,
    sample_tasks,
    sampled_moments,
    sherman_morrison,
    softmax_descent_layer,
    spectral_law,
    token_moments,
    tokens,
    train_layers,
)
from icl.blur import (
    MetaRecipe,
    Rules,
    Stage,
    descent_curves,
    image_sets,
    init_synapses,
    learn,
    learner,
    learning_curves,
    load_genome,
    meta_train,
    minibatches,
    random_genome,
    sgd_rules,
)
from icl.blur.data import resize_images
from icl.blur.episodes import Family
from icl.blur.judging import mixture, plane, select_tasks, task_sets
from icl.blur.rules import forward
from icl.models.causal import init_model, next_outputs
from icl.models.constructions import diagonal_layers
from icl.models.induction import counting_model, induction_model
from icl.models.recurrences import Stream
from icl.models.streams import Dynamics
from icl.models.transformer import CausalTransformer
from icl.problems.copying import Copying, separate_tokens
from icl.problems.function_classes import FunctionClass, sample_prompt
from icl.problems.markov import Chains
from icl.problems.mixed_noise import MixedNoise, fit_diagonal
from icl.problems.sine_waves import Waves, init_network, predict_waves, sample_waves
from icl.solvers.closed_form import exact_moments
from icl.solvers.newton import newton_residual
from icl.solvers.single_layer import all_heads_solution
from icl.solvers.spectrum import Spectrum
from icl.training import blocked_gradient
from jexplicit.data.images import read_images


def filled(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a function draws from a key, in shape alone: ones."""
    shapes = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.device_put(np.ones(leaf.shape, leaf.dtype)), shapes)


def refusals() -> list[tuple[str, Callable[[], Any]]]:
    """Parts of messages, and the calls."""
    KEY, device, traced = jax.random.key(0), jax.device_put, jax.eval_shape
    TASKS = Tasks(dim=3, context=5, outputs=2)
    BATCH = filled(sample_tasks, TASKS, 4)
    ONE = filled(sample_tasks, TASKS)
    SINGLE = filled(sample_tasks, Tasks(dim=3, context=5))
    LAYERS, PAIR = filled(init_layers, 5), filled(init_layers, 5, layers=2)
    W = device(np.ones((5, 3)))
    FIRST: Any = np.ones((2, 4))
    STREAM = Stream(*(device(np.ones((23, n))) for n in (4, 2, 4)))
    K, V, Q = STREAM
    REGRESSION, RECIPE = Regression(Tasks(dim=2, context=3)), Recipe(batch_size=24)
    STARTS = filled(lambda key: jax.vmap(lambda key: init_layers(key, 3))(jax.random.split(key)))
    CLASS, WAVES = FunctionClass(dim=4, points=9), Waves(context=6)
    RULES, GENOME, DATA = Rules(states=2), filled(random_genome, 2), two_classes()
    GENOMES = jax.tree.map(lambda leaf: device(np.asarray(leaf)[None]), GENOME)
    SYNAPSES = filled(init_synapses, GENOME, RULES, (3, 4, 2))
    x, y = map(device, two_classes(5))
    META = MetaRecipe(hidden=(4,), batch_size=6, query_size=8)
    SEVERAL = META._replace(families=(Family(classes=5),))
    CURVE = functools.partial(learning_curves, GENOME, RULES, (5,), DATA, DATA, steps=6, batch_size=8, seeds=(0,))
    quiet = filled(lambda key: token_moments(Tasks(dim=3, context=4), jnp.ones((1, 3))))
    digits = functools.cache(lambda: read_images("digits"))
    mesa = functools.partial(mesa_conjugate_gradients, STREAM, 1.0)
    RECURRENCES = {
        "linear attention": lambda gamma: linear_attention(STREAM, forgetting=gamma),
        "delta rule": lambda gamma: delta_rule(STREAM, 0.1, forgetting=gamma),
        "recursion": lambda gamma: mesa_recursion(STREAM, 0.5, forgetting=gamma),
        "gradients": lambda gamma: mesa_conjugate_gradients(STREAM, 0.5, steps=3, forgetting=gamma),
    }
    RIDGES = (functools.partial(mesa_conjugate_gradients, steps=12, chunk=5), mesa_recursion, sherman_morrison, prefix_ridge)
    return [
        ("context 0", lambda: Tasks(context=0)),
        ("'cauchy'.*uniform", lambda: Tasks(inputs="cauchy")),  # pyright: ignore[reportArgumentType]
        ("sampled_moments", lambda: Tasks(inputs="exponential").kurtosis),
        ("give one for each", lambda: Tasks(dim=3, scales=(1.0,))),
        ("no single variance", lambda: Tasks(dim=1, scales=(1.0,)).variance),
        (r"X \(4, 3\)", lambda: tokens(ONE._replace(X=np.ones((4, 3))))),
        ("jax.vmap", lambda: tokens(BATCH)),
        (r"W0 \(1, 4\)", lambda: tokens(ONE, np.zeros((1, 4)))),
        # attention and descent
        ("depth 3 of 2 layers", lambda: predict(PAIR, ONE, depth=3)),
        ("width 6", lambda: predict(LAYERS, filled(sample_tasks, Tasks(dim=5)))),
        ("softmax .* for 1 layers", lambda: predict(LAYERS, ONE, softmax=(True, False))),
        (r"X \(5, 3\): wanted \[N, d, batch\].*icl.predict", lambda: predict_batch(LAYERS, ONE)),
        ("give one rate", lambda: descent_layers(4, 6, np.ones(2), gamma=np.ones(3))),
        ("start from zero", lambda: descent_layers(4, 6, 0.1, gamma=0.1, W0=FIRST)),
        ("dim 0", lambda: descent_layers(0, 6, 0.1)),
        ("preconditioner", lambda: descent_layers(4, 6, 0.1, preconditioner=device(np.eye(3)))),
        ("0 steps", lambda: gradient_descent(ONE, 0.1, steps=0)),
        (r"W0 \(2, 4\)", lambda: gradient_descent(ONE, 0.1, W0=np.zeros((2, 4)))),
        ("2 steps, eta", lambda: gd_plus_plus(ONE, np.ones(3), 0.1, steps=2)),
        (r"y_q \(3,\)", lambda: ridge(ONE._replace(y_q=np.zeros(3)), 0.1)),
        ("scale 0", lambda: init_layers(KEY, 4, scale=0)),
        # training and comparison
        ("block 7 for batches of 24", lambda: blocked_gradient(PAIR, np.ones(24), REGRESSION.loss, block=7)),
        ("parameters of 2 seeds", lambda: train_layers(STARTS, REGRESSION, RECIPE, steps=1, seeds=[0])),
        ("0 steps", lambda: train_layers(STARTS, REGRESSION, RECIPE, steps=0, seeds=[0, 1])),
        ("one head", lambda: interpolate(filled(init_layers, 4, heads=2), filled(init_layers, 4), dim=3)),
        ("same shape", lambda: interpolate(filled(init_layers, 4, layers=3), filled(init_layers, 4), dim=3)),
        # solvers
        ("sampled_moments", lambda: optimal_rate(Tasks(inputs="mixture"))),
        ("factor", lambda: traced(lambda A: exact_moments(Tasks(), factor=A), np.eye(3))),
        (r"X \(0, 3, 2\)", lambda: sampled_moments(device(np.zeros((0, 3, 2))))),
        ("power 2", lambda: newton_residual(device(np.ones(2)), 1, power=2)),
        ("0 layers", lambda: optimal_polynomials(Spectrum(np.ones(2), np.ones(2), 1.0), Tasks(), layers=0, tied=True)),
        ("0 eigenvalues", lambda: optimal_polynomials(Spectrum(np.ones(0), np.ones(0), 1.0), Tasks(), layers=2, tied=True)),
        ("0 contexts", lambda: spectral_law(KEY, Tasks(), 0)),
        ("sampled_moments", lambda: context_eigenvalues(KEY, Tasks(inputs="mixture"), 5)),
        ("bound 0", lambda: chebyshev_rates(0.0, 10, 2)),
        # finitely many tasks
        ("0 tasks", lambda: FiniteTasks(TASKS, 0)),
        ("2 outputs", lambda: FiniteTasks(TASKS, 3)),
        ("variance 0.0", lambda: discrete_mmse(SINGLE, W, 0.0)),
        ("block 0", lambda: discrete_mmse(SINGLE, W, 0.25, block=0)),
        (r"W \(5, 2\)", lambda: discrete_mmse(SINGLE, np.ones((5, 2)), 0.25)),
        (r"W \(0, 3\)", lambda: token_moments(Tasks(dim=3), np.ones((0, 3)))),
        (r"probabilities \(0,\)", lambda: token_moments(Tasks(dim=3), W, np.ones(0))),
        ("sampled_moments", lambda: token_moments(Tasks(dim=3, inputs="mixture"), W)),
        ("0 sweeps", lambda: one_head_solution(quiet, sweeps=0)),
        ("from 1 to 5", lambda: diversity_curve(Tasks(dim=3, noise=0.5), W, [6])),
        ("noise 0.0", lambda: diversity_curve(Tasks(dim=3), W, [1])),
        ("tolerance 0.0", lambda: diversity_threshold(Tasks(dim=3, noise=0.5), tolerance=0.0)),
        ("wanted a stack of one layer", lambda: head_tensor(filled(init_layers, 4, layers=2), 4)),
        ("context 0", lambda: head_layer(np.ones(4), np.ones((4, 3)), 0)),
        # other problems
        ("2 outputs", lambda: Copying(Tasks(outputs=2))),
        ("width 3", lambda: Copying(Tasks(), codes=3)),
        ("2 outputs", lambda: separate_tokens(ONE)),
        ("shift 'up'", lambda: sample_prompt(KEY, CLASS, "up")),  # pyright: ignore[reportArgumentType]
        ("9 points in 4 dimensions", lambda: sample_prompt(KEY, CLASS, "orthogonal query")),
        ("cubic", lambda: FunctionClass("cubic")),  # pyright: ignore[reportArgumentType]
        ("dim 0", lambda: FunctionClass(dim=0)),
        ("dim 2.*nonzero 3", lambda: FunctionClass("sparse", dim=2, nonzero=3)),
        ("points 0", lambda: FunctionClass(points=0)),
        ("hidden 0", lambda: FunctionClass(hidden=0)),
        ("width 8 for 3 heads", lambda: CausalTransformer(width=8, heads=3).init(KEY, np.ones((1, 5, 4)), np.ones((1, 5)))),
        ("context 3", lambda: MixedNoise(dim=3, context=3)),
        ("levels", lambda: MixedNoise(levels=(1.0, -1.0))),
        (r"wanted \[layers, 4\]", lambda: diagonal_layers(np.zeros((2, 3)), 3)),
        (r"wanted \[layers, 4\]", lambda: fit_diagonal(SINGLE, np.zeros((2, 3)))),
        ("amplitude", lambda: Waves(amplitude=(0.5, 0.1))),
        ("context 0", lambda: Waves(context=0)),
        ("1 channels", lambda: init_network(KEY, channels=1)),
        ("-1 layers", lambda: init_network(KEY, layers=-1)),
        (
            "depth 3 of 2 layers",
            lambda: traced(
                functools.partial(predict_waves, depth=3),
                filled(init_network, channels=5, layers=2),
                filled(sample_waves, WAVES, 2),
            ),
        ),
        ("1 states, length 64", lambda: Chains(states=1)),
        ("length 1", lambda: Chains(length=1)),
        ("alpha 0.0", lambda: Chains(alpha=0.0)),
        ("1 states", lambda: traced(lambda: induction_model(1, 4, 1.0))),
        ("length 0", lambda: counting_model(3, 0)),
        (r"shape \(2,\) for 3 states", lambda: traced(lambda: induction_model(3, 4, np.ones(2)))),
        ("0 states", lambda: init_model(KEY, 0, 4)),
        (
            "6 tokens for a layer with 5 distances",
            lambda: traced(next_outputs, filled(init_model, 2, 5), np.zeros(6, np.int32)),
        ),
        # streams and their layers
        ("dim 0", lambda: Streams(dim=0)),
        ("noise 0.0", lambda: Streams(noise=0.0)),
        ("memory 1.5", lambda: Streams(memory=1.5)),
        ("variances .* of 2 inputs", lambda: Streams(dim=2, variances=(1.0,))),
        ("a positive one", lambda: Streams(dim=2, variances=(1.0, 0.0))),
        ("tokens 0", lambda: Dynamics(tokens=0)),
        ("noise -1.0", lambda: Dynamics(noise=-1.0)),
        ("memory 0.9", lambda: ridge_losses(Streams(memory=0.9))),
        *(
            (r"K \(.*wanted \[T, d\]", functools.partial(linear_attention, bad))
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
        (r"forgetting \(3,\) for 23 tokens", lambda: mesa_recursion(STREAM, 1.0, forgetting=np.ones(3))),
        (r"rate \(2,\)", lambda: delta_rule(STREAM, np.ones(2))),
        ("0 steps", lambda: mesa(steps=0)),
        ("chunks of 0", lambda: mesa(steps=1, chunk=0)),
        # update rules
        ("1 states.*at least 2", lambda: Rules(states=1)),
        ("average with synapse_norm", lambda: Rules(average=True, synapse_norm=True)),
        ("genome of 2 states, and rules of 4", lambda: forward(GENOME, Rules(states=4), SYNAPSES, x)),
        (r"inputs \(5, 2\): wanted \[batch, 3\]", lambda: forward(GENOME, RULES, SYNAPSES, device(np.ones((5, 2))))),
        (
            r"targets \(5, 1\) and outputs \(5, 2\)",
            lambda: traced(lambda y: learn(GENOME, RULES, SYNAPSES, x, y), np.ones((5, 1))),
        ),
        (r"layers of \(3,\)", lambda: init_synapses(KEY, GENOME, RULES, (3,))),
        ("zeta: the scalars", lambda: traced(lambda: random_genome(KEY, 2, zeta=1.0))),
        ("cross_entropy of tanh outputs", lambda: sgd_rules("tanh", "cross_entropy", output="tanh")),
        ("batches of 9 out of 8", lambda: minibatches(0, 8, steps=1, batch_size=9)),
        *(
            ("of 6 updates: give ascending numbers from 0 to 6", functools.partial(CURVE, at=at))
            for at in ((), (1, 0), (0, 7), (-1, 2), (2, 2))
        ),
        (
            "no learning rates: give at least one",
            lambda: descent_curves("sgd", (), (5,), DATA, DATA, normalised=False, steps=1),
        ),
        (
            "8 queries and batches of 6 out of 10 examples",
            lambda: meta_train(GENOMES, RULES, META, (Stage(2, 4),), two_classes(10), two_classes(10)),
        ),
        (r"stages \[\(0, 4\)\]", lambda: meta_train(GENOMES, RULES, META, (Stage(0, 4),), DATA, DATA)),
        ("use 2 to 2 classes", lambda: meta_train(GENOMES, RULES, SEVERAL, (Stage(1, 1),), two_classes(300), DATA)),
        ("neither a file nor one of boolean, digits", lambda: load_genome("nothing")),
        ("neither a file nor one of", lambda: learner("nothing")),
        ("28 x 28 to a side of 30", lambda: resize_images(np.ones((1, 28, 28)), 30)),
        ("60 images of digits: at least 100", lambda: image_sets(digits(), limit=60)),
        ("classes 3 of digits: use at least two of 0 .. 9", lambda: image_sets(digits(), classes=(3,))),
        ("classes 3 10 of digits", lambda: image_sets(digits(), classes=(3, 10))),
        # small tasks
        ("tasks whine: choose some of mnist@7.*iris", lambda: select_tasks(["iris", "whine"])),
        ("tasks none: choose some of", lambda: select_tasks([])),
        ("tasks on MNIST: .*leave them out, and name the other tasks: iris moons", lambda: task_sets("mnist@7")),
        ("data 'mnist@8': choose one of mnist@7", lambda: task_sets("mnist@8")),
        ("'sun' is not a figure in the plane: choose one of moons", lambda: plane("sun", 4, np.random.default_rng(0))),
        ("0 inputs", lambda: mixture(4, np.random.default_rng(0), inputs=0, classes=2)),
    ]


def test_values_that_have_no_answer_are_refused():
    quiet = token_moments(Tasks(dim=3, context=4), jax.device_put(np.ones((1, 3))))
    nothing = jax.jit(sampled_moments)(np.zeros((2, 3, 2)))
    rows: list[tuple[str, Callable[[], Any]]] = [
        ("above 0", lambda: induction_model(3, 4, -1.0)),
        ("sharpness 0", lambda: softmax_descent_layer(3, 5, 0.7, sharpness=0.0)),
        ("cannot be inverted", lambda: optimal_solution(nothing)),
        ("cannot be inverted", lambda: all_heads_solution(quiet)),
        ("cannot be inverted", lambda: one_head_solution(quiet)),
        ("tolerance 100.0", lambda: diversity_threshold(Tasks(dim=3, noise=0.5), tolerance=100.0)),
    ]
    refuse(rows, of_values=True)


def test_what_does_not_fit_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    refuse(refusals())

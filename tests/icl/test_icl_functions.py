"""What functions of icl refuse, and how accelerators run them."""

import functools
from collections.abc import Callable
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from drawn import two_classes
from tables import refuse

import icl
from icl import blur
from icl.blur.baselines import select_tasks, task_sets
from icl.blur.learning import resize_images
from icl.blur.rules import forward
from icl.closed_form import all_heads_solution
from icl.problems import Chains, copying_tokens, induction_model
from icl.rates import Spectrum, least_loss
from icl.recurrences import Stream
from icl.tasks import contract
from jexplicit.data.images import read_images

RNG: Any = np.random.default_rng(0)


def filled(init: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Parameters of the shapes that a function draws from a key, in NumPy's numbers."""
    shapes = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(RNG.normal(size=leaf.shape) / 2, leaf.dtype)), shapes)


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
        (
            "8 queries and batches of 6",
            lambda: blur.meta_train(GENOMES, RULES, META, (blur.Stage(2, 4),), TEN, TEN),
        ),
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
    A, B, G = (RNG.normal(size=shape) for shape in ((7, 3, 5), (7, 2, 5), (3, 2, 5)))

    def found():
        product, backward = jax.jit(lambda A, B: jax.vjp(contract, A, B))(A, B)
        return product, *jax.jit(backward)(G)

    of_A, of_B = np.einsum("kjb,ijb->kib", B, G), np.einsum("kib,ijb->kjb", A, G)
    for compute in (found, functools.partial(elsewhere, found)):
        chex.assert_trees_all_close(compute(), (np.einsum("kib,kjb->ijb", A, B), of_A, of_B), rtol=1e-13, atol=1e-13)

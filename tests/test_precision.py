"""Matrix products are in full precision wherever a closed form, a fit or an identity depends on them, whoever calls them how.

An accelerator would round their factors to TF32 or bfloat16. What is asked of it stands in the lowered program, on any machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
from tables import each_row, products

from icl import closed_form, descent, problems
from icl.blur.baselines import network_loss, sgd_rules
from icl.blur.rules import Rules, backprop_genome, init_synapses, learn
from icl.tasks import Sequence, Tasks
from jexplicit import features
from jexplicit.nn.networks import linear_autoencoder
from jexplicit.runs.devices import full_precision
from jexplicit.solvers import sweeps
from jexplicit.solvers.sweeps import SoftmaxFit


def ones(shape):
    return jax.device_put(np.ones(shape))


def eye(size):
    return jax.device_put(np.eye(size))


def drawn(init, *args, **options):
    """Of the shapes that a function draws: ones."""
    shapes = jax.eval_shape(lambda key: init(key, *args, **options), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.device_put(np.ones(leaf.shape, leaf.dtype)), shapes)


def cases():
    X, Y = ones((3, 4)), ones((3, 2))
    H, T = ones((5, 4)), jax.device_put(np.full((5, 3), 1 / 3))
    U = ones((4, 3))
    TASKS = Tasks(dim=2, context=5)
    ONE = Sequence(ones((5, 2)), ones((5, 1)), ones(2), ones(1))
    MOMENTS = closed_form.Moments(eye(2), eye(2), eye(2), 5, 0.0)
    RULES, GENOME = Rules(states=2), backprop_genome(2)
    x, y = jax.device_put((np.ones((3, 4), GENOME.f.dtype), np.ones((3, 2), GENOME.f.dtype)))
    SYNAPSES = drawn(init_synapses, GENOME, RULES, (4, 3, 2))
    ENCODER = drawn(problems.init_network, channels=4, hidden=3).encoder
    STREAM = sweeps.split_examples(np.ones((5, 4)), np.full((5, 3), 1 / 3))
    IDENTITY = jax.tree_util.Partial(lambda X: X)
    PROBLEM = sweeps.CurvatureProblem(STREAM, IDENTITY, ones(4), eye(4), ones(()))
    AXES = features.Axes(ones(8), ones((8, 3)))
    WAVES = ones((2, 3, 7))

    return {
        "logits of a fit": (lambda H, Y: sweeps.curvature_bound_sweeps(H, Y, sweeps=0).logits(H), (H, T)),
        "streamed sums": (lambda X: sweeps.gram_matrix(STREAM._replace(X=X), IDENTITY), (STREAM.X,)),
        "streamed sweep": (sweeps.curvature_sweep, ((U, ones(3)), PROBLEM)),
        "streamed logits": (lambda X: sweeps.streamed_logits(SoftmaxFit(U, ones(3), ()), X, IDENTITY), (H,)),
        "descriptors": (lambda H: features._project(H, AXES), (ones((2, 8)),)),
        "autoencoder": (lambda X: linear_autoencoder(X, 2)(X), (H,)),
        "gradient": (jax.grad(descent.squared_error), (ones((1, 2)), ONE.X, ONE.Y)),
        "moments": (lambda A: closed_form.exact_moments(TASKS, factor=A)[:3], (eye(2),)),
        "sampled moments": (lambda X: closed_form.sampled_moments(X)[:3], (ones((4, 5, 2)),)),
        "its loss": (closed_form.solution_loss, (eye(2), MOMENTS)),
        "wave features": (problems.features, (ENCODER, WAVES)),
        "update rule": (lambda x, y: learn(GENOME, RULES, SYNAPSES, x, y), (x, y)),
        "its gradient": (jax.grad(lambda genome: learn(genome, RULES, SYNAPSES, x, y)[1].sum()), (GENOME,)),
        "descent of a network": (lambda W: network_loss(sgd_rules("tanh", "cross_entropy"), [W], X, Y), (ones((5, 2)),)),
    }


def test_products_are_in_full_precision():
    def check(name, function, arguments):
        found = products(function, *arguments)
        assert found
        assert not [line for line in found if "HIGHEST" not in line]

    each_row(check, ((name, *case) for name, case in cases().items()))


def test_default_precision_is_seen_and_outside_nothing_changes():
    assert "HIGHEST" not in products(jnp.matmul, ones((3, 4)), ones(4))[0]
    assert "HIGHEST" in products(full_precision(jnp.matmul), ones((3, 4)), ones(4))[0]
    assert jax.config.jax_default_matmul_precision is None  # pyright: ignore[reportAttributeAccessIssue]

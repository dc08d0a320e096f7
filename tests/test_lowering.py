"""Programs for accelerators: no loop that starts a kernel for every row, in functions and shapes of large jobs, and products of
matrices in full precision, which an accelerator would round to TF32 or bfloat16."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from tables import each_row, products

from icl import attention, closed_form, problems
from icl.attention import Regression, init_layers
from icl.blur.baselines import network_loss, sgd_rules
from icl.blur.design import Rules
from icl.blur.learning import Examples
from icl.blur.rules import random_genome
from icl.blur.search import Family, MetaRecipe, MetaState, Source, Stage, meta_optimizer, meta_steps
from icl.tasks import Tasks
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit import features
from jexplicit.counts import counting_step
from jexplicit.features import fourier_features
from jexplicit.lm import training as gradient
from jexplicit.lm.attribution import attribute_positions
from jexplicit.lm.model import token_model
from jexplicit.nn.networks import linear_autoencoder
from jexplicit.runs.devices import data_mesh, full_precision
from jexplicit.solvers import explicit, sweeps

N, K = 8192, 4  # vocabulary and context of the tables
Lowered = tuple[Any, tuple[Any, ...]]  # a compiled function, and its arguments as shapes


def _shape(*sizes: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _ints(*sizes: int) -> Any:
    return _shape(*sizes, dtype=np.int32)


_tables = (_shape(N, N),) * K
_key, _seeds = jax.eval_shape(lambda: (jax.random.key(0), jax.random.split(jax.random.key(0), 5)))


def _batch(positions: int) -> gradient.DecoderBatch:
    return gradient.DecoderBatch(*(_ints(positions, K), _ints(positions)) * 2)


def _adagrad(mesh: Mesh) -> Lowered:
    optimizer = optax.adagrad(0.1)
    state = gradient.DecoderState(_tables, jax.eval_shape(optimizer.init, _tables))
    return gradient.training_step(optimizer, features="cat", noise=None, mesh=mesh), (state, _batch(N))


def _text_gradient(mesh: Mesh) -> Lowered:
    of_text = functools.partial(gradient.loss_and_gradient, features="cat", noise=None, mesh=mesh)
    return jax.jit(of_text), (_tables, _batch(1 << 18))


def _icl(mesh: Mesh) -> Lowered:
    recipe, problem = Recipe(), Regression(Tasks(dim=10, context=10), 5, clip=10.0)
    params = jax.eval_shape(jax.vmap(functools.partial(init_layers, width=11, layers=5)), _seeds)
    state = TrainingState(params, jax.eval_shape(jax.vmap(make_optimizer(recipe, 1).init), params))
    return training_steps(problem, recipe, 1, mesh), (state, _seeds, _ints())


_rules, _family, _genomes = Rules(states=4), Family((32,), 64), 8
_source = Source(Examples(_shape(1000, 64), _shape(1000, 10)), _shape(64, 64))
_population = jax.eval_shape(lambda: jax.vmap(lambda key: random_genome(key, 4))(jax.random.split(jax.random.key(0), _genomes)))


def _meta(mesh: Mesh) -> Lowered:
    recipe, stage = MetaRecipe(), Stage(10, 100)
    moments = jax.eval_shape(jax.vmap(meta_optimizer(recipe, stage.steps).init), _population)
    state = MetaState(_population, moments, _ints(_genomes))
    return meta_steps(_rules, recipe, _family, stage, 1, mesh), (state, _ints(_genomes), _key, _ints(), _source)


_counts = (_ints(N * N),) * K, _shape(1, K + (1 << 22), dtype=np.uint16), _ints(1)
_model = jax.eval_shape(lambda tables: token_model(tables, "cat", False), _tables)
_scaling = sweeps.ScalingProblem(_shape(4096, 784), _shape(4096, 10), _shape(784, 10), _shape())
_features: Any = jax.tree_util.Partial(fourier_features, W=_shape(400, 512))  # of 8 blocks of 2048 examples
_blocks = sweeps.ExampleBlocks(_shape(1, 8, 2048, 400), _shape(1, 8, 2048, 10), _shape(1, 8, 2048))
_streamed = sweeps.CurvatureProblem(_blocks, _features, _shape(1024), _shape(1024, 1024), _shape())

# what makes a function for a mesh of one device, and the `while` loops of its program for a GPU: one more may start a kernel
# for every row of something
HOT_FUNCTIONS: dict[str, tuple[Callable[[Mesh], Lowered], int]] = {
    "counting": (lambda mesh: (counting_step(mesh, K, N), _counts), 0),
    "explicit solution": (lambda mesh: (jax.jit(explicit.explicit_solution), (_tables, _shape())), 0),
    "attribution": (lambda mesh: (attribute_positions, (_model, _ints(2048, K), _ints(2048))), 1),
    "Adagrad step": (_adagrad, 1),
    "gradient of 2^18 contexts": (_text_gradient, 1),
    "iterative scaling": (lambda mesh: (sweeps.scaling_sweep, (_shape(784, 10), _scaling)), 0),
    "curvature bound": (lambda mesh: (sweeps.curvature_sweep, ((_shape(1024, 10), _shape(10)), _streamed)), 1),
    "ICL step, 5 layers": (_icl, 2),
    "BLUR meta-step": (_meta, 3),
}


@pytest.mark.parametrize("name", HOT_FUNCTIONS)
def test_hot_functions_lower_without_serial_loops(name, elsewhere):
    make, loops = HOT_FUNCTIONS[name]

    def programs(*platforms):
        function, arguments = make(data_mesh(1))
        return [str(jax.export.export(function, platforms=[platform])(*arguments).mlir_module()) for platform in platforms]

    for program in elsewhere(programs, "cuda", "tpu"):
        assert program.count("stablehlo.while") <= loops
        assert not [line for line in program.splitlines() if "stablehlo.dot_general" in line and "HIGHEST" not in line]


def ones(*shape):
    return jax.device_put(np.ones(shape))


def exact_functions():
    """Functions whose products are in full precision, whoever calls them how, and their arguments."""
    H, T, U, eye = ones(5, 4), jax.device_put(np.full((5, 3), 1 / 3)), ones(4, 3), jax.device_put(np.eye(2))
    moments = closed_form.Moments(eye, eye, eye, 5, 0.0)
    shapes = jax.eval_shape(lambda key: problems.init_model(key, 2, 5), jax.random.key(0))
    causal, states = jax.tree.map(lambda leaf: ones(*leaf.shape), shapes), jax.device_put(np.zeros(5, np.int32))
    stream, identity = sweeps.split_examples(np.ones((5, 4)), np.full((5, 3), 1 / 3)), jax.tree_util.Partial(lambda X: X)
    network = functools.partial(network_loss, sgd_rules("tanh", "cross_entropy"))
    return [
        ("logits of a fit", lambda H, Y: sweeps.curvature_bound_sweeps(H, Y, sweeps=0).logits(H), (H, T)),
        ("streamed sums", lambda X: sweeps.gram_matrix(stream._replace(X=X), identity), (stream.X,)),
        ("streamed logits", lambda X: sweeps.streamed_logits(sweeps.SoftmaxFit(U, ones(3), ()), X, identity), (H,)),
        ("descriptors", lambda H: features._project(H, features.Axes(ones(8), ones(8, 3))), (ones(2, 8),)),
        ("autoencoder", lambda X: linear_autoencoder(X, 2)(X), (H,)),
        ("gradient", jax.grad(attention.squared_error), (ones(1, 2), ones(5, 2), ones(5, 1))),
        ("moments", lambda A: closed_form.exact_moments(Tasks(dim=2, context=5), factor=A)[:3], (eye,)),
        ("sampled moments", lambda X: closed_form.sampled_moments(X)[:3], (ones(4, 5, 2),)),
        ("its loss", closed_form.solution_loss, (eye, moments)),
        ("causal attention", problems.next_outputs, (causal, states)),
        ("descent of a network", lambda W: network([W], ones(3, 4), ones(3, 2)), (ones(5, 2),)),
    ]


def test_products_are_in_full_precision():
    def check(name, function, arguments):
        found = products(function, *arguments)
        assert found and not [line for line in found if "HIGHEST" not in line]

    each_row(check, exact_functions())
    assert "HIGHEST" not in products(jnp.matmul, ones(3, 4), ones(4))[0]  # outside nothing changes
    assert "HIGHEST" in products(full_precision(jnp.matmul), ones(3, 4), ones(4))[0]
    assert jax.config.jax_default_matmul_precision is None  # pyright: ignore[reportAttributeAccessIssue]

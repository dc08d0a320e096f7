"""What is lowered for accelerators: no loop that starts a kernel for every row, and products of matrices in full precision.

The functions are those in which jobs spend their time, with the shapes of a large job. Nothing is computed, nothing is compiled
for accelerators, and plain jaxlib is all it takes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from icl.attention import Regression, init_layers
from icl.blur.learning import Examples
from icl.blur.rules import Rules, random_genome
from icl.blur.search import Family, MetaRecipe, MetaState, Source, Stage, mean_scores, meta_optimizer, meta_steps
from icl.tasks import Tasks
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.counts.pairs import counting_step
from jexplicit.features import fourier_features
from jexplicit.lm.attribution import attribute_positions
from jexplicit.lm.core.model import token_model
from jexplicit.lm.fits import gradient
from jexplicit.nn.networks import MLPLanguageModel, initial_state, training_step
from jexplicit.nn.training import objective
from jexplicit.runs.devices import data_mesh
from jexplicit.solvers.explicit import explicit_solution
from jexplicit.solvers.sweeps import CurvatureProblem, ExampleBlocks, ScalingProblem, curvature_sweep, scaling_sweep

N, K = 8192, 4  # vocabulary and context of the tables


class HotFunction(NamedTuple):
    """A function in which jobs spend their time.

    make: `mesh of one device -> compiled function, arguments as shapes`.
    loops: `while` loops of its program for a GPU. One more may start a kernel for every row of something.
    exact: whether all of its matrix products are in full precision.
    """

    make: Callable[[Mesh], tuple[Any, tuple[Any, ...]]]
    loops: int = 0
    exact: bool = True


def _shape(*sizes: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _ints(*sizes: int) -> Any:
    return _shape(*sizes, dtype=np.int32)


_table, _tables = _shape(N, N), (_shape(N, N),) * K
_key, _seeds = jax.eval_shape(lambda: (jax.random.key(0), jax.random.split(jax.random.key(0), 5)))


def _batch(positions: int) -> gradient.DecoderBatch:
    X, Y = _ints(positions, K), _ints(positions)
    return gradient.DecoderBatch(X, Y, X, Y)


def _adagrad(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    optimizer = optax.adagrad(0.1)
    state = gradient.DecoderState(_tables, jax.eval_shape(optimizer.init, _tables))
    return gradient.training_step(optimizer, features="cat", noise=None, mesh=mesh), (state, _batch(N))


def _text_gradient(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    add = functools.partial(gradient.add_gradient, features="cat", mesh=mesh)
    return jax.jit(add, donate_argnums=0), (_tables, _tables, _batch(1 << 18))


def _icl(layers: int, mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    recipe, problem = Recipe(), Regression(Tasks(dim=10, context=10), layers, clip=10.0 if layers > 3 else None)
    made = functools.partial(init_layers, width=11, layers=1 if layers <= 2 else layers)
    params = jax.eval_shape(jax.vmap(made), _seeds)
    state = TrainingState(params, jax.eval_shape(jax.vmap(make_optimizer(recipe, 1).init), params))
    return training_steps(problem, recipe, 1, mesh), (state, _seeds, _ints())


_rules, _family, _genomes = Rules(states=4), Family((32,), 64), 8
_source = Source(Examples(_shape(1000, 64), _shape(1000, 10)), _shape(64, 64))
_population = jax.eval_shape(lambda: jax.vmap(lambda key: random_genome(key, 4))(jax.random.split(jax.random.key(0), _genomes)))


_scores = functools.partial(mean_scores, rules=_rules, family=_family, unroll=10, learners=8, query_size=200)


def _meta(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    recipe, stage = MetaRecipe(), Stage(10, 100)
    moments = jax.eval_shape(jax.vmap(meta_optimizer(recipe, stage.steps).init), _population)
    state = MetaState(_population, moments, _ints(_genomes))
    return meta_steps(_rules, recipe, _family, stage, 1, mesh), (state, _ints(_genomes), _key, _ints(), _source)


def _network(model: Any, inputs: Any, mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    optimizer = optax.adam(1e-3)
    variables = jax.eval_shape(lambda key, x: {"batch_stats": {}, **model.init(key, x)}, _key, inputs)
    state = jax.eval_shape(lambda variables: initial_state(variables, optimizer), variables)
    return training_step(model, objective("softmax_cross_entropy"), optimizer), (state, (inputs, _ints(inputs.shape[0])))


_counts = (_ints(N * N),) * K, _shape(1, K + (1 << 22), dtype=np.uint16), _ints(1)
_model = jax.eval_shape(lambda tables: token_model(tables, "cat", False), _tables)
_examples, _weights = (_shape(4096, 784), _shape(4096, 10)), _shape(784, 10)
_scaling = ScalingProblem(*_examples, _weights, _shape())
_features: Any = jax.tree_util.Partial(fourier_features, W=_shape(400, 512))  # of 8 blocks of 2048 examples
_blocks = ExampleBlocks(_shape(1, 8, 2048, 400), _shape(1, 8, 2048, 10), _shape(1, 8, 2048))
_streamed = CurvatureProblem(_blocks, _features, _shape(1024), _shape(1024, 1024), _shape())


HOT_FUNCTIONS = {
    "counting": HotFunction(lambda mesh: (counting_step(mesh, K, N), _counts)),
    "explicit solution": HotFunction(lambda mesh: (jax.jit(explicit_solution), (_tables, _shape()))),
    "attribution": HotFunction(lambda mesh: (attribute_positions, (_model, _ints(2048, K), _ints(2048))), 1),
    "Adagrad step": HotFunction(_adagrad, 1),
    "gradient of 2^18 contexts": HotFunction(_text_gradient, 1),
    "iterative scaling": HotFunction(lambda mesh: (scaling_sweep, (_weights, _scaling))),
    "curvature bound": HotFunction(lambda mesh: (curvature_sweep, ((_shape(1024, 10), _shape(10)), _streamed)), 1),
    "ICL step, 5 layers": HotFunction(functools.partial(_icl, 5), 2),
    "BLUR scores": HotFunction(lambda mesh: (jax.jit(_scores), (_population, _key, _source)), 1),
    "BLUR meta-step": HotFunction(_meta, 3),
    "language network": HotFunction(functools.partial(_network, MLPLanguageModel(N, 64, (256,)), _ints(1024, K)), exact=False),
}


@pytest.mark.parametrize("name", HOT_FUNCTIONS)
def test_hot_functions_lower_without_serial_loops(name, elsewhere):
    hot = HOT_FUNCTIONS[name]

    def programs(*platforms):
        function, arguments = hot.make(data_mesh(1))
        return [str(jax.export.export(function, platforms=[platform])(*arguments).mlir_module()) for platform in platforms]

    for program in elsewhere(programs, "cuda", "tpu"):
        assert program.count("stablehlo.while") <= hot.loops, "a loop more may start a kernel for every row of something"
        default = [line for line in program.splitlines() if "stablehlo.dot_general" in line and "HIGHEST" not in line]
        assert not (default and hot.exact), "products in full precision, but those of a network's training"

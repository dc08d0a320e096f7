"""The compiled functions that jobs spend their time in, with the shapes of a large job: what is compiled for accelerators.

Nothing here is computed: arguments are shapes, so that every function can be lowered for any platform.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from icl.blur.data import Examples
from icl.blur.episodes import mean_scores
from icl.blur.families import Family, Source
from icl.blur.genome import random_genome
from icl.blur.judging.baselines import _descent_curves
from icl.blur.learning import _learning_curves
from icl.blur.meta import MetaRecipe, MetaState, Stage, meta_optimizer, meta_steps
from icl.blur.rules import Rules
from icl.models.attention import init_layers
from icl.models.batched import Regression
from icl.tasks import Tasks
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.counts import dense, sharded
from jexplicit.features.fourier import fourier_features
from jexplicit.lm import model as language_model
from jexplicit.lm.attribution import _explain
from jexplicit.lm.fits import gradient, optimum
from jexplicit.lm.fits.moments import _sums as moment_sums
from jexplicit.lm.model import token_model
from jexplicit.lm.rows import explicit
from jexplicit.lm.rows.sharded import _log_partition
from jexplicit.lm.smoothing import Noise
from jexplicit.lm.tables import contexts, placing, reader
from jexplicit.nn.networks import FullyConnected, MLPLanguageModel
from jexplicit.nn.objectives import objective
from jexplicit.nn.steps import initial_state, training_step
from jexplicit.solvers.curvature_bound import CurvatureProblem, curvature_bound_sweep
from jexplicit.solvers.explicit import _solve
from jexplicit.solvers.gram import Blocks, Gram, _add_block
from jexplicit.solvers.iterative_scaling import ScalingProblem, scaling_sweep
from jexplicit.solvers.streamed import StreamedProblem, streamed_sweep

N, K = 8192, 4  # vocabulary and context of the tables
CHUNK, COLUMN_CHUNK = 1 << 22, 1 << 18  # positions that a call counts, in whole tables and in columns of them
CONTEXTS, BLOCK = 1 << 15, 64  # contexts of a call that evaluates, positions of one that fits
ROWS = K + 7  # of the mixture that is fitted: the unigram, the tables, and 6 sparse ones
_f, _i = np.float32, np.int32


class HotFunction(NamedTuple):
    """A function to lower.

    make: `mesh of one device -> compiled function, arguments as shapes`.
    loops: `while` loops of its program for a GPU. One more may start a kernel for every row of something.
    exact: whether all of its matrix products are in full precision.
    """

    make: Callable[[Mesh], tuple[Any, tuple[Any, ...]]]
    loops: int
    exact: bool = True

    def lower(self, mesh: Mesh) -> Any:
        """Lowered for the device of the mesh, whether it is there or only described."""
        function, arguments = self.make(mesh)
        return function.lower(*on_mesh(arguments, mesh))


def on_mesh(shapes: Any, mesh: Mesh) -> Any:
    """The same shapes, on the device of a mesh."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)


def _shape(*shape: int, dtype: Any = _f) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


_table, _tables = _shape(N, N), tuple(_shape(N, N) for _ in range(K))
_noise = Noise(*(_shape(N) for _ in range(3)))
_key = jax.eval_shape(lambda: jax.random.key(0))


def _counting(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    tables = tuple(_shape(N * N, dtype=_i) for _ in range(K))
    return dense._counting_step(mesh, K, N), (tables, _shape(1, K + CHUNK, dtype=np.uint16), _shape(1, dtype=_i))


def _sharded_counting(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    tables = tuple(_shape(N * N, dtype=_i) for _ in range(K))
    return sharded._counting_step(mesh, K, N), (tables, _shape(N + 1, dtype=_i), _shape(K + COLUMN_CHUNK, dtype=_i))


def _of_contexts(function: Callable[[Mesh], Any], mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    return function(mesh), (_tables, _shape(CONTEXTS, K, dtype=_i))


def _partition(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    rows = jax.eval_shape(lambda tables: token_model(tables, "cat", False).rows[0], _tables)
    return contexts._mapped(language_model._log_Z, mesh, 4096), (rows, _shape(CONTEXTS, K, dtype=_i))


def _spread(positions: int) -> tuple[Any, ...]:
    """8 blocks of so many positions on a device: the unigram, dense tables, and sparse ones, 32 segments of entries each."""
    n, B, E, Q = 8, positions, 1 << 24, 8 * 32 * positions
    shared = placing.Shared(_shape(K * N + 1, N), (), _shape(E, dtype=np.uint16), _shape(E), *(_shape(Q, dtype=_i),) * 3)
    blocks = placing.Blocks(*(_shape(n, B, *more, dtype=_i) for more in ((ROWS,), (ROWS,), ())), _shape(n, 2, dtype=_i))
    return shared, blocks, _shape(dtype=_i), _shape(ROWS)


def _explained(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    model = jax.eval_shape(lambda tables: token_model(tables, "cat", False), _tables)
    return _explain, (model, _shape(2048, K, dtype=_i), _shape(2048, 0, dtype=_i), _shape(2048, dtype=_i))


def _decoder_batch(contexts: int, positions: int) -> gradient.DecoderBatch:
    distinct, weights = _shape(contexts, K, dtype=_i), _shape(contexts, dtype=_i)
    return gradient.DecoderBatch(distinct, weights, _shape(positions, K, dtype=_i), _shape(positions, dtype=_i), ())


def _adagrad(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    optimizer = optax.adagrad(0.1)
    step = gradient.training_step(optimizer, features="cat", noise=None, mesh=mesh)
    return step, (gradient.DecoderState(_tables, jax.eval_shape(optimizer.init, _tables)), _decoder_batch(N, N))


def _text_gradient(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    def add(total: Any, params: Any, batch: gradient.DecoderBatch) -> Any:
        return gradient._add_gradient(total, params, batch, "cat", mesh)

    return jax.jit(add, donate_argnums=0), (_tables, _tables, _decoder_batch(1 << 18, 1 << 18))


def _optimum(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    problem = optimum.Problem((_table, _table), _table, _shape())
    return optimum.loss_and_gradient, (problem, (_table, _table))


def _icl(layers: int, mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    seeds, recipe = 5, Recipe()
    problem = Regression(Tasks(dim=10, context=10), layers, clip=10.0 if layers > 3 else None)
    made = functools.partial(init_layers, width=11, layers=1 if layers <= 2 else layers)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))
    params = jax.eval_shape(jax.vmap(made), keys)
    moments = jax.eval_shape(jax.vmap(make_optimizer(recipe).init), params)
    return training_steps(problem, recipe, 1, mesh), (TrainingState(params, moments), keys, _shape(dtype=_i))


_G, _rules, _examples = 8, Rules(states=4), Examples(_shape(1000, 64), _shape(1000, 10))
_source, _family = Source(_examples, _shape(64, 64)), Family((32,), 64)
_learners = {"rules": _rules, "family": _family, "unroll": 10}


def _genomes(number: int) -> Any:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), number))
    return jax.eval_shape(jax.vmap(lambda key: random_genome(key, _rules.states)), keys)


def _scores(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    return jax.jit(functools.partial(mean_scores, **_learners, learners=8, query_size=200)), (_genomes(_G), _key, _source)


def _meta(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    recipe, stage, genomes = MetaRecipe(), Stage(10, 100), _genomes(_G)
    moments = jax.eval_shape(jax.vmap(meta_optimizer(recipe, stage.steps).init), genomes)
    state = MetaState(genomes, moments, _shape(_G, dtype=_i))
    arguments = state, _shape(_G, dtype=_i), _key, _shape(dtype=_i), _source
    return meta_steps(_rules, recipe, _family, stage, 1, mesh), arguments


def _seeded() -> tuple[Any, Any]:
    """Keys and minibatches of 10 learners, 10 steps of 64."""
    return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 10)), _shape(10, 10, 64, dtype=_i)


def _curves(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    genome = jax.tree.map(lambda leaf: _shape(*leaf.shape[1:]), _genomes(1))
    run = jax.jit(functools.partial(_learning_curves, _rules, (64, 32, 10)))
    return run, (genome, *_seeded(), _examples, _examples)


def _descents(mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    run = jax.jit(functools.partial(_descent_curves, ("sgd", (64, 32, 10), True, "tanh")))
    return run, (_shape(16), *_seeded(), _examples, _examples)


def _network(model: Any, inputs: Any, mesh: Mesh) -> tuple[Any, tuple[Any, ...]]:
    optimizer, (B, *_) = optax.adam(1e-3), inputs.shape
    variables = jax.eval_shape(lambda key, x: {"batch_stats": {}, **model.init(key, x)}, _key, inputs)
    state = jax.eval_shape(lambda variables: initial_state(variables, optimizer), variables)
    step = training_step(model, objective("softmax_cross_entropy"), optimizer)
    return step, (state, (inputs, _shape(B, dtype=_i)))


def _of(function: Any, *arguments: Any) -> Callable[[Mesh], tuple[Any, tuple[Any, ...]]]:
    return lambda mesh: (function, arguments)


_H, _Y, _U = _shape(4096, 784), _shape(4096, 10), _shape(784, 10)
_blocks = Blocks(_shape(1, 8, 2048, 400), _shape(1, 8, 2048, 10), _shape(1, 8, 2048))
_sums = Gram(*(_shape(1, *sizes) for sizes in ((1024, 1024), (1024, 10), (1024,), (10,), ())))
_features: Any = jax.tree_util.Partial(fourier_features, W=_shape(400, 512))
_problem = StreamedProblem(_blocks, _features, _shape(1024), _shape(1024, 1024), _shape())

HOT_FUNCTIONS = {
    "counting": HotFunction(_counting, 0),
    "counting by columns": HotFunction(_sharded_counting, 0),
    "noisy co-occurrences": HotFunction(_of(explicit._noisy_block, _table, _shape(N), _noise), 0),
    "noisy rows": HotFunction(_of(explicit._noisy_rows, _table, _noise), 0),
    "explicit solution": HotFunction(_of(_solve, _table, _shape(N), _shape()), 0),
    "log partition functions": HotFunction(_partition, 1),
    "log partition by columns": HotFunction(functools.partial(_of_contexts, _log_partition), 1),
    "moments of a mixture": HotFunction(lambda mesh: (reader._summed(moment_sums, mesh), _spread(512)), 2),
    "scores of a mixture": HotFunction(lambda mesh: (reader._mapped(reader._log_p_of_targets, K + 1, mesh), _spread(4096)), 2),
    "attribution": HotFunction(_explained, 1),
    "Adagrad step": HotFunction(_adagrad, 1),
    "gradient of 2^18 contexts": HotFunction(_text_gradient, 1),
    "optimum, K = 2": HotFunction(_optimum, 0),
    "iterative scaling": HotFunction(_of(scaling_sweep, _U, ScalingProblem(_H, _Y, _U, _shape(), None)), 0),
    "curvature bound": HotFunction(_of(curvature_bound_sweep, _U, CurvatureProblem(_H, _Y, _shape(784, 784), _shape())), 0),
    "streamed sums": HotFunction(_of(_add_block, _sums, _blocks, _features, _shape(dtype=_i)), 0),
    "streamed sweep": HotFunction(_of(streamed_sweep, (_shape(1024, 10), _shape(10)), _problem), 1),
    "ICL step, 1 layer": HotFunction(functools.partial(_icl, 1), 2),
    "ICL step, 5 layers": HotFunction(functools.partial(_icl, 5), 2),
    "BLUR scores": HotFunction(_scores, 1),
    "BLUR meta-step": HotFunction(_meta, 3),
    "BLUR learning curves": HotFunction(_curves, 1),
    "descent curves": HotFunction(_descents, 1),
    "image network": HotFunction(functools.partial(_network, FullyConnected((100,), 10), _shape(128, 784)), 0, exact=False),
    "language network": HotFunction(
        functools.partial(_network, MLPLanguageModel(N, 64, (256,)), _shape(1024, K, dtype=_i)), 0, exact=False
    ),
}
"""Name -> function; the benches and the tests of what is lowered read this table."""

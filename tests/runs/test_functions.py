"""Public functions of arrays under jit, vmap and grad, and on arrays spread over 8 devices: those of docs/capabilities.md.

A row is two programs: jit of vmap of the values and the gradient, and a call with arrays on 8 devices. Tolerance: float64, sums
in another order.
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tables import each_row, products

import icl
import jexplicit
from icl.attention import Predictions
from icl.recurrences import Stream
from jexplicit import features, lm, solvers
from jexplicit.lm import model
from jexplicit.runs.devices import AXIS, data_mesh

PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"


LOOPS = ("jexplicit.solvers.iterative_scaling_sweeps", "jexplicit.solvers.curvature_bound_sweeps", "jexplicit.solve_layers")
Case = tuple[Callable[..., Any], tuple[Any, ...]]  # a function with its static arguments; its arrays, the first differentiated


def case(f: Any, *args: Any, **static: Any) -> Case:
    return functools.partial(f, **static), args


@functools.cache
def cases() -> dict[str, Case]:
    """The rows of the table; what a function closes over is on a device."""
    rng = np.random.default_rng(0)

    def positive(*shape: int) -> Any:
        return rng.uniform(0.5, 2, shape)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape)

    H, Y, F, LABELS = positive(16, 4), np.eye(3)[np.arange(16) % 3], positive(8, 3), np.arange(16) % 3
    ONE = icl.Sequence(normal(8, 3), normal(8, 2), normal(3), normal(2))
    TEXT = Stream(normal(8, 3) / 3, normal(8, 2), normal(8, 3))
    shapes = jax.eval_shape(lambda key: icl.init_layers(key, 5, layers=2, dtype=jnp.float64), jax.random.key(0))
    LAYERS = jax.tree.map(lambda leaf: normal(*leaf.shape) / 4, shapes)
    TASKS = icl.Tasks(dim=3, context=8, noise=0.5, input_range=3.0)  # inputs of the order of 1
    BATCH = icl.Sequence(normal(8, 3, 16), normal(8, 2, 16), normal(3, 16), normal(2, 16))
    SINGLE = icl.Sequence(normal(8, 3), normal(8, 1), normal(3), normal(1))
    ONE_LAYER = jax.tree.map(lambda leaf: leaf[:1], LAYERS)
    OURS, THEIRS = (Predictions(normal(2, 16), normal(2, 3, 16), positive(16)) for _ in range(2))
    MOMENTS = icl.sampled_moments(jax.device_put(normal(20, 8, 3)))
    TOKEN_MOMENTS = icl.token_moments(TASKS, jax.device_put(normal(200, 3)))
    COUNTS = rng.integers(1, 9, (8, 8)).astype(float)
    NOISE = lm.noise_model(np.arange(1, 9))
    DECODERS = [jax.device_put(F[:4]), jax.device_put(F[4:7])]
    CONTEXT = jax.device_put(np.array([2]))
    TARGETS, ANSWERS, QUERY = jax.device_put(Y), jax.device_put(LABELS), jax.device_put(SINGLE)
    WAVELETS = features.wavelets((8, 8), octaves=2, angles=2, grid=2)
    return {
        "jexplicit.explicit_solution": case(jexplicit.explicit_solution, F, 2.0),
        "jexplicit.solvers.dense_cooccurrence": case(solvers.dense_cooccurrence, H, Y),
        "jexplicit.solvers.dense_cooccurrence, of labels": case(lambda H: solvers.dense_cooccurrence(H, ANSWERS, 3), H),
        "jexplicit.solvers.priming_number": case(solvers.priming_number, H),
        "jexplicit.solvers.iterative_scaling_sweeps": case(solvers.iterative_scaling_sweeps, H, Y, np.zeros((4, 3)), sweeps=2),
        "jexplicit.solvers.curvature_bound_sweeps": case(solvers.curvature_bound_sweeps, H, Y, sweeps=2, ridge=0.1),
        "jexplicit.solve_layers": case(lambda H: jexplicit.solve_layers(H, TARGETS, [solvers.SoftmaxLayer()])[0], H),
        "jexplicit.solvers.stack_logits": case(lambda H: solvers.stack_logits(DECODERS, H), H),
        "jexplicit.solvers.mean_loss": case(solvers.mean_loss, normal(16, 3), Y),
        "jexplicit.solvers.accuracy": case(solvers.accuracy, normal(16, 3), LABELS),
        "jexplicit.features.positive_parts": case(features.positive_parts, normal(8, 3)),
        "jexplicit.features.fourier_features": case(features.fourier_features, normal(8, 3), normal(3, 4)),
        "jexplicit.features.scattering_pools": case(lambda X: features.scattering_pools(X, WAVELETS), positive(8, 8, 8)),
        "jexplicit.lm.logits": case(lambda U: model.logits((U,), CONTEXT), normal(8, 8)),
        "jexplicit.lm.kneser_ney": case(lm.kneser_ney, COUNTS),
        "jexplicit.lm.noisy_counts": case(lm.noisy_counts, positive(8, 8), NOISE),
        "jexplicit.lm.noisy_rows": case(lm.noisy_rows, normal(8, 8), NOISE),
        "icl.squared_error": case(icl.squared_error, normal(2, 3), ONE.X, ONE.Y),
        "icl.gradient_descent": case(icl.gradient_descent, ONE, 0.1, steps=3),
        "icl.gd_plus_plus": case(icl.gd_plus_plus, ONE, 0.1, 0.01, steps=3),
        "icl.ridge": case(icl.ridge, ONE, 0.5),
        "icl.tokens": case(icl.tokens, ONE),
        "icl.predict": case(icl.predict, LAYERS, ONE),
        "icl.head_maps": case(icl.head_maps, LAYERS),
        "icl.predict_batch": case(icl.predict_batch, LAYERS, BATCH),
        "icl.descent_layers": case(functools.partial(icl.descent_layers, 3, 8), np.array([0.1, 0.2])),
        "icl.softmax_layers": case(lambda layers: icl.softmax_layers(layers, 8), LAYERS),
        "icl.head_layer": case(lambda p, A: icl.head_layer(p, A, 8), normal(4), normal(4, 3)),
        "icl.head_tensor": case(lambda layers: icl.head_tensor(layers, 8), ONE_LAYER),
        "icl.interpolate": case(icl.interpolate, ONE_LAYER, icl.descent_layers(3, 8, 0.1, outputs=2), dim=3),
        "icl.difference": case(icl.difference, OURS, THEIRS),
        "icl.sequences": case(icl.sequences, BATCH),
        "icl.half_mse": case(icl.half_mse, normal(2, 8), normal(2, 8)),
        "icl.optimal_solution": case(lambda C: icl.optimal_solution(MOMENTS._replace(C=C)), MOMENTS.C),
        "icl.token_moments": case(lambda W: icl.token_moments(TASKS, W), normal(9, 3)),
        "icl.heads_loss": case(icl.heads_loss, normal(4, 4, 3), TOKEN_MOMENTS),
        "icl.all_heads_solution": case(icl.all_heads_solution, TOKEN_MOMENTS),
        "icl.one_head_solution": case(icl.one_head_solution, TOKEN_MOMENTS, sweeps=3),
        "icl.discrete_mmse": case(lambda W: icl.discrete_mmse(QUERY, W, 0.5), normal(9, 3)),
        "icl.linear_attention": case(icl.linear_attention, TEXT),
        "icl.delta_rule": case(icl.delta_rule, TEXT, 0.5),
        "icl.mesa_recursion": case(icl.mesa_recursion, TEXT, 1.0),
        "icl.mesa_conjugate_gradients": case(icl.mesa_conjugate_gradients, TEXT, 1.0, steps=3, chunk=4),
        "icl.kalman_filter": case(icl.kalman_filter, TEXT, 0.5, 0.9),
    }


def on_device(args: Any) -> Any:
    """Arrays on a device; Python's numbers as they are."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf) if np.ndim(leaf) else leaf, args)


def spread(args: Any) -> Any:
    """Arrays on 8 devices, those parted whose first axis can be."""
    mesh = data_mesh(8)

    def place(leaf):
        axes = () if leaf.shape[0] % mesh.size else (AXIS,)
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree.map(lambda leaf: place(np.asarray(leaf)) if np.ndim(leaf) else leaf, args)


def programs_of(f: Any, args: Any) -> list[str]:
    """What a call under jit is made of: functions compiled by themselves, and single operations."""
    equations = jax.make_jaxpr(f)(*on_device(args)).jaxpr.eqns
    names = [equation.params.get("name", equation.primitive.name) for equation in equations]
    return [name for name in names if name != "_zero"]  # of is_concrete, for all functions


STEP = 1e-5  # a difference errs by its square, and by 1e-16 over it


def transformed(f: Any, args: Any, differentiable: bool) -> Any:
    """Values and slopes in one program, jit of vmap of grad, and what differences say of the slopes."""
    rng = np.random.default_rng(1)
    first = jax.tree.map(lambda leaf: np.asarray(leaf, float), args[0])
    way = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), first)

    def weighed(first, others):
        values = f(first, *others)
        numbers = [jnp.sum(leaf * np.cos(np.arange(leaf.size)).reshape(leaf.shape)) for leaf in jax.tree.leaves(values)]
        return sum(numbers), values

    def one(first, others):
        if not differentiable:
            return f(first, *others)
        (number, values), slopes = jax.value_and_grad(weighed, has_aux=True)(first, others)
        return values, number, slopes

    moved = jax.tree.map(lambda leaf, by: np.stack([leaf, leaf + STEP * by, leaf - STEP * by]), first, way)
    others = jax.tree.map(lambda leaf: np.stack([leaf] * 3), args[1:])
    found = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(moved, others))
    if not differentiable:
        return jax.tree.map(lambda leaf: leaf[0], found)
    values, number, slopes = found
    slope = sum(np.vdot(leaf[0], by) for leaf, by in zip(*map(jax.tree.leaves, (slopes, way)), strict=True))
    np.testing.assert_allclose(slope, (number[1] - number[2]) / (2 * STEP), rtol=1e-4, atol=1e-6)
    return jax.tree.map(lambda leaf: leaf[0], values)


def test_a_call_is_one_program_in_full_precision_with_the_same_values_under_jit_vmap_and_grad_and_on_8_devices():
    def check(name: str, own: Case) -> None:
        f, args = own
        expected = transformed(f, args, name != "jexplicit.lm.kneser_ney")
        chex.assert_trees_all_close(jax.jit(f)(*spread(args)), expected, rtol=1e-9, atol=1e-11)
        assert (len(found := programs_of(f, args)) == 1) == (name not in LOOPS), found
        assert not [line for line in products(f, *on_device(args)) if "HIGHEST" not in line]

    each_row(check, cases().items())


def test_the_page_names_the_functions():
    section = PAGE.read_text().partition("## How functions of arrays transform")[2]
    assert set(re.findall(r"`((?:jexplicit|icl)\.[\w.]+)`", section)) == {name.partition(",")[0] for name in cases()}

"""Solvers under jit, vmap and grad: the values of the plain calls, and the slopes of finite differences."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import explicit_solution as explicit_solution_loop
from reference import one_hot

from jexplicit.solvers.curvature_bound import curvature_bound_sweeps
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution
from jexplicit.solvers.layerwise import SoftmaxLayer, solve_layers, stack_logits
from jexplicit.solvers.priming import fit_intercept, intercept_logits, log_intercept, priming_scan
from jexplicit.solvers.sweeps import iterative_scaling_sweeps

M, D, N = 300, 6, 3


class Arrays(NamedTuple):
    H: jax.Array
    Y: jax.Array
    equal: jax.Array  # rows of one norm
    F: jax.Array
    U: jax.Array
    labels: jax.Array
    K: jax.Array


@functools.cache
def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(M) % N)
    H = rng.gamma(1.0, 1.0, (M, D)) + 0.5 * rng.random((N, D))[labels] + 0.05
    Y = one_hot(labels, N)
    F = H.T @ Y
    equal, K = 4 * H / H.sum(axis=1, keepdims=True), np.array([1.0, 3.0, 50.0])
    return Arrays(*map(jax.device_put, (H, Y, equal, F, explicit_solution_loop(F, 2.0), labels, K)))


def scaled(H, Y, U, slack):
    fitted = iterative_scaling_sweeps(H, Y, U, sweeps=3, slack=slack)
    return fitted.logits(H), fitted.losses


def stacked(H, Y, layers):
    return stack_logits(solve_layers(H, Y, layers).params, H)


FUNCTIONS = {  # a function of arrays and a number, and what rounding leaves of its values
    "explicit solution": (lambda a, x: explicit_solution(x * a.F, 2 + x), 1e-14),
    "of blocks": (lambda a, x: explicit_solution((a.F, x * a.F, a.F**x), 3.0), 1e-14),
    "co-occurrences": (lambda a, x: dense_cooccurrence(a.H**x, a.Y), 1e-12),  # sums of up to 300
    "curvature bound": (lambda a, x: curvature_bound_sweeps(a.H, a.Y, sweeps=4, ridge=x / 10), 1e-10),
    "iterative scaling": (lambda a, x: scaled(x * a.H, a.Y, a.U, None), 1e-11),
    "without a slack": (lambda a, x: scaled(x * a.H, a.Y, x * a.U, False), 1e-11),
    "of rows of one norm": (lambda a, x: scaled(x * a.equal, a.Y, a.U, None), 1e-11),
    "layers": (lambda a, x: stacked(x * a.H, a.Y, [SoftmaxLayer(K=3.0), SoftmaxLayer(), SoftmaxLayer()]), 1e-10),
    "priming scan": (lambda a, x: priming_scan(a.H, a.F**x, a.labels, a.K).accuracy, 0.0),
    "intercept": (lambda a, x: intercept_logits(a.H, x * a.F, log_intercept(x * a.F, 3.0)), 1e-11),
    "fitted intercept": (lambda a, x: fit_intercept(a.H, a.Y, a.F**x, K=3.0, sweeps=2).losses, 1e-11),
}
FEW = ("explicit solution", "curvature bound", "iterative scaling", "layers", "priming scan")


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS])
def test_jit_vmap_and_grad_give_the_values_and_slopes_of_the_plain_call(name):
    (of_arrays, rounding), at, h = FUNCTIONS[name], np.array([0.7, 1.1]), 1e-6
    function = functools.partial(of_arrays, arrays())
    mapped = jax.jit(jax.vmap(function))(jax.device_put(at))
    for n, x in enumerate(at):
        for ours, plain in zip(*map(jax.tree.leaves, (mapped, function(jax.device_put(x)))), strict=True):
            np.testing.assert_allclose(np.asarray(ours)[n], plain, rtol=1e-12, atol=rounding)

    def total(x):
        return sum(jnp.mean(leaf * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)) for leaf in jax.tree.leaves(function(x)))

    slope = jax.jit(jax.value_and_grad(total))
    # differences err by rounding, eps * value / h = 1e-10, and by h² times the third derivative
    above, below, here = (slope(jax.device_put(at[0] + d)) for d in (h, -h, 0))
    numeric = (float(above[0]) - float(below[0])) / (2 * h)
    assert float(here[1]) == pytest.approx(numeric, rel=1e-6, abs=1e-8)


def test_values_are_not_checked_under_jit():
    F = np.where(np.arange(N) == 2, 0, np.asarray(arrays().F))
    assert not np.isfinite(jax.jit(explicit_solution)(jax.device_put(F), 2.0)).all()

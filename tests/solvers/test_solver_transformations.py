"""Solvers under jit, vmap and grad: the values of the plain calls, and the slopes of finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import one_hot

from jexplicit.solvers.curvature_bound import curvature_bound_sweeps
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution
from jexplicit.solvers.iterative_scaling import iterative_scaling_sweeps
from jexplicit.solvers.layerwise import SoftmaxLayer, solve_layers, stack_logits
from jexplicit.solvers.priming import fit_intercept, intercept_logits, log_intercept, priming_scan

M, D, N = 40, 6, 3
RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.arange(M) % N)
H = jnp.asarray(RNG.gamma(1.0, 1.0, (M, D)) + 0.5 * RNG.random((N, D))[LABELS] + 0.05)
Y = jnp.asarray(one_hot(LABELS, N))
EQUAL = 4 * H / H.sum(axis=1, keepdims=True)  # rows of one norm
F = dense_cooccurrence(H, Y)
U = explicit_solution(F, 2.0)
K = jnp.array([1.0, 3.0, 50.0])


def scaled(H, U, slack):
    fitted = iterative_scaling_sweeps(H, Y, U, sweeps=3, slack=slack)
    return fitted.logits(H), fitted.losses


def stacked(H, layers):
    return stack_logits(solve_layers(H, Y, layers).params, H)


FUNCTIONS = {  # a function of a number, and what rounding leaves of its values
    "explicit solution": (lambda x: explicit_solution(x * F, 2 + x), 1e-14),
    "of blocks": (lambda x: explicit_solution((F, x * F, F**x), 3.0), 1e-14),
    "co-occurrences": (lambda x: dense_cooccurrence(H**x, Y), 1e-13),  # sums of up to 40
    "curvature bound": (lambda x: curvature_bound_sweeps(H, Y, sweeps=4, ridge=x / 10), 1e-10),
    "iterative scaling": (lambda x: scaled(x * H, U, None), 1e-11),
    "without a slack": (lambda x: scaled(x * H, x * U, False), 1e-11),
    "of rows of one norm": (lambda x: scaled(x * EQUAL, U, None), 1e-11),
    "layers": (lambda x: stacked(x * H, [SoftmaxLayer(K=3.0), SoftmaxLayer(), SoftmaxLayer()]), 1e-10),
    "priming scan": (lambda x: priming_scan(H, F**x, jnp.asarray(LABELS), K).accuracy, 0.0),
    "intercept": (lambda x: intercept_logits(H, x * F, log_intercept(x * F, 3.0)), 1e-11),
    "fitted intercept": (lambda x: fit_intercept(H, Y, F**x, K=3.0, sweeps=2).losses, 1e-11),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jit_vmap_and_grad_give_the_values_and_slopes_of_the_plain_call(name):
    (function, rounding), at, h = FUNCTIONS[name], jnp.array([0.7, 1.1]), 1e-6
    mapped = jax.jit(jax.vmap(function))(at)
    for n, x in enumerate(at):
        for ours, plain in zip(*map(jax.tree.leaves, (mapped, function(x))), strict=True):
            np.testing.assert_allclose(ours[n], plain, rtol=1e-12, atol=rounding)

    def total(x):
        return sum(jnp.mean(leaf * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)) for leaf in jax.tree.leaves(function(x)))

    slope = jax.jit(jax.value_and_grad(total))
    # differences err by rounding, eps * value / h = 1e-10, and by h² times the third derivative
    numeric = float(slope(at[0] + h)[0] - slope(at[0] - h)[0]) / (2 * h)
    assert float(slope(at[0])[1]) == pytest.approx(numeric, rel=1e-6, abs=1e-8)


def test_values_are_not_checked_under_jit():
    assert not np.isfinite(jax.jit(explicit_solution)(F.at[:, 2].set(0.0), 2.0)).all()

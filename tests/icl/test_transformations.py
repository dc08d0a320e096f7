"""Constructions and solvers under jit, vmap and grad: the values of the plain calls, and no check of values on tracers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import each_row

import icl
from icl.attention import diagonal_layers
from icl.closed_form import exact_moments, sampled_moments, solution_loss
from icl.diversity import MixedNoise, posterior_mean
from icl.problems import Waves, copying_layers, init_network, predict_waves
from icl.rates import losses_by_context

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
    "diagonal": lambda eta: diagonal_layers(eta * jnp.ones((2, 4)), 3),
    "copying": lambda eta: copying_layers(3, 5, eta),
}
SOLVERS = {
    "optimal rate": lambda x: icl.optimal_rate(icl.Tasks(noise=x)),
    "one-step loss": lambda x: icl.one_step_loss(icl.Tasks(weight_scale=x), 1.0),
    "optimal solution": lambda x: icl.optimal_solution(exact_moments(icl.Tasks(dim=3, noise=x))),
    "sampled moments": lambda x: icl.optimal_solution(sampled_moments(jnp.moveaxis(BATCH.X, -1, 0), v=x)),
    "solution loss": lambda x: solution_loss(x * jnp.eye(3), exact_moments(TASKS)),
    "polynomial": lambda x: losses_by_context(jnp.ones((4, 3)), x[None], jnp.zeros(1), TASKS),
    "posterior mean": lambda x: posterior_mean(BATCH._replace(Y=x * BATCH.Y), MixedNoise(dim=3, context=5)),
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
        "posterior mean": lambda batch: posterior_mean(batch, MixedNoise(dim=3, context=5)),
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

"""LayerNorm, GroupNorm and dropout against NumPy loops. Float64; flax adds 1e-6 to variances, as the loops do."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import TypeCheckError

from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.nn.steps import initial_state, network_step, variables_of

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2))


@pytest.fixture
def promotion():
    """flax normalises in float32 and up."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def pre_activations(model, variables, x, **flags):
    _, seen = jax.jit(functools.partial(model.apply, mutable=["intermediates"], **flags))(variables, x)
    return np.asarray(seen["intermediates"]["hidden_1"]["z"][0])


@pytest.mark.parametrize(("norm", "width", "groups"), [("layer", 12, 1), ("group", 12, 4), ("group", 16, 8), ("group", 7, 1)])
def test_a_norm_is_each_example_s_own(norm, width, groups):
    """(z - mean)/√(var + 1e-6) over all units, or over each of gcd(8, width) groups of neighbours, then scale and shift."""
    model = FullyConnected((width,), 2, norm=norm, dtype=jnp.float64)
    variables = init_variables(model, jax.random.key(0), X)
    kind = {"layer": "LayerNorm_0", "group": "GroupNorm_0"}[norm]
    scale, shift = RNG.normal(size=(2, width))
    variables["params"]["hidden_1"][kind] = {"scale": scale, "bias": shift}
    raw = X @ np.asarray(variables["params"]["hidden_1"]["Dense_0"]["kernel"])
    expected = np.empty_like(raw)
    for m, row in enumerate(raw):
        for part in np.array_split(np.arange(width), groups):
            z = row[part]
            expected[m, part] = (z - z.mean()) / np.sqrt(((z - z.mean()) ** 2).mean() + 1e-6) * scale[part] + shift[part]
    for train in (True, False):
        np.testing.assert_allclose(pre_activations(model, variables, X, train=train), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(  # whatever its batch
        pre_activations(model, variables, X[:1]), expected[:1], rtol=1e-9, atol=1e-12
    )
    assert "bias" not in variables["params"]["hidden_1"]["Dense_0"]


def test_an_unknown_norm_is_refused():
    network: Any = FullyConnected
    with pytest.raises((ValueError, TypeCheckError), match="'instance'"):  # the types say so first where they are checked
        init_variables(network((3,), 2, norm="instance"), jax.random.key(0), X)


def test_dropout_sets_a_share_to_zero_and_scales_the_others():
    """Each unit of 20,000 is dropped or scaled by 1/(1 - 0.2); the share has a standard deviation of 0.003."""
    model = FullyConnected((10_000,), 1, dropout=0.2, dtype=jnp.float64)
    variables = init_variables(model, jax.random.key(0), X[:2])
    rngs = {"dropout": jax.random.key(1)}
    _, seen = model.apply(variables, X[:2], train=True, mutable=["intermediates"], rngs=rngs)
    a, z = (np.asarray(layer[0]) for layer in (seen["intermediates"]["features"], seen["intermediates"]["hidden_1"]["z"]))
    positive = z > 0
    ratios = a[positive] / z[positive]
    assert set(np.round(ratios, 9)) == {0.0, 1.25}
    assert (ratios == 0).mean() == pytest.approx(0.2, abs=0.02)


def test_inference_drops_nothing():
    plain, dropped = (FullyConnected((8,), 2, dropout=dropout, dtype=jnp.float64) for dropout in (0.0, 0.5))
    variables = init_variables(plain, jax.random.key(0), X)
    np.testing.assert_array_equal(network_outputs(dropped, variables, X), network_outputs(plain, variables, X))


def test_a_residual_connection_passes_what_dropout_takes():
    model = FullyConnected((4,), 4, dropout=0.5, residual=True, dtype=jnp.float64)
    variables = init_variables(model, jax.random.key(0), X)
    variables["params"]["output"] = {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}
    out = model.apply(variables, X, train=True, rngs={"dropout": jax.random.key(1)})
    z = pre_activations(model, variables, X)
    added = np.asarray(out) - X
    kept = np.abs(added - 2 * np.maximum(z, 0)) < 1e-9
    assert (kept | (np.abs(added) < 1e-9)).all() and kept[z > 0].any() and not kept[z > 0].all()


@functools.cache
def compiled_step(seed):
    model, optimizer = FullyConnected((16,), 2, dropout=0.5, dtype=jnp.float64), optax.sgd(0.1)
    state = initial_state(init_variables(model, jax.random.key(0), X), optimizer)
    return state, jax.jit(network_step(model, objective("squared_error"), optimizer, seed=seed))


def one_step(seed, steps=1):
    state, step = compiled_step(seed)
    for _ in range(steps):
        state, _ = step(state, (X, Y))
    return variables_of(state)["params"]["output"]["kernel"]


def test_what_is_dropped_depends_on_seed_and_step_alone():
    np.testing.assert_array_equal(one_step(0, 3), one_step(0, 3))
    assert (np.asarray(one_step(0)) != np.asarray(one_step(1))).any()
    first = one_step(0)
    assert (np.asarray(one_step(0, 2)) != np.asarray(first)).any()


def test_the_gradient_of_dropped_units_averages_to_that_of_the_linear_network():
    """A linear network's mean output over masks is its output without dropout: 4,000 masks, five standard errors."""
    model = FullyConnected((8,), 2, activation="linear", dropout=0.5, dtype=jnp.float64)
    variables = init_variables(model, jax.random.key(0), X)
    keys = jax.random.split(jax.random.key(2), 4000)
    draw = jax.jit(jax.vmap(lambda key: model.apply(variables, X, train=True, rngs={"dropout": key})))
    draws = np.asarray(draw(keys))
    error = np.abs(draws.mean(axis=0) - network_outputs(model, variables, X))
    assert (error < 5 * draws.std(axis=0) / np.sqrt(4000)).all() and draws.std() > 0.1

"""Networks in flax: what they compute, their gradients, norms and dropout against NumPy loops, and weights of zero.

Tolerances are those of float64: 1e-12 for sums of a few dozen products, 1e-6 for central differences.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from jexplicit.nn.networks import FullyConnected, MLPLanguageModel, init_variables, network_outputs
from jexplicit.nn.parts.activations import ACTIVATIONS, is_flat
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, network_step, scorer, variables_of

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2))
TOKENS, TARGETS = RNG.integers(0, 5, (6, 3)), RNG.integers(0, 5, 6)


@pytest.fixture
def promotion():
    """flax keeps BatchNorm's running statistics in float32, whatever the network's own type."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def descent(model, goal, rate):
    optimizer = optax.sgd(rate)
    return optimizer, jax.jit(network_step(model, objective(goal), optimizer))


def trained(model, inputs, targets, goal="squared_error", rate=0.1, steps=1, variables=None):
    """Variables after so many steps of full-batch descent."""
    optimizer, step = descent(model, goal, rate)
    state = initial_state(variables or init_variables(model, jax.random.key(0), inputs), optimizer)
    for _ in range(steps):
        state, _ = step(state, (inputs, targets))
    return variables_of(state)


def test_a_step_of_descent_is_the_hand_derived_one():
    """A += η/n Σ (y - f) φ(Bx)ᵀ and B += η/n Σ (Aᵀ(y - f) ⊙ φ'(Bx)) xᵀ, looped over examples and units."""
    model = FullyConnected((3,), 2, bias=False, dtype=jnp.float64)
    before = init_variables(model, jax.random.key(0), X)
    B = np.array(before["params"]["hidden_1"]["Dense_0"]["kernel"]).T
    A = np.array(before["params"]["output"]["kernel"]).T
    A_new, B_new, eta = A.copy(), B.copy(), 0.1
    for x, y in zip(X, Y, strict=True):
        z = B @ x
        error = y - A @ np.maximum(z, 0)
        for i in range(3):
            A_new[:, i] += eta / len(X) * error * max(z[i], 0)
            for j in range(4):
                B_new[i, j] += eta / len(X) * (A[:, i] @ error) * (z[i] > 0) * x[j]
    after = trained(model, X, Y)["params"]
    np.testing.assert_allclose(after["output"]["kernel"].T, A_new, rtol=1e-12)
    np.testing.assert_allclose(after["hidden_1"]["Dense_0"]["kernel"].T, B_new, rtol=1e-12)


@pytest.mark.parametrize("direct", ["none", "embedding", "tokens"])
def test_the_language_model_is_bengio_s_equation(direct):
    model = MLPLanguageModel(vocab_size=5, embedding=2, hidden=(4,), direct=direct, dtype=jnp.float64)
    made = init_variables(model, jax.random.key(0), TOKENS)
    params = jax.tree.map(lambda leaf: np.asarray(RNG.normal(size=leaf.shape)), made["params"])
    C, hidden, output = params["embedding"]["embedding"], params["network"]["hidden_1"]["Dense_0"], params["network"]["output"]
    logits = network_outputs(model, {"params": params}, TOKENS)
    for m, context in enumerate(TOKENS):
        x = np.concatenate([C[token] for token in context])
        expected = output["bias"] + np.tanh(x @ hidden["kernel"] + hidden["bias"]) @ output["kernel"]
        if direct == "embedding":
            expected = expected + x @ params["direct"]["kernel"]
        if direct == "tokens":
            expected = expected + sum(params["direct"][k][token] for k, token in enumerate(context))
        np.testing.assert_allclose(logits[m], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("direct", "norm", "residual"),
    [("tokens", "batch", False), ("embedding", "none", True), ("none", "layer", False), ("none", "group", True)],
)
def test_gradients_are_finite_differences(direct, norm, residual):
    model = MLPLanguageModel(5, 2, (6, 6), direct, norm=norm, residual=residual, output_scale=1.0, dtype=jnp.float64)
    made = init_variables(model, jax.random.key(1), TOKENS)

    def loss(params):
        z, _ = model.apply({**made, "params": params}, TOKENS, train=True, mutable=["batch_stats"])
        return objective("softmax_cross_entropy")(z, jnp.asarray(TARGETS)).mean()

    check_grads(jax.jit(loss), (made["params"],), order=1, modes="rev", atol=1e-6, rtol=1e-6)


def test_a_residual_layer_adds_its_input_where_widths_agree():
    plain, residual = (FullyConnected((4, 3), 2, residual=flag, dtype=jnp.float64) for flag in (False, True))
    made = init_variables(plain, jax.random.key(0), X)
    first, second, output = (made["params"][name] for name in ("hidden_1", "hidden_2", "output"))
    a = X + np.maximum(X @ first["Dense_0"]["kernel"], 0)  # of width 4, as X; the next is of width 3
    expected = np.maximum(a @ second["Dense_0"]["kernel"], 0) @ output["kernel"]
    np.testing.assert_allclose(network_outputs(residual, made, X), expected, rtol=1e-12)
    assert not np.allclose(network_outputs(plain, made, X), expected)


def test_batch_norm_reads_the_batch_while_training_and_running_statistics_for_inference():
    model = FullyConnected((3,), 2, norm="batch", activation="linear", dtype=jnp.float64)
    made = init_variables(model, jax.random.key(0), X)
    _, seen = model.apply(made, X, train=True, mutable=["batch_stats", "intermediates"])
    z = jnp.asarray(seen["intermediates"]["hidden_1"]["z"][0])
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    raw = X @ made["params"]["hidden_1"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(z.var(axis=0), raw.var(axis=0) / (raw.var(axis=0) + 1e-5), rtol=1e-9)  # its epsilon
    updated: Any = seen["batch_stats"]["hidden_1"]["BatchNorm_0"]
    np.testing.assert_allclose(updated["mean"], 0.1 * raw.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(updated["var"], 0.9 + 0.1 * raw.var(axis=0), rtol=1e-7)  # the first one is float32
    variables = {**made, "batch_stats": seen["batch_stats"]}
    inference = network_outputs(model, variables, X)
    np.testing.assert_allclose(network_outputs(model, variables, X[:1]), inference[:1], rtol=1e-12)  # whatever its batch
    assert "bias" not in made["params"]["hidden_1"]["Dense_0"]  # its own shift takes that place


def test_a_feature_that_never_changes_does_no_harm():
    constant = np.concatenate([X, np.full((6, 1), 3.0)], axis=1)
    model = FullyConnected((3,), 2, norm="batch", dtype=jnp.float64)
    assert np.isfinite(network_outputs(model, trained(model, constant, Y, steps=5), constant)).all()


def test_weights_of_zero_never_move():
    """Lemma 1: with A = B = 0 every gradient has a factor 0. With A = 0 alone, A moves first and then B."""
    model = FullyConnected((3,), 2, bias=False, weights="zeros", dtype=jnp.float64)
    assert not any(leaf.any() for leaf in jax.tree.leaves(trained(model, X, Y, steps=10)["params"]))
    model = FullyConnected((3,), 2, bias=False, dtype=jnp.float64)
    made = init_variables(model, jax.random.key(0), X)
    made["params"]["output"] = {"kernel": jnp.zeros((3, 2))}
    once, twice = (trained(model, X, Y, steps=n, variables=made)["params"] for n in (1, 2))
    hidden = [p["hidden_1"]["Dense_0"]["kernel"] for p in (made["params"], once, twice)]
    assert once["output"]["kernel"].any() and (hidden[1] == hidden[0]).all() and (hidden[2] != hidden[0]).any()


def test_small_output_weights_begin_at_log_n():
    for scale, near in ((0.01, True), (30.0, False)):
        model = MLPLanguageModel(vocab_size=5, embedding=2, hidden=(8,), output_scale=scale, dtype=jnp.float64)
        made = init_variables(model, jax.random.key(0), TOKENS)
        scores = scorer(model, objective("softmax_cross_entropy"))(made, TOKENS, TARGETS)
        assert (abs(scores.loss - np.log(5)) < 0.02) == near


def test_the_chunk_changes_no_score():
    model = FullyConnected((3,), 2, dtype=jnp.float64)
    made = init_variables(model, jax.random.key(0), X)
    whole, parts = (scorer(model, objective("squared_error"), chunk=chunk)(made, X, Y) for chunk in (100, 4))
    assert whole.accuracy == parts.accuracy and whole.loss == pytest.approx(parts.loss, rel=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_flat_regions_are_where_the_derivative_is_small(name):
    z = np.linspace(-8, 8, 40)  # without 0, where a ReLU has no derivative
    slope = (ACTIVATIONS[name](jnp.asarray(z + 1e-6)) - ACTIVATIONS[name](jnp.asarray(z - 1e-6))) / 2e-6
    steepest = {"sigmoid": 0.25, "silu": 0.9277}.get(name, 1.0)
    sure = np.abs(np.abs(slope) / steepest - 0.05) > 0.01
    np.testing.assert_array_equal(is_flat(name, jnp.asarray(z))[sure], (np.abs(slope) < 0.05 * steepest)[sure])


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


def test_what_is_dropped_depends_on_seed_and_step_alone():
    model, optimizer = FullyConnected((16,), 2, dropout=0.5, dtype=jnp.float64), optax.sgd(0.1)
    start = initial_state(init_variables(model, jax.random.key(0), X), optimizer)

    def outputs_after(step, steps):
        state = start
        for _ in range(steps):
            state, _ = step(state, (X, Y))
        return np.asarray(variables_of(state)["params"]["output"]["kernel"])

    one, other = (jax.jit(network_step(model, objective("squared_error"), optimizer, seed=seed)) for seed in (0, 1))
    np.testing.assert_array_equal(outputs_after(one, 3), outputs_after(one, 3))
    assert (outputs_after(one, 1) != outputs_after(other, 1)).any() and (outputs_after(one, 2) != outputs_after(one, 1)).any()

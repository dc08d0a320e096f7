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
from drawn_weights import drawn_variables, outputs

from jexplicit.nn.networks import (
    ConvolutionalNetwork,
    FullyConnected,
    MLPLanguageModel,
    hidden_layers,
    init_variables,
    initial_state,
    network_step,
    scorer,
    variables_of,
)
from jexplicit.nn.training import objective

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2))
TOKENS, TARGETS = RNG.integers(0, 5, (6, 3)), RNG.integers(0, 5, 6)
PLAIN = FullyConnected((3,), 2, bias=False, dtype=jnp.float64)
NORMED = FullyConnected((3,), 2, norm="batch", dtype=jnp.float64)


@pytest.fixture
def promotion():
    """flax keeps BatchNorm's running statistics in float32, whatever the network's own type."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def descent(model, goal, rate, seed=0):
    """Compiled: the first state, and a step."""
    optimizer = optax.sgd(rate)
    start = jax.jit(lambda variables: initial_state(variables, optimizer))
    return start, jax.jit(network_step(model, objective(goal), optimizer, seed=seed))


def trained(model, inputs, targets, variables, goal="squared_error", rate=0.1, steps=1, seed=0):
    """Variables after so many steps of full-batch descent."""
    start, step = descent(model, goal, rate, seed)
    state = start(variables)
    for _ in range(steps):
        state, _ = step(state, (inputs, targets))
    return jax.tree.map(np.asarray, variables_of(state))


def test_a_step_of_descent_is_the_hand_derived_one():
    """A += η/n Σ (y - f) φ(Bx)ᵀ and B += η/n Σ (Aᵀ(y - f) ⊙ φ'(Bx)) xᵀ, looped over examples and units."""
    before = drawn_variables(PLAIN, X)
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
    after = trained(PLAIN, X, Y, before)["params"]
    np.testing.assert_allclose(after["output"]["kernel"].T, A_new, rtol=1e-12)
    np.testing.assert_allclose(after["hidden_1"]["Dense_0"]["kernel"].T, B_new, rtol=1e-12)


@pytest.mark.parametrize("direct", ["none", "embedding", "tokens"])
def test_the_language_model_is_bengio_s_equation(direct):
    model = MLPLanguageModel(vocab_size=5, embedding=2, hidden=(4,), direct=direct, dtype=jnp.float64)
    params = jax.tree.map(np.asarray, drawn_variables(model, TOKENS)["params"])
    C, hidden, output = params["embedding"]["embedding"], params["network"]["hidden_1"]["Dense_0"], params["network"]["output"]
    logits = np.asarray(outputs(model, {"params": params}, TOKENS))
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
    made = drawn_variables(model, TOKENS, seed=1)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        z, _ = model.apply({**made, "params": params}, TOKENS, train=True, mutable=["batch_stats"])
        return objective("softmax_cross_entropy")(z, jax.device_put(TARGETS)).mean()

    h = 1e-5
    for _ in range(2):
        d = jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), made["params"])
        moved = [
            jax.tree.map(lambda leaf, v, s=s: jax.device_put(np.asarray(leaf) + s * h * v), made["params"], d) for s in (1, -1)
        ]
        along = sum(np.sum(np.asarray(a) * b) for a, b in zip(*map(jax.tree.leaves, (loss(made["params"])[1], d)), strict=True))
        ahead, behind = (float(loss(params)[0]) for params in moved)
        assert along == pytest.approx((ahead - behind) / (2 * h), rel=1e-6, abs=1e-8)


def test_a_residual_layer_adds_its_input_where_widths_agree():
    plain, residual = (FullyConnected((4, 3), 2, residual=flag, dtype=jnp.float64) for flag in (False, True))
    made = drawn_variables(plain, X)
    first, second, output = (jax.tree.map(np.asarray, made["params"][name]) for name in ("hidden_1", "hidden_2", "output"))
    a = X + np.maximum(X @ first["Dense_0"]["kernel"] + first["Dense_0"]["bias"], 0)  # of width 4, as X; the next is of width 3
    expected = np.maximum(a @ second["Dense_0"]["kernel"] + second["Dense_0"]["bias"], 0) @ output["kernel"] + output["bias"]
    np.testing.assert_allclose(outputs(residual, made, X), expected, rtol=1e-12)
    assert not np.allclose(outputs(plain, made, X), expected)


def test_batch_norm_reads_the_batch_while_training_and_running_statistics_for_inference():
    made = drawn_variables(NORMED, X)
    start = {**made, "batch_stats": {"hidden_1": {"BatchNorm_0": {"mean": np.zeros(3), "var": np.ones(3)}}}}
    apply = jax.jit(lambda variables, X: NORMED.apply(variables, X, train=True, mutable=["batch_stats", "intermediates"]))
    seen: Any = jax.tree.map(np.asarray, apply(start, X)[1])
    layer = jax.tree.map(np.asarray, made["params"]["hidden_1"])
    raw, norm = X @ layer["Dense_0"]["kernel"], layer["BatchNorm_0"]
    expected = norm["scale"] * (raw - raw.mean(axis=0)) / np.sqrt(raw.var(axis=0) + 1e-5) + norm["bias"]  # its epsilon
    np.testing.assert_allclose(seen["intermediates"]["hidden_1"]["z"][0], expected, rtol=1e-9, atol=1e-12)
    updated = seen["batch_stats"]["hidden_1"]["BatchNorm_0"]
    np.testing.assert_allclose(updated["mean"], 0.1 * raw.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(updated["var"], 0.9 + 0.1 * raw.var(axis=0), rtol=1e-12)
    mean, var = (np.asarray(made["batch_stats"]["hidden_1"]["BatchNorm_0"][name], float) for name in ("mean", "var"))
    z = norm["scale"] * (raw - mean) / np.sqrt(var + 1e-5) + norm["bias"]
    output = jax.tree.map(np.asarray, made["params"]["output"])
    inference = np.maximum(z, 0) @ output["kernel"] + output["bias"]  # whatever its batch
    np.testing.assert_allclose(outputs(NORMED, made, X), inference, rtol=1e-12)
    assert "bias" not in made["params"]["hidden_1"]["Dense_0"]  # its own shift takes that place


def test_weights_of_zero_never_move():
    """Lemma 1: with A = B = 0 every gradient has a factor 0. With A = 0 alone, A moves first and then B."""
    zeros = init_variables(FullyConnected((3,), 2, bias=False, weights="zeros", dtype=jnp.float64), jax.random.key(0), X)
    assert not any(leaf.any() for leaf in jax.tree.leaves(trained(PLAIN, X, Y, zeros, steps=10)["params"]))
    made = drawn_variables(PLAIN, X)
    made["params"]["output"] = {"kernel": jax.device_put(np.zeros((3, 2)))}
    once, twice = (trained(PLAIN, X, Y, made, steps=n)["params"] for n in (1, 2))
    hidden = [np.asarray(p["hidden_1"]["Dense_0"]["kernel"]) for p in (made["params"], once, twice)]
    assert once["output"]["kernel"].any() and (hidden[1] == hidden[0]).all() and (hidden[2] != hidden[0]).any()


def test_the_chunk_changes_no_score():
    made = drawn_variables(PLAIN, X)
    whole, parts = (scorer(PLAIN, objective("squared_error"), chunk=chunk)(made, X, Y) for chunk in (100, 4))
    answers = np.asarray(outputs(PLAIN, made, X))
    for scores in (whole, parts):
        assert scores.loss == pytest.approx(np.sum((answers - Y) ** 2) / 12, rel=1e-12)
        assert scores.accuracy == np.mean(answers.argmax(axis=1) == Y.argmax(axis=1))


def test_what_is_dropped_depends_on_seed_and_step_alone():
    model: Any = FullyConnected((16,), 2, dropout=0.5, dtype=jnp.float64)
    start = drawn_variables(model, X)

    def after(seed, steps):
        return trained(model, X, Y, start, steps=steps, seed=seed)["params"]["output"]["kernel"]

    np.testing.assert_array_equal(after(0, 3), after(0, 3))
    assert (after(0, 1) != after(1, 1)).any()
    first, step = descent(model, "squared_error", 0.1)
    state = first(start)
    later = state._replace(steps=jax.device_put(np.int32(1)))
    kernels = [np.asarray(step(one, (X, Y))[0].params["output"]["kernel"]) for one in (state, later)]
    assert (kernels[0] != kernels[1]).any()


# Convolutions

IMAGE_RNG = np.random.default_rng(0)
SHAPE, IMAGES = (5, 6), IMAGE_RNG.uniform(size=(3, 30))
MODEL = ConvolutionalNetwork(SHAPE, 4, channels=(2, 3), hidden=5, dtype=jnp.float64)


def convolved(x, W):
    """`z[i, j, f] = sum W[a, b, c, f] x[i + a - 1, j + b - 1, c]`, zeros outside of the image."""
    height, width, channels = x.shape
    z = np.zeros((height, width, W.shape[-1]))
    for i, j, f in np.ndindex(z.shape):
        for a, b, c in np.ndindex(3, 3, channels):
            row, column = i + a - 1, j + b - 1
            if 0 <= row < height and 0 <= column < width:
                z[i, j, f] += W[a, b, c, f] * x[row, column, c]
    return z


def test_the_network_is_what_loops_compute():
    with jax.numpy_dtype_promotion("standard"):  # flax keeps running statistics in float32
        variables = drawn_variables(MODEL, IMAGES)
        found = np.asarray(outputs(MODEL, variables, IMAGES))
    params, running = jax.tree.map(lambda leaf: np.asarray(leaf, float), (variables["params"], variables["batch_stats"]))
    for m, x in enumerate(IMAGES):
        x = x.reshape(*SHAPE, 1)
        for n in (1, 2):
            z, norm, mean = convolved(x, params[f"convolution_{n}"]["kernel"]), params[f"norm_{n}"], running[f"norm_{n}"]
            z = norm["scale"] * (z - mean["mean"]) / np.sqrt(mean["var"] + 1e-5) + norm["bias"]
            x = np.zeros((z.shape[0] // 2, z.shape[1] // 2, z.shape[2]))
            for i, j, f in np.ndindex(x.shape):
                x[i, j, f] = max(0, z[2 * i : 2 * i + 2, 2 * j : 2 * j + 2, f].max())
        hidden = np.maximum(x.ravel() @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
        expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
        np.testing.assert_allclose(found[m], expected, rtol=1e-12)


# Diagnostics

TOKEN_RNG = np.random.default_rng(0)


def test_the_layers_of_a_language_model_are_found():
    tokens, targets = TOKEN_RNG.integers(0, 5, (4, 2)), TOKEN_RNG.integers(0, 5, 4)
    model = MLPLanguageModel(5, 2, (3, 3), norm="batch")
    variables = drawn_variables(model, tokens)
    layers = hidden_layers(
        model, variables, objective("softmax_cross_entropy"), jax.device_put(tokens), jax.device_put(targets)
    )
    assert list(layers) == ["hidden_1", "hidden_2"] and layers["hidden_1"].z.shape == (4, 3)
    shift = variables["params"]["network"]["hidden_1"]["BatchNorm_0"]["bias"]
    means = np.asarray(layers["hidden_1"].z).mean(axis=0)
    np.testing.assert_allclose(means, shift, atol=1e-6)  # BatchNorm in training, float32

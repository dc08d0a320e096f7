"""Networks in flax, losses, optimisers, initial weights and autoencoders, against NumPy loops and recurrences.

Float64: 1e-12 for sums of a few dozen products, 1e-10 where 1 - a is small, 1e-6 for central differences.
"""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import TypeCheckError
from scipy.signal import correlate2d
from scipy.special import expit as sigmoid
from scipy.special import log_softmax, softmax
from sklearn.decomposition import PCA
from tables import refuse

from jexplicit.nn import networks
from jexplicit.nn.names import InitializerName, OptimizerName, ScheduleName
from jexplicit.nn.training import (
    OBJECTIVES,
    epoch_order,
    make_optimizer,
    make_schedule,
    objective,
    shorter_epochs,
)

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2))
TOKENS, TARGETS = RNG.integers(0, 5, (6, 3)), RNG.integers(0, 5, 6)
PLAIN = networks.FullyConnected((3,), 2, bias=False, dtype=jnp.float64)
# compiled whole, which takes less time than compiling every operation
outputs = jax.jit(networks.network_outputs, static_argnums=0)


@pytest.fixture
def promotion():
    """flax keeps BatchNorm's running statistics in float32, whatever the network's own type."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def drawn_variables(model: nn.Module, inputs: Any, seed: int = 0) -> Any:
    """Parameters of variance 1/(their first axis), and running statistics between 0.5 and 1.5, drawn by NumPy."""
    shapes: Any = jax.eval_shape(model.init, jax.random.key(0), jax.device_put(inputs))
    rng, dtype = np.random.default_rng(seed), jax.tree.leaves(shapes["params"])[0].dtype

    def like(tree: Any, draw: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(draw(leaf.shape).astype(dtype)), tree)

    params = like(shapes["params"], lambda shape: rng.normal(size=shape) / shape[0] ** 0.5)
    return {"params": params, "batch_stats": like(shapes.get("batch_stats", {}), lambda shape: rng.uniform(0.5, 1.5, shape))}


@functools.cache
def descent(model, seed=0):
    """Compiled: the first state, and a step of rate 0.1."""
    optimizer = optax.sgd(0.1)
    start = jax.jit(lambda variables: networks.initial_state(variables, optimizer))
    return start, jax.jit(networks.network_step(model, objective("squared_error"), optimizer, seed=seed))


def test_a_step_of_descent_is_the_hand_derived_one():
    """A += η/n Σ (y - f) φ(Bx)ᵀ and B += η/n Σ (Aᵀ(y - f) ⊙ φ'(Bx)) xᵀ, looped over examples."""
    before = drawn_variables(PLAIN, X)
    A, B = (np.asarray(layer["kernel"]).T for layer in (before["params"]["output"], before["params"]["hidden_1"]["Dense_0"]))
    A_new, B_new = A.copy(), B.copy()
    for x, y in zip(X, Y, strict=True):
        z = B @ x
        error = y - A @ np.maximum(z, 0)
        A_new += 0.1 / len(X) * np.outer(error, np.maximum(z, 0))
        B_new += 0.1 / len(X) * np.outer((A.T @ error) * (z > 0), x)
    start, step = descent(PLAIN)
    after = networks.variables_of(step(start(before), (X, Y))[0])["params"]
    np.testing.assert_allclose(np.transpose(after["output"]["kernel"]), A_new, rtol=1e-12)
    np.testing.assert_allclose(np.transpose(after["hidden_1"]["Dense_0"]["kernel"]), B_new, rtol=1e-12)


@pytest.mark.parametrize("direct", ["none", "embedding"])
def test_the_language_model_is_bengio_s_equation(direct):
    model = networks.MLPLanguageModel(vocab_size=5, embedding=2, hidden=(4,), direct=direct, dtype=jnp.float64)
    params = jax.tree.map(np.asarray, drawn_variables(model, TOKENS)["params"])
    C, hidden, output = params["embedding"]["embedding"], params["network"]["hidden_1"]["Dense_0"], params["network"]["output"]
    logits = np.asarray(outputs(model, {"params": params}, TOKENS))
    for m, context in enumerate(TOKENS):
        x = np.concatenate([C[token] for token in context])
        expected = output["bias"] + np.tanh(x @ hidden["kernel"] + hidden["bias"]) @ output["kernel"]
        if direct == "embedding":
            expected = expected + x @ params["direct"]["kernel"]
        np.testing.assert_allclose(logits[m], expected, rtol=1e-12)


NORMS = {"none": ("Dense_0", 0), "layer": ("LayerNorm_0", 1), "group": ("GroupNorm_0", 8), "batch": ("BatchNorm_0", 0)}


def slow_network(network, variables, *, train: bool = False):
    """Outputs layer by layer, and the last running statistics after the batch."""
    params, stats = jax.tree.map(lambda leaf: np.asarray(leaf, float), (variables["params"], variables["batch_stats"]))
    x, after = X, {}
    for n in range(1, len(network.hidden) + 1):
        own, (name, groups) = params[f"hidden_{n}"], NORMS[network.norm]
        z = x @ own["Dense_0"]["kernel"]
        if network.norm == "none":
            z = z + own["Dense_0"]["bias"]
        elif groups:  # of an example's units
            z = z.reshape(len(X), groups, -1)
            z = ((z - z.mean(axis=2, keepdims=True)) / np.sqrt(z.var(axis=2, keepdims=True) + 1e-6)).reshape(len(X), -1)
        else:
            running, seen = stats[f"hidden_{n}"][name], {"mean": z.mean(axis=0), "var": z.var(axis=0)}
            after = {key: 0.9 * running[key] + 0.1 * seen[key] for key in seen}
            moments = seen if train else running
            z = (z - moments["mean"]) / np.sqrt(moments["var"] + 1e-5)
        a = np.maximum(z if network.norm == "none" else own[name]["scale"] * z + own[name]["bias"], 0)
        x = x + a if network.residual and x.shape == a.shape else a
    return x @ params["output"]["kernel"] + params["output"]["bias"], after


@pytest.mark.parametrize(
    "options", [{"norm": "layer"}, {"norm": "group"}, {"norm": "batch"}, {"hidden": (4, 3), "residual": True}], ids=str
)
def test_norms_and_residual_layers_are_the_loop_over_layers(options):
    """A residual layer adds its input where the widths agree: 4, as X; the next is of width 3. Groups are of two units."""
    network: Any = networks.FullyConnected(**{"hidden": (16,), "outputs": 2, "dtype": jnp.float64, **options})
    made = drawn_variables(network, X)
    assert network.norm == "none" or "bias" not in made["params"]["hidden_1"]["Dense_0"]  # its own shift takes that place
    close: Any = {"rtol": 1e-12} if network.norm in ("none", "batch") else {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(outputs(network, made, X), slow_network(network, made)[0], **close)
    if network.norm == "batch":
        found, seen = jax.jit(functools.partial(network.apply, train=True, mutable=["batch_stats"]))(made, X)
        expected, statistics = slow_network(network, made, train=True)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        for name, value in statistics.items():
            np.testing.assert_allclose(seen["batch_stats"]["hidden_1"]["BatchNorm_0"][name], value, rtol=1e-12)


def test_the_chunk_changes_no_score():
    made = drawn_variables(PLAIN, X)
    whole, parts = (networks.scorer(PLAIN, objective("squared_error"), chunk=chunk)(made, X, Y) for chunk in (100, 4))
    answers = np.asarray(outputs(PLAIN, made, X))
    for scores in (whole, parts):
        assert scores.loss == pytest.approx(np.sum((answers - Y) ** 2) / 12, rel=1e-12)
        assert scores.accuracy == np.mean(answers.argmax(axis=1) == Y.argmax(axis=1))


def test_dropout_depends_on_seed_and_step_alone():
    model: Any = networks.FullyConnected((16,), 2, dropout=0.5, dtype=jnp.float64)

    def after(seed, steps):
        start, step = descent(model, seed)
        state = start(drawn_variables(model, X))._replace(steps=jax.device_put(np.int32(steps)))
        return np.asarray(step(state, (X, Y))[0].params["output"]["kernel"])

    np.testing.assert_array_equal(after(0, 0), after(0, 0))
    assert (after(0, 0) != after(1, 0)).any() and (after(0, 0) != after(0, 1)).any()


def test_the_convolutional_network_is_convolutions_of_scipy_and_largest_of_four():
    images = np.random.default_rng(0).uniform(size=(3, 30))
    model = networks.ConvolutionalNetwork((5, 6), 4, channels=(2, 3), hidden=5, dtype=jnp.float64)
    variables = drawn_variables(model, images)
    found = np.asarray(outputs(model, variables, images))
    params, running = jax.tree.map(lambda leaf: np.asarray(leaf, float), (variables["params"], variables["batch_stats"]))
    for m, x in enumerate(images.reshape(3, 1, 5, 6)):
        for n in (1, 2):
            W, norm, mean = params[f"convolution_{n}"]["kernel"], params[f"norm_{n}"], running[f"norm_{n}"]
            z = np.array([sum(map(correlate2d, x, W[:, :, :, f].transpose(2, 0, 1), ["same"] * len(x))) for f in range(n + 1)])
            scale, shift, mean, var = (v[:, None, None] for v in (norm["scale"], norm["bias"], mean["mean"], mean["var"]))
            z = np.maximum(scale * (z - mean) / np.sqrt(var + 1e-5) + shift, 0)
            height, width = z.shape[1] // 2, z.shape[2] // 2
            x = z[:, : 2 * height, : 2 * width].reshape(n + 1, height, 2, width, 2).max(axis=(2, 4))
        hidden = np.maximum(x.transpose(1, 2, 0).ravel() @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
        np.testing.assert_allclose(found[m], hidden @ params["output"]["kernel"] + params["output"]["bias"], rtol=1e-12)


# Losses, activations and backpropagation

Z = np.random.default_rng(0).normal(size=(5, 3)) * 3
ONE_HOT = np.eye(3)[np.random.default_rng(1).integers(0, 3, 5)]


LOSSES = {  # J, and dJ/dz
    "squared_error": (lambda z, y: np.sum((y - z) ** 2, axis=1) / 2, lambda z, y: z - y),
    "sigmoid_squared_error": (
        lambda z, y: np.sum((y - sigmoid(z)) ** 2, axis=1),
        lambda z, y: -2 * (y - sigmoid(z)) * sigmoid(z) * (1 - sigmoid(z)),
    ),
    "binary_cross_entropy": (
        lambda z, y: -np.sum(y * np.log(sigmoid(z)) + (1 - y) * np.log(1 - sigmoid(z)), axis=1),
        lambda z, y: sigmoid(z) - y,
    ),
    "softmax_cross_entropy": (lambda z, y: -(y * log_softmax(z, axis=1)).sum(axis=1), lambda z, y: softmax(z, axis=1) - y),
}
SLOPES = {  # φ'(z), with a = φ(z)
    "relu": lambda z, a: z > 0,
    "leaky_relu": lambda z, a: np.where(z > 0, 1, 0.01),
    "tanh": lambda z, a: 1 - a**2,
    "sigmoid": lambda z, a: a * (1 - a),
    "relu_tanh": lambda z, a: (z > 0) * (1 - a**2),
    "silu": lambda z, a: a + sigmoid(z) * (1 - a),
    "linear": lambda z, a: np.ones_like(z),
}


def test_losses_and_activations_and_their_gradients_are_the_formulas():
    losses = {name: objective(name) for name in OBJECTIVES}

    @jax.jit
    def found(z, y, labels):
        slopes = {name: jax.grad(lambda z, loss=loss: loss(z, y).sum())(z) for name, loss in losses.items()}
        functions = {name: phi for name, (phi, _) in networks.ACTIVATIONS.items()}
        phis = {name: (phi(z), jax.vmap(jax.grad(phi))(z.ravel()).reshape(z.shape)) for name, phi in functions.items()}
        return {name: loss(z, y) for name, loss in losses.items()}, slopes, losses["softmax_cross_entropy"](z, labels), phis

    values, slopes, of_labels, phis = jax.tree.map(np.asarray, found(Z, ONE_HOT, ONE_HOT.argmax(axis=1)))
    for name, (loss, slope) in LOSSES.items():
        np.testing.assert_allclose(values[name], loss(Z, ONE_HOT), rtol=1e-10)
        np.testing.assert_allclose(slopes[name], slope(Z, ONE_HOT), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(of_labels, values["softmax_cross_entropy"], rtol=1e-12)
    for name, (a, slope) in phis.items():
        np.testing.assert_allclose(slope, SLOPES[name](Z, a), rtol=1e-10, atol=1e-14)


# Optimisers


def test_every_optimiser_descends_at_a_rate_that_may_be_traced():
    @jax.jit
    @jax.vmap
    def first_updates(rate):
        made, W = {name: make_optimizer(name, rate) for name in OptimizerName.__args__}, jnp.ones(2)
        return {name: one.update(jax.device_put(np.array([0.5, 2.0])), one.init(W), W)[0] for name, one in made.items()}

    updates = jax.tree.map(np.asarray, first_updates(np.array([0.01, 0.1])))
    for update in updates.values():  # they are optax's own
        assert (update < 0).all() and (update[1] < update[0]).all()
    np.testing.assert_allclose(updates["adagrad"], [[-0.01] * 2, [-0.1] * 2], rtol=1e-12)  # from squares of 0, and no ε


def test_rates_cool_down():
    schedules = {name: make_schedule(name, 0.3, 90) for name in ScheduleName.__args__}
    found = jax.jit(lambda k: {name: k * 0.0 + jax.vmap(schedule)(k) for name, schedule in schedules.items()})
    for name, of_steps in jax.tree.map(np.asarray, found(np.arange(91))).items():
        assert of_steps[0] == pytest.approx(0.3, rel=1e-6) and (np.diff(of_steps) <= 0).all()
        assert of_steps[-1] == pytest.approx({"constant": 0.3, "cosine": 0}[name], abs=1e-7)


# Initial weights


def test_the_variance_of_initial_weights_is_that_of_theory():
    shape, gains = (300, 200), {"tanh": 1.0, "sigmoid": 4.0, "relu": 2**0.5, "silu": 2**0.5}  # the lecture's gains
    names = [name for name in InitializerName.__args__ if name != "zeros"]
    networks.standard_scale.cache_clear()  # it is then asked for under jit
    made = jax.jit(lambda key: {(n, phi): networks.initializer(n, phi)(key, shape, np.float64) for n in names for phi in gains})
    for (name, phi), W in jax.tree.map(np.asarray, made(jax.random.key(0))).items():
        expected = {
            "glorot": gains[phi] ** 2 * 2 / 500,
            "he": gains[phi] ** 2 / 300,
            "backward": gains[phi] ** 2 / 200,
            "fan": 1 / 3 / 300,
            "standard": networks.standard_scale(phi) / 300,
        }[name.split("_")[0]]
        assert W.var() == pytest.approx(expected, rel=0.03)
        assert abs(W.mean()) < 5 * (expected / W.size) ** 0.5
        if name.endswith("uniform"):
            bound = (3 * expected) ** 0.5  # for Glorot gain √(6/(n_in + n_out)), as printed
            assert 0.999 * bound < np.abs(W).max() <= bound
        else:
            assert np.abs(W).max() > 3.5 * expected**0.5  # not cut off


def test_the_standard_scheme_s_constant():
    """c E[φ(z)²] = 1: by hand for ReLU (2) and the identity (1), by a million draws elsewhere (relative error 0.5 %)."""
    assert [networks.standard_scale(name) for name in ("relu", "linear")] == pytest.approx([2, 1], rel=1e-9)
    names = "tanh", "sigmoid", "relu_tanh", "silu", "leaky_relu"
    squares = jax.jit(lambda z: {name: jnp.mean(networks.ACTIVATIONS[name][0](z) ** 2) for name in names})
    for name, mean_square in squares(np.random.default_rng(0).normal(size=1_000_000)).items():
        assert networks.standard_scale(name) * float(mean_square) == pytest.approx(1, rel=0.005)


# Autoencoders: 1e-10 for factorisations of small well-conditioned matrices

DRAWN = np.random.default_rng(0)
POINTS = DRAWN.normal(size=(20, 3)) @ DRAWN.normal(size=(3, 6)) + 0.1 * DRAWN.normal(size=(20, 6))
reconstructed = jax.jit(lambda X, k, Z: networks.linear_autoencoder(X, k)(Z), static_argnums=1)


def errors_of(outputs, X) -> np.ndarray:
    return np.sum((np.asarray(outputs) - np.asarray(X)) ** 2, axis=1) / 2


def test_the_linear_autoencoder_is_principal_components():
    centred, pca = POINTS - POINTS.mean(axis=0), PCA(2).fit(POINTS)
    found = reconstructed(centred, 2, centred)
    np.testing.assert_allclose(found, pca.inverse_transform(pca.transform(POINTS)) - pca.mean_, atol=1e-10)
    errors = jax.jit(networks.reconstruction_errors)(found, centred)
    np.testing.assert_allclose(errors, errors_of(found, centred), rtol=1e-12)
    assert np.sum(errors) == pytest.approx(np.sum(np.linalg.svd(centred, compute_uv=False)[2:] ** 2) / 2)  # Eckart-Young


def test_anomalies_are_found_where_reconstruction_fails():
    strange = DRAWN.normal(size=(20, 6)) * POINTS.std()
    normal, anomalous = (errors_of(reconstructed(POINTS, 3, part), part) for part in (POINTS, strange))
    by_pairs = np.mean(anomalous[:, None] > normal[None])
    assert networks.anomaly_auc(*jax.device_put((normal, anomalous))) == pytest.approx(by_pairs) and by_pairs > 0.95


def test_contraction_is_of_the_jacobian():
    A = DRAWN.normal(size=(4, 4))
    found = networks.contraction(lambda x: jax.device_put(A) @ x, jax.device_put(DRAWN.normal(size=(2, 4))))
    np.testing.assert_allclose(found[0], np.linalg.svd(A, compute_uv=False)[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], np.abs(np.linalg.eigvals(A)).max(), rtol=1e-10)


def test_points_are_followed_to_the_memory_that_attracts_them():
    memories = jax.device_put(POINTS[:3])

    def halfway(x):
        return (x + memories[jnp.argmin(jnp.sum((memories - x[None]) ** 2, axis=1))]) / 2

    starts = jax.jit(networks.add_noise, static_argnums=(2, 3))(jax.random.key(1), memories, 0.1, 40)
    noise = (np.asarray(starts) - np.repeat(POINTS[:3], 40, axis=0)) / POINTS[:3].std()
    assert noise.std() == pytest.approx(0.1, rel=0.1)  # of 720 numbers: a standard error of 3 %
    np.testing.assert_allclose(networks.iterate_map(halfway, memories, 1), memories, rtol=1e-12)
    back = networks.recall(networks.iterate_map(halfway, starts, 12), memories)
    np.testing.assert_array_equal(back, np.repeat(np.eye(3, dtype=bool), 40, axis=0))


def test_calls_that_make_no_sense_are_refused():
    key, X, none = jax.random.key(0), jax.device_put(np.ones((20, 6))), jax.device_put(np.ones((0, 6)))
    network: Any = networks.FullyConnected
    rows = [
        ("activation 'gelu': choose one of relu", lambda: networks.activation("gelu")),
        ("'orthogonal': choose one of glorot_normal", lambda: networks.initializer("orthogonal", "relu")),
        ("'gelu': choose one of", lambda: networks.initializer("he_normal", "gelu")),
        ("'hinge': choose one of squared_error", lambda: objective("hinge")),
        ("'lion': choose one of sgd", lambda: make_optimizer("lion", 0.1)),
        ("'warm': choose one of constant", lambda: make_schedule("warm", 0.1, 10)),
        ("both must be positive", lambda: make_schedule("cosine", float("nan"), 10)),
        ("epochs of 11 examples, of 10", lambda: shorter_epochs(functools.partial(epoch_order, size=10), 10, 11)),
        ("at least one example and one feature", lambda: networks.init_variables(network((2,), 1), key, np.zeros((0, 3)))),
        ("'instance'", lambda: networks.init_variables(network((3,), 2, norm="instance"), key, np.ones((1, 4), np.float32))),
        ("no examples", lambda: networks.scorer(network((), 1), objective("squared_error"))({}, none, none)),
        ("width 7 for 20 examples of 6", lambda: networks.linear_autoencoder(X, 7)),
        ("-1 iterations", lambda: networks.iterate_map(jnp.tanh, X, -1)),
        ("at least one of each", lambda: networks.anomaly_auc(*jax.device_put((np.ones(20), np.ones(0))))),
    ]
    named = [(re.escape(message), call) for message, call in rows]
    refuse(named, errors=(ValueError, TypeCheckError))  # types say so first where they are checked

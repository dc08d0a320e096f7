"""Networks in flax, losses, optimisers, initial weights, autoencoders and transformers, against NumPy loops and recurrences.

Float64: 1e-12 for sums of a few dozen products, 1e-10 where 1 - a is small. Transformers: 2e-5 in float32, and for attention,
whose softmax JAX takes in float32; Adam's first steps amplify rounding, 1e-4.
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
from scipy.special import log_softmax
from sklearn.decomposition import PCA
from tables import refuse

from jexplicit.data.streams import PAD
from jexplicit.nn import networks, sequences, training
from jexplicit.nn.names import InitializerName, OptimizerName, ScheduleName
from jexplicit.runs.devices import data_mesh, replicate

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 2))
TOKENS = RNG.integers(0, 5, (6, 3))
PLAIN: Any = networks.FullyConnected((3,), 2, bias=False, dtype=jnp.float64)
# compiled whole, which takes less time than compiling every operation
outputs = jax.jit(networks.network_outputs, static_argnums=0)


@pytest.fixture
def promotion():
    """flax keeps BatchNorm's running statistics in float32; its LayerNorm and JAX's attention mix types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def drawn_variables(model: nn.Module, inputs: Any) -> Any:
    """Parameters of variance 1/(their first axis), and running statistics between 0.5 and 1.5, drawn by NumPy."""
    shapes: Any = jax.eval_shape(model.init, jax.random.key(0), jax.device_put(inputs))
    rng, dtype = np.random.default_rng(0), jax.tree.leaves(shapes["params"])[0].dtype

    def like(tree: Any, draw: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(draw(leaf.shape).astype(dtype)), tree)

    params = like(shapes["params"], lambda shape: rng.normal(size=shape) / shape[0] ** 0.5)
    return {"params": params, "batch_stats": like(shapes.get("batch_stats", {}), lambda shape: rng.uniform(0.5, 1.5, shape))}


@functools.cache
def descent(model, seed=0):
    """Compiled: the first state, and a step of rate 0.1."""
    optimizer = optax.sgd(0.1)
    start = jax.jit(lambda variables: networks.initial_state(variables, optimizer))
    return start, jax.jit(networks.network_step(model, training.objective("squared_error"), optimizer, seed=seed))


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
    after = step(start(before), (X, Y))[0].variables["params"]
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
    whole, parts = (networks.scorer(PLAIN, training.objective("squared_error"), chunk=chunk)(made, X, Y) for chunk in (100, 4))
    answers = np.asarray(outputs(PLAIN, made, X))
    for scores in (whole, parts):
        assert scores.loss == pytest.approx(np.sum((answers - Y) ** 2) / 12, rel=1e-12)
        assert scores.accuracy == np.mean(answers.argmax(axis=1) == Y.argmax(axis=1))


def test_dropout_depends_on_seed_and_step_alone():
    model: Any = networks.FullyConnected((16,), 2, dropout=0.5, dtype=jnp.float64)

    def after(seed, steps):
        start, step = descent(model, seed)
        state = start(drawn_variables(model, X))._replace(steps=jax.device_put(np.int32(steps)))
        return np.asarray(step(state, (X, Y))[0].variables["params"]["output"]["kernel"])

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


# Losses and activations

Z = np.random.default_rng(0).normal(size=(5, 3)) * 3
ONE_HOT = np.eye(3)[np.random.default_rng(1).integers(0, 3, 5)]
LOSSES = {
    "squared_error": lambda z, y: np.sum((y - z) ** 2, axis=1) / 2,
    "sigmoid_squared_error": lambda z, y: np.sum((y - sigmoid(z)) ** 2, axis=1),
    "binary_cross_entropy": lambda z, y: -np.sum(y * np.log(sigmoid(z)) + (1 - y) * np.log(1 - sigmoid(z)), axis=1),
    "softmax_cross_entropy": lambda z, y: -np.sum(y * log_softmax(z, axis=1), axis=1),
}
FUNCTIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu_tanh": lambda z: np.maximum(np.tanh(z), 0),
    "silu": lambda z: z * sigmoid(z),
    "linear": lambda z: z,
}


def test_losses_and_activations_are_the_formulas():
    losses = {name: training.objective(name) for name in training.OBJECTIVES}

    @jax.jit
    def found(z, y, labels):
        values = {name: loss(z, y) for name, loss in losses.items()}
        phis = {name: networks.activation(name)(z) for name in networks.ACTIVATIONS}
        return values, losses["softmax_cross_entropy"](z, labels), phis

    values, of_labels, phis = jax.tree.map(np.asarray, found(Z, ONE_HOT, ONE_HOT.argmax(axis=1)))
    for name, value in values.items():
        np.testing.assert_allclose(value, LOSSES[name](Z, ONE_HOT), rtol=1e-10)
    np.testing.assert_allclose(of_labels, values["softmax_cross_entropy"], rtol=1e-12)
    for name, phi in phis.items():
        np.testing.assert_allclose(phi, FUNCTIONS[name](Z), rtol=1e-10, atol=1e-14)


# Optimisers


def test_every_optimiser_descends_at_a_rate_that_may_be_traced():
    @jax.jit
    @jax.vmap
    def first_updates(rate):
        made, W = {name: training.make_optimizer(name, rate) for name in OptimizerName.__args__}, jnp.ones(2)
        return {name: one.update(jax.device_put(np.array([0.5, 2.0])), one.init(W), W)[0] for name, one in made.items()}

    updates = jax.tree.map(np.asarray, first_updates(np.array([0.01, 0.1])))
    for update in updates.values():  # they are optax's own
        assert (update < 0).all() and (update[1] < update[0]).all()
    np.testing.assert_allclose(updates["adagrad"], [[-0.01] * 2, [-0.1] * 2], rtol=1e-12)  # from squares of 0, and no ε


def test_rates_cool_down():
    schedules = {name: training.make_schedule(name, 0.3, 90) for name in ScheduleName.__args__}
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


# Transformers

TOKEN_RNG = np.random.default_rng(0)
WINDOWS = TOKEN_RNG.integers(1, 7, (2, 10))
WINDOWS[0, 4] = 0  # a document begins
SIZES: Any = {"vocab_size": 7, "width": 8, "layers": 2, "window": 12}
TRANSFORMERS = {
    "rotary": sequences.Transformer(heads=2, **SIZES),
    "learned": sequences.Transformer(heads=2, positions="learned", tied=False, **SIZES),
}


@functools.cache
def weights(name: str, precision: str = "float32") -> Any:
    """Random ones, so large that attention is not uniform."""
    made = drawn_variables(TRANSFORMERS[name].clone(precision=precision), WINDOWS)
    return {**made, "params": jax.tree.map(lambda leaf: jax.device_put(2 * np.asarray(leaf)), made["params"])}


@functools.cache
def compiled(name: str, precision: str) -> Any:
    return jax.jit(TRANSFORMERS[name].clone(precision=precision).apply)


def logits_of(name: str, X: np.ndarray, precision: str = "float32") -> np.ndarray:
    """Logits of windows of at most 12 tokens, two at a time: what follows a token does not matter to it."""
    padded = np.ones((2, 12), int)
    padded[: len(X), : X.shape[1]] = X
    return np.asarray(compiled(name, precision)(weights(name, precision), padded))[: len(X), : X.shape[1]]


def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * scale


def slow_transformer(params: Any, tokens: np.ndarray, *, heads: int, layers: int, learned: bool) -> np.ndarray:
    """Logits of one window, position by position and head by head."""
    E = params["embedding"]["embedding"]
    x = [E[w] + (params["positions"][t] if learned else 0) for t, w in enumerate(tokens)]
    d = len(x[0])
    h = d // heads
    begin = [max([s for s in range(t + 1) if tokens[s] == 0], default=0) for t in range(len(tokens))]

    def turned(vector: np.ndarray, t: int) -> np.ndarray:
        out = vector.copy()
        for n in range(h // 2 if not learned else 0):
            angle = t * 10_000 ** (-2 * n / h)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            out[[n, n + h // 2]] = turn @ vector[[n, n + h // 2]]
        return out

    for layer in range(1, layers + 1):
        own = params[f"layer_{layer}"]
        qkv = [norm(v, own["norm_1"]["scale"]) @ own["qkv"]["kernel"] for v in x]
        added = []
        for t in range(len(x)):
            a = np.zeros(d)
            for n in range(heads):
                part = [slice(i * d + n * h, i * d + (n + 1) * h) for i in range(3)]
                q, past = turned(qkv[t][part[0]], t), range(begin[t], t + 1)
                weights = np.exp([q @ turned(qkv[s][part[1]], s) / np.sqrt(h) for s in past])
                a[n * h : (n + 1) * h] = sum(w * qkv[s][part[2]] for w, s in zip(weights / weights.sum(), past, strict=True))
            added.append(a @ own["attention"]["kernel"])
        x = [v + a for v, a in zip(x, added, strict=True)]
        for t, v in enumerate(x):
            z = norm(v, own["norm_2"]["scale"]) @ own["hidden"]["kernel"]
            gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
            x[t] = v + gelu @ own["output"]["kernel"]
    U = params["output"]["kernel"] if "output" in params else E.T
    return np.array([norm(v, params["norm"]["scale"]) @ U for v in x])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_logits_are_those_of_a_loop(name):
    params = jax.tree.map(np.asarray, weights(name, "float64")["params"])
    found = logits_of(name, WINDOWS, "float64")
    for b, tokens in enumerate(WINDOWS):
        expected = slow_transformer(params, tokens, heads=2, layers=2, learned=name == "learned")
        np.testing.assert_allclose(found[b], expected, rtol=2e-5, atol=1e-6)


def test_narrow_products_have_float32_logits():
    narrow = logits_of("rotary", WINDOWS, "bfloat16")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(weights("rotary", "bfloat16"))}
    assert {narrow.dtype} == dtypes == {np.dtype("float32")}
    np.testing.assert_allclose(narrow, logits_of("rotary", WINDOWS), atol=0.1 * np.abs(narrow).max())  # 8 bits


def test_a_pass_takes_every_window_once():
    order, W = sequences.window_order(103, 10, 9), 10
    starts = order(0, 1)
    assert sorted(starts % W) == [starts[0] % W] * 9 and sorted(starts // W) == list(range(9))
    assert not np.array_equal(starts, order(0, 2)) and np.array_equal(starts, order(0, 1))
    parts = sequences.window_order(103, 10, 4)
    assert not set(parts(0, 1)) & set(parts(0, 2)) and set(parts(0, 1)) | set(parts(0, 2)) < set(starts)
    assert len(sequences.window_order(103, 10, 25)(0, 1)) == 25
    assert max(max(sequences.window_order(103, 10, 25)(seed, 1)) for seed in range(50)) + W + 1 <= 103


def test_batches_are_windows_and_the_loss_leaves_ends_of_documents_out():
    stream = np.arange(100, dtype=np.uint8)
    A, B = sequences.window_batch(stream, 5)(np.array([3, 90]))
    assert A.tolist() == [[3, 4, 5, 6, 7], [90, 91, 92, 93, 94]] and np.array_equal(A + 1, B)
    z, Y = np.zeros((1, 4, 7)), np.array([[3, 0, 1, 0]])
    z[0, 0, 3] = 2
    losses = jax.jit(lambda z, Y: [sequences.sequence_loss(eos)(z, Y) for eos in (True, False)])
    every, own = losses(z, Y)
    first = np.log(np.exp(2) + 6) - 2
    np.testing.assert_allclose(every, [(first + 3 * np.log(7)) / 4], rtol=1e-6)
    np.testing.assert_allclose(own, [(first + np.log(7)) / 2], rtol=1e-6)
    assert losses(z, 0 * Y)[1].tolist() == [0]


@pytest.mark.parametrize(("name", "devices"), [("learned", 1), ("rotary", 8)])
def test_every_token_is_predicted_once_after_at_least_window_less_stride(name, devices):
    W, stream = 12, np.concatenate([[0], TOKEN_RNG.integers(1, 7, 40)])
    for stride in (1, 5, 12):
        options: Any = {"window": W, "stride": stride, "mesh": data_mesh(devices)}
        found = sequences.stream_log_probabilities(TRANSFORMERS[name], weights(name), stream, **options)
        assert len(found) == 40
        for t in (0, 7, 11, 12, 13, 29, 39):  # predictions of stream[t + 1]
            window = 0 if t < W else (t - W) // stride + 1
            tokens = stream[window * stride : t + 1]
            assert len(tokens) > W - stride or t < W
            z = logits_of(name, tokens[None])[0, -1]
            log_p = z - np.logaddexp.reduce(z)
            np.testing.assert_allclose(found[t], log_p[stream[t + 1]], rtol=2e-5, atol=2e-5)


def after(name: str, steps: int, devices: int) -> Any:
    """Parameters after updates on the same windows."""
    network, mesh = TRANSFORMERS[name], data_mesh(devices)
    optimizer = sequences.sequence_optimizer(0.01, 10, warmup=2, decay=0.1)
    step = networks.training_step(network, sequences.sequence_loss(True), optimizer)
    state = replicate(jax.jit(lambda variables: networks.initial_state(variables, optimizer))(weights(name)), mesh)
    windows = np.random.default_rng(1).integers(1, 7, (steps, 16, 11))
    for batch in windows:
        state, _ = step(state, sequences.window_batch(batch.ravel(), 10, mesh)(np.arange(0, batch.size, 11)))
    return state.variables["params"]


def test_several_devices_take_the_step_of_one():
    one, eight = after("rotary", 3, 1), after("rotary", 3, 8)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), one, eight)


def test_the_rate_warms_up_and_decays_and_only_matrices_decay():
    """With gradients of 0 a step changes matrices by the factor 1 - rate * decay alone."""
    optimizer = sequences.sequence_optimizer(0.1, 10, warmup=4, decay=0.5)
    params: Any = {"matrix": np.ones((2, 2)), "scale": np.ones(2)}

    @jax.jit
    def run(params):
        def step(state, _):
            updates, state = optimizer.update(jax.tree.map(jnp.zeros_like, params), state, params)
            return state, updates

        return jax.lax.scan(step, optimizer.init(params), length=11)[1]

    updates: Any = jax.tree.map(np.asarray, run(params))
    assert (updates["scale"] == 0).all()
    expected = [0.1 * k / 4 for k in range(4)] + [0.01 + 0.09 * (1 + np.cos(np.pi * k / 6)) / 2 for k in range(7)]
    np.testing.assert_allclose(-updates["matrix"][:, 0, 0] / 0.5, expected, rtol=1e-5, atol=1e-8)


# A constructed start


def copied(tokens: np.ndarray, match: float, gain: float) -> np.ndarray:
    """The logits of a loop: the tokens that followed the last one, in the document, weighed by exp(match)."""
    out = np.zeros((len(tokens), 10))
    for t in range(len(tokens)):
        first = max((s for s in range(t + 1) if tokens[s] == PAD), default=0)
        weights = np.array([np.exp(match * (tokens[max(s - 1, first)] == tokens[t])) for s in range(first, t + 1)])
        p = np.bincount(tokens[first : t + 1], weights / weights.sum(), minlength=10)
        out[t] = gain * p * 2 / np.sqrt(3 + (p**2).sum())
    return out


@pytest.mark.slow
def test_induction_heads_copy_the_token_that_followed_the_last_one():
    network = TRANSFORMERS["learned"].clone(vocab_size=10, width=64, window=48)
    variables = networks.init_variables(network, jax.random.key(0), np.zeros((1, 48), np.int32))
    tokens = np.random.default_rng(0).integers(0, 10, (3, 48)).astype(np.int32)
    z = np.asarray(network.apply(sequences.induction_start(network, variables), tokens))
    # another place than the one before has a weight below e^-15 in the first layer; LayerNorm adds 1e-6 to variances of 0.03
    np.testing.assert_allclose(z, [copied(own, 16.0, 4.0) for own in tokens], atol=1e-3)


def test_calls_that_make_no_sense_are_refused():
    key, X, none = jax.random.key(0), jax.device_put(np.ones((20, 6))), jax.device_put(np.ones((0, 6)))
    network: Any = networks.FullyConnected

    def started(**options: Any):
        return sequences.induction_start(TRANSFORMERS["learned"].clone(**{"width": 64, **options}), {"params": {}})

    cases: Any = ({"layers": 1}, {"positions": "rotary"}, {"tied": True}, {"width": 8}, {"heads": 32})
    rows = [
        ("activation 'gelu': choose one of relu", lambda: networks.activation("gelu")),
        ("'orthogonal': choose one of glorot_normal", lambda: networks.initializer("orthogonal", "relu")),
        ("'gelu': choose one of", lambda: networks.initializer("he_normal", "gelu")),
        ("'hinge': choose one of squared_error", lambda: training.objective("hinge")),
        ("'lion': choose one of sgd", lambda: training.make_optimizer("lion", 0.1)),
        ("'warm': choose one of constant", lambda: training.make_schedule("warm", 0.1, 10)),
        ("both must be positive", lambda: training.make_schedule("cosine", float("nan"), 10)),
        ("epochs of 11 examples, of 10", lambda: training.shorter_epochs(lambda *_: np.arange(10), 10, 11)),
        ("at least one example and one feature", lambda: networks.init_variables(network((2,), 1), key, np.zeros((0, 3)))),
        ("'instance'", lambda: networks.init_variables(network((3,), 2, norm="instance"), key, np.ones((1, 4), np.float32))),
        ("no examples", lambda: networks.scorer(network((), 1), training.objective("squared_error"))({}, none, none)),
        ("width 7 for 20 examples of 6", lambda: networks.linear_autoencoder(X, 7)),
        ("-1 iterations", lambda: networks.iterate_map(jnp.tanh, X, -1)),
        ("at least one of each", lambda: networks.anomaly_auc(*jax.device_put((np.ones(20), np.ones(0))))),
        ("20 tokens and windows of 10", lambda: sequences.window_order(20, 10, 1)),
        *(("two layers or more, 16 wide or more", functools.partial(started, **options)) for options in cases),
    ]
    named = [(re.escape(message), call) for message, call in rows]
    refuse(named, errors=(ValueError, TypeCheckError))  # types say so first where they are checked

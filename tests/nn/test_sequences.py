"""Transformers: outputs against NumPy loops, batches, loss, scores, optimiser, start.

Tolerances: 1e-11 in float64 for sums of a few dozen products; 2e-5 in float32, and for attention, whose softmax JAX takes in
float32; Adam's first steps amplify rounding, 1e-4.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.streams import PAD
from jexplicit.nn import sequences
from jexplicit.nn.networks import init_variables, initial_state, training_step
from jexplicit.runs.devices import data_mesh, replicate

pytestmark = pytest.mark.usefixtures("promotion")

RNG = np.random.default_rng(0)
SIZES: Any = {"vocab_size": 7, "width": 8, "layers": 2, "window": 12}
X = RNG.integers(1, 7, (2, 10))
X[0, 4] = 0  # a document begins
NETWORKS = {
    "rotary": sequences.Transformer(heads=2, **SIZES),
    "learned": sequences.Transformer(heads=2, positions="learned", tied=False, **SIZES),
}


@pytest.fixture
def promotion():
    """flax's LayerNorm and JAX's attention mix float32 with other types."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def variables(name: str, precision: str = "float32") -> Any:
    """Random ones, of order 1, so that attention is not uniform."""
    network = NETWORKS[name].clone(precision=precision)
    shapes: Any = jax.eval_shape(network.init, jax.random.key(0), jax.device_put(X))
    rng = np.random.default_rng(0)
    draw = lambda leaf: jax.device_put((rng.normal(size=leaf.shape) * 2 / leaf.shape[0] ** 0.5).astype(leaf.dtype))  # noqa: E731
    return {"params": jax.tree.map(draw, shapes["params"]), "batch_stats": {}}


@functools.cache
def compiled(name: str, precision: str) -> Any:
    return jax.jit(NETWORKS[name].clone(precision=precision).apply)


def outputs(name: str, X: np.ndarray, precision: str = "float32") -> np.ndarray:
    """Logits of windows of at most 12 tokens, two at a time: what follows a token does not matter to it."""
    padded = np.ones((2, 12), int)
    padded[: len(X), : X.shape[1]] = X
    return np.asarray(compiled(name, precision)(variables(name, precision), padded))[: len(X), : X.shape[1]]


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


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_a_loop(name):
    params = jax.tree.map(np.asarray, variables(name, "float64")["params"])
    found = outputs(name, X, "float64")
    for b, tokens in enumerate(X):
        expected = slow_transformer(params, tokens, heads=2, layers=2, learned=name == "learned")
        np.testing.assert_allclose(found[b], expected, rtol=2e-5, atol=1e-6)


def test_narrow_products_have_float32_logits():
    narrow = outputs("rotary", X, "bfloat16")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(variables("rotary", "bfloat16"))}
    assert {narrow.dtype} == dtypes == {np.dtype("float32")}
    np.testing.assert_allclose(narrow, outputs("rotary", X), atol=0.1 * np.abs(narrow).max())  # 8 bits


def test_a_pass_takes_every_window_once():
    order, W = sequences.window_order(103, 10, 9), 10
    starts = order(0, 1)
    assert sorted(starts % W) == [starts[0] % W] * 9 and sorted(starts // W) == list(range(9))
    assert not np.array_equal(starts, order(0, 2)) and np.array_equal(starts, order(0, 1))
    parts = sequences.window_order(103, 10, 4)
    assert not set(parts(0, 1)) & set(parts(0, 2)) and set(parts(0, 1)) | set(parts(0, 2)) < set(starts)
    assert len(sequences.window_order(103, 10, 25)(0, 1)) == 25
    assert max(max(sequences.window_order(103, 10, 25)(seed, 1)) for seed in range(50)) + W + 1 <= 103
    with pytest.raises(ValueError, match="20 tokens and windows of 10"):
        sequences.window_order(20, 10, 1)


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
    W, stream = 12, np.concatenate([[0], RNG.integers(1, 7, 40)])
    for stride in (1, 5, 12):
        options: Any = {"window": W, "stride": stride, "mesh": data_mesh(devices)}
        found = sequences.stream_log_probabilities(NETWORKS[name], variables(name), stream, **options)
        assert len(found) == 40
        for t in (0, 7, 11, 12, 13, 29, 39):  # predictions of stream[t + 1]
            window = 0 if t < W else (t - W) // stride + 1
            tokens = stream[window * stride : t + 1]
            assert len(tokens) > W - stride or t < W
            z = outputs(name, tokens[None])[0, -1]
            log_p = z - np.logaddexp.reduce(z)
            np.testing.assert_allclose(found[t], log_p[stream[t + 1]], rtol=2e-5, atol=2e-5)


def after(name: str, steps: int, accumulate: int, devices: int = 1) -> Any:
    """Parameters after updates on the same windows, in one batch or in several."""
    network, mesh = NETWORKS[name], data_mesh(devices)
    optimizer = sequences.sequence_optimizer(0.01, 10, warmup=2, decay=0.1, accumulate=accumulate)
    step = training_step(network, sequences.sequence_loss(True), optimizer)
    state = replicate(jax.jit(lambda variables: initial_state(variables, optimizer))(variables(name)), mesh)
    windows = np.random.default_rng(1).integers(1, 7, (steps, 16, 11))
    for batch in windows:
        for part in np.split(batch, accumulate):
            state, _ = step(state, sequences.window_batch(part.ravel(), 10, mesh)(np.arange(0, part.size, 11)))
    return state.params


def test_accumulated_batches_and_devices_take_the_step_of_one():
    one = after("rotary", 3, 1)
    for other in (after("rotary", 3, 2), after("rotary", 3, 1, devices=8)):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), one, other)


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
    network = NETWORKS["learned"].clone(vocab_size=10, width=64, window=48)
    variables = init_variables(network, jax.random.key(0), np.zeros((1, 48), np.int32))
    tokens = np.random.default_rng(0).integers(0, 10, (3, 48)).astype(np.int32)
    z = np.asarray(network.apply(sequences.induction_start(network, variables), tokens))
    # another place than the one before has a weight below e^-15 in the first layer; LayerNorm adds 1e-6 to variances of 0.03
    np.testing.assert_allclose(z, [copied(own, 16.0, 4.0) for own in tokens], atol=1e-3)


def test_induction_heads_need_room_and_learned_positions():
    for options in ({"layers": 1}, {"positions": "rotary"}, {"tied": True}, {"width": 8}, {"heads": 32}):
        with pytest.raises(ValueError, match="two layers or more, 16 wide or more"):
            sequences.induction_start(NETWORKS["learned"].clone(**{"width": 64, **options}), {"params": {}})

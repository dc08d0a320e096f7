"""Networks in flax, their training steps, and studies of autoencoders.

A hidden layer is `z = W x + b`, or `z = norm(W x)`, and `a = dropout(φ(z))`, or residual `a = x + dropout(φ(z))`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.nn.initializers import variance_scaling, zeros
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from jexplicit.nn.names import Activation, Direct, InitializerName, NormName, look_up
from jexplicit.nn.training import Objective, TrainingResult, train
from jexplicit.runs.devices import full_precision, key_of_seed, replicate

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], float]] = {  # φ, and its gain g: a ReLU drops half of its input
    "relu": (jax.nn.relu, math.sqrt(2)),
    "leaky_relu": (jax.nn.leaky_relu, math.sqrt(2 / (1 + 0.01**2))),  # of slope 0.01 below 0
    "tanh": (jnp.tanh, 1.0),
    "sigmoid": (jax.nn.sigmoid, 4.0),  # of slope 1/4 near 0
    "relu_tanh": (lambda z: jax.nn.relu(jnp.tanh(z)), math.sqrt(2)),
    "silu": (jax.nn.silu, math.sqrt(2)),
    "linear": (lambda z: z, 1.0),
}
_schemes: dict[str, Any] = {  # mode and distribution of `variance_scaling`
    "glorot_normal": ("fan_avg", "normal"),  # 2/(n_in + n_out) is one over their mean
    "glorot_uniform": ("fan_avg", "uniform"),
    "he_normal": ("fan_in", "normal"),
    "he_uniform": ("fan_in", "uniform"),
    "backward_normal": ("fan_out", "normal"),
    "fan_in_uniform": ("fan_in", "uniform"),
    "standard": ("fan_in", "normal"),
    "zeros": ("fan_in", "normal"),
}


def initializer(name: str, activation: str) -> Callable[..., Array]:
    """Random weights that preserve the scale of activations, `(key, shape, dtype) -> W`.

    Var[W] of glorot: `g² 2/(n_in + n_out)`, he: `g²/n_in`, backward: `g²/n_out`, with the gain g of the activation; fan_in:
    1/(3 n_in), U(±1/√n_in), too small; standard: c/n_in with `c E[φ(z)²] = 1` for z ~ N(0, 1).

    Source: Glorot & Bengio 2010; He et al. 2015; Radhakrishnan 2024, Lemma 1.
    """
    mode, law = look_up("initializer", _schemes, name)
    _, gain = look_up("activation", ACTIVATIONS, activation)
    if name == "zeros":
        return zeros
    scale = standard_scale(activation) if name == "standard" else 1 / 3 if name == "fan_in_uniform" else gain**2
    return variance_scaling(scale, mode, law)


def activation(name: str) -> Callable[[Array], Array]:
    """The nonlinearity φ called `name`; a ValueError for an unknown name."""
    return look_up("activation", ACTIVATIONS, name)[0]


@functools.cache
def standard_scale(name: str) -> float:
    """c of the standard scheme, `1 / E[φ(z)²]` for z ~ N(0, 1)."""
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    with jax.ensure_compile_time_eval():  # a concrete number even under jit
        square = np.asarray(activation(name)(jnp.asarray(z)), np.float64) ** 2
    return float(weight.sum() / (weight @ square))


_momentum = 0.9  # of BatchNorm's running statistics; flax's 0.99 lags behind in runs of a few hundred steps


class _Layers(nn.Module, kw_only=True):
    """Options of hidden layers, explained at FullyConnected."""

    bias: bool = True
    norm: NormName = "none"
    residual: bool = False
    dropout: float = 0.0
    weights: InitializerName = "he_normal"
    weight_scale: float = 1.0
    dtype: Any = jnp.float32

    def options(self) -> dict[str, Any]:
        """These options and the activation, for a submodule."""
        names = ("activation", "bias", "norm", "residual", "dropout", "weights", "weight_scale", "dtype")
        return {name: getattr(self, name) for name in names}


class Hidden(_Layers):
    """A hidden layer `a = φ(norm(W x + b))`."""

    width: int
    activation: Activation

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        bias = self.bias and self.norm == "none"  # replaced by the shift of a norm
        kernel = _scaled(initializer(self.weights, self.activation), self.weight_scale)
        z = nn.Dense(self.width, use_bias=bias, kernel_init=kernel, param_dtype=self.dtype)(x)
        norms: dict[str, Callable[[], Callable]] = {
            "none": lambda: lambda z: z,
            "batch": lambda: nn.BatchNorm(not train, momentum=_momentum, param_dtype=self.dtype),
            "layer": lambda: nn.LayerNorm(param_dtype=self.dtype),
            "group": lambda: nn.GroupNorm(math.gcd(8, self.width), param_dtype=self.dtype),
        }
        z = look_up("norm", norms, self.norm)()(z)
        a = nn.Dropout(self.dropout, deterministic=not train)(activation(self.activation)(z))
        return x + a if self.residual and x.shape == a.shape else a


class FullyConnected(_Layers):
    """A network of any depth, `W⁽ᴸ⁾ φ(... φ(W⁽¹⁾ x))`, [B, D] -> [B, N].

    hidden: widths of the hidden layers; none for a linear model. outputs: N.
    norm: before each nonlinearity, with a learned scale and shift per unit: over the batch (running averages in inference), of
        an example over all units (layer), or over each of gcd(8, width) groups of units.
    residual: hidden layers of equal input and output width add their input to their output.
    dropout: share of hidden outputs set to 0 at random in training.
    weight_scale, output_scale: factors on the random weights of the hidden layers and of the last one.
    """

    hidden: Sequence[int]
    outputs: int
    activation: Activation = "relu"
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        for n, width in enumerate(self.hidden):
            x = Hidden(width, **self.options(), name=f"hidden_{n + 1}")(x, train=train)
        kernel = _scaled(initializer(self.weights, "linear"), self.output_scale)
        return nn.Dense(self.outputs, use_bias=self.bias, kernel_init=kernel, param_dtype=self.dtype, name="output")(x)


class MLPLanguageModel(_Layers):
    """A neural language model: embeddings of K tokens, hidden layers, softmax.

        x = (C[x_1], ..., C[x_K]),    logits = b + W x + U tanh(d + H x)

    vocab_size: N. embedding: dimension of the embeddings C, initialised to N(0, 1). Others are those of FullyConnected.
    direct: the connection W, initialised to 0, from the embeddings, as in the paper.

    Source: Bengio et al. 2003, Eq. 1.
    """

    vocab_size: int
    embedding: int
    hidden: Sequence[int]
    direct: Direct = "none"
    activation: Activation = "tanh"
    output_scale: float = 0.1

    @nn.compact
    def __call__(self, X, *, train: bool = False):
        N, zeros = self.vocab_size, nn.initializers.zeros
        table = nn.initializers.normal(1.0)
        x = nn.Embed(N, self.embedding, embedding_init=table, param_dtype=self.dtype, name="embedding")(X).reshape(len(X), -1)
        network = FullyConnected(self.hidden, N, output_scale=self.output_scale, **self.options(), name="network")
        logits = network(x, train=train)
        if self.direct == "embedding":
            logits += nn.Dense(N, use_bias=False, kernel_init=zeros, param_dtype=self.dtype, name="direct")(x)
        return logits


class SoftmaxStack(nn.Module):
    """L softmax layers, `softmax(... softmax(x U⁽¹⁾) ...) U⁽ᴸ⁾`, [B, D] -> [B, N].

    `{"params": {"layer_1": {"kernel": U⁽¹⁾}, ...}}` may be decoders of jexplicit.solvers.explicit; random ones are uniform in
    ±1/sqrt(n_in). Source: paper, Sec. 3.3.
    """

    outputs: int
    layers: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        kernel = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        for n in range(1, self.layers + 1):
            layer = nn.Dense(self.outputs, use_bias=False, kernel_init=kernel, param_dtype=self.dtype, name=f"layer_{n}")
            x = layer(x if n == 1 else nn.softmax(x))
        return x


class ConvolutionalNetwork(nn.Module):
    """Convolutions with pools, then a hidden layer: pixels -> [B, N].

        stage    z = BatchNorm(W * x);  a = maxpool(relu(z)),  W of 3 x 3 pixels, pools of 2 x 2
        f(x) = W⁽ᴸ⁾ relu(W dropout(stages of x))

    shape: height and width of an image, which every stage halves. channels: filters of each stage.
    hidden: units of the layer before the last one, with dropout of its inputs.

    Source: LeCun et al. 1998; BatchNorm: Ioffe & Szegedy 2015.
    """

    shape: tuple[int, int]
    outputs: int
    channels: Sequence[int] = (32, 64)
    hidden: int = 128
    dropout: float = 0.5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        x, options = x.reshape(-1, *self.shape, 1), {"kernel_init": nn.initializers.he_normal(), "param_dtype": self.dtype}
        for n, filters in enumerate(self.channels, 1):
            x = nn.Conv(filters, (3, 3), use_bias=False, name=f"convolution_{n}", **options)(x)
            x = nn.BatchNorm(not train, momentum=_momentum, param_dtype=self.dtype, name=f"norm_{n}")(x)
            x = nn.max_pool(jax.nn.relu(x), (2, 2), (2, 2))
        x = nn.Dropout(self.dropout, deterministic=not train)(x.reshape(len(x), -1))
        x = jax.nn.relu(nn.Dense(self.hidden, name="hidden", **options)(x))
        return nn.Dense(self.outputs, name="output", param_dtype=self.dtype)(x)


def init_variables(model: nn.Module, key: Array, inputs: Any) -> dict[str, Any]:
    """`{"params": ..., "batch_stats": ...}` for inputs of a shape, the latter of BatchNorm."""
    if 0 in inputs.shape:
        raise ValueError(f"inputs of shape {inputs.shape}: a network needs at least one example and one feature")
    variables = jax.jit(model.init)(key, jnp.asarray(inputs))
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def network_outputs(model: nn.Module, variables: dict[str, Any], inputs: Any) -> Array:
    """Outputs in inference, [B, N], with the running statistics of BatchNorm."""
    return jnp.asarray(model.apply(variables, inputs))


def _scaled(law: Callable[..., Array], factor: float) -> Callable[..., Array]:
    return lambda key, shape, dtype: law(key, shape, dtype) * jnp.asarray(factor, dtype)


class NetworkState(NamedTuple):
    """The variables, the optimiser's state, and the number of steps so far."""

    variables: dict[str, Any]
    optimizer: Any
    steps: Array


def initial_state(variables: dict[str, Any], optimizer: optax.GradientTransformation) -> NetworkState:
    """The initial state of training from `init_variables`, a copy."""
    variables = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), variables)
    return NetworkState(variables, optimizer.init(variables["params"]), jnp.zeros((), jnp.int32))


def network_step(
    model: nn.Module, objective: Objective, optimizer: optax.GradientTransformation, *, seed: int | Array = 0
) -> Callable[[NetworkState, tuple[Any, Any]], tuple[NetworkState, Array]]:
    """The pure step `(state, (X, Y)) -> (state, summed loss)` of training."""

    def mean_loss(params: Any, statistics: Any, batch: tuple[Any, Any], steps: Array) -> tuple[Array, Any]:
        X, Y = batch
        variables = {"params": params, "batch_stats": statistics}
        rngs = {"dropout": jax.random.fold_in(key_of_seed(seed), steps)}
        z, updated = model.apply(variables, X, train=True, mutable=["batch_stats"], rngs=rngs)
        return objective(z, Y).mean(), updated.get("batch_stats", statistics)

    def step(state: NetworkState, batch: tuple[Any, Any]) -> tuple[NetworkState, Array]:
        params, differentiate = state.variables["params"], jax.value_and_grad(mean_loss, has_aux=True)
        (loss, statistics), gradient = differentiate(params, state.variables["batch_stats"], batch, state.steps)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, params)
            params = optax.apply_updates(params, updates)
        variables = {"params": params, "batch_stats": statistics}
        return NetworkState(variables, optimizer_state, state.steps + 1), loss * len(batch[1])

    return step


def training_step(
    model: nn.Module, objective: Objective, optimizer: optax.GradientTransformation, *, seed: int = 0
) -> Callable[[NetworkState, tuple[Any, Any]], tuple[NetworkState, Array]]:
    """`network_step`, compiled, with the state donated."""
    return jax.jit(network_step(model, objective, optimizer, seed=seed), donate_argnums=0)


def train_network(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    variables: dict[str, Any],
    batch: Callable[[np.ndarray], tuple[Any, Any]],
    evaluate: Callable[[dict[str, Any]], float],
    *,
    mesh: Mesh | None = None,
    **options: Any,
) -> TrainingResult:
    """`train` a network on all devices; the variables of the best epoch."""
    state, step = initial_state(variables, optimizer), training_step(model, objective, optimizer, seed=options.get("seed", 0))
    state = replicate(state, mesh) if mesh else state
    return train(state, step, batch, evaluate, params=lambda state: state.variables, **options)


class Scores(NamedTuple):
    """Mean loss per example (nats for cross-entropies), and accuracy."""

    loss: float
    accuracy: float


def scorer(model: nn.Module, objective: Objective, *, chunk: int = 4096) -> Callable[[dict[str, Any], Any, Any], Scores]:
    """Compiled inference `(variables, X, Y) -> Scores`, `chunk` rows at a time."""

    @jax.jit
    def summed(variables: dict[str, Any], X: Any, Y: Any) -> tuple[Array, Array]:
        z = network_outputs(model, variables, X)
        labels = Y if Y.ndim == 1 else Y.argmax(axis=1)
        right = z.argmax(axis=1).astype(labels.dtype) == labels
        return objective(z, Y).sum(), right.sum()

    def score(variables: dict[str, Any], X: Any, Y: Any) -> Scores:
        if not len(X):
            raise ValueError("no examples to score: give at least one")
        parts = [summed(variables, X[m : m + chunk], Y[m : m + chunk]) for m in range(0, len(X), chunk)]
        loss, right = (np.sum([np.asarray(part[n], np.float64) for part in parts]) for n in (0, 1))
        return Scores(float(loss) / len(X), float(right) / len(X))

    return score


def linear_autoencoder(X: Float[Array, "M D"], k: int) -> Callable[[Float[Array, "... D"]], Float[Array, "... D"]]:
    """The linear autoencoder of lowest squared error, `f(x) = V_k V_kᵀ x`.

    Source: Eckart & Young 1936; Baldi & Hornik 1989.
    """
    if not 1 <= k <= min(X.shape):
        raise ValueError(f"width {k} for {X.shape[0]} examples of {X.shape[1]} features: use 1 .. {min(X.shape)}")
    V = jnp.linalg.svd(X, full_matrices=False)[2][:k].T
    return full_precision(lambda X: X @ V @ V.T)


def reconstruction_errors(outputs: Float[Array, "M D"], X: Float[Array, "M D"]) -> Float[Array, " M"]:
    """`½ ||x - f(x)||²` per example: large for examples unlike the training data."""
    return jnp.sum((X - outputs) ** 2, axis=1) / 2


def anomaly_auc(normal: Float[Array, " M"], anomalous: Float[Array, " T"]) -> float:
    """The probability that an anomaly has the higher reconstruction error."""
    from sklearn.metrics import roc_auc_score

    if not len(normal) or not len(anomalous):
        raise ValueError(f"{len(normal)} normal and {len(anomalous)} anomalous examples: at least one of each is needed")
    errors = np.concatenate([np.asarray(normal, np.float64), np.asarray(anomalous, np.float64)])
    return float(roc_auc_score(np.arange(len(errors)) >= len(normal), errors))


def contraction(f: Callable[[Array], Array], X: Float[Array, "M D"]) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Largest singular values and spectral radii of a map's Jacobians at M points."""
    J = np.asarray(jax.jit(lambda X: jax.lax.map(jax.jacrev(f), X))(X), np.float64)
    return np.linalg.norm(J, ord=2, axis=(1, 2)), np.abs(np.linalg.eigvals(J)).max(axis=1)


def iterate_map(f: Callable[[Array], Array], X: Float[Array, "M D"], steps: int) -> Float[Array, "M D"]:
    """`f(f(... f(x)))`, `steps` times, from every point."""
    if steps < 0:
        raise ValueError(f"{steps} iterations of a map: use 0 or more")
    return jax.jit(lambda X: jax.lax.fori_loop(0, steps, lambda _, X: jax.vmap(f)(X), X))(X)


def recall(ends: Float[Array, "T D"], memories: Float[Array, "M D"], *, tolerance: float = 1e-2) -> Bool[np.ndarray, "T M"]:
    """Whether each iterated point ended near each memory."""
    distance = np.linalg.norm(np.asarray(ends)[:, None] - np.asarray(memories)[None], axis=2)
    return distance <= tolerance * np.linalg.norm(np.asarray(memories), axis=1)[None]


def add_noise(key: Array, X: Float[Array, "M D"], noise: float, copies: int) -> Float[Array, "copies_M D"]:
    """`copies` noisy copies of every point, in order."""
    points = jnp.repeat(X, copies, axis=0)
    return points + noise * X.std() * jax.random.normal(key, points.shape, X.dtype)

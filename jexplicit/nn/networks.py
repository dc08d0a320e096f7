"""Fully connected networks, a language model of them, and a convolutional network, in flax.

    hidden layer    z = W x + b,  or z = norm(W x);  a = dropout(φ(z));  residual: a = x + dropout(φ(z))
    network         f(x) = W⁽ᴸ⁾ φ(W⁽ᴸ⁻¹⁾ φ(... φ(W⁽¹⁾ x)))

Hidden layers sow their pre-activations `z` into flax's collection `intermediates`, and a network the `features` before its last
layer; gradients with respect to z come from `perturbations` (jexplicit.nn.diagnostics). Parameters are plain dictionaries.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jexplicit.nn.parts.activations import activation
from jexplicit.nn.parts.initializers import initializer
from jexplicit.nn.parts.names import Activation, Direct, InitializerName, NormName, look_up

_groups = 8  # of GroupNorm, at most: gcd(_groups, width)
_momentum = 0.9  # of BatchNorm's running statistics; flax's 0.99 lags behind in runs of a few hundred steps


class _Layers(nn.Module, kw_only=True):
    """Options of hidden layers; see FullyConnected."""

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
    """A hidden layer `a = φ(norm(W x + b))`, with optional residual."""

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
            "group": lambda: nn.GroupNorm(math.gcd(_groups, self.width), param_dtype=self.dtype),
        }
        z = self.perturb("z", look_up("norm", norms, self.norm)()(z))
        self.sow("intermediates", "z", z)
        a = nn.Dropout(self.dropout, deterministic=not train)(activation(self.activation)(z))
        return x + a if self.residual and x.shape == a.shape else a


class FullyConnected(_Layers):
    """A network of any depth, `W⁽ᴸ⁾ φ(... φ(W⁽¹⁾ x))`, [B, D] -> [B, N].

    hidden: widths of the hidden layers; none for a linear model.
    outputs: N.
    activation: φ of the hidden layers.
    bias: whether layers have biases.
    norm: before each nonlinearity, with a learned scale and shift per unit. batch: by the mean and variance of a unit over the
        batch in training, running averages in inference (Ioffe & Szegedy 2015). layer: of an example over all units (Ba, Kiros
        & Hinton 2016). group: of an example over each of gcd(8, width) groups of units (Wu & He 2018).
    residual: hidden layers of equal input and output width add their input to their output.
    dropout: share of hidden outputs set to 0 at random in training, the others scaled by 1/(1 - share) (Srivastava et al.
    2014). weights: initializer of the weights (jexplicit.nn.parts.initializers); biases start at 0. weight_scale: factor on the
    random weights of the hidden layers. output_scale: factor on the last layer's random weights; small values give a first
    softmax loss near log N.
    """

    hidden: Sequence[int]
    outputs: int
    activation: Activation = "relu"
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        for n, width in enumerate(self.hidden):
            x = Hidden(width, **self.options(), name=f"hidden_{n + 1}")(x, train=train)
        self.sow("intermediates", "features", x)
        kernel = _scaled(initializer(self.weights, "linear"), self.output_scale)
        return nn.Dense(self.outputs, use_bias=self.bias, kernel_init=kernel, param_dtype=self.dtype, name="output")(x)


class MLPLanguageModel(_Layers):
    """A neural language model: embeddings of K tokens, hidden layers, softmax.

        x = (C[x_1], ..., C[x_K]),    logits = b + W x + U tanh(d + H x)

    vocab_size: N.
    embedding: dimension of the embeddings C, initialised to N(0, 1).
    hidden: widths of the hidden layers.
    direct: the direct connection W, initialised to 0. embedding: from the embeddings, as in the paper. tokens: from the one-hot
        tokens, a table [N, N] per offset: the softmax layer with an explicit solution. none: absent, as in the paper's best
        models.
    activation, bias, norm, residual, dropout, weights, weight_scale, output_scale: as in FullyConnected.

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
        elif self.direct == "tokens":
            tables = self.param("direct", zeros, (X.shape[1], N, N), self.dtype)
            logits = sum((jnp.take(tables[k], X[:, k], axis=0) for k in range(X.shape[1])), logits)  # U_k[x_k]
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

    shape: height and width of an image.
    outputs: N.
    channels: filters of each stage; every stage halves height and width, which must be at least 2 to the number of stages.
    hidden: units of the layer before the last one.
    dropout: share of the inputs of the hidden layer set to 0 at random in training (Srivastava et al. 2014).

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
    """Initial parameters, and running statistics of BatchNorm (empty without it): `{"params": ..., "batch_stats": ...}`.

    Only shape and dtype of `inputs` matter, [B, D] features or [B, K] token ids, or a tuple of several.
    """
    for array in jax.tree.leaves(inputs):
        if 0 in array.shape:
            raise ValueError(f"inputs of shape {array.shape}: a network needs at least one example and one feature")
    variables = jax.jit(model.init)(key, jax.tree.map(jnp.asarray, inputs))
    return {"params": variables["params"], "batch_stats": variables.get("batch_stats", {})}


def network_outputs(model: nn.Module, variables: dict[str, Any], inputs: Any) -> Array:
    """Outputs in inference, [B, N], with the running statistics of BatchNorm."""
    return jnp.asarray(model.apply(variables, inputs))


def _scaled(law: Callable[..., Array], factor: float) -> Callable[..., Array]:
    return lambda key, shape, dtype: law(key, shape, dtype) * jnp.asarray(factor, dtype)

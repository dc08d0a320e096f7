"""Copying: from tokens that hold x and y apart, a first layer builds those that hold both, and a second descends.

    x_1, (0, .., 0, y_1), x_2, (0, .., 0, y_2), .., x_q,    each beside a code of its position

A first layer with softmax can attend from each x to the token after it, and add its y. What tells that it does are its
sensitivities, `∂ Σ e'_j / ∂ e_i`: to the own token, to the next, to the others. `copying_layers` are weights that copy and
descend exactly, so that two linear layers are one step of gradient descent.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.linalg import turned
from icl.models.attention import Layer, Softmax
from icl.models.batched import half_square, transform_batch
from icl.models.constructions import descent_layers
from icl.tasks import Sequence, Tasks, sample_tasks


@dataclasses.dataclass(frozen=True)
class Copying:
    """Two layers on tokens that hold x and y apart: what `icl.train` samples, and the loss that it lowers.

    The answer is read, with a minus, from the last channel of the last token, which is one of its position: what the paper's
    code does. The layers learn to take its value away.

    tasks: their law, with one output.
    codes: width of the codes of positions. The paper's code has 10, its text 20.
    softmax: of each layer. With two linear layers training does not succeed (paper).
    clip: tokens are held to [-clip, clip].

    Raises:
        ValueError: tasks of several outputs, or an odd or non-positive width.

    Example:
        >>> from icl import init_layers
        >>> problem = Copying(Tasks(dim=3, context=4), codes=2)
        >>> batch = problem.sample(jax.random.key(0), 5)
        >>> problem.tokens(batch).shape, problem.loss(init_layers(jax.random.key(1), 5, layers=2), batch).shape
        ((5, 9, 5), ())

    Source: von Oswald et al. 2023, Sec. 5.
    """

    tasks: Tasks
    codes: int = 10
    softmax: Softmax = (True, False)
    clip: float | None = 10.0

    def __post_init__(self):
        if self.tasks.outputs != 1 or self.codes < 2 or self.codes % 2:
            raise ValueError(f"{self.tasks.outputs} outputs, codes of width {self.codes}: wanted one output, an even width")

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.tasks.dim + self.codes

    def sample(self, key: Array, size: int, dtype: Any = None) -> Sequence:
        """Fresh tasks, batch last."""
        return sample_tasks(key, self.tasks, size, dtype=dtype)

    def tokens(self, batch: Sequence) -> Float[Array, "width tokens batch"]:
        """The tokens with their codes."""
        return coded(apart(batch), jnp.asarray(sinusoidal_codes(2 * self.tasks.context + 1, self.codes), batch.X.dtype))

    def predict(self, params: Layer, batch: Sequence) -> Float[Array, "1 batch"]:
        """The answers to a batch."""
        return read_out(params, self.tokens(batch), softmax=self.softmax, clip=self.clip)

    def loss(self, params: Layer, batch: Sequence) -> Float[Array, ""]:
        """Half the mean squared error."""
        return half_square(self.predict(params, batch), batch.y_q)


class CopySensitivity(NamedTuple):
    """Norms of the mean gradient of a context token's output by an input token, means over the context's tokens."""

    own: Float[Array, ""]
    next: Float[Array, ""]
    other: Float[Array, ""]


def apart(batch: Sequence) -> Float[Array, "d tokens *batch"]:
    """Tokens `x_1, (0, .., 0, y_1), .., x_q` of width d, features first.

    Raises:
        ValueError: several outputs.

    Example:
        >>> one = Sequence(jnp.array([[1.0, 2.0]]), jnp.array([[3.0]]), jnp.array([4.0, 5.0]), jnp.zeros(1))
        >>> apart(one).T.tolist()
        [[1.0, 2.0], [0.0, 3.0], [4.0, 5.0]]
    """
    if batch.Y.shape[1] != 1:
        raise ValueError(f"{batch.Y.shape[1]} outputs: tokens apart hold one")
    x, y = turned(batch.X), turned(batch.Y)
    y = jnp.concatenate([jnp.zeros_like(x[1:]), y])
    pairs = jnp.stack([x, y], axis=2).reshape(len(x), -1, *x.shape[2:])
    return jnp.concatenate([pairs, batch.x_q[:, None]], axis=1)


def coded(tokens: Float[Array, "d n *batch"], codes: Float[Array, "n p"]) -> Float[Array, "width n *batch"]:
    """Tokens with the codes of their positions as further channels."""
    codes = codes.T.reshape(codes.shape[::-1] + (1,) * (tokens.ndim - 2))
    return jnp.concatenate([tokens, jnp.broadcast_to(codes, (len(codes), *tokens.shape[1:]))])


def sinusoidal_codes(positions: int, width: int) -> Float[np.ndarray, "positions width"]:
    """`sin(n / 10000^(2i/width))` and the cosine of the same, side by side.

    Example:
        >>> sinusoidal_codes(2, 2).round(3).tolist()
        [[0.0, 1.0], [0.841, 0.54]]

    Source: Vaswani et al. 2017, Sec. 3.5.
    """
    angles = np.arange(positions)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(positions, width)


def read_out(
    layers: Layer, tokens: Float[Array, "width n batch"], *, softmax: Softmax = False, clip: float | None = None
) -> Float[Array, "1 batch"]:
    """What layers say in the last channel of the last token, with a minus; keys and values are of the tokens before it."""
    return -transform_batch(layers, tokens[:, :-1], tokens[:, -1:], softmax=softmax, clip=clip)[-1]


def copying_layers(dim: int, context: int, eta: float, *, dtype: Any = None) -> Layer:
    """Two linear layers that copy and descend: together exactly one step of gradient descent.

    With unit codes p_j the first head of the first layer attends from each x to the y that follows it, and replaces the code of
    x by this y; the second takes away all that the tokens of y hold. The second layer is a step of gradient descent.

    Args:
        dim: d; context: N.
        eta: η of the step.
        dtype: default, JAX's float.

    Returns:
        [2 layers, 2 heads, ...] for tokens with the codes of `unit_codes`.

    Raises:
        ValueError: sizes below 1.

    Example:
        >>> copying_layers(3, 4, 0.5).P.shape
        (2, 2, 11, 11)

    Source: von Oswald et al. 2023, Prop. 3 and App. A.6.
    """
    descent = descent_layers(dim, context, eta)  # checks the sizes
    T, width = 2 * context, dim + 2 * context
    M, R = np.zeros((2, 2, width, width)), np.zeros((2, 2, width, width))
    p = dim + np.arange(T)  # the channels of the codes
    xs, ys = p[0::2], p[1::2]
    M[0, 0, ys, xs] = 1  # e_iᵀ M e_j = 1 where i is the y after the x at j
    R[0, 0, xs, ys] = -1  # its code becomes that of the x, and goes
    R[0, 0, -1, dim - 1] = 1  # y, the last channel but the codes, takes its place
    M[0, 1, ys, ys] = 1  # a token of y finds itself
    R[0, 1] = -np.eye(width)
    x_and_y = [*range(dim), width - 1]
    for target, weights in ((M, descent.W_K[0, 0].T @ descent.W_Q[0, 0]), (R, descent.P[0, 0] @ descent.W_V[0, 0])):
        target[1, 0][np.ix_(x_and_y, x_and_y)] = weights
    eye = np.broadcast_to(np.eye(width), M.shape)
    dtype = dtype or jnp.zeros(()).dtype
    return Layer(*(jnp.asarray(weights, dtype) for weights in (eye, M, R, eye)))


def unit_codes(context: int) -> Float[np.ndarray, "positions width"]:
    """A unit vector for each position but the last, whose code is zero.

    Example:
        >>> unit_codes(1).tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    return np.eye(2 * context + 1)[:, :-1]


def copy_sensitivity(layers: Layer, tokens: Float[Array, "width n batch"], *, softmax: bool = True) -> CopySensitivity:
    """How the first layer's output at each context token depends on that token, on the next, and on the rest.

    The gradient of the sum of an output's channels is averaged over tasks, and then its norm taken by input token. *other*
    leaves the next token out, which the paper's code counts in.

    Args:
        layers: [layers, ...], of which the first is looked at.
        tokens: of a batch, batch last.
        softmax: whether it has softmax.

    Source: von Oswald et al. 2023, Sec. 5 and App. A.6.
    """
    first = jax.tree.map(lambda leaf: leaf[:1], layers)
    n = tokens.shape[1]

    def outputs(shift: Array) -> Array:
        """Sums of the channels of each token but the last two, means over tasks, with every task's inputs shifted."""
        E = tokens + shift[:, :, None]
        after = transform_batch(first, E[:, :-1], E[:, : n - 2], softmax=softmax)
        return jnp.mean(jnp.sum(after, axis=0), axis=-1)

    norms = jnp.linalg.norm(jax.jacrev(outputs)(jnp.zeros(tokens.shape[:2], tokens.dtype)), axis=1)  # [n - 2, n]
    own, following = jnp.diagonal(norms), jnp.diagonal(norms, 1)
    return CopySensitivity(own.mean(), following.mean(), jnp.mean((norms.sum(axis=1) - own - following) / (n - 2)))

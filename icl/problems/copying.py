"""Copying: a layer joins x and y tokens, a second performs descent.

    x_1, (0, .., 0, y_1), x_2, (0, .., 0, y_2), .., x_q,    each with a code of its position appended

A first layer with softmax can attend from each x to the next token, and add its y. The sensitivities `∂ Σ e'_j / ∂ e_i` to a
token itself, to the next and to all others measure it. `copying_layers` are two linear layers that are exactly one step of
gradient descent.

Source: von Oswald et al. 2023, Sec. 5, Prop. 3 and App. A.6.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.linalg import transpose
from icl.models.attention import AttentionLayer, Softmax, head_maps, layers_from_maps, transform_batch
from icl.models.constructions import descent_layers
from icl.tasks import QueryLoss, Sequence, Tasks


@dataclasses.dataclass(frozen=True)
class Copying(QueryLoss):
    """Two layers on separate tokens of x and y: a problem for `icl.train_layers`.

    As in the paper's code, the prediction is minus the last channel of the last token. This channel belongs to the position
    code, whose value the layers learn to subtract.

    tasks: their distribution, with one output.
    codes: width of the position codes, even. The paper's code has 10, its text 20.
    softmax: of each layer. With two linear layers training does not succeed (paper).
    clip: tokens are clipped to [-clip, clip].
    """

    tasks: Tasks
    codes: int = 10
    softmax: Softmax = (True, False)
    clip: float | None = 10.0

    def __post_init__(self):
        if self.tasks.outputs != 1 or self.codes < 2 or self.codes % 2:
            raise ValueError(f"{self.tasks.outputs} outputs, codes of width {self.codes}: use one output and an even width")

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.tasks.dim + self.codes

    def tokens(self, batch: Sequence) -> Float[Array, "width tokens batch"]:
        """The tokens with their position codes."""
        return add_codes(separate_tokens(batch), sinusoidal_codes(2 * self.tasks.context + 1, self.codes))

    def predict(self, params: AttentionLayer, batch: Sequence) -> Float[Array, "1 batch"]:
        """Predictions for a batch."""
        return read_out(params, self.tokens(batch), softmax=self.softmax, clip=self.clip)


class CopySensitivity(NamedTuple):
    """Norms of mean gradients of a context token's output by input tokens."""

    own: Float[Array, ""]
    next: Float[Array, ""]
    other: Float[Array, ""]


def separate_tokens(batch: Sequence) -> Float[Array, "d tokens *batch"]:
    """Tokens `x_1, (0, .., 0, y_1), .., x_q` of width d, features first."""
    if batch.Y.shape[1] != 1:
        raise ValueError(f"{batch.Y.shape[1]} outputs: separate tokens have one")
    x, y = transpose(batch.X), transpose(batch.Y)
    y = jnp.concatenate([jnp.zeros_like(x[1:]), y])
    pairs = jnp.stack([x, y], axis=2).reshape(len(x), -1, *x.shape[2:])
    return jnp.concatenate([pairs, batch.x_q[:, None]], axis=1)


def add_codes(
    tokens: Float[Array, "d n *batch"], codes: Float[Array, "n p"] | Float[np.ndarray, "n p"]
) -> Float[Array, "width n *batch"]:
    """Tokens with the codes of their positions appended as channels."""
    columns = jnp.asarray(codes, tokens.dtype).T.reshape(codes.shape[::-1] + (1,) * (tokens.ndim - 2))
    return jnp.concatenate([tokens, jnp.broadcast_to(columns, (len(columns), *tokens.shape[1:]))])


def sinusoidal_codes(positions: int, width: int) -> Float[np.ndarray, "positions width"]:
    """`sin(n / 10000^(2i/width))` and its cosine, interleaved (Vaswani et al. 2017, Sec. 3.5)."""
    angles = np.arange(positions)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(positions, width)


def read_out(
    layers: AttentionLayer, tokens: Float[Array, "width n batch"], *, softmax: Softmax = False, clip: float | None = None
) -> Float[Array, "1 batch"]:
    """Minus the last channel of the last token after the layers."""
    return -transform_batch(layers, tokens[:, :-1], tokens[:, -1:], softmax=softmax, clip=clip)[-1]


def copying_layers(dim: int, context: int, eta: Any, *, dtype: Any = None) -> AttentionLayer:
    """Two linear layers that copy and descend: exactly one step of rate η.

    With unit codes p_j the first head of the first layer attends from each x to the y that follows, and replaces the code of x
    by that y; the second head clears the tokens of y. The second layer is a step of gradient descent.
    """
    descent = head_maps(descent_layers(dim, context, eta, dtype=dtype))  # checks the sizes
    width = dim + 2 * context
    M, R = np.zeros((2, 2, width, width)), np.zeros((2, 2, width, width))
    xs, ys = np.arange(dim, width, 2), np.arange(dim + 1, width, 2)  # channels of the codes
    M[0, 0, ys, xs] = 1  # e_iᵀ M e_j = 1 if i is the y that follows the x at j
    R[0, 0, xs, ys] = -1  # maps the code of y to minus the code of x, which cancels
    R[0, 0, -1, dim - 1] = 1  # y moves to the last channel
    M[0, 1, ys, ys] = 1  # a token of y attends to itself
    R[0, 1] = -np.eye(width)
    x_and_y = np.ix_([*range(dim), width - 1], [*range(dim), width - 1])
    M, R = (
        jnp.asarray(copy, step.dtype).at[1, 0].set(jnp.zeros((width, width), step.dtype).at[x_and_y].set(step[0, 0]))
        for copy, step in zip((M, R), descent, strict=True)
    )
    return layers_from_maps(M, R)


def unit_codes(context: int) -> Float[np.ndarray, "positions width"]:
    """A unit vector for each position; the code of the last is zero."""
    return np.eye(2 * context + 1)[:, :-1]


def copy_sensitivity(layers: AttentionLayer, tokens: Float[Array, "width n batch"], *, softmax: bool = True) -> CopySensitivity:
    """Sensitivity of the first layer at each context token to input tokens.

    The norm, per input token, of the gradient of the sum of an output's channels, averaged over tasks. Unlike in the paper's
    code, *other* does not include the next token.
    """
    first = jax.tree.map(lambda leaf: leaf[:1], layers)
    n = tokens.shape[1]

    def outputs(shift: Array) -> Array:
        """Channel sums of each token but the last two, with shifted inputs."""
        E = tokens + shift[:, :, None]
        return jnp.mean(jnp.sum(transform_batch(first, E[:, :-1], E[:, : n - 2], softmax=softmax), axis=0), axis=-1)

    norms = jnp.linalg.norm(jax.jacrev(outputs)(jnp.zeros(tokens.shape[:2], tokens.dtype)), axis=1)  # [n - 2, n]
    own, following = jnp.diagonal(norms), jnp.diagonal(norms, 1)
    return CopySensitivity(own.mean(), following.mean(), jnp.mean((norms.sum(axis=1) - own - following) / (n - 2)))

"""Transformers on windows, [B, T] -> [B, T, N] logits.

A position attends to itself and its document before it. Vaswani et al. 2017; Radford et al. 2019; Su et al. 2021.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Integer

from jexplicit.data.streams import PAD
from jexplicit.nn.training import Order, epoch_order, shorter_epochs
from jexplicit.runs.devices import AXIS, default_mesh, replicate

_logits_per_call = 1 << 24  # of a device


def window_order(length: int, window: int, windows: int) -> Order:
    """The starts of the windows of an epoch, `(seed, epoch) -> starts`.

    A pass over the text takes every window once, in random order, from another first token; an epoch is a part or several.
    """
    whole = (length - 1) // window - 1
    if whole < 1:
        raise ValueError(f"a text of {length} tokens and windows of {window}: give a longer text, or use shorter windows")

    def starts(seed: int, epoch: int) -> Int[np.ndarray, " M"]:
        shift = np.random.Generator(np.random.Philox(key=[seed, epoch])).integers(window)
        return epoch_order(seed, epoch, whole) * window + shift

    if windows <= whole:
        return shorter_epochs(starts, whole, windows)
    passes = -(-windows // whole)
    return lambda seed, e: np.concatenate([starts(seed, (e - 1) * passes + n) for n in range(passes)])[:windows]


def window_batch(
    stream: Integer[np.ndarray, " L"], window: int, mesh: Mesh | None = None
) -> Callable[[np.ndarray], tuple[Array, Array]]:
    """`starts -> (X, Y)`: [B, W] tokens and next tokens, over devices."""
    place = NamedSharding(mesh or default_mesh(), PartitionSpec(AXIS))

    def batch(starts: np.ndarray) -> tuple[Array, Array]:
        tokens = np.asarray(stream)[starts[:, None] + np.arange(window + 1)].astype(np.int32)
        return jax.device_put((tokens[:, :-1], tokens[:, 1:]), place)

    return batch


def sequence_loss(eos: bool) -> Callable[[Array, Array], Array]:
    """The mean loss by window, `(z [B, T, N], Y [B, T]) -> [B]`."""

    def loss(z: Float[Array, "B T N"], Y: Int[Array, "B T"]) -> Float[Array, " B"]:
        own = optax.softmax_cross_entropy_with_integer_labels(z, Y)
        wanted = jnp.ones_like(own) if eos else (Y != PAD).astype(own.dtype)
        return (own * wanted).sum(axis=1) / jnp.maximum(wanted.sum(axis=1), 1)

    return loss


def sequence_optimizer(rate: float, steps: int, *, warmup: int, decay: float) -> optax.GradientTransformation:
    """AdamW with warm-up, cosine decay to a tenth, clipped gradients; matrices alone decay."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, min(warmup, steps - 1), steps, 0.1 * rate)
    matrices = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)  # noqa: E731
    adam = optax.adamw(schedule, b2=0.99, weight_decay=decay, mask=matrices)
    return optax.chain(optax.clip_by_global_norm(1.0), adam)


def stream_log_probabilities(
    network: nn.Module,
    variables: Any,
    stream: Integer[np.ndarray, " L"],
    places: Int[np.ndarray, " M"] | None = None,
    *,
    window: int,
    stride: int,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, "M ..."]:
    """`log p` of every token but the first, or of all at some places.

    Windows of W tokens begin every `stride` tokens; each predicts the tokens that the one before did not reach: a prediction
    sees at least W - stride + 1 tokens, or its document from the start. places: 1 .. L - 1.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"a stride of {stride} in windows of {window}: use 1 .. {window}")
    of_all, places = places is not None, np.arange(1, len(stream)) if places is None else places
    mesh, first = mesh or default_mesh(), np.maximum(0, -(-(places - window) // stride))
    padded = np.zeros(int(first.max(initial=0)) * stride + window + 1, np.int32)
    padded[: len(stream)] = stream[: len(padded)]
    wanted, which = np.unique(first, return_inverse=True)
    N, n = network.vocab_size, len(wanted)  # pyright: ignore[reportAttributeAccessIssue]
    call = mesh.size * max(1, min(_logits_per_call // (window * N), -(-n // mesh.size)))
    batch, variables, out = window_batch(padded, window, mesh), replicate(variables, mesh), []
    own, edges = np.argsort(which, kind="stable"), np.append(0, np.cumsum(np.bincount(which, minlength=n)))
    for begin in range(0, n, call):
        starts = wanted[np.minimum(np.arange(begin, begin + call), n - 1)] * stride
        m = own[edges[begin] : edges[min(begin + call, n)]]
        found = np.asarray(_log_p(network, variables, *batch(starts), of_all))
        out.append(found[which[m] - begin, places[m] - 1 - first[m] * stride])
        if progress:
            progress(int(edges[min(begin + call, n)]), len(places))
    return np.concatenate(out)[np.argsort(own)]


@functools.partial(jax.jit, static_argnums=(0, 4))
def _log_p(network: nn.Module, variables: Any, X: Array, Y: Array, of_all: bool) -> Array:
    z = jnp.asarray(network.apply(variables, X))
    return jax.nn.log_softmax(z) if of_all else -optax.softmax_cross_entropy_with_integer_labels(z, Y)


Positions = Literal["rotary", "learned"]


class Transformer(nn.Module, kw_only=True):
    """Logits of the next token at every position: [B, T] -> [B, T, N].

        embeddings  x_t = E[w_t], and P[t] where positions are learned
        a layer     x += W_o softmax(q kᵀ/√h) v,  with q, k, v = W LN(x);   x += W₂ gelu(W₁ LN(x))
        logits      z = E LN(x)

    vocab_size: N. width: d, a multiple of heads. heads: H; with rotary positions, d/H is even. window: W, the largest T.
    dropout: share of the outputs of every layer and of the embeddings that training sets to 0 at random.
    tied: whether the output weights are the embeddings E.
    precision: of the products, such as bfloat16; parameters, normalisation and logits have at least float32.
    """

    vocab_size: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    window: int = 64
    dropout: float = 0.0
    tied: bool = True
    positions: Positions = "rotary"
    precision: str = "float32"

    @nn.compact
    def __call__(self, X, *, train: bool = False):
        narrow, wide = jnp.dtype(self.precision), np.promote_types(jnp.dtype(self.precision), np.float32)
        T, normal = X.shape[1], nn.initializers.normal(0.02)
        embed = nn.Embed(self.vocab_size, self.width, embedding_init=normal, param_dtype=wide, name="embedding")
        x = embed(X)
        if self.positions == "learned":
            x = x + self.param("positions", normal, (self.window, self.width), wide)[None, :T]
        x = nn.Dropout(self.dropout, deterministic=not train)(x).astype(narrow)
        mask = visible(jnp.asarray(X))
        for n in range(1, self.layers + 1):
            options = (self.heads, self.layers, self.dropout, self.positions == "rotary")
            x = _Layer(*options, narrow, wide, name=f"layer_{n}")(x, mask, train)
        x = nn.LayerNorm(use_bias=False, param_dtype=wide, name="norm")(x.astype(wide))
        output = nn.Dense(self.vocab_size, use_bias=False, kernel_init=normal, param_dtype=wide, name="output")
        return embed.attend(x) if self.tied else output(x)

    def flops_per_token(self) -> int:
        """`6 (12 L d² + N d) + 12 L d W` FLOPs."""
        L, d, N, W = self.layers, self.width, self.vocab_size, self.window
        return 6 * (12 * L * d**2 + N * d) + 12 * L * d * W


class _Layer(nn.Module):
    """Attention and a network of one hidden layer, each added to its input."""

    heads: int
    layers: int
    dropout: float
    rotary: bool
    narrow: Any
    wide: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B T d"], mask: Bool[Array, "B 1 T T"], train: bool) -> Float[Array, "B T d"]:
        (B, T, d), H = x.shape, self.heads
        options: dict[str, Any] = {"use_bias": False, "dtype": self.narrow, "param_dtype": self.wide}
        into = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.02), **options)
        # what is added up over 2 L branches has smaller weights (Radford et al. 2019)
        back = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.02 / (2 * self.layers) ** 0.5), **options)
        norm = functools.partial(nn.LayerNorm, use_bias=False, param_dtype=self.wide)
        drop = nn.Dropout(self.dropout, deterministic=not train)
        h = into(3 * d, name="qkv")(norm(name="norm_1")(x.astype(self.wide)).astype(self.narrow))
        q, k, v = jnp.unstack(h.reshape(B, T, 3, H, d // H), axis=2)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        a = jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(B, T, d)
        x = x + drop(back(d, name="attention")(a))
        h = into(4 * d, name="hidden")(norm(name="norm_2")(x.astype(self.wide)).astype(self.narrow))
        return x + drop(back(d, name="output")(nn.gelu(h)))


def visible(X: Integer[Array, "B T"]) -> Bool[Array, "B 1 T T"]:
    """Whether t sees s: s <= t and in its document."""
    document = jnp.cumsum(X == PAD, axis=1)
    same = document[:, :, None] == document[:, None, :]
    return (same & jnp.tri(X.shape[1], dtype=bool)[None])[:, None]


def rotate(x: Float[Array, "B T H h"]) -> Float[Array, "B T H h"]:
    """Rotary positions: turn the pairs (x_n, x_{n + h/2}) by `t 10000^(-2n/h)`."""
    T, h = x.shape[1], x.shape[3]
    n = jnp.arange(h // 2, dtype=jnp.float32)
    angles = jnp.arange(T, dtype=jnp.float32)[:, None] * 10_000 ** (-2 * n / h)[None]
    cos, sin = (f(angles).astype(x.dtype)[None, :, None] for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, axis=3)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=3)


_previous, _match = 40.0, 16.0  # by how much the token before, and a match, score above other tokens
_gain = 4.0  # logit of a token that followed every time


def induction_start(network: Transformer, variables: dict[str, Any], *, seed: int = 0) -> dict[str, Any]:
    """An induction circuit: a head for the token before, and a head that copies.

    Token, place, token before and copied token have a space of m dimensions each; directions of tokens are orthogonal where
    N <= m, and else random.
    """
    d, H, N = network.width, network.heads, network.vocab_size
    h, rng, params = d // H, np.random.default_rng(seed), variables["params"]
    if network.layers < 2 or network.positions != "learned" or network.tied or d < 16 or h < 4:
        raise ValueError(
            f"induction heads in {network.layers} layers, {d} wide, {H} heads, positions {network.positions!r}, tied "
            f"{network.tied}: use two layers or more, 16 wide or more, at most {max(1, d // 4)} heads, positions='learned' and "
            "tied=False"
        )
    m = min(h, (d - 1) // 4) // 2 * 2
    Q, _ = np.linalg.qr(np.concatenate([np.ones((d, 1)), rng.normal(size=(d, 4 * m))], axis=1))
    token, place, before, copied = np.split(Q[:, 1:], 4, axis=1)  # orthogonal, and orthogonal to the vector of ones
    A = np.eye(N, m) if N <= m else rng.normal(size=(N, m))
    A = A / np.linalg.norm(A, axis=1, keepdims=True)
    phases = np.pi * (np.arange(1, m // 2 + 1) * (5**0.5 - 1) / 2 % 1)  # spread over (0, π), so that no two places look alike
    t = np.arange(network.window)[:, None] * phases[None]
    P = np.concatenate([np.cos(t), np.sin(t)], axis=1) / (m // 2) ** 0.5  # φ(t) of length 1
    cos, sin = np.diag(np.cos(phases)), np.diag(np.sin(phases))
    back = np.block([[cos, -sin], [sin, cos]])  # φ(t) @ back = φ(t - 1)
    one = _layer(params["layer_1"], H, (place @ back, place, token, before), _previous, unit=(2 / d) ** 0.5)
    two = _layer(params["layer_2"], H, (token, before, token, copied), _match, unit=(3 / d) ** 0.5)
    starts = {"layer_1": one, "layer_2": two, "output": {"kernel": copied @ A.T * (_gain * 2 / d**0.5)}}
    starts |= {"embedding": {"embedding": A @ token.T}, "positions": P @ place.T}
    like = {name: params[name] for name in starts}
    fitted = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), starts, like)
    return {**variables, "params": {**params, **fitted}}


def _layer(layer: dict[str, Any], H: int, spaces: Any, score: float, unit: float) -> dict[str, Any]:
    """A layer with one copying head, from spaces of query, key, value, output."""
    query, key, value, out = spaces
    (d, m), h = query.shape, len(query) // H
    qkv = np.array(layer["qkv"]["kernel"]).reshape(d, 3, H, h)
    qkv[:, :, 0] = 0
    strength = (score * h**0.5) ** 0.5
    for n, weights in enumerate((strength * query, strength * key, value)):
        qkv[:, n, 0, :m] = unit * weights
    attention = np.concatenate([out.T, np.zeros((d - m, d))])
    output = np.zeros_like(layer["output"]["kernel"])
    kernels = {"qkv": qkv.reshape(d, 3 * d), "attention": attention, "output": output}
    return layer | {name: {"kernel": kernel} for name, kernel in kernels.items()}

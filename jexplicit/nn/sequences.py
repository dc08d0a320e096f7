"""Language models of whole windows, [B, T] -> [B, T, N] logits."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.nn.training import Order, epoch_order, shorter_epochs
from jexplicit.runs.devices import AXIS, default_mesh, replicate

_logits_per_call = 1 << 24  # of a device


def window_order(length: int, window: int, windows: int) -> Order:
    """The starts of the windows of an epoch: `(seed, epoch) -> starts`.

    A pass over the text takes every window once, in random order; each pass begins at another token. An epoch is a part of a
    pass, or all of it.

    Raises:
        ValueError: a text shorter than two windows.
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
    several = lambda seed, e: np.concatenate([starts(seed, (e - 1) * passes + n) for n in range(passes)])[:windows]  # noqa: E731
    return several


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
    """`(z [B, T, N], Y [B, T]) -> [B]`, the mean loss by window.

    eos: whether the `<pad>` after a document is predicted.
    """

    def loss(z: Float[Array, "B T N"], Y: Int[Array, "B T"]) -> Float[Array, " B"]:
        own = optax.softmax_cross_entropy_with_integer_labels(z, Y)
        wanted = jnp.ones_like(own) if eos else (Y != PAD).astype(own.dtype)
        return (own * wanted).sum(axis=1) / jnp.maximum(wanted.sum(axis=1), 1)

    return loss


def sequence_optimizer(
    rate: float, steps: int, *, warmup: int, decay: float, accumulate: int = 1, clip: float = 1.0
) -> optax.GradientTransformation:
    """AdamW with warm-up, cosine decay to a tenth, and clipped gradients.

    rate: the highest learning rate. steps: updates in all. warmup: updates before the highest rate. decay: weight decay of
    matrices, times the rate. accumulate: batches whose gradients are averaged for an update.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, min(warmup, steps - 1), steps, 0.1 * rate)
    matrices = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)  # noqa: E731
    adam = optax.adamw(schedule, b2=0.99, weight_decay=decay, mask=matrices)
    optimizer = optax.chain(optax.clip_by_global_norm(clip), adam)
    return optimizer if accumulate == 1 else optax.MultiSteps(optimizer, accumulate).gradient_transformation()


def stream_log_probabilities(
    network: nn.Module,
    variables: Any,
    stream: Integer[np.ndarray, " L"],
    *,
    window: int,
    stride: int,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " L_minus_1"]:
    """`log p` of every token of a stream but its first.

    The text is read in windows of W tokens that begin every `stride` tokens, and each predicts the tokens that the one before
    did not reach: a prediction sees at least W - stride + 1 tokens, or its document from the start.

    Args:
        network: [B, T] token ids -> [B, T, N] logits; causal.
        stream: [L] token ids.
        window: W.
        stride: 1 .. W.
        mesh: devices to share the windows.
        progress: called with (predictions done, predictions in all).

    Raises:
        ValueError: a stride outside 1 .. W.
    """
    shape: Any = {"window": window, "stride": stride, "mesh": mesh, "progress": progress}
    return _of_windows(_log_p, network, variables, stream, np.arange(1, len(stream)), **shape)


def stream_distributions(
    network: nn.Module,
    variables: Any,
    stream: Integer[np.ndarray, " L"],
    places: Int[np.ndarray, " M"],
    *,
    window: int,
    stride: int,
    mesh: Mesh | None = None,
) -> Float[np.ndarray, "M N"]:
    """`log p` of all tokens at some places of a stream.

    Args:
        places: [M] of the predicted tokens, 1 .. L - 1.
    """
    return _of_windows(_log_p_of_all, network, variables, stream, places, window=window, stride=stride, mesh=mesh)


def _of_windows(
    f: Any,
    network: nn.Module,
    variables: Any,
    stream: np.ndarray,
    places: np.ndarray,
    *,
    window: int,
    stride: int,
    mesh: Mesh | None = None,
    progress: Any = None,
) -> np.ndarray:
    """`f` of the window of every place."""
    if not 1 <= stride <= window:
        raise ValueError(f"a stride of {stride} in windows of {window}: use 1 .. {window}")
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
        found = np.asarray(f(network, variables, *batch(starts)))
        out.append(found[which[m] - begin, places[m] - 1 - first[m] * stride])
        if progress:
            progress(int(edges[min(begin + call, n)]), len(places))
    return np.concatenate(out)[np.argsort(own)]


@functools.partial(jax.jit, static_argnums=0)
def _log_p(network: nn.Module, variables: Any, X: Array, Y: Array) -> Array:
    z = jnp.asarray(network.apply(variables, X))
    return -optax.softmax_cross_entropy_with_integer_labels(z, Y)


@functools.partial(jax.jit, static_argnums=0)
def _log_p_of_all(network: nn.Module, variables: Any, X: Array, Y: Array) -> Array:
    return jax.nn.log_softmax(jnp.asarray(network.apply(variables, X)))

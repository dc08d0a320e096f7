"""Studies of training: hidden layers, and autoencoders.

With the examples as rows of X, a linear autoencoder is `f(x) = A B x` with B [k, D] and A [D, k]. The best of width k projects
on the first k right singular vectors of X (Eckart & Young 1936; Baldi & Hornik 1989).

Nonlinear autoencoders wider than their input do not learn the identity. Trained maps contract around the examples, so
that their iteration converges to an example: an associative memory (Radhakrishnan, Belkin & Uhler 2020).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jexplicit.nn.training import Objective
from jexplicit.runs.devices import full_precision


class LayerValues(NamedTuple):
    """Pre-activations and gradients of one hidden layer for B examples."""

    z: Float[Array, "B width"]
    gradient: Float[Array, "B width"]


def hidden_layers(
    model: nn.Module, variables: Mapping[str, Any], objective: Objective, X: Any, Y: Any, *, train: bool = True
) -> dict[str, LayerValues]:
    """Pre-activations and gradients of every hidden layer; `train`: BatchNorm by batch."""
    X, Y = jnp.asarray(X), jnp.asarray(Y)
    shapes = jax.eval_shape(model.init, jax.random.key(0), X).get("perturbations", {})
    rngs = {"dropout": jax.random.key(0)}
    unchanged = jax.tree.map(lambda z: jnp.zeros(z.shape, z.dtype), shapes)

    def mean_loss(perturbations: Any) -> tuple[Array, Any]:
        read = {**variables, "perturbations": perturbations}
        z, seen = model.apply(read, X, train=train, mutable=["intermediates", "batch_stats"], rngs=rngs)
        return objective(z, Y).mean(), seen.get("intermediates", {})

    gradients, seen = jax.jit(jax.grad(mean_loss, has_aux=True))(unchanged)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    flat, by_z = ({name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)} for tree in (seen, gradients))
    layers = {path.removesuffix("/z/0"): z for path, z in flat.items() if path.endswith("/z/0")}  # flax sows tuples
    return {path.removeprefix("network/"): LayerValues(z, by_z[f"{path}/z"]) for path, z in layers.items()}


Map = Callable[[Float[Array, " D"]], Float[Array, " D"]]


class LinearAutoencoder(NamedTuple):
    """`f(x) = A B x`: B [k, D] encodes, A [D, k] decodes."""

    A: Float[Array, "D k"]
    B: Float[Array, "k D"]

    @full_precision
    def __call__(self, X: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Reconstructions of the rows of X."""
        return X @ self.B.T @ self.A.T


def linear_autoencoder(X: Float[Array, "M D"], k: int) -> LinearAutoencoder:
    """The linear autoencoder of lowest squared error: `B = V_kᵀ, A = V_k`.

    For centred X these are the principal components.
    """
    if not 1 <= k <= min(X.shape):
        raise ValueError(f"width {k} for {X.shape[0]} examples of {X.shape[1]} features: use 1 .. {min(X.shape)}")
    V = jnp.linalg.svd(X, full_matrices=False)[2][:k].T
    return LinearAutoencoder(V, V.T)


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


class Contraction(NamedTuple):
    """The Jacobian at M points; below a radius of 1 fixed points attract."""

    singular: Float[np.ndarray, " M"]
    spectral_radius: Float[np.ndarray, " M"]


def contraction(f: Map, X: Float[Array, "M D"]) -> Contraction:
    """`Contraction` of a map f of one point, at each point [M, D]."""
    J = np.asarray(jax.jit(lambda X: jax.lax.map(jax.jacrev(f), X))(X), np.float64)
    return Contraction(np.linalg.norm(J, ord=2, axis=(1, 2)), np.abs(np.linalg.eigvals(J)).max(axis=1))


def iterate_map(f: Map, X: Float[Array, "M D"], steps: int) -> Float[Array, "M D"]:
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

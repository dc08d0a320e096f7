"""Studies of training: hidden layers, and autoencoders.

With the examples as rows of X, a linear autoencoder is `f(x) = A B x` with B [k, D] and A [D, k]. The best of width k projects
on the first k right singular vectors of X (Eckart & Young 1936; Baldi & Hornik 1989). Beyond the rank of X, the identity is one
of many solutions; `A = (XᵀX)†, B = XᵀX` projects on the span of the examples: it reproduces every example and maps vectors
orthogonal to all of them to 0.

Nonlinear autoencoders wider than their input do not learn the identity either. Trained maps contract around the examples, so
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


@full_precision
def pseudo_inverse_autoencoder(X: Float[Array, "M D"]) -> LinearAutoencoder:
    """The projection on the examples, `A = (XᵀX)†, B = XᵀX` (Radhakrishnan 2024)."""
    if 0 in X.shape:
        raise ValueError(f"examples of shape {X.shape}: give at least one, with at least one feature")
    gram = X.T @ X
    return LinearAutoencoder(jnp.linalg.pinv(gram, hermitian=True, rtol=X.shape[1] * jnp.finfo(X.dtype).eps), gram)


@full_precision
def descend_linear(f: LinearAutoencoder, X: Float[Array, "M D"], steps: int) -> LinearAutoencoder:
    """A linear autoencoder after descent on the mean `½ ||x - A B x||²`.

    The rate is `1/(4 s² (1 + ||A||² + ||B||²))` at the start, with s² the largest eigenvalue of XᵀX/M: small enough for a
    decreasing loss. For k >= D, every `A B` that is the identity on the span of the examples has a loss of 0, and the solution
    depends on the start. Directions orthogonal to all examples get no gradient in B, so that B does not change on them.
    Source: Radhakrishnan 2024, Sec. 4.
    """
    s = float(jnp.linalg.norm(X, ord=2))
    if steps < 0 or not s:
        raise ValueError(f"{steps} steps of descent on examples of norm {s:g}: use 0 or more, and examples that are not 0")
    rate = len(X) / (4 * s**2 * (1 + float(jnp.linalg.norm(f.A, ord=2)) ** 2 + float(jnp.linalg.norm(f.B, ord=2)) ** 2))

    def loss(f: LinearAutoencoder) -> Array:
        return reconstruction_errors(f(X), X).mean()

    def step(f: LinearAutoencoder, _: None) -> tuple[LinearAutoencoder, None]:
        return jax.tree.map(lambda W, g: W - rate * g, f, jax.grad(loss)(f)), None

    return jax.jit(lambda f: jax.lax.scan(step, f, length=steps)[0])(f)


@full_precision
def off_span_gain(f: LinearAutoencoder, X: Float[Array, "M D"]) -> float:
    """`||A B (I - P)||_F / ||I - P||_F`, P the projection on examples."""
    basis = jnp.linalg.svd(X, full_matrices=True)[2][int(jnp.linalg.matrix_rank(X)) :]
    if not len(basis):
        raise ValueError(f"{len(X)} examples span all {X.shape[1]} dimensions: no direction is orthogonal to them; use fewer")
    return float(jnp.sqrt((f(basis) ** 2).sum() / len(basis)))


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

"""Classes of functions to learn in context, and shifts of prompts.

A prompt is points x_1, .., x_T and values y_t = f(x_t) of one random f. A predictor estimates y_t from x_1, y_1, .., x_t, for
every t. Functions take one prompt; use `jax.vmap` for a batch.

Source: Garg, Tsipras, Liang, Valiant 2022.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.names import KINDS as KINDS
from icl.names import Kind as Kind
from jexplicit.runs.devices import full_precision

QueryShift = Literal["random quadrants", "opposite quadrants", "orthogonal query", "query seen"]
Shift = Literal["none", QueryShift, "half subspace", "skewed", "x times 1/3", "x times 3", "y times 1/3", "y times 3", "noise"]
SHIFTS = get_args(Shift)
_tree_depth = 4


class Prompt(NamedTuple):
    """Points X [T, d] and values y [T], batch first."""

    X: Float[Array, "*prompts T d"]
    y: Float[Array, "*prompts T"]


@dataclasses.dataclass(frozen=True)
class FunctionClass:
    """A distribution of functions of x ~ N(0, I).

    kind: linear: `wᵀx`, w ~ N(0, I). sparse: with `nonzero` entries of w. noisy: with noise of variance 1.
        quadratic: `wᵀ(x²) / sqrt(3)`. relu: `sqrt(2/h) aᵀ relu(W x)` with h = `hidden`. tree: a decision
        tree of depth 4 that splits on the signs of random coordinates, with leaves N(0, 1).
    dim: d; points: T.
    nonzero, hidden: of sparse and relu.
    """

    kind: Kind = "linear"
    dim: int = 20
    points: int = 41
    nonzero: int = 3
    hidden: int = 100

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"class {self.kind!r}: choose one of {', '.join(KINDS)}")
        if min(self.dim, self.points, self.nonzero, self.hidden) < 1 or (self.kind == "sparse" and self.nonzero > self.dim):
            raise ValueError(
                f"dim {self.dim}, points {self.points}, nonzero {self.nonzero}, hidden {self.hidden}: use at least 1 for "
                "each, and no more nonzero weights than inputs"
            )

    def sample(self, key: Array, shift: Shift = "none") -> Prompt:
        """One prompt, shifted in points, query, scales or noise.

        random, opposite quadrants: each coordinate has one sign over the context; the query is unrestricted, or in the opposite
        quadrant. orthogonal query: the last point is orthogonal to all others. query seen: it is one of them. half subspace:
        points lie in a random subspace of d/2 dimensions. skewed: coordinate k has variance proportional to 1/k², then rotated.
        Scales are as named; noise has variance 1. Source: Garg et al. 2022, Sec. 4.
        """
        if shift not in SHIFTS:
            raise ValueError(f"shift {shift!r}: choose one of {', '.join(SHIFTS)}")
        if (shift == "orthogonal query" and self.points > self.dim) or (shift == "half subspace" and self.dim < 2):
            raise ValueError(
                f"shift {shift!r} with {self.points} points in {self.dim} dimensions: use fewer points or more dimensions"
            )
        if shift in ("query seen", "opposite quadrants", "random quadrants") and self.points < 2:
            raise ValueError(f"shift {shift!r} with {self.points} point: use more")
        key_x, key_f, key_shift, key_noise = jax.random.split(key, 4)
        X = _shifted_points(jax.random.normal(key_x, (self.points, self.dim)), shift, key_shift)
        y = jax.vmap(sample_function(key_f, self))(X)
        if self.kind == "noisy" or shift == "noise":
            y = y + jax.random.normal(key_noise, y.shape)
        return Prompt(X, y * {"y times 1/3": 1 / 3, "y times 3": 3.0}.get(shift, 1.0))

    @property
    def power(self) -> float:
        """E[f(x)²], the normaliser of losses."""
        return {"linear": self.dim, "sparse": self.nonzero, "noisy": self.dim + 1, "quadratic": self.dim, "relu": self.dim}.get(
            self.kind, 1.0
        )


def sample_function(key: Array, functions: FunctionClass) -> Callable[[Float[Array, " d"]], Float[Array, ""]]:
    """A random function of a class, without the noise of "noisy"."""
    key, more = jax.random.split(key)
    w = jax.random.normal(key, (functions.dim,))
    if functions.kind == "sparse":
        w = jnp.where(jax.random.permutation(more, functions.dim) < functions.nonzero, w, 0)
    if functions.kind == "quadratic":
        return full_precision(lambda x: w @ x**2 / 3**0.5)
    if functions.kind == "relu":
        a, W = jax.random.normal(key, (functions.hidden,)), jax.random.normal(more, (functions.hidden, functions.dim))
        return full_precision(lambda x: (2 / functions.hidden) ** 0.5 * (a @ jax.nn.relu(W @ x)))
    if functions.kind == "tree":
        splits = jax.random.randint(key, (2**_tree_depth - 1,), 0, functions.dim)
        leaves = jax.random.normal(more, (2**_tree_depth,))
        return functools.partial(_tree_value, splits, leaves)
    return full_precision(lambda x: w @ x)


@jax.jit
def _tree_value(splits: Array, leaves: Array, x: Array) -> Array:
    """The leaf of x in a binary tree with heap numbering."""
    node = jnp.zeros((), splits.dtype)
    for _ in range(_tree_depth):
        node = 2 * node + 1 + (x[splits[node]] > 0).astype(node.dtype)
    return leaves[node - len(splits)]


@functools.partial(jax.jit, static_argnums=1)
@full_precision
def _shifted_points(X: Array, shift: Shift, key: Array) -> Array:
    T, d = X.shape
    if shift in ("random quadrants", "opposite quadrants"):
        signs = jax.random.rademacher(key, (1, d), X.dtype)
        query = -signs * jnp.abs(X[-1:]) if shift == "opposite quadrants" else X[-1:]
        return jnp.concatenate([signs * jnp.abs(X[:-1]), query])
    if shift == "orthogonal query":
        basis, _ = jnp.linalg.qr(X[:-1].T)
        return X.at[-1].add(-basis @ (basis.T @ X[-1]))
    if shift == "query seen":
        return X.at[-1].set(X[jax.random.randint(key, (), 0, T - 1)])
    if shift == "half subspace":
        basis, _ = jnp.linalg.qr(jax.random.normal(key, (d, d // 2)))
        return X @ basis @ basis.T
    if shift == "skewed":
        basis, _ = jnp.linalg.qr(jax.random.normal(key, (d, d)))
        scale = 1 / jnp.arange(1, d + 1, dtype=X.dtype)
        return X * (scale / jnp.sqrt(jnp.mean(scale**2)))[None] @ basis.T
    return X * {"x times 1/3": 1 / 3, "x times 3": 3.0}.get(shift, 1.0)


PrefixPredictor = Callable[[Float[Array, "T d"], Float[Array, " T"], Float[Array, " T"], Float[Array, " d"]], Float[Array, ""]]


def at_every_prefix(predictor: PrefixPredictor, prompt: Prompt) -> Float[Array, " T"]:
    """Predictions of y_1, .., y_T, each from the preceding pairs.

    `seen` [T] is 1 for the pairs of the prefix and 0 for the others, which are zeroed.
    """
    T = len(prompt.y)

    def one(t: Array) -> Array:
        seen = (jnp.arange(T) < t).astype(prompt.y.dtype)
        return predictor(prompt.X * seen[:, None], prompt.y * seen, seen, prompt.X[t])

    return jax.vmap(one)(jnp.arange(T))


@full_precision
def least_squares(X: Array, y: Array, seen: Array, x: Array) -> Array:
    """`w = X⁺ y`, the solution of least norm."""
    return jnp.linalg.pinv(X, rtol=1e-5) @ y @ x


@full_precision
def averaging_estimator(X: Array, y: Array, seen: Array, x: Array) -> Array:
    """`w = Xᵀ y / t`, unbiased for x ~ N(0, I)."""
    return (y @ X / jnp.maximum(jnp.sum(seen), 1)) @ x


@full_precision
def nearest_neighbours(X: Array, y: Array, seen: Array, x: Array, *, k: int = 3) -> Array:
    """The mean y of the k nearest points, or of all."""
    distance = jnp.where(seen > 0, jnp.sum((X - x[None]) ** 2, axis=1), jnp.inf)
    near = jnp.where(jnp.argsort(jnp.argsort(distance)) < k, seen, 0)
    return y @ near / jnp.maximum(jnp.sum(near), 1)


@full_precision
def lasso(X: Array, y: Array, seen: Array, x: Array, *, alpha: float = 0.1, sweeps: int = 100) -> Array:
    """The lasso by coordinate descent (Friedman et al. 2010, Eq. 8).
    It minimises `||y - X w||² / (2t) + alpha ||w||₁`."""
    t = jnp.maximum(jnp.sum(seen), 1)
    A, b = X.T @ X / t, X.T @ y / t

    def coordinate(k: Array, w: Array) -> Array:
        rest = b[k] - A[k] @ w + A[k, k] * w[k]
        step = jnp.sign(rest) * jnp.maximum(jnp.abs(rest) - alpha, 0)
        return w.at[k].set(jnp.where(A[k, k] > 0, step / jnp.where(A[k, k] > 0, A[k, k], 1), 0))

    def sweep(w: Array, _: None) -> tuple[Array, None]:
        return lax.fori_loop(0, len(w), coordinate, w), None

    return lax.scan(sweep, jnp.zeros_like(b), None, length=sweeps)[0] @ x


@full_precision
def newton(X: Array, y: Array, seen: Array, x: Array, *, steps: int = 10) -> Array:
    """Newton's iteration for least squares (Fu et al. 2023).
    `w = M_k Xᵀ y`, `M_{k+1} = 2 M_k - M_k A M_k`, `A = XᵀX`, from `M_0 = A / ||A||²` (largest row sum)."""
    A = X.T @ X
    size = jnp.maximum(jnp.max(jnp.sum(jnp.abs(A), axis=1)), jnp.finfo(A.dtype).tiny ** 0.5)
    M = lax.fori_loop(0, steps, lambda _, M: 2 * M - M @ A @ M, A / size**2)
    return M @ (X.T @ y) @ x


def function_baselines(kind: Kind, *, alpha: float = 0.1) -> dict[str, PrefixPredictor]:
    """The baselines of a class, by name."""
    common: dict[str, PrefixPredictor] = {
        "zero": lambda X, y, seen, x: jnp.zeros((), y.dtype),  # the mean over functions
        "least squares": least_squares,
        "3 nearest neighbours": nearest_neighbours,
        "averaging": averaging_estimator,
    }
    if kind in ("linear", "noisy", "sparse"):
        common |= {f"Newton, {steps} steps": functools.partial(newton, steps=steps) for steps in (4, 8, 12)}
    if kind == "sparse":
        common[f"Lasso {alpha:g}"] = functools.partial(lasso, alpha=alpha)
    return common


def prefix_losses(predictions: Float[Array, "prompts T"], y: Float[Array, "prompts T"]) -> Float[Array, " T"]:
    """Half the mean squared error at every prefix."""
    return jnp.mean((predictions - y) ** 2, axis=0) / 2


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts of a class, and the mean loss over all prefixes.

    functions: their class.
    model: `(params, X [B, T, d], y [B, T]) -> predictions [B, T]`, causal.
    """

    functions: FunctionClass
    model: Callable[[Any, Array, Array], Array]

    def sample(self, key: Array, size: int, dtype: Any = None) -> Prompt:
        """Fresh prompts, batch last."""
        prompts = jax.vmap(self.functions.sample)(jax.random.split(key, size))
        return Prompt(*(jnp.moveaxis(leaf, 0, -1).astype(dtype or leaf.dtype) for leaf in prompts))

    def loss(self, params: Any, batch: Prompt) -> Float[Array, ""]:
        """Half the mean squared error, averaged over prefixes."""
        X, y = (jnp.moveaxis(leaf, -1, 0) for leaf in batch)
        return jnp.mean(prefix_losses(self.model(params, X, y), y))

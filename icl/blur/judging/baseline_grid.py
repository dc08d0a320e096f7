"""A grid of baselines at once: SGD, momentum and Adam at many learning rates, compiled as one program.

To tune three optimisers for many networks takes mostly compilation. With the gradient g of step k they are one formula,

    M = α M + β g;   V = γ V + (1 - γ) g²;   W -= η M̂/(√V̂ + ε)

in which SGD has α = 0, β = 1, momentum α = 0.9, β = 1, both without the denominator, and Adam α = 0.9, β = 0.1, with
`M̂ = M/(1 - α^k)` and `V̂ = V/(1 - γ^k)`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from icl.blur.data import Examples
from icl.blur.judging.baselines import follow_descent, initial_layers
from icl.blur.learning import check_updates, seeded_learners
from jexplicit.nn.activations import activation
from jexplicit.nn.names import Activation, OptimizerName
from jexplicit.runs.devices import each_row

GRID_OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "momentum", "adam")

_gamma, _eps = 0.999, 1e-8


class Coefficients(NamedTuple):
    """The optimiser in the formula above: η, α, β, and whether there is a denominator."""

    rate: Float[Any, "*grid"]
    alpha: Float[Any, "*grid"]
    beta: Float[Any, "*grid"]
    adaptive: Bool[Any, "*grid"]


def coefficients(optimizer: OptimizerName, rate: float) -> Coefficients:
    """Those of one of GRID_OPTIMIZERS.

    Raises:
        ValueError: another optimiser.

    Example:
        >>> coefficients("momentum", 0.5).alpha.item()
        0.9
    """
    if optimizer not in GRID_OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r}: a grid has {', '.join(GRID_OPTIMIZERS)}; use descent_curves for others")
    alpha, beta = {"sgd": (0.0, 1.0), "momentum": (0.9, 1.0), "adam": (0.9, 0.1)}[optimizer]
    return Coefficients(np.float64(rate), np.float64(alpha), np.float64(beta), np.bool_(optimizer == "adam"))


def one_formula(c: Coefficients) -> optax.GradientTransformation:
    """The optimiser with these coefficients, which may be traced."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return zeros, zeros, jnp.zeros_like(c.rate)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        M, V, k = state
        M = jax.tree.map(lambda M, g: c.alpha * M + c.beta * g, M, updates)
        V = jax.tree.map(lambda V, g: _gamma * V + (1 - _gamma) * g**2, V, updates)
        k = k + 1
        scale = c.rate / jnp.where(c.adaptive, 1 - c.alpha**k, 1)

        def change(M: Array, V: Array) -> Array:
            return -scale * M / jnp.where(c.adaptive, jnp.sqrt(V / (1 - _gamma**k)) + _eps, 1)

        return jax.tree.map(change, M, V), (M, V, k)

    return optax.GradientTransformation(init, update)


def descent_grid(
    rates: tuple[float, ...],
    hidden: tuple[int, ...],
    train: Examples,
    test: Any,
    *,
    normalised: bool,
    hidden_activation: Activation = "tanh",
    at: tuple[int, ...],
    batch_size: int = 64,
    seeds: tuple[int, ...] = tuple(range(10)),
) -> PyTree[Float[np.ndarray, "optimizers rates seeds at"]]:
    """`descent_curves` of every one of GRID_OPTIMIZERS at every rate, after the numbers of updates `at`.

    Args:
        rates, hidden, train, normalised, hidden_activation, batch_size, seeds: as in `descent_curves`.
        test: one part, or several, such as `(dev, test)`, for which the result is a pytree of the same structure.
        at: ascending numbers of updates; each network is trained for the last.

    Raises:
        ValueError: as in `descent_curves`.
    """
    grid = [coefficients(optimizer, rate) for optimizer in GRID_OPTIMIZERS for rate in rates]
    stacked = Coefficients(*(np.stack(field) for field in zip(*grid, strict=True)))
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf, None if leaf.dtype == bool else np.float32), stacked)
    network: Any = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}
    found = grid_accuracies(one_formula, stacked, hidden, train, test, batch_size=batch_size, seeds=seeds, **network)
    return jax.tree.map(lambda curves: curves.reshape(len(GRID_OPTIMIZERS), len(rates), *curves.shape[1:]), found)


def grid_accuracies(
    optimizer: Callable[[Any], optax.GradientTransformation],
    grid: Any,
    hidden: tuple[int, ...],
    train: Examples,
    test: Any,
    *,
    normalised: bool,
    hidden_activation: Activation,
    at: tuple[int, ...],
    batch_size: int,
    seeds: tuple[int, ...],
) -> PyTree[Float[np.ndarray, "grid seeds at"]]:
    """Accuracies by `optimizer(point)` at every point of a grid, a pytree of arrays with the grid as first axis.

    `optimizer` is a function of a module, which compiles once; the others are as in `descent_grid`.
    """
    activation(hidden_activation)
    check_updates(at, max(at, default=0))
    sizes, keys, batches = seeded_learners(seeds, hidden, train, steps=at[-1], batch_size=batch_size)
    layers = _initial_layers(sizes, hidden_activation, keys)
    found = _descent_grid(optimizer, (normalised, hidden_activation, at), grid, layers, batches, train, test)
    return jax.tree.map(lambda curves: np.asarray(curves).swapaxes(0, 1), found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _initial_layers(sizes: tuple[int, ...], hidden_activation: Activation, keys: Array) -> Any:
    """Compiled apart from the training, since random numbers take longer to compile than the training does."""
    return jax.vmap(lambda key: initial_layers(key, sizes, hidden_activation))(keys)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _descent_grid(
    optimizer: Callable[[Any], optax.GradientTransformation],
    network: tuple[bool, Activation, tuple[int, ...]],
    grid: Any,
    layers: Any,
    batches: Array,
    *data: Any,
) -> PyTree[Array]:
    """Accuracies [seeds, grid, at]. One network at a time on a CPU: its weights stay in the cache."""
    normalised, hidden_activation, at = network
    options: dict[str, Any] = {"normalised": normalised, "hidden_activation": hidden_activation, "at": at}

    def run(learner: tuple[Any, Array]) -> PyTree[Array]:
        layers, batches = learner
        return each_row(lambda point: follow_descent(optimizer(point), layers, batches, *data, **options), grid)

    return each_row(run, (layers, batches))

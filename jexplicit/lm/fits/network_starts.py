"""Warm starts of a neural language model from explicit solutions.

*Direct connection*: the softmax layer over the K one-hot tokens of a context is what the explicit solution solves (features
Cat). With its tables there and an output layer of 0, the network begins as the explicit language model, and its hidden layers
learn what that lacks.

*Output layer*: the layer over the random hidden features h, solved in one pass. The solution reads features that are not
negative, `φ = s (h - l)` with l the lowest value of every feature; a linear layer on h is one on φ:

    F = φᵀY,  U = explicit_solution(F, K = mean ||φ||_1),    h W + b  with  W = s U,  b = -s l U.

Correlated features make the solution overconfident, in proportion to K, so s is chosen among a few by the loss: one fitted
number.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.smoothing import with_unseen_outputs
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import scorer
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import explicit_solution

_chunk = 8192  # positions at a time
_numbers = 8  # of scales that are tried, from K = 1 up
_sample = 20_000  # positions that the scale is chosen on


class OutputStart(NamedTuple):
    """Variables with the output layer solved, the priming number K of the scale that was chosen, and its loss on a sample."""

    variables: dict[str, Any]
    K: float
    loss: float


def direct_start(variables: dict[str, Any], solved: LanguageModel) -> dict[str, Any]:
    """A network that begins as a solved language model: its tables as the direct connection, its output layer 0.

    Args:
        variables: of an MLPLanguageModel with `direct="tokens"`.
        solved: a language model of the same vocabulary and context.

    Raises:
        ValueError: a network without that connection, or tables of another shape.

    Example:
        >>> from jexplicit.lm.core.model import token_model
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> model = MLPLanguageModel(vocab_size=3, embedding=2, hidden=(4,), direct="tokens")
        >>> solved = token_model((jnp.arange(9.0).reshape(3, 3),), "cat", False)
        >>> start = direct_start(init_variables(model, jax.random.key(0), jnp.zeros((1, 1), int)), solved)
        >>> model.apply(start, jnp.array([[2]])).tolist()
        [[6.0, 7.0, 8.0]]
    """
    params = variables["params"]
    tables = jnp.stack(solved.tables)
    if "direct" not in params or not isinstance(params["direct"], jax.Array):
        raise ValueError("a network without a direct connection from tokens: make it with direct='tokens'")
    if params["direct"].shape != tables.shape:
        raise ValueError(f"tables {tables.shape} for a direct connection {params['direct'].shape}: solve them with its context")
    output = jax.tree.map(jnp.zeros_like, params["network"]["output"])
    network = {**params["network"], "output": output}
    return {**variables, "params": {**params, "network": network, "direct": tables.astype(params["direct"].dtype)}}


@full_precision
def stack_start(
    model: nn.Module,
    variables: dict[str, Any],
    solved: LanguageModel,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
) -> dict[str, Any]:
    """A stack of softmax layers on tokens solved from the bottom up: tables first, then `U⁽ˡ⁾ = log F(H⁽ˡ⁾, Y)`.

    `H⁽ˡ⁾ = softmax(H⁽ˡ⁻¹⁾ U⁽ˡ⁻¹⁾)` has rows of norm 1, so K = 1, and is above 0, so that only outputs that are never a target
    need a count: one, with the mean features.

    Args:
        model: a TokenStack.
        variables: of it; its random parameters are replaced.
        solved: tables of the same vocabulary and context, for the first layer.
        X: [M, K] training contexts.
        Y: [M] targets.

    Raises:
        ValueError: tables of another shape; no positions.

    Source: paper, Sec. 3.3.
    """
    params, tables = dict(variables["params"]), jnp.stack(solved.tables)
    if params["layer_1"].shape != tables.shape:
        raise ValueError(f"tables {tables.shape} for a layer {params['layer_1'].shape}: solve them with its context")
    if not len(Y):
        raise ValueError("no positions to solve layers from: give a longer text")
    params["layer_1"] = tables.astype(params["layer_1"].dtype)
    N = tables.shape[-1]
    for n in range(2, len(params) + 1):
        below = model.clone(layers=n - 1)

        @jax.jit
        def part(params: Any, X: Array, Y: Array, below: nn.Module = below) -> tuple[Array, Array]:
            H = jax.nn.softmax(jnp.asarray(below.apply({"params": params}, X)))
            return jax.ops.segment_sum(H, Y, N).T, jax.ops.segment_sum(jnp.ones_like(H[:, 0]), Y, N)

        lower = {f"layer_{m}": params[f"layer_{m}"] for m in range(1, n)}
        parts = [part(lower, X[m : m + _chunk], Y[m : m + _chunk]) for m in range(0, len(Y), _chunk)]
        F, f = (functools.reduce(jnp.add, sums) for sums in zip(*parts, strict=True))
        params[f"layer_{n}"] = {"kernel": explicit_solution(with_unseen_outputs(F, f), 1)}
    return {**variables, "params": params}


@full_precision
def output_start(
    model: nn.Module, variables: dict[str, Any], X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]
) -> OutputStart:
    """The output layer of a network solved explicitly on its own, still random, hidden features.

    Args:
        model: an MLPLanguageModel.
        variables: where its other layers start.
        X: [M, K] training contexts.
        Y: [M] targets.

    Raises:
        ValueError: no positions.
    """
    if not len(Y):
        raise ValueError("no positions to solve the output layer from: give a longer text")
    G, f, lowest = _feature_sums(model, variables, X, Y)
    above = G - lowest[:, None] * f[None, :]
    mean = above.sum(axis=1) / f.sum()
    above = above + mean[:, None]  # every output once more, with the mean features: none is without a logarithm
    score = scorer(model, objective("softmax_cross_entropy"))
    m = np.random.default_rng(0).permutation(len(Y))[:_sample]
    tried = []
    for K in np.geomspace(1, max(float(mean.sum()), 1.0), _numbers):
        s = float(K) / float(mean.sum())
        U = explicit_solution(s * above, float(K))
        start = _with_output(variables, s * U, -s * lowest @ U)
        tried.append(OutputStart(start, float(K), score(start, X[m], Y[m]).loss))
    return min(tried, key=lambda start: start.loss)


def _feature_sums(
    model: nn.Module, variables: dict[str, Any], X: np.ndarray, Y: np.ndarray
) -> tuple[Float[Array, "D N"], Float[Array, " N"], Float[Array, " D"]]:
    """Sums of the hidden features by target, target counts, and the lowest value of every feature."""

    @jax.jit
    def part(X: Array, Y: Array):
        z, seen = model.apply(variables, X, mutable=["intermediates"])
        h, N = jnp.asarray(seen["intermediates"]["network"]["features"][0]), z.shape[1]
        return jax.ops.segment_sum(h, Y, N).T, jax.ops.segment_sum(jnp.ones_like(h[:, 0]), Y, N), h.min(axis=0)

    parts = [part(X[m : m + _chunk], Y[m : m + _chunk]) for m in range(0, len(Y), _chunk)]
    G, f, lowest = zip(*parts, strict=True)
    return functools.reduce(jnp.add, G), functools.reduce(jnp.add, f), jnp.stack(lowest).min(axis=0)


def _with_output(variables: dict[str, Any], W: Array, b: Array) -> dict[str, Any]:
    params = variables["params"]
    output = {"kernel": W.astype(params["network"]["output"]["kernel"].dtype), "bias": b}
    return {**variables, "params": {**params, "network": {**params["network"], "output": output}}}

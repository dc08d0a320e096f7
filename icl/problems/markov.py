"""Markov chains learned in context: each sequence has its own matrix.

    P_i ~ Dirichlet(α, .., α) for each of k rows,    x_{t+1} ~ P_{x_t}

With n_ij the number of steps from i to j so far and n_i their sum over j, the posterior mean of P_ij is
`(n_ij + α) / (n_i + k α)`. Its row i = x_t is the prediction with the least expected loss if the first state is uniform. If it
is drawn from the stationary distribution of P, as in the paper, x_1 is informative of P, which the formula ignores.

Functions take one sequence; use `jax.vmap` for a batch.

Source: Edelman, Edelman, Goel, Malach, Tsilivis 2024, The evolution of statistical induction heads.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from icl.models.causal import CausalModel, next_outputs
from jexplicit.runs.bounds import is_of
from jexplicit.runs.checks import check_key
from jexplicit.runs.devices import full_precision


class Chain(NamedTuple):
    """A transition matrix P [k, k] and states x [T]; batch last."""

    P: Float[Array, "k k *batch"]
    x: Int[Array, "T *batch"]


@dataclasses.dataclass(frozen=True)
class Chains:
    """A distribution of Markov chains, and the cross-entropy of a causal model.

    states: k; length: T, states of a sequence; alpha: α of the Dirichlet distribution of each row.
    stationary: whether the first state has the chain's stationary distribution; else it is uniform.
    """

    states: int = 3
    length: int = 64
    alpha: float = 1.0
    stationary: bool = True

    def __post_init__(self):
        whole = all(isinstance(size, int | np.integer) and size >= 2 for size in (self.states, self.length))
        if not whole or not is_of(self.alpha, float) or not 1e-30 <= self.alpha <= 1e30:  # others are NaN in float32
            sizes = f"{self.states} states, length {self.length}, alpha {self.alpha}"
            raise ValueError(f"{sizes}: use whole numbers of at least 2, and an alpha from 1e-30 to 1e30")

    def sample(self, key: Array, size: int, dtype: Any = None) -> Chain:
        """Fresh chains and a sequence of each, batch last."""
        check_key(key)
        if size < 1:
            raise ValueError(f"{size} chains: draw at least one")
        return _sample(jax.random.split(key, size), self, jnp.dtype(dtype or jnp.zeros(()).dtype))

    def loss(self, params: CausalModel, batch: Chain) -> Float[Array, ""]:
        """The mean cross-entropy of a batch, in nats."""
        losses = jax.vmap(lambda x: cross_entropy(jax.nn.log_softmax(next_outputs(params, x)), x), in_axes=-1)(batch.x)
        return jnp.mean(losses)


@functools.partial(jax.jit, static_argnums=(1, 2))
@functools.partial(jax.vmap, in_axes=(0, None, None), out_axes=-1)
def _sample(key: Array, chains: Chains, dtype: Any) -> Chain:
    """A chain and a sequence of states, for each key."""
    key_P, key_x = jax.random.split(key)
    k = chains.states
    P = jax.random.dirichlet(key_P, jnp.full(k, chains.alpha, dtype), (k,), dtype)
    first = stationary_distribution(P) if chains.stationary else jnp.full(k, 1 / k, dtype)
    uniform = jax.random.uniform(key_x, (chains.length,), dtype)

    def step(row: Array, u: Array) -> tuple[Array, Array]:
        x = jnp.sum(jnp.cumsum(row)[:-1] < u, dtype=jnp.int32)  # the inverse of the distribution function
        return P[x], x

    return Chain(P, lax.scan(step, first, uniform)[1])


@full_precision
def stationary_distribution(P: Float[Array, "k k"]) -> Float[Array, " k"]:
    """The π with `π P = π` and sum 1, by elimination.

    Each state may go to any other, with a probability of 2e-13 or more in float32: π is unique where states are never left.

    Source: Grassmann, Taksar and Heyman 1985.
    """
    A, π = P + jnp.finfo(P.dtype).tiny ** (1 / 3), jnp.ones(1, P.dtype)
    for n in reversed(range(1, len(P))):
        A = A.at[:n, n].divide(A[n, :n].sum())
        A = A.at[:n, :n].add(A[:n, n, None] * A[n, None, :n])
    for n in range(1, len(P)):
        π = jnp.append(π, π @ A[:n, n])
        π = π / π.sum()
    return π


def uniform_prediction(x: Int[Array, " T"], states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """`1/k` for every next state."""
    return jnp.full((len(x), states), 1 / states, dtype)


def unigram_posterior(x: Int[Array, " T"], alpha: Any, states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """`(n_j + α) / (t + k α)`: the posterior mean for independent states."""
    return dirichlet_mean(jnp.cumsum(jax.nn.one_hot(x, states, dtype=dtype), axis=0), alpha)


def bigram_posterior(x: Int[Array, " T"], alpha: Any, states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """`(n_ij + α) / (n_i + k α)`, i = x_t: the posterior mean."""
    return dirichlet_mean(transition_counts(x, states, dtype=dtype), alpha)


def transition_counts(x: Int[Array, " T"], states: int, *, dtype: Any = None) -> Float[Array, "T k"]:
    """n_ij with i = x_t: how often each state has followed x_t."""
    now = jax.nn.one_hot(x, states, dtype=dtype)

    def step(n: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        before, here = pair
        n = n + before[:, None] * here[None]
        return n, jnp.sum(n * here[:, None], axis=0)

    before = jnp.concatenate([jnp.zeros_like(now[:1]), now[:-1]])  # x_1 has no predecessor
    return lax.scan(step, jnp.zeros((states, states), now.dtype), (before, now))[1]


def dirichlet_mean(n: Float[Array, "T k"], alpha: Any) -> Float[Array, "T k"]:
    """`(n_j + α_j) / Σ_l (n_l + α_l)`, the mean of a Dirichlet posterior."""
    n = n + jnp.broadcast_to(jnp.asarray(alpha, n.dtype), n.shape[1:])[None]
    return n / jnp.sum(n, axis=1, keepdims=True)


def cross_entropy(log_p: Float[Array, "T k"], x: Int[Array, " T"]) -> Float[Array, ""]:
    """`-mean log p_t(x_{t+1})` over t = 1, .., T - 1, in nats."""
    return -jnp.mean(jnp.take_along_axis(log_p[:-1], x[1:, None], axis=1))


def divergence(p: Float[Array, "T k"], log_q: Float[Array, "T k"]) -> Float[Array, ""]:
    """The mean over t of `KL(p_t || q_t)`, in nats."""
    return jnp.mean(jnp.sum(jax.scipy.special.xlogy(p, p) - p * log_q, axis=1))

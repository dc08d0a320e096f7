"""Arrays of states: of neurons [k, B, n], normalised and mixed; of synapses [k, n_in, n_out], scaled and turned around."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.devices import full_precision

_eps = 1e-5  # in the variance of a normalisation
_eps_synapse = 1e-9  # in the square of a synapse's norm
_largest = 1e6  # entry of stored synapses under `synapse_norm`


def normalise(z: Float[Array, "k B n"], m: Any, s: Any, *, over: str = "batch") -> Float[Array, "k B n"]:
    """`m (z - mean z) / std z + s`, for every state of every neuron over the minibatch, or for every state over the layer.

    There are no running averages: a prediction depends on the other examples of its minibatch.

    Source: Sandler et al. 2021, Sec. 3.4.
    """
    axes = 1 if over == "batch" else (1, 2)
    centred = z - z.mean(axis=axes, keepdims=True)
    return m * centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=axes, keepdims=True) + _eps) + s


@full_precision
def mix_states(matrix: Float[Array, "d c"], a: Float[Array, "e B n"]) -> Float[Array, "c B n"]:
    """`Σ_d matrix[d,c] a^d`, for every neuron. States missing from `a`, as in the input layer, count as 0."""
    return (matrix[: len(a)].T @ a.reshape(len(a), -1)).reshape(-1, *a.shape[1:])


def unit_synapses(W: Float[Array, "c n_in n_out"]) -> Float[Array, "c n_in n_out"]:
    """`W[i,j] / (Σ_i' W[i',j]² + 1e-9)^½`: the weights into a neuron have norm 1 in every state.

    Source: Sandler et al. 2021, App. C.6.
    """
    return W * jax.lax.rsqrt(jnp.sum(W**2, axis=1, keepdims=True) + _eps_synapse)


def limit_scale(W: Float[Array, "c n_in n_out"]) -> Float[Array, "c n_in n_out"]:
    """Divide a state by a scalar before it overflows (with f̃ > 1 synapses grow exponentially): unit synapses stay the same."""
    largest = jnp.max(jnp.abs(W), axis=(1, 2), keepdims=True)
    return W / jax.lax.stop_gradient(jnp.maximum(largest / _largest, 1))


def transpose_synapses(W: Float[Array, "c n_in1 n_out"]) -> Float[Array, "c n_out n_in"]:
    """V of symmetric synapses: Wᵀ without the bias."""
    return jnp.matrix_transpose(W[:, :-1])

"""The genome: the few numbers that all neurons and synapses of a learner share, and how they are first drawn.

For k states it holds four k x k matrices and some scalars, whatever the size of the network:

    ν, µ    mix the states of neurons in the forward and in the backward pass
    ν̃, µ̃    mix the states before and after a synapse into its update

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 3.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Genome(NamedTuple):
    """The genome of a learner with k states, a pytree; the rules that read it are `icl.blur.Rules`.

    nu, mu: [k, k] ν and µ, row: state that is read, column: state that is written.
    pre: [k, k] ν̃[e, c], from states before the synapse into channel c.
    post: [k, k] µ̃[c, d], from states d after it.
    f, eta: what a neuron keeps of its state, and how much it takes up.
    f_synapse, eta_synapse: the same of a synapse, f̃ and η̃; with labels fed back η̃ > 0 learns, with errors η̃ = -rate.
    m, s: standard deviation and mean of normalised pre-activations.
    m_output: the same standard deviation for the output layer.
    gamma: strength of the Oja term; its absolute value counts.
    rescale: factor on normalised synapses.
    sigma: standard deviation of the first synapses, times the root of the number of inputs.
    """

    nu: Float[Any, "*batch k k"]
    mu: Float[Any, "*batch k k"]
    pre: Float[Any, "*batch k k"]
    post: Float[Any, "*batch k k"]
    f: Float[Any, "*batch"]
    eta: Float[Any, "*batch"]
    f_synapse: Float[Any, "*batch"]
    eta_synapse: Float[Any, "*batch"]
    m: Float[Any, "*batch"]
    s: Float[Any, "*batch"]
    m_output: Float[Any, "*batch"]
    gamma: Float[Any, "*batch"]
    rescale: Float[Any, "*batch"]
    sigma: Float[Any, "*batch"]


_first_scalars = {
    "f": 1.0,
    "eta": 1.0,
    "f_synapse": 1.0,
    "eta_synapse": 0.1,
    "m": 1.0,
    "s": 0.0,
    "m_output": 2.0,
    "gamma": 1e-3,
    "rescale": 1.0,
    "sigma": 1.0,
}


def random_genome(key: Array, states: int, *, dtype: Any = np.float32, **scalars: float) -> Genome:
    """Matrices of independent N(0, 1) entries, and scalars at which a learner neither forgets nor runs away.

    Args:
        key: of the draw.
        states: k.
        dtype: of all leaves.
        scalars: other first values, by field.

    Raises:
        ValueError: fewer than two states (one for the input, one for the feedback), or a scalar that there is not.

    Example:
        >>> random_genome(jax.random.key(0), 4).nu.shape
        (4, 4)

    Source: Sandler et al. 2021, App. C.
    """
    check_states(states)
    draws = jax.random.normal(key, (4, states, states), dtype)
    return Genome(*draws, **_scalars(scalars, dtype))


def backprop_genome(states: int, *, dtype: Any = np.float32, **scalars: float) -> Genome:
    """The matrices of stochastic gradient descent in the first two states, zeros in the others: a start for meta-training.

        ν = [[1, 1], [0, 0]],   µ = I,   ν̃ = I,   µ̃ = [[0, 1], [1, 0]]

    With η̃ = -rate and the rules of `icl.blur.sgd_rules` it *is* stochastic gradient descent; with others it is not.

    Args:
        states, dtype, scalars: as in `random_genome`.

    Raises:
        ValueError: as `random_genome`.

    Example:
        >>> backprop_genome(2, eta_synapse=-0.1).post.tolist()
        [[0.0, 1.0], [1.0, 0.0]]

    Source: Sandler et al. 2021, Sec. 3.2.
    """
    check_states(states)
    blocks = np.array([[[1, 1], [0, 0]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[0, 1], [1, 0]]], dtype)
    matrices = np.zeros((4, states, states), dtype)
    matrices[:, :2, :2] = blocks
    return Genome(*map(jnp.asarray, matrices), **_scalars(scalars, dtype))


def check_states(states: int) -> None:
    """Refuse too few states.

    Raises:
        ValueError: fewer than two.
    """
    if states < 2:
        raise ValueError(f"{states} states: neurons have at least 2, one for the input and one for the feedback")


def _scalars(given: dict[str, float], dtype: Any) -> dict[str, Array]:
    unknown = set(given) - set(_first_scalars)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: the scalars of a genome are {', '.join(_first_scalars)}")
    return {name: jnp.asarray(value, dtype) for name, value in {**_first_scalars, **given}.items()}

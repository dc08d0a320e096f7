"""The genome: shared parameters of all neurons and synapses, initial values, files.

With k states it has four k x k matrices and a few scalars, for any size of the network:

    ν, µ    mix the states of neurons in the forward and in the backward pass
    ν̃, µ̃    mix the states before and after a synapse into its update

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 3.
"""

import dataclasses
import os
from importlib import resources
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.blur.design import Rules, check_states
from jexplicit.data.inputs import is_input, read_input
from jexplicit.runs.files import local_path, make_folder, parse_json, write_json

_folder = resources.files("icl.blur") / "genomes"  # a JSON file per genome
_ridge_scalars = {"eta_synapse": -0.4, "eta_output": 1.2, "m": 1.7, "sigma_output": 0.5, "sigma_bias": 0.5, "decay": 0.1}
_ridge_scalars |= {"lam": 0.8, "lam_output": 0.4, "trust": 0.5, "width": 0.2, "depth": 0.2}
_ridge_scalars |= {"floor": 0.03, "floor_output": 0.05, "aging": 0.2, "average": 0.7}


class Genome(NamedTuple):
    """The genome of a learner with k states, as a pytree (`icl.blur.Rules`).

    nu, mu: [k, k] ν and µ; row: input state, column: output state.
    pre: [k, k] ν̃[e, c], from state e before the synapse to channel c.
    post: [k, k] µ̃[c, d], from channel c to state d after the synapse.
    f, eta: decay of a neuron's state, and the gain of its input.
    f_synapse, eta_synapse: the same for a synapse, f̃ and η̃. With labels as feedback η̃ > 0 learns; with errors, η̃ = -rate.
    m, s: standard deviation and mean of normalised pre-activations.
    m_output: the same standard deviation for the output layer.
    rescale: factor on synapses of unit norm.
    sigma: standard deviation of the initial synapses, times the square root of the number of inputs.
    sigma_output: factor on it in the last synapses.
    sigma_bias: standard deviation of the initial biases of hidden neurons.

    Used under some rules only:

    eta_output: factor on η̃ in the last synapses, with the ridge update.
    width, depth: with the ridge update, η̃ of the synapses to a hidden layer of n neurons, one of L hidden layers, has the
        factor `n^-width / (1 + |depth| (L - 1) √n)`.
    lam, lam_output: λ of the ridge update, in the hidden and in the last synapses.
    decay: with the ridge update, `1 - |η̃ decay|` is f̃.
    trust: exponent of the ridge update's trust ratio, in the hidden synapses (`icl.blur.rules.ridge_update`).
    floor, floor_output, aging: η̃ after n updates is η̃ times `floor + (1 - floor)/(1 + aging n)`, or 0.01 if that is more.
    average: memory of the averaged synapses, from 0 (none) to 1 (the mean of all so far).
    """

    nu: Float[Any, "*batch k k"]
    mu: Float[Any, "*batch k k"]
    pre: Float[Any, "*batch k k"]
    post: Float[Any, "*batch k k"]
    f: Float[Any, "*batch"] = 1.0
    eta: Float[Any, "*batch"] = 1.0
    f_synapse: Float[Any, "*batch"] = 1.0
    eta_synapse: Float[Any, "*batch"] = 0.1
    m: Float[Any, "*batch"] = 1.0
    s: Float[Any, "*batch"] = 0.0
    m_output: Float[Any, "*batch"] = 2.0
    rescale: Float[Any, "*batch"] = 1.0
    sigma: Float[Any, "*batch"] = 1.0
    sigma_output: Float[Any, "*batch"] = 1.0
    sigma_bias: Float[Any, "*batch"] = 0.0
    eta_output: Float[Any, "*batch"] = 1.0
    width: Float[Any, "*batch"] = 0.0
    depth: Float[Any, "*batch"] = 0.0
    lam: Float[Any, "*batch"] = 1.0
    lam_output: Float[Any, "*batch"] = 1.0
    decay: Float[Any, "*batch"] = 0.0
    trust: Float[Any, "*batch"] = 0.0
    floor: Float[Any, "*batch"] = 0.3
    floor_output: Float[Any, "*batch"] = 0.3
    aging: Float[Any, "*batch"] = 0.15
    average: Float[Any, "*batch"] = 0.5


def random_genome(key: Array, states: int, *, dtype: Any = np.float32, **scalars: float) -> Genome:
    """A genome with N(0, 1) matrices and scalars that keep synapses stable.

    Args:
        states: k.
        dtype: of all leaves.
        scalars: other initial values, by field.

    Raises:
        ValueError: fewer than two states, or an unknown scalar.

    Example:
        >>> random_genome(jax.random.key(0), 4).nu.shape
        (4, 4)

    Source: Sandler et al. 2021, App. C.
    """
    check_states(states)
    return _genome(jax.random.normal(key, (4, states, states), dtype), scalars, dtype)


def backprop_genome(states: int, *, dtype: Any = np.float32, **scalars: float) -> Genome:
    """The matrices of stochastic gradient descent in the first two states, else zeros.

        ν = [[1, 1], [0, 0]],   µ = I,   ν̃ = I,   µ̃ = [[0, 1], [1, 0]]

    With η̃ = -rate and the rules of `icl.blur.sgd_rules` it *is* stochastic gradient descent; under other rules it is not.

    Raises:
        ValueError: as in `random_genome`.

    Source: Sandler et al. 2021, Sec. 3.2.
    """
    check_states(states)
    matrices = np.zeros((4, states, states), dtype)
    matrices[:, :2, :2] = [[[1, 1], [0, 0]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[0, 1], [1, 0]]]
    return _genome(jnp.asarray(matrices), scalars, dtype)


def ridge_genome(key: Array, states: int, *, dtype: Any = np.float32) -> Genome:
    """`backprop_genome` with scalars for ridge updates: their start in meta-training.

    Args:
        key: unused; the start is deterministic.

    Raises:
        ValueError: as in `random_genome`.

    Example:
        >>> round(float(ridge_genome(jax.random.key(0), 4).eta_synapse), 3)
        -0.4
    """
    return backprop_genome(states, dtype=dtype, **_ridge_scalars)


def _genome(matrices: Array, scalars: dict[str, float], dtype: Any) -> Genome:
    known = Genome._field_defaults
    if unknown := set(scalars) - set(known):
        raise ValueError(f"{', '.join(sorted(unknown))}: the scalars of a genome are {', '.join(known)}")
    return Genome(*matrices, **{name: jnp.asarray(value, dtype) for name, value in {**known, **scalars}.items()})


class LearnedRule(NamedTuple):
    """A learned rule.

    genome, rules: parameters and design of a learner.
    provenance: configuration, seed, data and their sha256, score and versions of the search.
    """

    genome: Genome
    rules: Rules
    provenance: dict[str, Any]


def shipped_genomes() -> tuple[str, ...]:
    """The names of the genomes in the package.

    Example:
        >>> "digits" in shipped_genomes()
        True
    """
    return tuple(sorted(file.name[:-5] for file in _folder.iterdir() if file.name.endswith(".json")))


def load_genome(name: str | os.PathLike) -> LearnedRule:
    """A learned rule by name, or from a file.

    Args:
        name: one of `shipped_genomes`, or the path of a `genome.json`.

    Raises:
        ValueError: no such genome, or a damaged file.

    Example:
        >>> load_genome("digits").rules.states
        2
    """
    text, shipped = str(name), shipped_genomes()
    if text not in shipped and not is_input(text):
        raise ValueError(
            f"genome {text!r}: neither a file nor one of {', '.join(shipped)}; launch.blur train writes a genome.json"
        )
    try:
        data = (_folder / f"{text}.json").read_bytes() if text in shipped else read_input(text)
        content = parse_json(data)  # also in UTF-16, with byte-order mark or not
        rules = Rules(**content["rules"])
        leaves = {**Genome._field_defaults, **content["genome"]}
        genome = Genome(*(jnp.asarray(leaves[field], np.float32) for field in Genome._fields))
        shapes = {matrix.shape for matrix in genome[:4]}
        if shapes != {(rules.states,) * 2} or any(np.ndim(leaf) for leaf in genome[4:]):
            raise ValueError(f"matrices {sorted(shapes)} for {rules.states} states")
        provenance = dict(content.get("provenance", {}))
    except (KeyError, TypeError, AttributeError, ValueError, OSError, ArithmeticError) as error:  # JSON's are ValueErrors
        raise ValueError(f"{text} cannot be read as a genome ({error}): give a genome.json of launch.blur train") from error
    if not all(np.isfinite(leaf).all() for leaf in genome):
        raise ValueError(f"{text} has entries that are not finite: the file is damaged")
    return LearnedRule(genome, rules, provenance)


def save_genome(path: str | os.PathLike, rule: LearnedRule) -> None:
    """Write a learned rule; `load_genome` reads it back bit for bit.

    Args:
        path: of the file; its folder is created.
    """
    genome = {field: np.asarray(leaf, np.float64).tolist() for field, leaf in rule.genome._asdict().items()}
    path = local_path(path)
    make_folder(path.parent)
    rules = dataclasses.asdict(rule.rules)
    write_json(path, {"kind": "blur genome", "rules": rules, "genome": genome, "provenance": rule.provenance})

"""Bidirectional update rules of neurons with several states, and their genomes.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.blur.design import Rules, check_states
from icl.recurrences import solve_rows
from jexplicit.data.text import is_input, read_input
from jexplicit.nn.networks import activation
from jexplicit.runs.devices import full_precision, key_of_seed
from jexplicit.runs.files import local_path, parse_json, write_json

# With k states a genome has four k x k matrices and a few scalars, for any size of the network:
#
#     ν, µ    mix the states of neurons in the forward and in the backward pass
#     ν̃, µ̃    mix the states before and after a synapse into its update

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
        scalars: other initial values, by field.

    Raises:
        ValueError: fewer than two states, or an unknown scalar.

    Source: Sandler et al. 2021, App. C.
    """
    check_states(states)
    return _genome(jax.random.normal(key, (4, states, states), dtype), scalars, dtype)


def backprop_genome(states: int, *, dtype: Any = np.float32, **scalars: float) -> Genome:
    """The matrices of stochastic gradient descent in the first two states, else zeros.

        ν = [[1, 1], [0, 0]],   µ = I,   ν̃ = I,   µ̃ = [[0, 1], [1, 0]]

    Source: Sandler et al. 2021, Sec. 3.2.
    """
    check_states(states)
    matrices = np.zeros((4, states, states), dtype)
    matrices[:, :2, :2] = [[[1, 1], [0, 0]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[0, 1], [1, 0]]]
    return _genome(jnp.asarray(matrices), scalars, dtype)


def ridge_genome(key: Array, states: int, *, dtype: Any = np.float32) -> Genome:
    """`backprop_genome` with scalars for ridge updates: their start in meta-training, whatever the key."""
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
    """The names of the genomes in the package."""
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
    """Write a learned rule; `load_genome` reads it back bit for bit."""
    genome = {field: np.asarray(leaf, np.float64).tolist() for field, leaf in rule.genome._asdict().items()}
    path = local_path(path)
    rules = dataclasses.asdict(rule.rules)
    write_json(path, {"kind": "blur genome", "rules": rules, "genome": genome, "provenance": rule.provenance})


# A layer of n neurons with k states is an array `a` [k, B, n] over a minibatch of B examples, state axis first. Synapses from
# layer l to l + 1 are `W` [k, n_l + 1, n_{l+1}], one matrix per state, whose last row belongs to a bias neuron with all states
# 1; `V` [k, n_{l+1}, n_l] back are Wᵀ without it. One step on a minibatch (x, y), from states of zero:
#
#     forward     a_{l+1}^c = σ(N(η Σ_{i,d} W_l^c[i,j] ν[d,c] a_l^d[i]))                  l = 0 .. L - 1     (Eq. 5)
#     feedback    in the last layer, state 0 is unchanged, state 1 is +1 for the class and -1 for all others, the rest 0
#     backward    a_l^c = σ(N(f a_l^c + η Σ_{j,d} V_l^c[j,i] µ[d,c] a_{l+1}^d[j]))        l = L - 1 .. 1     (Eq. 6)
#     synapses    W_l^c <- f̃ W_l^c + η̃ H_l^c,   H_l^c[i,j] = mean_B Σ_{e,d} a_l^e[i] ν̃[e,c] µ̃[c,d] a_{l+1}^d[j]   (Eq. 7)
#
# The paper's rules have no loss and no gradient: the genome combines prediction and label. Extensions of this package are the
# ridge update (`ridge_update`) in place of H; sequential updates, layer by layer, each on the states of the already updated
# synapses below; an η̃ that decays with the age n of the synapses; and averaged synapses for predictions:
#
#     η̃_n = η̃ max(c + (1 - c)/(1 + ρ n), 0.01)                                                          c, ρ: floor, aging
#     S <- w S + (1 - w) W,   w = min(average, n/(n + 1))                                               n: earlier updates
#
# The input layer (state 0 is x, the others 0) is never updated. The paper sums H over the minibatch; the mean only rescales η̃,
# and makes genomes independent of the batch size.
#
# Source: Sandler et al. 2021, Sec. 3 and App. C.

_eps = 1e-5  # added to the variance of a normalisation
_eps_synapse = 1e-9  # added to the squared norm of synapses
_largest = 1e6  # entry of stored synapses under `synapse_norm`
_iterations = 8  # of conjugate gradients in a ridge update
_tiny = 1e-20  # lower bound of α, for inputs that are all zero
_small = 1e-6  # added to squared errors, which may be zero
_least = 0.01  # lower bound of the decay: a meta-trained floor may be below 0, which fits the updates of meta-training only


class Synapse(NamedTuple):
    """The synapses between two layers.

    W: [c, n_in + 1, n_out] forward, with the bias; c is k, or 1 if all states share a matrix.
    V: [c, n_out, n_in] backward: Wᵀ without the bias, a value of its own, so that runs are equal to the last bit.
    S: [c, n_in + 1, n_out] averaged W for predictions; None without averages.
    n: number of earlier updates; None if unused.
    """

    W: Float[Any, "*batch c n_in1 n_out"]
    V: Float[Any, "*batch c n_out n_in"]
    S: Any = None
    n: Any = None


Synapses = tuple[Synapse, ...]
States = list[Array]  # of layers 0 .. L, each [k, B, n_l]


def init_synapses(key: Array, genome: Genome, rules: Rules, sizes: Sequence[int]) -> Synapses:
    """Random synapses: W ~ N(0, σ²/n_in), in the last ones with σ times sigma_output.

    Biases are N(0, sigma_bias²), 0 in the last synapses.

    Args:
        genome: its standard deviations and dtype are used.
        sizes: n_0 (inputs) .. n_L (outputs).

    Raises:
        ValueError: fewer than two layers, or an empty layer.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"layers of {tuple(sizes)} neurons: use at least an input and an output layer, of one neuron or more")
    channels, dtype = rules.states if rules.multistate else 1, genome.nu.dtype
    synapses = []
    for n_in, n_out, layer_key in zip(sizes[:-1], sizes[1:], jax.random.split(key_of_seed(key), len(sizes) - 1), strict=True):
        W_key = jax.random.split(layer_key)[0]
        last = len(synapses) == len(sizes) - 2
        sigma = genome.sigma * (genome.sigma_output if last else 1.0)
        W = sigma / n_in**0.5 * jax.random.normal(W_key, (channels, n_in, n_out), dtype)
        b = jnp.zeros((channels, 1, n_out), dtype)
        if not last:
            b = genome.sigma_bias * jax.random.normal(jax.random.fold_in(W_key, 1), b.shape, dtype)
        W = jnp.concatenate([W, b], axis=1)
        n = jnp.zeros((), dtype) if rules.aging or rules.average else None
        synapses.append(Synapse(W, transpose_synapses(W), W if rules.average else None, n))
    return tuple(synapses)


def predict(genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"]) -> Float[Array, "B n_out"]:
    """The logits of a learner, with its averaged synapses if it has them. Pure.

    Args:
        x: [B, n_0] inputs; the batch matters if neurons are normalised over it.

    Raises:
        ValueError: shapes of the genome or the inputs that do not match.
    """
    averaged = tuple(synapse._replace(W=synapse.S) for synapse in synapses) if rules.average else synapses
    return forward(genome, rules, averaged, x)[1]


@full_precision
def forward(
    genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"]
) -> tuple[States, Float[Array, "B n_out"]]:
    """The states of all layers after the forward pass (Eq. 5), and the logits."""
    _check_shapes(genome, rules, synapses, x)
    states, z = [x[None]], x[None]
    for n, synapse in enumerate(synapses):
        a, z = _forward_layer(genome, rules, synapse.W, states[-1], n + 1, last=n == len(synapses) - 1)
        states.append(a)
    return states, z[0]


def _forward_layer(genome: Genome, rules: Rules, W: Array, a: Array, layer: int, *, last: bool) -> tuple[Array, Array]:
    """The states and pre-activations of a layer from the layer below."""
    W = _read_synapses(genome, rules, W)
    bias = jnp.sum(genome.nu, axis=0)[:, None, None] * W[:, -1:]  # a neuron with all states 1
    z = genome.eta * (mix_states(genome.nu, a) @ W[:, :-1] + bias)
    if rules.normalise_output if last else rules.normalise in ("forward", "both"):
        z = normalise(z, genome.m_output if last else genome.m, genome.s, whole=rules.over == "mixed" and layer == 1)
    return _activate(rules, rules.output if last else rules.hidden, z), z


def output_states(rules: Rules, a: Float[Array, "k B n"], logits: Float[Array, "B n"], y: Float[Array, "B n"]) -> Array:
    """The last layer before the backward pass: state 1 is the feedback."""
    feedback = {
        "label": lambda: 2 * y - 1,
        "squared_error": lambda: a[1] * (a[0] - y),
        "cross_entropy": lambda: a[1] * (jax.nn.softmax(logits) - y),
    }[rules.feedback]()
    return jnp.concatenate([a[:1], feedback[None], jnp.zeros_like(a[2:])])


@full_precision
def backward(genome: Genome, rules: Rules, synapses: Synapses, states: States) -> States:
    """The states of all layers after the backward pass (Eq. 6), inputs unchanged."""
    after = [states[-1]]
    for layer in reversed(range(1, len(synapses))):
        a, V = states[layer], synapses[layer].V
        u = genome.eta * (mix_states(genome.mu, after[0]) @ _read_synapses(genome, rules, V))
        z = genome.f * (a * u) if rules.backward != "additive" else genome.f * a + u
        if rules.normalise in ("backward", "both"):  # no shift of errors; η̃ scales them
            scale, shift = (1.0, 0.0) if rules.derivative else (genome.m, genome.s)
            z = normalise(z, scale, shift, whole=rules.over == "mixed" and layer == 1)
        z = activation(rules.backward_activation or rules.hidden)(z)
        after.insert(0, jnp.concatenate([a[:1], z[1:]]) if rules.backward == "multiplicative_second_state" else z)
    return [states[0], *after]


@full_precision
def update_synapses(
    genome: Genome, rules: Rules, synapses: Synapses, before: States, after: States, y: Float[Array, "B n"]
) -> Synapses:
    """The synapses after a step (Eq. 7), or after one of the ridge update."""
    channels = slice(None) if rules.multistate else slice(1)
    pre_mix, post_mix = genome.pre[:, channels], genome.post[channels].T
    bias = jnp.sum(pre_mix, axis=0)[:, None, None]  # the mixed state of a neuron with all states 1
    ridge = rules.update == "ridge"

    def change(a: Array, b: Array, *, last: bool) -> Array:
        A, E = mix_states(pre_mix, a), mix_states(post_mix, b)
        A = jnp.concatenate([A, jnp.broadcast_to(bias, (*A.shape[:2], 1))], axis=2)
        if ridge:
            lam, trust = (genome.lam_output, None) if last else (genome.lam, genome.trust)
            return ridge_update(A, E, jnp.abs(lam), trust, iterations=_iterations)
        return jnp.matrix_transpose(A) @ E / A.shape[1]

    new, below = [], before[0]
    for layer, (synapse, b) in enumerate(zip(synapses, after[1:], strict=True)):
        last = layer == len(synapses) - 1
        a = below if rules.pre == "sequential" else after[layer]
        if last and rules.pre == "sequential":
            outputs, z = _forward_layer(genome, rules, synapse.W, below, layer + 1, last=True)
            b = output_states(rules, outputs, z[0], y)
        rate = _rate(genome, rules, synapse, len(synapses) - 1, last=last)
        keep = 1 - jnp.abs(rate * genome.decay) if ridge else genome.f_synapse
        W = keep * synapse.W + rate * change(a, b, last=last)
        if rules.synapse_norm:  # divide a state by a scalar before it overflows (f̃ > 1), which unit synapses do not see
            W = W / lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(W), axis=(1, 2), keepdims=True) / _largest, 1))
        new.append(_age(genome, rules, synapse._replace(W=W, V=transpose_synapses(W))))
        if rules.pre == "sequential" and not last:
            below = _forward_layer(genome, rules, W, below, layer + 1, last=False)[0]
    return tuple(new)


@full_precision
def ridge_update(
    A: Float[Array, "*c B n_in1"],
    E: Float[Array, "*c B n_out"],
    lam: Float[Array, ""],
    trust: Float[Array, ""] | float | None = None,
    *,
    iterations: int,
) -> Float[Array, "*c n_in1 n_out"]:
    """The ridge regression fit of a minibatch, in place of its Hebbian product.

        H = Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α,   α = mean_b |A_b|²,   divided by (|A H|/(√α |E|))^trust

    A are the states before the synapses, with the bias neuron, and E those after them. For large λ this is Hebb's rule,
    `Aᵀ E/(λ √α)`. For λ -> 0 it fits every example, `A H = √α E`; in between, directions shared by many examples are fitted
    first (affine projection, Ozeki & Umeda 1984). With few inputs most of an error lies outside their span, and H is small, for
    which the trust ratio compensates. The B equations of each state c are solved by conjugate gradients.
    """
    gram = A @ jnp.matrix_transpose(A)
    alpha = jnp.trace(gram, axis1=-2, axis2=-1)[..., None, None] / gram.shape[-1] + _tiny
    K, B = gram / alpha, gram.shape[-1]
    fewer = E.shape[-1] > B  # columns: those of the inverse are fewer than those of E
    columns = jnp.broadcast_to(jnp.eye(B, dtype=A.dtype), K.shape) if fewer else E
    solve = lambda K, lam, E: solve_rows(lambda X: X @ K + lam * X, E.T, iterations).T  # noqa: E731  # (K + λ I)⁻¹ E
    solved = jnp.vectorize(solve, signature="(b,b),(),(b,n)->(b,n)")(K, lam, columns)
    fitted = solved @ E if fewer else solved
    H = jnp.matrix_transpose(A) @ fitted * lax.rsqrt(alpha)
    if trust is None:
        return H
    total = functools.partial(jnp.sum, axis=(-2, -1), keepdims=True)
    share = (total((K @ fitted) ** 2) + _small) / (total(E**2) + _small)  # φ², since A H = √α K (K + λ I)⁻¹ E
    return H * share ** (-trust / 2)


def _rate(genome: Genome, rules: Rules, synapse: Synapse, hidden_layers: int, *, last: bool) -> Array:
    """η̃ of the synapses to one layer."""
    rate = genome.eta_synapse
    if rules.update == "ridge":
        width = synapse.W.shape[-1]
        deep = 1 + jnp.abs(genome.depth) * ((hidden_layers - 1) * width**0.5)  # unless it is the only hidden layer
        rate = rate * (genome.eta_output if last else width**-genome.width / deep)
    if rules.aging:
        floor = genome.floor_output if last else genome.floor
        rate = rate * jnp.maximum(floor + (1 - floor) / (1 + jnp.abs(genome.aging) * synapse.n), _least)
    return rate


def _age(genome: Genome, rules: Rules, synapse: Synapse) -> Synapse:
    """The synapse one update older, with W in its average."""
    if rules.average:
        w = jnp.minimum(jnp.clip(genome.average, 0.0, 1.0), synapse.n / (synapse.n + 1))
        synapse = synapse._replace(S=w * synapse.S + (1 - w) * synapse.W)
    return synapse if synapse.n is None else synapse._replace(n=synapse.n + 1)


def learn(
    genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"], y: Float[Array, "B n_out"]
) -> tuple[Synapses, Float[Array, "B n_out"]]:
    """One full step on a minibatch: new synapses and old logits. Pure.

    Args:
        x: [B, n_0] inputs.
        y: [B, n_L] targets, one-hot (or 0 and 1 for a single output).

    Raises:
        ValueError: shapes that do not match.

    Example:
        >>> rules, genome = Rules(states=2), backprop_genome(2)
        >>> synapses = init_synapses(jax.random.key(0), genome, rules, (3, 5, 2))
        >>> learn(genome, rules, synapses, jnp.ones((4, 3), "f4"), jnp.ones((4, 2), "f4"))[1].shape
        (4, 2)
    """
    before, logits = forward(genome, rules, synapses, x)
    if y.shape != logits.shape:
        raise ValueError(f"targets {y.shape} and outputs {logits.shape}: give one row per example and one entry per output")
    before = [*before[:-1], output_states(rules, before[-1], logits, y)]
    after = backward(genome, rules, synapses, before)
    return update_synapses(genome, rules, synapses, before, after, y), logits


def _read_synapses(genome: Genome, rules: Rules, W: Array) -> Array:
    """`W[i,j] / (Σ_i' W[i',j]² + 1e-9)^½`, or W (Sandler et al. 2021, App. C.6)."""
    return genome.rescale * (W * lax.rsqrt(jnp.sum(W**2, axis=1, keepdims=True) + _eps_synapse)) if rules.synapse_norm else W


def _activate(rules: Rules, name: str, z: Array) -> Array:
    if name == "softmax":
        return jax.nn.softmax(z)
    sigma = activation(name)
    if not rules.derivative:
        return sigma(z)
    slope = jax.jvp(sigma, (z[1:2],), (jnp.ones_like(z[1:2]),))[1]
    return jnp.concatenate([sigma(z[:1]), slope, sigma(z[2:])])


def _check_shapes(genome: Genome, rules: Rules, synapses: Synapses, x: Array) -> None:
    if genome.nu.shape != (rules.states,) * 2:
        raise ValueError(f"a genome of {genome.nu.shape[-1]} states, and rules of {rules.states}: use the same number")
    if x.ndim != 2 or x.shape[1] + 1 != synapses[0].W.shape[-2]:
        raise ValueError(f"inputs {x.shape}: wanted [batch, {synapses[0].W.shape[-2] - 1}], the inputs of the first synapses")


def normalise(z: Float[Array, "k B n"], m: Any, s: Any, *, whole: bool = False) -> Float[Array, "k B n"]:
    """`m (z - mean z) / std z + s` over minibatch or layer."""
    axes = (1, 2) if whole else 1
    centred = z - z.mean(axis=axes, keepdims=True)
    return m * centred * lax.rsqrt(jnp.mean(centred**2, axis=axes, keepdims=True) + _eps) + s


@full_precision
def mix_states(matrix: Float[Array, "d c"], a: Float[Array, "e B n"]) -> Float[Array, "c B n"]:
    """`Σ_d matrix[d,c] a^d` for every neuron; missing states are 0."""
    return (matrix[: len(a)].T @ a.reshape(len(a), -1)).reshape(-1, *a.shape[1:])


def transpose_synapses(W: Float[Array, "c n_in1 n_out"]) -> Float[Array, "c n_out n_in"]:
    """V: Wᵀ without the bias."""
    return jnp.matrix_transpose(W[:, :-1])

"""Counted, solved or constructed initialisations of a transformer.

    embedding   E = word vectors of counts
    bigram      D = log p(w_t+1 | w_t), the direct connection
    output      the output weights solved on the features of the random layers
    induction   two layers that copy what followed the last token before: the logits are  g Σ_s α_ts E_O[w_s],
                α_ts ∝ exp(b [w_{s-1} = w_t])  over s <= t

The other weights stay as they are. A start takes the variables of a `Transformer` and returns new ones.
Source: for the induction heads Olsson et al. 2022; for the solved output layer, Böhning 1992.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from jexplicit.nn.sequences import window_order
from jexplicit.nn.transformer import Transformer
from jexplicit.solvers.sweeps import curvature_bound_sweeps

_solved_on = 1 << 14  # positions of the training text
_sweeps, _ridge = 30, 1e-3
_previous, _match = 40.0, 16.0  # scores of the token before, and of a match, above those of others
_gain = 4.0  # logit of a token that followed every time


def embedding_start(variables: dict[str, Any], V: Float[np.ndarray, "N r"]) -> dict[str, Any]:
    """Embeddings from word vectors of r <= d dimensions, scaled as random ones.

    Raises:
        ValueError: vectors of more dimensions than the network's width.
    """
    E = np.asarray(variables["params"]["embedding"]["embedding"])
    r = V.shape[1]
    if len(V) != len(E) or r > E.shape[1]:
        raise ValueError(f"word vectors {V.shape} for embeddings {E.shape}: give one of at most {E.shape[1]} for each token")
    scaled = V * (E[:, :r].std() / max(float(V.std()), 1e-30))
    return _with(variables, embedding={"embedding": jnp.asarray(np.concatenate([scaled, E[:, r:]], axis=1), E.dtype)})


def bigram_start(variables: dict[str, Any], log_p: Float[np.ndarray, "N N"]) -> dict[str, Any]:
    """The direct connection from tokens as the table of a bigram model.

    Raises:
        ValueError: a network without that connection, or a table of another shape.
    """
    D = variables["params"].get("direct")
    if D is None or D.shape != log_p.shape:
        raise ValueError(f"a table {log_p.shape} for a direct connection {None if D is None else D.shape}: use direct=True")
    return _with(variables, direct=jnp.asarray(log_p, D.dtype))


def output_start(
    network: Transformer, variables: dict[str, Any], stream: Integer[np.ndarray, " L"], *, seed: int = 0
) -> dict[str, Any]:
    """The best output weights for the features of random layers, by sweeps.

    Args:
        network: whose output weights are not the embeddings.
        stream: the training text; some thousand of its positions are solved on.

    Raises:
        ValueError: a network whose output weights are its embeddings.
    """
    if "output" not in variables["params"]:
        raise ValueError("output weights that are the embeddings: use tied=False")
    W = network.window
    some = min(max(1, _solved_on // W), (len(stream) - 1) // W - 1)
    tokens = np.asarray(stream)[window_order(len(stream), W, some)(seed, 1)[:, None] + np.arange(W + 1)].astype(np.int32)
    _, seen = network.apply(variables, tokens[:, :-1], mutable=["intermediates"])
    H = jnp.asarray(seen["intermediates"]["features"][0]).reshape(-1, network.width)
    Y = jax.nn.one_hot(tokens[:, 1:].reshape(-1), network.vocab_size, dtype=H.dtype)
    kernel = variables["params"]["output"]["kernel"]
    U = curvature_bound_sweeps(H, Y, sweeps=_sweeps, ridge=_ridge).U
    return _with(variables, output={"kernel": U.astype(kernel.dtype)})


def induction_start(network: Transformer, variables: dict[str, Any], *, seed: int = 0) -> dict[str, Any]:
    """An induction circuit: a previous-token head, and a head that copies.

    The embeddings, the positions and the output weights span three of four spaces of m dimensions: the token, its place, and
    what is copied; the fourth has the token before. The tokens' directions are orthogonal where N <= m, and else random. All
    other branches of both layers start at 0.

    Args:
        network: of two layers or more, with learned positions and output weights of their own.

    Raises:
        ValueError: another network, one of fewer than 16 dimensions, or with fewer than 4 in a head.
    """
    d, H, N = network.width, network.heads, network.vocab_size
    h, rng, params = d // H, np.random.default_rng(seed), variables["params"]
    if network.layers < 2 or network.positions != "learned" or network.tied or d < 16 or h < 4:
        raise ValueError(
            f"induction heads in {network.layers} layers, {d} wide, {H} heads, positions {network.positions!r}, tied "
            f"{network.tied}: use two layers or more, 16 wide or more, at most {max(1, d // 4)} heads, positions='learned' and "
            "tied=False"
        )
    m = min(h, (d - 1) // 4) // 2 * 2
    token, place, before, copied = _spaces(d, m, rng)
    A = np.eye(N, m) if N <= m else rng.normal(size=(N, m))
    A = A / np.linalg.norm(A, axis=1, keepdims=True)
    phases = np.pi * (np.arange(1, m // 2 + 1) * (5**0.5 - 1) / 2 % 1)  # spread over (0, π), so that no two places look alike
    t = np.arange(network.window)[:, None] * phases[None]
    P = np.concatenate([np.cos(t), np.sin(t)], axis=1) / (m // 2) ** 0.5  # φ(t) of length 1
    cos, sin = np.diag(np.cos(phases)), np.diag(np.sin(phases))
    back = np.block([[cos, -sin], [sin, cos]])  # φ(t) @ back = φ(t - 1)
    one = _layer(params["layer_1"], H, (place @ back, place, token, before), _previous, unit=(2 / d) ** 0.5)
    two = _layer(params["layer_2"], H, (token, before, token, copied), _match, unit=(3 / d) ** 0.5)
    starts = {"layer_1": one, "layer_2": two, "output": {"kernel": copied @ A.T * (_gain * 2 / d**0.5)}}
    starts |= {"embedding": {"embedding": A @ token.T}, "positions": P @ place.T}
    like = {name: params[name] for name in starts}
    return _with(variables, **jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), starts, like))


def _spaces(d: int, m: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Four orthogonal spaces [d, m], orthogonal to the vector of ones."""
    Q, _ = np.linalg.qr(np.concatenate([np.ones((d, 1)), rng.normal(size=(d, 4 * m))], axis=1))
    return np.split(Q[:, 1:], 4, axis=1)


def _layer(layer: dict[str, Any], H: int, spaces: Any, score: float, unit: float) -> dict[str, Any]:
    """A layer with one copying head; its other branches are 0.

    H: heads. spaces: [d, m] of query, key, value and output.
    score: of a key equal to the query, above one that is orthogonal. unit: what is 1 before LayerNorm divides it, after it.
    """
    query, key, value, out = spaces
    (d, m), h = query.shape, len(query) // H
    qkv = np.array(layer["qkv"]["kernel"]).reshape(d, 3, H, h)
    qkv[:, :, 0] = 0
    strength = (score * h**0.5) ** 0.5
    for n, weights in enumerate((strength * query, strength * key, value)):
        qkv[:, n, 0, :m] = unit * weights
    attention = np.concatenate([out.T, np.zeros((d - m, d))])
    output = np.zeros_like(layer["output"]["kernel"])
    kernels = {"qkv": qkv.reshape(d, 3 * d), "attention": attention, "output": output}
    return layer | {name: {"kernel": kernel} for name, kernel in kernels.items()}


def _with(variables: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {**variables, "params": {**variables["params"], **params}}

"""Another model of the same tokens as one more input of the mix.

    log-odds = w_1 a + w_2 z + w_3,        z = log of the other model's mass at the right of a node, less that at its left

for each decision, with a the counted model's log-odds and weights w of the depth of the node in the tree. Each decision is a
probability, so that the whole is normalised as the counted model is.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from jexplicit.data.contexts import PAD, check_stream, check_token_ids
from jexplicit.lm.counted.mixing import MOST, log_likelihoods, newton
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.counted.reading import CountedState, begin, expect, pass_gates, read_decisions

_deepest = 12  # depths with weights of their own
_ridge = 20.0  # of the weights of a depth, to those of all decisions
_cells = 1 << 24  # places times tokens at once


class Combination(NamedTuple):
    """A counted model with another model in its mix; `combine` makes it.

    model: counted.
    other: of the same tokens.
    weights: [depths, 3] of the log-odds of both, and of 1.
    """

    model: CountedModel
    other: Any
    weights: Float32[np.ndarray, "depths 3"]

    eos = property(lambda self: self.model.eos)
    vocab_size = property(lambda self: self.model.vocab_size)
    radius = property(lambda self: self.model.radius)
    history = property(lambda self: self.model.history)
    names = property(lambda self: (*self.model.names, "other model"))
    nbytes = property(lambda self: self.model.nbytes + self.other.nbytes + self.weights.nbytes)
    scalars = property(lambda self: self.model.scalars + self.weights.size)

    def __repr__(self) -> str:
        return f"Combination({self.model!r}, {self.other!r})"


class CombinationState(NamedTuple):
    """What both models have read: the counted one's state, and all tokens."""

    own: CountedState
    tokens: Int[np.ndarray, " n"]


@functools.singledispatch
def distributions(other: Any, stream: np.ndarray, places: np.ndarray) -> Float[np.ndarray, "P N"]:
    """`log p` of all tokens at some places of a stream, under any model."""
    raise ValueError(f"a {type(other).__name__} combined with a count-based model: give a language model of the same tokens")


def combine(model: CountedModel, other: Any, stream: Integer[np.ndarray, " L"]) -> Combination:
    """Fit the weights of two models on a text that neither has counted.

    Args:
        model: counted.
        other: any language model of the same tokens: a network, n-grams, another counted model.
        stream: [L] tokens, `<pad> d_1 <pad> ... d_n <pad>`.

    Raises:
        ValueError: models of other tokens, a malformed stream, or a text without any token.
    """
    if not isinstance(model, CountedModel) or not hasattr(other, "vocab_size"):
        kinds = f"{type(model).__name__} and {type(other).__name__}"
        raise ValueError(f"{kinds}: give a model of context mixing and any language model, the `model` of each TextModel")
    if other.vocab_size != model.vocab_size:
        raise ValueError(f"a model of {other.vocab_size} tokens with one of {model.vocab_size}: they need the same tokenizer")
    check_stream(stream)
    check_token_ids(stream, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    stream = stream.astype(np.int32)
    place, d, a, _ = read_decisions(model, begin(model), stream[1:])
    if not len(a):
        raise ValueError("no token in the text that weights are fitted on: give some text")
    X = _inputs(a, _log_odds(model, other, stream, place + 1, d.node))
    depth = np.minimum(model.tree.depths[d.node], _deepest)
    shared = newton(X, d.bit, np.array([1.0, 0.0, 0.0]), 1.0)
    weights = np.tile(shared, (_deepest + 1, 1))
    for of in np.unique(depth):
        weights[of] = newton(X[depth == of], d.bit[depth == of], shared, _ridge)
    return Combination(model, other, weights.astype(np.float32))


def begin_combined(model: Combination) -> CombinationState:
    """The state before a text."""
    return CombinationState(begin(model.model), np.array([PAD], np.int32))


def read_combined(model: Combination, state: CombinationState, tokens: Integer[np.ndarray, " n"]):
    """`log p` of each coming token, and the state after them."""
    stream = np.concatenate([state.tokens, np.asarray(tokens, np.int32)])
    place, d, a, own = read_decisions(model.model, state.own, stream[len(state.tokens) :])
    z = _log_odds(model.model, model.other, stream, place + len(state.tokens), d.node)
    nats = log_likelihoods(d.bit, _mix(model, a, z, d.node))
    return np.bincount(place, nats, len(tokens)).astype(float), CombinationState(own, stream)


def predict_combined(model: Combination, state: CombinationState) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one."""
    nodes, stream = np.arange(model.vocab_size - 1), np.append(state.tokens, np.int32(PAD))
    ahead = expect(model.model, state.own)[1]
    a = pass_gates(model.model, state.own.gates, ahead)[0][-len(nodes) :]
    z = _log_odds(model.model, model.other, stream, np.full(len(nodes), len(stream) - 1), nodes)
    return model.model.tree.log_probabilities(_mix(model, a, z, nodes))


def mass_log_odds(
    model: CountedModel, log_p: Float[np.ndarray, "P N"], row: Int[np.ndarray, " B"], node: Integer[np.ndarray, " B"]
) -> Float[np.ndarray, " B"]:
    """The log-odds of 1 at a node: masses of right and left leaves.

    Args:
        model: whose tree is used.
        log_p: [P, N] distributions.
        row: [B] of each decision.
        node: [B].
    """
    order, spans = model.tree.leaves()
    mass = np.concatenate([np.zeros((len(log_p), 1)), np.cumsum(np.exp(log_p.astype(np.float64))[:, order], axis=1)], axis=1)
    first, middle, last = (mass[row, spans[node, n]] for n in range(3))
    left, right = np.maximum(middle - first, 1e-15), np.maximum(last - middle, 1e-15)
    return np.clip(np.log(right) - np.log(left), -MOST, MOST)


def _log_odds(model: CountedModel, other: Any, stream: np.ndarray, place: np.ndarray, node: np.ndarray) -> np.ndarray:
    """[B] the other model's log-odds of decisions, in the order of their places."""
    places, row = np.unique(place, return_inverse=True)
    found, size = np.zeros(len(place)), max(1, _cells // model.vocab_size)
    for first in range(0, len(places), size):
        some = (row >= first) & (row < first + size)
        log_p = distributions(other, stream, places[first : first + size])
        found[some] = mass_log_odds(model, log_p, row[some] - first, node[some])
    return found


def _inputs(a: np.ndarray, z: np.ndarray) -> Float32[np.ndarray, "B 3"]:
    return np.stack([a, z, np.ones(len(a))], axis=1).astype(np.float32)


def _mix(model: Combination, a: np.ndarray, z: np.ndarray, node: np.ndarray) -> Float32[np.ndarray, " B"]:
    depth = np.minimum(model.model.tree.depths[node], _deepest)
    return np.einsum("bf,bf->b", _inputs(a, z), model.weights[depth])

"""Reading a text token by token, each token once.

A decision is evaluated once. Of the text before it a state keeps what evidence still asks for: the tokens that columns can see,
back to the start of the document where histories end there, and the log-odds that each of its decisions was measured against in
every part, if these count the text.

Another model of the same tokens is one more input of the mix (`combine`):

    log-odds = w_1 a + w_2 z + w_3,        z = log of the other model's mass at the right of a node, less that at its left

for each decision, with a the counted model's log-odds and weights w of the depth of the node in the tree. Each decision is a
probability, so that the whole is normalised as the counted model is.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from jexplicit.data.contexts import PAD, check_stream, check_token_ids
from jexplicit.lm.core.model import LanguageModel, draw_sample
from jexplicit.lm.counted.columns import Context, Spelling
from jexplicit.lm.counted.evidence import KINDS, MOST, Cells, Decisions, Statistics, add, decisions, pass_over, weigh
from jexplicit.lm.counted.layer import Described, Layer
from jexplicit.lm.counted.mixing import BLOCK, NO_BLOCKS, Gate, blocks_of, log_likelihoods, newton, read_gate
from jexplicit.lm.counted.model import (
    BIAS,
    CountedModel,
    Part,
    counts_as_known,
    ends_with_documents,
    facts_of,
    sets_of,
    text_of,
    view_of,
)
from jexplicit.lm.counted.tree import Tree

_piece = 1 << 18  # tokens that are read at once


class CountedState(NamedTuple):
    """What a counted model has read.

    tokens: [n] those that columns can see, from a `<pad>` on.
    base: [parts, B] the log-odds that the decisions of these tokens were measured against; no parts if they are not counted.
    gates: which move in an adaptive model.
    done: decisions that these have learned from, whole blocks; in a static model all of them.
    """

    tokens: Int[np.ndarray, " n"]
    base: Float32[np.ndarray, "parts B"]
    gates: tuple[Gate, ...]
    done: int


class Ahead(NamedTuple):
    """The evidence of decisions after a state.

    d: the decisions from `state.done` on.
    X: [F, B] their evidence.
    sets: [B] of each gate.
    base: [parts, B'] of all decisions that are kept, the old ones first.
    log_odds: [B] of the decisions.
    gates: after they have learned from them.
    """

    d: Decisions
    X: np.ndarray
    sets: tuple[np.ndarray, ...]
    base: np.ndarray
    log_odds: np.ndarray
    gates: tuple[Gate, ...]


def within_documents(model: CountedModel) -> CountedModel:
    """A model that treats each document as if there were no other."""
    if ends_with_documents(model.history):
        return model
    return model._replace(history="document" if model.history == "all" else f"{model.history}:document")


def begin(model: CountedModel) -> CountedState:
    """The state before a text, at the start of its first document."""
    base = np.zeros((0 if model.history == "none" else len(model.parts), 0), np.float32)
    return CountedState(np.array([PAD], np.int32), base, tuple(gate for _, gate in model.gates), 0)


def is_state_of(model: CountedModel, state: CountedState) -> bool:
    """Whether a state has a model's shape and directions, which never move."""
    own = begin(model)
    pairs = zip(own.gates, state.gates, strict=False)
    alike = [gate.D.shape == other.D.shape and np.array_equal(gate.U, other.U) for gate, other in pairs]
    return len(own.gates) == len(state.gates) and len(own.base) == len(state.base) and all(alike)


def decisions_at(tree: Tree, ids: Integer[np.ndarray, " L"], places: Integer[np.ndarray, " P"]) -> Decisions:
    """The decisions of the tokens at some places, in their order.

    Example:
        >>> from jexplicit.lm.counted.tree import as_tree
        >>> decisions_at(as_tree({3: (0, 4), 4: (1, 2)}, 3, 3), np.array([0, 1, 2, 0]), np.array([2])).bit.tolist()
        [1, 1]
    """
    d = decisions(np.append(PAD, ids[places]).astype(np.int32), tree, eos=True)
    return d._replace(place=places[d.place - 1].astype(np.int32), places=places)


def decisions_of_nodes(model: CountedModel, places: Int[np.ndarray, " P"]) -> Decisions:
    """The decisions at all nodes at each of some places, whatever they will be."""
    nodes = model.vocab_size - 1
    B = len(places) * nodes
    zeros = np.zeros(B, np.uint8)
    node, place = np.tile(np.arange(nodes, dtype=np.int32), len(places)), np.repeat(places.astype(np.int32), nodes)
    return Decisions(place, zeros, node, zeros.astype(np.int8), np.arange(0, B + 1, nodes), places)


def predicted_places(model: Any, ids: np.ndarray, start: int = 1) -> Int[np.ndarray, " P"]:
    """The places of a stream from `start` on whose tokens are predicted."""
    return np.arange(start, len(ids)) if model.eos else np.flatnonzero(ids[start:] != PAD) + start


def look_ahead(
    model: CountedModel, state: CountedState, ids: Integer[np.ndarray, " L"], new: Decisions, *, learn: bool = False
) -> Ahead:
    """The evidence of decisions that come after a state.

    Args:
        model: that reads.
        state: of the text before.
        ids: [L] the tokens of the state and the new ones.
        new: the new decisions.
        learn: whether gates learn from the decisions.
    """
    text = text_of(ids, model.spelling, model.history)
    old = decisions_at(model.tree, ids, predicted_places(model, state.tokens)) if len(state.base) or state.done else None
    d = new if old is None else _after(old, new)
    first = min(state.done, len(d.bit)) if old is not None else 0
    later = d._replace(place=d.place[first:], block=d.block[first:], node=d.node[first:], bit=d.bit[first:])
    b, known, base = np.zeros(len(later.bit), np.float32), np.zeros(len(later.bit), np.uint8), []
    X = np.full((len(model.weights), len(b)), BIAS, np.float32)
    starts, sets, gates = np.zeros(len(ids), int), [], list(state.gates)
    blocks, wanted = complete(model, state, later) if learn else NO_BLOCKS, np.array([[first, len(d.bit)]])
    for k, part in enumerate(model.parts):
        own = model.history != "none"  # it counts the text that is read
        if own:
            base.append(np.concatenate([state.base[len(base), :first], b]))
        view = view_of(part.context, model.history, text, starts)
        past = pass_over(
            part.context(text), d if own else later, base[-1] if own else b, view,
            least=model.least, wanted=wanted if own else None, table=part.table, before=part.cells,
        )  # fmt: skip
        add(b := b.copy(), past.x, part.step)
        F = KINDS * (k + 1)
        X[F - KINDS : F] = past.x
        known += counts_as_known(part.context) & past.known
        last = k + 1 == len(model.parts)
        if last and model.layer:
            X[-2] = model.layer.evidence(text, later)
            b = weigh(model.weights[-2:-1], X[-2:-1], b)
        F = len(X) if last else F
        if stage := [n for n, gate in enumerate(gates) if len(gate.U) == F]:
            facts = facts_of(text, later, known, model.tree, slice(None))
            for n in stage:
                sets.append(sets_of(model.gates[n][0], facts)[0])
                b, gates[n] = read_gate(gates[n], X[:F], b, sets[n], later.bit, blocks)
    kept = np.array(base, np.float32).reshape(len(base), len(d.bit) if base else 0)
    return Ahead(later, X, tuple(sets), kept, b, tuple(gates))


def complete(model: CountedModel, state: CountedState, d: Decisions) -> Int[np.ndarray, " n"]:
    """The blocks of decisions ahead that are whole, for learning gates."""
    if not model.moving:
        return NO_BLOCKS
    blocks = blocks_of(d.place, state.done)
    return blocks[: np.searchsorted(blocks, (state.done + len(blocks)) // BLOCK)]


def read(
    model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], CountedState]:
    """`log p` of each coming token given all before, and the state.

    Raises:
        ValueError: a token id that the model does not have.
    """
    tokens = np.asarray(tokens).reshape(-1)
    check_token_ids(tokens, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    where, d, a, state = read_decisions(model, state, tokens)
    return np.bincount(where, log_likelihoods(d.bit, a), len(tokens)).astype(float), state


def predict(model: CountedModel, state: CountedState) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one, in nats."""
    return expect(model, state)[0]


def expect(model: CountedModel, state: CountedState) -> tuple[Float[np.ndarray, " N"], Ahead]:
    """The same, and the evidence at all nodes, for `accept`."""
    ids = np.append(state.tokens, np.int32(PAD))
    ahead = look_ahead(model, state, ids, decisions_of_nodes(model, np.array([len(ids) - 1])))
    return model.tree.log_probabilities(ahead.log_odds[1 - model.vocab_size :]), ahead


def accept(model: CountedModel, state: CountedState, ahead: Ahead, token: int) -> CountedState:
    """The state after a predicted token, from the findings of `expect`."""
    if token == PAD and not model.eos:  # no decision leads to it
        return read(model, state, np.array([PAD]))[1]
    nodes, length = model.vocab_size - 1, model.tree.length[token]
    old, kept = len(ahead.d.bit) - nodes, ahead.base.shape[1] - nodes
    path, bit = model.tree.node[token, :length], model.tree.bit[token, :length]
    some = np.append(np.arange(old), old + path)
    d = ahead.d._replace(place=ahead.d.place[some], block=ahead.d.block[some], node=ahead.d.node[some])
    d = d._replace(bit=np.append(ahead.d.bit[:old], bit))
    base = np.concatenate([ahead.base[:, :kept], ahead.base[:, kept + path]], axis=1) if len(ahead.base) else ahead.base
    X, a, done = ahead.X[:, some], np.zeros(len(some), np.float32), 0
    gates, learn = list(state.gates), complete(model, state, d)
    for n, gate in enumerate(gates if len(learn) else []):
        F = len(gate.U)
        a = weigh(model.weights[done:F], X[done:F], a)
        a, gates[n] = read_gate(gate, X[:F], a, ahead.sets[n][some], d.bit, learn)
        done = F
    ahead = ahead._replace(d=d, base=base, gates=tuple(gates))
    return _go_on(model, state, ahead, np.append(state.tokens, np.int32(token)))


def predict_alone(
    model: CountedModel, ids: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "P N"]:
    """The same at some places, for a model of the training text."""
    ahead = look_ahead(model, begin(model), ids, decisions_of_nodes(model, places))
    return model.tree.log_probabilities(ahead.log_odds.reshape(len(places), model.vocab_size - 1))


def read_decisions(model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"]):
    """The decisions of coming tokens with log-odds, and the state after."""
    found, first = [], 0
    for piece in _pieces(model, np.asarray(tokens, np.int32)):
        ids = np.concatenate([state.tokens, piece])
        new = decisions_at(model.tree, ids, predicted_places(model, ids, len(state.tokens)))
        where, a = new.place - np.int32(len(state.tokens) - first), np.zeros(0, np.float32)
        if len(new.bit):
            ahead = look_ahead(model, state, ids, new, learn=True)
            a, state = ahead.log_odds[len(ahead.log_odds) - len(new.bit) :], _go_on(model, state, ahead, ids)
        else:
            state = _forget(model, state._replace(tokens=ids))
        found.append((where, new, a))
        first += len(piece)
    if not found:
        none = decisions_at(model.tree, state.tokens, np.zeros(0, int))
        return none.place, none, np.zeros(0, np.float32), state
    where, d, a = zip(*found, strict=True)
    return np.concatenate(where), functools.reduce(_after, d), np.concatenate(a), state


def _go_on(model: CountedModel, state: CountedState, ahead: Ahead, ids: np.ndarray) -> CountedState:
    """The state after the decisions ahead, from which gates have learned."""
    done = state.done + len(complete(model, state, ahead.d)) if model.moving else ahead.base.shape[1]
    return _forget(model, CountedState(ids, ahead.base, ahead.gates, done))


def _forget(model: CountedModel, state: CountedState) -> CountedState:
    """The state without the documents that are not seen any more."""
    last = int(np.flatnonzero(state.tokens == PAD)[-1])
    if not last or not ends_with_documents(model.history):
        return state
    if model.history.startswith("adaptive"):
        return begin(model)  # the text ends here, see _pieces
    kept = decisions_at(model.tree, state.tokens, predicted_places(model, state.tokens, last + 1))
    base = state.base[:, state.base.shape[1] - len(kept.bit) :] if len(state.base) else state.base
    return state._replace(tokens=state.tokens[last:], base=base, done=base.shape[1])


def _pieces(model: CountedModel, tokens: np.ndarray) -> list[np.ndarray]:
    """Tokens to read at once: a limit, and one document if needed."""
    cuts = np.arange(_piece, len(tokens), _piece)
    if model.history == "adaptive:document":
        cuts = np.union1d(cuts, np.flatnonzero(tokens == PAD) + 1)
    return [piece for piece in np.split(tokens, cuts) if len(piece)]


def _after(a: Decisions, b: Decisions) -> Decisions:
    place, block = np.concatenate([a.place, b.place]), np.concatenate([a.block, b.block])
    node, bit = np.concatenate([a.node, b.node.astype(a.node.dtype)]), np.concatenate([a.bit, b.bit])
    first, places = np.append(a.first, b.first[1:] + len(a.bit)), np.concatenate([a.places, b.places])
    return Decisions(place, block, node, bit, first, places)


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
    a = ahead.log_odds[-len(nodes) :]
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


if TYPE_CHECKING:
    AnyModel = Any  # the fields of a LanguageModel are known to no checker
else:
    AnyModel = LanguageModel | CountedModel | Combination
Counted = (CountedModel, Combination)
_reported = 1 << 16  # tokens between two reports of progress
_decisions = 1 << 18  # at once, where all nodes are asked for

Progress = Callable[[int, int], object]


def begin_any(model: CountedModel | Combination) -> CountedState | CombinationState:
    """The state before a text."""
    return begin_combined(model) if isinstance(model, Combination) else begin(model)


def read_any(model: CountedModel | Combination, state: Any, tokens: Integer[np.ndarray, " n"]) -> tuple[np.ndarray, Any]:
    """`log p` of each coming token, and the state after them."""
    return read_combined(model, state, tokens) if isinstance(model, Combination) else read(model, state, tokens)


def predict_any(model: CountedModel | Combination, state: Any) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one."""
    return predict_combined(model, state) if isinstance(model, Combination) else predict(model, state)


def is_alone(model: object) -> TypeGuard[CountedModel]:
    """Whether a model uses the training text and the document's contexts alone."""
    return isinstance(model, CountedModel) and model.history == "none"


def score_stream(
    model: CountedModel | Combination,
    stream: Integer[np.ndarray, " L"],
    *,
    separate: bool = False,
    progress: Progress | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p` of every prediction of a stream, in nats (`jexplicit.score`)."""
    if separate and isinstance(model, Combination):
        pads = np.flatnonzero(stream == PAD)
        parts = zip(pads[:-1], pads[1:] + 1, strict=True)
        return np.concatenate([score_stream(model, stream[first:end]) for first, end in parts])
    model = within_documents(model) if separate and isinstance(model, CountedModel) else model
    log_p = np.concatenate([*_read_pieces(model, _checked(model, stream), progress)])
    return log_p[predicted_places(model, stream) - 1]


def losses_of(
    model: CountedModel | Combination,
    stream: Integer[np.ndarray, " L"],
    *,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Float[np.ndarray, " M"]:
    """`-log p` of the predictions of a stream, a sample, or the first ones.
    """  # fmt: skip
    stream = _checked(model, stream)
    places = predicted_places(model, stream)
    if not len(places):
        raise ValueError("no position to predict: the text has no tokens")
    if sample is None or sample >= len(places):
        return -score_stream(model, stream, progress=progress)
    if is_alone(model):
        return -_at_places(model, stream, places[draw_sample(len(places), sample, seed)])
    read_to = places[sample]
    return -np.concatenate([*_read_pieces(model, stream[:read_to], progress)])[places[:sample] - 1]


def distributions_at(
    model: CountedModel | Combination,
    stream: Integer[np.ndarray, " L"],
    places: Int[np.ndarray, " P"],
    *,
    separate: bool = False,
) -> Float[np.ndarray, "P N"]:
    """`log p(. | the text before)` at some ascending places of a stream."""
    model = within_documents(model) if separate and isinstance(model, CountedModel) else model
    stream = stream.astype(np.int32)
    if not len(places):
        return np.zeros((0, model.vocab_size))
    if is_alone(model):
        cuts = np.arange(0, len(places), max(1, _decisions // model.vocab_size))[1:]
        return np.concatenate(
            [predict_alone(model, np.append(stream[: some[-1]], PAD), some) for some in np.split(places, cuts)]
        )
    return np.stack([predict_any(model, state) for state in states_at(model, stream, places)])


def states_at(
    model: CountedModel | Combination, stream: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]
) -> Iterator[Any]:
    """The state before each of some ascending places of a stream."""
    state, at = begin_any(model), 1
    for place in places:
        state, at = read_any(model, state, stream[at:place])[1], int(place)
        yield state


def _at_places(model: CountedModel, stream: np.ndarray, places: np.ndarray) -> np.ndarray:
    """`log p` of the tokens at some places, of a model that is alone."""
    found = []
    for some in np.split(places, np.arange(_reported, len(places), _reported)):
        ahead = look_ahead(model, begin(model), stream, decisions_at(model.tree, stream, some))
        log_p = np.zeros(len(stream))
        np.add.at(log_p, ahead.d.place, log_likelihoods(ahead.d.bit, ahead.log_odds))
        found.append(log_p[some])
    return np.concatenate(found)


def _read_pieces(model: CountedModel | Combination, stream: np.ndarray, progress: Progress | None) -> Iterator[np.ndarray]:
    state, piece = begin_any(model), _reported if progress else len(stream)
    for at in range(1, max(len(stream), 2), piece):
        log_p, state = read_any(model, state, stream[at : at + piece])
        yield log_p
        if progress:
            progress(min(at + piece, len(stream)) - 1, len(stream) - 1)


def _checked(model: CountedModel | Combination, stream: np.ndarray) -> np.ndarray:
    check_stream(stream)
    check_token_ids(stream, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    return stream.astype(np.int32)


distributions.register(CountedModel)(distributions_at)
distributions.register(Combination)(distributions_at)


COUNTED = (CountedModel, Part, Tree, Spelling, Cells, Statistics, Gate, Described, Layer, CountedState)


def text_of_context(context: Context, name: str = "a context") -> dict[str, Any]:
    """A context as plain values.

    Raises:
        ValueError: a column that is a function, which no file can hold.

    Example:
        >>> text_of_context(Context("part", 2))
        {'columns': ['part', 2], 'window': None}
    """
    for column in context.columns:
        if not isinstance(column, int | str):
            remedy = "give it a name in jexplicit.lm.counted.columns.COLUMNS, and the context that name"
            raise ValueError(f"{name} is {context!r} with a function of its own, which no file can hold: {remedy}")
    return {"columns": list(context.columns), "window": context.window}


def context_of(text: dict[str, Any]) -> Context:
    """The context of plain values.

    Raises:
        ValueError: a column that is not known here.

    Example:
        >>> context_of({"columns": ["part", 2], "window": None})
        Context('part', 2)
    """
    return Context(*text["columns"], window=text["window"])

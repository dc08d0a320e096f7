"""Reading a text token by token, each token once.

A decision is evaluated once. Of the text before it a state keeps what evidence still asks for: the tokens that columns can see,
back to the start of the document where histories end there, and the log-odds that each of its decisions was measured against in
every part, if these count the text.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from jexplicit.data.contexts import PAD, check_token_ids
from jexplicit.lm.counted.evidence import KINDS, Decisions, decisions, pass_over
from jexplicit.lm.counted.mixing import BLOCK, NO_BLOCKS, Gate, blocks_of, log_likelihoods, read_gate
from jexplicit.lm.counted.model import (
    BIAS,
    CountedModel,
    add,
    counts_as_known,
    ends_with_documents,
    facts_of,
    sets_of,
    text_of,
    view_of,
    weigh,
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
    """

    d: Decisions
    X: np.ndarray
    sets: tuple[np.ndarray, ...]
    base: np.ndarray


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
        learn: whether gates of the first stages learn from the decisions, as those of the last one do after them.
    """
    text = text_of(ids, model.spelling, model.history)
    old = decisions_at(model.tree, ids, predicted_places(model, state.tokens)) if len(state.base) or state.done else None
    d = new if old is None else _after(old, new)
    first = min(state.done, len(d.bit)) if old is not None else 0
    later = d._replace(place=d.place[first:], block=d.block[first:], node=d.node[first:], bit=d.bit[first:])
    b, known, base = np.zeros(len(later.bit), np.float32), np.zeros(len(later.bit), np.uint8), []
    X = np.full((len(model.weights), len(b)), BIAS, np.float32)
    starts, sets, blocks = np.zeros(len(ids), int), [], complete(model, state, later) if learn else NO_BLOCKS
    for k, part in enumerate(model.parts):
        own = model.history != "none"  # it counts the text that is read
        if own:
            base.append(np.concatenate([state.base[len(base), :first], b]))
        view = view_of(part.context, model.history, text, starts)
        past = pass_over(
            part.context(text), d if own else later, base[-1] if own else b, view,
            least=model.least, first=first if own else 0, table=part.table, before=part.cells,
        )  # fmt: skip
        add(b := b.copy(), past.x, part.step)
        F = KINDS * (k + 1)
        X[F - KINDS : F] = past.x
        known += counts_as_known(part.context) & past.known
        last = k + 1 == len(model.parts)
        if last and model.layer:
            X[-2] = model.layer.evidence(text, later)
        F = len(X) if last else F
        stage = [(names, gate) for (names, own), gate in zip(model.gates, state.gates, strict=True) if len(own.U) == F]
        if not stage:
            continue
        facts = facts_of(text, later, known, model.tree, slice(None))
        for names, gate in stage:
            sets.append(sets_of(names, facts)[0])
            b = b if last else read_gate(gate, X[:F], b, sets[-1], later.bit, blocks)[0]
    kept = np.array(base, np.float32).reshape(len(base), len(d.bit) if base else 0)
    return Ahead(later, X, tuple(sets), kept)


def complete(model: CountedModel, state: CountedState, d: Decisions) -> Int[np.ndarray, " n"]:
    """The blocks of decisions ahead that are whole, for learning gates."""
    if not model.moving:
        return NO_BLOCKS
    blocks = blocks_of(d.place, state.done)
    return blocks[: np.searchsorted(blocks, (state.done + len(blocks)) // BLOCK)]


def pass_gates(model: CountedModel, gates: tuple[Gate, ...], ahead: Ahead, learn: np.ndarray = NO_BLOCKS):
    """[B] the log-odds of decisions ahead, and the gates after learning."""
    a, done, after = np.zeros(ahead.X.shape[1], np.float32), 0, []
    for gate, sets in zip(gates, ahead.sets, strict=True):
        F = len(gate.U)
        a, gate = read_gate(gate, ahead.X[:F], weigh(model.weights[done:F], ahead.X[done:F], a), sets, ahead.d.bit, learn)
        after.append(gate)
        done = F
    return weigh(model.weights[done:], ahead.X[done:], a), tuple(after)


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
    return model.tree.log_probabilities(pass_gates(model, state.gates, ahead)[0][1 - model.vocab_size :]), ahead


def accept(model: CountedModel, state: CountedState, ahead: Ahead, token: int) -> CountedState:
    """The state after a predicted token, from the findings of `expect`."""
    nodes, length = model.vocab_size - 1, model.tree.length[token]
    old, kept = len(ahead.d.bit) - nodes, ahead.base.shape[1] - nodes
    path, bit = model.tree.node[token, :length], model.tree.bit[token, :length]
    some = np.append(np.arange(old), old + path)
    d = ahead.d._replace(place=ahead.d.place[some], block=ahead.d.block[some], node=ahead.d.node[some])
    d = d._replace(bit=np.append(ahead.d.bit[:old], bit))
    base = np.concatenate([ahead.base[:, :kept], ahead.base[:, kept + path]], axis=1) if len(ahead.base) else ahead.base
    ahead = Ahead(d, ahead.X[:, some], tuple(sets[some] for sets in ahead.sets), base)
    return _go_on(model, state, ahead, np.append(state.tokens, np.int32(token)))[1]


def predict_alone(
    model: CountedModel, ids: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "P N"]:
    """The same at some places, for a model of the training text."""
    ahead = look_ahead(model, begin(model), ids, decisions_of_nodes(model, places))
    a = pass_gates(model, begin(model).gates, ahead)[0]
    return model.tree.log_probabilities(a.reshape(len(places), model.vocab_size - 1))


def read_decisions(model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"]):
    """The decisions of coming tokens with log-odds, and the state after."""
    found, first = [], 0
    for piece in _pieces(model, np.asarray(tokens, np.int32)):
        ids = np.concatenate([state.tokens, piece])
        new = decisions_at(model.tree, ids, predicted_places(model, ids, len(state.tokens)))
        where, a = new.place - np.int32(len(state.tokens) - first), np.zeros(0, np.float32)
        if len(new.bit):
            a, state = _go_on(model, state, look_ahead(model, state, ids, new, learn=True), ids)
            a = a[len(a) - len(new.bit) :]
        else:
            state = _forget(model, state._replace(tokens=ids))
        found.append((where, new, a))
        first += len(piece)
    if not found:
        none = decisions_at(model.tree, state.tokens, np.zeros(0, int))
        return none.place, none, np.zeros(0, np.float32), state
    where, d, a = zip(*found, strict=True)
    return np.concatenate(where), functools.reduce(_after, d), np.concatenate(a), state


def _go_on(model: CountedModel, state: CountedState, ahead: Ahead, ids: np.ndarray) -> tuple[np.ndarray, CountedState]:
    """The log-odds of the decisions ahead, and the state after them."""
    learn = complete(model, state, ahead.d)
    a, gates = pass_gates(model, state.gates, ahead, learn)
    done = state.done + len(learn) if model.moving else ahead.base.shape[1]
    return a, _forget(model, CountedState(ids, ahead.base, gates, done))


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

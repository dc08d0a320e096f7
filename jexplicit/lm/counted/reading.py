"""Reading a text token by token, each token once.

A state keeps of the text what evidence still asks for: the tokens that columns can see, and the log-odds that each of their
decisions was measured against in every part, if these count the text. Another model of the same tokens is one more input of
the mix (`combine`), `w_1 a + w_2 z + w_3` for each decision: a the counted model's log-odds, z those of the other model's mass
at the right and at the left of a node, w of the depth of the node.
"""

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from jexplicit.data.contexts import PAD, check_stream, check_token_ids
from jexplicit.lm.counted.contexts import Spelling, Text, Tree
from jexplicit.lm.counted.evidence import (
    KINDS,
    MOST,
    Cells,
    Decisions,
    Statistics,
    decisions,
    pass_over,
    predicted_places,
    weigh,
)
from jexplicit.lm.counted.mixing import (
    BLOCK,
    NO_BLOCKS,
    Described,
    Gate,
    Layer,
    blocks_of,
    log_likelihoods,
    newton,
    read_gate,
)
from jexplicit.lm.counted.model import BIAS, CountedModel, Part, sets_of, view_of

Progress = Callable[[int, int], object]
_piece, _reported = 1 << 18, 1 << 16  # tokens that are read at once, and from one report of progress to the next
_decisions = 1 << 18  # at once, where all nodes are asked for
_deepest = 12  # depths with weights of their own
_ridge = 20.0  # of the weights of a depth, to those of all decisions
_cells = 1 << 24  # places times tokens at once


class CountedState(NamedTuple):
    """What a counted model has read.

    tokens: [n] those that columns can see, from a `<pad>` on.
    base: [parts, B] the log-odds that the decisions of these tokens were measured against; no parts if they are not counted.
    gates: which move in an adaptive model.
    done: decisions that these have learned from, whole blocks; in a static model all of them.
    model: a checksum of its weights.
    """

    tokens: Int[np.ndarray, " n"]
    base: Float32[np.ndarray, "parts B"]
    gates: tuple[Gate, ...]
    done: int
    model: int


class Ahead(NamedTuple):
    """The evidence of decisions after a state.

    d: [B] decisions from `state.done` on. X: [F, B] their evidence. sets: [B] of each gate. base: [parts, B'] of all decisions
    that are kept, the old ones first. log_odds: [B]. gates: after they have learned from them.
    """

    d: Decisions
    X: np.ndarray
    sets: tuple[np.ndarray, ...]
    base: np.ndarray
    log_odds: np.ndarray
    gates: tuple[Gate, ...]


class Combination(NamedTuple):
    """A counted model with another of the same tokens in its mix.

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


Counted = (CountedModel, Combination)


def within_documents(model: Any) -> Any:
    """A model that treats each document as if there were no other."""
    if model.history == "none" or "document" in model.history:
        return model
    return model._replace(history="document" if model.history == "all" else f"{model.history}:document")


def is_alone(model: object) -> TypeGuard[CountedModel]:
    """Whether a model uses the training text and the document's contexts alone."""
    return isinstance(model, CountedModel) and model.history == "none"


def begin(model: CountedModel | Combination) -> Any:
    """The state before a text, at the start of its first document."""
    if isinstance(model, Combination):
        return CombinationState(begin(model.model), np.array([PAD], np.int32))
    base = np.zeros((0 if model.history == "none" else len(model.parts), 0), np.float32)
    gates = tuple(gate for _, gate in model.gates)
    checksum = zlib.crc32(b"".join([model.weights.tobytes(), *(gate.U.tobytes() for gate in gates)]))
    return CountedState(np.array([PAD], np.int32), base, gates, 0, checksum)


def all_nodes(model: CountedModel, places: Int[np.ndarray, " P"]) -> Decisions:
    """The decisions at all nodes at each of some places, whatever they will be."""
    nodes = model.vocab_size - 1
    zeros = np.zeros(len(places) * nodes, np.uint8)
    node, place = np.tile(np.arange(nodes, dtype=np.int32), len(places)), np.repeat(places.astype(np.int32), nodes)
    return Decisions(place, zeros, node, zeros.astype(np.int8))


def look_ahead(
    model: CountedModel, state: CountedState, ids: Integer[np.ndarray, " L"], new: Decisions, *, learn: bool = False
) -> Ahead:
    """The evidence of new decisions after a state.

    ids: [L] tokens of the state and the new ones. learn: whether gates learn from the decisions.
    """
    text, d, first = Text(ids, model.spelling, model.history), new, 0
    if len(state.base) or state.done:
        old = decisions(ids, model.tree, predicted_places(state.tokens, model.eos))
        d, first = Decisions(*map(np.concatenate, zip(old, new, strict=True))), state.done
    later = Decisions(*(field[first:] for field in d))
    b, known, base = np.zeros(len(later.bit), np.float32), np.zeros(len(later.bit), np.uint8), []
    X = np.full((len(model.weights), len(b)), BIAS, np.float32)
    starts, sets, gates = np.zeros(len(ids), int), [], list(state.gates)
    blocks, wanted = complete(model, state, later) if learn else NO_BLOCKS, np.array([[first, len(d.bit)]])
    own = model.history != "none"  # it counts the text that is read
    for k, part in enumerate(model.parts):
        if own:
            base.append(np.concatenate([state.base[len(base), :first], b]))
        view = view_of(part.context, model.history, text, starts)
        past = pass_over(
            text[part.context], d if own else later, base[-1] if own else b, view,
            least=model.least, wanted=wanted if own else None, table=part.table, before=part.cells,
        )  # fmt: skip
        b, F = weigh(part.step, past.x, b), KINDS * (k + 1)
        X[F - KINDS : F] = past.x
        known += part.context.of_last & past.known
        if k + 1 == len(model.parts):
            F = len(X)
            if model.layer:
                X[-2] = model.layer.evidence(text, later.place, later.node)
                b = weigh(model.weights[-2:-1], X[-2:-1], b)
        for n in (n for n, gate in enumerate(gates) if len(gate.U) == F):
            sets.append(sets_of(model.gates[n][0], text, later, known, model.tree)[0])
            b, gates[n] = read_gate(gates[n], X[:F], b, sets[n], later.bit, blocks)
    kept = np.array(base, np.float32).reshape(len(base), len(d.bit) if base else 0)
    return Ahead(later, X, tuple(sets), kept, b, tuple(gates))


def complete(model: CountedModel, state: CountedState, d: Decisions) -> Int[np.ndarray, " n"]:
    """The blocks of decisions ahead that are whole, for learning gates."""
    if model.frozen or not model.history.startswith("adaptive"):
        return NO_BLOCKS
    blocks = blocks_of(d.place, state.done)
    return blocks[: np.searchsorted(blocks, (state.done + len(blocks)) // BLOCK)]


def read(
    model: CountedModel | Combination, state: Any, tokens: Integer[np.ndarray, " n"], progress: Progress | None = None
) -> tuple[Float[np.ndarray, " n"], Any]:
    """`log p` of each coming token given all before, and the state after them."""
    if isinstance(model, Combination):
        stream = np.concatenate([state.tokens, np.asarray(tokens, np.int32)])
        d, a, own = read_decisions(model.model, state.own, tokens, progress)
        z = _log_odds(model.model, model.other, stream, d.place + len(state.tokens), d.node)
        a, state = _mix(model, a, z, d.node), CombinationState(own, stream)
    else:
        d, a, state = read_decisions(model, state, tokens, progress)
    return np.bincount(d.place, log_likelihoods(d.bit, a), len(tokens)).astype(float), state


def read_decisions(
    model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"], progress: Progress | None = None
) -> tuple[Decisions, Float32[np.ndarray, " B"], CountedState]:
    """The decisions of coming tokens, their log-odds, and the state after."""
    tokens, size, found, log_odds, done = np.asarray(tokens, np.int32), _reported if progress else _piece, [], [], 0
    cuts = np.arange(size, len(tokens), size)
    if model.history == "adaptive:document":
        cuts = np.union1d(cuts, np.flatnonzero(tokens == PAD) + 1)
    for piece in np.split(tokens, cuts):
        first, ids = len(state.tokens), np.concatenate([state.tokens, piece])
        new = decisions(ids, model.tree, predicted_places(ids, model.eos, first))
        if len(new.bit):
            ahead = look_ahead(model, state, ids, new, learn=True)
            log_odds.append(ahead.log_odds[len(ahead.log_odds) - len(new.bit) :])
            state = _after(model, state, ahead, ids)
        else:
            state = _after(model, state, None, ids)
        found.append(new._replace(place=new.place - np.int32(first - done)))
        done += len(piece)
        if progress:
            progress(done, len(tokens))
    d = Decisions(*map(np.concatenate, zip(*found, strict=True)))
    return d, np.concatenate([np.zeros(0, np.float32), *log_odds]), state


def _after(model: CountedModel, state: CountedState, ahead: Ahead | None, ids: np.ndarray) -> CountedState:
    """The state after decisions ahead, without documents out of sight."""
    if ahead:
        moving = model.history.startswith("adaptive") and not model.frozen
        done = state.done + len(complete(model, state, ahead.d)) if moving else ahead.base.shape[1]
        state = state._replace(base=ahead.base, gates=ahead.gates, done=done)
    last = int(np.flatnonzero(ids == PAD)[-1])
    if not last or (model.history != "none" and "document" not in model.history):
        return state._replace(tokens=ids)
    if model.history.startswith("adaptive"):
        return begin(model)  # the text ends here
    B = int(model.tree.length[ids[last + 1 :]].sum()) if len(state.base) else 0
    base = state.base[:, state.base.shape[1] - B :]
    return state._replace(tokens=ids[last:], base=base, done=B)


def predict(model: CountedModel | Combination, state: Any) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one, in nats."""
    if not isinstance(model, Combination):
        return expect(model, state)[0]
    nodes, stream = np.arange(model.vocab_size - 1), np.append(state.tokens, np.int32(PAD))
    a = expect(model.model, state.own)[1].log_odds[-len(nodes) :]
    z = _log_odds(model.model, model.other, stream, np.full(len(nodes), len(stream) - 1), nodes)
    return model.model.tree.log_probabilities(_mix(model, a, z, nodes))


def expect(model: CountedModel, state: CountedState) -> tuple[Float[np.ndarray, " N"], Ahead]:
    """The same, and the evidence at all nodes, for `accept`."""
    ids = np.append(state.tokens, np.int32(PAD))
    ahead = look_ahead(model, state, ids, all_nodes(model, np.array([len(ids) - 1])))
    return model.tree.log_probabilities(ahead.log_odds[1 - model.vocab_size :]), ahead


def accept(model: CountedModel, state: CountedState, ahead: Ahead, token: int) -> CountedState:
    """The state after a predicted token, from the findings of `expect`."""
    ids = np.append(state.tokens, np.int32(token))
    if token == PAD and not model.eos:  # no decision leads to it
        return _after(model, state, None, ids)
    nodes, length = model.vocab_size - 1, model.tree.length[token]
    old, kept = len(ahead.d.bit) - nodes, ahead.base.shape[1] - nodes
    path, bit = model.tree.node[token, :length], model.tree.bit[token, :length]
    some = np.append(np.arange(old), old + path)
    d = Decisions(*(field[some] for field in ahead.d))._replace(bit=np.append(ahead.d.bit[:old], bit))
    base = np.concatenate([ahead.base[:, :kept], ahead.base[:, kept + path]], axis=1) if len(ahead.base) else ahead.base
    X, a, done = ahead.X[:, some], np.zeros(len(some), np.float32), 0
    gates, learn = list(state.gates), complete(model, state, d)
    for n, gate in enumerate(gates if len(learn) else []):
        F = len(gate.U)
        a = weigh(model.weights[done:F], X[done:F], a)
        a, gates[n] = read_gate(gate, X[:F], a, ahead.sets[n][some], d.bit, learn)
        done = F
    return _after(model, state, ahead._replace(d=d, base=base, gates=tuple(gates)), ids)


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
    d, a, _ = read_decisions(model, begin(model), stream[1:])
    if not len(a):
        raise ValueError("no token in the text that weights are fitted on: give some text")
    X = _inputs(a, _log_odds(model, other, stream, d.place + 1, d.node))
    depth = np.minimum(model.tree.depths[d.node], _deepest)
    shared = newton(X, d.bit, np.array([1.0, 0.0, 0.0]), 1.0)
    weights = np.tile(shared, (_deepest + 1, 1))
    for of in np.unique(depth):
        weights[of] = newton(X[depth == of], d.bit[depth == of], shared, _ridge)
    return Combination(model, other, weights.astype(np.float32))


def mass_log_odds(
    model: CountedModel, log_p: Float[np.ndarray, "P N"], row: Int[np.ndarray, " B"], node: Integer[np.ndarray, " B"]
) -> Float[np.ndarray, " B"]:
    """[B] log-odds of 1 at nodes: masses of right and left leaves."""
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
        found, most = [], max(1, _decisions // model.vocab_size)
        for some in np.split(places, np.arange(0, len(places), most)[1:]):
            ahead = look_ahead(model, begin(model), np.append(stream[: some[-1]], PAD), all_nodes(model, some))
            found.append(model.tree.log_probabilities(ahead.log_odds.reshape(len(some), model.vocab_size - 1)))
        return np.concatenate(found)
    return np.stack([predict(model, state) for state in states_at(model, stream, places)])


def states_at(
    model: CountedModel | Combination, stream: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]
) -> Iterator[Any]:
    """The state before each of some ascending places of a stream."""
    state, at = begin(model), 1
    for place in places:
        state, at = read(model, state, stream[at:place])[1], int(place)
        yield state


def score_places(model: CountedModel, stream: np.ndarray, places: np.ndarray) -> np.ndarray:
    """`log p` of the tokens at some places, of a model that is alone."""
    found = []
    for some in np.split(places, np.arange(_reported, len(places), _reported)):
        ahead = look_ahead(model, begin(model), stream, decisions(stream, model.tree, some))
        log_p = np.zeros(len(stream))
        np.add.at(log_p, ahead.d.place, log_likelihoods(ahead.d.bit, ahead.log_odds))
        found.append(log_p[some])
    return np.concatenate(found)


distributions.register(CountedModel)(distributions_at)
distributions.register(Combination)(distributions_at)


COUNTED = (CountedModel, Part, Tree, Spelling, Cells, Statistics, Gate, Described, Layer, CountedState)

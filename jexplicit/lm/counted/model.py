"""The counted language model, its fit, and reading a text with it.

log P(token) = sum_d log sigma(+-a_d), with the log-odds a = w.x + sum_g D_g.z_g.
"""

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Float32, Int, Integer
from scipy.special import expit
from threadpoolctl import threadpool_limits

from jexplicit.data.streams import check_stream, check_token_ids
from jexplicit.data.tokenizers import PAD, Progress, Tokenizer
from jexplicit.lm.counted.contexts import (
    Context,
    Decisions,
    Spelling,
    Text,
    Tree,
    decisions,
    grow,
    predicted_places,
    spelling,
    window_of,
)
from jexplicit.lm.counted.evidence import (
    BLOCK,
    KINDS,
    LONG,
    MOST,
    NO_BLOCKS,
    PARTS,
    SORTED_ONCE,
    Cells,
    Described,
    Gate,
    Layer,
    Statistics,
    View,
    blocks_of,
    directions,
    newton,
    pass_over,
    read_gate,
    solve_layer,
    weigh,
)
from jexplicit.runs.devices import RUNTIME_BYTES
from jexplicit.runs.files import trim_heap

BIAS = np.float16(0.3)
_blocks = 10  # of the training text: a static model is fitted on what the blocks before say
_sample = 200_000  # decisions that weights are fitted on
_piece = 2000  # tokens of the pieces that a text is shuffled in, at least
_late = 1 << 23  # decisions that gates are fitted on, and half of them in a long static text
_solvable = 100_000  # decisions from which a layer is solved
_start, _ridge = np.array([0.2, 0, 0]), 100.0  # of the weights of a context's evidence
_unseen = 20.0  # information that stands behind each number of evidence, which a short text may not show
_moving_ridge, _static_ridge = 3.0, 300.0  # of gates, times the inverse variances of their directions
_size = 24  # directions of a gate
_read_at_once, _reported = 1 << 18, 1 << 16  # tokens, and those from one report of progress to the next
_decisions = 1 << 18  # at once, where all nodes are asked for


class Part(NamedTuple):
    """A context of a model, as it was counted."""

    context: Context
    step: Float32[np.ndarray, " 3"]  # weights with which its evidence is added to the base of the contexts after it
    table: Float32[np.ndarray, "states bins"]
    cells: Cells | None  # at the end of the training text; None of a window

    @property
    def name(self) -> str:
        """Its name, such as "last 3", "part + word" or "last 1, window 256"."""
        back = [column for column in self.context.columns if isinstance(column, int)]
        last = [f"last {len(back)}"] if back == [*range(1, len(back) + 1)] else [f"{' + '.join(map(str, back))} back"]
        other = [str(getattr(column, "__name__", column)) for column in self.context.columns if not isinstance(column, int)]
        recent = [] if self.context.window is None else [f"window {self.context.window}"]
        return ", ".join([" + ".join((last if back or not other else []) + other), *recent])


class CountedModel(NamedTuple):
    """A counted language model; `fit_counted` explains history, eos, frozen and least."""

    tree: Tree
    parts: tuple[Part, ...]  # in the order of their evidence
    weights: Float32[np.ndarray, " F"]  # shared by all decisions
    gates: tuple[tuple[tuple[str, ...], Gate], ...]  # with names of their sets; each reads the first evidence, by the rows of U
    spelling: Spelling
    history: str
    eos: bool
    frozen: bool
    least: int
    layer: Layer | None = None

    vocab_size = property(lambda self: len(self.tree.length), doc="N, the number of token ids.")
    names = property(lambda self: (*(part.name for part in self.parts), *(["word vectors"] if self.layer else [])))
    nbytes = property(lambda self: sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(self)))

    # the token furthest back of those that contexts name by their distance
    context = property(lambda self: max([1, *(k for part in self.parts for k in part.context.columns if isinstance(k, int))]))
    # weights, directions and learned sets, without counts and solved rows
    scalars = property(lambda self: self.weights.size + sum(int((M != 0).sum()) for _, g in self.gates for M in (g.U, g.D)))
    learns = property(lambda self: self.history.startswith("online") and not self.frozen)  # whether gates move on new text

    def within_documents(self) -> "CountedModel":
        """A model that treats each document as if there were no other."""
        if self.history == "none" or "document" in self.history:
            return self
        return self._replace(history="document" if self.history == "all" else f"{self.history}:document")

    def __repr__(self) -> str:
        return f"CountedModel({len(self.parts)} contexts, {self.vocab_size} tokens, history={self.history!r}, eos={self.eos})"


def orders(first: int, last: int) -> tuple[Context, ...]:
    """The contexts of the last `first` to `last` tokens."""
    return tuple(Context(*range(1, n + 1)) for n in range(first, last + 1))


def each(*columns: tuple[int | str, ...], window: int | None = None) -> tuple[Context, ...]:
    """A context for each tuple of columns."""
    return tuple(Context(*c, window=window) for c in columns)


CHARACTERS = (
    *orders(0, 7),
    *each(
        ("part",), ("part", "word"), ("part", "word", "word before"), ("since", "word"), ("since", "word before"),
        ("part", "word before"), ("line",), ("width", 1), ("width", 1, 2), ("since", "speaker"), ("line", "speaker"),
        (2, 3, 4), (1, 3, 4), (2, 3, 4, 5), ("shape", 1), ("speaker before", "part"), ("paragraph", "part"),
        ("line end", "part"), ("words in line", "part"), ("width before", "width"), ("first", "width"), ("sentence", "part"),
        ("word", "word before"), ("shape", "word"), ("shape", "punctuation"), ("punctuation", "words in line"),
        ("speaker before", 1, 2),
    ),
    *each((), (1,), (1, 2), (1, 2, 3), ("part",), ("since", "word"), window=256),
    *each((1, 2, 3, 4, 5, 6, 7, 8, 9), ("folded part", "folded word"), ("place", 1, 2)),
)  # fmt: skip
WORDS = (
    *each((), ("60:1",), ("200:1",), (1,)),
    *each((), window=100), *each((), window=500), *each((), window=2000),
    *each(("200:1", "200:2"), (1, "60:2"), (1, 2), (1, 2, "60:3"), (1, 2, 3)),
    *each((1,), (2,), window=2000),
    *each((2,), (3,), (2, 3)),
    *each(("60:1",), window=500),
    *each((1, 3), (4,), ("followed",), ("followed two",), (1, 2, 3, 4, 5)),
    *each((1, 2, 3, 4), window=1000), *each((2,), window=200),
    *each((1,)),
)  # fmt: skip
SUBWORDS = (
    *each((), ("60:1",), ("200:1",), (1,)),
    *each((), window=100), *each((), window=500), *each((), window=2000),
    *each(("200:1", "200:2"), (1, 2), (1, 2, "60:3"), (1, 2, 3), (1, 2, 3, 4), ("part", "word")),
    *each((1,), (2,), window=2000),
    *each((2,), (2, 3), (3,)),
    *each(("60:1",), window=500),
    *each((1, 3), ("followed",), ("followed two",), (1, 2, 3, 4, 5)),
    *each((1, 2, 3, 4), window=1000), *each((2,), window=200),
)  # fmt: skip
CONTEXTS = {"char": CHARACTERS, "bpe": SUBWORDS}  # by the kind of the tokenizer; WORDS of others
CHARACTER_GATES = (("place", "known"), ("place", "node"), ("before", "depth"), ("node",))
WORD_GATES = (("since", "node"), ("depth", "known"), ("before",))


def furthest_token(kind: str) -> int:
    """The furthest token that contexts name by its distance: the context length."""
    return max(k for context in CONTEXTS.get(kind, WORDS) for k in context.columns if isinstance(k, int))


_sizes = {"place": 8, "known": 16, "node": 512, "depth": 16, "before": 512, "since": 8}  # of facts, at most


def sets_of(
    names: tuple[str, ...], text: Text, d: Decisions, known: np.ndarray, tree: Tree, at: np.ndarray | slice = slice(None)
) -> tuple[Int[np.ndarray, " B"], int]:
    """The set of some decisions in a gate, and the number of sets.

    place: in the word.
    known: how many contexts of the last 1, 2, ... tokens have seen anything.
    node, depth: of the tree.
    before: the token before, or its class.
    since: the tokens since the document began, rounded down to a power of 2: 0, 1, 2 to 3, 4 to 7, ... 64 and more.
    """
    node, place = d.node[at].astype(np.int32), d.place[at]
    found, size = np.zeros(len(node), np.int32), 1
    for name in names:
        match name:
            case "place":
                fact = text["place"][place].astype(np.int32)
            case "known":
                fact = known
            case "node":
                fact = node
            case "depth":
                fact = tree.depths[node].astype(np.int32)
            case "before":
                ids = text.ids if len(tree.length) <= _sizes[name] else text.spelling.classes[200][text.ids]
                fact = np.append(0, ids[:-1])[place]
            case _:
                fact = np.frexp(text.at - text.latest(text.ids == PAD, text.at + 1))[1][place]
        found = found * _sizes[name] + np.minimum(fact, _sizes[name] - 1)
        size *= _sizes[name]
    return found, size


def view_of(context: Context, history: str, text: Text, starts: Int[np.ndarray, " L"]) -> View:
    """The view of a context; starts: [L] of the place's block."""
    if history == "none":
        return View()
    if history in ("online", "all") and context.window is None:
        return View(whole=True)
    first = np.maximum(starts, text.document + 1 if "document" in history else 0)
    if sizes := [size for size in (text.window, context.window) if size]:
        first = np.maximum(first, text.at - min(sizes))
    return View(training=context.window is None, since=first)


@threadpool_limits.wrap(limits=1, user_api="blas")  # matrices are small: a second thread waits more than it helps
def fit_counted(
    ids: Integer[np.ndarray, " L"],
    N: int,
    tokenizer: Tokenizer | None = None,
    *,
    history: str = "none",
    contexts: Sequence[Context] | None = None,
    gates: int | Sequence[tuple[str, ...]] = 4,
    layer: bool | None = None,
    stages: int | None = None,
    frozen: bool = False,
    eos: bool = False,
    seed: int = 0,
    least: int | None = None,
    log: Callable[..., None] | None = None,
) -> CountedModel:
    """Count a text, and fit the weights of what is counted.

    Args:
        ids: [L] tokens, `<pad> d_1 <pad> ... d_n <pad>`.
        N: how many tokens there are.
        tokenizer: of the tokens; without one, columns of words and lines say nothing.
        history: what the model sees of the text before a token.
        contexts: in the order in which they are added; default, CHARACTERS, SUBWORDS or WORDS, by the kind of the tokenizer.
        gates: the facts by which each chooses its sets, see `sets_of`; or how many of CHARACTER_GATES or WORD_GATES.
        layer: whether a layer on word vectors is solved; default, of words and subwords in texts of 100,000 decisions and more.
        stages: in how many parts the contexts are divided, each followed by the gates; default, 2 of characters, else 1.
        frozen: whether the weights of gates stay as they are after the fit, in an online model, too.
        eos: whether `<pad>` is predicted.
        seed: of the sample that weights are fitted on.
        least: decisions that a cell must have seen before it says anything; default, 1, of long texts 6.
        log: called after each context and gate with how many are done, of how many, and its name.

    Raises:
        ValueError: a stream without documents, a token id outside the vocabulary, an unknown history or gate, no context,
            stages below 1 or more than contexts.
    """
    check_stream(ids)
    check_token_ids(ids, N)
    window_of(history)
    kind = tokenizer.kind if tokenizer else "word"
    chain = CONTEXTS.get(kind, WORDS) if contexts is None else contexts
    chain = [context for context in chain if history != "none" or context.window is None]
    gates = (CHARACTER_GATES if kind == "char" else WORD_GATES)[:gates] if isinstance(gates, int) else gates
    stages = 1 + (kind == "char") if stages is None else stages
    if unknown := {fact for facts in gates for fact in facts} - set(_sizes):
        raise ValueError(f"gate {', '.join(sorted(unknown))}: choose among {', '.join(_sizes)}")
    if not 1 <= stages <= len(chain):
        raise ValueError(f"{stages} stages of {len(chain)} contexts: give at least one of each, and a context for each stage")

    # Pieces of neighbouring documents in a random order, whatever their sources
    ids = np.asarray(ids, np.int32)
    ends, size = np.flatnonzero(ids == PAD)[1:] + 1, max(len(ids) // 200, _piece)
    cuts = ends[np.flatnonzero(np.diff(ends // size, prepend=0))]
    pieces = [piece for piece in np.split(ids[1:], cuts - 1) if len(piece)]
    ids = np.concatenate([ids[:1], *(pieces[i] for i in np.random.default_rng(seed).permutation(len(pieces)))])

    # Their tokens as decisions
    sizes = {int(c.partition(":")[0]) for context in chain for c in context.columns if isinstance(c, str) and ":" in c}
    tree, classes = grow(ids if eos else ids[ids != PAD], N, sorted(sizes | {200}))
    text = Text(ids, spelling(tokenizer, N)._replace(classes=classes), history)
    block, online = (np.arange(len(ids)) * _blocks // len(ids)).astype(np.uint8), history.startswith("online")
    starts = np.zeros(len(ids), int) if online else np.searchsorted(block, np.arange(_blocks))[block]
    d = decisions(ids, tree, predicted_places(ids, eos), block)
    B = len(d.bit)
    least = least or (6 if B > LONG else 1)
    layer = layer if layer is not None else kind != "char" and B >= _solvable

    # The decisions that gates are fitted on, the last ones, and of them a sample for weights
    wanted = np.array([[max(B - _late, 0), B]])
    if not online and B > _late:  # the last ones of several blocks, so that sets differ by more than the cells of one
        edges = np.searchsorted(d.block, np.arange(_blocks // 2, _blocks + 1, dtype=d.block.dtype))
        wanted = np.stack([np.maximum(edges[1:] - _late // 2 // (_blocks // 2), edges[:-1]), edges[1:]], axis=1)
    mixed = np.concatenate([np.arange(*ends, dtype=np.int32) for ends in wanted])
    W, y, among = len(mixed), d.bit[mixed], PARTS if B > LONG else 1  # of a long text weights see a part of the cells
    lowest = max(0, (B // 5 if online else B * 2 // 5) - int(wanted[0, 0]))
    drawn = np.sort(lowest + np.random.default_rng(seed).choice(W - lowest, min(_sample * among, W - lowest), replace=False))
    some, fit = drawn[::among], slice(W // 20, W, max(1, W // 1_500_000))
    ridge, halves = (_moving_ridge, None) if online else (_static_ridge, d.block[mixed[fit]] % 2)

    F = KINDS * len(chain) + layer + 1  # numbers of evidence; the last one is the same for all
    sample, X = np.full((F, len(some)), BIAS, np.float32), np.full((F, W), BIAS, np.float16)
    base, known, parts, fitted, solved = np.zeros(B, np.float32), np.zeros(W, np.uint8), [], [], None
    learned, steps, in_all = blocks_of(d.place[mixed]), itertools.count(1), len(chain) + layer + stages * len(gates)

    def solve(x: np.ndarray) -> np.ndarray:
        """The weights of some evidence of one context."""
        at = drawn if W == B else drawn[np.flatnonzero(x[drawn].any(axis=1))]
        return newton(x[at].astype(np.float32), y[at], _start, _ridge, base[mixed[at]]).astype(np.float32)

    for first, end in itertools.pairwise(len(chain) * stage // stages for stage in range(stages + 1)):
        for k, context in enumerate(chain[first:end], first):
            view, at = view_of(context, history, text, starts), slice(KINDS * k, KINDS * (k + 1))
            past = pass_over(text[context], d, base, view, least=least, wanted=wanted, keep=view.training, weights=solve)
            sample[at], X[at] = past.x[:, some], past.x
            parts.append(Part(context, past.step, past.table, past.cells))
            known += context.of_last & past.known
            if log:
                log(next(steps), in_all, context=str(context))
            if W < B:  # memory is short
                text.made.clear()
                trim_heap()
        if layer and end == len(chain):
            solved, x = solve_layer(text, d, base, tree, mixed)
            sample[-2], X[-2] = x[some], x
            step = newton(sample[-2:-1].T, y[some], np.ones(1), _ridge, base[mixed[some]])
            solved = solved._replace(step=float(step[0]))
            base[mixed] = np.clip(base[mixed] + solved.step * x, -MOST, MOST)
            if log:
                log(next(steps), in_all, context="word vectors")

        # Gates mix the evidence so far, in directions that are white over decisions
        K, log_odds = F if end == len(chain) else KINDS * end, base[mixed]
        of, x = (some, sample[:K].T) if W > _sample else (fit, X[:K, fit].astype(np.float32).T)
        v = expit(log_odds[of]) * expit(-log_odds[of])
        fisher = (x * v[:, None]).T @ x  # information, nearly singular
        M = np.linalg.inv(np.linalg.cholesky(fisher + 1e-4 * np.diag(np.diag(fisher)) + _unseen * np.eye(K))).T
        M *= np.sqrt(v.sum())
        for names in gates:
            sets, sets_in_all = sets_of(names, text, d, known, tree, mixed)
            gate = directions(X[:K, fit], y[fit], log_odds[fit], sets[fit], M, sets_in_all, _size, ridge, halves)
            log_odds, gate = read_gate(gate, X[:K], log_odds, sets, y, learned)
            fitted.append((names, gate))
            if log:
                log(next(steps), in_all, gate=" x ".join(names), directions=int(np.isfinite(gate.ridge).sum()))
        base[mixed] = log_odds
    weights = np.concatenate([*(part.step for part in parts), [solved.step] if solved else [], [0]]).astype(np.float32)
    return CountedModel(tree, tuple(parts), weights, tuple(fitted), text.spelling, history, eos, frozen, least, solved)


def fit_bytes(counts: Integer[np.ndarray, " N"], contexts: int) -> int:
    """About the memory of a fit, from counts [N] of tokens.

    >>> round(fit_bytes(np.full(64, 16_000), 40) / 1e9)  # a million characters
    5
    """
    p = counts[counts > 0] / max(counts.sum(), 1)
    B = 1.1 * counts.sum() * -(p * np.log2(p)).sum()  # decisions: paths are hardly longer than the entropy
    evidence, cells, order = 2 * KINDS * min(B, _late), 4 if B <= LONG else 0.25, 120 if B <= SORTED_ONCE else 0  # bytes
    return int(RUNTIME_BYTES + (24 + order) * B + contexts * (evidence + cells * B + min(16e6, 60 * B)))


# Reading


class CountedState(NamedTuple):
    """The memory of a text that a counted model has read."""

    tokens: Int[np.ndarray, " n"]  # from a `<pad>` on, as far back as columns see
    base: Float32[np.ndarray, "parts B"]  # that their decisions were measured against; no parts if they are not counted
    gates: tuple[Gate, ...]  # which move in an online model
    done: int  # decisions that these have learned from, whole blocks; in a static model all
    model: int  # a checksum of its weights


class Ahead(NamedTuple):
    """The evidence of decisions after a state."""

    d: Decisions  # from `state.done` on
    X: np.ndarray
    sets: tuple[np.ndarray, ...]  # of each gate
    base: np.ndarray  # of all decisions that are kept, the old ones first
    log_odds: np.ndarray
    gates: tuple[Gate, ...]  # after they have learned
    blocks: np.ndarray  # of the first decisions, those that gates have learned from


def begin(model: CountedModel) -> CountedState:
    """The state before a text, at the start of its first document."""
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
    blocks = complete(state, later) if learn and model.learns else NO_BLOCKS
    wanted = np.array([[first, len(d.bit)]])
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
    return Ahead(later, X, tuple(sets), kept, b, tuple(gates), blocks)


def complete(state: CountedState, d: Decisions) -> Int[np.ndarray, " n"]:
    """The blocks of decisions ahead that are whole, which gates learn from."""
    blocks = blocks_of(d.place, state.done)
    return blocks[: np.searchsorted(blocks, (state.done + len(blocks)) // BLOCK)]


def read_decisions(
    model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"], progress: Progress | None = None
) -> tuple[Decisions, Float32[np.ndarray, " B"], CountedState]:
    """The decisions of coming tokens, their log-odds, and the state after."""
    tokens, size, found, log_odds, done = np.asarray(tokens, np.int32), _reported if progress else _read_at_once, [], [], 0
    cuts = np.arange(size, len(tokens), size)
    if model.history == "online:document":
        cuts = np.union1d(cuts, np.flatnonzero(tokens == PAD) + 1)
    for piece in np.split(tokens, cuts):
        first, ids = len(state.tokens), np.concatenate([state.tokens, piece])
        new = decisions(ids, model.tree, predicted_places(ids, model.eos, first))
        ahead = look_ahead(model, state, ids, new, learn=True)
        log_odds.append(ahead.log_odds[len(ahead.log_odds) - len(new.bit) :])
        state = _after(model, state, ahead, ids)
        found.append(new._replace(place=new.place - np.int32(first - done)))
        done += len(piece)
        if progress:
            progress(done, len(tokens))
    d = Decisions(*map(np.concatenate, zip(*found, strict=True)))
    return d, np.concatenate(log_odds), state


def _after(model: CountedModel, state: CountedState, ahead: Ahead, ids: np.ndarray) -> CountedState:
    """The state after decisions ahead, without documents out of sight."""
    done = state.done + len(ahead.blocks) if model.learns else ahead.base.shape[1]
    state = state._replace(base=ahead.base, gates=ahead.gates, done=done)
    last = int(np.flatnonzero(ids == PAD)[-1])
    if not last or (model.history != "none" and "document" not in model.history):
        return state._replace(tokens=ids)
    if model.history.startswith("online"):
        return begin(model)  # the text ends here
    B = int(model.tree.length[ids[last + 1 :]].sum()) if len(state.base) else 0
    base = state.base[:, state.base.shape[1] - B :]
    return state._replace(tokens=ids[last:], base=base, done=B)


def expect(model: CountedModel, state: CountedState) -> Ahead:
    """The evidence at all nodes at the next place, which stand last."""
    ids = np.append(state.tokens, np.int32(PAD))
    return look_ahead(model, state, ids, all_nodes(model, np.array([len(ids) - 1])))


def accept(model: CountedModel, state: CountedState, ahead: Ahead, token: int) -> CountedState:
    """The state after a predicted token, from the findings of `expect`."""
    path, nodes = model.tree.node[token, : model.tree.length[token]], model.vocab_size - 1
    some = np.append(np.arange(len(ahead.d.bit) - nodes), len(ahead.d.bit) - nodes + path)
    moved = model.learns and len(complete(state, Decisions(*(field[some] for field in ahead.d))))
    if moved or (token == PAD and not model.eos):  # gates learn, or no decision leads there
        return read_decisions(model, state, np.array([token]))[2]
    kept = ahead.base.shape[1] - nodes
    base = ahead.base[:, np.append(np.arange(kept), kept + path)] if len(ahead.base) else ahead.base
    return _after(model, state, ahead._replace(base=base), np.append(state.tokens, np.int32(token)))


def distributions(
    model: CountedModel, stream: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "P N"]:
    """`log p` of every token at ascending places, of a model without history."""
    found, nodes, most = [], model.vocab_size - 1, max(1, _decisions // model.vocab_size)
    for some in np.split(places, np.arange(most, len(places), most)):
        ahead = look_ahead(model, begin(model), np.append(stream[: some[-1]], PAD), all_nodes(model, some))
        found.append(model.tree.log_probabilities(ahead.log_odds.reshape(len(some), nodes)))
    return np.concatenate(found)


COUNTED = (CountedModel, Part, Tree, Spelling, Cells, Statistics, Gate, Described, Layer, CountedState)

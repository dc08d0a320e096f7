"""The counted language model: decisions along a tree, evidence of cells, and their mix.

    log P(token) = sum_d log sigma(+-a_d),        a = w.x + sum_g D_g.z_g

Counting, the tree, tables of states and residuals need no gradient; the weights w are one Newton fit, those of gates a
recursive ridge regression. What a model sees of the text before a token is its *history*:

    none           the counts of the training text
    window:W       these, and the last W tokens
    document       these, and the document so far
    all            these, and all that was read
    adaptive       all that was read is counted with the training text, and gates go on learning
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Float32, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.counted.columns import Context, Spelling, Text, place_in_word, spelling
from jexplicit.lm.counted.evidence import Cells, Decisions, decisions, pass_over
from jexplicit.lm.counted.mixing import Gate, directions, newton, read_gate, whitening
from jexplicit.lm.counted.tree import Tree, grow

_bias = np.float32(0.3)
_blocks = 10  # of the training text: a static model is fitted on what the blocks before say
_sample = 200_000  # decisions that weights are fitted on
_ridge = 5.0
_clip = 9.5


class Inputs(NamedTuple):
    """Contexts of a model.

    chain: ever longer ones, each measured against those before it.
    others: measured against the whole chain.
    recent: what is also counted in the text before alone, where the history has such a text.
    """

    chain: tuple[Context, ...]
    others: tuple[Context, ...]
    recent: tuple[Context, ...] = ()


class Part(NamedTuple):
    """A context of a model, as it was counted.

    context: of columns.
    view: what it sees, see jexplicit.lm.counted.evidence.
    chained: whether later contexts are measured against it.
    kinds: of evidence.
    table: of states.
    cells: what it has seen at the end of the training text; None where only the text that is read counts.
    """

    context: Context
    view: str
    chained: bool
    kinds: tuple[str, ...]
    table: Float32[np.ndarray, "states bins"]
    cells: Cells | None

    @property
    def name(self) -> str:
        """What it is called: "last 3", "part + word", "2 + 3 back", "last 1, recent"."""
        back = [column for column in self.context.columns if isinstance(column, int)]
        last = [f"last {len(back)}"] if back == [*range(1, len(back) + 1)] else [f"{' + '.join(map(str, back))} back"]
        other = [str(getattr(column, "__name__", column)) for column in self.context.columns if not isinstance(column, int)]
        recent = [] if self.view in ("training", "all") else ["recent"]
        return ", ".join([" + ".join((last if back or not other else []) + other), *recent])


class CountedModel(NamedTuple):
    """A counted language model.

    tree: of tokens.
    parts: contexts in the order of their evidence.
    weights: [F] shared by all decisions.
    gates: with the names of their sets.
    spelling: of the tokens.
    history: what it sees of the text before.
    eos: whether `<pad>` is predicted, as the end of a document.
    """

    tree: Tree
    parts: tuple[Part, ...]
    weights: Float32[np.ndarray, " F"]
    gates: tuple[tuple[tuple[str, ...], Gate], ...]
    spelling: Spelling
    history: str
    eos: bool

    @property
    def vocab_size(self) -> int:
        """N, the number of token ids."""
        return len(self.tree.length)

    @property
    def radius(self) -> int:
        """The token furthest back of those that contexts name by their distance."""
        return max((column for part in self.parts for column in part.context.columns if isinstance(column, int)), default=1)

    @property
    def names(self) -> tuple[str, ...]:
        """What each context is."""
        return tuple(part.name for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(self))

    @property
    def scalars(self) -> int:
        """How many numbers were fitted: shared weights, directions of gates, and weights of their sets that have learned."""
        return self.weights.size + sum(gate.U.size + int(np.count_nonzero(gate.D)) for _, gate in self.gates)

    def __repr__(self) -> str:
        return f"CountedModel({len(self.parts)} contexts, {self.vocab_size} tokens, history={self.history!r}, eos={self.eos})"


def orders(k: int, first: int = 0) -> tuple[Context, ...]:
    """The last `first` to k tokens."""
    return tuple(Context(*range(1, n + 1)) for n in range(first, k + 1))


def _of(*columns: tuple[Any, ...], window: int | None = None) -> tuple[Context, ...]:
    return tuple(Context(*c, window=window) for c in columns)


CHARACTERS = Inputs(
    orders(7),
    _of(
        ("part",), ("part", "word"), ("part", "word", "word before"), ("since", "word"), ("since", "word before"),
        ("part", "word before"), ("line",), ("width", 1), ("width", 1, 2), ("since", "speaker"), ("line", "speaker"),
        (2, 3, 4), (1, 3, 4), (2, 3, 4, 5),
    ),
    (*orders(4), *_of(("part",), ("part", "word"), ("since", "word"))),
)  # fmt: skip
GATES = (("place", "known"), ("place", "node"), ("before", "depth"))


class Facts(NamedTuple):
    """What gates choose their sets by, of every decision: [B] each."""

    place: np.ndarray
    known: np.ndarray
    node: np.ndarray
    before: np.ndarray
    depth: np.ndarray


_sizes = {"place": 8, "known": 16, "node": 512, "before": 256, "depth": 16}


def sets_of(names: tuple[str, ...], facts: Facts) -> tuple[Int[np.ndarray, " B"], int]:
    """The set of every decision in a gate, and how many sets there are."""
    found, size = np.zeros(len(facts.node), np.int32), 1
    for name in names:
        found = found * _sizes[name] + np.minimum(getattr(facts, name), _sizes[name] - 1)
        size *= _sizes[name]
    return found, size


def facts_of(text: Text, d: Decisions, known: np.ndarray, tree: Tree) -> Facts:
    """What gates see of the decisions of a text."""
    tree_depth = np.zeros(len(tree.length), np.int32)
    place, depth = np.nonzero(tree.within)
    tree_depth[tree.node[place, depth]] = depth
    depth = tree_depth[d.node]
    before = np.minimum(np.append(0, text.ids[:-1]), 255)[d.place]
    return Facts(place_in_word(text)[d.place], known, d.node, before, depth)


def views_of(history: str) -> tuple[str, str | None]:
    """What contexts see, and the recent ones."""
    kind = history.partition(":")[0]
    if kind == "adaptive":
        return "all", None
    return "training", {"none": None, "window": history, "document": "document", "all": "own"}[kind]


def since(view: str, text: Text) -> str | np.ndarray:
    """A view of evidence: windows and documents by the first place that is seen."""
    if view == "document":
        return text.begin + 1
    if view.startswith("window:"):
        return np.maximum(np.arange(len(text.ids)) - int(view.partition(":")[2]), 0)
    return view


def fit_counted(
    ids: Integer[np.ndarray, " L"],
    N: int,
    tokenizer: Tokenizer | None = None,
    *,
    history: str = "none",
    inputs: Inputs = CHARACTERS,
    gates: Sequence[tuple[str, ...]] = GATES,
    kinds: tuple[str, ...] = ("counted", "residual"),
    eos: bool = False,
    seed: int = 0,
    size: int = 24,
    log: Any = lambda *a: None,
) -> CountedModel:
    """Count a text, and fit the weights."""
    ids = np.asarray(ids, np.int32)
    tree = grow(ids[ids != PAD] if not eos else ids, N)
    own = spelling(tokenizer, N)
    text = Text(ids, own, across=history in ("all", "adaptive") or history.startswith("window"))
    block = np.minimum(np.arange(len(ids)) * _blocks // len(ids), _blocks - 1)
    d = decisions(ids, tree, eos=eos, block=block)
    B, adaptive = len(d.bit), history.startswith("adaptive")
    base, known = np.zeros(B, np.float32), np.zeros(B, np.int32)
    view, recent = views_of(history)
    parts, x = [], []
    wanted = [(c, view, True) for c in inputs.chain] + [(c, view, False) for c in inputs.others]
    wanted += [(c, recent, False) for c in inputs.recent if recent]
    for context, view, chained in wanted:
        past = pass_over(context(text), d, base, views=(since(view, text),), kinds=kinds, keep=view in ("all", "training"))
        parts.append(Part(context, view, chained, kinds, past.tables[0], past.cells))
        x.append(past.x[0].astype(np.float16))
        if chained:
            base += past.x[0, 0]
            known += past.known[0]
        log(context, view)
    X = np.concatenate([*x, np.full((1, B), _bias, np.float16)])
    del x
    y, rng = d.bit, np.random.default_rng(seed)
    start = np.zeros(len(X))
    start[: len(inputs.chain) * len(kinds) : len(kinds)] = 1
    first = B * 2 // 5
    some = np.sort(rng.choice(np.arange(first, B), min(_sample, B - first), replace=False))
    weights, F = newton(X[:, some].T.astype(np.float32), y[some], start, _ridge)
    M, weights = whitening(F), weights.astype(np.float32)
    log_odds = mixed(weights, X)
    facts, fitted = facts_of(text, d, known, tree), []
    some = np.arange(B // 20, B, 4)
    for names in gates:
        sets, in_all = sets_of(names, facts)
        halves = None if adaptive else d.place[some] * 20 // len(ids) % 2
        gate = directions(
            X[:, some].T.astype(np.float32), y[some], log_odds[some], sets[some], M,
            sets_in_all=in_all, size=size, ridge=3.0 if adaptive else 300.0, halves=halves,
        )  # fmt: skip
        log_odds, gate = read_gate(gate, X, log_odds, sets, y, B)
        fitted.append((names, gate))
        log(names, gate.U.shape)
    return CountedModel(tree, tuple(parts), weights, tuple(fitted), own, history, eos)


def mixed(weights: np.ndarray, X: np.ndarray) -> Float32[np.ndarray, " B"]:
    """`w.x` of every decision."""
    out = np.empty(X.shape[1], np.float32)
    for a in range(0, len(out), 1 << 16):
        out[a : a + (1 << 16)] = weights @ X[:, a : a + (1 << 16)].astype(np.float32)
    return np.clip(out, -_clip, _clip)


class State(NamedTuple):
    """What a model has read.

    tokens: [n] all of them, from the `<pad>` before the first.
    gates: weights, which move in an adaptive model.
    done: decisions that these have learned from, whole blocks.
    """

    tokens: Int[np.ndarray, " n"]
    gates: tuple[Gate, ...]
    done: int


def begin(model: CountedModel) -> State:
    """The state before a text."""
    return State(np.zeros(1, np.int32), tuple(gate for _, gate in model.gates), 0)


def inputs_of(model: CountedModel, text: Text, d: Decisions) -> tuple[np.ndarray, np.ndarray]:
    """[F, B] the evidence of the decisions of a text, and how many contexts of the chain are known."""
    base, known, x = np.zeros(len(d.bit), np.float32), np.zeros(len(d.bit), np.int32), []
    for part in model.parts:
        views = (since(part.view, text),)
        past = pass_over(part.context(text), d, base, views=views, kinds=part.kinds, tables=(part.table,), before=part.cells)
        x.append(past.x[0].astype(np.float16))
        if part.chained:
            base += past.x[0, 0]
            known += past.known[0]
    return np.concatenate([*x, np.full((1, len(d.bit)), _bias, np.float16)]), known


def text_of(model: CountedModel, ids: np.ndarray) -> Text:
    history = model.history
    return Text(ids, model.spelling, across=history in ("all", "adaptive") or history.startswith("window"))


def log_odds_of(model: CountedModel, state: State, ids: np.ndarray, d: Decisions, learn: int):
    """[B] the log-odds of all decisions from `state.done` on, and the gates after them."""
    text = text_of(model, ids)
    X, known = inputs_of(model, text, d)
    facts, out, gates = facts_of(text, d, known, model.tree), mixed(model.weights, X)[state.done :], []
    for (names, _), gate in zip(model.gates, state.gates, strict=True):
        sets = sets_of(names, facts)[0][state.done :]
        out, gate = read_gate(gate, X[:, state.done :], out, sets, d.bit[state.done :], learn - state.done)
        gates.append(gate)
    return out, tuple(gates)


def read(model: CountedModel, state: State, tokens: Integer[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], State]:
    """`log p` of each of the tokens that come next, given all before, and the state after them."""
    ids = np.concatenate([state.tokens, np.asarray(tokens, np.int32)])
    d = decisions(ids, model.tree, eos=model.eos)
    adaptive = model.history.startswith("adaptive")
    learn = len(d.bit) // 64 * 64 if adaptive else 0
    a, gates = log_odds_of(model, state, ids, d, learn)
    nats = -np.logaddexp(0, (1 - 2 * d.bit[state.done :].astype(np.float32)) * a)
    log_p = np.zeros(len(ids))
    np.add.at(log_p, d.place[state.done :], nats)
    return log_p[len(state.tokens) :], State(ids, gates, learn if adaptive else 0)


def predict(model: CountedModel, state: State) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one, in nats: the decisions at all nodes, and their sums along the paths."""
    ids = np.append(state.tokens, np.int32(PAD))
    d, place = decisions(ids[:-1], model.tree, eos=model.eos), len(ids) - 1
    nodes = np.arange(len(model.tree.length) - 1)
    first = np.append(d.first, len(d.bit) + len(nodes))
    many = np.full(len(nodes), place, np.int32)
    d = Decisions(
        np.append(d.place, many), np.append(d.block, np.zeros(len(nodes), np.uint8)), np.append(d.node, nodes.astype(d.node.dtype)),
        np.append(d.bit, np.zeros(len(nodes), np.int8)), first, np.append(d.places, place),
    )  # fmt: skip
    a, _ = log_odds_of(model, state, ids, d, state.done)
    return model.tree.log_probabilities(a[len(a) - len(nodes) :])

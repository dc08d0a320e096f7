"""Any language model on a text: read with a state, scored, evaluated, combined."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float32, Int, Integer
from scipy.sparse import coo_array, csr_array

from jexplicit.counts import count_sparse
from jexplicit.data.streams import Stream, check_stream, check_token_ids, distinct_contexts
from jexplicit.data.text import MinimalPair, TextSizes
from jexplicit.data.tokenizers import PAD, UNK_ID, Progress, Tokenizer, encode_documents
from jexplicit.lm.counted import model as counted
from jexplicit.lm.counted.contexts import Decisions, decisions, predicted_places
from jexplicit.lm.counted.evidence import MOST, log_likelihoods, newton
from jexplicit.lm.counted.model import CountedModel, CountedState, begin, read_decisions
from jexplicit.lm.model import (
    LanguageModel,
    Past,
    SequenceRows,
    State,
    TableRows,
    contexts_at,
    draw_sample,
    map_contexts,
    read_text,
    sampled_positions,
)
from jexplicit.runs.devices import check_threads

_scored_at_once = 1 << 16  # tokens
BLOCK = 1000  # predictions; standard errors of few documents are taken over blocks of them
_tie = 1e-4  # nats: log-probabilities are float32, and sums of the same numbers in another order differ by some 1e-5
_deepest, _ridge = 12, 20.0  # depths with weights of their own in a combination, and their ridge to those of all decisions
_cells = 1 << 23  # places times tokens at once


class Combination(NamedTuple):
    """A counted model with another of the same tokens in its mix."""

    model: CountedModel
    other: Any
    weights: Float32[np.ndarray, "depths 3"]  # of the log-odds of both, and of 1

    eos = property(lambda self: self.model.eos)
    vocab_size = property(lambda self: self.model.vocab_size)
    context = property(lambda self: self.model.context)
    history = property(lambda self: self.model.history)
    names = property(lambda self: (*self.model.names, "other model"))
    nbytes = property(lambda self: self.model.nbytes + self.other.nbytes + self.weights.nbytes)

    def __repr__(self) -> str:
        return f"Combination({self.model!r}, {self.other!r})"

    def mix(self, a: np.ndarray, stream: np.ndarray, d: Decisions) -> Float32[np.ndarray, " B"]:
        """The log-odds of decisions in a stream, given the counted model's."""
        X = _inputs(self.model, self.other, a, stream, d)
        return np.einsum("bf,bf->b", X, self.weights[np.minimum(self.model.tree.depths[d.node], _deepest)])


class CombinationState(NamedTuple):
    """The state of the counted one of two models, and all tokens."""

    own: CountedState
    tokens: Int[np.ndarray, " n"]


if TYPE_CHECKING:
    AnyModel = Any  # the fields of a LanguageModel are known to no checker
else:
    AnyModel = LanguageModel | CountedModel | Combination
Counted = (CountedModel, Combination)
AnyState = State | CountedState | CombinationState


# Token by token


def init(model: AnyModel) -> AnyState:
    """The state before a text, at the start of its first document."""
    if isinstance(model, Combination):
        return CombinationState(begin(model.model), np.array([PAD], np.int32))
    return begin(model) if isinstance(model, CountedModel) else State(np.array([PAD], np.int32))


def read(
    model: AnyModel, state: AnyState, tokens: Integer[np.ndarray, " n"] | list[int], *, progress: Progress | None = None
) -> tuple[Float[np.ndarray, " n"], Any]:
    """`log p` of each next token given all before, and the state after them.

    Args:
        state: of `init` or of `read`, of this model.
        tokens: [n] ids; `<pad>` ends a document and begins the next. It has log p 0 where the model does not predict it.

    Example:
        >>> from jexplicit.lm.model import token_model
        >>> import jax.numpy as jnp
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> log_p, state = read(model, init(model), np.array([1, 2]))
        >>> np.exp(log_p).round(2).tolist(), state.tokens.tolist()
        ([0.25, 0.25], [0, 1, 2])
    """
    known, new = _check_state(model, state), check_ids(model, tokens).reshape(-1).astype(np.int32)
    stream = np.concatenate([state.tokens, new])
    if isinstance(known, CountedState):
        d, a, after = read_decisions(getattr(model, "model", model), known, new, progress)
        if isinstance(model, Combination):
            a = model.mix(a, stream, d._replace(place=d.place + len(state.tokens)))
            after = CombinationState(after, stream)
        return np.bincount(d.place, log_likelihoods(d.bit, a), len(new)).astype(float), after
    places = predicted_places(stream, model.eos, len(state.tokens))
    log_p, past = np.zeros(len(new), np.float32), Past(stream, places)
    if len(places):
        X = contexts_at(stream, places, model.context)
        log_p[places - len(state.tokens)] = log_probabilities(model, X, stream[places], past=past)
    return log_p, State(stream)


def predict(model: AnyModel, state: AnyState) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one, in nats."""
    return expect(model, state)[0]


def expect(model: AnyModel, state: AnyState) -> tuple[Float[np.ndarray, " N"], Callable[[int], Any]]:
    """The result of `predict`, and the next state as a function of the token."""
    own, stream = _check_state(model, state), np.append(state.tokens, np.int32(PAD))  # the next token is not looked at
    last, read_on = np.array([len(stream) - 1]), lambda token: read(model, state, [token])[1]
    if not isinstance(own, CountedState):
        X = contexts_at(stream, last, model.context)
        return log_distributions(model, X, past=Past(stream, last))[0], read_on
    one = getattr(model, "model", model)
    ahead = counted.expect(one, own)
    a = ahead.log_odds[1 - one.vocab_size :]
    if isinstance(model, CountedModel):
        return one.tree.log_probabilities(a), lambda token: counted.accept(one, own, ahead, token)
    return one.tree.log_probabilities(model.mix(a, stream, counted.all_nodes(one, last))), read_on


def states_at(model: AnyModel, stream: Integer[np.ndarray, " L"], places: Int[np.ndarray, " P"]) -> Iterator[Any]:
    """The state before each of some ascending places of a stream."""
    state, at = init(model), 1
    for place in places:
        state, at = read(model, state, stream[at:place])[1], int(place)
        yield state


def _check_state(model: AnyModel, state: Any) -> State | CountedState:
    """The state, or its counted part; that of another model is refused."""
    start: Any = init(model)
    own, first = (s.own if isinstance(s, CombinationState) else s for s in (state, start))
    same = type(state) is type(start)
    if not same or isinstance(first, CountedState) and (len(own.base), own.model) != (len(first.base), first.model):
        raise ValueError("a state that is not of this model: read the text with it")
    return own


# Whole texts


class Evaluation(NamedTuple):
    """The loss of a model on a text: summed negative log-likelihood and predictions."""

    nll: float
    positions: int

    loss = property(lambda self: self.nll / self.positions, doc="Mean negative log-likelihood, nats per position.")
    perplexity = property(lambda self: float(np.exp(self.loss)), doc="`exp(nll / positions)`.")


def evaluate(
    model: AnyModel,
    stream: Stream,
    *,
    sample: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The loss of any language model on a token stream, in nats.

    At K = 1 it comes from the stream's counts alone and is always exact. Beyond, a seeded sample of positions bounds the time.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        sample: how many positions to draw without replacement; default, all of them. Of a model that counts as it reads, they
            are the first ones.
        progress: called with (contexts done, contexts in all), or positions.

    Raises:
        ValueError: no position to predict, an unknown token id, a sample below 1, or a loss of NaN.
        RuntimeError: a process that was forked after JAX had started; a counted model reads there unless it is online.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> round(evaluate(model, np.array([0, 1, 2, 0])).perplexity, 3)  # p = 1/4 for both tokens
        4.0

    Source: paper, Eq. 1; perplexity is `exp(L / M)`, Sec. 4.
    """
    check_stream(stream)
    check_ids(model, stream[:1])
    if sample is not None and (sample < 1 or sample % 1):
        raise ValueError(f"a sample of {sample} positions: draw a whole number of at least 1, or None for all")
    if isinstance(model, Counted):
        ids = check_ids(model, np.asarray(stream[:], np.int32))
        places = predicted_places(ids, model.eos)
        if sample is not None and sample < len(places) and isinstance(model, CountedModel) and model.history == "none":
            drawn, log_p = places[draw_sample(len(places), sample, seed)], np.zeros(len(ids))
            for some in np.split(drawn, np.arange(_scored_at_once, len(drawn), _scored_at_once)):
                ahead = counted.look_ahead(model, begin(model), ids, decisions(ids, model.tree, some))
                np.add.at(log_p, ahead.d.place, log_likelihoods(ahead.d.bit, ahead.log_odds))
            log_p = log_p[drawn]
        else:
            end = len(ids) if sample is None or sample >= len(places) else places[sample]
            log_p = read(model, init(model), ids[1:end], progress=progress)[0][places[:sample] - 1]
        nll, positions = -log_p.sum(), len(log_p)
    else:
        check_threads()
        kind, past, times = model.rows, None, None
        if model.history:
            text = read_text(np.asarray(stream[:]), model.context, eos=model.eos)
            m = draw_sample(len(text.Y), sample, seed)
            X, Y, past = text.X[m], text.Y[m], text.past.take(m)
        elif model.context == 1 and isinstance(kind, TableRows):
            C: Any = coo_array(count_sparse(stream, context=1, vocab_size=model.vocab_size)[0])
            wanted = np.flatnonzero(model.eos | (C.col != PAD))
            X, Y, times = C.row[wanted, None], C.col[wanted], C.data[wanted]
        else:
            X, Y = sampled_positions(stream, model.context, model.vocab_size, eos=model.eos, sample=sample, seed=seed)
        n, positions = 1 if times is None else times, len(Y) if times is None else int(times.sum())
        if positions and isinstance(kind, TableRows) and not kind.normalised:
            distinct, often = distinct_contexts(X, times, ordered=model.ordered)
            log_Z = kind.log_partition(distinct, mesh=mesh, progress=progress).astype(np.float64)
            nll = np.sum(often * log_Z) - np.sum(n * kind.target_logits(X, Y, mesh=mesh).astype(np.float64))
        else:
            nll = -np.sum(n * log_probabilities(model, X, Y, past=past, mesh=mesh, progress=progress).astype(np.float64))
    if not positions:
        raise ValueError("no position to predict: the text has no tokens")
    if np.isnan(nll):
        raise ValueError("a loss that is NaN: the model has rows with NaN or with -inf alone; fit it from smoothed counts")
    return Evaluation(float(nll), positions)


def score(
    model: AnyModel, stream: np.ndarray, *, separate: bool = False, mesh: Mesh | None = None, progress: Progress | None = None
) -> Float[np.ndarray, " M"]:
    """`log p` of every prediction of a text given its context, in nats.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        separate: score each document as if it were the only one; otherwise models of the past see the documents before it.

    Raises:
        ValueError: a malformed stream, or a token id that the model does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> np.exp(score(model, np.array([0, 1, 2, 0]))).round(2).tolist()
        [0.25, 0.25]
    """
    check_stream(stream)
    check_ids(model, stream)
    if isinstance(model, Counted):
        documents = [stream[1:]]
        if separate and isinstance(model, CountedModel):
            model = model.within_documents()
        elif separate:
            documents = np.split(stream[1:], np.flatnonzero(stream[1:-1] == PAD) + 1)
        log_p = np.concatenate([read(model, init(model), text, progress=progress)[0] for text in documents])
        return log_p[predicted_places(stream, model.eos) - 1]
    text = read_text(stream, model.context, eos=model.eos)
    return log_probabilities(model, text.X, text.Y, past=text.past, mesh=mesh, progress=progress)


def log_probabilities(
    model: LanguageModel,
    X: Integer[np.ndarray, "M K"],
    Y: Integer[np.ndarray, " M"],
    *,
    past: Past | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y_m | x_m)` of every position, in nats.

    X: [M, K] contexts, nearest token first. past: where the positions stand in their text, for models that read the past.
    """
    check_threads()
    check_positions(model, X, Y)
    kind = model.rows
    if not len(Y):
        return np.zeros(0, np.float32)
    if isinstance(kind, TableRows):
        logits = kind.target_logits(X, Y, mesh=mesh)
        return logits if kind.normalised else logits - kind.log_partition(X, mesh=mesh, progress=progress)
    if isinstance(kind, SequenceRows):
        return kind.log_p(past, mesh=mesh, progress=progress)
    X_and_Y = np.concatenate([X.astype(np.int32), Y.astype(np.int32)[:, None]], axis=1)
    return map_contexts(_log_p_of_target, model, X_and_Y, mesh=mesh, progress=progress)


def log_distributions(
    model: AnyModel, X: Integer[np.ndarray, "M K"], *, past: Past | None = None, mesh: Mesh | None = None
) -> Float[np.ndarray, "M N"]:
    """`log p(. | x_m)` of every position, over all tokens, in nats; see `log_probabilities`."""
    if isinstance(model, Counted):
        if past is None:
            raise ValueError("a counted model reads the text before: say where the positions stand (past)")
        if not len(past.places):
            return np.zeros((0, model.vocab_size))
        if isinstance(model, CountedModel) and model.history == "none":
            return counted.distributions(model, past.stream.astype(np.int32), past.places)
        return np.stack([predict(model, state) for state in states_at(model, past.stream, past.places)])
    check_threads()
    check_positions(model, X, np.zeros(len(X), np.int32) if past is None else past.stream[past.places])
    if not len(X):
        return np.zeros((0, model.vocab_size), np.float32)
    if isinstance(model.rows, SequenceRows):
        return model.rows.log_p(past, whole=True, mesh=mesh)
    return map_contexts(_log_p, model, X, mesh=mesh)


def check_positions(model: LanguageModel, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuse contexts of another width, and token ids that the model does not have."""
    if X.ndim != 2 or X.shape[1] != model.context or len(X) != len(Y):
        raise ValueError(
            f"contexts of shape {X.shape} for {len(Y)} targets and a model of {model.context} context tokens: "
            f"pass [{len(Y)}, {model.context}], the nearest token first (jexplicit.contexts(stream, {model.context}))"
        )
    for ids in (X, Y):
        check_ids(model, ids)


def check_ids(model: AnyModel, ids: Any) -> np.ndarray:
    """Token ids as an array; others than the model's are refused."""
    ids = np.asarray(ids)
    if not hasattr(model, "vocab_size"):
        raise ValueError(f"a {type(model).__name__} instead of a model: pass the `model` of a TextModel")
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"token ids of {ids.dtype}: pass integers (of a text: TextModel, generate_text)")
    check_token_ids(ids, model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    return ids


def _log_p(model: LanguageModel, x: Integer[Array, " K"]) -> Float[Array, " N"]:
    return jax.nn.log_softmax(model.logits(x))


def _log_p_of_target(model: LanguageModel, x_and_y: Integer[Array, " K_plus_1"]) -> Float[Array, ""]:
    return _log_p(model, x_and_y[:-1])[x_and_y[-1]]


# Two models in one mix


def combine(model: CountedModel, other: Any, stream: Integer[np.ndarray, " L"]) -> Combination:
    """Mix two models by weights fitted on a text that neither has counted.

    The log-odds of a decision are `w_1 a + w_2 z + w_3`, with a those of the counted model, z those of the other model's masses
    at the right and at the left of a node, and w by the depth of the node.

    Args:
        other: any language model of the same tokens: a network, n-grams, another counted model.
        stream: [L] tokens, as of `score`.

    Raises:
        ValueError: models of other kinds or of other tokens, a malformed stream, or a text without any token.

    Example:
        >>> import jexplicit
        >>> texts, more = ["to be or not to be"] * 20, ["not to be"] * 9
        >>> one = jexplicit.fit(texts, tokenizer="char")
        >>> two = jexplicit.fit(texts, "bigram", tokenizer=one.tokenizer)
        >>> both = combine(one.model, two.model, jexplicit.data.encode_documents(one.tokenizer, more))
        >>> both.weights.shape  # of 13 depths of the tree
        (13, 3)
    """
    if not isinstance(model, CountedModel) or not isinstance(other, LanguageModel | CountedModel | Combination):
        kinds = f"{type(model).__name__} and {type(other).__name__}"
        raise ValueError(f"{kinds}: give a model of context mixing and any language model, the `model` of each TextModel")
    if other.vocab_size != model.vocab_size:
        raise ValueError(f"a model of {other.vocab_size} tokens with one of {model.vocab_size}: they need the same tokenizer")
    check_stream(stream)
    stream = check_ids(model, stream).astype(np.int32)
    d, a, _ = read_decisions(model, begin(model), stream[1:])
    if not len(a):
        raise ValueError("no token in the text that weights are fitted on: give some text")
    X = _inputs(model, other, a, stream, d._replace(place=d.place + 1))
    depth = np.minimum(model.tree.depths[d.node], _deepest)
    shared = newton(X, d.bit, np.array([1.0, 0.0, 0.0]), 1.0)
    weights = np.tile(shared, (_deepest + 1, 1))
    for of in np.unique(depth):
        weights[of] = newton(X[depth == of], d.bit[depth == of], shared, _ridge)
    return Combination(model, other, weights.astype(np.float32))


def _inputs(
    model: CountedModel, other: AnyModel, a: np.ndarray, stream: np.ndarray, d: Decisions
) -> Float32[np.ndarray, "B 3"]:
    """The log-odds of both models, the other's from its mass beside nodes, and 1."""
    places, row = np.unique(d.place, return_inverse=True)
    tree, N, found, size = model.tree, model.vocab_size, np.zeros(len(a)), max(1, _cells // model.vocab_size)
    token, depth = np.nonzero(tree.within)
    side = 2 * tree.node[token, depth] + tree.bit[token, depth]
    sides = csr_array((np.ones(len(token)), (token, side)), shape=(N, 2 * N))
    for first in range(0, len(places), size):
        some, past = (row >= first) & (row < first + size), Past(stream, places[first : first + size])
        log_p = log_distributions(other, contexts_at(stream, past.places, other.context), past=past)
        mass = np.maximum(np.exp(log_p.astype(np.float64)) @ sides, 1e-15).reshape(len(log_p), N, 2)
        left, right = mass[row[some] - first, d.node[some]].T
        found[some] = np.clip(np.log(right) - np.log(left), -MOST, MOST)
    return np.stack([a, found, np.ones(len(a))], axis=1).astype(np.float32)


# Measures of documents, and of texts with any tokens


def paired_difference(
    nll: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], sizes: Integer[np.ndarray, " n"]
) -> tuple[float, float]:
    """How much more one model loses per byte than another, on the same documents.

    nll, other: negative log-likelihood of each document under both, whatever their tokenizers. sizes: bytes, above 0. Returns
    the mean per byte, and its standard error (NaN of a single document).

    >>> paired_difference(np.array([4.0, 6.0]), np.array([3.0, 6.0]), np.array([2, 2]))
    (0.25, 0.25)
    """
    if not len(sizes) or not nll.shape == other.shape == sizes.shape:
        raise ValueError(f"losses {[nll.shape, other.shape]}, sizes {sizes.shape}: give one of each for every document")
    d, n, in_all = nll.astype(np.float64) - other.astype(np.float64), len(nll), sizes.sum()
    if not (np.isfinite(d).all() and (sizes > 0).all()):
        raise ValueError("losses that are not finite, or documents of 0 bytes or predictions: leave these documents out")
    mean = d.sum() / in_all
    variance = n / (n - 1) * np.sum((d - mean * sizes) ** 2) / in_all**2 if n > 1 else np.nan
    return float(mean), float(np.sqrt(variance))


def comparable_measures(nll: float, sizes: TextSizes | None) -> dict[str, float | None]:
    """Bits per byte, bits per character and word perplexity; None if unknown.

    nll: summed negative log-likelihood of the whole text, nats. Of a sample: mean per position times positions in all.

    >>> sizes = TextSizes(documents=1, bytes=4, characters=4, words=2)
    >>> {name: round(value, 3) for name, value in comparable_measures(8 * math.log(2), sizes).items()}
    {'bits_per_byte': 2.0, 'bits_per_character': 2.0, 'word_perplexity': 16.0}

    Source: Gao et al., lm-evaluation-harness, `lm_eval/api/metrics.py`.
    """
    names = "bits_per_byte", "bits_per_character", "word_perplexity"
    if np.isnan(nll):
        raise ValueError("a log-likelihood that is NaN: check the model")
    if sizes is None or not sizes.bytes:
        return dict.fromkeys(names)
    bits, exponent = nll / math.log(2), nll / sizes.words if sizes.words else math.inf  # white space has no words
    perplexity = math.exp(exponent) if exponent < 700 else None  # e^700 is a double, e^710 is not
    return dict(zip(names, (bits / sizes.bytes, bits / sizes.characters, perplexity), strict=True))


def positions_in_all(stream: np.ndarray, *, eos: bool = False) -> int:
    """The number of predictions of a stream: tokens, and predicted ends of documents."""
    return len(stream) - 1 if eos else int(np.count_nonzero(stream != PAD))


def unknown_share(stream: np.ndarray) -> float:
    """The share of `<unk>` among the tokens of a stream."""
    return int(np.count_nonzero(stream == UNK_ID)) / max(positions_in_all(stream), 1)


def spelling(tokenizer: Tokenizer, stream: np.ndarray, sizes: TextSizes | None) -> float:
    """The price in nats of a uniform code for the unknown in a text.

    A character costs ln 0x110000, the number of Unicode's. A word costs ln 256 for its end and for each byte; of a tokenizer of
    words all bytes cost ln 256 that are neither of known words nor one character of white space between words. Where the sizes
    of the text are not known, words cost 0.
    """
    counts = np.bincount(stream, minlength=tokenizer.vocab_size)
    unknown = int(counts[UNK_ID])
    if not tokenizer.of_words:
        return unknown * math.log(0x110000)
    if sizes is None:
        return 0.0
    words = (UNK_ID + 1 + np.flatnonzero(counts[UNK_ID + 1 :])).tolist()
    known = sum(int(counts[i]) * len("".join(tokenizer.piece(i).replace("▁", " ").split()).encode()) for i in words)
    return (max(sizes.bytes - (sizes.words - sizes.documents) - known, 0) + unknown) * math.log(256)


class DocumentLosses(NamedTuple):
    """The summed negative log-likelihood of every document, in nats, and its predictions."""

    nll: Float[np.ndarray, " n"]
    positions: Int[np.ndarray, " n"]


def document_losses(
    model: AnyModel, stream: np.ndarray, *, separate: bool = False, block: int | None = None, **options: Any
) -> DocumentLosses:
    """The loss of every document, or of blocks of fewer than ten documents.

    separate and options (mesh, progress): of `score`. block: predictions of a block, the last of which is shorter.
    """
    log_p = score(model, stream, separate=separate, **options).astype(np.float64)
    pads = np.flatnonzero(stream == PAD)
    starts = pads[:-1] if model.eos else pads[:-1] - np.arange(len(pads) - 1)
    if block and len(starts) < 10:
        starts = np.concatenate([np.arange(*ends, block) for ends in itertools.pairwise([*starts, len(log_p)])])
    return DocumentLosses(-np.add.reduceat(log_p, starts), np.diff(starts, append=len(log_p)))


def loss_fields(losses: Sequence[DocumentLosses]) -> dict[str, Any]:
    """`loss`, `perplexity`, `loss_se` and `positions` of some texts together."""
    nll, positions = (np.concatenate(part) for part in zip(*losses, strict=True))
    loss, error = paired_difference(nll, np.zeros_like(nll), positions)
    fields = {"loss": loss, "perplexity": float(np.exp(loss)), "loss_se": None if np.isnan(error) else error}
    return fields | {"positions": int(positions.sum())}


def score_documents(model: AnyModel, tokenizer: Tokenizer, documents: Sequence[str], **options: Any) -> Float[np.ndarray, " n"]:
    """`log p(document)` of every document of a text, in nats, in one call."""
    stream = encode_documents(tokenizer, documents)
    if np.count_nonzero(stream == PAD) != len(documents) + 1:
        n, text = next((n, text) for n, text in enumerate(documents) if not len(tokenizer.encode(text)))
        raise ValueError(f"document {n}, {text!r}, has no token: leave it out")
    return -document_losses(model, stream, **options).nll if len(documents) else np.zeros(0)


class Judgement(NamedTuple):
    """The share of pairs where the acceptable sentence is likelier."""

    accuracy: float
    ties: float
    pairs: int


def preferences(
    model: AnyModel, tokenizer: Tokenizer, pairs: Sequence[MinimalPair], *, progress: Progress | None = None
) -> Float[np.ndarray, " n"]:
    """`log p(good) - log p(bad)` of every pair, in nats, in one call."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    log_p = score_documents(model, tokenizer, sentences, separate=True, progress=progress)
    return log_p[::2] - log_p[1::2]


def judgement(differences: Float[np.ndarray, " n"]) -> Judgement:
    """Accuracy and ties of some pairs, from their `preferences`.

    >>> judgement(np.array([1.0, -0.5, 0.0, 2.0]))
    Judgement(accuracy=0.625, ties=0.25, pairs=4)
    """
    if not len(differences) or np.isnan(differences).any():
        raise ValueError(f"{len(differences)} differences, some maybe NaN: give at least one pair that a model can score")
    ties = np.abs(differences) < _tie
    right = (differences > 0) & ~ties
    return Judgement(float(np.mean(right + ties / 2)), float(ties.mean()), len(differences))

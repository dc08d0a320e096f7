"""Exact reasons of predictions: logits and log-odds are sums."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.data.tokenizers import PAD
from jexplicit.lm.counted.contexts import Context, Decisions, decisions, predicted_places
from jexplicit.lm.counted.evidence import CLIP, KINDS, Gate, log_likelihoods, read_gate, weigh
from jexplicit.lm.counted.model import Ahead, CountedModel, CountedState, begin, expect, look_ahead
from jexplicit.lm.evaluation import AnyModel, Combination, check_positions, states_at
from jexplicit.lm.model import HISTORY, LanguageModel, NetworkRows, Past, SequenceRows
from jexplicit.runs.devices import full_precision, map_rows


class Account(NamedTuple):
    """The log-odds that each context adds to decisions, and their sums."""

    decisions: Decisions
    entries: Float[np.ndarray, "B E"]
    log_odds: Float[np.ndarray, " B"]

    def by_token(self, n: int) -> list[np.ndarray]:
        """Log-odds of n coming tokens, their nats from even odds on, and log p."""
        d, signs, found = self.decisions, 2.0 * self.decisions.bit - 1, []
        near = np.abs(self.log_odds) < 1e-6
        a = np.where(near, 1.0, self.log_odds)
        share = np.where(near, signs / 2, (np.log(2) - np.logaddexp(0, -signs * a)) / a)  # (log sigma(+-a) + log 2) / a
        for part in (*(self.entries * w[:, None] for w in (signs, share)), log_likelihoods(d.bit, self.log_odds)):
            found.append(np.zeros((n, *part.shape[1:])))
            np.add.at(found[-1], d.place, part)
        return found


def _furthest_back(context: Context) -> int | None:
    """The context token that a context is attributed to: the furthest, HISTORY, or None."""
    if context.window is not None:
        return HISTORY
    tokens = [column for column in context.columns if isinstance(column, int)]
    return max(tokens, default=None) if len(tokens) == len(context.columns) else None


def account(model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " n"]) -> Account:
    """The log-odds that each context adds to the decisions of coming tokens."""
    ids = np.concatenate([state.tokens, np.asarray(tokens, np.int32)])
    new = decisions(ids, model.tree, predicted_places(ids, model.eos, len(state.tokens)))
    entries, log_odds = divide(model, state.gates, look_ahead(model, state, ids, new, learn=True))
    at = slice(len(log_odds) - len(new.bit), None)
    return Account(new._replace(place=new.place - len(state.tokens)), entries[at], log_odds[at])


def account_of_candidates(model: CountedModel, state: CountedState, tokens: Integer[np.ndarray, " A"]) -> Account:
    """The same of several candidates for the next token, which stand as places."""
    entries, log_odds = (part[1 - model.vocab_size :] for part in divide(model, state.gates, expect(model, state)))
    place, depth = np.nonzero(model.tree.within[tokens])
    node, bit = (of_path[tokens[place], depth] for of_path in (model.tree.node, model.tree.bit))
    return Account(Decisions(place, np.zeros_like(place), node, bit), entries[node], log_odds[node])


def divide(model: CountedModel, gates: tuple[Gate, ...], ahead: Ahead) -> tuple[np.ndarray, np.ndarray]:
    """[B, E] log-odds ahead divided among entries, and their sums; gates learn.

    log-odds = w.x + sum_g D_g.clip(U_g' x) = sum_f x_f (w_f + sum_gk D_gk c_gk U_gkf),     c = clip(U'x) / U'x
    """
    F, learn = KINDS * len(model.parts), ahead.blocks
    X, w = ahead.X.astype(np.float64), np.tile(model.weights.astype(np.float64), (len(ahead.d.bit), 1))
    a, done = np.zeros(len(w), np.float32), 0
    blocks = np.split(np.arange(len(a)), np.append(np.flatnonzero(np.diff(learn)) + 1, len(learn)))
    for gate, sets in zip(gates, ahead.sets, strict=True):
        K = len(gate.U)
        a, D = weigh(model.weights[done:K], ahead.X[done:K], a), np.empty((len(a), gate.U.shape[1]))
        for some in blocks:  # whose decisions share weights
            D[some] = gate.D[sets[some]]
            here = learn[some[some < len(learn)]]
            a[some], gate = read_gate(gate, ahead.X[:K, some], a[some], sets[some], ahead.d.bit[some], here)
        z = X[:K].T @ gate.U.astype(np.float64)
        w[:, :K] += (D * np.minimum(1, CLIP / np.maximum(np.abs(z), 1e-30))) @ gate.U.T.astype(np.float64)
        done = K
    a = weigh(model.weights[done:], ahead.X[done:], a)
    part = np.repeat(np.arange(len(model.names) + 1), [*[KINDS] * len(model.parts), *[1] * (len(X) - F)])
    entries = np.zeros((len(a), len(model.names) + 2))
    np.add.at(entries.T, part, X * w.T)
    entries[:, -1] = a - np.einsum("fb,bf->b", X, w)
    return entries, a.astype(np.float64)


class Attribution(NamedTuple):
    """The part of each row in the predictions of tokens or candidates, in nats.

    logits add up to the token's logit. evidence: the same less its mean under the model's prediction, how much a row speaks for
    this token.
    """

    names: tuple[str, ...]  # of the rows, such as "offset 2"
    tokens: tuple[int | None, ...]  # of the context that each row speaks for, 1 for the nearest; HISTORY; None
    logits: Float[np.ndarray, "M *A G"]
    evidence: Float[np.ndarray, "M *A G"]
    log_probability: Float[np.ndarray, "M *A"]

    def by_token(self, K: int) -> "Attribution":
        """The same, summed over the rows of each (furthest) context token."""
        groups = {f"{k} back": k for k in range(1, K + 1)} | {"history": HISTORY, "no token": None}
        present = {name: token for name, token in groups.items() if token in self.tokens or token not in (HISTORY, None)}
        member = np.array([[token == own for own in present.values()] for token in self.tokens], float)
        summed = (self.logits @ member, self.evidence @ member)
        return Attribution(tuple(present), tuple(present.values()), *summed, self.log_probability)


def explain(
    model: AnyModel, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, "M *A"], *, past: Past | None = None
) -> Attribution:
    """The exact contribution of every row to each prediction.

    Of a counted model a row is a context, its logit the log-odds that it adds to the decisions which lead to the token, and its
    evidence what it adds to log p, in nats, from even odds at every decision on.

    Args:
        model: of any kind but a network, whose logits are no sum over tokens.
        X: [M, K] contexts, nearest token first.
        Y: [M] the predicted tokens; or [M, A] several tokens for each position, such as the likeliest.
        past: where the positions stand in their text, for a counted model.

    Example:
        >>> from jexplicit.lm.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> round(explain(model, np.array([[1]]), np.array([0])).evidence.item(), 3)  # log 2 less its mean, half of it
        0.347
    """
    if isinstance(model, CountedModel):
        if past is None:
            raise ValueError("a counted model reads the text before: say where the positions stand (past)")
        return _of_counted(model, Y, past)
    check_explainable(model)
    check_positions(model, X, Y)
    parts = attribute_positions(model, X.astype(np.int32), Y.astype(np.int32))
    return Attribution(model.names, model.tokens, *(np.asarray(part) for part in parts))


def _of_counted(model: CountedModel, Y: np.ndarray, past: Past) -> Attribution:
    """The same of the contexts of a counted model; even odds stand last."""
    names, tokens = (*model.names, "bias", "clipped", "even odds"), [_furthest_back(part.context) for part in model.parts]
    if Y.ndim == 1:
        documents = np.flatnonzero(past.stream[:-1] == PAD)[1:]
        texts = np.split(past.stream[1:], documents if model.history == "online:document" else documents[:0])
        parts = [account(model, begin(model), of_text).by_token(len(of_text)) for of_text in texts]
        logits, evidence, log_p = (np.concatenate(part)[past.places - 1] for part in zip(*parts, strict=True))
    else:
        states = states_at(model, past.stream, past.places)
        parts = [account_of_candidates(model, *of).by_token(Y.shape[1]) for of in zip(states, Y, strict=True)]
        logits, evidence, log_p = (np.stack(part) for part in zip(*parts, strict=True))
    even = -np.log(2) * model.tree.length[Y][..., None]
    logits, evidence = np.concatenate([logits, 0 * even], axis=-1), np.concatenate([evidence, even], axis=-1)
    return Attribution(names, (*tokens, *[None] * (len(names) - len(tokens))), logits, evidence, log_p)


def check_explainable(model: AnyModel) -> None:
    """Refuse networks and mixes, whose logits are no sum over rows."""
    if isinstance(model, Combination):
        raise ValueError("explain of two models in one mix: explain each of them, `.model` and `.other`")
    if isinstance(model, LanguageModel) and isinstance(model.rows, NetworkRows | SequenceRows):
        raise ValueError("explain of a network: its logits are no sum over tokens; explain a model of rows instead")


@jax.jit
@full_precision
def attribute_positions(model: LanguageModel, X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """The parts of `Attribution` of each position, from contexts X and targets Y."""

    def one(position):
        x, y = position
        rows = jnp.stack(list(model.read(x)))
        log_p = jax.nn.log_softmax(rows.sum(axis=0))
        p = jnp.exp(log_p)
        mean = jnp.where(p == 0, 0, rows) @ p  # a row of -inf has no weight in it
        mine = rows[:, y]  # [G], or of several tokens [G, A]
        return mine.T, (mine - mean.reshape(-1, *(1,) * y.ndim)).T, log_p[y]

    return map_rows(one, (X, Y), cpu=16, elsewhere=1024)

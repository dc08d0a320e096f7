"""Exact reasons of predictions: the logits of a language model are sums of rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.lm.core.model import HISTORY, LanguageModel
from jexplicit.lm.counted.account import account_of_tokens, accounts_of_stream, entry_names, entry_tokens
from jexplicit.lm.counted.combine import Combination
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.counted.reading import within_documents
from jexplicit.lm.counted.use import AnyModel, states_at
from jexplicit.lm.evaluation import Past, check_positions
from jexplicit.lm.rows.network import NetworkRows, SequenceRows
from jexplicit.runs.devices import full_precision, map_rows


class Attribution(NamedTuple):
    """The part of every row in the predictions of M tokens or candidates.

    names: what each of the G rows is, such as "offset 2" or "cache 400".
    tokens: which token of the context each row speaks for, 1 for the nearest; HISTORY for the past, None for none.
    logits: [M, ..., G] what each row adds to the token's logit, nats; their sum is the logit.
    evidence: [M, ..., G] the same less its mean under the model's prediction: how much the row speaks for this token rather
        than for the others. Unlike the bare logits it does not change when a row is shifted.
    log_probability: [M, ...] nats.
    """

    names: tuple[str, ...]
    tokens: tuple[int | None, ...]
    logits: Float[np.ndarray, "M *A G"]
    evidence: Float[np.ndarray, "M *A G"]
    log_probability: Float[np.ndarray, "M *A"]

    def by_token(self, K: int) -> "Attribution":
        """The same, summed over the rows of each context token; untied rows come last.

        A row of a context of several tokens speaks for the one that is furthest back, as it stands over the context without it.
        """
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
        model: of any kind but a network.
        X: [M, K] contexts, nearest token first.
        Y: [M] the predicted tokens; or [M, A] several tokens for each position, such as the likeliest.
        past: where the positions stand in their text, for a counted model.

    Raises:
        ValueError: a network, whose logits are no sum over its tokens; positions that the model has no answer for.

    Example:
        >>> from jexplicit.lm.core.model import token_model
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
    model = model if past.starts is None else within_documents(model)
    names, tokens = (*entry_names(model), "even odds"), (*entry_tokens(model), None)
    if Y.ndim == 1:
        places = past.places - 1
        found = accounts_of_stream(model, past.stream)
        logits, evidence, log_p = (part[np.searchsorted(found[0], places)] for part in found[1:])
    else:
        states = states_at(model, past.stream, past.places)
        parts = [account_of_tokens(model, state, some) for state, some in zip(states, Y, strict=True)]
        logits, evidence, log_p = (np.stack(part) for part in zip(*parts, strict=True))
    even = -np.log(2) * model.tree.length[Y][..., None]
    logits, evidence = np.concatenate([logits, 0 * even], axis=-1), np.concatenate([evidence, even], axis=-1)
    return Attribution(names, tokens, logits, evidence, log_p)


def check_explainable(model: AnyModel) -> None:
    """Refuse a network and two models in one mix.

    Raises:
        ValueError: its logits are no sum over rows.
    """
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

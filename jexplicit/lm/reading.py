"""Reading a text piece by piece, with an explicit state.

    state = init(model)
    log_p, state = read(model, state, tokens)        # of each token, given all that was read before
    np.exp(predict(model, state))                    # the next token

Any language model can be read so; one that does not count has the text as its state.
"""

import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Integer

from jexplicit.data.contexts import PAD, check_token_ids
from jexplicit.lm.counted import reading as counted
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.counted.reading import Combination, CombinationState, Counted, CountedState, begin
from jexplicit.lm.evaluation import log_distributions, log_probabilities
from jexplicit.lm.files import read_model_file, save_model
from jexplicit.lm.model import AnyModel, Past, State, contexts_at
from jexplicit.runs.files import local_path


def init(model: AnyModel) -> State | CountedState | CombinationState:
    """The state before a text, at the start of its first document."""
    return begin(model) if isinstance(model, Counted) else State(np.array([PAD], np.int32))


def read(
    model: AnyModel, state: State | CountedState | CombinationState, tokens: Integer[np.ndarray, " n"] | list[int]
) -> tuple[Float[np.ndarray, " n"], Any]:
    """`log p` of each next token given all before, and the state after them.

    Args:
        state: of `init` or of `read`.
        tokens: [n] ids; `<pad>` ends a document and begins the next. It has log p 0 where the model does not predict it.

    Raises:
        ValueError: a token id that the model does not have, or a state of another model.

    Example:
        >>> from jexplicit.lm.model import token_model
        >>> import jax.numpy as jnp
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> log_p, state = read(model, init(model), np.array([1, 2]))
        >>> np.exp(log_p).round(2).tolist(), state.tokens.tolist()
        ([0.25, 0.25], [0, 1, 2])
    """
    new = np.asarray(tokens)
    if new.size and new.dtype.kind not in "iu":
        raise ValueError(f"tokens of {new.dtype}: give token ids, which are integers")
    check_token_ids(new.reshape(-1), model.vocab_size, f"and a model of {model.vocab_size}: use the model's own tokenizer")
    _check_state(model, state)
    if isinstance(model, Counted):
        return counted.read(model, state, new.reshape(-1))
    stream = np.concatenate([state.tokens, new.reshape(-1).astype(np.int32)])
    places = np.arange(len(stream) - new.size, len(stream))
    wanted = np.arange(len(places)) if model.eos else np.flatnonzero(stream[places] != PAD)
    log_p, past = np.zeros(len(places), np.float32), Past(stream, places[wanted])
    if len(wanted):
        X = contexts_at(stream, past.places, model.radius)
        log_p[wanted] = log_probabilities(model, X, stream[past.places], past=past)
    return log_p, State(stream)


def predict(model: AnyModel, state: State | CountedState | CombinationState) -> Float[np.ndarray, " N"]:
    """`log p` of every token as the next one, in nats."""
    _check_state(model, state)
    if isinstance(model, Counted):
        return counted.predict(model, state)
    stream = np.append(state.tokens, np.int32(PAD))  # the token that is predicted is not looked at
    place = np.array([len(stream) - 1])
    return log_distributions(model, contexts_at(stream, place, model.radius), past=Past(stream, place))[0]


def expect(
    model: AnyModel, state: State | CountedState | CombinationState
) -> tuple[Float[np.ndarray, " N"], Callable[[int], Any]]:
    """The result of `predict`, and the next state as a function of the token."""
    if not isinstance(model, CountedModel):
        return predict(model, state), lambda token: read(model, state, [token])[1]
    _check_state(model, state)
    log_p, ahead = counted.expect(model, cast(CountedState, state))
    return log_p, lambda token: counted.accept(model, cast(CountedState, state), ahead, token)


def save_state(path: str | os.PathLike, state: State | CountedState | CombinationState) -> None:
    """Write a state to a safetensors file, from which `load_state` goes on."""
    save_model(path, state)


def load_state(path: str | os.PathLike) -> State | CountedState | CombinationState:
    """The state of a file that `save_state` wrote."""
    return read_model_file(local_path(path), State | CountedState | CombinationState)[0]


def _check_state(model: Any, state: Any) -> None:
    """Refuse a state of another kind or model."""
    if not isinstance(model, Counted):
        if not isinstance(state, State):
            raise ValueError("a state of a counted model: read the text with this model")
        return
    combined = isinstance(model, Combination) and isinstance(state, CombinationState)
    pair: Any = (state.own, begin(model).own) if combined else (state, begin(model))
    found = [(len(of.base), of.model) for of in pair if isinstance(of, CountedState)]
    if len(found) < 2 or found[0] != found[1]:
        raise ValueError("a state that is not of this model: read the text with it")

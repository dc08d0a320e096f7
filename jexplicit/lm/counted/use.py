"""Losses of streams and distributions at places, for any count-based model."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from jaxtyping import Float, Int, Integer

from jexplicit.data.contexts import PAD, check_stream, check_token_ids
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.past import draw_sample
from jexplicit.lm.counted.combine import (
    Combination,
    CombinationState,
    begin_combined,
    distributions,
    predict_combined,
    read_combined,
)
from jexplicit.lm.counted.mixing import log_likelihoods
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.counted.reading import (
    CountedState,
    begin,
    decisions_at,
    look_ahead,
    pass_gates,
    predict,
    predict_alone,
    predicted_places,
    read,
    within_documents,
)

if TYPE_CHECKING:
    AnyModel = Any  # the fields of a LanguageModel are known to no checker
else:
    AnyModel = LanguageModel | CountedModel | Combination
Counted = (CountedModel, Combination)
_piece = 1 << 16  # tokens between two reports of progress
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
    for some in np.split(places, np.arange(_piece, len(places), _piece)):
        ahead = look_ahead(model, begin(model), stream, decisions_at(model.tree, stream, some))
        log_p = np.zeros(len(stream))
        np.add.at(log_p, ahead.d.place, log_likelihoods(ahead.d.bit, pass_gates(model, begin(model).gates, ahead)[0]))
        found.append(log_p[some])
    return np.concatenate(found)


def _read_pieces(model: CountedModel | Combination, stream: np.ndarray, progress: Progress | None) -> Iterator[np.ndarray]:
    state, piece = begin_any(model), _piece if progress else len(stream)
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

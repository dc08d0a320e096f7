"""A counted base for networks, which then learn what counting does not know.

    logits_t = a base_t + network(tokens)_t,        position t of a window predicts token t + 1

The base is log p of a language model of counts. Of the text that the network is trained on, it must not have counted what it
predicts (`cross_fit`), or the network learns to trust a base that knows the answers.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import NO_TOKEN, LanguageModel, context_of
from jexplicit.lm.core.model_row import ModelRow
from jexplicit.lm.core.past import Past, contexts_at
from jexplicit.lm.evaluation import log_distributions
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixtures.adaptive_mixture import history_of_base
from jexplicit.lm.fits.mixtures.mixture_rows import mixture_rows
from jexplicit.lm.rows.past.adaptive import AdaptiveRows
from jexplicit.lm.rows.selectors import selectors_of
from jexplicit.lm.training_text import Options, TrainingText, Watch


def base_logits(model: LanguageModel, tokens: Integer[Array, "B T"]) -> Float[Array, "B T N"]:
    """log p of the token after each token of some windows, by a model that sees the window alone: pure, under `jit`.

    Args:
        model: of rows that a context tells: all but adaptive ones.
        tokens: [B, T] ids; a window begins anywhere.

    Returns:
        nats; entry t predicts token t + 1 from tokens 0 .. t.

    Example:
        >>> from jexplicit.lm.core.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> jnp.exp(base_logits(model, jnp.array([[1, 2]]))).round(2).tolist()
        [[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]]
    """
    W = max(model.radius, model.history)

    def of_window(window: Int[Array, " T"]) -> Float[Array, "T N"]:
        known = jnp.concatenate([jnp.full(W, NO_TOKEN, jnp.int32), window])

        def after(t: Int[Array, ""]) -> Float[Array, " N"]:
            history = jax.lax.dynamic_slice(known, (t + 1,), (W,))[::-1]
            past = history[: model.history] if model.history else None
            return jax.nn.log_softmax(model.logits(context_of(history, model.radius), past))

        return jax.vmap(after)(jnp.arange(len(window)))

    return jax.lax.map(of_window, tokens.astype(jnp.int32))


def base_at(model: LanguageModel, stream: Integer[np.ndarray, " L"], places: Int[np.ndarray, " M"]) -> Float[np.ndarray, "M N"]:
    """log p of all tokens at some places of a text, by a model of any kind that sees all that stands before, in nats.

    Places in order are read in one pass; an adaptive model then reads on from one to the next.
    """
    return log_distributions(model, contexts_at(stream, places, model.radius), past=Past(stream, places))


class CrossFit(NamedTuple):
    """Models of a text without each of its folds, and one of the whole.

    stream: [L] the text.
    edges: [folds + 1] places where folds begin, and the end.
    models: of the text without each fold.
    whole: of all of it, for other texts; its exponents are those of all.
    """

    stream: Integer[np.ndarray, " L"]
    edges: Int[np.ndarray, " folds_plus_1"]
    models: tuple[LanguageModel, ...]
    whole: LanguageModel

    def base_at(self, places: Int[np.ndarray, " M"]) -> Float[np.ndarray, "M N"]:
        """log p of all tokens at some places of the text, each by the model that did not count it."""
        fold = np.clip(np.searchsorted(self.edges, places, side="right") - 1, 0, len(self.models) - 1)
        out = np.empty((len(places), self.whole.vocab_size), np.float32)
        for f, model in enumerate(self.models):
            m = np.flatnonzero(fold == f)
            begin = int(self.edges[f]) - 1 if _counts_on(model) else 0  # what it has counted already is not read again
            out[m] = base_at(model, self.stream[begin:], places[m] - begin)
        return out


def cross_fit(text: TrainingText, options: Options | None = None, *, folds: int = 10, watch: Watch | None = None) -> CrossFit:
    """A base for every position of a training text, from the counts of the other folds.

    The exponents are fitted once, as those of a mixture of the whole; then rows are counted without each fold. A fold is a part
    of the text, and what stands before it is read, though not counted. An adaptive mixture reads each fold as a text of its
    own, from the fold's begin on, as it will read other texts.

    Args:
        text: to count.
        options: of the mixture.
        folds: parts of the text.
        watch: who follows.

    Raises:
        ValueError: fewer than two folds, or more than there are tokens.

    Example::

        crossed = cross_fit(TrainingText(train, N), Options(rows=("contexts-4",)))
        base = crossed.base_at(starts[:, None] + np.arange(1, T + 1))  # [B, T, N] after a reshape
    """
    options, watch, stream = options or Options(), watch or Watch(), text.in_memory
    if not 2 <= folds < len(stream):
        raise ValueError(f"{folds} folds of {len(stream)} tokens: use 2 or more, and fewer than there are tokens")
    whole = fit_model("mixture", text, options, watch).model
    edges = np.linspace(1, len(stream), folds + 1).astype(np.int64)
    models = []
    with watch.stage("cross-fitting", "folds") as progress:
        for begin, end in pairwise(edges):
            models.append(_without(text, options, whole, int(begin), int(end)))
            progress(len(models), folds)
    return CrossFit(stream, edges, tuple(models), whole)


def _without(text: TrainingText, options: Options, whole: LanguageModel, begin: int, end: int) -> LanguageModel:
    """The model of a text without the tokens of a fold, with the exponents of the whole."""
    stream, parts = text.in_memory, []
    for part in (stream[:begin], stream[end:]):
        tokens = np.flatnonzero(part != PAD)
        parts += [[PAD], part[tokens[0] : tokens[-1] + 1]] if len(tokens) else []
    rest = text.like(np.concatenate([*parts, [PAD]]).astype(stream.dtype))
    return _counted(rest, options, whole)


def _counted(text: TrainingText, options: Options, like: LanguageModel) -> LanguageModel:
    """A mixture of a text, with the exponents of another one."""
    if not _counts_on(like):
        rows = mixture_rows(text, options.rows, smoothing=options.smoothing, history=options.history)
        return replace(like, rows=rows, selectors=selectors_of(rows, text.letters, text.tokenizer) if like.selectors else ())
    base, adaptive = like.rows[0].model, like.rows[1]
    history = history_of_base(options.history, characters=text.letters is not None)
    begun = None if adaptive.text is None else text.in_memory
    return replace(
        like, rows=(ModelRow(_counted(text, replace(options, history=history), base)), replace(adaptive, text=begun))
    )


def _counts_on(model: LanguageModel) -> bool:
    """Whether a model counts what it reads."""
    return any(isinstance(kind, AdaptiveRows) for kind in model.rows)

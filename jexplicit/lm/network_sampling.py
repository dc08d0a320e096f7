"""Text from a neural language model, token after token, many documents at once."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jexplicit.data.contexts import PAD
from jexplicit.lm.generation import restrict
from jexplicit.nn.networks import network_outputs


def sample_documents(
    key: Array,
    model: nn.Module,
    variables: dict[str, Any],
    *,
    context: int,
    documents: int,
    length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    banned: tuple[int, ...] = (),
) -> Int[np.ndarray, "documents length"]:
    """Documents drawn from their start; after a document's end, everything is `<pad>`.

    Args:
        key: a jax.random key; the same key gives the same documents.
        model: an MLPLanguageModel that predicts the end of a document.
        variables: of the model.
        context: K, the tokens that it reads.
        documents: how many.
        length: tokens of each, at most.
        temperature: divides the logits, above 0.
        top_k: keep only the k likeliest tokens.
        banned: token ids never to draw (`<unk>`).

    Raises:
        ValueError: numbers below 1 or a temperature that is not above 0.

    Example:
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> model = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 2), int))
        >>> sample_documents(jax.random.key(1), model, variables, context=2, documents=3, length=5).shape
        (3, 5)
    """
    if min(context, documents, length) < 1 or not temperature > 0:
        raise ValueError(
            f"context {context}, documents {documents}, length {length}, temperature {temperature}: the numbers are at least 1 "
            "and the temperature above 0"
        )

    def step(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        X, ended = state
        logits = network_outputs(model, variables, X)
        allowed = logits.at[:, list(banned)].set(-jnp.inf) if banned else logits
        rows = jax.vmap(lambda row: restrict(row / temperature, top_k=top_k))(allowed)
        drawn = jnp.where(ended, PAD, jax.random.categorical(key, rows)).astype(X.dtype)
        return (jnp.roll(X, 1, axis=1).at[:, 0].set(drawn), ended | (drawn == PAD)), drawn

    start = jnp.full((documents, context), PAD, jnp.int32), jnp.zeros(documents, bool)
    return np.asarray(jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(jax.random.split(key, length))).T

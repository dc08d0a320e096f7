"""Sampling text from a language model, one token after the other."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD, context_columns
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.explicit import TokenTables
from jexplicit.lm.softmax import Tables, logits


def generate(
    key: Array,
    model: TokenTables,
    prompt: Integer[np.ndarray, " n"],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    banned: tuple[int, ...] = (),
) -> Int[np.ndarray, " length"]:
    """Continue a prompt by `length` tokens.

    Args:
        key: a jax.random key; the same key gives the same text.
        model: tables. Where it predicts the end of a document, everything after that end is `<pad>`.
        prompt: [n] token ids; empty for the start of a document.
        length: tokens to generate.
        temperature: divides the logits; 0 takes the likeliest token every time.
        top_k: keep only the k likeliest tokens.
        top_p: keep the fewest likeliest tokens that hold at least this much probability.
        banned: token ids never to generate (`<unk>`); `<pad>` is banned too where the model does not predict it.

    Raises:
        ValueError: a temperature < 0, top_k < 1, top_p outside (0, 1], length < 1, an unknown token id, every token banned.

    Source: top-p (nucleus) sampling, Holtzman et al. 2020.
    """
    _check(model, prompt, length, temperature, top_k, top_p, banned)
    text = np.concatenate([np.full(model.radius, PAD), prompt, [PAD]]).astype(np.int32)  # the last one: the target
    context = np.array([column[-1] for column in context_columns(text, model.radius)])
    allowed = np.ones(model.vocab_size, bool)
    allowed[list(banned) + ([] if model.eos else [PAD])] = False
    if not allowed.any():
        raise ValueError(f"banned token ids {banned}: every token is banned; leave at least one to generate")
    return np.asarray(_generate(key, model.tables, context, allowed, temperature, length, top_k, top_p))


def generate_text(key: Array, model: TokenTables, tokenizer: Tokenizer, prompt: str, length: int, **options: Any) -> str:
    """The text by which a model continues a prompt; `<unk>` is never generated.

    Args:
        key: a jax.random key.
        model: tables.
        tokenizer: the model's own.
        prompt: text to continue; empty for the start of a document.
        length: tokens to generate.
        options: temperature, top_k, top_p of `generate`.

    Returns:
        the continuation, without the prompt.
    """
    before = tokenizer.encode(prompt)
    ids = generate(key, model, before, length, banned=(tokenizer.unk_id,), **options)
    return tokenizer.decode([*before, *ids]).removeprefix(tokenizer.decode(before))


def restrict(row: Float[Array, " N"], *, top_k: int | None = None, top_p: float | None = None) -> Float[Array, " N"]:
    """Logits with all but the likeliest tokens at -inf.

    Example:
        >>> restrict(jnp.log(jnp.array([0.5, 0.3, 0.2])), top_p=0.6)[2].item()
        -inf
    """
    if top_k is not None:
        row = jnp.where(row >= jnp.sort(row)[-min(top_k, len(row))], row, -jnp.inf)
    if top_p is not None:
        descending = jnp.sort(row)[::-1]
        p = jax.nn.softmax(descending)
        last_kept = jnp.sum(jnp.cumsum(p) - p < top_p) - 1  # tokens before it hold less than top_p
        row = jnp.where(row >= descending[last_kept], row, -jnp.inf)
    return row


def _check(model: TokenTables, prompt, length: int, temperature, top_k: int | None, top_p, banned: tuple[int, ...]) -> None:
    if length < 1:
        raise ValueError(f"length {length}: generate at least one token")
    if not temperature >= 0:
        raise ValueError(f"temperature {temperature}: use 0 (always the likeliest token) or more")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top-k {top_k}: keep at least one token")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top-p {top_p}: keep a probability in (0, 1]")
    if len(prompt) and not 0 <= int(np.min(prompt)) <= int(np.max(prompt)) < model.vocab_size:
        span = f"{int(np.min(prompt))} .. {int(np.max(prompt))}"
        raise ValueError(f"prompt with token ids {span}: the model has {model.vocab_size} tokens, 0 .. {model.vocab_size - 1}")
    if banned and not 0 <= min(banned) <= max(banned) < model.vocab_size:
        raise ValueError(f"banned token ids {banned}: the model has {model.vocab_size} tokens")


@functools.partial(jax.jit, static_argnames=("length", "top_k", "top_p"))
def _generate(
    key: Array,
    tables: Tables,
    context: Array,
    allowed: Array,
    temperature: Array,
    length: int,
    top_k: int | None,
    top_p: float | None,
) -> Array:
    def step(state, key):
        x, ended = state
        row = jnp.where(allowed, logits(tables, x), -jnp.inf)
        sharpened = restrict(row / jnp.maximum(temperature, 1e-6), top_k=top_k, top_p=top_p)
        drawn = jax.random.categorical(key, sharpened)
        i = jnp.where(temperature > 0, drawn, row.argmax()).astype(x.dtype)
        i = jnp.where(ended, PAD, i)
        return (jnp.roll(x, 1).at[0].set(i), ended | (i == PAD)), i

    return jax.lax.scan(step, (context, jnp.array(False)), jax.random.split(key, length))[1]

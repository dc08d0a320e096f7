"""The next token, and text sampled token by token, from any language model."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.tokenizers import PAD, Tokenizer
from jexplicit.lm.evaluation import AnyModel, Counted, check_ids, expect, init, predict, read
from jexplicit.lm.model import NO_TOKEN, LanguageModel, State, context_of
from jexplicit.runs.devices import check_threads, key_of_seed


def next_token(
    model: AnyModel, prompt: Integer[np.ndarray, " n"] | Sequence[int], first: Sequence[int] | np.ndarray | None = None
) -> Float[np.ndarray, " N"]:
    """`log p(token | prompt)` of every token, in nats.

    Args:
        prompt: [n] token ids of a document from its start, of the model's; empty for its first token.
        first: restrict the first generated token to these ids, see `prompt_ids`; None: no restriction.

    Example:
        >>> from jexplicit.lm.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 3))], "cat", False)
        >>> np.exp(next_token(model, np.array([1]))).round(2).tolist()
        [0.5, 0.25, 0.25]
    """
    ids = check_ids(model, prompt).astype(np.int32)
    check_threads()
    state = read(model, init(model), ids)[1] if isinstance(model, Counted) else State(np.append(np.int32(PAD), ids))
    row = np.where(_among(np.ones(model.vocab_size, bool), first), predict(model, state), -np.inf)
    return row - np.logaddexp.reduce(row)


def generate(
    key: Any,
    model: AnyModel,
    prompt: Integer[np.ndarray, " n"] | Sequence[int] | Sequence[Integer[np.ndarray, " _"] | Sequence[int]],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    banned: tuple[int, ...] = (),
    first: Sequence[Sequence[int] | np.ndarray | None] | None = None,
) -> Int[np.ndarray, "... length"]:
    """Continue a prompt, or each of several prompts, by `length` tokens.

    Args:
        key: a jax.random key, or a seed; the same one gives the same text.
        model: of any kind. Where it predicts the end of a document, everything after that end is `<pad>`.
        prompt: [n] token ids, empty for the start of a document; or a list of such arrays, whose texts are independent.
        temperature: divides the logits; 0 takes the likeliest token every time.
        top_k: keep only the k likeliest tokens.
        top_p: keep the fewest likeliest tokens that hold at least this much probability (Holtzman et al. 2020).
        banned: token ids never to generate (`<unk>`); `<pad>` is banned too where the model does not predict it.
        first: for every prompt, the token ids with one of which its continuation may begin, or None for all.

    Returns:
        [length] token ids, or [prompts, length].

    Raises:
        ValueError: a number out of its range, an unknown token id, every token banned.
        RuntimeError: a process that was forked after JAX had started.

    Example:
        >>> from jexplicit.lm.model import token_model
        >>> model = token_model([jnp.log(jnp.array([[0.25, 0.25, 0.5]] * 3))], "cat", False)
        >>> generate(jax.random.key(0), model, np.array([1]), 3, temperature=0).tolist()
        [2, 2, 2]
    """
    key = key_of_seed(key)
    check_threads()
    for name, value, needs, fits in (
        ("length", length, "at least one token, a whole number", lambda x: x >= 1 and x % 1 == 0),
        ("temperature", temperature, "0 (always the likeliest token) or more, and finite", lambda x: 0 <= x < np.inf),
        ("top-k", top_k, "at least one token, a whole number", lambda x: x is None or (x >= 1 and x % 1 == 0)),
        ("top-p", top_p, "a probability in (0, 1]", lambda x: x is None or 0 < x <= 1),
    ):
        if not isinstance(value, int | float | np.number | Array | None) or not fits(value):
            raise ValueError(f"{name} {value!r}: give {needs}")
    several = not isinstance(prompt, np.ndarray | jax.Array) and (not len(prompt) or any(np.ndim(p) for p in prompt))
    prompts = [check_ids(model, p).astype(np.int64).reshape(-1) for p in (prompt if several else [prompt])]
    if not prompts:
        raise ValueError("no prompts: give at least one, [[]] for the start of a document")
    if first is not None and len(first) != len(prompts):
        raise ValueError(f"first tokens of {len(first)} prompts, and {len(prompts)} prompts: give one of each, None for all")
    allowed = np.ones(model.vocab_size, bool)
    allowed[check_ids(model, [*banned, *([] if model.eos else [PAD])]).astype(np.int64)] = False
    if not allowed.any():
        raise ValueError(f"banned token ids {banned}: every token is banned; leave at least one to generate")
    begin = np.stack([_among(allowed, ids) for ids in first or [None] * len(prompts)])
    keys = jax.random.split(key, len(prompts)) if len(prompts) > 1 else key[None]
    how: Any = {"temperature": np.float32(temperature), "top_k": top_k, "top_p": top_p}
    if isinstance(model, Counted):
        ids = np.stack([_write(*one, model, allowed, length, **how) for one in zip(keys, prompts, begin, strict=True)])
    else:
        W = max(model.context, model.history)
        history = np.stack([np.concatenate([np.full(W, NO_TOKEN), [PAD], p]).astype(np.int32)[: -W - 1 : -1] for p in prompts])
        ids = np.asarray(_generate(keys, model, history, begin, allowed, length, **how))
    return ids if several else ids[0]


def generate_text(
    key: Any, model: AnyModel, tokenizer: Tokenizer, prompt: str | Sequence[str], length: int, **options: Any
) -> Any:
    """A model's continuation of a prompt, or of each of several; never `<unk>`.

    Args:
        prompt: text to continue, empty for the start of a document; or a list of such texts.
        options: temperature, top_k, top_p of `generate`.

    Prompt and continuation together are the text; a space at the end of the prompt stands once, see `prompt_ids`.

    Example:
        >>> from jexplicit.lm.fit import fit
        >>> model, tokenizer, _ = fit(["to be or not to be"], "explicit", tokenizer="char", context=2)
        >>> generate_text(jax.random.key(0), model, tokenizer, "to b", 3, temperature=0)
        'e o'
    """
    if not isinstance(prompt, str | list | tuple | np.ndarray):
        raise ValueError(f"prompt {prompt!r} of type {type(prompt).__name__}: give a text, or a list of texts")
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    known = [prompt_ids(tokenizer, text) for text in prompts]
    options |= {"banned": (tokenizer.unk_id,), "first": [first for _, first in known]}
    written, texts = generate(key, model, [ids for ids, _ in known], length, **options), []
    for text, (before, _), ids in zip(prompts, known, written, strict=True):
        read, whole = tokenizer.decode(before), tokenizer.decode([*before, *ids])
        after = whole.removeprefix(read) if whole.startswith(read) else tokenizer.decode(ids)
        if whole.startswith(text):
            after = whole.removeprefix(text)
        elif text[-1:].isspace() and not read[-1:].isspace():  # no second space at the seam
            after = after.removeprefix(" ")
        texts.append(after)
    return texts[0] if isinstance(prompt, str) else texts


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> tuple[Int[np.ndarray, " n"], np.ndarray | None]:
    """Token ids of a text to continue, and allowed next ids; None for all.

    Subwords bring their space with them: behind a space as a token of its own, as at the end of `the `, a model has seen hardly
    anything. That token is left out there, and the next one begins with a space.
    """
    ids = np.asarray(tokenizer.encode(prompt), np.int64)
    space = tokenizer.piece(int(ids[-1])) if len(ids) and prompt.endswith(" ") else ""
    if tokenizer.kind in ("char", "word") or len(space) != 1 or tokenizer.decode(ids[-1:]).strip():
        return ids, None
    return ids[:-1], np.array([i for i, piece in enumerate(tokenizer.pieces()) if piece.startswith(space)])


def restrict(row: Float[Array, " N"], *, top_k: int | None = None, top_p: float | None = None) -> Float[Array, " N"]:
    """Logits with all but the likeliest tokens at -inf."""
    if top_k is not None:
        row = jnp.where(row >= jnp.sort(row)[-min(top_k, len(row))], row, -jnp.inf)
    if top_p is not None:
        descending = jnp.sort(row)[::-1]
        p = jax.nn.softmax(descending)
        last_kept = jnp.sum(jnp.cumsum(p) - p < top_p) - 1  # tokens before it hold less than top_p
        row = jnp.where(row >= descending[last_kept], row, -jnp.inf)
    return row


def draw(
    key: Array, row: Float[Array, " N"], temperature: Array, *, top_k: int | None = None, top_p: float | None = None
) -> Int[Array, ""]:
    """A token drawn from the softmax of `row / temperature`; the likeliest at 0."""
    sharpened = restrict(row / jnp.maximum(temperature, 1e-6).astype(row.dtype), top_k=top_k, top_p=top_p)
    return jnp.where(temperature > 0, jax.random.categorical(key, sharpened), row.argmax())


def _among(allowed: np.ndarray, ids: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """The allowed tokens with one of the ids; all allowed ones without any."""
    some = np.zeros_like(allowed)
    some[[] if ids is None else list(ids)] = True
    return allowed & some if (allowed & some).any() else allowed


@functools.partial(jax.jit, static_argnames=("length", "top_k", "top_p"))
def _generate(
    keys: Array, model: LanguageModel, history: Array, begin: Array, allowed: Array, length: int, **how: Any
) -> Array:
    def step(state, key):
        history, ended, now = state
        logits = model.logits(context_of(history, model.context), history if model.history else None)
        row = jnp.where(now, logits, -jnp.inf)
        i = jnp.where(ended, PAD, draw(key, row, **how)).astype(history.dtype)
        return (jnp.roll(history, 1).at[0].set(i), ended | (i == PAD), allowed), i

    def one(key, history, begin):
        return jax.lax.scan(step, (history, jnp.array(False), begin), jax.random.split(key, length))[1]

    return jax.vmap(one)(keys, history, begin)


_draw = jax.jit(draw, static_argnames=("top_k", "top_p"))


def _write(key: Array, prompt: np.ndarray, now: np.ndarray, model: AnyModel, allowed: np.ndarray, length: int, **how: Any):
    """The same by a model that reads its own text, token by token."""
    state, ids = read(model, init(model), prompt)[1], np.full(length, PAD, np.int32)
    for n, own in enumerate(jax.random.split(key, length)):
        log_p, after = expect(model, state)
        ids[n] = _draw(own, np.where(now, log_p, -np.inf).astype(np.float32), **how)
        if ids[n] == PAD:
            break
        state, now = after(int(ids[n])), allowed
    return ids

"""Sampling. Tokens are integers: comparisons are exact, unless they are of frequencies."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, cooccurrences, greedy, log_softmax, random_documents, smallest_nucleus

from jexplicit.data.tokenizers import train_tokenizer
from jexplicit.lm import generation
from jexplicit.lm.core.model import token_model
from jexplicit.lm.evaluation import score
from jexplicit.lm.generation import generate, generate_text, next_token, restrict
from jexplicit.lm.rows import Features, explicit_language_model

N = 9
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(random_documents(6, 60, N, 7), 3, N))
SLOW = pytest.mark.slow
LENGTH = 20  # of most texts: one program each


def fit(K=2, kind: Features = "cat", eos=False, dtype=jnp.float64):
    return explicit_language_model(COUNTS, features=kind, radius=K, eos=eos, dtype=dtype)


def log(p):
    with np.errstate(divide="ignore"):
        return np.log(p)


def context_free(p, eos=False):
    """A model that draws every token from p, whatever came before."""
    return token_model((jax.device_put(np.tile(log(p), (len(p), 1))),), "cat", eos)


def random_key(seed=0):
    return jax.random.key(seed)


def prompt(*ids):
    return np.array(ids, np.uint16)


def test_the_same_key_gives_the_same_text_and_another_key_another():
    model = fit()
    first, again, other = (generate(key, model, prompt(1, 2), LENGTH) for key in (random_key(), random_key(), random_key(1)))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert first.shape == (LENGTH,)


@pytest.mark.parametrize(
    "kind, K, eos, dtype",
    [("sum", 2, True, np.float64), ("cat", 3, False, np.float32), pytest.param("cat", 1, False, np.float64, marks=SLOW)],
)
def test_temperature_zero_takes_the_likeliest_token_every_time(kind, K, eos, dtype):
    model = fit(K, kind, eos, dtype)
    for start in ([], [3], [1, 2, 4, 2]):
        expected = greedy([np.asarray(table) for table in model.tables], start, LENGTH, set() if eos else {PAD})
        assert generate(random_key(), model, prompt(*start), LENGTH, temperature=0).tolist() == expected


def test_top_k_of_one_and_a_tiny_temperature_take_the_likeliest_token():
    model = fit(3)
    likeliest = generate(random_key(), model, prompt(2), LENGTH, temperature=0)
    np.testing.assert_array_equal(generate(random_key(), model, prompt(2), LENGTH, temperature=5.0, top_k=1), likeliest)
    np.testing.assert_array_equal(generate(random_key(), model, prompt(2), LENGTH, temperature=1e-5), likeliest)


def test_a_banned_token_and_a_pad_that_is_not_predicted_never_appear():
    # of 10,000 tokens, a likely token is missed by chance with probability below 0.9^10,000
    model = context_free([0.3, 0.4, 0.2, 0.1])
    assert set(generate(random_key(), model, prompt(), 10_000).tolist()) == {1, 2, 3}
    assert set(generate(random_key(), model, prompt(), 10_000, banned=(1,)).tolist()) == {2, 3}
    assert set(generate(random_key(), model, prompt(), 10_000, banned=(1,), temperature=0).tolist()) == {2}


def test_after_the_end_of_the_document_there_are_only_pads():
    model = context_free([0.1, 0.4, 0.3, 0.2], eos=True)
    ended = 0
    for seed in range(20):
        text = generate(random_key(seed), model, prompt(1), LENGTH)
        if PAD in text:
            ended += 1
            assert not text[text.argmin() :].any()
    assert ended > 10  # each ends within 20 tokens with probability 1 - 0.9^20 = 0.88


def test_a_prompt_that_ends_a_document_starts_the_next_one():
    assert generate(random_key(), context_free([0.0, 0.4, 0.4, 0.2], eos=True), prompt(1, PAD), LENGTH).all()


@pytest.mark.parametrize(
    "K, prompts",
    [(2, [(5, 6, 3, 1), (2, 3, 1), (3, 1)]), (3, [(5, 6, PAD, 1), (2, PAD, 1), (1,)]), (3, [(), (PAD, PAD), (2, PAD)])],
)
def test_only_the_last_k_tokens_of_the_last_document_in_a_prompt_matter(K, prompts):
    first, *others = [generate(random_key(), fit(K), prompt(*ids), LENGTH) for ids in prompts]
    for text in others:
        np.testing.assert_array_equal(text, first)


# Several prompts

PROMPTS = [(1, 2), (), (3,), (4, 5, 6, 1, 2), (1, PAD, 2)]


@pytest.mark.parametrize("options", [{"temperature": 0.5, "top_k": 3}, {"top_p": 0.7, "banned": (1, 2)}])
def test_each_of_several_prompts_is_continued_as_if_alone(options):
    model = fit(3, eos=True)
    texts = generate(random_key(), model, [prompt(*ids) for ids in PROMPTS], LENGTH, **options)
    assert texts.shape == (len(PROMPTS), LENGTH)
    for text, key, ids in zip(texts, jax.random.split(random_key(), len(PROMPTS)), PROMPTS, strict=True):
        np.testing.assert_array_equal(text, generate(key, model, prompt(*ids), LENGTH, **options))


def test_a_list_of_token_ids_is_one_prompt():
    """As it is for `next_token`; and one prompt in a list has a row of its own."""
    model, ids = fit(2), [3, 4]
    listed, alone = (generate(random_key(), model, given, LENGTH) for given in ([prompt(1)], prompt(1)))
    assert listed.tolist() == [alone.tolist()]
    one, other = (generate(random_key(), model, given, LENGTH) for given in (ids, prompt(*ids)))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(next_token(model, np.array(ids)), next_token(model, ids))


def test_a_step_is_compiled_once_for_all_texts():
    step: Any = generation._generate
    compiled, model = step._cache_size(), fit(3, "sum")
    for seed in range(3):
        for ids, temperature in (((1, 2), 1.0), ((), 0.7), ((4, 5, 6, 1), 0)):
            generate(random_key(seed), model, [prompt(*ids)] * 3, 11, temperature=temperature)
    assert step._cache_size() == compiled + 1
    same_shape = fit(3, "sum")
    generate(random_key(), same_shape, [prompt(5)] * 3, 11, banned=(2,))
    assert step._cache_size() == compiled + 1


def test_texts_of_several_prompts_are_those_of_the_tokens():
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog ran on the hill"], kind="word")
    rng = np.random.default_rng(0)
    model = token_model([jax.device_put(rng.normal(size=(tokenizer.vocab_size,) * 2))], "cat", False)
    prompts = ["the cat", "", "a dog ran"]
    texts = generate_text(random_key(), model, tokenizer, prompts, 5, top_k=4)
    ids = generate(random_key(), model, [tokenizer.encode(text) for text in prompts], 5, top_k=4, banned=(tokenizer.unk_id,))
    for before, text, own in zip(prompts, texts, ids, strict=True):
        assert before + text == tokenizer.decode([*tokenizer.encode(before), *own])
    keys = jax.random.split(random_key(), 3)
    assert texts == [
        generate_text(key, model, tokenizer, before, 5, top_k=4) for key, before in zip(keys, prompts, strict=True)
    ]


# What comes next


@pytest.mark.parametrize("ids, eos", [((), False), ((1, 2, 4, 2), True), ((2, PAD, 1), False)])
def test_the_next_token_has_the_probabilities_that_a_text_is_scored_with(ids, eos):
    model = fit(3, eos=eos)
    log_p = next_token(model, prompt(*ids))
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, rtol=1e-12)
    for i in range(1, N):
        scores = score(model, np.array([PAD, *ids, i, PAD]))
        assert log_p[i] == pytest.approx(scores[-2 if eos else -1], abs=1e-12)


# Frequencies. A count of n draws is off by more than 6 standard deviations sqrt(p (1 - p) / n) with a probability below 1e-8
# per token; the seed is fixed, so that a test that passes once passes always.


def assert_frequencies(tokens, p):
    n = len(tokens)
    frequencies = np.bincount(tokens, minlength=len(p)) / n
    assert np.all(np.abs(frequencies - p) <= 6 * np.sqrt(p * (1 - p) / n))


def test_the_first_token_is_drawn_from_the_softmax_of_its_context():
    model = fit(3)
    row = np.sum([np.asarray(table)[j] for table, j in zip(model.tables, [2, 1, 0], strict=True)], axis=0)
    row[PAD] = -np.inf
    p = np.exp(log_softmax(row))
    assert p.max() < 0.9
    assert_frequencies(generate(random_key(), model, [prompt(1, 2)] * 1000, 1)[:, 0], p)


def test_the_temperature_divides_the_logits():
    p = np.array([0.0, 0.5, 0.3, 0.2])
    for temperature in (0.5, 1.0, 3.0):
        sharpened = p ** (1 / temperature)
        tokens = generate(random_key(), context_free(p), prompt(), 10_000, temperature=temperature)
        assert_frequencies(tokens, sharpened / sharpened.sum())


def test_each_next_token_is_drawn_from_the_row_of_the_one_before():
    P = np.array([[0, 0.5, 0.3, 0.2], [0, 0.7, 0.2, 0.1], [0, 0.2, 0.3, 0.5], [0, 0.1, 0.6, 0.3]])
    model = token_model((jax.device_put(log(P)),), "cat", False)
    text = generate(random_key(), model, prompt(1), 10_000)
    for j in (1, 2, 3):
        assert_frequencies(text[1:][text[:-1] == j], P[j])


def test_with_top_k_and_top_p_only_what_they_keep_is_drawn_in_its_own_proportion():
    p = np.array([0.0, 0.4, 0.3, 0.2, 0.1])
    kept = np.array([0, 4, 3, 0, 0]) / 7
    assert_frequencies(generate(random_key(), context_free(p), prompt(), 10_000, top_k=2), kept)
    assert_frequencies(generate(random_key(), context_free(p), prompt(), 10_000, top_p=0.6), kept)


# What top-k and top-p keep


def kept_tokens(row, **options):
    restricted = np.asarray(restrict(jax.device_put(row), **options))
    kept = np.isfinite(restricted)
    np.testing.assert_array_equal(restricted[kept], np.asarray(row)[kept])  # what is kept keeps its logit
    return set(np.flatnonzero(kept).tolist())


def test_top_p_equals_the_loop_that_adds_tokens_one_by_one():
    for top_p, seed in itertools.product([0.05, 0.3, 0.6, 0.9, 0.99, 1.0], range(5)):
        p = np.random.default_rng(seed).dirichlet(np.full(20, 0.3))
        assert kept_tokens(np.log(p), top_p=top_p) == smallest_nucleus(p, top_p)


def test_top_k_keeps_the_k_likeliest():
    row = np.random.default_rng(0).normal(size=20)
    for top_k in (1, 3, 20, 50):
        assert kept_tokens(row, top_k=top_k) == set(np.argsort(-row)[:top_k].tolist())


def test_top_p_is_taken_of_what_top_k_left():
    # of (0.4, 0.3) / 0.7 the first alone holds 0.57
    row = np.log([0.4, 0.3, 0.2, 0.1, *[1e-9] * 16])
    assert kept_tokens(row) == set(range(20)) and kept_tokens(row, top_p=0.5) == {0, 1}
    assert kept_tokens(row, top_k=2, top_p=0.5) == {0}


def test_adding_a_constant_to_all_logits_does_not_change_what_is_kept():
    row = np.random.default_rng(1).normal(size=20)
    for options in ({"top_k": 3}, {"top_p": 0.7}):
        assert kept_tokens(row, **options) == kept_tokens(row + 8.0, **options)

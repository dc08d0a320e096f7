"""Sampling. Tokens are integers: comparisons are exact, unless they are of frequencies."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from reference import PAD, cooccurrences, greedy, log_softmax, random_documents, smallest_nucleus

from jexplicit.lm.core.model import token_model
from jexplicit.lm.generation import generate, next_token, restrict
from jexplicit.lm.rows import Features, explicit_language_model, network_model
from jexplicit.nn.networks import MLPLanguageModel, init_variables, network_outputs

N = 9
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(random_documents(6, 60, N, 7), 3, N))
LENGTH = 20  # of most texts: one program each
KEY = jax.random.key


def fit(K=2, kind: Features = "cat", eos=False, dtype=jnp.float64):
    return explicit_language_model(COUNTS, features=kind, radius=K, eos=eos, dtype=dtype)


def context_free(p, eos=False):
    """A model that draws every token from p, whatever came before."""
    with np.errstate(divide="ignore"):
        return token_model((jax.device_put(np.tile(np.log(p), (len(p), 1))),), "cat", eos)


def prompt(*ids):
    return np.array(ids, np.uint16)


def test_temperature_zero_takes_the_likeliest_token_every_time_as_top_k_of_one_and_a_tiny_temperature_do():
    cases: list[tuple[Features, int, bool, Any]] = [("sum", 2, True, np.float64), ("cat", 3, False, np.float32)]
    for kind, K, eos, dtype in cases:
        model = fit(K, kind, eos, dtype)
        for start in ([], [3], [1, 2, 4, 2]):
            expected = greedy([np.asarray(table) for table in model.tables], start, LENGTH, set() if eos else {PAD})
            for temperature, top_k in ((0, None), (5.0, 1), (1e-5, None)):
                text = generate(KEY(0), model, prompt(*start), LENGTH, temperature=temperature, top_k=top_k)
                assert text.tolist() == expected


def test_banned_tokens_and_pads_that_are_not_predicted_never_appear_and_after_the_end_there_are_only_pads():
    model = context_free([0.3, 0.4, 0.2, 0.1])
    for banned, temperature, expected in (((), 1.0, {1, 2, 3}), ((1,), 1.0, {2, 3}), ((1,), 0, {2})):
        text = generate(KEY(0), model, prompt(), 10_000, banned=banned, temperature=temperature)
        assert set(text.tolist()) == expected
    texts = generate(KEY(0), context_free([0.1, 0.4, 0.3, 0.2], eos=True), [prompt(1)] * 20, LENGTH)
    ended = [text for text in texts if PAD in text]
    assert len(ended) > 10  # each ends within 20 tokens with probability 1 - 0.9^20 = 0.88
    assert not any(text[text.argmin() :].any() for text in ended)
    assert generate(KEY(0), context_free([0.0, 0.4, 0.4, 0.2], eos=True), prompt(1, PAD), LENGTH).all()  # the next document


PROMPTS = [(1, 2), (), (3,), (4, 5, 6, 1, 2), (1, PAD, 2)]


def test_each_of_several_prompts_is_continued_as_if_alone_and_a_list_of_ids_is_one_prompt():
    model = fit(3, eos=True)
    for options in ({"temperature": 0.5, "top_k": 3}, {"top_p": 0.7, "banned": (1, 2)}):
        texts = generate(KEY(0), model, [prompt(*ids) for ids in PROMPTS], LENGTH, **options)
        assert texts.shape == (len(PROMPTS), LENGTH)
        for text, key, ids in zip(texts, jax.random.split(KEY(0), len(PROMPTS)), PROMPTS, strict=True):
            np.testing.assert_array_equal(text, generate(key, model, prompt(*ids), LENGTH, **options))
    same = [generate(KEY(0), model, given, LENGTH).tolist() for given in ([3, 4, 2], prompt(3, 4, 2), [5, 6, PAD, 3, 4, 2])]
    assert same[1:] == same[:1] * 2  # only the last K tokens of the last document matter
    assert same[:1] == generate(KEY(0), model, [prompt(3, 4, 2)], LENGTH).tolist()
    np.testing.assert_array_equal(next_token(model, prompt(3, 4)), next_token(model, [3, 4]))


def assert_frequencies(tokens, p):
    """A count of n draws is off by more than 6 standard deviations with a probability below 1e-8 per token."""
    n = len(tokens)
    frequencies = np.bincount(tokens, minlength=len(p)) / n
    assert np.all(np.abs(frequencies - p) <= 6 * np.sqrt(p * (1 - p) / n))


def test_first_tokens_are_drawn_from_the_softmax_of_their_context():
    model = fit(3)
    row = np.sum([np.asarray(table)[j] for table, j in zip(model.tables, [2, 1, 0], strict=True)], axis=0)
    row[PAD] = -np.inf
    assert_frequencies(generate(KEY(0), model, [prompt(1, 2)] * 1000, 1)[:, 0], np.exp(log_softmax(row)))
    network = MLPLanguageModel(N, 2, (6,), dtype=jnp.float64, output_scale=3.0)
    made = init_variables(network, KEY(0), np.zeros((1, 2), np.int32))
    drawn = generate(KEY(1), network_model(network, made, context=2), [prompt()] * 4000, 1)
    p = jax.nn.softmax(network_outputs(network, made, jnp.zeros((1, 2), int)))[0]
    assert_frequencies(drawn[:, 0], np.asarray(p))


def test_the_temperature_divides_the_logits_and_top_k_and_top_p_draw_what_they_keep_in_its_own_proportion():
    p, q = np.array([0.0, 0.5, 0.3, 0.2]), np.array([0.0, 0.4, 0.3, 0.2, 0.1])
    cases: list[tuple[Any, dict[str, Any], Any]] = [(p, {"temperature": t}, p ** (1 / t)) for t in (0.5, 1.0, 3.0)]
    cases += [(q, kept, np.array([0, 4, 3, 0, 0])) for kept in ({"top_k": 2}, {"top_p": 0.6})]
    for given, options, expected in cases:
        assert_frequencies(generate(KEY(0), context_free(given), prompt(), 10_000, **options), expected / expected.sum())


def kept_tokens(row, **options):
    restricted = np.asarray(restrict(jax.device_put(row), **options))
    kept = np.isfinite(restricted)
    np.testing.assert_array_equal(restricted[kept], np.asarray(row)[kept])  # what is kept keeps its logit
    return set(np.flatnonzero(kept).tolist())


def test_top_k_keeps_the_likeliest_and_top_p_what_the_loop_adds_one_by_one_of_what_top_k_left():
    for top_p, seed in itertools.product([0.05, 0.6, 0.99, 1.0], range(4)):
        row = np.log(np.random.default_rng(seed).dirichlet(np.full(20, 0.3)))
        kept = smallest_nucleus(np.exp(row), top_p)
        assert kept_tokens(row, top_p=top_p) == kept == kept_tokens(row + 8.0, top_p=top_p)
    row = np.random.default_rng(0).normal(size=20)
    for top_k in (1, 3, 20, 50):
        assert kept_tokens(row, top_k=top_k) == set(np.argsort(-row)[:top_k].tolist())
    # of (0.4, 0.3) / 0.7 the first alone holds 0.57
    row = np.log([0.4, 0.3, 0.2, 0.1, *[1e-9] * 16])
    assert kept_tokens(row) == set(range(20)) and kept_tokens(row, top_p=0.5) == {0, 1}
    assert kept_tokens(row, top_k=2, top_p=0.5) == {0}

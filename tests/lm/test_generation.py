"""Sampling. Tokens are integers: comparisons are exact, unless they are of frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, greedy, log_softmax, random_documents, smallest_nucleus, stream_of

from jexplicit.counts.dense import count
from jexplicit.lm.explicit import Features, TokenTables, explicit_language_model
from jexplicit.lm.generation import generate, restrict

N = 8
COUNTS = count(stream_of(random_documents(6, 60, N, 7)), radius=3, vocab_size=N)
KEY = jax.random.key(0)


def fit(K=2, kind: Features = "cat", eos=False, dtype=jnp.float64):
    return explicit_language_model(COUNTS, features=kind, radius=K, eos=eos, dtype=dtype)


def context_free(p, eos=True):
    """A model that draws every token from p, whatever came before."""
    return TokenTables((jnp.tile(jnp.log(jnp.asarray(p))[None, :], (len(p), 1)),), "cat", eos)


def prompt(*ids):
    return np.array(ids, np.uint16)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_the_same_key_gives_the_same_text_and_another_key_another(dtype):
    model = fit(dtype=dtype)
    first, again, other = (generate(key, model, prompt(1, 2), 30) for key in (KEY, KEY, jax.random.key(1)))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert first.shape == (30,)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("kind, K, eos", [("cat", 1, False), ("sum", 2, True), ("cat", 3, True)])
def test_temperature_zero_takes_the_likeliest_token_every_time(kind, K, eos, dtype):
    model = fit(K, kind, eos, dtype)
    for start in ([], [3], [1, 2, 4, 2]):
        expected = greedy([np.asarray(table) for table in model.tables], start, 12, set() if eos else {PAD})
        assert generate(KEY, model, prompt(*start), 12, temperature=0).tolist() == expected


def test_top_k_of_one_takes_the_likeliest_token_at_any_temperature():
    model = fit(3)
    likeliest = generate(KEY, model, prompt(2), 20, temperature=0)
    np.testing.assert_array_equal(generate(KEY, model, prompt(2), 20, temperature=5.0, top_k=1), likeliest)


def test_a_tiny_temperature_takes_the_likeliest_token():
    model = fit(3)
    likeliest = generate(KEY, model, prompt(2), 20, temperature=0)
    np.testing.assert_array_equal(generate(KEY, model, prompt(2), 20, temperature=1e-5), likeliest)


def test_a_banned_token_and_a_pad_that_is_not_predicted_never_appear():
    # of 500 tokens, a likely token is missed by chance with probability below 0.9^500 = 1e-23
    model = context_free([0.3, 0.4, 0.2, 0.1], eos=False)
    assert set(generate(KEY, model, prompt(), 500).tolist()) == {1, 2, 3}
    assert set(generate(KEY, model, prompt(), 500, banned=(1,)).tolist()) == {2, 3}
    assert set(generate(KEY, model, prompt(), 500, banned=(1,), temperature=0).tolist()) == {2}


def test_after_the_end_of_the_document_there_are_only_pads():
    model = context_free([0.1, 0.5, 0.4])
    ended = 0
    for seed in range(20):
        text = generate(jax.random.key(seed), model, prompt(1), 40)
        if PAD in text:
            ended += 1
            assert not text[text.argmin() :].any()
    assert ended > 10  # each ends within 40 tokens with probability 1 - 0.9^40 = 0.985


def test_a_prompt_that_ends_a_document_starts_the_next_one():
    assert generate(KEY, context_free([0.0, 0.5, 0.5]), prompt(1, PAD), 10).all()


def test_only_the_last_k_tokens_of_a_prompt_matter():
    model = fit(2)
    texts = [generate(KEY, model, prompt(*start), 20) for start in [(5, 6, 3, 1), (2, 3, 1), (3, 1)]]
    np.testing.assert_array_equal(texts[0], texts[2])
    np.testing.assert_array_equal(texts[1], texts[2])


def test_nothing_before_a_pad_in_the_prompt_matters():
    model = fit(3)
    texts = [generate(KEY, model, prompt(*start), 20) for start in [(5, 6, PAD, 1), (2, PAD, 1), (1,)]]
    np.testing.assert_array_equal(texts[0], texts[2])
    np.testing.assert_array_equal(texts[1], texts[2])


def test_an_empty_prompt_is_the_start_of_a_document():
    model = fit(3)
    np.testing.assert_array_equal(generate(KEY, model, prompt(), 20), generate(KEY, model, prompt(PAD, PAD), 20))


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
    first = [generate(key, model, prompt(1, 2), 1).item() for key in jax.random.split(KEY, 1000)]
    assert_frequencies(first, p)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_divides_the_logits(temperature):
    p = np.array([0.0, 0.5, 0.3, 0.2])
    sharpened = p ** (1 / temperature)
    tokens = generate(KEY, context_free(p), prompt(), 10_000, temperature=temperature)
    assert_frequencies(tokens, sharpened / sharpened.sum())


def test_each_next_token_is_drawn_from_the_row_of_the_one_before():
    P = np.array([[0, 0.5, 0.5], [0, 0.8, 0.2], [0, 0.3, 0.7]])
    model = TokenTables((jnp.log(jnp.asarray(P)),), "cat", False)
    text = generate(KEY, model, prompt(1), 10_000)
    for j in (1, 2):
        assert_frequencies(text[1:][text[:-1] == j], P[j])


def test_with_top_k_and_top_p_only_what_they_keep_is_drawn_in_its_own_proportion():
    p = np.array([0.0, 0.4, 0.3, 0.2, 0.1])
    kept = np.array([0, 4, 3, 0, 0]) / 7
    assert_frequencies(generate(KEY, context_free(p), prompt(), 10_000, top_k=2), kept)
    assert_frequencies(generate(KEY, context_free(p), prompt(), 10_000, top_p=0.6), kept)


# What top-k and top-p keep


def kept_tokens(row, **options):
    restricted = np.asarray(restrict(jnp.asarray(row), **options))
    kept = np.isfinite(restricted)
    np.testing.assert_array_equal(restricted[kept], np.asarray(row)[kept])  # what is kept keeps its logit
    return set(np.flatnonzero(kept).tolist())


@pytest.mark.parametrize(
    "top_p, kept",
    [(0.1, {2}), (0.49, {2}), (0.51, {2, 0}), (0.79, {2, 0}), (0.81, {2, 0, 3}), (0.96, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p, kept):
    assert kept_tokens(np.log([0.3, 0.05, 0.5, 0.15]), top_p=top_p) == kept


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_top_p_equals_the_loop_that_adds_tokens_one_by_one(top_p):
    for seed in range(5):
        p = np.random.default_rng(seed).dirichlet(np.full(20, 0.3))
        assert kept_tokens(np.log(p), top_p=top_p) == smallest_nucleus(p, top_p)


@pytest.mark.parametrize("top_k", [1, 3, 20, 50])
def test_top_k_keeps_the_k_likeliest(top_k):
    row = np.random.default_rng(0).normal(size=20)
    assert kept_tokens(row, top_k=top_k) == set(np.argsort(-row)[:top_k].tolist())


def test_top_p_is_taken_of_what_top_k_left():
    # of (0.4, 0.3) / 0.7 the first alone holds 0.57
    row = np.log([0.4, 0.3, 0.2, 0.1])
    assert kept_tokens(row, top_p=0.5) == {0, 1}
    assert kept_tokens(row, top_k=2, top_p=0.5) == {0}


def test_restricting_by_nothing_keeps_the_row():
    row = jnp.asarray(np.random.default_rng(0).normal(size=9))
    np.testing.assert_array_equal(restrict(row), row)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.7}])
def test_adding_a_constant_to_all_logits_does_not_change_what_is_kept(options):
    row = np.random.default_rng(1).normal(size=12)
    assert kept_tokens(row, **options) == kept_tokens(row + 8.0, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"length": 0}, "length 0: generate at least one token"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top-k 0"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.5}, "top-p 1.5"),
        ({"prompt": np.array([1, N])}, f"ids 1 .. {N}: the model has {N} tokens"),
        ({"prompt": np.array([-1, 2])}, f"ids -1 .. 2: the model has {N} tokens"),
        ({"banned": (1, N)}, f"banned.*{N}.*the model has {N} tokens"),
        ({"banned": (-1,)}, f"banned.*-1.*the model has {N} tokens"),
        ({"banned": tuple(range(N))}, "every token is banned"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    arguments = {"prompt": prompt(1), "length": 5, **options}
    with pytest.raises(ValueError, match=message):
        generate(KEY, fit(), **arguments)

"""Losses, measures, attribution, sampling and the scaling assumption: against loops, SciPy and the bootstrap.

Tolerances: as for the loss, 1e-11 relative in float64; in float32 an evaluation may be off by some eps of its logits, 1e-5.
"""

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
import reference as ref
import scipy.stats

from jexplicit import count
from jexplicit.data import encode_documents, train_tokenizer
from jexplicit.data.streams import PAD
from jexplicit.data.text import MinimalPair, text_sizes
from jexplicit.lm.attribution import explain
from jexplicit.lm.evaluation import (
    DocumentLosses,
    comparable_measures,
    document_losses,
    evaluate,
    judgement,
    loss_fields,
    paired_difference,
    positions_in_all,
    preferences,
    score,
    score_documents,
    spelling,
    unknown_share,
)
from jexplicit.lm.generation import generate, next_token, restrict
from jexplicit.lm.layers import explicit_language_model, target_counts
from jexplicit.lm.model import Past, histories, read_text, token_model
from jexplicit.lm.names import Features
from jexplicit.lm.ngram import unigram_model
from launch.lm.run import fit_scaling, log_mean_cooccurrences

N = 9
TRAIN, DEV = ref.random_documents(3, 40, N, 6), ref.random_documents(4, 20, N, 8)
COUNTS = tuple(C.astype(np.int32) for C in ref.cooccurrences(TRAIN, 3, N))


def fit(K=2, kind: Any = "cat", eos=False, dtype: Any = np.float64):
    return explicit_language_model(COUNTS, features=kind, context=K, eos=eos, dtype=dtype)


def log_probabilities_of_all(model, X):
    rows = [np.sum([np.asarray(table)[j] for table, j in zip(model.tables, x, strict=True)], axis=0) for x in X]
    return np.array([ref.log_softmax(row) for row in rows])


def test_losses_are_entropies_and_a_pair_without_a_chance_costs_infinitely_much():
    stream, C = ref.stream_of(TRAIN), COUNTS[0].astype(float)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row[row > 0])
    with np.errstate(divide="ignore"):
        tables = [jax.device_put(np.log(D)) for D in (C, np.where(C == 1, 0, C))]
    one, none = (evaluate(token_model([table], "cat", True), stream) for table in tables)
    assert one.nll == pytest.approx(entropy, rel=1e-12) and none.nll == np.inf


def test_a_sample_is_drawn_by_its_seed_and_holds_no_position_twice():
    model, stream = fit(), ref.stream_of(DEV)
    exact = evaluate(model, stream)
    assert evaluate(model, stream, sample=exact.positions) == evaluate(model, stream, sample=10**9) == exact
    first, again, other = (evaluate(model, stream, sample=30, seed=seed) for seed in (5, 5, 6))
    assert first == again and first.nll != other.nll and first.positions == other.positions == 30
    # all but one position: the loss that is left out is that of one position, whichever it is
    left_out = exact.nll - evaluate(model, stream, sample=exact.positions - 1).nll
    X, Y = ref.windows(DEV, 2)
    losses = -log_probabilities_of_all(model, X)[np.arange(len(Y)), Y]
    assert np.min(np.abs(losses - left_out)) < 1e-10


def test_a_text_is_read_in_its_order_with_histories_across_documents_and_nothing_before_the_text():
    stream = ref.stream_of(DEV, np.uint8)
    for eos in (False, True):
        text = read_text(stream, 3, eos=eos)
        for found, expected in zip((text.X, text.Y), ref.windows(DEV, 3, eos=eos), strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(stream[text.past.places], text.Y)
        assert np.all(np.diff(text.past.places) > 0) and (PAD in text.Y) == eos
    places = np.array([1, 2, 7, len(stream) - 1, 3])
    found = histories(Past(stream, places), 6)
    for row, place in zip(found, places, strict=True):
        assert row.tolist() == [int(stream[place - w]) if place >= w else -1 for w in range(1, 7)]
    assert (found == -1).any() and (found[3] == PAD).any()


DOCUMENTS = ["to be or not", "to  be", "what ïs"]


def test_positions_unknown_tokens_and_the_spelling_of_what_has_no_token_are_those_of_a_loop_over_documents():
    for kind, eos in (("char", False), ("word", True)):
        tokenizer, sizes = train_tokenizer(DOCUMENTS[:2], kind=kind), text_sizes(DOCUMENTS)
        stream, ids = encode_documents(tokenizer, DOCUMENTS), [i for text in DOCUMENTS for i in tokenizer.encode(text)]
        unknown = ids.count(tokenizer.unk_id)
        assert positions_in_all(stream, eos=eos) == len(ids) + eos * len(DOCUMENTS)
        assert unknown_share(stream) == unknown / len(ids) > 0
        assert set(comparable_measures(1.0, None).values()) == {comparable_measures(1e6, sizes)["word_perplexity"]} == {None}
        # a character is one of Unicode; bytes of words, their ends and a second space are one of 256
        bits = {"char": unknown * math.log2(0x110000), "word": 8 * (len(" whatïs".encode()) + 2)}[kind]
        assert spelling(tokenizer, stream, sizes) == pytest.approx(bits * math.log(2), rel=1e-12)


def test_losses_of_documents_are_sums_of_their_scores_and_a_few_are_cut_in_blocks():
    U = jax.device_put(np.asarray(np.random.default_rng(0).normal(size=(7, 7)), np.float32))
    one, stream = np.array([0, 2, 3, 2, 4, 0]), np.array([0, 2, 3, 2, 0, 4, 0, 5, 6, 5, 0])
    for eos in (False, True):
        model = token_model([U], "cat", eos)
        parts, sizes = np.split(score(model, stream), np.cumsum([3 + eos, 1 + eos])), [3 + eos, 1 + eos, 3 + eos]
        assert document_losses(model, stream).nll == pytest.approx([-part.sum() for part in parts])
        assert document_losses(model, stream, block=3).positions.tolist() == ([3, 1, 2, 3, 1] if eos else [3, 1, 3])
        assert document_losses(model, np.append(np.tile(stream[:-1], 4), 0), block=1).positions.tolist() == 4 * sizes
        scores, blocks = score(model, one), document_losses(model, one, block=3)
        assert [*blocks.positions, *blocks.nll] == pytest.approx([3, 1 + eos, -scores[:3].sum(), -scores[3:].sum()])


RNG = np.random.default_rng(0)
SIZES = RNG.integers(5, 300, 400)
HARD = RNG.gamma(5.0, 0.3, 400)  # how hard a document is, for all models
ONE, OTHER = SIZES * (HARD + RNG.normal(0.02, 0.05, 400)), SIZES * HARD


def test_the_error_of_a_difference_is_that_of_the_paired_t_test_and_of_the_bootstrap():
    sizes = np.full(400, 50)
    (mean, error), t = paired_difference(50 * ONE / SIZES, 50 * OTHER / SIZES, sizes), scipy.stats.ttest_rel(ONE / SIZES, HARD)
    assert mean / error == pytest.approx(t.statistic)
    draws = RNG.integers(0, 400, (2000, 400))
    means, (mean, error) = (ONE - OTHER)[draws].sum(axis=1) / SIZES[draws].sum(axis=1), paired_difference(ONE, OTHER, SIZES)
    assert mean == pytest.approx((ONE.sum() - OTHER.sum()) / SIZES.sum())
    # 2000 draws: the relative error of a standard deviation is 1 / sqrt(2 * 2000) = 1.6 %, times 5
    assert error == pytest.approx(means.std(), rel=0.08)
    assert paired_difference(OTHER, ONE, SIZES) == pytest.approx((-mean, error))


def test_the_fields_of_texts_are_those_of_their_documents_together():
    one, two = DocumentLosses(np.array([2.0, 4.0]), np.array([1, 3])), DocumentLosses(np.array([6.0]), np.array([4]))
    found = loss_fields([one, two])
    assert (found["loss"], found["positions"], found["perplexity"]) == (12 / 8, 8, np.exp(12 / 8))
    assert found["loss_se"] == paired_difference(np.array([2.0, 4.0, 6.0]), np.zeros(3), np.array([1, 3, 4]))[1] > 0
    assert loss_fields([two])["loss_se"] is None
    assert loss_fields([DocumentLosses(2.0 * SIZES, SIZES)])["loss_se"] == 0  # of any length, losses per prediction being equal
    for nll, sizes in (([], []), ([1.0, np.nan], [1, 2]), ([1.0, 2.0], [0, 2])):
        with pytest.raises(ValueError, match=r"give one of each|leave these documents out"):
            loss_fields([DocumentLosses(np.array(nll, float), np.array(sizes, int))])


WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
DRAWN = np.random.default_rng(0)
SENTENCES = [" ".join(DRAWN.choice(WORDS, DRAWN.integers(4, 9))) for _ in range(250)]
PAIRS = [
    MinimalPair(good, " ".join(reversed(good.split()[:-1])) + " zebra" * (n % 2), "p") for n, good in enumerate(SENTENCES[:8])
]
PAIRS += [MinimalPair("the cat", "the cat", "p")]  # a tie


def test_preferences_are_those_of_a_slow_loop_and_no_sentence_sees_another():
    tokenizer = train_tokenizer(SENTENCES, kind="word")
    stream, size = encode_documents(tokenizer, SENTENCES), tokenizer.vocab_size
    model = explicit_language_model(count(stream, context=2, vocab_size=size), features="cat", context=2)

    def slow(sentence: str) -> float:
        ids = tokenizer.encode(sentence)
        return sum(float(next_token(model, ids[:n])[ids[n]]) for n in range(len(ids)))

    expected, whole = [slow(pair.good) - slow(pair.bad) for pair in PAIRS], preferences(model, tokenizer, PAIRS)
    np.testing.assert_allclose(whole, expected, atol=1e-4)  # sums of some ten float32 log-probabilities
    assert judgement(whole).ties == 1 / 9
    alone = [float(score(model, encode_documents(tokenizer, [document])).sum()) for document in SENTENCES[:5]]
    for separate in (True, False):  # of a model that does not see the documents before
        np.testing.assert_allclose(score_documents(model, tokenizer, SENTENCES[:5], separate=separate), alone, atol=1e-5)


def test_attribution_equals_the_loop_over_context_tokens_and_is_summed_by_token():
    X, Y = (part[:30] for part in ref.windows(DEV, 3))
    for kind, dtype, atol in (("cat", np.float64, 3e-10), ("sum", np.float32, 3e-4)):  # logits of order 10, three of them
        model, exact = fit(3, kind, dtype=dtype), fit(3, kind)
        why, log_P, rows = explain(model, X, Y), log_probabilities_of_all(exact, X), [np.asarray(U) for U in exact.tables]
        for m, (x, y) in enumerate(zip(X, Y, strict=True)):
            own = [row[j] for row, j in zip(rows, x, strict=True)]
            np.testing.assert_allclose(why.logits[m], [row[y] for row in own], rtol=0, atol=atol)
            np.testing.assert_allclose(why.evidence[m], [row[y] - np.exp(log_P[m]) @ row for row in own], rtol=0, atol=atol)
        np.testing.assert_allclose(why.log_probability, log_P[np.arange(30), Y], rtol=0, atol=atol)
        by_token = why.by_token(3)
        assert (why.names, why.tokens) == (("offset 1", "offset 2", "offset 3"), (1, 2, 3))
        assert (by_token.names, by_token.tokens) == (("1 back", "2 back", "3 back"), (1, 2, 3))
        np.testing.assert_array_equal([by_token.logits, by_token.evidence], [why.logits, why.evidence])
    why = explain(unigram_model(COUNTS), X[:, :1], Y)  # a row that no token changes is of no token
    assert (why.names, why.tokens, why.by_token(1).names) == (("unigram",), (None,), ("1 back", "no token"))
    np.testing.assert_array_equal(why.by_token(1).logits, np.stack([np.zeros(30), why.logits[:, 0]], axis=1))


def test_mean_cooccurrences_equal_the_loop_of_equations_11_to_13():
    for kind, K, eos, dtype, atol in (("sum", 2, False, np.float64, 1e-10), ("cat", 3, True, np.float32, 1e-4)):
        E, F, _ = ref.language_model(TRAIN, K, N, kind, eos=eos)
        X, _ = ref.windows(TRAIN, K, eos=eos)
        fast = log_mean_cooccurrences(fit(K, kind, eos, dtype), target_counts(COUNTS, eos=eos), np.tile(X, (9, 1)))  # in blocks
        assert fast.dtype == dtype
        np.testing.assert_allclose(fast, ref.log_mean_cooccurrences(ref.features(X, E, kind), F, K), rtol=0, atol=atol)


def test_the_fitted_line_is_scipy_s_without_outputs_never_seen():
    rng = np.random.default_rng(6)
    f = rng.integers(1, 5000, 60)
    log_means = 0.8 * np.log(f) + 1.5 + rng.normal(size=60)
    expected: Any = scipy.stats.linregress(np.log(f), log_means)
    line = fit_scaling(np.append(f, [0, 0]), np.append(log_means, [99.0, -np.inf]))
    np.testing.assert_allclose(line, [expected.slope, expected.intercept], rtol=1e-10)  # 60 points of condition number 10


# Sampling: tokens are integers, and comparisons are exact unless they are of frequencies

LENGTH = 20  # of most texts: one program each
KEY = jax.random.key


def context_free(p, eos=False):
    """A model that draws every token from p, whatever came before."""
    with np.errstate(divide="ignore"):
        return token_model((jax.device_put(np.tile(np.log(p), (len(p), 1))),), "cat", eos)


def prompt(*ids):
    return np.array(ids, np.uint16)


def test_temperature_zero_takes_the_likeliest_token_every_time_as_top_k_of_one_and_a_tiny_temperature_do():
    cases: list[tuple[Features, int, bool, Any]] = [("sum", 2, True, np.float64), ("cat", 3, False, np.float32)]
    for (kind, K, eos, dtype), start in itertools.product(cases, ([], [3], [1, 2, 4, 2])):
        model, likeliest = fit(K, kind, eos, dtype), start
        while len(likeliest) < len(start) + LENGTH:
            row = next_token(model, likeliest)
            ended = len(likeliest) > len(start) and likeliest[-1] == PAD
            likeliest = [*likeliest, PAD if ended else int(np.argmax(row if eos else [-np.inf, *row[1:]]))]
        for temperature, top_k in ((0, None), (5.0, 1), (1e-5, None)):
            text = generate(KEY(0), model, prompt(*start), LENGTH, temperature=temperature, top_k=top_k)
            assert text.tolist() == likeliest[len(start) :]


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


def test_the_temperature_divides_the_logits_and_top_k_and_top_p_draw_what_they_keep_in_its_own_proportion():
    """A count of n draws is off by more than 6 standard deviations with a probability below 1e-8 per token."""
    p, q = np.array([0.0, 0.5, 0.3, 0.2]), np.array([0.0, 0.4, 0.3, 0.2, 0.1])
    cases: list[tuple[Any, dict[str, Any], Any]] = [(p, {"temperature": t}, p ** (1 / t)) for t in (0.5, 1.0, 3.0)]
    cases += [(q, kept, np.array([0, 4, 3, 0, 0])) for kept in ({"top_k": 2}, {"top_p": 0.6})]
    for given, options, kept in cases:
        tokens, expected = generate(KEY(0), context_free(given), prompt(), 10_000, **options), kept / kept.sum()
        frequencies = np.bincount(tokens, minlength=len(expected)) / 10_000
        assert np.all(np.abs(frequencies - expected) <= 6 * np.sqrt(expected * (1 - expected) / 10_000))


def kept_tokens(row, **options):
    restricted = np.asarray(restrict(jax.device_put(row), **options))
    kept = np.isfinite(restricted)
    np.testing.assert_array_equal(restricted[kept], np.asarray(row)[kept])  # what is kept keeps its logit
    return set(np.flatnonzero(kept).tolist())


def test_top_k_keeps_the_likeliest_and_top_p_what_the_loop_adds_one_by_one_of_what_top_k_left():
    for top_p, seed in itertools.product([0.05, 0.6, 0.99, 1.0], range(4)):
        row = np.log(np.random.default_rng(seed).dirichlet(np.full(20, 0.3)))
        kept = ref.smallest_nucleus(np.exp(row), top_p)
        assert kept_tokens(row, top_p=top_p) == kept == kept_tokens(row + 8.0, top_p=top_p)
    row = np.random.default_rng(0).normal(size=20)
    for top_k in (1, 3, 20, 50):
        assert kept_tokens(row, top_k=top_k) == set(np.argsort(-row)[:top_k].tolist())
    # of (0.4, 0.3) / 0.7 the first alone holds 0.57
    row = np.log([0.4, 0.3, 0.2, 0.1, *[1e-9] * 16])
    assert kept_tokens(row, top_p=0.5) == {0, 1} and kept_tokens(row, top_k=2, top_p=0.5) == {0}

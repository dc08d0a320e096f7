"""Measures of models: against definitions of lm-evaluation-harness, the bootstrap, scipy, and loops of `next_token`."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jexplicit import count, evaluate, score
from jexplicit.data import encode_documents, train_tokenizer
from jexplicit.data.corpora import TextSizes, text_sizes
from jexplicit.data.inputs import MinimalPair, read_pairs
from jexplicit.lm import explicit_language_model, next_token
from jexplicit.lm.core.model import token_model
from jexplicit.lm.evaluation import (
    DocumentLosses,
    bootstrap_standard_error,
    comparable_measures,
    document_losses,
    judgement,
    loss_fields,
    paired_difference,
    positions_in_all,
    preferences,
    score_documents,
    spelling,
    unknown_share,
)
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.training_text import Options, TrainingText

DOCUMENTS = ["to be or not", "to  be", "what ïs"]


def uniform(N: int, eos: bool = False):
    return token_model([jnp.full((N, N), -math.log(N))], "cat", eos)


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("eos", [False, True])
def test_measures_are_those_of_a_loop_over_documents(kind, eos):
    tokenizer = train_tokenizer(DOCUMENTS[:2], kind=kind)
    stream, N = encode_documents(tokenizer, DOCUMENTS), tokenizer.vocab_size
    tokens = sum(len(tokenizer.encode(document)) + eos for document in DOCUMENTS)
    log_p = -tokens * math.log(N)
    found = comparable_measures(-float(score(uniform(N, eos), stream).sum()), text_sizes(DOCUMENTS))
    # rel=1e-6: log-probabilities are float32
    assert found["bits_per_byte"] == pytest.approx(-log_p / math.log(2) / sum(len(d.encode()) for d in DOCUMENTS), rel=1e-6)
    assert found["bits_per_character"] == pytest.approx(-log_p / math.log(2) / sum(map(len, DOCUMENTS)), rel=1e-6)
    assert found["word_perplexity"] == pytest.approx(math.exp(-log_p / sum(len(d.split()) for d in DOCUMENTS)), rel=1e-5)
    assert positions_in_all(stream, eos=eos) == tokens == evaluate(uniform(N, eos), stream).positions
    unknown = [int(i == tokenizer.unk_id) for document in DOCUMENTS for i in tokenizer.encode(document)]
    assert unknown_share(stream) == sum(unknown) / len(unknown) > 0
    # a character is one of Unicode; bytes of words, their ends and a second space are one of 256
    bits = {"char": sum(unknown) * math.log2(0x110000), "word": 8 * (len(" whatïs".encode()) + 2)}[kind]
    assert spelling(tokenizer, stream, text_sizes(DOCUMENTS)) == pytest.approx(bits * math.log(2), rel=1e-12)


def test_a_uniform_model_of_bytes_has_8_bits_per_byte_and_256_per_byte_word():
    sizes = text_sizes(["a b c"])
    found = comparable_measures(5 * math.log(256), sizes)
    assert found["bits_per_byte"] == found["bits_per_character"] == pytest.approx(8)
    assert found["word_perplexity"] == pytest.approx(256 ** (5 / 3))


def test_what_is_not_known_or_not_representable_is_none():
    assert set(comparable_measures(1.0, None).values()) == {None}
    assert comparable_measures(1e6, TextSizes(1, 900, 300, 1))["word_perplexity"] is None
    json.dumps(comparable_measures(1e6, TextSizes(1, 900, 300, 1)), allow_nan=False)


@pytest.mark.parametrize("eos", [False, True])
def test_losses_of_documents_are_sums_of_their_scores_and_a_single_one_is_cut_in_blocks(eos):
    U = jax.device_put(np.asarray(np.random.default_rng(0).normal(size=(7, 7)), np.float32))
    model, stream = token_model([U], "cat", eos), np.array([0, 2, 3, 2, 0, 4, 0, 5, 6, 5, 0])
    log_p = score(model, stream).tolist()
    expected, positions = [], []
    for length in (3, 1, 3):  # a loop over documents, with their ends where these are predicted
        own = [log_p.pop(0) for _ in range(length + eos)]
        expected.append(-sum(own))
        positions.append(len(own))
    found = document_losses(model, stream, block=2)
    assert found.nll == pytest.approx(expected) and found.positions.tolist() == positions and not log_p
    one = np.array([0, 2, 3, 2, 4, 0])
    blocks = document_losses(model, one, block=3)
    assert blocks.positions.tolist() == ([3, 2] if eos else [3, 1])
    assert blocks.nll.tolist() == pytest.approx([-score(model, one)[:3].sum(), -score(model, one)[3:].sum()])
    assert document_losses(model, one).positions.tolist() == [4 + eos]


# Comparisons of two models by document

RNG = np.random.default_rng(0)
SIZES = RNG.integers(5, 300, 400)
HARD = RNG.gamma(5.0, 0.3, 400)  # how hard a document is, for all models
ONE, OTHER = SIZES * (HARD + RNG.normal(0.02, 0.05, 400)), SIZES * HARD


def test_documents_of_equal_length_give_the_paired_t_test():
    sizes = np.full(400, 50)
    found = paired_difference(50 * ONE / SIZES, 50 * OTHER / SIZES, sizes)
    expected = scipy.stats.ttest_rel(ONE / SIZES, OTHER / SIZES)
    assert found.mean / found.standard_error == pytest.approx(expected.statistic)


def test_the_standard_error_is_that_of_the_bootstrap():
    draws = RNG.integers(0, 400, (2000, 400))
    means = (ONE - OTHER)[draws].sum(axis=1) / SIZES[draws].sum(axis=1)
    found = paired_difference(ONE, OTHER, SIZES)
    assert found.mean == pytest.approx((ONE.sum() - OTHER.sum()) / SIZES.sum())
    # 2000 draws: the relative error of a standard deviation is 1 / sqrt(2 * 2000) = 1.6 %, times 5
    assert found.standard_error == pytest.approx(means.std(), rel=0.08)


def test_a_model_does_not_differ_from_itself_and_the_order_changes_the_sign():
    assert paired_difference(ONE, ONE, SIZES) == (0, 0)
    there, back = paired_difference(ONE, OTHER, SIZES), paired_difference(OTHER, ONE, SIZES)
    assert there.mean == -back.mean and there.standard_error == pytest.approx(back.standard_error)
    assert math.isnan(paired_difference(ONE[:1], OTHER[:1], SIZES[:1]).standard_error)


def test_documents_that_all_lose_the_same_have_no_error():
    assert bootstrap_standard_error(np.full(50, 3.0), np.full(50, 7)) == 0
    assert bootstrap_standard_error(2.0 * SIZES, SIZES) == 0  # of any length, losses per prediction being equal
    assert math.isnan(bootstrap_standard_error(np.ones(1), np.ones(1, int)))


def test_the_error_of_independent_documents_of_equal_length_is_that_of_a_mean():
    """sd / sqrt(n) of means over 20 predictions. The 4000 draws have a relative error of 1 / sqrt(8000) = 1.1 %, times 5."""
    losses = RNG.normal(3.0, 0.7, (500, 20)).sum(axis=1)
    found = bootstrap_standard_error(losses, np.full(500, 20), draws=4000)
    assert found == pytest.approx(losses.std() / 20 / np.sqrt(500), rel=5 / np.sqrt(8000))


def test_the_error_is_how_much_new_texts_differ():
    """Texts of 300 documents drawn anew. The deviation of 2000 losses is known to 1.6 %, that of 1000 draws to 2.2 %, and a
    text knows its own spread to some 8 % (gamma documents): together 8.5 %, times 3."""

    def text(rng):
        sizes = rng.integers(5, 300, 300)
        return sizes * rng.gamma(5.0, 0.3, 300), sizes

    rng = np.random.default_rng(4)
    means = [nll.sum() / sizes.sum() for nll, sizes in (text(rng) for _ in range(2000))]
    assert bootstrap_standard_error(*text(rng)) == pytest.approx(np.std(means), rel=3 * 0.085)


def test_the_error_is_that_of_the_paired_comparison_with_a_model_that_loses_nothing():
    """Which is linearised: it differs by order 1/n, beside the 1 / sqrt(2000) = 2.2 % of the draws, times 4."""
    expected = paired_difference(ONE, np.zeros_like(ONE), SIZES).standard_error
    assert bootstrap_standard_error(ONE, SIZES) == pytest.approx(expected, rel=0.09)
    assert bootstrap_standard_error(ONE, SIZES) == bootstrap_standard_error(ONE, SIZES)  # of the same seed
    assert bootstrap_standard_error(ONE, SIZES, seed=1) != bootstrap_standard_error(ONE, SIZES)


@pytest.mark.parametrize(
    ("nll", "sizes", "draws"), [([], [], 10), ([1.0, np.nan], [1, 2], 10), ([1.0, 2.0], [0, 2], 10), ([1.0], [1], 1)]
)
def test_bad_documents_are_refused(nll, sizes, draws):
    with pytest.raises(ValueError, match=r"give one of each|leave these documents out"):
        bootstrap_standard_error(np.array(nll, float), np.array(sizes, int), draws=draws)


def test_the_fields_of_two_texts_are_those_of_their_documents_together():
    one, two = DocumentLosses(np.array([2.0, 4.0]), np.array([1, 3])), DocumentLosses(np.array([6.0]), np.array([4]))
    found = loss_fields([one, two])
    assert (found["loss"], found["positions"], found["perplexity"]) == (12 / 8, 8, np.exp(12 / 8))
    nll, sizes = np.array([2.0, 4.0, 6.0]), np.array([1, 3, 4])
    assert found["loss_se"] == bootstrap_standard_error(nll, sizes) > 0
    assert loss_fields([two])["loss_se"] is None


# Minimal pairs

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
DRAWN = np.random.default_rng(0)
SENTENCES = [" ".join(DRAWN.choice(WORDS, DRAWN.integers(4, 9))) for _ in range(250)]
PAIRS = [
    MinimalPair(good, " ".join(reversed(good.split()[:-1])) + " zebra" * (n % 2), f"p{n % 3}")
    for n, good in enumerate(SENTENCES[:12])
]
PAIRS += [MinimalPair("the cat", "the cat", "p0")]  # a tie


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES, kind="word")


@pytest.fixture(scope="module", params=["explicit", pytest.param("all", marks=pytest.mark.slow)])
def model(request, tokenizer):
    stream = encode_documents(tokenizer, SENTENCES)
    if request.param == "explicit":
        return explicit_language_model(count(stream, radius=2, vocab_size=tokenizer.vocab_size), features="cat", radius=2)
    text = TrainingText(stream, tokenizer.vocab_size, tokenizer=tokenizer)
    return fit_model("context-mixing", text, Options(history=request.param)).model


def slow(model, tokenizer, sentence: str) -> float:
    ids = tokenizer.encode(sentence)
    return sum(float(next_token(model, ids[:n])[ids[n]]) for n in range(len(ids)))


def test_preferences_are_those_of_a_slow_loop(model, tokenizer):
    expected = [slow(model, tokenizer, pair.good) - slow(model, tokenizer, pair.bad) for pair in PAIRS]
    # sums of some ten float32 log-probabilities
    np.testing.assert_allclose(preferences(model, tokenizer, PAIRS), expected, atol=1e-4)
    right = np.mean([1.0 if d > 1e-4 else 0.5 if d > -1e-4 else 0.0 for d in expected])
    found = judgement(preferences(model, tokenizer, PAIRS))
    assert found == (pytest.approx(right), pytest.approx(np.mean(np.abs(expected) < 1e-4)), len(PAIRS)) and found.ties > 0


def test_no_sentence_sees_another(model, tokenizer):
    """Also with a model of the past, which does see the documents before where a text is scored as one."""
    order = np.random.default_rng(1).permutation(len(PAIRS))
    whole = preferences(model, tokenizer, PAIRS)
    np.testing.assert_allclose(preferences(model, tokenizer, [PAIRS[n] for n in order]), whole[order], atol=1e-5)
    np.testing.assert_allclose(preferences(model, tokenizer, PAIRS[3:5]), whole[3:5], atol=1e-5)
    documents = SENTENCES[:5]
    alone = [float(score(model, encode_documents(tokenizer, [document])).sum()) for document in documents]
    np.testing.assert_allclose(score_documents(model, tokenizer, documents, separate=True), alone, atol=1e-5)
    together = score_documents(model, tokenizer, documents)
    assert together.sum() == pytest.approx(score(model, encode_documents(tokenizer, documents)).sum(), rel=1e-6)
    assert np.allclose(together, alone, atol=1e-5) == (getattr(model, "history", 0) != "all")


def test_pairs_are_read_with_what_the_file_says_of_them(tmp_path):
    line = {"sentence_good": "he runs", "sentence_bad": "he run"}
    (tmp_path / "one.jsonl").write_text(
        json.dumps(line) + "\n\n" + json.dumps({**line, "UID": "b", "field": "syntax/semantics"}) + "\n"
    )
    assert read_pairs([tmp_path]) == [
        MinimalPair("he runs", "he run", "one"),
        MinimalPair("he runs", "he run", "b", "syntax_semantics"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain text", "line 1, is not JSON"),
        ('{"sentence_good": "he runs"}', "sentence_bad"),
        ('{"sentence_good": "he runs", "sentence_bad": " "}', "a sentence is missing or empty"),
        ('{"sentence_good": "he runs", "sentence_bad": 3}', "line 1, is not a minimal pair"),
        ("\n\n", "has no pair"),
    ],
)
def test_files_without_pairs_are_refused(text, said, tmp_path):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_pairs([tmp_path])

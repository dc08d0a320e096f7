"""Judging by minimal pairs against a slow loop: one sentence at a time, with what `next_token` says of each of its tokens."""

import json

import numpy as np
import pytest

from jexplicit import count, encode_documents, explicit_language_model, next_token, score, train_tokenizer
from jexplicit.data.pairs import MinimalPair, read_pairs
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.measures import judgement, preferences, score_documents
from jexplicit.lm.training_text import Options, TrainingText

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
RNG = np.random.default_rng(0)
SENTENCES = [" ".join(RNG.choice(WORDS, RNG.integers(4, 9))) for _ in range(250)]
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

"""launch.classify_text against scikit-learn's naive Bayes, and what the command prints."""

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from launch.classify_text import main, measure

WORDS = np.array([*"abcdefgh"])


def drawn(seed: int, texts: int) -> tuple[list[str], np.ndarray]:
    """Texts of 6 words, in two classes with other frequencies of them."""
    rng, Y = np.random.default_rng(seed), np.arange(texts) % 2
    p = np.array([np.arange(1, 9), np.arange(8, 0, -1)]) / 36
    return [" ".join(rng.choice(WORDS, 6, p=p[y])) for y in Y], Y


def test_texts_of_equal_length_have_the_probabilities_of_naive_bayes():
    (train, Y), (test, Y_test) = drawn(0, 100), drawn(1, 40)
    rows, p = measure(train, Y, test, Y_test, [*test, "new"])
    counter = CountVectorizer(token_pattern=r"\w+").fit(train)
    bayes = MultinomialNB().fit(counter.transform(train), Y)
    expected = bayes.predict_proba(counter.transform(test))
    np.testing.assert_allclose(p[:-1], expected, rtol=1e-5)
    np.testing.assert_allclose(p[-1], 0.5)  # of a text without a known word: the prior
    prior, solved, trained = rows
    assert solved["model"] == "explicit solution, K = 6" and prior["accuracy"] == 0.5
    assert solved["accuracy"] == pytest.approx((expected.argmax(axis=1) == Y_test).mean())
    assert solved["loss"] == pytest.approx(-np.log(expected[np.arange(40), Y_test]).mean(), rel=1e-5)
    assert prior["loss"] == pytest.approx(np.log(2)) and trained["accuracy"] > 0.6


def test_the_command_reads_test_texts(tmp_path, capsys):
    lines = [f"{text},{('good', 'bad')[y]}" for text, y in zip(*drawn(0, 60), strict=True)]
    for name, own in (("train", lines), ("test", lines[:8]), ("new", ["a,ugly"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *own]) + "\n")
    flags = f"--train {tmp_path}/train.csv --field text --label label --text".split()
    assert main([*flags, "h h h h"]) == 0
    assert "54 training texts, 6 test texts" in capsys.readouterr().out
    assert main([*flags, "h h h h", "--test", f"{tmp_path}/test.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["accuracy"] == 0.5 and found["texts"][0]["label"] == "good"
    assert main([*flags, "h", "--test", f"{tmp_path}/new.csv"]) == 2
    assert "--test has the label 'ugly', which --train has not" in " ".join(capsys.readouterr().err.split())

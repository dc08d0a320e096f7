"""Sentences spoiled in each of the ways, against what their words and spaces must be."""

from collections import Counter

import pytest

from jexplicit.data.pairs import WAYS, corrupt_sentences, split_sentences

DOCUMENTS = [f"He said number {n}, that it's well-known (and so on) here. The dog of house {n} sat there!" for n in range(100)]
SENTENCES = [sentence for document in DOCUMENTS for sentence in split_sentences(document)]


def test_sentences_end_with_a_line_or_at_white_space_after_a_mark():
    document = "one two three four? one two three. Mr.X has 3.5 pounds!  a b c d\ne f g h " + "x " * 31 + "\n\n"
    assert split_sentences(document) == ["one two three four?", "Mr.X has 3.5 pounds!", "a b c d"]


@pytest.mark.parametrize("seed", [0, 1])
def test_each_way_changes_the_words_as_it_says(seed):
    """Swapped and moved words are the same words; dropped, inserted and replaced ones are one fewer, more, or another."""
    pairs = corrupt_sentences(DOCUMENTS, seed=seed)
    assert {pair.good for pair in pairs} <= set(SENTENCES) and len({pair.good for pair in pairs}) == len(pairs)
    ways = Counter(pair.paradigm for pair in pairs)
    assert set(ways) == set(WAYS) and max(ways.values()) - min(ways.values()) <= 1
    for pair in pairs:
        good, bad = (Counter(bare(sentence)) for sentence in (pair.good, pair.bad))
        gone, new = (good - bad).total(), (bad - good).total()
        expected = {"swap": (0, 0), "move": (0, 0), "drop": (1, 0), "insert": (0, 1), "replace": (1, 1)}
        assert (gone, new) == expected[pair.paradigm] and pair.good != pair.bad
        assert bare(pair.good)[0] == bare(pair.bad)[0] and pair.good[-5:] == pair.bad[-5:]
    assert pairs == corrupt_sentences(DOCUMENTS, seed=seed) != corrupt_sentences(DOCUMENTS, seed=seed + 1)


def bare(sentence: str) -> list[str]:
    return [word.strip("(),.!") for word in sentence.split()]


def test_a_swap_is_of_neighbours_and_punctuation_stays():
    swapped = [pair for pair in corrupt_sentences(DOCUMENTS) if pair.paradigm == "swap"]
    for pair in swapped:
        good, bad = bare(pair.good), bare(pair.bad)
        i = next(i for i in range(len(good)) if good[i] != bad[i])
        assert bad == [*good[:i], good[i + 1], good[i], *good[i + 2 :]]
        marks = [[c for c in sentence if c in "(),.!"] for sentence in (pair.good, pair.bad)]
        assert marks[0] == marks[1]


def test_new_words_are_as_frequent_as_in_the_text():
    documents = ["we go on and on and on now", "we go to the house now"] * 400
    new = Counter(
        word
        for pair in corrupt_sentences(documents)
        for word in (Counter(pair.bad.split()) - Counter(pair.good.split())).elements()
        if pair.paradigm == "insert"
    )
    text = Counter(word for document in documents for word in document.split())
    for word in text:  # a share of some 160 draws: three standard errors
        assert new[word] / new.total() == pytest.approx(text[word] / text.total(), abs=0.13)


def test_short_sentences_and_few_pairs():
    assert corrupt_sentences(["He ran home.", "3 4 5 6 7"]) == corrupt_sentences([]) == []
    assert len(corrupt_sentences(DOCUMENTS, most=7)) == 7

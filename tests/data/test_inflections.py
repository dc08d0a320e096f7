"""Forms of words by counts, and the minimal pairs made of them, on texts whose stems are known."""

from collections import Counter

import pytest

from jexplicit.data.inflections import count_words, ending_pairs, inflected_forms, split_sentences, swap_words

STEMS = "walk talk jump look play climb".split()
ENDINGS = ("", "s", "ed", "ing")
COUNTS = Counter({stem + ending: 20 for stem in STEMS for ending in ENDINGS}) + Counter(mouse=50, the=500, ox=30, oxs=30)
WORDS = [word for word in COUNTS if word[:4] in {stem[:4] for stem in STEMS}]


def text(seconds: int = 8) -> list[str]:
    """Two sentences a document, of which half has a form with s, after `he`."""
    return [f"He often {STEMS[n % 6]}s near house {n}. They often {STEMS[n % 6]} near house {n}!" for n in range(6 * seconds)]


def forms_of_s():
    return {one: (two,) for stem in STEMS for one, two in ((stem, stem + "s"), (stem + "s", stem))}


def test_words_are_counted_as_they_stand():
    counts = count_words(["The dog's owner, the well-known Tom, can't see 3 dogs; dogs_2 see\nthe owner.", "élan the"])
    assert counts == Counter(the=3, owner=2, see=2, can=0, dogs=1, élan=1) - Counter()


def test_endings_that_all_stems_take_are_found():
    """With four endings for each of six stems every pair has six; stems that end before their words part have none."""
    found = ending_pairs(COUNTS)
    assert found == {(one, two): 6 for one in ENDINGS for two in ENDINGS if one < two}
    assert list(ending_pairs(COUNTS, most=2)) == [("", "ed"), ("", "ing")]
    assert ending_pairs({word: 9 for word in COUNTS}) == {} != ending_pairs({word: 9 for word in COUNTS}, least=9)


def test_every_form_of_a_stem_is_in_the_place_of_the_others():
    forms = inflected_forms(COUNTS)
    assert set(forms) == set(WORDS)  # neither a word of one form nor a stem of two letters
    for stem in STEMS:
        for ending in ENDINGS:
            assert set(forms[stem + ending]) == {stem + other for other in ENDINGS} - {stem + ending}
    assert inflected_forms(COUNTS, most=1)["walk"] == ("walked",)


def test_endings_of_few_stems_are_no_forms():
    assert inflected_forms(Counter({"walk": 20, "walks": 20, "talk": 20, "talks": 20})) == {}
    assert inflected_forms({}) == {}


def test_sentences_end_with_a_line_or_at_white_space_after_a_mark():
    document = "one two three four? one two three. Mr.X has 3.5 pounds!  a b c d\ne f g h " + "x " * 31 + "\n\n"
    assert split_sentences(document) == ["one two three four?", "Mr.X has 3.5 pounds!", "a b c d"]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_pair_differs_in_one_word_which_is_another_form(seed):
    forms = inflected_forms(COUNTS)
    pairs = swap_words(text(), forms, seed=seed)
    sentences = [sentence for document in text() for sentence in split_sentences(document)]
    assert pairs and len({pair.good for pair in pairs}) == len(pairs) and {pair.good for pair in pairs} <= set(sentences)
    for pair in pairs:
        good, bad = pair.good.split(), pair.bad.split()
        assert len(good) == len(bad) and pair.paradigm == "swapped"
        ((one, two),) = [(one, two) for one, two in zip(good, bad, strict=True) if one != two]
        assert two in forms[one]
    assert pairs == swap_words(text(), forms, seed=seed) != swap_words(text(), forms, seed=seed + 1)


def swaps(pairs):
    words = [(pair.good.split(), pair.bad.split()) for pair in pairs]
    return Counter(next((g, b) for g, b in zip(*both, strict=True) if g != b) for both in words)


def test_each_form_replaces_the_other_equally_often():
    documents = [*text(), *(f"We never {stem} near the house." for stem in STEMS for _ in range(30))]
    n = swaps(swap_words(documents, forms_of_s()))
    assert all(n[one, two] == n[two, one] == 8 for one, two in n) and len(n) == 12
    assert set(swaps(swap_words(documents, forms_of_s(), limit=3)).values()) == {3}
    assert len(swap_words(documents, forms_of_s(), most=7)) == 7


def test_a_form_that_is_not_in_the_text_makes_no_pair():
    assert swap_words(["We never walk near the house."], {"walk": ("walks",), "walks": ("walk",)}) == []
    assert swap_words([], forms_of_s()) == []

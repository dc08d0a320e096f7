"""Inflected forms, and minimal pairs made of them, from the counts of a text alone: no labels, no list of words or endings.

Two words are forms of one where they share a stem, and their endings are a pair that many stems take, as ("", "s") or
("e", "ing"). A minimal pair is a sentence of the text, and the same with another form in the place of one of its words.

Source: after Goldsmith 2001, who finds stems and endings without labels too.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from jexplicit.data.pairs import MinimalPair

_shortest_stem, _longest_ending = 3, 3  # letters
_fewest_stems = 3  # of a pair of endings
_words_of_a_sentence = range(4, 31)
_word = re.compile(r"(?<![\w'’-])[^\W\d_]+(?![\w'’-])")
_sentence_end = re.compile(r"(?<=[.!?])\s+|\n+")

Endings = tuple[str, str]
Forms = dict[str, tuple[str, ...]]


def count_words(documents: Iterable[str]) -> Counter[str]:
    """How often each word of lower-case letters occurs; parts of `don't` and `well-known` are no words.

    Example:
        >>> dict(count_words(["The cat sees the cat. It doesn't."]))
        {'cat': 2, 'sees': 1, 'the': 1}
    """
    return Counter(word for document in documents for word in _word.findall(document) if word.islower())


def ending_pairs(counts: Mapping[str, int], *, least: int = 10, most: int = 20) -> dict[Endings, int]:
    """The pairs of endings that most stems take, and how many do.

    Args:
        counts: of words.
        least: how often a word occurs that is looked at.
        most: pairs of endings to keep.

    Example:
        >>> ending_pairs(dict.fromkeys("walk walks talk talks call calls calf".split(), 10))
        {('', 's'): 3}
    """
    stems: Counter[Endings] = Counter()
    for endings in _endings_of_stems(counts, least).values():
        stems.update(_pairs(endings))
    return {pair: n for pair, n in sorted(stems.items(), key=lambda item: (-item[1], item[0]))[:most] if n >= _fewest_stems}


def inflected_forms(counts: Mapping[str, int], *, least: int = 10, most: int = 20) -> Forms:
    """The other forms of every word that has some, by pairs of endings that many stems take.

    Args:
        counts, least, most: see `ending_pairs`.

    Example:
        >>> inflected_forms(dict.fromkeys("walk walks talk talks call calls calf".split(), 10))["talk"]
        ('talks',)
    """
    productive = ending_pairs(counts, least=least, most=most)
    forms: dict[str, set[str]] = defaultdict(set)
    for stem, endings in _endings_of_stems(counts, least).items():
        for one, two in _pairs(endings):
            if (one, two) in productive:
                forms[stem + one].add(stem + two)
                forms[stem + two].add(stem + one)
    return {word: tuple(sorted(others)) for word, others in sorted(forms.items())}


def _endings_of_stems(counts: Mapping[str, int], least: int) -> dict[str, list[str]]:
    stems: dict[str, list[str]] = defaultdict(list)
    for word in (word for word, n in counts.items() if n >= least):
        for cut in range(max(_shortest_stem, len(word) - _longest_ending), len(word) + 1):
            stems[word[:cut]].append(word[cut:])
    return stems


def _pairs(endings: list[str]) -> list[Endings]:
    """Pairs of endings of a stem, which has all letters that its two words share."""
    return [(one, two) for one, two in combinations(sorted(endings), 2) if one[:1] != two[:1]]


def split_sentences(document: str) -> list[str]:
    """The sentences of 4 to 30 words; they end with a line, or at one of `. ! ?` before white space.

    Example:
        >>> split_sentences("It is 3.5 miles away. Why? The cat sat there!")
        ['It is 3.5 miles away.', 'The cat sat there!']
    """
    sentences = [sentence.strip() for sentence in _sentence_end.split(document)]
    return [sentence for sentence in sentences if len(sentence.split()) in _words_of_a_sentence]


def swap_words(
    documents: Iterable[str], forms: Mapping[str, Sequence[str]], *, most: int | None = None, limit: int = 50, seed: int = 0
) -> list[MinimalPair]:
    """Minimal pairs: sentences as they stand, and with another form in the place of one word.

    Of two forms each replaces the other equally often, so that how frequent a form is says nothing of which sentence is good.

    Args:
        documents: texts; a sentence makes one pair at most.
        forms: the words that may stand in the place of each.
        most: pairs, of those that were found; default, all.
        limit: how often one word is replaced by another, so that no word dominates.
        seed: of all choices.

    Example:
        >>> pairs = swap_words(["He often walks to school. They often walk to school."], {"walk": ["walks"], "walks": ["walk"]})
        >>> sorted(pair.bad for pair in pairs)
        ['He often walk to school.', 'They often walks to school.']
    """
    rng = np.random.default_rng(seed)
    sentences = [sentence for document in documents for sentence in split_sentences(document)]
    n = Counter(word for sentence in sentences for word in set(_word.findall(sentence)) if word in forms)
    swapped: dict[tuple[str, str], list[MinimalPair]] = defaultdict(list)

    def surplus(place: tuple[int, str, str]) -> int:
        return len(swapped[place[1], place[2]]) - len(swapped[place[2], place[1]])

    for sentence in (sentences[s] for s in rng.permutation(len(sentences))):
        words = [(match.start(), match[0]) for match in _word.finditer(sentence) if match[0] in forms]
        places = [(start, word, other) for start, word in words for other in forms[word]]
        places = [p for p in places if len(swapped[p[1:]]) < min(n[p[1]], n[p[2]], limit)]
        if places:
            start, word, other = min((places[p] for p in rng.permutation(len(places))), key=surplus)
            bad = sentence[:start] + other + sentence[start + len(word) :]
            swapped[word, other].append(MinimalPair(sentence, bad, "swapped"))
    pairs = [pair for (word, other), own in list(swapped.items()) for pair in own[: len(swapped[other, word])]]
    return [pairs[p] for p in rng.permutation(len(pairs))[:most]]

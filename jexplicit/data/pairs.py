"""Minimal pairs: two sentences that differ in one point of grammar, of which one is acceptable.

Files are JSON lines with `sentence_good` and `sentence_bad`, and where they are known `UID` (the paradigm; default, the name of
the file), `field` and `linguistics_term`, as in BLiMP.

Pairs without labels, rules or lists of words are sentences of a text and the same with their order or their words spoiled, in
one of five ways, in turn: a word changes places with the next, moves elsewhere, is left out, is put in, or is replaced. New
words are drawn from the text, as often as they occur there, and as many are put in as are left out, so that neither frequency
nor length tells which sentence is good.

Source: Warstadt et al. 2020, BLiMP; after Okanohara & Tsujii 2007, who learn grammaticality from pseudo-negative sentences.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.data.inputs import Paths, file_lines, list_files
from jexplicit.data.records import Record, json_records

WAYS = ("swap", "move", "drop", "insert", "replace")
_word = re.compile(r"[^\W_][\w'’-]*")
_fewest_words = 4
_words_of_a_sentence = range(4, 31)
_sentence_end = re.compile(r"(?<=[.!?])\s+|\n+")


class MinimalPair(NamedTuple):
    """An acceptable sentence and one that is not, the paradigm that they are of, its field and its term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of JSON lines files.

    Args:
        paths: files, globs and folders.

    Raises:
        ValueError: nothing at a path; a line that is no JSON object, or without two sentences; no pair at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "agreement.jsonl")
        ...     _ = path.write_text('{"sentence_good": "he runs", "sentence_bad": "he run", "field": "morphology"}')
        ...     read_pairs([path])
        [MinimalPair(good='he runs', bad='he run', paradigm='agreement', field='morphology', term='')]
    """
    return [pair for path in list_files(paths) for pair in _file_pairs(path)]


def _file_pairs(path: str) -> list[MinimalPair]:
    pairs = [_pair(record, path) for record in json_records(file_lines(path), path)]
    if not pairs:
        raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs


def _pair(record: Record, path: str) -> MinimalPair:
    found = record.fields
    good, bad = (found.get(name) for name in ("sentence_good", "sentence_bad"))
    if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
        remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
        raise ValueError(f"{path}, line {record.line}, is no minimal pair (a sentence is missing or empty): {remedy}")
    field = str(found.get("field") or "").replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
    name = Path(path).name.partition(".")[0]
    return MinimalPair(good, bad, str(found.get("UID") or name), field, str(found.get("linguistics_term") or ""))


def split_sentences(document: str) -> list[str]:
    """The sentences of 4 to 30 words; they end with a line, or at one of `. ! ?` before white space.

    Example:
        >>> split_sentences("It is 3.5 miles away. Why? The cat sat there!")
        ['It is 3.5 miles away.', 'The cat sat there!']
    """
    sentences = [sentence.strip() for sentence in _sentence_end.split(document)]
    return [sentence for sentence in sentences if len(sentence.split()) in _words_of_a_sentence]


def corrupt_sentences(documents: Iterable[str], *, most: int | None = None, seed: int = 0) -> list[MinimalPair]:
    """Minimal pairs: sentences as they stand, and spoiled; the first word and the last stay where they are.

    Args:
        documents: texts; a sentence makes one pair at most.
        most: pairs; default, as many as there are sentences.
        seed: of all choices.

    Example:
        >>> pairs = corrupt_sentences(["The cat sat there. A dog was in the old house."], most=2)
        >>> [(pair.paradigm, pair.bad) for pair in pairs]
        [('swap', 'The sat cat there.'), ('move', 'A was dog in the old house.')]
    """
    rng = np.random.default_rng(seed)
    sentences = [sentence for document in documents for sentence in split_sentences(document)]
    words = [word for sentence in sentences for word in _word.findall(sentence) if word.islower()]
    pairs: list[MinimalPair] = []
    for sentence in (sentences[s] for s in rng.permutation(len(sentences))):
        if len(pairs) == most:
            break
        way = WAYS[len(pairs) % len(WAYS)]
        bad = _spoil(sentence, way, words, rng)
        if bad != sentence:
            pairs.append(MinimalPair(sentence, bad, way))
    return pairs


def _spoil(sentence: str, way: str, words: list[str], rng: np.random.Generator) -> str:
    """The sentence with one word spoiled; the same sentence where it is too short, or the same word was drawn."""
    places = [match.span() for match in _word.finditer(sentence)]
    if len(places) < _fewest_words or not words:
        return sentence
    between = [sentence[end:start] for (_, end), (start, _) in zip(places, places[1:], strict=False)]
    tokens = [sentence[start:end] for start, end in places]
    inner = len(tokens) - 2
    i, j = 1 + rng.choice(inner, 2, replace=False)
    drawn = words[rng.integers(len(words))]
    if way == "swap":
        i = min(i, inner - 1)
        tokens[i], tokens[i + 1] = tokens[i + 1], tokens[i]
    elif way == "move":
        tokens.insert(j, tokens.pop(i))
    elif way == "replace":
        tokens[i] = drawn
    elif way == "drop":
        del tokens[i], between[i]
    else:
        tokens.insert(i, drawn)
        between.insert(i, " ")
    start, end = sentence[: places[0][0]], sentence[places[-1][1] :]
    return start + tokens[0] + "".join(space + token for space, token in zip(between, tokens[1:], strict=True)) + end

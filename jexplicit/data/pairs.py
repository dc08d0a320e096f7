"""Minimal pairs: an acceptable and an unacceptable sentence with a minimal grammatical difference.

Files are records (jexplicit.data.records), such as JSON lines, with `sentence_good` and `sentence_bad`, and optionally `UID`
(the paradigm; default, the name of the file), `field` and `linguistics_term`, as in BLiMP.

Pairs without labels, rules or word lists are sentences of a text and corruptions of them, by one of five edits, in turn: swap
with the next word, move, delete, insert, or replace a word. New words are drawn from the unigram distribution of the text, and
insertions balance deletions, so that neither frequency nor length identifies the good sentence.

Source: Warstadt et al. 2020, BLiMP; after Okanohara & Tsujii 2007, who learn grammaticality from pseudo-negative sentences.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.data.inputs import Paths, list_files
from jexplicit.data.records import Record, file_records

WAYS = ("swap", "move", "drop", "insert", "replace")
_word = re.compile(r"[^\W_][\w'’-]*")
_fewest_words = 4
_words_of_a_sentence = range(4, 31)
_sentence_end = re.compile(r"(?<=[.!?])\s+|\n+")


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence, their paradigm, its field and its linguistic term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of files of records, globs and folders."""
    return [pair for path in list_files(paths) for pair in _file_pairs(path)]


def _file_pairs(path: str) -> list[MinimalPair]:
    pairs = [_pair(record, path) for record in file_records(path)]
    if not pairs:
        raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs


def _pair(record: Record, path: str) -> MinimalPair:
    found = record.fields
    good, bad = (found.get(name) for name in ("sentence_good", "sentence_bad"))
    if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
        remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
        raise ValueError(f"{path}, line {record.line}, is not a minimal pair (a sentence is missing or empty): {remedy}")
    field = str(found.get("field") or "").replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
    name = Path(path).name.partition(".")[0]
    return MinimalPair(good, bad, str(found.get("UID") or name), field, str(found.get("linguistics_term") or ""))


def split_sentences(document: str) -> list[str]:
    """The sentences of 4 to 30 words; they end with a line, or at `. ! ?` before white space."""
    sentences = [sentence.strip() for sentence in _sentence_end.split(document)]
    return [sentence for sentence in sentences if len(sentence.split()) in _words_of_a_sentence]


def corrupt_sentences(documents: Iterable[str], *, most: int | None = None, seed: int = 0) -> list[MinimalPair]:
    """Minimal pairs of sentences and corruptions of them, which keep the first and the last word; at most one per sentence."""
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
    """The sentence with one edit; unchanged if it is too short, or the same word was drawn."""
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

"""Sizes of a text, and how much of it stands in another, against loops over the documents."""

import re

import pytest

from jexplicit.data.corpora import Corpus, TextSizes, overlap, text_sizes
from jexplicit.data.corpus.cache import cached_streams
from jexplicit.data.corpus.shards import read_sizes, write_sizes

DEV = ["to be", " or  not to\u00a0be ", "naïve 漢字", "to be", "that is"]
TRAIN = ["to  be", "Naïve 漢字", "that is the question"]


def test_sizes_are_those_of_a_loop_and_add_up():
    loop = [sum(parts) for parts in zip(*((1, len(d.encode()), len(d), len(re.split(r"\s+", d))) for d in DEV), strict=True)]
    assert list(text_sizes(DEV)) == loop
    assert [a + b for a, b in zip(text_sizes(DEV[:2]), text_sizes(DEV[2:]), strict=True)] == loop
    assert text_sizes([]) == TextSizes(0, 0, 0, 0)


def test_overlap_is_that_of_a_loop_over_all_pairs():
    twins = [d for d in DEV if any(d.split() == t.split() for t in TRAIN)]
    found = overlap(iter(DEV), iter(TRAIN))
    assert found.documents == len(twins) / len(DEV) == 0.4
    assert found.bytes == text_sizes(twins).bytes / text_sizes(DEV).bytes
    assert overlap(DEV, DEV) == (1, 1) and overlap([], TRAIN) == (0, 0)


def test_the_cache_keeps_the_sizes(tmp_path):
    corpus = Corpus("tiny", TRAIN, DEV)
    made, read = (cached_streams(corpus, kind="char", vocab_size=None, cache_dir=tmp_path) for _ in range(2))
    assert read.cached and not made.cached
    assert made.dev_sizes == read.dev_sizes == text_sizes(DEV)
    assert made.dev_in_train == read.dev_in_train == overlap(DEV, TRAIN)


def test_sizes_stand_beside_shards(tmp_path):
    assert read_sizes(tmp_path) is None
    write_sizes(tmp_path, text_sizes(DEV))
    assert read_sizes(tmp_path) == text_sizes(DEV)
    (tmp_path / "sizes.json").write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        read_sizes(tmp_path)

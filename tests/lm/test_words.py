"""Rows of words: what a context of characters says of words, against a loop over strings, and the rows made of it.

Tolerances: rows are float32, a logarithm of at most 10; a few of them are added up, right to 1e-5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, Chain

from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.evaluation import Past, histories, read_text
from jexplicit.lm.fits.mixtures.mixture_rows import WORD_RADIUS, mixture_rows
from jexplicit.lm.rows.past.cache import Cache, CacheRows, cache_rows
from jexplicit.lm.rows.views import ViewRows, view_contexts
from jexplicit.lm.rows.words import EMPTY, UNKNOWN, LineView, letters_of, word_view
from jexplicit.lm.training_text import TrainingText

pytestmark = pytest.mark.slow

LETTERS = "abc"
CHARACTERS = LETTERS + " ,\n"
N = len(CHARACTERS) + 1
IS_LETTER = np.array([False, *(c in LETTERS for c in CHARACTERS)])
ROW = 1e-5


def random_text(seed: int, length: int) -> str:
    rng = np.random.default_rng(seed)
    words = ["ab", "abc", "b", "cab", "aab", "ca"]
    out = ""
    while len(out) < length:
        out += words[rng.integers(len(words))] + rng.choice([" ", ", ", "\n", " ,"])
    return out[:length]


def stream_of(*texts: str) -> np.ndarray:
    return np.array([PAD, *(i for text in texts for i in (*(1 + CHARACTERS.index(c) for c in text), PAD))], np.uint8)


STREAM, OTHER = stream_of(random_text(0, 500), random_text(1, 200)), stream_of(random_text(2, 150), "zbcc".replace("z", "c"))


def parts_of(text: str) -> tuple[str, str, str, str]:
    """What stands since the end of the last word, the part of the current word, and the two words before: by hand."""
    since, part, words = "", "", ["", ""]
    for c in text:
        if c not in LETTERS and part:
            words, since = [part, words[0]], ""
        since += c
        part = part + c if c in LETTERS else ""
    return since, part, words[0], words[1]


@functools.cache
def view():
    return word_view(STREAM, IS_LETTER, radius=30)


def test_a_view_numbers_the_words_that_a_loop_over_strings_finds():
    """Equal strings have equal numbers, different ones different numbers, and those of the text are all known."""
    text = read_text(STREAM, 30)
    numbers = view_contexts(view(), text.X)
    strings: dict[int, str] = {EMPTY: ""}
    for x, row in zip(text.X, numbers, strict=True):
        before = "".join(CHARACTERS[i - 1] for i in x[::-1] if i != PAD)
        for number, string in zip(row.tolist(), parts_of(before), strict=True):
            assert strings.setdefault(number, string) == string
    assert UNKNOWN not in strings and len(set(strings.values())) == len(strings)
    assert len(strings) > 40


def test_strings_that_the_text_does_not_have_are_unknown_and_documents_are_apart():
    def of(text: str) -> list[int]:
        x = np.zeros(30, np.int32)
        ids = [1 + CHARACTERS.index(c) for c in text][::-1]
        x[: len(ids)] = ids
        return view()(jnp.asarray(x)).tolist()

    assert of("") == [EMPTY] * 4
    assert of("ccc")[1] == UNKNOWN and of("ccca")[1] == UNKNOWN
    assert of("ccc ab")[2] == UNKNOWN and of("ccc ab")[1] == of("ab")[1] not in (UNKNOWN, EMPTY)
    x = np.array([1, 1 + CHARACTERS.index(" "), PAD, 1, 1, *[0] * 25])  # "aa" stands in the document before
    assert view()(jnp.asarray(x))[2] == EMPTY


def test_a_view_passes_jit_and_vmap_and_reads_no_more_than_its_radius():
    X = read_text(STREAM, 40).X[::17].astype(np.int32)
    numbers = view_contexts(view(), X)
    np.testing.assert_array_equal(jax.jit(jax.vmap(view()))(X), numbers)
    beyond = X.copy()
    beyond[:, 30:] = 1
    np.testing.assert_array_equal(view_contexts(view(), beyond), numbers)


@functools.cache
def text():
    return TrainingText(STREAM, N, letters=IS_LETTER)


def test_rows_of_words_are_kneser_ney_of_the_words():
    """Since the last word, then the word before and the one before that: the rows add up to the chain's probabilities."""
    rows = mixture_rows(text(), ("words",))
    kind = rows[-1]
    assert isinstance(kind, ViewRows)
    train, other = (read_text(s, WORD_RADIUS) for s in (STREAM, OTHER))
    V = view_contexts(kind.view, train.X)
    slow = Chain(V[:, [0, 2, 3]], train.Y, (1, 2, 3), N)
    part = kind.parts[0]
    read, read_all = jax.jit(part.read), jax.jit(kind.read)
    for x, past in zip(other.X[::9], view_contexts(kind.view, other.X)[::9], strict=True):
        found = np.sum(read(jnp.asarray(past)), axis=0)
        context = tuple(past[[0, 2, 3]].tolist())
        P = np.array([slow.P(context, i) for i in range(N)])
        expected = np.log(P) - np.log(np.array([slow.lowest[i] for i in range(N)]))
        seen = np.isfinite(expected)
        shift = found[seen][0] - expected[seen][0]  # a constant of the context cancels in the softmax
        np.testing.assert_allclose(found[seen], expected[seen] + shift, rtol=0, atol=ROW)
        np.testing.assert_allclose(found, np.sum(read_all(jnp.asarray(x))[: len(part.names)], axis=0), rtol=0, atol=ROW)


def test_a_view_of_lines_counts_what_a_loop_over_strings_counts():
    ends = np.array([i == PAD or i and CHARACTERS[i - 1] == "\n" for i in range(N)])
    view = LineView(jnp.asarray(ends), 12)
    X = read_text(STREAM, 20).X
    widths = set()
    for x, row in zip(X, view_contexts(view, X), strict=True):
        before = "".join("\n" if i == PAD else CHARACTERS[i - 1] for i in x[::-1])
        width = min(len(before.rpartition("\n")[2]), 12)
        assert row.tolist() == [width, x[0], x[1]]
        widths.add(width)
    assert {0, 1, 5, 12} <= widths and view.sizes == (13, N, N)


def test_rows_of_lines_are_kneser_ney_of_the_length_and_the_nearest_characters():
    tokenizer = train_tokenizer([CHARACTERS], kind="char")
    texts = [random_text(seed, 300) for seed in range(3)]
    stream = encode_documents(tokenizer, texts)
    text = TrainingText(stream, tokenizer.vocab_size, letters=letters_of(tokenizer), tokenizer=tokenizer)
    kind = mixture_rows(text, ("lines",))[-1]
    X, Y, _ = read_text(stream, kind.radius)
    V = view_contexts(kind.view, X)
    assert kind.names == ("line", "line, 1 before", "line, 2 before") and V[:, 0].max() > 12
    slow, read = Chain(V, Y, (1, 2, 3), tokenizer.vocab_size), jax.jit(kind.read)
    for m in range(0, len(Y), 61):
        found = np.sum(read(jnp.asarray(X[m])), axis=0)
        P = np.array([slow.P(tuple(V[m].tolist()), i) for i in range(tokenizer.vocab_size)])
        expected = np.log(P) - np.log(np.array([slow.lowest[i] for i in range(tokenizer.vocab_size)]))
        seen = np.isfinite(expected)
        np.testing.assert_allclose(found[seen] - found[seen][0], expected[seen] - expected[seen][0], rtol=0, atol=ROW)


def test_documents_of_one_word_each_have_classes_too():
    stream = stream_of(*(["abc", "cab", "ab"] * 30))
    kind = mixture_rows(TrainingText(stream, N, letters=IS_LETTER), ("word-classes",))[-1]
    rows = kind.read(jnp.asarray(read_text(stream, WORD_RADIUS).X[1]))
    assert len(rows) == len(kind.names) and all(np.isfinite(row).all() for row in rows)


# Caches in words, and of several tokens


def slow_counts(stream: np.ndarray, place: int, cache: Cache) -> np.ndarray:
    """What followed the same tokens, or the same part of a word, among the last tokens: a loop."""
    text = "".join("#" if i == PAD else CHARACTERS[i - 1] for i in stream)

    def part(t: int) -> str:
        return text[:t][len(text[:t].rstrip(LETTERS)) :]

    counts = np.zeros(N)
    for t in range(max(place - cache.length, 1), place):
        same = part(t) == part(place) if cache.word else text[t - cache.match : t] == text[place - cache.match : place]
        if stream[t] != PAD and same and t >= cache.match:
            counts[stream[t]] += 1
    return counts


@pytest.mark.parametrize("cache", [Cache(30, 2), Cache(50, 4), Cache(40, word=True)])
def test_caches_count_what_followed_the_same(cache):
    places = np.arange(1, len(OTHER), 3)
    base = np.log(np.full(N, 1 / N))
    rows = cache_rows(Past(OTHER, places), base, cache, IS_LETTER)
    kind = CacheRows(jnp.asarray(base, jnp.float32), (cache,), jnp.asarray(IS_LETTER))
    past = histories(Past(OTHER, places), kind.history)
    read = jax.jit(jax.vmap(lambda h: kind.read(None, h)[0]))(jnp.asarray(past))
    total = 0
    for m, place in enumerate(places):
        counts = slow_counts(OTHER, int(place), cache)
        expected = np.log1p(counts * N / max(np.sum(counts > 0), 1))
        entries = slice(rows.start[m], rows.start[m + 1])
        found = np.zeros(N)
        found[rows.outputs[entries]] = rows.values[entries]
        np.testing.assert_allclose(found, expected, rtol=0, atol=ROW)
        np.testing.assert_allclose(read[m], expected, rtol=0, atol=ROW)
        total += counts.sum()
    assert total > 20


def test_parts_of_words_longer_than_are_matched_match_nothing():
    stream, cache = stream_of("a" * 20 + "b " + "a" * 20), Cache(60, word=True)
    rows = cache_rows(Past(stream, np.arange(24, 43)), np.log(np.full(N, 1 / N)), cache, IS_LETTER)
    found = np.diff(rows.start) > 0  # after 1, 2, ... letters of the second word
    assert found[:16].all() and not found[16:].any()

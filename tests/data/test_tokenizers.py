"""Tokenizers, trained here or elsewhere: no text is lost, and what is unknown is said."""

import functools
import io
import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import sentencepiece
from files import flipped
from refusals import refused
from tables import refuse

from jexplicit.data.tokenizers import KINDS, UNK_ID, Tokenizer, encode_documents, make_tokenizer, train_tokenizer

PROSE = [
    "It is a truth universally acknowledged, that a single man in possession",
    "  of a good fortune, must be in want  of a wife.",
    "However little known the feelings\tor views of such a man may be ",
    "on his first entering a neighbourhood,\n\n    this truth is so well fixed\nin the minds",
    "of the surrounding families, that he is considered the rightful property — “naïve” ▁ ▅ \r \0 é",
] * 3


def reference_stream(tokenizer, documents):
    known = (tokenizer.encode(document).tolist() for document in documents)
    return [0, *(i for ids in known if ids for i in [*ids, 0])]


def scrambles(alphabet, n=300):
    rng = random.Random(0)
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 12))) for _ in range(n)]


@pytest.fixture(scope="module", params=KINDS)
def of_prose(request):
    return train_tokenizer(PROSE, kind=request.param)


# Round trips, and text that is unknown or reserved


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_known_characters_come_back(kind):
    tokenizer = train_tokenizer(PROSE, kind=kind, vocab_size=None)
    spaced = [" ", "  ", "\t", "\n", "\n\n", "\r", " \n ", *sorted(set("".join(PROSE)))]
    assert tokenizer.unknown_symbols("".join(PROSE)) == []
    text = "a\ufdd0b \ufdd1 \ufdd4\ufdd2 c \ufdd4 \N{LOWER ONE EIGHTH BLOCK}\0\r"  # noncharacters
    known = train_tokenizer([text] * 3, kind=kind)
    assert known.decode(known.encode(text)) == text
    for text in [*PROSE, "", " ", "  ", "\n", " \n", "\n ", "▁", " ▁", *scrambles(spaced)]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and ids.dtype == np.int32 and ids.ndim == 1
        assert not np.isin(ids, [tokenizer.pad_id, tokenizer.unk_id]).any()


def test_known_words_come_back_and_white_space_around_them_makes_no_token():
    documents = ["the cat, the  dog", " leads", "trails ", "a\tb c\n\nd <b>"]
    tokenizer = train_tokenizer(documents, kind="word")
    for text in [*documents, "dog the", " \n", "the cat,", "leads a", "<b> \n"]:
        assert tokenizer.decode(tokenizer.encode(text)) == "\n".join(" ".join(line.split()) for line in text.split("\n"))
    assert len(tokenizer.encode("the cat, the dog")) == 4
    # files of the Penn Treebank begin and end every line with a space
    line, words = " no it was n't  black monday ", ["no", "it", "was", "n't", "black", "monday"]
    tokenizer = train_tokenizer([line, "\tit\u2028was\r"], kind="word")
    assert [tokenizer.piece(i).removeprefix("▁") for i in tokenizer.encode(line).tolist()] == words
    assert tokenizer == train_tokenizer([" ".join(words), "it was"], kind="word")
    assert encode_documents(tokenizer, ["   ", line, "", "\t"]).tolist() == [0, *tokenizer.encode(" ".join(words)), 0]


def test_ids_of_small_vocabularies():
    tokenizer = train_tokenizer(["ab\nc"], kind="char")
    assert tokenizer.pieces() == ["<pad>", "<unk>", "\n", "a", "b", "c"]
    assert tokenizer.encode("ba\nc").tolist() == [4, 3, 2, 5]
    assert train_tokenizer(["one two two"], kind="word").pieces() == ["<pad>", "<unk>", "▁two", "▁one"]
    assert train_tokenizer(["abb"], kind="char", vocab_size=3).pieces() == ["<pad>", "<unk>", "b"]
    assert [train_tokenizer(["abc"], vocab_size=size).vocab_size for size in (6, 12)] == [6, 12]  # which errors name
    tokenizer = train_tokenizer(PROSE)  # a word is the same token at the start of a line
    assert tokenizer.encode("truth\ntruth").tolist() == [*tokenizer.encode("truth"), 2, *tokenizer.encode("truth")]
    for characters, dtype in ((254, np.uint8), (255, np.uint16)):  # a stream has the smallest type
        text = "".join(map(chr, range(0x4E00, 0x4E00 + characters)))
        stream = encode_documents(train_tokenizer([text], kind="char"), [text])
        assert stream.dtype == dtype and stream.max() == characters + 1


def test_training_is_deterministic_and_saved_whole_and_damage_is_named(of_prose, tmp_path):
    path = tmp_path / "t.model"
    assert of_prose == train_tokenizer(list(PROSE), kind=of_prose.kind)
    of_prose.save(path)
    loaded, whole = Tokenizer.load(path), path.read_bytes()
    assert loaded == of_prose
    assert loaded.pieces() == of_prose.pieces() == [of_prose.piece(i) for i in range(of_prose.vocab_size)]
    assert (of_prose.pad_id, of_prose.unk_id, of_prose.pieces()[:2]) == (0, 1, ["<pad>", "<unk>"])
    for damaged in (b"", whole[:-1], b"x" + whole, flipped(whole, 50)):
        path.write_bytes(damaged)
        refused(r"t.model( is not a tokenizer file, or is damaged|: no SentencePiece)", Tokenizer.load, path)


def test_unknown_text_is_unk_and_pads_are_skipped():
    for kind, text, symbols, unknown_ids in [
        ("bpe", "cab zoo 日\ud800", ["z", "o", "日", "\ud800"], 5),  # each unknown character is one <unk>
        ("word", "cab zoo zzz zoo\n", ["zoo", "zzz", "\n"], 4),  # each unknown word is one <unk>
    ]:
        tokenizer = train_tokenizer(["cab abc"] * 3, kind=kind)
        assert tokenizer.unknown_symbols(text) == symbols
        ids = tokenizer.encode(text)
        assert (ids == tokenizer.unk_id).sum() == unknown_ids and "⁇" in tokenizer.decode(ids)
    assert tokenizer.decode(encode_documents(tokenizer, ["abc cab", "abc"])) == "abc cab abc" and tokenizer.decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_literal_pad_is_text(kind):
    documents = ["<pad>", "(<pad>) <unk>", "x<pad>y<pad>", "pad> <p <pa <pad", "<pad>\n<pad>"] * 9
    tokenizer = train_tokenizer(documents, kind=kind)
    assert (encode_documents(tokenizer, documents) == 0).sum() == len(documents) + 1
    assert tokenizer.pieces().count("<pad>") == tokenizer.pieces().count("<unk>") == 1
    if kind != "word":
        assert all(tokenizer.decode(tokenizer.encode(document)) == document for document in documents)


def test_no_text_of_a_long_document_is_lost_nor_a_small_alphabet_but_thousands_of_rare_characters():
    endless, filler = "ab" * 60_000 + "c", " ".join(["some words of no weight"] * 2100)  # a single word, and many
    for kind, document in [
        ("bpe", endless),
        *((kind, f"{filler} quixotic {filler} quixotic {filler}".replace(" ", " \n"[kind == "word"])) for kind in KINDS),
    ]:
        tokenizer = train_tokenizer([document, "x"], kind=kind, vocab_size=None)
        assert tokenizer.unknown_symbols(document) == []
        assert tokenizer.decode(tokenizer.encode(document)) == document
        assert kind == "char" or document == endless or "▁quixotic" in tokenizer.pieces()
    letters = ["abcdefgh " * 50] * 300
    assert train_tokenizer([*letters, "z"]).unknown_symbols("z") == []
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
    tokenizer = train_tokenizer([*letters, *(letters * 80), rare], vocab_size=None)
    assert len(tokenizer.unknown_symbols(rare)) > 800


# The stream


def test_a_stream_is_the_documents_between_pads(of_prose, monkeypatch):
    documents, seen = ["", *PROSE, "", " ", "\n", "zzz ∀∃ zzz", *scrambles(["", " ", "a", "is ", "\n", "∀"], 50), ""], []
    stream, n = encode_documents(of_prose, documents), len(documents)
    assert stream.tolist() == reference_stream(of_prose, documents)
    monkeypatch.setattr("jexplicit.data.tokenizers._encoding_batch", 3)
    np.testing.assert_array_equal(encode_documents(of_prose, documents, progress=lambda *now: seen.append(now)), stream)
    assert encode_documents(of_prose, []).tolist() == encode_documents(of_prose, ["", ""]).tolist() == [0]
    assert seen == [(min(start + 3, n), n) for start in range(0, n, 3)]


# SentencePiece models that were not trained here

TEXTS = ["the cat sat on the mat", "a dog and the cat ran", "naïve cats, dogs and ▁ 日本", "two  spaces and\nlines "] * 5
LINES = ["the cat sat on the mat", "a dog ran to the caf\N{LATIN SMALL LETTER E WITH ACUTE}"] * 15
KNOWN = "the cat sat on a dog"
UNKNOWN = ("\N{GREEK CAPITAL LETTER OMEGA}", "\N{GRINNING FACE}", "\u0369")


def sentencepiece_model(texts=TEXTS, kind="unigram", **options) -> bytes:
    """A model with ids of its own: <unk> 0, <s> 1, </s> 2, <pad> 5."""
    written = io.BytesIO()
    options = {"vocab_size": 60, "pad_id": 5, "hard_vocab_limit": False, "minloglevel": 2} | options
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(texts), model_writer=written, model_type=kind, **options)
    return written.getvalue()


def test_ids_are_renamed_and_nothing_else_and_the_tokenizer_is_saved_and_hashed_as_our_own(tmp_path):
    data = sentencepiece_model()
    (tmp_path / "a.model").write_bytes(data)
    tokenizer, processor = Tokenizer.load(tmp_path / "a.model"), sentencepiece.SentencePieceProcessor(model_proto=data)
    assert tokenizer.pieces()[:2] == ["<pad>", "<unk>"] and len(set(tokenizer.pieces())) == tokenizer.vocab_size
    for n, text in enumerate(TEXTS[:3]):
        ids, own = tokenizer.encode(text), processor.encode(text, out_type=str)
        assert ids.dtype == np.int32 and 0 not in ids
        known = [tokenizer.piece(i) for i in ids.tolist() if i != tokenizer.unk_id]
        assert known == [piece for piece in own if piece in set(tokenizer.pieces()[2:])]
        assert n == 2 or tokenizer.decode([0, *ids, 0]) == text
    documents = ["the cat", "", "<pad> [PAD] cat", "a dog\ud800"]
    assert encode_documents(tokenizer, documents).tolist() == reference_stream(tokenizer, documents)
    tokenizer.save(tmp_path / "tokenizer.model")
    for place in (tmp_path, tmp_path / "tokenizer.model"):
        assert Tokenizer.load(place) == tokenizer and Tokenizer.load(place).sha256 == tokenizer.sha256
    assert make_tokenizer(tmp_path, [], None) == make_tokenizer(tokenizer, [], None) == tokenizer


def test_what_is_no_tokenizer_or_text_is_refused(tmp_path):
    model = sentencepiece_model()
    for name, data in (("empty", b""), ("cut", model[:-7]), ("json", b"[1]"), ("ours", b"jexplicit-tokenizer bpe 0\nx")):
        (tmp_path / name).write_bytes(data)
    own = train_tokenizer(["to be"])
    refuse(
        [
            *((f"{n}: no SentencePiece", lambda n=n: Tokenizer.load(tmp_path / n)) for n in ("empty", "cut", "json")),
            ("ours is not a tokenizer file, or is damaged", lambda: Tokenizer.load(tmp_path / "ours")),
            ("no tokenizer at .*gone: choose bpe, word or char, or give", lambda: Tokenizer.load(tmp_path / "gone")),
            ("no tokenizer at syllable", lambda: make_tokenizer("syllable", [], None)),
            ("vocabulary size 7 with a tokenizer of .* tokens: omit vocab_size", lambda: make_tokenizer(own, [], 7)),
            ("damaged or foreign model of kind .*: use a model of train_tokenizer", lambda: Tokenizer(model, "bpe")),
            ("no SentencePiece model: the bytes cannot be parsed", lambda: Tokenizer(b"junk", "bpe")),
            ("tokenizer kind 'syllable': use one of bpe, word, char", lambda: train_tokenizer(["one two"], kind="syllable")),
            ("no text in 2 documents: give some", lambda: train_tokenizer(["", "\n"])),
            ("size 2 holds no more than <pad> and <unk>: use 3 or more", lambda: train_tokenizer(["abc"], vocab_size=2)),
            ("size 5 is too small for the characters .*: use 6 or more", lambda: train_tokenizer(["abc"], vocab_size=5)),
            ("size 99 is more than the text allows: use 12 or less", lambda: train_tokenizer(["abc"], vocab_size=99)),
            (r"a text of 5 characters .*, \[text\]", lambda: train_tokenizer(cast(Any, "to be"))),
            ("a text of 5 characters instead of documents", lambda: encode_documents(own, "to be")),
            *((f"token id {i} in a vocabulary of", lambda i=i: own.decode([2, i])) for i in (-1, own.vocab_size)),
            (f"token id -1 in a vocabulary of {own.vocab_size}: use the tokenizer's own ids", lambda: own.piece(-1)),
        ]
    )


# Tokens account for all characters


def of_sentencepiece(kind, **options):
    return Tokenizer(sentencepiece_model(LINES, kind, vocab_size=26, pad_id=-1, **options), "sentencepiece")


OF_WORDS = {
    "word": lambda: train_tokenizer(LINES, kind="word"),
    "words": lambda: Tokenizer("\n".join(sorted({word for line in LINES for word in line.split()})).encode(), "words"),
    "sentencepiece word": lambda: of_sentencepiece("word"),
}
FOREIGN: dict[str, Callable[[], Tokenizer]] = {
    f"sentencepiece {kind}": functools.partial(of_sentencepiece, kind) for kind in ("bpe", "unigram", "char")
}
FOREIGN["sentencepiece suffix"] = lambda: of_sentencepiece("bpe", treat_whitespace_as_suffix=True)
MAKERS = OF_WORDS | FOREIGN | {kind: functools.partial(train_tokenizer, LINES, kind=kind) for kind in ("bpe", "char")}


@pytest.mark.parametrize("name", MAKERS)
def test_every_character_that_no_piece_has_and_white_space_that_is_dropped_is_unk(name):
    tokenizer = MAKERS[name]()

    def unknown_of(text):
        return int(np.count_nonzero(tokenizer.encode(text) == UNK_ID))

    of_break = unknown_of(f"{KNOWN}\n{KNOWN}")
    for unknown in UNKNOWN:
        assert unknown_of(KNOWN) == 0 and tokenizer.unknown_symbols(f"{KNOWN} {unknown}") == [unknown]
        for times in (1, 2, 50):
            n, word = 1 if name in OF_WORDS else times, unknown * times
            assert [unknown_of(text) for text in (f"{KNOWN} {word}", f"{word} {KNOWN}")] == [n, n]
            assert unknown_of(" ".join([f"{KNOWN}\n{word}", *[word] * 4, KNOWN])) == 5 * n + of_break
        known = [i for i in tokenizer.encode(f"{KNOWN} {unknown} {KNOWN}") if i != UNK_ID]
        assert len(known) >= 2 * len(tokenizer.encode(KNOWN)) - 1  # words of characters: a space may be a part of its word
    if name in FOREIGN:
        for white in ("  ", "\n\n", " \n \n" * 9):  # but for one character
            before, after = (len(tokenizer.encode(f"{KNOWN}{space}{KNOWN}")) for space in (" ", white))
            assert after - before == len(white) - 1
        assert [unknown_of(text) for text in ("", " ", f"{KNOWN} \n")] == [0, 0, 1]

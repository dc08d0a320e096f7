"""Tokenizers, trained here or elsewhere: no text is lost, and what is unknown is said."""

import io
import json
import random
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from jexplicit.data.streams import tokenize_corpus
from jexplicit.data.text import Corpus

from jexplicit.data.tokenizers import (
    KINDS,
    UNK_ID,
    Tokenizer,
    encode_documents,
    make_tokenizer,
    train_tokenizer,
)

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


def scrambles(alphabet, n=300, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 12))) for _ in range(n)]


def words_of(text):
    """The words of each line with one space between: what a round trip through `word` leaves."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


@pytest.fixture(scope="module", params=KINDS)
def of_prose(request):
    return train_tokenizer(PROSE, kind=request.param)


# Round trips, and text that is unknown or reserved


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_known_characters_come_back(kind):
    tokenizer = train_tokenizer(PROSE, kind=kind, vocab_size=None)
    spaced = [" ", "  ", "\t", "\n", "\n\n", "\r", " \n ", *sorted(set("".join(PROSE)))]
    assert tokenizer.unknown_symbols("".join(PROSE)) == []
    for text in [*PROSE, "", " ", "  ", "\n", " \n", "\n ", "▁", " ▁", *scrambles(spaced)]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and ids.dtype == np.int32 and ids.ndim == 1
        assert not np.isin(ids, [tokenizer.pad_id, tokenizer.unk_id]).any()
    text = "a\ufdd0b \ufdd1 \ufdd4\ufdd2 c \ufdd4 \N{LOWER ONE EIGHTH BLOCK}\0\r"  # noncharacters
    known = train_tokenizer([text] * 3, kind=kind)
    assert known.decode(known.encode(text)) == text


def test_known_words_come_back_and_white_space_around_them_makes_no_token():
    documents = ["the cat, the  dog", " leads", "trails ", "a\tb c\n\nd <b>"]
    tokenizer = train_tokenizer(documents, kind="word")
    for text in [*documents, "dog the", " \n", "the cat,", "leads a", "<b> \n"]:
        assert tokenizer.decode(tokenizer.encode(text)) == words_of(text)
    assert len(tokenizer.encode("the cat, the dog")) == 4
    # files of the Penn Treebank begin and end every line with a space
    line, words = " no it was n't  black monday ", ["no", "it", "was", "n't", "black", "monday"]
    tokenizer = train_tokenizer([line, "\tit\u2028was\r"], kind="word")
    assert sorted(tokenizer.pieces()[2:]) == sorted(f"▁{word}" for word in words)
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
    for damaged in (b"", whole[:-1], b"x" + whole, whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"t.model( is not a tokenizer file, or is damaged|: no SentencePiece)"):
            Tokenizer.load(path)


def test_unknown_text_is_unk_and_pads_are_skipped_and_foreign_ids_refused():
    for kind, text, symbols, unknown_ids in [
        ("bpe", "cab zoo zzz", ["z", "o"], 6),  # each unknown character is one <unk>
        ("char", "cabzzo\n", ["z", "o", "\n"], 4),
        ("word", "cab zoo zzz zoo\n", ["zoo", "zzz", "\n"], 4),  # each unknown word is one <unk>
        ("word", "cab  abc ", [], 0),
        ("bpe", "日本\ud800 cab", ["日", "本", "\ud800"], 3),
    ]:
        tokenizer = train_tokenizer(["cab abc"] * 3, kind=kind)
        assert tokenizer.unknown_symbols(text) == symbols
        assert (tokenizer.encode(text) == tokenizer.unk_id).sum() == unknown_ids
        assert ("⁇" in tokenizer.decode(tokenizer.encode(text))) == bool(symbols)
    tokenizer = train_tokenizer(["to be or not"], kind="word")
    ids = encode_documents(tokenizer, ["to be", "or"])
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == "to be or" and tokenizer.decode([]) == ""
    for bad in (-1, tokenizer.vocab_size):
        for call in (lambda bad=bad: tokenizer.decode([2, bad]), lambda bad=bad: tokenizer.piece(bad)):
            with pytest.raises(ValueError, match=f"token id {bad} in a vocabulary of 6: use the tokenizer's own ids"):
                call()


@pytest.mark.parametrize("kind", KINDS)
def test_literal_pad_is_text(kind):
    documents = ["<pad>", "(<pad>) <unk>", "x<pad>y<pad>", "pad> <p <pa <pad", "<pad>\n<pad>"] * 9
    tokenizer = train_tokenizer(documents, kind=kind)
    assert (encode_documents(tokenizer, documents) == 0).sum() == len(documents) + 1
    assert tokenizer.pieces().count("<pad>") == tokenizer.pieces().count("<unk>") == 1
    if kind != "word":
        assert all(tokenizer.decode(tokenizer.encode(document)) == document for document in documents)


def test_no_text_of_a_long_document_is_lost_nor_a_small_alphabet_but_thousands_of_rare_characters():
    endless = "ab" * 60_000 + "c"  # a single word
    for kind, break_ in (("bpe", " "), ("word", "\n"), ("char", " ")):
        filler = break_.join(["some words of no weight"] * 2100)
        for document in [f"{filler} quixotic {filler} quixotic {filler}", endless][: 1 + (kind == "bpe")]:
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
    monkeypatch.setattr("jexplicit.data.tokenizers._ENCODING_BATCH", 3)
    np.testing.assert_array_equal(encode_documents(of_prose, documents, progress=lambda *now: seen.append(now)), stream)
    assert encode_documents(of_prose, []).tolist() == encode_documents(of_prose, ["", ""]).tolist() == [0]
    assert seen == [(min(start + 3, n), n) for start in range(0, n, 3)]


# Tokenizers of other libraries

TEXTS = ["the cat sat on the mat", "a dog and the cat ran", "naïve cats, dogs and ▁ 日本", "two  spaces and\nlines "] * 5


def sentencepiece_model(texts=TEXTS, kind="unigram", **options) -> bytes:
    """A model with ids of its own: <unk> 0, <s> 1, </s> 2, <pad> 5."""
    written = io.BytesIO()
    options = {"vocab_size": 60, "pad_id": 5, "hard_vocab_limit": False, "minloglevel": 2} | options
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(texts), model_writer=written, model_type=kind, **options)
    return written.getvalue()


def byte_level() -> bytes:
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>", "<|pad|>"], tokenizers.pre_tokenizers.ByteLevel.alphabet()
    options: Any = {"vocab_size": 300, "initial_alphabet": alphabet, "special_tokens": special, "show_progress": False}
    own.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(**options))
    own.enable_truncation(2)
    own.enable_padding(pad_id=1, pad_token="<|pad|>")
    return own.to_str().encode()


def word_level() -> bytes:
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[CLS]", "[UNK]", "[PAD]"], show_progress=False)
    own.train_from_iterator(TEXTS[:10], trainer)
    return own.to_str().encode()


MODELS = {"sentencepiece.model": sentencepiece_model, "byte_level.json": byte_level, "word_level.json": word_level}
COME_BACK = {"byte_level.json": [*TEXTS, "", " ", "zzz \u2028\t 🙂", "the ", " the"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    for name, make in MODELS.items():
        (folder / name).write_bytes(make())
    return folder


def own_pieces(name: str, data: bytes, text: str) -> list[str]:
    """What the other library itself says of a text."""
    if name.endswith("model"):
        return sentencepiece.SentencePieceProcessor(model_proto=data).encode(text, out_type=str)
    own = tokenizers.Tokenizer.from_str(data.decode())
    own.no_truncation()
    own.no_padding()
    return own.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_renamed_and_nothing_else_and_the_tokenizer_is_saved_and_hashed_as_our_own(files, name, tmp_path):
    tokenizer, data = Tokenizer.load(str(files / name)), (files / name).read_bytes()
    assert tokenizer.pieces()[:2] == ["<pad>", "<unk>"] and len(set(tokenizer.pieces())) == tokenizer.vocab_size
    for text in TEXTS[:3]:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32 and 0 not in ids
        known = [tokenizer.piece(i) for i in ids.tolist() if i != tokenizer.unk_id]
        assert known == [piece for piece in own_pieces(name, data, text) if piece in set(tokenizer.pieces()[2:])]
    for text in COME_BACK.get(name, TEXTS[:2]):
        assert tokenizer.decode([0, *tokenizer.encode(text), 0]) == text
    documents = ["the cat", "", "<pad> [PAD] <|pad|> cat", "a dog\ud800"]
    assert encode_documents(tokenizer, documents).tolist() == reference_stream(tokenizer, documents)
    tokenizer.save(tmp_path / "tokenizer.model")
    for place in (tmp_path, tmp_path / "tokenizer.model"):
        assert Tokenizer.load(place) == tokenizer and Tokenizer.load(place).sha256 == tokenizer.sha256
    assert len({Tokenizer.load(files / other).sha256 for other in MODELS}) == 3
    made, again = (tokenize_corpus(Corpus("prose", PROSE, []), kind) for kind in (str(files / name), tokenizer))
    assert made.tokenizer == tokenizer
    np.testing.assert_array_equal(made.train, again.train)


def test_what_is_no_tokenizer_is_refused(files, tmp_path, monkeypatch):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "[UNK]")).save(str(tmp_path / "tokenizer.json"))
    for name, data, message in [
        ("tokenizer.json", (tmp_path / "tokenizer.json").read_bytes(), "tokenizer.json.* cannot encode unknown text"),
        ("a.json", b'{"model": 1}', "a.json: no tokenizer.json of Hugging Face's tokenizers"),
        ("a.json", json.dumps([1]).encode(), "a.json: no SentencePiece model"),
        ("a.model", b"", "a.model: no SentencePiece model"),
        ("a.model", (files / "sentencepiece.model").read_bytes()[:-7], "a.model: no SentencePiece model"),
        ("a.model", b"jexplicit-tokenizer bpe 0\nx", "a.model is not a tokenizer file, or is damaged"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            Tokenizer.load(tmp_path / name)
    for gone in (tmp_path / "gone", "syllable"):
        with pytest.raises(ValueError, match="no tokenizer at .*: choose bpe, word or char, or give"):
            Tokenizer.load(gone)
    with pytest.raises(ValueError, match="vocabulary size 7 with a tokenizer of .* tokens: omit vocab_size"):
        make_tokenizer(str(files / "word_level.json"), [], 7)
    own = train_tokenizer(TEXTS)
    assert make_tokenizer(own, [], None) == own
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jexplicit\[tokenizers\]'"):
        Tokenizer.load(files / "word_level.json")


# Tokens account for all characters

LINES = ["the cat sat on the mat", "a dog ran to the caf\N{LATIN SMALL LETTER E WITH ACUTE}"] * 15
KNOWN = "the cat sat on a dog"
LETTERS = [("<unk>", 0.0), *((letter, -1.0) for letter in sorted({"▁", *"".join(LINES)} - {" "}))]
UNKNOWN = ("\N{GREEK CAPITAL LETTER OMEGA}", "\N{GRINNING FACE}", "\u0369")


def huggingface(model, pre, **options):
    made = tokenizers.Tokenizer(getattr(tokenizers.models, model)(**options))
    made.pre_tokenizer = getattr(tokenizers.pre_tokenizers, pre)()
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    if model == "Unigram":
        made.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    else:
        trainer = made.model.get_trainer()
        trainer.show_progress, trainer.special_tokens = False, [options[name] for name in options if name == "unk_token"]
        made.train_from_iterator(LINES, trainer)
    return Tokenizer(made.to_str().encode(), "huggingface")


def sentence_piece(kind, **options):
    return Tokenizer(sentencepiece_model(LINES, kind, vocab_size=26, pad_id=-1, **options), "sentencepiece")


OF_WORDS = {
    "word": lambda: train_tokenizer(LINES, kind="word"),
    "words": lambda: Tokenizer("\n".join(sorted({word for line in LINES for word in line.split()})).encode(), "words"),
    "sentencepiece word": lambda: sentence_piece("word"),
    "huggingface words": lambda: huggingface("WordLevel", "Whitespace", unk_token="[UNK]"),
}
FOREIGN = {
    **{f"sentencepiece {kind}": lambda kind=kind: sentence_piece(kind) for kind in ("bpe", "unigram", "char")},
    "sentencepiece suffix": lambda: sentence_piece("bpe", treat_whitespace_as_suffix=True),
    "huggingface bpe without unk": lambda: huggingface("BPE", "Whitespace"),
    "huggingface bytes without their alphabet": lambda: huggingface("BPE", "ByteLevel"),
    "huggingface word pieces": lambda: huggingface("WordPiece", "BertPreTokenizer", unk_token="[UNK]"),
    "huggingface unigram": lambda: huggingface("Unigram", "Metaspace", vocab=LETTERS, unk_id=0),
}
MAKERS = OF_WORDS | FOREIGN | {kind: lambda kind=kind: train_tokenizer(LINES, kind=kind) for kind in ("bpe", "char")}


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
    if name in FOREIGN and "bytes" not in name:  # which have a token for a space
        for white in ("  ", "\n\n", " \n \n" * 9):  # but for one character
            before, after = (len(tokenizer.encode(f"{KNOWN}{space}{KNOWN}")) for space in (" ", white))
            assert after - before == len(white) - 1
        assert [unknown_of(text) for text in ("", " ", f"{KNOWN} \n")] == [0, 0, 1]

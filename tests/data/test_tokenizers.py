"""Tokenizers, trained here or elsewhere."""

import io
import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers

from jexplicit.data.corpora import Corpus, docs_corpus, text_corpus
from jexplicit.data.shards import cached_streams
from jexplicit.data.tokenizers import (
    KINDS,
    UNK_ID,
    Tokenizer,
    encode_documents,
    make_tokenizer,
    open_tokenizer,
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


# Round trip


def scrambles(alphabet, n=300, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choices(alphabet, k=rng.randrange(1, 12))) for _ in range(n)]


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_round_trip_of_known_characters(kind):
    tokenizer = train_tokenizer(PROSE, kind=kind, vocab_size=None)
    alphabet = sorted(set("".join(PROSE)))
    spaced = [" ", "  ", "\t", "\n", "\n\n", "\r", " \n ", *alphabet]
    assert tokenizer.unknown_symbols("".join(PROSE)) == []
    for text in [*PROSE, "", " ", "  ", "\n", " \n", "\n ", "▁", " ▁", *scrambles(spaced)]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids.dtype == np.int32 and ids.ndim == 1
        assert not np.isin(ids, [tokenizer.pad_id, tokenizer.unk_id]).any()


def words_of(text):
    """The words of each line with one space between: what a round trip through `word` leaves."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


def test_round_trip_of_known_words():
    documents = ["the cat, the  dog", " leads", "trails ", "a\tb c\n\nd <b>"]
    tokenizer = train_tokenizer(documents, kind="word")
    words = ["the", "cat,", "dog", "leads", "a", "d", "<b>", "\n"]
    for text in [*documents, "dog the", " \n", *(" ".join(words[i : i + 2]) for i in range(7))]:
        assert tokenizer.decode(tokenizer.encode(text)) == words_of(text)
    assert len(tokenizer.encode("the cat, the dog")) == 4


def test_white_space_around_and_between_words_makes_no_token():
    """Files of the Penn Treebank begin and end every line with a space."""
    line, words = " no it was n't  black monday ", ["no", "it", "was", "n't", "black", "monday"]
    tokenizer = train_tokenizer([line, "\tit\u2028was\r"], kind="word")
    assert sorted(tokenizer.pieces()[2:]) == sorted(f"▁{word}" for word in words)
    assert [tokenizer.piece(i).removeprefix("▁") for i in tokenizer.encode(line).tolist()] == words
    assert tokenizer == train_tokenizer([" ".join(words), "it was"], kind="word")
    assert encode_documents(tokenizer, ["   ", line, "", "\t"]).tolist() == [0, *tokenizer.encode(" ".join(words)), 0]


def test_character_ids_are_characters():
    tokenizer = train_tokenizer(["ab\nc"], kind="char")
    assert tokenizer.pieces() == ["<pad>", "<unk>", "\n", "a", "b", "c"]
    assert tokenizer.encode("ba\nc").tolist() == [4, 3, 2, 5]


def test_a_word_is_the_same_token_at_the_start_of_a_line():
    tokenizer = train_tokenizer(PROSE)
    assert tokenizer.encode("truth\ntruth").tolist() == [*tokenizer.encode("truth"), 2, *tokenizer.encode("truth")]
    assert tokenizer.piece(2) == "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_and_saved_whole(kind, tmp_path):
    tokenizer = train_tokenizer(PROSE, kind=kind)
    assert tokenizer == train_tokenizer(list(PROSE), kind=kind)
    tokenizer.save(tmp_path / "t.model")
    loaded = Tokenizer.load(tmp_path / "t.model")
    assert loaded == tokenizer
    assert loaded.pieces() == tokenizer.pieces() == [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.pieces()[:2]) == (0, 1, ["<pad>", "<unk>"])


# Unknown and reserved text


@pytest.mark.parametrize(
    ("kind", "text", "symbols", "unknown_ids"),
    [
        ("bpe", "cab zoo zzz", ["z", "o"], 6),  # each unknown character is one <unk>
        ("char", "cabzzo\n", ["z", "o", "\n"], 4),
        ("word", "cab zoo zzz zoo\n", ["zoo", "zzz", "\n"], 4),  # each unknown word is one <unk>
        ("word", "cab  abc ", [], 0),
        ("bpe", "日本\ud800 cab", ["日", "本", "\ud800"], 3),
    ],
)
def test_unknown_text_is_unk(kind, text, symbols, unknown_ids):
    tokenizer = train_tokenizer(["cab abc"] * 3, kind=kind)
    assert tokenizer.unknown_symbols(text) == symbols
    assert (tokenizer.encode(text) == tokenizer.unk_id).sum() == unknown_ids
    assert ("⁇" in tokenizer.decode(tokenizer.encode(text))) == bool(symbols)


@pytest.mark.parametrize("kind", KINDS)
def test_literal_pad_is_text(kind):
    documents = ["<pad>", "(<pad>) <unk>", "x<pad>y<pad>", "pad> <p <pa <pad", "<pad>\n<pad>"] * 9
    tokenizer = train_tokenizer(documents, kind=kind)
    stream = encode_documents(tokenizer, documents)
    assert (stream == 0).sum() == len(documents) + 1
    assert tokenizer.pieces().count("<pad>") == tokenizer.pieces().count("<unk>") == 1
    if kind != "word":
        assert all(tokenizer.decode(tokenizer.encode(document)) == document for document in documents)


def test_decode_skips_pad_and_refuses_foreign_ids():
    tokenizer = train_tokenizer(["to be or not"], kind="word")
    ids = encode_documents(tokenizer, ["to be", "or"])
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == "to be or"
    assert tokenizer.decode([]) == ""
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token id {bad} in a vocabulary of 6: use the tokenizer's own ids"):
            tokenizer.decode([2, bad])
        with pytest.raises(ValueError, match=f"token id {bad} in a vocabulary of 6: use the tokenizer's own ids"):
            tokenizer.piece(bad)


# Training text


@pytest.mark.parametrize(("kind", "break_"), [("bpe", " "), ("bpe", "\n"), ("word", "\n"), ("char", " ")])
def test_no_text_of_a_long_document_is_lost(kind, break_):
    filler = break_.join(["some words of no weight"] * 2100)
    endless = "ab" * 60_000 + "c"  # a single word
    for document in [f"{filler} quixotic {filler} quixotic {filler}", endless][: 1 + (kind == "bpe")]:
        assert len(document) > 100_000
        tokenizer = train_tokenizer([document, "x"], kind=kind, vocab_size=None)
        assert tokenizer.unknown_symbols(document) == []
        assert tokenizer.decode(tokenizer.encode(document)) == document
        assert kind == "char" or document == endless or "▁quixotic" in tokenizer.pieces()


def test_vocabulary_of_a_small_text():
    words = train_tokenizer(["one two two"], kind="word")
    assert words.pieces() == ["<pad>", "<unk>", "▁two", "▁one"]
    assert train_tokenizer(["one two two"], kind="word", vocab_size=3).pieces() == ["<pad>", "<unk>", "▁two"]
    assert train_tokenizer(["abb"], kind="char", vocab_size=3).pieces() == ["<pad>", "<unk>", "b"]
    assert train_tokenizer(["one two two"]).vocab_size < 4098
    assert [train_tokenizer(["abc"], vocab_size=size).vocab_size for size in (6, 12)] == [6, 12]  # which errors name


def test_bpe_keeps_a_small_alphabet_whole_and_not_thousands_of_rare_characters():
    letters = ["abcdefgh " * 50] * 300
    assert train_tokenizer([*letters, "z"]).unknown_symbols("z") == []
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
    tokenizer = train_tokenizer([*letters, *(letters * 80), rare], vocab_size=None)
    assert len(tokenizer.unknown_symbols(rare)) > 800


def test_bad_tokenizer_files(tmp_path):
    path = tmp_path / "t.model"
    train_tokenizer(PROSE).save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"\xff\xfe\n", whole[:-1], whole[:200], b"x" + whole, whole.replace(b"truth", b"trUth")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"t.model is not a tokenizer file, or is damaged: train the tokenizer"):
            Tokenizer.load(path)


# The stream


@pytest.mark.parametrize("kind", KINDS)
def test_stream_is_the_documents_between_pads(kind, monkeypatch):
    tokenizer = train_tokenizer(PROSE, kind=kind)
    documents = ["", *PROSE, "", " ", "\n", "", "zzz ∀∃ zzz", *scrambles(["", " ", "a", "is ", "\n", "∀"], 50), ""]
    stream = encode_documents(tokenizer, documents)
    assert stream.tolist() == reference_stream(tokenizer, documents)
    monkeypatch.setattr("jexplicit.data.tokenizers._ENCODING_BATCH", 3)
    seen = []
    again = encode_documents(tokenizer, documents, progress=lambda done, in_all: seen.append((done, in_all)))
    np.testing.assert_array_equal(again, stream)
    assert encode_documents(tokenizer, []).tolist() == encode_documents(tokenizer, ["", ""]).tolist() == [0]
    n = len(documents)
    assert seen == [(min(start + 3, n), n) for start in range(0, n, 3)]


@pytest.mark.parametrize(("characters", "dtype"), [(254, np.uint8), (255, np.uint16)])
def test_stream_has_the_smallest_type(characters, dtype):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + characters)))
    tokenizer = train_tokenizer([text], kind="char")
    stream = encode_documents(tokenizer, [text])
    assert tokenizer.vocab_size == characters + 2
    assert stream.dtype == dtype and stream.max() == characters + 1


# The cache


def streams(corpus, folder, **settings):
    return cached_streams(corpus, **{"kind": "bpe", "vocab_size": None, "cache_dir": folder, **settings})


def test_cache_gives_back_what_it_got(tmp_path):
    corpus = Corpus("prose", PROSE, PROSE[:2])
    seen = []
    made = streams(corpus, tmp_path, progress=lambda done, in_all: seen.append((done, in_all)))
    read = streams(Corpus("another", corpus.train, corpus.dev), tmp_path, progress=lambda *_: seen.append("read"))
    assert (made.cached, read.cached) == (False, True)
    assert made.tokenizer == read.tokenizer
    for a, b, documents in ((made.train, read.train, corpus.train), (made.dev, read.dev, corpus.dev)):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, encode_documents(made.tokenizer, documents))
        assert a.dtype == b.dtype and isinstance(b, np.memmap)
    assert seen == [(15, 17), (17, 17)]
    assert len(list(tmp_path.glob("*/*"))) == 4


def test_cache_tells_contents_kinds_and_sizes_apart(tmp_path):
    corpus = Corpus("prose", PROSE, PROSE[:2])
    others = [(corpus, {"kind": "word"}), (corpus, {"vocab_size": 100})]
    others += [(Corpus("prose", PROSE, PROSE[:1]), {}), (Corpus("prose", PROSE[1:], PROSE[:2]), {})]
    streams(corpus, tmp_path)
    assert not any(streams(other, tmp_path, **settings).cached for other, settings in others)
    assert streams(corpus, tmp_path).cached
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("name", ["tokenizer.model", "train.npy", "dev.npy", "dev.json"])
def test_a_damaged_cache_is_rebuilt_and_one_that_cannot_be_written_is_done_without(tmp_path, caplog, name):
    caplog.set_level(logging.WARNING)
    corpus = Corpus("prose", PROSE, PROSE[:2])
    made = streams(corpus, tmp_path)
    (path,) = tmp_path.glob(f"*/{name}")
    whole = path.read_bytes()
    for damaged in (whole[:-3], b"", b"junk" * 50):
        path.write_bytes(damaged)
        caplog.clear()
        again = streams(corpus, tmp_path)
        assert "are damaged" in caplog.text and "are rebuilt" in caplog.text
        assert not again.cached and path.read_bytes() == whole
        np.testing.assert_array_equal(again.train, made.train)
        assert streams(corpus, tmp_path).cached
    again = streams(corpus, path / "cache")  # a folder in a file
    np.testing.assert_array_equal(again.train, made.train)
    assert not again.cached and "set JEXPLICIT_CACHE_DIR to a folder of yours" in caplog.text


@pytest.mark.parametrize(
    ("environment", "folder"),
    [({"JEXPLICIT_CACHE_DIR": "own"}, "own"), ({"XDG_CACHE_HOME": "xdg"}, "xdg/jexplicit"), ({}, ".cache/jexplicit")],
)
def test_default_cache_folder(tmp_path, monkeypatch, environment, folder):
    for name in ("JEXPLICIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    streams(Corpus("prose", PROSE, PROSE[:2]), None)
    assert len(list((tmp_path / folder).glob("*/train.npy"))) == 1


# Real text


@pytest.mark.parametrize("kind", [k if k == "char" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_real_text_round_trip(data_dir, kind):
    corpus = text_corpus([Path(data_dir, "tinyshakespeare/input.txt")]).in_memory()
    tokenizer = train_tokenizer(corpus.train, kind=kind)
    assert kind == "word" or tokenizer.unknown_symbols("".join(corpus.train)) == []
    for document in corpus.train[:5000:5]:
        ids = tokenizer.encode(document)
        assert tokenizer.unk_id in ids or tokenizer.decode(ids) == (words_of(document) if kind == "word" else document)
    stream = encode_documents(tokenizer, corpus.train[:2000])
    assert stream.tolist() == reference_stream(tokenizer, corpus.train[:2000])


@pytest.mark.slow
def test_the_embedded_corpus_has_few_unknown_tokens():
    corpus = docs_corpus()
    tokenizer = train_tokenizer(corpus.train)
    assert tokenizer.vocab_size == 4098
    assert (encode_documents(tokenizer, corpus.dev) == 1).mean() < 0.001


TEXTS = ["the cat sat on the mat", "a dog and the cat ran", "naïve cats, dogs and ▁ 日本", "two  spaces and\nlines "] * 5


def sentencepiece_model() -> bytes:
    """A unigram model with ids of its own: <unk> 0, <s> 1, </s> 2, <pad> 5."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, model_type="unigram", vocab_size=60, pad_id=5, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    return written.getvalue()


def byte_level() -> bytes:
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|pad|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    own.train_from_iterator(TEXTS, trainer)
    own.enable_truncation(2)
    own.enable_padding(pad_id=1, pad_token="<|pad|>")
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return own.to_str().encode()


def word_level() -> bytes:
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[CLS]", "[UNK]", "[PAD]"], show_progress=False)
    own.train_from_iterator(TEXTS[:10], trainer)
    return own.to_str().encode()


MODELS = {"sentencepiece.model": sentencepiece_model, "byte_level.json": byte_level, "word_level.json": word_level}


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
def test_ids_are_renamed_and_nothing_else(files, name):
    tokenizer, data = open_tokenizer(files / name), (files / name).read_bytes()
    assert tokenizer.pieces()[:2] == ["<pad>", "<unk>"]
    assert len(set(tokenizer.pieces())) == tokenizer.vocab_size
    for text in TEXTS[:3]:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32 and 0 not in ids
        known = [tokenizer.piece(i) for i in ids.tolist() if i != tokenizer.unk_id]
        assert known == [piece for piece in own_pieces(name, data, text) if piece in set(tokenizer.pieces()[2:])]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("sentencepiece.model", TEXTS[:2]),
        ("byte_level.json", [*TEXTS, "", " ", "zzz \u2028\t 🙂", "the ", " the"]),
        ("word_level.json", TEXTS[:2]),
    ],
)
def test_round_trip(files, name, texts):
    tokenizer = open_tokenizer(files / name)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == list(texts)
    assert tokenizer.decode([0, *tokenizer.encode(texts[0]), 0]) == texts[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_has_pads_between_documents_only(files, name):
    tokenizer = open_tokenizer(files / name)
    documents = ["the cat", "", "<pad> [PAD] <|pad|> cat", "a dog\ud800"]
    stream = encode_documents(tokenizer, documents)
    assert (stream == 0).sum() == 4 and stream[0] == stream[-1] == 0
    expected = [id for document in documents if document for id in [*tokenizer.encode(document).tolist(), 0]]
    assert stream.tolist() == [0, *expected]


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_hashed_as_our_own(files, name, tmp_path):
    tokenizer = open_tokenizer(str(files / name))
    tokenizer.save(tmp_path / "tokenizer.model")
    for place in (tmp_path, tmp_path / "tokenizer.model"):
        again = open_tokenizer(place)
        assert again == tokenizer and again.sha256 == tokenizer.sha256
    assert len({open_tokenizer(files / other).sha256 for other in MODELS}) == 3
    corpus, options = Corpus("a", TEXTS, TEXTS[:2]), {"vocab_size": None, "cache_dir": tmp_path / "cache"}
    made, read, other = (cached_streams(corpus, kind=kind, **options) for kind in (str(files / name), tokenizer, "bpe"))
    assert (made.cached, read.cached, other.cached) == (False, True, False)
    own = train_tokenizer(TEXTS)
    own.save(tmp_path / "tokenizer.model")
    assert open_tokenizer(tmp_path) == make_tokenizer(own, [], None) == own
    np.testing.assert_array_equal(made.train, read.train)


def test_what_is_no_tokenizer_is_refused(files, tmp_path, monkeypatch):
    for name, data, message in [
        ("a.json", b'{"model": 1}', "a.json: no tokenizer.json of Hugging Face's tokenizers"),
        ("a.json", json.dumps([1]).encode(), "a.json: no SentencePiece model"),
        ("a.model", b"", "a.model: no SentencePiece model"),
        ("a.model", sentencepiece_model()[:-7], "a.model: no SentencePiece model"),
        ("a.model", b"jexplicit-tokenizer bpe 0\nx", "a.model is not a tokenizer file, or is damaged"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            open_tokenizer(tmp_path / name)
    for gone in (tmp_path, tmp_path / "gone", "syllable"):
        with pytest.raises(ValueError, match="no tokenizer at .*: choose bpe, word or char, or give"):
            open_tokenizer(gone)
    with pytest.raises(ValueError, match="vocabulary size 7 with a tokenizer of .* tokens: omit vocab_size"):
        make_tokenizer(str(files / "word_level.json"), [], 7)
    with pytest.raises(ValueError, match="damaged or foreign model of kind 'syllable'"):
        Tokenizer(b"", "syllable")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jexplicit\[tokenizers\]'"):
        open_tokenizer(files / "word_level.json")


def test_a_tokenizer_that_fails_at_unknown_text_is_refused(tmp_path):
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "[UNK]"))
    model.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="tokenizer.json.* cannot encode unknown text"):
        open_tokenizer(tmp_path)


# Tokens account for all characters

LINES = ["the cat sat on the mat", "a dog ran to the caf\N{LATIN SMALL LETTER E WITH ACUTE}"] * 15
KNOWN = "the cat sat on a dog"
LETTERS = [("<unk>", 0.0), *((letter, -1.0) for letter in sorted({"▁", *"".join(LINES)} - {" "}))]
UNKNOWN = ("\N{GREEK CAPITAL LETTER OMEGA}", "\ue000", "\N{GRINNING FACE}", "\N{THAI CHARACTER KO KAI}", "\u0369")


def huggingface(model, pre, **options):
    tokenizers = pytest.importorskip("tokenizers")
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
    written, lines = io.BytesIO(), iter(LINES)
    options |= {"vocab_size": 26, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=written, model_type=kind, **options)
    return Tokenizer(written.getvalue(), "sentencepiece")


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
    "huggingface bpe with a fused unk": lambda: huggingface("BPE", "Whitespace", unk_token="[UNK]", fuse_unk_token="[UNK]"),
    "huggingface bytes without their alphabet": lambda: huggingface("BPE", "ByteLevel"),
    "huggingface bytes with unk": lambda: huggingface("BPE", "ByteLevel", unk_token="[UNK]"),
    "huggingface word pieces": lambda: huggingface("WordPiece", "BertPreTokenizer", unk_token="[UNK]"),
    "huggingface unigram": lambda: huggingface("Unigram", "Metaspace", vocab=LETTERS, unk_id=0),
}
OWN = {kind: lambda kind=kind: train_tokenizer(LINES, kind=kind) for kind in ("bpe", "char")}
MAKERS = OF_WORDS | FOREIGN | OWN


@pytest.fixture(params=MAKERS, scope="module")
def named(request):
    return request.param, MAKERS[request.param]()


def unknown_of(tokenizer, text):
    return int(np.count_nonzero(tokenizer.encode(text) == UNK_ID))


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_every_character_that_no_piece_has_is_unk(named, unknown):
    name, tokenizer = named
    of_break = unknown_of(tokenizer, f"{KNOWN}\n{KNOWN}")
    assert unknown_of(tokenizer, KNOWN) == 0 and tokenizer.unknown_symbols(f"{KNOWN} {unknown}") == [unknown]
    for times in (1, 2, 50):
        n, word = 1 if name in OF_WORDS else times, unknown * times
        assert [unknown_of(tokenizer, text) for text in (f"{KNOWN} {word}", f"{word} {KNOWN}")] == [n, n]
        assert unknown_of(tokenizer, " ".join([f"{KNOWN}\n{word}", *[word] * 4, KNOWN])) == 5 * n + of_break
    known = [i for i in tokenizer.encode(f"{KNOWN} {unknown} {KNOWN}") if i != UNK_ID]
    assert len(known) >= 2 * len(tokenizer.encode(KNOWN)) - 1  # words of characters: a space may be a part of its word


@pytest.mark.parametrize("name", [name for name in FOREIGN if "bytes" not in name])  # which have a token for a space
def test_white_space_that_is_dropped_is_unk_but_for_one_character(name):
    tokenizer = FOREIGN[name]()
    for white in ("  ", "\n\n", " \n \n" * 9):
        before, after = (len(tokenizer.encode(f"{KNOWN}{space}{KNOWN}")) for space in (" ", white))
        assert after - before == len(white) - 1
    assert [unknown_of(tokenizer, text) for text in ("", " ", f"{KNOWN} \n")] == [0, 0, 1]


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_noncharacters_of_a_text_come_back(kind):
    text = "a\ufdd0b \ufdd1 \ufdd4\ufdd2 c \ufdd4 \N{LOWER ONE EIGHTH BLOCK}\0\r"
    known = train_tokenizer([text] * 3, kind=kind)
    assert known.decode(known.encode(text)) == text

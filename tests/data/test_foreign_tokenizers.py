"""Tokenizers of others: their ids are renamed and nothing else, and they are saved, hashed and read as our own."""

import io
import json

import numpy as np
import pytest
import sentencepiece
import tokenizers

from jexplicit.data.corpora import Corpus
from jexplicit.data.shards import cached_streams
from jexplicit.data.tokenizers import UNK_ID, Tokenizer, encode_documents, make_tokenizer, open_tokenizer, train_tokenizer

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

"""The tokens of a text account for all of its characters, with every kind of tokenizer."""

import io

import numpy as np
import pytest
import sentencepiece

from jexplicit.data.tokenizers import UNK_ID, Tokenizer, train_tokenizer

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

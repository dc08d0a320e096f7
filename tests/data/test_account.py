"""The tokens of a text account for all of its characters but white space, with every kind of tokenizer."""

import io

import numpy as np
import pytest
import sentencepiece

from jexplicit.data.tokenizers import KINDS, UNK_ID, Tokenizer, open_tokenizer, train_tokenizer

LINES = ["the cat sat on the mat", "a dog ran to the log"] * 15
KNOWN = "the cat sat on a log"
UNKNOWN = ("\N{GREEK CAPITAL LETTER OMEGA}", "\N{SNOWMAN}", "\ue000", "\N{GRINNING FACE}")


def huggingface(tmp_path, model, pre, trainer, **options):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(getattr(tokenizers.models, model)(**options))
    made.pre_tokenizer = getattr(tokenizers.pre_tokenizers, pre)()
    special = ["[UNK]"] if "unk_token" in options else []
    made.train_from_iterator(
        LINES, getattr(tokenizers.trainers, trainer)(vocab_size=80, show_progress=False, special_tokens=special)
    )
    made.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path)


def sentence_piece(kind, tmp_path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        model_type=kind,
        vocab_size=24,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "w.model").write_bytes(written.getvalue())
    return open_tokenizer(tmp_path / "w.model")


MAKERS = {
    **{kind: lambda tmp_path, kind=kind: train_tokenizer(LINES, kind=kind) for kind in KINDS},
    **{f"sentencepiece {kind}": lambda p, kind=kind: sentence_piece(kind, p) for kind in ("bpe", "unigram", "word", "char")},
    "huggingface bpe without unk": lambda p: huggingface(p, "BPE", "Whitespace", "BpeTrainer"),
    "huggingface bpe with unk": lambda p: huggingface(p, "BPE", "Whitespace", "BpeTrainer", unk_token="[UNK]"),
    "huggingface words": lambda p: huggingface(p, "WordLevel", "Whitespace", "WordLevelTrainer", unk_token="[UNK]"),
    "words": lambda _: Tokenizer("\n".join(sorted({word for line in LINES for word in line.split()})).encode(), "words"),
}


@pytest.fixture(params=MAKERS, scope="module")
def tokenizer(request, tmp_path_factory):
    return MAKERS[request.param](tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_no_piece_covers_is_unk_for_each_word(tokenizer, unknown):
    def count(text):
        return int(np.count_nonzero(tokenizer.encode(text) == UNK_ID))

    assert count(KNOWN) == 0
    assert count(f"{KNOWN} {unknown}") == 1 and count(f"{unknown} {KNOWN}") == 1
    assert count(" ".join([KNOWN, *[unknown] * 5, KNOWN])) == 5
    known = [i for i in tokenizer.encode(f"{KNOWN} {unknown} {KNOWN}") if i != UNK_ID]
    assert len(known) >= 2 * len(tokenizer.encode(KNOWN)) - 1  # words of characters: a space may be a part of its word


def test_a_known_text_is_covered_and_white_space_has_no_unknown(tokenizer):
    assert "".join(tokenizer.decode(tokenizer.encode(KNOWN)).split()) == "".join(KNOWN.split())
    assert not len(tokenizer.encode("")) and UNK_ID not in tokenizer.encode("   ")


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_noncharacters_of_a_text_come_back(kind):
    text = "a\ufdd0b \ufdd1 \ufdd4\ufdd2 c \ufdd4 \N{LOWER ONE EIGHTH BLOCK}\0\r"
    known = train_tokenizer([text] * 3, kind=kind)
    assert known.decode(known.encode(text)) == text


def test_a_list_of_words_has_an_unk_for_each():
    assert Tokenizer(b"to\nbe", "words").encode("be x y to").tolist() == [3, 1, 1, 2]

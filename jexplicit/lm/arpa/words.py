"""How the tokens of a model are spelled in an ARPA file."""

import os
import re

from jexplicit.data.tokenizers import UNK_ID, Tokenizer

_suffixes = (".arpa", ".arpa.gz")
_escaped = re.compile(r"[\s\0]|\\(?=u[0-9a-f]{4})")
_reserved = ("<s>", "</s>", "<unk>", "<UNK>")


def is_arpa(path: str | os.PathLike) -> bool:
    """Whether a path names an ARPA file, .arpa or .arpa.gz, in any case.

    >>> is_arpa("lm.arpa.gz"), is_arpa("lm.safetensors")
    (True, False)
    """
    return str(path).lower().endswith(_suffixes)


def arpa_words(tokenizer: Tokenizer) -> list[str]:
    """The word of an ARPA file that each token id is: its piece of text, without the mark of a space where tokens are words.

    White space in a piece is written `\\uXXXX`, and so is the first character of a piece such as `</s>`, or of one that would
    read like another. The words of a text are those of its token ids: `" ".join(words[i] for i in tokenizer.encode(text))` is
    what a decoder scores.

    >>> from jexplicit.data.tokenizers import train_tokenizer
    >>> arpa_words(train_tokenizer(["to be\\n</s>"], kind="word"))[1:]
    ['<unk>', '\\\\u000a', '\\\\u003c/s>', 'be', 'to']
    """
    pieces = tokenizer.pieces()
    if tokenizer.kind == "words":  # of an ARPA file
        return pieces
    if tokenizer.kind == "word":
        pieces = [piece.removeprefix("▁") for piece in pieces]
    words = [_escape(piece) for piece in pieces]
    words[UNK_ID] = "<unk>"
    seen: set[str] = set()
    for i, word in enumerate(words):  # `▁` is a space, and the character itself
        words[i] = f"\\u{ord(word[0]):04x}{word[1:]}" if word in seen else word
        if not word or words[i] in seen:
            raise ValueError(f"the tokenizer has {word!r} as several pieces: an ARPA file tells tokens apart by their text")
        seen.add(words[i])
    return words


def _escape(piece: str) -> str:
    if piece in _reserved:
        return f"\\u{ord(piece[0]):04x}{piece[1:]}"
    return _escaped.sub(lambda match: f"\\u{ord(match[0]):04x}", piece)

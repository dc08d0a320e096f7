"""Foreign tokenizers: any SentencePiece model, the `tokenizer.json` of Hugging Face's `tokenizers`, a list of words.

Their ids are renumbered: 0 is `<pad>` and 1 `<unk>`, even for tokenizers without such tokens, followed by all others in the
order of the foreign ids. A foreign `<pad>` inside a text becomes `<unk>`, so that 0 only separates documents. The tokens of a
text cover all of its characters but white space: what a foreign tokenizer drops is `<unk>`, one for each word.
"""

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from jexplicit.data.contexts import PAD

UNK_ID = 1
_RARE = ("\ue000", "\N{GREEK CAPITAL LETTER OMEGA}", "\N{ETHIOPIC SYLLABLE HA}", "\N{GRINNING FACE}")  # to see what is left out
_WORD = re.compile(r"[^\s\0-\x1f\u0300-\u036f]+")  # of characters that a normaliser does not remove


class ForeignTokenizer:
    """A foreign tokenizer with renumbered ids; pad, unk: its ids of `<pad>` and `<unk>`, or None."""

    def __init__(self, tokens: dict[int, str], *, pad: int | None, unk: int | None):
        others = [i for i in sorted(tokens) if i not in (pad, unk)]
        self.pieces = ["<pad>", "<unk>", *(tokens[i] for i in others)]
        self.names = np.array([-1 if pad is None else pad, -1 if unk is None else unk, *others], np.int64)
        self.ids = np.full(max(tokens, default=0) + 1, UNK_ID, np.int32)
        self.ids[others] = np.arange(2, len(self.pieces))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of every text."""
        return [self.ids[np.array(ids, np.int64)] for ids in self.encode_foreign(texts)]

    def decode(self, ids: np.ndarray) -> str:
        """Text of token ids; `<pad>` is skipped."""
        names = self.names[ids[ids != PAD]]
        return self.decode_foreign(names[names >= 0].tolist())

    def encode_foreign(self, texts: Sequence[str]) -> list[list[int]]:
        """Foreign ids of every text."""
        raise NotImplementedError

    def decode_foreign(self, ids: list[int]) -> str:
        """Text of foreign ids."""
        raise NotImplementedError


class SentencePieceTokenizer(ForeignTokenizer):
    """Any SentencePiece model, with its own normalisation."""

    def __init__(self, model: bytes):
        if not model:
            raise ValueError("no SentencePiece model: the file is empty")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            size = self._processor.get_piece_size()
        except (RuntimeError, TypeError) as error:
            raise ValueError("no SentencePiece model: the bytes cannot be parsed") from error
        if not size:
            raise ValueError("no SentencePiece model: it has no pieces")
        pad, self._unk = self._processor.pad_id(), self._processor.unk_id()
        tokens = {i: self._processor.id_to_piece(i) for i in range(size)}
        super().__init__(tokens, pad=None if pad < 0 else pad, unk=self._unk)

    def encode_foreign(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._processor.encode(list(texts))
        return [self._by_word(text, ids) if self._unk in ids else ids for text, ids in zip(texts, found, strict=True)]

    def _by_word(self, text: str, ids: list[int]) -> list[int]:
        """The ids of a text with one for each unknown word: a model of words has one for a run of them."""
        pieces = self._processor.encode(text, out_type=str)
        times = [
            max(1, len(piece.replace("▁", " ").split())) if i == self._unk else 1 for i, piece in zip(ids, pieces, strict=True)
        ]
        return [i for i, n in zip(ids, times, strict=True) for _ in range(n)]

    def decode_foreign(self, ids: list[int]) -> str:
        return self._processor.decode(ids)


class HuggingFaceTokenizer(ForeignTokenizer):
    """The tokenizer of a `tokenizer.json`, without its template of special tokens, truncation and padding."""

    def __init__(self, model: bytes):
        if importlib.util.find_spec("tokenizers") is None:
            raise ValueError("a tokenizer.json needs tokenizers: pip install 'jexplicit[tokenizers]'")
        import tokenizers

        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(model)
        except Exception as error:  # the library has no exception class
            raise ValueError(f"no tokenizer.json of Hugging Face's tokenizers ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tokens = {i: piece for piece, i in self._tokenizer.get_vocab(with_added_tokens=True).items()}
        own = {piece: i for i, piece in tokens.items()}
        unk = getattr(self._tokenizer.model, "unk_token", None) or "<unk>"
        pad = next((own[name] for name in ("<pad>", "[PAD]", "<|pad|>") if name in own), None)
        super().__init__(tokens, pad=pad, unk=own.get(unk))
        try:
            self._leaves_out = not all(self._tokenizer.encode(sample, add_special_tokens=False).ids for sample in _RARE)
        except Exception as error:  # as above
            raise ValueError(
                f"a tokenizer.json that cannot encode unknown text ({error}): give its model an unk token"
            ) from error

    def encode_foreign(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        encoded = [np.zeros(0, np.int32)] * len(texts) if self._leaves_out else super().encode(texts)
        with_unknown = [n for n, ids in enumerate(encoded) if self._leaves_out or UNK_ID in ids]
        found = self._tokenizer.encode_batch([texts[n] for n in with_unknown], add_special_tokens=False)
        for n, one in zip(with_unknown, found, strict=True):
            encoded[n] = self._by_word(texts[n], self.ids[np.array(one.ids, np.int64)], one.offsets)
        return encoded

    def _by_word(self, text: str, ids: np.ndarray, offsets: list[tuple[int, int]]) -> np.ndarray:
        """The ids with an `<unk>` for each word that has none: of what lies between two tokens, or in one of several words."""
        places = np.array(offsets, int).reshape(-1, 2)
        ends = np.append(0, np.maximum.accumulate(places[:, 1]))
        between = [len(_WORD.findall(text[end:start])) for end, start in zip(ends, [*places[:, 0], len(text)], strict=True)]
        within = [len(text[start:end].split()) - 1 if i == UNK_ID else 0 for i, (start, end) in zip(ids, places, strict=True)]
        more = np.array(between) + np.maximum([*within, 0], 0)
        return np.insert(ids, np.repeat(np.arange(len(more)), more), UNK_ID)

    def decode_foreign(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class WordList(ForeignTokenizer):
    """Words separated by white space, those of a list, one per line, in UTF-8."""

    def __init__(self, model: bytes):
        self._words = model.decode().split("\n") if model else []
        self._own = {word: i for i, word in enumerate(self._words)}
        super().__init__(dict(enumerate([*self._words, "<unk>"])), pad=None, unk=len(self._words))

    def encode_foreign(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = len(self._words)
        return [[self._own.get(word, unknown) for word in re.findall(r"[^ \t\r\n]+", text)] for text in texts]

    def decode_foreign(self, ids: list[int]) -> str:
        return " ".join([*self._words, "⁇"][i] for i in ids)


FOREIGN = {"sentencepiece": SentencePieceTokenizer, "huggingface": HuggingFaceTokenizer, "words": WordList}

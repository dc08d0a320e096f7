"""Tokenizers (SentencePiece, Kudo & Richardson 2018), and streams of ids.

Ids 0 and 1 are `<pad>` and `<unk>`. Other SentencePiece models are renumbered, and characters that they lose are `<unk>`.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import sentencepiece

from jexplicit.data.text import is_input, read_input
from jexplicit.runs.files import local_path, write_whole

KINDS = ("bpe", "word", "char")
PAD, UNK_ID = 0, 1
Progress = Callable[[int, int], None]
DEFAULT_VOCAB_SIZE = 4098  # 2^12, <pad> and <unk>

_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"

# Characters with a special meaning to sentencepiece (its marks for a space and for an unknown piece, the end of a string, the
# end of a line) are replaced by noncharacters, which Unicode reserves for internal use. A noncharacter of the text itself comes
# after another one.
_ESCAPES = {_SPACE_MARK: "\ufdd0", "\N{LOWER FIVE EIGHTHS BLOCK}": "\ufdd1", "\0": "\ufdd2", "\r": "\ufdd3"}
_UNESCAPES = {stand_in: character for character, stand_in in _ESCAPES.items()}
_ESCAPES |= {character: f"\ufdd4{character}" for character in (*_UNESCAPES, "\ufdd4")}
_ESCAPED = re.compile(f"[{''.join(_ESCAPES)}\ud800-\udfff]")
_STAND_IN = re.compile("\ufdd4?([\ufdd0-\ufdd4])")
_SURROGATES = re.compile("[\ud800-\udfff]")
_HOLE = "\ufdd5"  # a noncharacter for a character that no piece has
_WORD, _CHARACTER = re.compile(r"\S+"), re.compile(".", re.DOTALL)
_SYMBOLS = dict.fromkeys(("bpe", "char"), _CHARACTER) | {"word": re.compile(r"\S+|\n")}

_RESERVED = re.compile("(<pad|<unk)(>)")
_FILE_MARK = "jexplicit-tokenizer"
_ALL_CHARACTERS = 0x110000
_TRAINING_OPTIONS = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,  # an indentation is one token
    "hard_vocab_limit": False,  # the resulting size is checked instead
    "pad_id": PAD, "unk_id": UNK_ID, "bos_id": -1, "eos_id": -1, "num_threads": 2, "minloglevel": 2,
}  # fmt: skip
_TRAINING_CHUNK = 1000  # characters, at most 4000 bytes: sentencepiece skips sentences of over 4192 bytes
_encoding_batch = 512  # documents


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back.

    model: serialized SentencePiece model, or list of words. kind: `bpe`, `word` or `char`; `sentencepiece`, a model that was
    not trained here; `words`, a list.

    >>> tokenizer = train_tokenizer(["to be or not to be"], kind="word")
    >>> tokenizer.encode("to be")
    array([3, 2], dtype=int32)
    >>> tokenizer.decode(tokenizer.encode("to be or what"))
    'to be or ⁇'
    """

    pad_id: ClassVar[int] = PAD
    unk_id: ClassVar[int] = UNK_ID  # one for each unknown character, or word of a tokenizer of words

    model: bytes
    kind: str
    vocab_size: int = field(init=False, compare=False)  # with `<pad>` and `<unk>`
    _codec: "_Codec" = field(init=False, compare=False)

    def __post_init__(self):
        if self.kind == "words":
            codec = _read_words(self.model)
        else:
            processor = sentencepiece.SentencePieceProcessor()
            try:
                processor.LoadFromSerializedProto(self.model)
            except RuntimeError as error:
                raise ValueError("no SentencePiece model: the bytes cannot be parsed, or have no piece") from error
            codec = _read_sentencepiece(processor) if self.kind == "sentencepiece" else _read_own(processor, self.kind)
        self.__dict__.update(vocab_size=len(codec.pieces), _codec=codec)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.vocab_size} tokens)"

    def __reduce__(self):
        return Tokenizer, (self.model, self.kind)  # a copy makes a codec of its own

    of_words = property(lambda self: self._codec.unit is not _CHARACTER, doc="Whether an `<unk>` is a word, not a character.")

    @property
    def sha256(self) -> str:
        """Hash of kind and model: equal hashes mean equal token ids."""
        return hashlib.sha256(self.kind.encode() + self.model).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, int32 [tokens]; unknown characters or words are `<unk>`."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of every text, see `encode`."""
        _check_documents(texts := texts if isinstance(texts, str) or not isinstance(texts, Iterable) else [*texts])
        return self._codec.encode(texts)

    def decode(self, ids: Sequence | np.ndarray) -> str:
        """Text of token ids [tokens]: `<pad>` is skipped and `<unk>` reads `⁇`."""
        given = np.asarray(ids)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(f"token ids of type {given.dtype} and shape {given.shape}: give integers [tokens]")
        ids = given.astype(np.int64)
        if (outside := ids[(ids < 0) | (ids >= self.vocab_size)]).size:
            raise ValueError(f"token id {outside[0]} in a vocabulary of {self.vocab_size}: use the tokenizer's own ids")
        return self._codec.decode(ids)

    def piece(self, i: int) -> str:
        """The piece of an id, with `▁` for a space; ValueError for foreign ids."""
        if not isinstance(i, int | np.integer) or not 0 <= i < self.vocab_size:
            raise ValueError(f"token id {i!r} in a vocabulary of {self.vocab_size}: use the tokenizer's own ids")
        return self._codec.pieces[i]

    def pieces(self) -> list[str]:
        """All pieces, in the order of their ids."""
        return [*self._codec.pieces]

    def unknown_symbols(self, text: str) -> list[str]:
        """Unknown characters or, for tokenizers of words, words of a text, each once."""
        return [symbol for symbol in dict.fromkeys(self._codec.unit.findall(text)) if UNK_ID in self.encode(symbol)]

    def save(self, path: str | os.PathLike) -> None:
        """Write the tokenizer to a file: kind and hash, then the model."""
        header = f"{_FILE_MARK} {self.kind} {hashlib.sha256(self.model).hexdigest()}\n"
        write_whole(local_path(path), lambda file: file.write(header.encode() + self.model))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Read a saved tokenizer, a run's, or any SentencePiece model."""
        place, remedy = local_path(path), "give a run folder or a SentencePiece model"
        file = next((f for f in (place / "tokenizer.model", place) if is_input(f)), None)
        if file is None:
            raise ValueError(f"no tokenizer at {path}: choose bpe, word or char, or {remedy}")
        data = read_input(file)
        header, _, model = data.partition(b"\n")
        mark, kind, digest = (header.decode("latin1").split(" ") + ["", ""])[:3]
        if mark != _FILE_MARK:
            kind, model = "sentencepiece", data
        elif digest != hashlib.sha256(model).hexdigest():
            raise ValueError(f"{file} is not a tokenizer file, or is damaged: train the tokenizer again")
        try:
            return cls(model, kind)
        except ValueError as error:
            raise ValueError(f"{file}: {error}; {remedy}") from error


def make_tokenizer(tokenizer: str | os.PathLike | Tokenizer, documents: Sequence[str], vocab_size: int | None) -> Tokenizer:
    """The tokenizer of a flag: a kind to train, a path, or a tokenizer."""
    if isinstance(tokenizer, str) and tokenizer in KINDS:
        return train_tokenizer(documents, kind=tokenizer, vocab_size=vocab_size)
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    if vocab_size is not None and vocab_size != tokenizer.vocab_size:
        raise ValueError(f"vocabulary size {vocab_size} with a tokenizer of {tokenizer.vocab_size} tokens: omit vocab_size")
    return tokenizer


def train_tokenizer(documents: Sequence[str], *, kind: str = "bpe", vocab_size: int | None = None) -> Tokenizer:
    """Train a tokenizer on documents; the same documents give the same tokenizer.

    documents: texts to learn from, a list: a single text is `[text]`.
    kind: `bpe` merges the most frequent pair of pieces until the vocabulary is full, `word` keeps the most frequent words
        (separated by white space) and `char` the most frequent characters.
    vocab_size: total number of token ids. None: 4098, or all words or pieces of a text with fewer, or all characters.
    ValueError: no text, an unknown kind, or a `vocab_size` too large or too small for the text.

    >>> train_tokenizer(["abc", "cab"], kind="char").pieces()
    ['<pad>', '<unk>', 'a', 'b', 'c']
    """
    _check_documents(documents)
    if kind not in KINDS:
        raise ValueError(f"unknown tokenizer kind {kind!r}: use one of {', '.join(KINDS)}")
    if vocab_size is not None and (isinstance(vocab_size, bool) or not isinstance(vocab_size, int | np.integer)):
        raise ValueError(f"vocab_size={vocab_size!r}: give a whole number")
    if vocab_size is not None and vocab_size < 3:
        raise ValueError(f"vocabulary size {vocab_size} holds no more than <pad> and <unk>: use 3 or more")
    size = vocab_size or (_ALL_CHARACTERS if kind == "char" else DEFAULT_VOCAB_SIZE)
    characters = set().union(*documents)
    written = io.BytesIO()
    # Each known character has an id; where they would take much of the vocabulary, those of 99.95 % of the text are kept: of
    # 1361 characters in 10 M words of English 101, and 0.13 % of the tokens are <unk>.
    coverage = 0.9995 if kind == "bpe" and len(characters) > size // 16 else 1.0
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_sentences(documents, kind),
            model_writer=written,
            model_type=kind,
            vocab_size=size,
            character_coverage=coverage,
            add_dummy_prefix=kind != "char",
            control_symbols=["\n"] if "\n" in characters else [],
            **_TRAINING_OPTIONS,
        )
    except RuntimeError as error:
        if required := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            remedy = f"use {required[1]} or more"
            raise ValueError(f"vocabulary size {size} is too small for the characters of the text: {remedy}") from error
        if "sentences_.empty()" in str(error):
            raise ValueError(f"no text in {len(documents)} documents: give some to train a tokenizer on") from error
        raise
    tokenizer = Tokenizer(written.getvalue(), kind)
    if vocab_size is not None and tokenizer.vocab_size < vocab_size:
        remedy = f"use {tokenizer.vocab_size} or less, or more text"
        raise ValueError(f"vocabulary size {vocab_size} is more than the text allows: {remedy}")
    return tokenizer


def _training_sentences(documents: Iterable[str], kind: str) -> Iterator[str]:
    # sentencepiece splits its training text at its <pad> and <unk>, and drops their characters.
    for text in (_prepare(document, kind) for document in documents):
        for line in (text if kind == "word" else _RESERVED.sub(r"\1\n\2", text)).split("\n"):
            if kind == "word" and _RESERVED.search(line):
                line = " ".join(word for word in line.split(" ") if not _RESERVED.search(word))
            start = 0
            while len(line) - start > _TRAINING_CHUNK:
                space = line.rfind(" ", start + 1, start + _TRAINING_CHUNK) if kind != "char" else -1
                stop = space if space > 0 else start + _TRAINING_CHUNK
                yield line[start:stop]
                start = stop + (space > 0)  # the space comes back as the mark before the next chunk
            yield line[start:]


def encode_documents(tokenizer: Tokenizer, documents: Sequence[str], *, progress: Progress | None = None) -> np.ndarray:
    """Stream of token ids: `<pad> d_1 <pad> d_2 <pad> … <pad> d_n <pad>`.

    `<pad>` (0) occurs nowhere else, and documents without tokens are omitted. Returns [tokens], in the smallest unsigned
    integer type for the vocabulary.

    documents: a list: a single text is `[text]`. progress: called with (documents done, total documents).

    >>> tokenizer = train_tokenizer(["ab", "ba"], kind="char")
    >>> encode_documents(tokenizer, ["ab", "", "b"])
    array([0, 2, 3, 0, 3, 0], dtype=uint8)
    """
    _check_documents(documents)
    stream, done = [np.array([PAD], np.min_scalar_type(tokenizer.vocab_size - 1))], 0
    for tokens, n in encode_batches(tokenizer, documents):
        stream.append(tokens)
        done += n
        if progress is not None:
            progress(done, len(documents))
    return np.concatenate(stream)


def encode_batches(tokenizer: Tokenizer, documents: Iterable[str]) -> Iterator[tuple[np.ndarray, int]]:
    """Tokens of some hundred documents at a time, with their number."""
    pad, rest = np.array([PAD], np.min_scalar_type(tokenizer.vocab_size - 1)), iter(documents)
    while batch := list(islice(rest, _encoding_batch)):
        parts = [part for ids in tokenizer.encode_all(batch) if len(ids) for part in (ids, pad)]
        yield np.concatenate([pad[:0], *parts]).astype(pad.dtype), len(batch)


def _check_documents(documents: Iterable[str]) -> None:
    """Refuse a string, and a list that holds anything but strings."""
    if isinstance(documents, str):
        raise ValueError(f"a text of {len(documents)} characters instead of documents: pass a list of documents, [text]")
    if not isinstance(documents, Iterable):
        raise ValueError(f"{documents!r} instead of documents: pass a list of strings")
    for n, text in enumerate(documents if isinstance(documents, list) else ()):
        if not isinstance(text, str):
            raise ValueError(f"text {n} is {text!r} of type {type(text).__name__}: pass strings")


class _Codec(NamedTuple):
    """Pieces of ids, texts to ids and back, and the unit of an `<unk>`."""

    pieces: list[str]
    encode: Callable[[Sequence[str]], list[np.ndarray]]
    decode: Callable[[np.ndarray], str]
    unit: re.Pattern


def _read_own(processor: sentencepiece.SentencePieceProcessor, kind: str) -> _Codec:
    """A model of `train_tokenizer`, whose lines are encoded one by one."""
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if kind not in KINDS or pieces[:2] != ["<pad>", "<unk>"]:
        raise ValueError(f"damaged or foreign model of kind {kind!r}: use a model of train_tokenizer")
    own = {piece: i for i, piece in enumerate(pieces)}
    newline = np.array([own.get("\n", UNK_ID)], np.int32)
    surfaces = ["", " ⁇" if kind == "word" else "⁇", *(piece.replace(_SPACE_MARK, " ") for piece in pieces[2:])]

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        lines = [prepared.split("\n") if (prepared := _prepare(text, kind)) else [] for text in texts]
        every = list(chain.from_iterable(lines))
        if kind == "word":  # sentencepiece would merge a run of unknown words to one <unk>
            ids = [np.array([own.get(_SPACE_MARK + word, UNK_ID) for word in line.split()], np.int32) for line in every]
        else:
            ids = [np.array(line, np.int32) for line in processor.encode(every, num_threads=os.cpu_count() or 1)]
            for n in (n for n in range(len(every)) if UNK_ID in ids[n]):
                found = processor.encode(every[n], out_type=str)  # a run of unknown characters is one piece
                ids[n] = np.repeat(ids[n], np.where(ids[n] == UNK_ID, [len(_unescape(piece)) for piece in found], 1))
        rest = iter(ids)
        parts = ([part for line in islice(rest, len(of_text)) for part in (line, newline)][:-1] for of_text in lines)
        return [np.concatenate([newline[:0], *of_text]) for of_text in parts]

    def decode(ids: np.ndarray) -> str:
        lines = "".join(surfaces[i] for i in ids.tolist()).split("\n")
        return _unescape("\n".join(lines if kind == "char" else [line.removeprefix(" ") for line in lines]))

    return _Codec(list(map(_unescape, pieces)), encode, decode, _SYMBOLS[kind])


def _foreign(pieces: list[str], pad: int, unk: int, encode: Any, decode: Any, unit: re.Pattern) -> _Codec:
    """A codec of renumbered ids; a foreign id of -1 is none."""
    names = np.array([pad, unk, *(i for i in range(len(pieces)) if i not in (pad, unk))])
    ids = np.full(len(pieces), UNK_ID, np.int32)
    ids[names[2:]] = np.arange(2, len(names))

    def of_texts(texts: Sequence[str]) -> list[np.ndarray]:
        return [ids[np.array(found, np.int64)] for found in map(encode, texts)]

    def text_of(own: np.ndarray) -> str:
        return decode([i for i in names[own[own != PAD]].tolist() if i >= 0])

    return _Codec(["<pad>", "<unk>", *(pieces[i] for i in names[2:])], of_texts, text_of, unit)


def _read_sentencepiece(processor: sentencepiece.SentencePieceProcessor) -> _Codec:
    """Any SentencePiece model, with its own normalisation."""
    pieces, unk = [processor.id_to_piece(i) for i in range(processor.get_piece_size())], processor.unk_id()
    own = {piece for i, piece in enumerate(pieces) if not (processor.is_control(i) or processor.is_unknown(i))}
    of_words = all(_SPACE_MARK in (piece[:1], piece[-1:]) for piece in own)
    one_space = processor.normalize("x  x").count(_SPACE_MARK) < 3

    @cache
    def shown(character: str) -> str:
        """A space for white space, and a hole for a dropped character."""
        normal = processor.normalize(f"x{_SURROGATES.sub('', character)}x").strip(_SPACE_MARK)[1:-1]
        return " " if normal == _SPACE_MARK else character if normal else _HOLE

    def encode(text: str) -> list[int]:
        text = "".join(map(shown, text))
        if of_words:  # each unknown word is a token
            return list(chain.from_iterable(processor.encode(text.split())))
        if one_space:
            text = re.sub("  +", lambda spaces: _HOLE * (len(spaces[0]) - 1) + " ", text)
        rest = text.lstrip(_HOLE)
        found = processor.encode([rest], out_type="offset_mapping")[0]
        ids, offsets = np.array(found["ids"], np.int64), np.array(found["offsets"], np.int64).reshape(-1, 2)
        times = np.where(ids == unk, offsets[:, 1] - offsets[:, 0], 1)  # a run of unknown characters is one piece
        return [unk] * (len(text) - len(rest)) + np.repeat(ids, times).tolist()

    return _foreign(pieces, processor.pad_id(), unk, encode, processor.decode, _WORD if of_words else _CHARACTER)


def _read_words(model: bytes) -> _Codec:
    """Words separated by white space, from a list in UTF-8."""
    words = [*(model.decode().split("\n") if model else []), "⁇"]
    own, unknown = {word: i for i, word in enumerate(words[:-1])}, len(words) - 1

    def encode(text: str) -> list[int]:
        return [own.get(word, unknown) for word in re.findall(r"[^ \t\r\n]+", text)]

    return _foreign(words, -1, unknown, encode, lambda ids: " ".join(words[i] for i in ids), _WORD)


def _unescape(text: str) -> str:
    """The characters that stand-ins are for."""
    return _STAND_IN.sub(lambda match: match[1] if len(match[0]) == 2 else _UNESCAPES.get(match[0], match[0]), text)


def _prepare(text: str, kind: str) -> str:
    """The text for sentencepiece: single spaces between words (`word`), and its special characters escaped."""
    if kind == "word":
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    return _ESCAPED.sub(lambda match: _ESCAPES.get(match[0], "\N{REPLACEMENT CHARACTER}"), text)

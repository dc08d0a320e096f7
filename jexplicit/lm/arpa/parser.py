"""The lines of an ARPA file, checked."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from jexplicit.data.inputs import file_lines

NEVER = -99.0  # log10 p of what is not predicted, as SRILM writes it
_block = 1 << 16  # lines
_spaces, _end = " \t\r\n", "the end of the file"


class Order(NamedTuple):
    """The n-grams of one order as the file has them: [count, n] words, log10 p, log10 back-off weights, its first line."""

    words: np.ndarray
    log_p: np.ndarray
    weight: np.ndarray
    line: int


class ArpaFile:
    """The lines of an ARPA file, section by section; words are numbered as the unigrams name them, `<s>` 0 and `<unk>` 1."""

    def __init__(self, path: str):
        self.path, self.line, self.words = path, 0, ["<pad>", "<unk>"]
        self._ids, self._lines = {"<s>": 0, "<unk>": 1, "<UNK>": 1}, self._numbered(file_lines(path))
        first = text = self._next()
        while text != "\\data\\":  # some programs write comments first
            if text.startswith("\\") or text == _end:
                remedy = "give an ARPA file, as launch.export or lmplz write it"
                raise self.error(f"{first[:40]!r} instead of \\data\\", remedy, 1)
            text = self._next()
        self.counts: list[int] = []
        while match := re.fullmatch(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", text := self._next()):
            if int(match[1]) != len(self.counts) + 1:
                raise self.error(f"{text!r}: orders count 1, 2, ...", "write the file again")
            self.counts.append(int(match[2]))
        if not any(self.counts[:1]):
            raise self.error(f"{text[:40]!r} instead of `ngram 1=...`", "write the file again")
        self._header = text

    def error(self, what: str, remedy: str, line: int | None = None) -> ValueError:
        return ValueError(f"{self.path}, line {self.line if line is None else line}: {what}; {remedy}")

    def read_section(self, n: int) -> Order:
        """The n-grams of the next section."""
        if self._header != f"\\{n}-grams:":
            raise self.error(f"{self._header[:40]!r} instead of \\{n}-grams:", self._remedy(n - 1))
        left, first, parts = self.counts[n - 1], self.line + 1, []
        while left:
            lines = list(islice(self._lines, min(_block, left)))
            parts.append(self._read_block(lines, n))
            left -= len(lines)
        ids, log_p, weight = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else self._nothing(n)
        self._header = self._next()
        return Order(ids, log_p, weight, first)

    def read_end(self) -> None:
        """The file's last line."""
        if self._header != "\\end\\":
            raise self.error(f"{self._header[:40]!r} instead of \\end\\", self._remedy(len(self.counts)))
        if (text := self._next()) != _end:  # which is that of a compressed file, with its checksum
            raise self.error(f"{text[:40]!r} after \\end\\", "remove what is not of the model")

    def _numbered(self, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
        """The lines that are not blank; `line` is the number of the last one."""
        for self.line, line in enumerate(lines, 1):
            if line.strip():
                yield self.line, line

    def _remedy(self, n: int) -> str:
        return f"the file is cut short, or its header counts other than its {n}-grams: write or download it again"

    def _nothing(self, n: int) -> tuple[np.ndarray, ...]:
        return np.zeros((0, n), np.int64), np.zeros(0), np.zeros(0)

    def _next(self) -> str:
        """The next line that is not blank."""
        return next((line.strip() for _, line in self._lines), _end)

    def _read_block(self, lines: list[tuple[int, str]], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        try:
            if not lines:
                raise ValueError
            fields = [_fields(line) for _, line in lines]
            if not {len(found) for found in fields} <= {n + 1, n + 2}:
                raise ValueError
            numbers = np.array([[float(f[0]), float(f[n + 1]) if len(f) > n + 1 else 0.0] for f in fields])
            if n == 1:
                for found in fields:
                    self._name(found[1])
            get = self._ids.__getitem__
            ids = np.array([get(word) for found in fields for word in found[1 : n + 1]], np.int64).reshape(-1, n)
        except (ValueError, KeyError):
            raise self._line_error(lines, n) from None
        if np.isnan(numbers).any() or (numbers[:, 0] > 0).any():
            raise self._line_error(lines, n)
        return ids, np.maximum(numbers[:, 0], NEVER), np.maximum(numbers[:, 1], NEVER)

    def _name(self, word: str) -> None:
        if word == "</s>":
            self._ids[word] = -1
        elif word not in self._ids:
            self._ids[word] = len(self.words)
            self.words.append(word)

    def _line_error(self, lines: list[tuple[int, str]], n: int) -> ValueError:
        """What is wrong with the first bad line of a block."""
        for at, line in lines:
            found = _fields(line)
            if not found or found[0].startswith("\\"):
                return self.error(f"{line.strip()[:40]!r} instead of a {n}-gram", self._remedy(n), at)
            if n > 1 and (unknown := [word for word in found[1 : n + 1] if word not in self._ids]):
                return self.error(f"{unknown[0]!r} is not among the unigrams", "write the file again", at)
            try:
                good = len(found) in (n + 1, n + 2) and float(found[0]) <= 0 and not np.isnan(sum(map(float, found[n + 1 :])))
            except ValueError:
                good = False
            if not good:
                wanted = f"a log10 probability of at most 0, {n} words and at most one weight"
                return self.error(f"{line.strip()[:60]!r} is not {wanted}", "write the file again", at)
        return self.error(f"{_end} instead of a {n}-gram", self._remedy(n), self.line)


def _fields(line: str) -> list[str]:
    """The fields of a line; other white space than that of ARPA is part of a word."""
    return [field for field in line.strip(_spaces).replace("\t", " ").split(" ") if field]

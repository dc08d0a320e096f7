"""Minimal pairs: two sentences that differ in one point of grammar, of which one is acceptable.

Files are JSON lines with `sentence_good` and `sentence_bad`, and where they are known `UID` (the paradigm; default, the name of
the file), `field` and `linguistics_term`, as in BLiMP.

Source: Warstadt et al. 2020, BLiMP.
"""

import json
from pathlib import Path
from typing import NamedTuple

from jexplicit.data.text import Paths, list_files


class MinimalPair(NamedTuple):
    """An acceptable sentence and one that is not, the paradigm that they are of, its field and its term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of JSON lines files.

    Args:
        paths: files, globs and folders.

    Raises:
        ValueError: nothing at a path; a line that is no JSON object, or without two sentences; no pair at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "agreement.jsonl")
        ...     _ = path.write_text('{"sentence_good": "he runs", "sentence_bad": "he run", "field": "morphology"}')
        ...     read_pairs([path])
        [MinimalPair(good='he runs', bad='he run', paradigm='agreement', field='morphology', term='')]
    """
    return [pair for path in list_files(paths, ())[0] for pair in _file_pairs(Path(path))]


def _file_pairs(path: Path) -> list[MinimalPair]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): give JSON lines in UTF-8") from error
    pairs = [_pair(line, path, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs


def _pair(line: str, path: Path, n: int) -> MinimalPair:
    remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
    try:
        found = json.loads(line)
        good, bad = found["sentence_good"], found["sentence_bad"]
        if not (good.strip() and bad.strip()):
            raise ValueError("a sentence is empty")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}, line {n}, is no minimal pair ({error}): {remedy}") from error
    field = str(found.get("field") or "").replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
    return MinimalPair(good, bad, str(found.get("UID") or path.stem), field, str(found.get("linguistics_term") or ""))

"""Minimal pairs: an acceptable and an unacceptable sentence with a minimal grammatical difference.

Files are records (jexplicit.data.records), such as JSON lines, with `sentence_good` and `sentence_bad`, and optionally `UID`
(the paradigm; default, the name of the file), `field` and `linguistics_term`, as in BLiMP.

Source: Warstadt et al. 2020, BLiMP.
"""

from pathlib import Path
from typing import NamedTuple

from jexplicit.data.inputs import Paths, list_files
from jexplicit.data.records import Record, file_records


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence, their paradigm, its field and its linguistic term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of files of records, globs and folders."""
    return [pair for path in list_files(paths) for pair in _file_pairs(path)]


def _file_pairs(path: str) -> list[MinimalPair]:
    pairs = [_pair(record, path) for record in file_records(path)]
    if not pairs:
        raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs


def _pair(record: Record, path: str) -> MinimalPair:
    found = record.fields
    good, bad = (found.get(name) for name in ("sentence_good", "sentence_bad"))
    if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
        remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
        raise ValueError(f"{path}, line {record.line}, is not a minimal pair (a sentence is missing or empty): {remedy}")
    field = str(found.get("field") or "").replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
    name = Path(path).name.partition(".")[0]
    return MinimalPair(good, bad, str(found.get("UID") or name), field, str(found.get("linguistics_term") or ""))

"""Files of records with a text field: JSON, CSV, TSV and Parquet.

Records are streamed, so that no file has to fit in memory, except a JSON array. The parsers are the strict ones: pandas would
join `"a"b` to one value, take a missing field for an empty one, and name no line. Parquet needs pyarrow, the extra `parquet`.
"""

import csv
import importlib.util
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jexplicit.data.inputs import DAMAGED, Paths, file_lines, kind_of, list_files, open_input
from jexplicit.runs.files import parse_json

_batch = 1024  # records of a Parquet file in memory


class Record(NamedTuple):
    """The fields of a record, and its first line from 1."""

    line: int
    fields: Mapping[str, Any]


def file_records(path: str, fields: Iterable[str] | None = None) -> Iterator[Record]:
    """The records of a file, in order, without blank lines.

    Formats: JSON (`.jsonl`, `.ndjson`, `.json`, or no ending: objects in lines, or in one array), a table with a header
        (`.csv`, with commas, semicolons, tabs or bars; `.tsv`, without quotes), or Parquet; all may be compressed.
    """
    kind = kind_of(path)
    if kind == "parquet":
        return _parquet_records(path, fields)
    return _table_records(path, kind) if kind in ("csv", "tsv") else json_records(file_lines(path), path)


def text_of(record: Record, path: str, field: str) -> str:
    """The text in a field of a record; a missing value is empty."""
    value = value_of(record, path, field)
    if value is not None and not isinstance(value, str):
        found = f"{type(value).__name__} {str(value)[:40]!r}"
        raise ValueError(f"{_place(record, path)}: field {field!r} holds {found}, not text: {_remedy(record)}")
    return value or ""


def value_of(record: Record, path: str, field: str) -> Any:
    """The value of a field of a record; errors list the fields."""
    if field not in record.fields:
        raise ValueError(f"{_place(record, path)} has no field {field!r}: {_remedy(record)}")
    return record.fields[field]


def check_field(path: str, field: str | None) -> None:
    """Refuse a file of records without a given field."""
    first = next(file_records(path, [] if field is None else [field]), None)
    if first is None:
        raise ValueError(f"{path} holds no text: take it out, or check how it was written")
    if field is None:
        raise ValueError(f"{path} has the fields {', '.join(first.fields)}: name the one that holds the text, field=NAME")
    text_of(first, path, field)


def json_records(lines: Iterable[str], name: str) -> Iterator[Record]:
    """The records of JSON lines, or of one array of objects."""
    lines = iter(lines)
    numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return
    if first[1].lstrip().startswith("["):
        objects: Iterable[tuple[int, Any]] = enumerate(_parsed(first[1] + "".join(lines), name, first[0]), 1)
    else:
        objects = ((n, _parsed(line, name, n)) for n, line in itertools.chain([first], numbered))
    for n, fields in objects:
        if not isinstance(fields, dict):
            raise ValueError(f"{name}, line {n}, is not a JSON object but a {type(fields).__name__}: write one object per line")
        yield Record(n, fields)


def _parsed(text: str, name: str, n: int) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        n += getattr(error, "lineno", 1) - 1
        raise ValueError(f"{name}, line {n}, is not JSON ({error}): write one object per line") from error


def _table_records(path: str, kind: str) -> Iterator[Record]:
    csv.field_size_limit(sys.maxsize)  # a document may be long
    lines = file_lines(path)
    head = next((line for line in lines if line.strip()), "")
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    if kind == "csv":
        style = {"delimiter": next((mark for mark in ",;\t|" if mark in head), ","), "strict": True}
    reader, names, line = csv.reader(itertools.chain([head], lines), **style), [], 1
    try:
        for row in reader:
            if row and not names:
                names = row
                if twice := next((name for name in names if names.count(name) > 1), None):
                    raise ValueError(f"{path} has two columns {twice!r}: rename one")
            elif row and len(row) != len(names):
                raise ValueError(
                    f"{path}, line {line}, has {len(row)} values for {len(names)} fields: the delimiter is "
                    f"{style['delimiter']!r}; quote values that contain it or a line break"
                )
            elif row:
                yield Record(line, dict(zip(names, row, strict=True)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}, cannot be read as a table ({error}): check how it was written") from error


def _parquet_records(path: str, fields: Iterable[str] | None) -> Iterator[Record]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f"{path} needs pyarrow: pip install 'jexplicit[parquet]', or write it as .jsonl")
    import pyarrow
    import pyarrow.parquet

    n, opened = 0, open_input(path)
    try:
        with opened, pyarrow.parquet.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in fields or () if names.count(name) > 1), None):
                raise pyarrow.ArrowInvalid(f"two columns {twice!r}")
            columns = None if fields is None else [name for name in dict.fromkeys(fields) if name in names]
            for batch in file.iter_batches(_batch, columns=columns):
                for row in batch.to_pylist():
                    yield Record(n := n + 1, row if row else dict.fromkeys(names))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, after row {n}: text that is not UTF-8 ({error}): write the column again") from error
    except (pyarrow.ArrowException, ValueError, ArithmeticError, *DAMAGED) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a complete Parquet file ({why}): write or download it again") from error


def _place(record: Record, path: str) -> str:
    return f"{path}, {'row' if kind_of(path) == 'parquet' else 'line'} {record.line}"


def _remedy(record: Record) -> str:
    return f"it has {', '.join(map(repr, record.fields)) or 'none'}; name one that every record has as `field`"


# Minimal pairs. Source: Warstadt et al. 2020, BLiMP.


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence, their paradigm, its field and its linguistic term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of files of records with `sentence_good` and `sentence_bad`, globs and folders.

    As in BLiMP, records may have `UID` (the paradigm; default, the name of the file), `field` and `linguistics_term`.
    """
    found = []
    for path in list_files(paths):
        pairs = [_pair(record, path) for record in file_records(path)]
        if not pairs:
            raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
        found += pairs
    return found


def _pair(record: Record, path: str) -> MinimalPair:
    found = record.fields
    good, bad = (found.get(name) for name in ("sentence_good", "sentence_bad"))
    if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
        remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
        raise ValueError(f"{path}, line {record.line}, is not a minimal pair (a sentence is missing or empty): {remedy}")
    field = str(found.get("field") or "").replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
    name = str(found.get("UID") or Path(path).name.partition(".")[0])
    return MinimalPair(good, bad, name, field, str(found.get("linguistics_term") or ""))

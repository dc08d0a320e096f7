"""Files of records, each with named fields, one of which holds the text: JSON lines, CSV, TSV and Parquet.

Records are read one after the other, so that no file has to fit in memory. JSON and CSV files may be gzipped; Parquet needs
pyarrow, the extra `parquet`.
"""

import csv
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jexplicit.data.lines import file_lines

_delimiters = {".csv": ",", ".tsv": "\t"}
_json = (".jsonl", ".ndjson")
_parquet = ".parquet"
_batch = 1024  # records of a Parquet file in memory


class Record(NamedTuple):
    """The fields of a record, and the line of its file where it begins (of a Parquet file, the row), from 1."""

    line: int
    fields: Mapping[str, Any]


def is_record_file(path: str) -> bool:
    """Whether a file holds records, by the end of its name.

    >>> is_record_file("a.jsonl.gz"), is_record_file("a.txt")
    (True, False)
    """
    return path.lower().removesuffix(".gz").endswith((*_json, *_delimiters, _parquet))


def file_records(path: str, fields: Iterable[str] | None = None) -> Iterator[Record]:
    """The records of a file, in its order; blank lines are no records, but counted.

    Args:
        path: `.jsonl`, `.ndjson`, `.csv`, `.tsv` (each also `.gz`, the last two with a line of names) or `.parquet`.
        fields: read only these of a Parquet file; default, all.

    Raises:
        ValueError: a file that cannot be read, or is not what its name says, with the line.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.csv")
    ...     _ = path.write_text('text,id\\n"to be,\\nor not",7\\n\\nto be,8\\n')
    ...     [(record.line, record.fields["text"]) for record in file_records(str(path))]
    [(2, 'to be,\\nor not'), (5, 'to be')]
    """
    kind = path.lower().removesuffix(".gz")
    if kind.endswith(_parquet):
        return _parquet_records(path, fields)
    if kind.endswith(_json):
        return json_records(file_lines(path), path)
    return _table_records(path, _delimiters[kind[-4:]])


def text_of(record: Record, path: str, field: str) -> str:
    """The text in a field of a record.

    Raises:
        ValueError: no such field, or a value that is no string; with file, line and the fields there are.
    """
    value = value_of(record, path, field)
    if not isinstance(value, str):
        found = f"{type(value).__name__} {str(value)[:40]!r}" if value is not None else "no value"
        raise ValueError(f"{_place(record, path)}: field {field!r} holds {found}, not text: {_remedy(record)}")
    return value


def value_of(record: Record, path: str, field: str) -> Any:
    """The value of a field of a record; ValueError, with file, line and the fields there are, if it has none."""
    if field not in record.fields:
        raise ValueError(f"{_place(record, path)} has no field {field!r}: {_remedy(record)}")
    return record.fields[field]


def check_field(path: str, field: str | None) -> None:
    """Refuse a file of records before it is read: no field named, or one that the first record does not have.

    Raises:
        ValueError: naming the fields there are.
    """
    first = next(file_records(path), None)
    if first is None:
        raise ValueError(f"{path} holds no text: take it out, or check how it was written")
    if field is None:
        raise ValueError(f"{path} has the fields {', '.join(first.fields)}: name the one that holds the text, field=NAME")
    text_of(first, path, field)


def json_records(lines: Iterable[str], name: str) -> Iterator[Record]:
    """The records of JSON lines, `{"field": value, ...}` each.

    Raises:
        ValueError: a line that is no JSON object, with its number.

    >>> [record.line for record in json_records(['{"text": "to be"}', "", '{"text": "or not"}'], "stdin")]
    [1, 3]
    """
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {n}, is no JSON ({error}): write one object a line") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{name}, line {n}, is no JSON object but a {type(fields).__name__}: write one object a line")
        yield Record(n, fields)


def _table_records(path: str, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(sys.maxsize)  # a document may be long
    reader = csv.reader(file_lines(path), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    line = 1
    try:
        for row in reader:
            if row and names is None:
                names = row
            elif row and names is not None:
                if len(row) > len(names):
                    raise ValueError(
                        f"{path}, line {line}, has {len(row)} values for {len(names)} fields: quote those with commas"
                    )
                yield Record(line, dict(zip(names, row, strict=False)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}, cannot be read as a table ({error}): check how it was written") from error


def _parquet_records(path: str, fields: Iterable[str] | None) -> Iterator[Record]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f"{path} needs pyarrow: pip install 'jexplicit[parquet]', or write it as .jsonl")
    import pyarrow
    import pyarrow.parquet

    n = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = None if fields is None else [name for name in dict.fromkeys(fields) if name in names]
            for batch in file.iter_batches(_batch, columns=columns):
                for row in batch.to_pylist():
                    yield Record(n := n + 1, row if row else dict.fromkeys(names))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is no whole Parquet file ({str(error).splitlines()[0]}): write or download it again"
        ) from error


def _place(record: Record, path: str) -> str:
    return f"{path}, {'row' if path.lower().endswith(_parquet) else 'line'} {record.line}"


def _remedy(record: Record) -> str:
    return f"it has {', '.join(map(repr, record.fields)) or 'none'}; name one that every record has as `field`"

"""One reader of the tables that people give: .csv and .tsv with any delimiter, .jsonl and .parquet, also as .gz."""

import csv
import gzip
import io
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.datamodules.text_files import SAVE, check_encoding, text_of
from src.errors import UserError
from src.measure.reading import Reading
from src.system.reading import MOST_BYTES, parsed_json, read_bytes

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
DELIMITERS = (",", ";", "\t", "|")
NAMES = {"\t": "tab", "tab": "\t", r"\t": "\t"}
MAGIC = {b"PAR1": ".parquet", b"\x1f\x8b": ".gz"}
KEY = "datamodule.source"  # that names the columns, the delimiter and the encoding
ADVICE = "give a table"
SURROGATE = re.compile("[\ud800-\udfff]")  # of \\ud83d without its other half, which JSON allows

Row = dict[str, str | None]  # by column; None: missing


@dataclass
class Table:
    """An open table. `notes` and `blank` are complete once `rows` was read.

    Attributes:
        where: the file.
        columns: names in the header, or of the first row; columns without a name are left out.
        rows: (line, values by column); the row, from 1, of a file that has no lines.
        notes: what the reader decided: an unusual delimiter or encoding, lines left out.
        blank: lines without a value in any column; they are not among the rows.
    """

    where: str
    columns: list[str]
    rows: Iterator[tuple[int, Row]]
    notes: list[str] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)


def rows_of(
    path: Path,
    columns: Sequence[str],
    optional: Collection[str] = (),
    *,
    reading: Reading | None = None,
    **options: Any,
) -> Iterator[tuple[int, Row]]:
    """Yields line and values by column of a table, as `open_table` reads it; its notes are added to `reading`."""
    table = open_table(path, columns, optional, **options)
    yield from table.rows
    if reading is not None:
        reading.notes += table.notes


def open_table(
    path: Path,
    columns: Sequence[str],
    optional: Collection[str] = (),
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    ignore_case: bool = False,
    keep_empty: bool = False,
    key: str | None = KEY,
) -> Table:
    """Returns a table, its header read. Numbers and truth values of .jsonl and .parquet become text: 1, 0.5, true.

    Args:
        path: .csv, .tsv, .jsonl (an object a line) or .parquet, with .gz after it if it is compressed.
        columns: that the table must have.
        optional: those of `columns` that may be missing; their values are then None.
        delimiter: of .csv and .tsv; None: the one of DELIMITERS with which the header has `columns`.
        encoding: of a file without a byte order mark; None: UTF-8.
        ignore_case: the header may have `columns` in other case, and with spaces around them.
        keep_empty: yield rows that have a delimiter, or are null in all columns, but no value; else they are blank.
        key: for messages, the key above `delimiter`, `encoding` and the names of columns; None: there is none.

    Raises UserError with file and line for a missing or double column, a bad row, and a file that is no table. Those of
    a row come while `rows` is read.
    """
    kind = _kind(path)
    if kind in SPREADSHEETS:
        raise UserError(f"{path} is a spreadsheet: save its sheet as CSV UTF-8 (.csv), and give that file")
    if kind not in SUFFIXES:
        raise UserError(f"{path} is no table: give a file that ends in {', '.join(SUFFIXES)}")
    wanted = _Wanted(path, list(columns), set(optional), ignore_case, keep_empty, key)
    data = _content(path)
    if kind == ".parquet":
        return _parquet(data, wanted)
    if data.startswith(b"PK\3\4"):
        raise UserError(f"{path} is a spreadsheet or an archive, no text: save its sheet as CSV UTF-8, or unpack it")
    for magic, suffix in MAGIC.items():
        if data.startswith(magic):
            raise UserError(f"{path} is no text but a {suffix} file: rename it so that it ends in {suffix}")
    check_encoding(encoding, f"{key}.encoding")
    advice = SAVE if key is None else f"{SAVE}, or give {key}.encoding=cp1252, gb18030 or whichever it has"
    text, name = text_of(data, str(path), encoding, advice)
    if kind == ".jsonl":
        return _objects(text, wanted)
    return _separated(text, name, "\t" if kind == ".tsv" else ",", delimiter, wanted)


def is_table(path: Path) -> bool:
    """Returns whether a file's name ends as a table's, one that is refused with advice included."""
    return _kind(path) in (*SUFFIXES, *SPREADSHEETS)


def _kind(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix.replace(".ndjson", ".jsonl")


@dataclass
class _Wanted:
    """The columns that a caller named, and how messages call them."""

    path: Path
    columns: list[str]
    optional: set[str]
    ignore_case: bool
    keep_empty: bool
    key: str | None

    def names(self, header: Sequence[str], where: str, thing: str = "column") -> list[str]:
        """Returns the header with its names as `columns` has them. Raises UserError for a missing or double column."""
        if self.ignore_case:
            by_folded = {_folded(column): column for column in self.columns}
            header = [by_folded.get(_folded(name), name) for name in header]
        seen: dict[str, int] = {}
        for number, name in enumerate(header, 1):
            if name and name in seen:
                numbers = f"number {seen[name]} and number {number}"
                raise UserError(f"{where}: two columns are called {name!r}, {numbers}: rename one")
            seen[name] = number
        for column in self.columns:
            if column not in seen and column not in self.optional:
                alike = [name for name in header if _folded(name) == _folded(column)]
                hint = f" ({alike[0]!r} differs from it in case or spaces)" if alike else ""
                advice = f"name your columns in {self.key}" if self.key else f"call a column {column}"
                shown = ", ".join(map(repr, header)) or "none"
                raise UserError(f"{where}: there is no {thing} '{column}', only {shown}{hint}; {advice}")
        return list(header)

    def fits(self, header: Sequence[str]) -> int:
        """Returns how many of the columns a header has."""
        folded = {_folded(name) if self.ignore_case else name for name in header}
        return sum((_folded(column) if self.ignore_case else column) in folded for column in self.columns)

    def missing(self) -> Row:
        """Returns None for every column that may be missing."""
        return dict.fromkeys((column for column in self.columns if column in self.optional), None)


def _folded(name: str) -> str:
    return name.strip().casefold()


def _content(path: Path) -> bytes:
    """Returns the bytes of a file, inflated if it is a .gz."""
    data = read_bytes(path, ADVICE)
    if path.suffix.lower() != ".gz":
        return data
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is truncated or no .gz file ({error}): {ADVICE}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} inflates to more than the {MOST_BYTES:,} bytes that are read: {ADVICE}")
    return content


def _counted(table: Table, rows: Iterable[tuple[int, Row]], unit: str, keep_empty: bool) -> Iterator[tuple[int, Row]]:
    """Yields the rows with a value, those without one if `keep_empty`; then notes the others."""
    for line, row in rows:
        if (row and keep_empty) or any(value is not None and value.strip() for value in row.values()):
            yield line, row
        else:
            table.blank.append(line)
    if table.blank:
        count, first = len(table.blank), table.blank[0]
        table.notes.append(f"{count:,} blank {unit}{'s' * (count > 1)} skipped, as {unit} {first}")


def _separated(text: str, encoding: str, usual: str, delimiter: str | None, wanted: _Wanted) -> Table:
    """Returns the table in the text of a .csv or .tsv, whose delimiter is `usual` where the header does not say."""
    # Line ends of other kinds than \n are part of a field, unless there are no others.
    text = text.replace("\r\n", "\n")
    text = (text if "\n" in text else text.replace("\r", "\n")).rstrip("\n")
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[start].startswith("sep=") and len(lines[start]) == 5:  # Excel's line
        delimiter, start = delimiter or lines[start][4], start + 1
    delimiter = _delimiter(lines[start:], usual, delimiter, wanted)
    quoted = delimiter != "\t" or _is_quoted(lines[start:], encoding)
    records = _records(lines, start, delimiter, quoted, wanted.path)
    line, header = next(((line, record) for line, record in records if any(record)), (1, []))
    names = wanted.names(header, f"{wanted.path} line {line}")
    named = f"delimiter {NAMES.get(delimiter, delimiter)!r}{' without quoting' * (not quoted)}, encoding {encoding}"
    is_usual = quoted and (delimiter, encoding) == (usual, "UTF-8")
    table = Table(str(wanted.path), [name for name in names if name], iter(()), [] if is_usual else [named])
    unnamed = [number for number, name in enumerate(names, 1) if not name]
    if unnamed:
        table.notes.append(f"column {', '.join(map(str, unnamed))} without a name is ignored")
    table.rows = _counted(table, _fields(records, names, delimiter, wanted), "line", wanted.keep_empty)
    return table


def _delimiter(lines: list[str], usual: str, delimiter: str | None, wanted: _Wanted) -> str:
    """Returns the delimiter that was given, else the one with which the header has most of the columns."""
    if delimiter is not None:
        delimiter = NAMES.get(delimiter, delimiter) if delimiter != "\t" else delimiter
        if len(delimiter) != 1 or delimiter in '"\n\r':
            raise UserError(f"{wanted.key}.delimiter={delimiter!r} is not allowed; expected one character, or tab")
        return delimiter
    headers = {mark: _header(lines, mark) for mark in (usual, *(mark for mark in DELIMITERS if mark != usual))}
    return max(headers, key=lambda mark: (wanted.fits(headers[mark]), mark == usual and len(headers[mark]) > 1,
                                          len(headers[mark])))  # fmt: skip


def _header(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next(csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True), [])
    except csv.Error:
        return lines[0].split(delimiter)


def _is_quoted(lines: list[str], encoding: str) -> bool:
    """Returns whether a tab-separated file has quoted fields; a quote at the start of a sentence is none.

    Writers quote every field, the header's too, or those that have a quote, which they double, a tab or a line break.
    """
    if lines[0].startswith('"') or not any('"' in line for line in lines):
        return True
    counts = {line.count("\t") for line in lines if line.strip()}
    if encoding == "UTF-16" or len(counts) > 1:  # Excel quotes a field with a comma too; or quotes may hold tabs
        try:
            rows = csv.reader((f"{line}\n" for line in lines), delimiter="\t", strict=True)
            return len({len(row) for row in rows if any(row)}) == 1
        except csv.Error:
            return False
    fields = [value for line in lines for value in line.split("\t") if value.startswith('"')]
    return all(value == '""' or _is_doubled(value) for value in fields)


def _is_doubled(value: str) -> bool:
    """Returns whether a writer quoted this field since it has a quote."""
    inner = value[1:-1]
    return len(value) > 2 and value[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def _records(lines: list[str], start: int, delimiter: str, quoted: bool, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each record, with the line that it begins in."""
    csv.field_size_limit(sys.maxsize)  # the library's limit is 131,072 characters
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    ended = (f"{line}\n" for line in lines[start:])
    reader = csv.reader(ended, delimiter=delimiter, quoting=quoting, strict=True)
    line = start + 1
    try:
        for record in reader:
            yield line, record
            line = start + reader.line_num + 1
    except csv.Error as error:
        advice = 'close the quoted field, and write a quote in it twice, as ""' if quoted else "correct it"
        raise UserError(f"{path} line {line} is no row of a table ({error}): {advice}") from None


def _fields(
    records: Iterable[tuple[int, list[str]]], names: list[str], delimiter: str, wanted: _Wanted
) -> Iterator[tuple[int, Row]]:
    missing = wanted.missing()
    for line, record in records:
        if len(record) != len(names) and not any(value.strip() for value in record):
            yield line, {}
            continue
        if len(record) != len(names):
            hint = f"quote a field that has a {NAMES.get(delimiter, delimiter)!r} in it"
            advice = f"correct it, or {hint}" if len(record) > len(names) else "correct it"
            columns = f"{len(record)} column{'s' * (len(record) > 1)}, the header {len(names)}"
            raise UserError(f"{wanted.path} line {line} has {columns}: {advice}")
        yield line, missing | {name: value for name, value in zip(names, record, strict=True) if name}


def _objects(text: str, wanted: _Wanted) -> Table:
    """Returns the table in a text with a JSON object a line."""
    rows = _parsed(text, wanted)
    first = next(rows, None)
    table = Table(str(wanted.path), [] if first is None else list(first[1]), iter(()))
    table.rows = _counted(table, rows if first is None else _chained(first, rows), "line", wanted.keep_empty)
    return table


def _chained(first: tuple[int, Row], others: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    yield first
    yield from others


def _parsed(text: str, wanted: _Wanted) -> Iterator[tuple[int, Row]]:
    missing = wanted.missing()
    for line, written in enumerate(text.removesuffix("\n").split("\n"), 1):
        if not written.strip():
            yield line, {}
            continue
        where = f"{wanted.path} line {line}"
        values = parsed_json(written, where, "write an object a line", object_pairs_hook=_distinct)
        if not isinstance(values, dict):
            raise UserError(f"{where} is not a JSON object: write an object a line")
        names = wanted.names(list(values), where, "key")
        row = dict(zip(names, values.values(), strict=True))
        nested = next((name for name in wanted.columns if not _is_flat(row.get(name))), None)
        if nested is not None:
            raise UserError(f"{where}: {nested} is {row[nested]!r}; it must be a string or a number")
        half = next((name for name, value in row.items() if isinstance(value, str) and SURROGATE.search(value)), None)
        if half is not None:
            raise UserError(f"{where}: {half} has half of a character, {row[half]!r:.80}: correct it")
        yield line, missing | {name: _text(value) for name, value in row.items() if _is_flat(value)}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises ValueError for a key that is there twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return row


def _is_flat(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _parquet(data: bytes, wanted: _Wanted) -> Table:
    """Returns the table in a .parquet file; lists and structures are left out, unless they were named."""
    import polars as pl  # not at the top: it takes a tenth of a second, and few tables need it

    where = str(wanted.path)
    try:
        frame = pl.read_parquet(io.BytesIO(data))
        nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
        texts = frame.drop(nested).cast(pl.String)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{where} is truncated or no .parquet file ({reason}): {ADVICE}") from None
    names = wanted.names(frame.columns, where)
    for name, column in zip(names, frame.columns, strict=True):
        if column in nested and name in wanted.columns:
            raise UserError(f"{where}: column {name} has {frame.schema[column]}; it must have strings or numbers")
    kept = [name for name, column in zip(names, frame.columns, strict=True) if column not in nested]
    missing = wanted.missing()
    rows = ((number, missing | dict(zip(kept, row, strict=True))) for number, row in enumerate(texts.iter_rows(), 1))
    table = Table(where, kept, iter(()))
    if nested:
        table.notes.append(f"columns of lists and structures are ignored: {', '.join(nested)}")
    table.rows = _counted(table, rows, "row", wanted.keep_empty)
    return table

"""The reader of tables: the same content in every format, encoding and spelling; what is refused."""

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from src.datamodules.tables import open_table, rows_of
from src.errors import UserError
from src.measure.reading import Reading

HEADER = ["text", "label", "score"]
ROWS = [
    ["a film, long; and | loud", "good", "1"],
    ['said ""no""\ttwice, said "no"', "bad", "2"],
    ['"quoted"', "bad", "3"],
    ["two\nlines", "good", ""],
    ["", "bad", "-4"],
    ["naïve 電影 🎬", "so so", "5"],
    [" spaces around ", "good", "6"],
]
Made = Callable[[], bytes]


def separated(
    delimiter: str = ",", end: str = "\n", quoting: int = csv.QUOTE_MINIMAL, encoding: str = "utf-8"
) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([HEADER, *ROWS])
    return buffer.getvalue().encode(encoding)


def objects(end: str = "\n", **options: Any) -> bytes:
    values = [{"text": t or None, "label": x, "score": int(s) if s else None} for t, x, s in ROWS]
    return "".join(json.dumps(row, **options) + end for row in values).encode()


def parquet() -> bytes:
    text, label, score = zip(*ROWS, strict=True)
    columns = {"text": [t or None for t in text], "label": label, "score": [int(s) if s else None for s in score]}
    buffer = io.BytesIO()
    pl.DataFrame(columns).cast({"label": pl.Categorical}).write_parquet(buffer)
    return buffer.getvalue()


def by_polars(separator: str) -> bytes:
    frame = pl.DataFrame(ROWS, schema=HEADER, orient="row").with_columns(pl.col("score").cast(pl.Int64, strict=False))
    return frame.write_csv(separator=separator).encode()


SPELLINGS: dict[str, tuple[str, Made]] = {
    "semicolons": ("a.csv", lambda: separated(";")),
    "tabs": ("a.tsv", lambda: separated("\t")),
    "tabs in a .csv": ("a.csv", lambda: separated("\t")),
    "commas in a .tsv": ("a.tsv", separated),
    "pipes": ("a.csv", lambda: separated("|")),
    "Windows": ("A.CSV", lambda: separated(end="\r\n")),
    "an old Mac": ("a.csv", lambda: separated().replace(b"\n", b"\r")),
    "all quoted": ("a.csv", lambda: separated(quoting=csv.QUOTE_ALL)),
    "tabs, all quoted": ("a.tsv", lambda: separated("\t", quoting=csv.QUOTE_ALL)),
    "strings quoted": ("a.tsv", lambda: separated("\t", quoting=csv.QUOTE_NONNUMERIC)),
    "a byte order mark": ("a.csv", lambda: separated(encoding="utf-8-sig")),
    "a byte order mark, quoted": ("a.csv", lambda: separated(quoting=csv.QUOTE_ALL, encoding="utf-8-sig")),
    "Excel's Unicode text": ("a.tsv", lambda: separated("\t", "\r\n", encoding="utf-16")),
    "Excel's Unicode text as .csv": ("a.csv", lambda: separated("\t", "\r\n", encoding="utf-16")),
    "UTF-16, big end first": ("a.csv", lambda: codecs.BOM_UTF16_BE + separated(encoding="utf-16-be")),
    "UTF-32": ("a.csv", lambda: separated(encoding="utf-32")),
    "Excel's sep=": ("a.csv", lambda: b"sep=|\n" + separated("|")),
    "a blank line before": ("a.csv", lambda: b"\n\n" + separated()),
    "blank lines after": ("a.csv", lambda: separated() + b"\n\n,,\n"),
    "polars": ("a.csv", lambda: by_polars(",")),
    "polars with tabs": ("a.tsv", lambda: by_polars("\t")),
    "gz": ("a.csv.gz", lambda: gzip.compress(separated())),
    "gz in two parts": ("a.csv.gz", lambda: gzip.compress(separated()[:20]) + gzip.compress(separated()[20:])),
    "jsonl": ("a.jsonl", objects),
    "jsonl of Windows": ("a.jsonl", lambda: codecs.BOM_UTF8 + objects("\r\n", ensure_ascii=False)),
    "jsonl in UTF-16": ("a.ndjson", lambda: objects(ensure_ascii=False).decode().encode("utf-16")),
    "parquet": ("a.parquet", parquet),
}  # fmt: skip


def values_of(path: Path, columns: Sequence[str] = HEADER, **options: Any) -> list[list[str]]:
    return [[row[name] or "" for name in columns] for _, row in rows_of(path, columns, **options)]


def file_of(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_same_content_gives_the_same_rows(spelling: str, tmp_path: Path) -> None:
    name, made = SPELLINGS[spelling]
    assert values_of(file_of(tmp_path, name, made())) == ROWS


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_value_gives_other_rows(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made = SPELLINGS[spelling]
    for row, column in ((0, 0), (2, 1), (4, 2), (5, 0)):
        others = [list(values) for values in ROWS]
        others[row][column] = "7"
        monkeypatch.setattr("tests.datamodules.test_tables.ROWS", others)
        assert values_of(file_of(tmp_path, name, made())) == others
        monkeypatch.undo()


def test_quotes_of_a_tsv_that_no_writer_quoted_are_text(tmp_path: Path) -> None:
    text = 'text\tlabel\n"Great" he said\t1\n"all of it"\t0\n"open\t1\nclosed"\t0\n'
    reading = Reading("a.tsv", "rows")
    rows = [row["text"] for _, row in rows_of(file_of(tmp_path, "a.tsv", text), ["text", "label"], reading=reading)]
    assert rows == ['"Great" he said', '"all of it"', '"open', 'closed"']
    assert reading.notes == ["delimiter 'tab' without quoting, encoding UTF-8"]


def test_lines_count_those_in_a_field_and_blank_ones_are_noted(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", 'text,label\n"one\ntwo",1\n\n , \nfour,2\n')
    reading = Reading("a.csv", "rows")
    assert [line for line, _ in rows_of(path, ["text"], reading=reading)] == [2, 6]
    assert reading.notes == ["2 blank lines skipped, as line 4"]


def test_a_long_field_is_read(tmp_path: Path) -> None:
    text = "word " * 200_000
    assert values_of(file_of(tmp_path, "a.csv", f"text,label\n{text},1\n"), ["text"]) == [[text]]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "gb18030", "utf-16-le"])
def test_another_encoding_is_read_if_it_is_named(encoding: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "text,label\ncafé,1\n".encode(encoding))
    with pytest.raises(UserError, match=r"a\.csv line [12] (is not UTF-8 \(byte 0x|has a zero byte: save)"):
        values_of(path, ["text"])
    assert values_of(path, ["text"], encoding=encoding) == [["café"]]


@pytest.mark.parametrize("delimiter", ["tab", r"\t", "\t"])
def test_a_delimiter_may_be_given(delimiter: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "text\tlabel,x\tb,c\na\t1\t2\n")
    assert values_of(path, ["text", "label,x", "b,c"], delimiter=delimiter) == [["a", "1", "2"]]
    path = file_of(tmp_path, "a.csv", "text^label\na,b;c^1\n")
    assert values_of(path, ["text", "label"], delimiter="^") == [["a,b;c", "1"]]


def test_values_keep_their_types_spelling(tmp_path: Path) -> None:
    frame = pl.DataFrame({"i": [1, None], "f": [0.5, 2.0], "b": [True, False], "x": [0.1, None], "n": [[1], []]})
    frame.with_columns(pl.col("x").cast(pl.Float32)).write_parquet(tmp_path / "a.parquet")
    reading = Reading("a", "rows")
    rows = [row for _, row in rows_of(tmp_path / "a.parquet", ["i"], reading=reading)]
    assert rows == [{"i": "1", "f": "0.5", "b": "true", "x": "0.1"}, {"i": None, "f": "2.0", "b": "false", "x": None}]
    assert reading.notes == ["columns of lists and structures are ignored: n"]
    path = file_of(tmp_path, "a.jsonl", '{"i": 1, "f": 0.5, "b": true, "n": [1]}\n')
    assert [row for _, row in rows_of(path, ["i"])] == [{"i": "1", "f": "0.5", "b": "true"}]


def test_columns_without_a_name_are_ignored(tmp_path: Path) -> None:
    table = open_table(file_of(tmp_path, "a.csv", ",text,,\n0,a,,\n"), ["text"])
    assert table.columns == ["text"] and list(table.rows) == [(2, {"text": "a"})]
    assert table.notes[0] == "column 1, 3, 4 without a name is ignored"


def test_an_optional_column_may_be_missing_and_case_may_be_ignored(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "id; SMILES\n1;C\n")
    assert list(rows_of(path, ["smiles", "label"], ["label"], ignore_case=True)) == [
        (2, {"label": None, "id": "1", "smiles": "C"})
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "text,label,text\na,1,b\n", "line 1: two columns are called 'text', number 1 and number 3"),
        ("a.csv", "Text ,label\na,1\n", "line 1: there is no column 'text', only 'Text ', 'label' ('Text ' differs "
         "from it in case or spaces); name your columns in datamodule.source"),
        ("a.csv", "a;b;label\na;1;2\n", "line 1: there is no column 'text', only 'a', 'b', 'label'; name"),
        ("a.csv", "", "line 1: there is no column 'text', only none"),
        ("a.csv", "text,label\na\n", "line 2 has 1 column, the header 2: correct it"),
        ("a.csv", "text,label\n\na,b,c\n", "line 3 has 3 columns, the header 2: correct it, or quote a field"),
        ("a.csv", 'text,label\n"a\nb",1\n"c,1\nd,2\n', "line 4 is no row of a table (unexpected end of data)"),
        ("a.csv", 'text,label\n"he said \\"no\\" ",1\n', "line 2 is no row of a table (',' expected"),
        ("a.csv", "text,label\nab\rc,1\n", "line 2 is no row of a table (new-line character seen in unquoted field"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", "line 2 is not UTF-8 (byte 0xe9): save the file as UTF-8, or give "
         "datamodule.source.encoding=cp1252, gb18030 or whichever it has"),
        ("a.csv", b"\xff\xfet\0e", "line 1 is not UTF-16 (byte 0x65)"),
        ("a.csv", b"PK\3\4", "is a spreadsheet or an archive, no text: save its sheet as CSV UTF-8"),
        ("a.csv", b"PAR1", "is no text but a .parquet file: rename it"),
        ("a.csv", gzip.compress(b"text", mtime=0), "is no text but a .gz file: rename it"),
        ("a.csv.gz", b"text", "is truncated or no .gz file"),
        ("a.xlsx", b"", "is a spreadsheet: save its sheet as CSV UTF-8 (.csv), and give that file"),
        ("a.txt", b"", "is no table: give a file that ends in .csv, .tsv, .jsonl, .parquet"),
        ("a.parquet", b"PAR1", "is truncated or no .parquet file"),
        ("a.jsonl", '{"text": "a", "text": "b", "label": 1}', "line 1 is not JSON (it has the key 'text' twice)"),
        ("a.jsonl", '\n{"Text": "a", "label": 1}', "line 2: there is no key 'text', only 'Text', 'label' ('Text' d"),
        ("a.jsonl", '{"text": ["a"], "label": 1}', "line 1: text is ['a']; it must be a string or a number"),
        ("a.jsonl", '{"text": "a\\ud83d", "label": 1}', "line 1: text has half of a character, 'a\\ud83d': correct it"),
        ("a.jsonl", "[1]", "line 1 is not a JSON object"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_with_its_line(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, name, content)
    with pytest.raises(UserError) as raised:
        list(rows_of(path, ["text", "label"]))
    assert str(raised.value).startswith(f"{path} {words}")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"encoding": "klingon"}, "datamodule.source.encoding=klingon: there is no such encoding; give utf-8,"),
        ({"encoding": "rot13"}, "datamodule.source.encoding=rot13: there is no such encoding"),
        ({"delimiter": "::"}, "datamodule.source.delimiter='::' is not allowed; expected one character, or tab"),
    ],
)
def test_a_bad_key_is_named(option: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        list(rows_of(file_of(tmp_path, "a.csv", "text\na\n"), ["text"], **option))
    assert str(raised.value).startswith(words)

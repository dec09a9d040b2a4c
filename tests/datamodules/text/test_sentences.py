"""Your own sentences: tables of all kinds, the report, labels by name, and errors with file and row."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from src.batches.tokens import UNLABELLED
from src.datamodules.splits import seeded_split
from src.datamodules.text.sentences import SentencesDataModule, Source
from src.datamodules.text.tables import read_table
from src.datamodules.text.vocabulary import learned_pieces
from src.errors import UserError
from tests.support.batches import batches_of

ROWS = [("a film, long", "good"), ("two and more", "bad"), ("three", "so so")] * 4


def written(path: Path, rows: list[Any] = ROWS, columns: tuple[str, str] = ("text", "label")) -> Path:
    """Writes the rows in the format of the file's ending."""
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    else:
        mark, cut = ('"', ",") if path.suffix == ".csv" else ("", "\t")
        lines = [cut.join(columns), *(f"{mark}{text}{mark}{cut}{label}" for text, label in rows)]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def datamodule(file: Path, **source: Any) -> SentencesDataModule:
    options = {"name": "sentences", "batch_size": 64, "seed": 1, "padding": "bucketed", "max_length": 4}
    return SentencesDataModule(
        source=Source(str(file), **{"held_out_share": 0.25, "split": "stratified", **source}), **options
    )


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_every_kind_of_file_has_the_same_rows(kind: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path / f"own.{kind}"), "text", "label", labelled=True)
    assert list(zip(table.texts, table.labels, strict=True)) == ROWS
    assert table.lines == list(range(1 if kind == "jsonl" else 2, len(ROWS) + (1 if kind == "jsonl" else 2)))


def test_what_was_read_dropped_and_truncated_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "own.csv", [*ROWS, (" ", "good"), ("no label", "")], ("comment", "topic"))
    data = datamodule(file, text="comment", label="topic")
    data.setup("fit")
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: 14 rows read, 4 kept as written, 8 kept changed, 2 dropped",
        "  changed 8: truncated to 4 tokens, as own.csv line 2: 'a film, long'",
        "  dropped 1: no text in column comment, as own.csv line 14",
        "  dropped 1: no label in column topic, as own.csv line 15: 'no label'",
        "  split: 9 train, 3 dev (drawn by class with seed 0); 3 outside of train are in train too",
        "  classes of train: bad 3, good 3, so so 3",
        "  classes of dev: bad 1, good 1, so so 1",
        "  note: vocabulary learned from train: 40 word pieces, lower-cased, accents stripped; 0.0% of the tokens are "
        "[UNK]",
    ]
    assert data.reading is not None and data.reading.shared == 3
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 9, "dev": 3}
    assert not set(data.tables["train"].lines) & set(data.tables["dev"].lines)


def test_a_batch_larger_than_the_training_split_is_reduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = datamodule(written(tmp_path / "own.csv"))
    data.setup("fit")
    (batch,) = batches_of(data.train_dataloader())
    assert batch.num_sentences == 9
    said = "note: hp.batch_size=64 is more than the training split has for each rank; training with batches of 9"
    assert capsys.readouterr().out.splitlines()[-1] == said
    data.name, data.batch_size = "sst2", 64
    with pytest.raises(UserError, match=r"^hp.batch_size=64 on 1 rank"):
        data.train_dataloader()


def test_integer_labels_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    file = written(tmp_path / "own.jsonl", [(f"word {n}", n) for n in (10, 9, -1, 2)] * 4)
    assert datamodule(file).label_names == ["-1", "2", "9", "10"]


def test_a_file_of_its_own_may_be_for_evaluation(tmp_path: Path) -> None:
    data = datamodule(written(tmp_path / "own.csv"), dev=str(written(tmp_path / "dev.tsv", ROWS[:3])))
    data.setup("fit")
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 12, "dev": 3}
    assert data.read("dev").labels.tolist() == [1, 0, 2]


def test_a_table_without_labels_is_read_for_predictions(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ngood\n\nbad\n")
    table = read_table(tmp_path / "new.csv", "text", "label", labelled=False)
    assert (table.texts, table.lines) == (["good", "bad"], [2, 4])
    assert table.numbers(["a", "b"]).tolist() == [UNLABELLED] * 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "text,mark\ngood,1\n", "a.csv line 1: there is no column 'label', only 'text', 'mark'; name"),
        ("a.csv", "text,label\ngood,1\na,b,c\n", "a.csv line 3 has 3 columns, the header 2: correct it"),
        (
            "a.csv",
            'text,label\n"good,1\n',
            "a.csv line 2 is no row of a table (unexpected end of data): close the quoted",
        ),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text"', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", '{"text": "a"}', "a.jsonl line 1: there is no key 'label', only 'text'"),
        ("a.jsonl", '{"text": "a", "label": [1]}', "a.jsonl line 1: label is [1]; it must be a string or a number"),
        ("a.jsonl", "[1]", "a.jsonl line 1 is not a JSON object: write an object a line"),
        ("a.txt", "good\n", "a.txt is no table: give a file that ends in .csv, .tsv, .jsonl, .parquet"),
        ("a.tsv", "text\tlabel\na\tb\n", "a.tsv has no sentence with a label for the split dev; add rows"),
        ("a.tsv", "text\tlabel\n" + "a\tb\n" * 9, "a.tsv has one label, b: give two or more"),
    ],
)
def test_a_bad_file_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as raised:
        datamodule(tmp_path / name).setup("fit")
    assert str(raised.value).startswith(f"{tmp_path}/{words}")


def test_a_label_that_was_not_trained_on_is_named_with_its_row(tmp_path: Path) -> None:
    dev = written(tmp_path / "dev.csv", [("good", "good"), ("else", "new")])
    with pytest.raises(UserError, match=r"dev.csv line 3: the label 'new' is none of those trained on \(bad, good, so"):
        datamodule(written(tmp_path / "own.csv"), dev=str(dev)).setup("fit")


def test_the_learned_vocabulary_has_characters_and_the_most_frequent_words() -> None:
    pieces = learned_pieces(["to be", "be to be or"], 4 + 2 * 5 + 2)
    assert pieces[4:] == [*"beort", *(f"##{letter}" for letter in "beort"), "be", "to"]
    with pytest.raises(UserError, match=r"^datamodule.vocabulary_size=9: the characters alone are 14; give more"):
        learned_pieces(["to be or"], 9)


def labels_of(folder: Path, labels: list[Any], **source: Any) -> SentencesDataModule:
    rows = [(f"word {number}", label) for number, label in enumerate(labels)]
    return datamodule(written(folder / "own.csv", rows), **source)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["1.0", "0.0", "1", "0"], ["0", "1"]),  # pandas, where a label is missing, and other programs
        (["True", "false", "TRUE", "False"], ["false", "true"]),
        (["true", "0", "1", "False"], ["0", "1"]),
        (["cafe\u0301", "caf\u00e9", "b", "b"], ["b", "caf\u00e9"]),
        (["--1", "1", "--1", "1"], ["--1", "1"]),
        (["\u0663", "1", "\u0663", "1"], ["1", "\u0663"]),
        (["1.5", "10", "2", "-1"] * 2, ["-1", "1.5", "2", "10"]),
        (["1.1", "1.10", "1.1", "1.10"], ["1.1", "1.10"]),  # versions
        (["007", "7", "007", "7"], ["007", "7"]),
    ],
)
def test_labels_that_are_the_same_value_are_one_class(labels: list[str], names: list[str], tmp_path: Path) -> None:
    data = labels_of(tmp_path, labels * 4)
    data.setup("fit")
    assert data.label_names == names
    changed = sum(remark.count for remark in data.report.changed if remark.what.startswith("label"))
    assert changed == 4 * sum(label not in names for label in labels)


def test_labels_that_may_be_mistakes_are_noted(tmp_path: Path) -> None:
    data = labels_of(tmp_path, ["Good", "good", "nan"] * 4)
    data.setup("fit")
    words = "labels that differ in case or spaces alone are classes of their own: 'Good', 'good'"
    assert words in data.report.notes
    assert "the label 'nan' is a class of its own, though it may stand for none" in data.report.notes


@pytest.mark.parametrize("split", ["stratified", "random"])
def test_a_class_with_one_example_stays_in_training(split: str, tmp_path: Path) -> None:
    for seed in range(4):
        data = labels_of(tmp_path, ["a", "b", "b", "a", "rare"], split=split, seed=seed, held_out_share=0.4)
        data.setup("fit")
        assert "rare" in data.tables["train"].labels
        assert "classes of one example, which is in train: rare" in data.report.notes
        assert data.report.classes["dev"]["rare"] == 0


def split_file(folder: Path, kind: str, values: list[str]) -> Path:
    path = folder / "own.csv"
    lines = [f"word{number % 7} x,{'ab'[number % 2]},{value}" for number, value in enumerate(values)]
    path.write_text("\n".join([f"text,label,{kind}", *lines, ""]))
    return path


def test_rows_are_held_out_by_groups_time_or_a_column(tmp_path: Path) -> None:
    by = {"split_column": "x"}
    data = datamodule(split_file(tmp_path, "x", [str(n // 4) for n in range(40)]), split="grouped", **by)
    groups = {split: {*table.others} for split, table in data.tables.items()}
    assert not groups["train"] & groups["dev"] and 6 <= len(data.tables["dev"].texts) <= 14
    data = datamodule(split_file(tmp_path, "x", [f"2024-{12 - n:02}-01" for n in range(8)]), split="by_time", **by)
    assert data.tables["dev"].lines == [2, 3] and data.report.split == "the latest by x"
    data = datamodule(split_file(tmp_path, "x", ["9", "10", "100", "11"]), split="by_time", **by)
    assert data.tables["dev"].lines == [4]
    data = datamodule(split_file(tmp_path, "x", ["train", "dev", "Train", "train", "train"]), split="column", **by)
    assert data.tables["dev"].lines == [3]


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ({"split": "by_time"}, "", "datamodule.source.split=by_time needs datamodule.source.split_column=COLUMN"),
        ({"split_column": "x"}, "", "datamodule.source.split_column=x is for split=grouped, by_time, column"),
        ({"split": "by_time", "split_column": "x"}, "3/4/2024", "line 3: x is '3/4/2024'; expected a number"),
        ({"split": "column", "split_column": "x"}, "test", "line 3: x is 'test'; expected train or dev"),
        ({"split": "grouped", "split_column": "x"}, " ", "line 3: x is empty, but it splits the rows: fill it in"),
        ({"split": "grouped", "split_column": "y"}, "1", "line 1: there is no column 'y', only 'text', 'label', 'x'"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(source: dict[str, str], value: str, words: str, tmp_path: Path) -> None:
    first = "train" if source.get("split") == "column" else "1"
    with pytest.raises(UserError) as raised:
        datamodule(split_file(tmp_path, "x", [first, value, first]), **source).setup("fit")
    assert words in str(raised.value)


def test_checkpoints_without_a_split_mean_random_rows(tmp_path: Path) -> None:
    """The rows that were held out before there was a choice."""
    rows = [(f"word {number}", "ab"[number % 2]) for number in range(40)]
    data = datamodule(written(tmp_path / "own.csv", rows), split="random", seed=3)
    held = seeded_split(40, 0.25, 3)
    assert Source("x").split == "random" and data.tables["dev"].lines == (held + 2).tolist()


def batches(file: Path) -> list[list[Any]]:
    data = datamodule(file)
    data.setup("fit")
    return [
        [batch.ids.tolist(), batch.labels.tolist()]
        for split in ("train", "dev")
        for batch in data.loader(split, batch_size=4)
    ]


def test_the_same_content_in_another_format_gives_the_same_batches(tmp_path: Path) -> None:
    rows = [("a film, long", "1"), ('said "no"', "0"), ("naïve", "2")] * 4
    expected = batches(written(tmp_path / "own.jsonl", rows))
    frame = pl.DataFrame(rows, schema=["text", "label"], orient="row")
    frame.with_columns(pl.col("label").cast(pl.Int64)).write_parquet(tmp_path / "own.parquet")
    frame.with_columns(pl.col("label").cast(pl.Float64)).write_csv(tmp_path / "own.csv", separator=";")
    (tmp_path / "excel.tsv").write_bytes(frame.write_csv(separator="\t").replace("\n", "\r\n").encode("utf-16"))
    for name in ("own.parquet", "own.csv", "excel.tsv"):
        assert batches(tmp_path / name) == expected
    assert batches(written(tmp_path / "other.jsonl", [("another film", "1"), *rows[1:]])) != expected


def test_a_sentence_of_which_nothing_is_left_is_dropped(tmp_path: Path) -> None:
    data = datamodule(written(tmp_path / "own.csv", [*ROWS, ("\u200b\u0301", "good")]))
    data.setup("fit")
    assert data.report.dropped[0].examples == ["own.csv line 14"]

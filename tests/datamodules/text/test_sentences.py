"""Your own sentences: tables of all kinds, the report, labels by name, and errors with file and row."""

import json
from pathlib import Path
from typing import Any

import pytest

from src.batches.tokens import UNLABELLED
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
    return SentencesDataModule(source=Source(str(file), **{"held_out_share": 0.25, **source}), **options)


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
        f"{file}: 14 rows read; dropped 1 without text in column comment, 1 without a label in column topic",
        "9 sentences to train, 3 to evaluate, 8 truncated to 4 tokens; 3 labels: bad 4, good 4, so so 4",
    ]
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
    assert (table.texts, table.lines, table.empty) == (["good", "bad"], [2, 4], 0)
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

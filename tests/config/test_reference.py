"""docs/reference/config.md is what the schema and conf/ say, and names every key of a training config."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from src.config import reference
from src.config.reference import CONF, GROUPS, PAGE
from tests.support.composing import composed

SECTIONS = ("trainer", "precision", "hardware", "hp", "fit", "execution", "measure", "sweep")


def test_the_committed_page_is_current() -> None:
    """After a change of the schema or of conf/: `python -m src.config.reference`."""
    assert PAGE.read_text(encoding="utf-8") == reference.reference()


def test_every_key_of_a_training_config_is_on_the_page() -> None:
    config = composed("train")
    page = PAGE.read_text(encoding="utf-8")
    keys = [str(key) for key in config] + [f"{part}.{key}" for part in SECTIONS for key in config[part]]
    missing = {key for key in keys if key not in SECTIONS and f"\n| `{key}` |" not in page}
    assert missing == {key for key in GROUPS if key in missing and f"[`{key}`](#{key})" in page}


def test_every_option_of_every_group_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for group in GROUPS:
        part = page.partition(f"\n### {group}\n")[2].partition("\n#")[0]
        assert [file.stem for file in (CONF / group).glob("*.yaml") if f"[`{file.stem}`](" not in part] == []


def test_a_field_has_its_type_default_and_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Small:
        steps: int = 7  # of a trial
        name: str | None = None

    monkeypatch.setattr(reference, "_field_comments", lambda schema: {"steps": "of a trial"})
    rows = list(reference._schema_rows(Small))
    assert rows == [("`steps`", "int", "`7`", "of a trial"), ("`name`", "str or null", "`null`", "")]


def test_a_key_that_means_something_else_than_in_train_py_has_its_own_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    predict = page.partition("\n## predict.py\n")[2].partition("\n## ")[0]
    line, _, rows = predict.partition("\n\n| key |")
    assert "`seed`" in line and "`execution.*`" in line and "`ckpt_path`" not in line
    assert "| `ckpt_path` | str or null | `null` | trained weights" in rows and "`seed`" not in rows


def test_an_option_is_summed_up_by_the_first_sentence_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("# A small model. More.\nname: small\n")
    assert reference._summary(tmp_path / "small.yaml") == "A small model"

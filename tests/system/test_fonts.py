"""Letters of a picture that matplotlib's own font lacks: an installed font has them, or a note says what is missing."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image

from src.system import fonts
from src.system.pictures import new_picture, save_picture
from src.training.confusion import confusion_picture

LETTERS = "日本"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No note was given yet, and only matplotlib's own fonts are installed."""
    bundled = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", bundled)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    monkeypatch.setattr(fonts, "_told", set())


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A font that was installed after matplotlib made its list: black squares as LETTERS."""
    file, names = tmp_path / "squares.ttf", {"familyName": "Noto Sans CJK Test", "styleName": "Regular"}
    pen = TTGlyphPen(None)
    for number, corner in enumerate([(0, 0), (0, 900), (900, 900), (900, 0)]):
        (pen.lineTo if number else pen.moveTo)(corner)
    pen.closePath()
    builder, glyphs = FontBuilder(1000), [".notdef", "square"]
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap({ord(letter): "square" for letter in LETTERS})
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable(names)
    builder.setupOS2()
    builder.setupPost()
    builder.save(file)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(file), str(tmp_path / "damaged.ttf")])
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    return file


def draw(path: Path, *texts: str) -> None:
    picture = new_picture(3, 2)
    for number, text in enumerate(texts):
        picture.text(0.1, 0.1 + 0.2 * number, text)
    save_picture(picture, path)


def test_an_installed_font_has_the_letters(installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    confusion_picture(np.eye(2, dtype=np.int64), [LETTERS, "plain"], "images", tmp_path / "a.png")
    assert "Noto Sans CJK Test" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""
    draw(tmp_path / "letters.png", LETTERS)
    assert (np.asarray(Image.open(tmp_path / "letters.png").convert("L")) == 0).sum() > 300  # the squares


def test_a_note_names_the_package_of_what_is_missing_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(tmp_path / "a.png", "日本語", "한국어", "🫠", "हिन्दी", "é ß مرحبا")
        draw(tmp_path / "b.png", "中文")
    assert "日本語" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    notes = capsys.readouterr().out.splitlines()
    assert [note.partition("install ")[2].split(",")[0] for note in notes] == [
        "fonts-noto-cjk", "fonts-noto-core", "fonts-symbola"
    ]  # fmt: skip
    assert notes[0].startswith("note: a.png: no installed font has '日', drawn as a box")


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    names = ["$\\foo$", "US$ 5 to $ 10", "two\nlines", "\u202egnp"]
    confusion_picture(np.eye(4, dtype=np.int64), names, "images", tmp_path / "a.png")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for text in ("$\\foo$", "US$ 5 to $ 10", "two\\nlines", "\\u202egnp"):
        assert f">{text}</text>" in drawn


def test_powers_of_ten_stay_formulas(tmp_path: Path) -> None:
    picture = new_picture(3, 2)
    picture.subplots().loglog([1, 1e6], [1, 1e9])
    save_picture(picture, tmp_path / "a.png")
    assert ">$" not in (tmp_path / "a.svg").read_text(encoding="utf-8")

"""Fonts for the letters of a picture that matplotlib's own font has no glyphs for, such as those of Chinese labels."""

import unicodedata
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, ScalarFormatter

USUAL = ("Noto Sans CJK", "Noto Sans", "Source Han Sans", "WenQuanYi", "Microsoft YaHei", "PingFang", "Symbola")
NO_TEXT = ("Last Resort", "cm", "STIX", "DejaVu")  # boxes with numbers, and signs of formulas
EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH")
PACKAGES = {"east": "fonts-noto-cjk", "signs": "fonts-symbola", "other": "fonts-noto-core"}  # Debian's and Ubuntu's
_told: set[str] = set()


def give_fonts(picture: Figure, path: Path) -> None:
    """Gives the texts of a picture installed fonts that have their letters; a name with two $ is no formula.

    A note on the terminal names the package to install where no font has a letter, once for each package.
    """
    texts, numbers = _texts(picture)
    for text in texts:
        text.set_parse_math(text in numbers)
    usual = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    written = {letter for text in texts for letter in text.get_text()}
    lacking = {letter for letter in written if not _has(usual, letter) and not letter.isspace()}
    if not lacking:
        return
    names, rest = fonts_with(lacking)
    for text in texts:
        if lacking.intersection(text.get_text()):
            text.set_fontfamily([*text.get_fontfamily(), *names])
    packages = {package_of(letter): letter for letter in sorted(rest, reverse=True)}
    for package in sorted(set(packages) - _told):
        _told.add(package)
        print(f"note: {path.name}: no installed font has {packages[package]!r}, drawn as a box; install {package}, or "
              "open the .svg in a browser")  # fmt: skip


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppresses matplotlib's warning of each letter without a glyph, of which `give_fonts` tells."""
    with warnings.catch_warnings():
        for message in (r"Glyph \d+ .* missing from", "Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message)
        yield


def fonts_with(letters: Collection[str]) -> tuple[list[str], set[str]]:
    """Returns the names of few installed fonts that have the letters, and the letters that none has."""
    names, rest = [], set(letters)
    listed = {entry.fname for entry in font_manager.fontManager.ttflist}
    for file in font_manager.findSystemFonts():  # matplotlib's own list is older than a font just installed
        if file not in listed:
            try:
                font_manager.fontManager.addfont(file)
            except (OSError, RuntimeError):  # pictures instead of outlines, or damaged
                continue
    fonts = {
        entry.name: entry.fname for entry in font_manager.fontManager.ttflist if not entry.name.startswith(NO_TEXT)
    }
    for name in sorted(fonts, key=lambda name: (not name.startswith(USUAL), name)):
        if not rest:
            break
        try:
            font = font_manager.get_font(fonts[name])
        except (OSError, RuntimeError):
            continue
        there = {letter for letter in rest if font.scalable and _has(font, letter)}
        names += [name] if there else []
        rest -= there
    return names, rest


def package_of(letter: str) -> str:
    """Returns the package with a font that has the letter."""
    if unicodedata.name(letter, "").startswith(EAST_ASIAN):
        return PACKAGES["east"]
    return PACKAGES["signs" if unicodedata.category(letter).startswith("S") else "other"]


def _texts(picture: Figure) -> tuple[list[Text], set[Text]]:
    """Returns the texts of a picture, and those that matplotlib writes at the ticks, powers of ten among them."""
    numbers: set[Text] = set()
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_majorticklabels()  # makes them: they are empty until an axis is drawn
            if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
                numbers |= {text for text in axis.findobj(Text) if isinstance(text, Text) and text is not axis.label}
    return [text for text in picture.findobj(Text) if isinstance(text, Text)], numbers


def _has(font: FT2Font, letter: str) -> bool:
    return font.get_char_index(ord(letter)) != 0

"""One number and one category, however it is spelled; and what is none."""

import pytest

from src.datamodules.numbers import MISSING, Spelling, text_of
from src.errors import UserError

PLAIN, COMMA = Spelling(), Spelling(decimal=",", thousands=".")


@pytest.mark.parametrize("text", ["1", "1.0", "1.", "1.00", "1e0", "1E+00", "+1", " 1 ", "01", "10e-1", "true", "TRUE"])
def test_spellings_of_one_are_one_number(text: str) -> None:
    assert PLAIN.number(text) == 1


@pytest.mark.parametrize("text", ["1", "1.0", "1.", "1.00", "+1", " 1 ", "1\u00a0"])
def test_spellings_of_one_are_one_category(text: str) -> None:
    assert PLAIN.category(text) == "1"


@pytest.mark.parametrize(
    "text",
    ["007", "01", "1e5", "1e0", "0x1", "1.5", "1.10", "1_000", "٣", "\uff11", "1,0", "-", "?", "1.2.0", "+", ".", "a"],
)
def test_other_categories_stay_as_they_are(text: str) -> None:
    assert PLAIN.category(text) == text


def test_categories_keep_all_digits_and_have_one_zero_and_truth() -> None:
    assert PLAIN.category("1234567890123456789") == PLAIN.category("1234567890123456789.0") == "1234567890123456789"
    assert PLAIN.category("12345678901234567890123") == "12345678901234567890123"
    assert {PLAIN.category(text) for text in ("0", "-0", "0.0", "-0.0", "+0")} == {"0"}
    assert {PLAIN.category(text) for text in ("true", "True", "TRUE")} == {"true"}
    assert PLAIN.category("-5.0") == "-5" != PLAIN.category("5")


@pytest.mark.parametrize(
    "text",
    ["1_000", "٣", "\uff11\uff12", "²", "1,5", "1 000", "inf", "-Infinity", "1e400", "0x10", "5%", "$5", "1.2.3", "-",
     "?", ".", "e5", "1e", "+-1", "\u22121", "1\n2", "1d5", "yes", "--1", "1,000"],
)  # fmt: skip
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        PLAIN.number(text)


@pytest.mark.parametrize("text", ["", "  ", *MISSING])
def test_missing_values_are_missing_everywhere(text: str) -> None:
    assert PLAIN.number(text) is None and PLAIN.category(text) == ""
    bare = Spelling(missing=())
    assert bare.category(text) == text.strip()  # NA is Namibia where the key says so


def test_a_negative_zero_is_zero_and_small_numbers_vanish() -> None:
    assert str(PLAIN.number("-0.0")) == "0.0" and PLAIN.number("1e-400") == 0 and PLAIN.number(".5") == 0.5


@pytest.mark.parametrize(
    ("spelling", "text", "number", "category"),
    [
        (COMMA, "1,5", 1.5, "1,5"),
        (COMMA, "1,0", 1, "1"),
        (COMMA, "1.234.567,25", 1234567.25, "1.234.567,25"),
        (COMMA, "1.234.567", 1234567, "1234567"),
        (COMMA, "1234567", 1234567, "1234567"),
        (COMMA, "-0,25", -0.25, "-0,25"),
        (Spelling(thousands=","), "1,234.50", 1234.5, "1,234.50"),
        (Spelling(decimal=",", thousands=" "), "12\u202f345\u00a0678,5", 12345678.5, "12\u202f345\u00a0678,5"),
        (Spelling(thousands="'"), "12'345", 12345, "12345"),
    ],
)
def test_a_comma_and_separators_are_read_where_they_are_given(
    spelling: Spelling, text: str, number: float, category: str
) -> None:
    assert spelling.number(text) == number and spelling.category(text) == category


@pytest.mark.parametrize(
    ("spelling", "text"),
    [(COMMA, "1.5"), (COMMA, "1.2345"), (Spelling(thousands=","), "1,5"), (Spelling(thousands=","), "1,23,456")],
)
def test_a_separator_in_another_place_is_refused(spelling: Spelling, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        spelling.number(text)


def test_one_sign_for_both_is_refused() -> None:
    with pytest.raises(UserError, match=r"decimal and thousands are both ','"):
        Spelling(decimal=",", thousands=",")


def test_identifiers_that_a_float_has_rounded_are_known() -> None:
    rounded = ["1.2345678901234568e+18", "1.2345678901234568e18", "1e+16", "12345678901234567000.0"]
    assert all(map(PLAIN.is_rounded, rounded))
    assert not any(map(PLAIN.is_rounded, ["1234567890123456789", "1e18", "1.5", "12e4", "007", "a", "", "1e+400"]))


def test_values_of_a_typed_table_are_text() -> None:
    values = [None, True, 1, 1.0, 1e16, float("nan"), " a "]
    assert [text_of(value) for value in values] == ["", "True", "1", "1.0", "1e+16", "nan", "a"]
    assert PLAIN.category(text_of(1.0)) == PLAIN.category(text_of(1))

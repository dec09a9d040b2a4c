"""One parser of numbers and one form of categories, for what pandas, polars, spreadsheets and databases write."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from src.errors import UserError

# Fields that say that there is no value, besides an empty one: of pandas, R, spreadsheets, SQL, Python and Hive.
MISSING = ("NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NULL", "null", "None", "\\N")
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
SPACES = " \u00a0\u202f"  # a space that separates thousands may be any of these
LARGEST_EXACT = 2**53  # of the whole numbers that a float64 holds


@dataclass(frozen=True)
class Spelling:
    """How a file writes numbers, categories and missing values.

    `1`, `1.0`, `1.`, `1e0`, `+1` and ` 1 ` are one number. As categories `1`, `1.0`, `1.00`, `1.` and `+1` are one. A
    category keeps all digits of a whole number. It stays text where it begins with zeros (`007`), has an exponent
    (`1e5` may be hexadecimal) or a fraction other than zeros (`1.10` may be a version).

    Attributes:
        decimal: the sign in front of a fraction, "." or ",".
        thousands: the sign between groups of three digits, as "," in 1,000,000; None: there is none.
        missing: fields that say that there is no value; an empty one always does.
    """

    decimal: str = "."
    thousands: str | None = None
    missing: Collection[str] = MISSING

    def __post_init__(self) -> None:
        if self.decimal == self.thousands:
            raise UserError(f"decimal and thousands are both {self.decimal!r}; give two signs, or thousands=null")

    def is_missing(self, text: str) -> bool:
        return not text or text in self.missing

    def number(self, text: str) -> float | None:
        """Returns the number, None for a missing one; `true` is 1 and `false` 0.

        Raises ValueError for anything else: digits of other scripts, `1_000`, infinity, numbers above 1.8e308, units.
        """
        text = text.strip()
        if self.is_missing(text):
            return None
        if not self._number.fullmatch(text):
            if text in TRUE or text in FALSE:
                return float(text in TRUE)
            raise ValueError(text)
        value = float(self._plain(text)) + 0.0  # -0 becomes 0
        if not math.isfinite(value):
            raise ValueError(text)
        return value

    def category(self, text: str) -> str:
        """Returns the form that all spellings of a category have in common, "" for a missing one."""
        text = text.strip()
        if self.is_missing(text):
            return ""
        if self._whole.fullmatch(text):
            digits = self._plain(text).partition(".")[0].lstrip("+")
            return "0" if digits == "-0" else digits
        return "true" if text in TRUE else "false" if text in FALSE else text

    def is_rounded(self, text: str) -> bool:
        """Returns whether this is a large whole number that went through a float64, as pandas writes 1.5e+18.

        Its last digits may be lost, so that it is not the identifier that it was.
        """
        text = text.strip()
        if not self._number.fullmatch(text) or not ("." in (plain := self._plain(text)) or "e+" in plain.lower()):
            return False
        return LARGEST_EXACT < abs(float(plain)) < math.inf

    def _plain(self, text: str) -> str:
        for sign in SPACES if self.thousands == " " else self.thousands or "":
            text = text.replace(sign, "")
        return text.replace(self.decimal, ".")

    @cached_property
    def _number(self) -> re.Pattern[str]:
        point = re.escape(self.decimal)
        whole = f"(?:[0-9]+{self._grouped('[0-9]')})"
        return re.compile(f"[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(f"[+-]?(?:0|[1-9][0-9]*{self._grouped('[1-9]')})(?:{re.escape(self.decimal)}0*)?")

    def _grouped(self, first: str) -> str:
        """Returns the pattern of another way to write whole numbers: in groups of three digits."""
        if self.thousands is None:
            return ""
        sign = f"[{SPACES}]" if self.thousands == " " else re.escape(self.thousands)
        return f"|{first}[0-9]{{0,2}}(?:{sign}[0-9]{{3}})+"


def text_of(value: object) -> str:
    """Returns a value of a table as text without outer spaces, "" for None."""
    return "" if value is None else str(value).strip()

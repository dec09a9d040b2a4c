"""Parses Criteo click logs into fixed-size records, a block of whole lines at a time, column by column.

A line is a label (0 or 1), 13 integers and 26 hexadecimal ids of at most 8 digits, separated by tabs; an empty field is
missing. A field is read as one 64-bit number of eight bytes, whose digits are converted at once. That is twice as fast
as polars' read_csv and to_integer on one core (docs/guides/criteo.md), and every invalid line is refused.
"""

import re

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt64

from src.errors import UserError

NUM_NUMERICAL, NUM_IDS = 13, 26
NUM_COLUMNS = 1 + NUM_NUMERICAL + NUM_IDS

# `ids` is 0 if the column's bit in `missing` is set; `numerical` is ln(x + 3), or 0 if x is -3 or missing.
RECORD = np.dtype(
    [("ids", "<u4", NUM_IDS), ("missing", "<u4"), ("numerical", "<f2", NUM_NUMERICAL), ("label", "u1"), ("pad", "u1")]
)

PAD = 8  # bytes before the text, so that the eight bytes up to the end of its first field can be read
_TAB, _NEWLINE, _MINUS, _ZERO = 9, 10, 45, 48

# ln(x + 3) at index x + 3, for nearly all integers of the logs. The Terabyte set goes down to -2, the Kaggle set to -3,
# whose logarithm is undefined: it becomes 0, as in NVIDIA's preparation, where Spark's log gives null and null is 0.
_LOGARITHMS = np.concatenate([[0], np.log(np.arange(1, 1 << 16))]).astype(np.float16)
_LOWEST = -3

_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_ID = re.compile(rb"[0-9a-fA-F]{1,8}")


class BadLog(UserError):
    """An invalid click log."""


def _bytes_of(value: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([value]) * 8, "little"))


def parse(text: UInt8[np.ndarray, " bytes"]) -> np.ndarray | None:
    """Returns the RECORDs of the whole lines `text[PAD:]`; None if a line is invalid (see `explain`)."""
    ends = np.flatnonzero((text[PAD:] - np.uint8(_TAB)) < 2)
    ends += PAD
    if len(ends) % NUM_COLUMNS:
        return None
    ends = np.ascontiguousarray(ends.reshape(-1, NUM_COLUMNS).T)
    newlines = text[ends] == _NEWLINE
    if newlines[:-1].any() or not newlines[-1].all():
        return None
    before = np.empty_like(ends)  # the separator in front of each field
    before[1:] = ends[:-1]
    before[0, 1:] = ends[-1, :-1]
    before[0, :1] = PAD - 1
    lengths = ends - before
    lengths -= 1
    words = np.lib.stride_tricks.as_strided(text[:PAD].view("<u8"), (len(text) - PAD + 1,), (1,))

    records = np.zeros(ends.shape[1], RECORD)
    label = text[ends[0] - 1] - np.uint8(_ZERO)
    if (label > 1).any() or (lengths[0] != 1).any():
        return None
    records["label"] = label
    numbers = slice(1, 1 + NUM_NUMERICAL)
    numerical = _logarithms(text, words, ends[numbers], lengths[numbers])
    ids = _hexadecimal(words, ends[-NUM_IDS:], lengths[-NUM_IDS:])
    if numerical is None or ids is None:
        return None
    records["numerical"] = numerical.T
    records["ids"] = ids.T
    empty = np.zeros((32, len(records)), bool)
    empty[:NUM_IDS] = lengths[-NUM_IDS:] == 0
    records["missing"] = np.ascontiguousarray(np.packbits(empty, axis=0, bitorder="little").T).view("<u4")[:, 0]
    return records


def _field_words(
    words: UInt64[np.ndarray, " offsets"],
    ends: Int[np.ndarray, "columns rows"],
    lengths: Int[np.ndarray, "columns rows"],
) -> tuple[UInt64[np.ndarray, "columns rows"], UInt64[np.ndarray, "columns rows"]]:
    """Returns the last eight bytes of every field, little-endian, zeros before a shorter field; and a mask of them."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) << ((8 - lengths) << 3).astype(np.uint64)
    word = words[ends - 8]
    word &= mask
    return word, mask


def _hexadecimal(
    words: UInt64[np.ndarray, " offsets"],
    ends: Int[np.ndarray, "columns rows"],
    lengths: Int[np.ndarray, "columns rows"],
) -> UInt64[np.ndarray, "columns rows"] | None:
    """Returns the ids, 0 if missing; None if a field is not at most eight hexadecimal digits."""
    if (lengths > 8).any():
        return None
    word, mask = _field_words(words, ends, lengths)
    letter = (word >> np.uint64(6)) & _bytes_of(1)
    word |= letter << np.uint64(5)  # to lower case
    value = (word & _bytes_of(0x0F)) + letter * np.uint64(9)
    above_9 = ((value + _bytes_of(6)) >> np.uint64(4)) & _bytes_of(1)
    # Encode the values as digits again: valid digits give the same bytes, and values of 16 or more are letters after f.
    written = (value + above_9 * np.uint64(0x27) + _bytes_of(_ZERO)) & mask
    written ^= word
    written |= value & _bytes_of(0xF0)
    if written.any():
        return None
    for bits, lanes in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        value = ((value << np.uint64(bits)) + (value >> np.uint64(2 * bits))) & np.uint64(lanes)
    return value


def _logarithms(
    text: UInt8[np.ndarray, " bytes"],
    words: UInt64[np.ndarray, " offsets"],
    ends: Int[np.ndarray, "columns rows"],
    lengths: Int[np.ndarray, "columns rows"],
) -> np.ndarray | None:
    """Returns ln(x + 3) as float16, 0 for -3 and if missing; None if a field is not an integer of -3 or more."""
    negative = (text[ends - lengths] == _MINUS) & (lengths > 1)
    lengths = lengths - negative
    long = lengths > 8
    word, mask = _field_words(words, ends, np.minimum(lengths, 8))
    digits = word & (word + _bytes_of(6)) & _bytes_of(0xF0)
    if (digits != (_bytes_of(_ZERO) & mask)).any():
        return None
    value = word & _bytes_of(0x0F)
    for factor, bits, lanes in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10000, 32, 0x00000000FFFFFFFF),
    ):
        value = (value * np.uint64(factor) + (value >> np.uint64(bits))) & np.uint64(lanes)
    number = value.astype(np.int64)
    if long.any():
        for cell in zip(*np.nonzero(long), strict=True):
            field = text[ends[cell] - lengths[cell] : ends[cell]].tobytes()
            if not _INTEGER.fullmatch(field):
                return None
            number[cell] = int(field)
    number[negative] *= -1
    if (number < _LOWEST).any():
        return None
    index = number - _LOWEST
    result = _LOGARITHMS.take(index, mode="clip")
    large: Bool[np.ndarray, "columns rows"] = index >= len(_LOGARITHMS)
    if large.any():
        result[large] = np.log(number[large] + 3.0).astype(np.float16)
    result[lengths == 0] = 0
    return result


def explain(text: bytes, first_line: int, name: str) -> BadLog:
    """Returns the error for the first bad line of a block of whole lines, which begins at line `first_line`."""
    for number, line in enumerate(text.split(b"\n")[:-1], first_line):
        problem = _problem(line)
        if problem:
            return BadLog(f"{name} line {number}{problem}; correct the file or get it again")
    raise AssertionError(f"{name}: the parser refused lines from {first_line} on, but none is invalid")


def _problem(line: bytes) -> str:
    fields = line.split(b"\t")
    if len(fields) != NUM_COLUMNS:
        return f" has {len(fields)} columns, not {NUM_COLUMNS} (label, 13 integers, 26 ids, separated by tabs)"
    for column, field in enumerate(fields, 1):
        shown = field[:40].decode("utf-8", "replace")
        where = f" column {column}: {shown!r}"
        if column == 1:
            if field not in (b"0", b"1"):
                return f"{where} is not a label, 0 or 1"
        elif not field:
            continue
        elif column > 1 + NUM_NUMERICAL:
            if not _ID.fullmatch(field):
                return f"{where} is not an id of 1 to 8 hexadecimal digits"
        elif not _INTEGER.fullmatch(field):
            return f"{where} is not an integer"
        elif int(field) < _LOWEST:
            return f"{where} is below {_LOWEST}, the least number of Criteo's logs, so ln(x + 3) is undefined"
    return ""

"""Random damage to files, always the same for a number: what the readers of files are tried on."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

TOKENS = (
    b"nan", b"inf", b"-inf", b"1e400", b"-1", b"0", b"1e20", b"9" * 5000, b"9" * 400, b"18446744073709551616", b"0x1F",
    b"null", b"true", b"\0", b"\x1b[31m", b"\x1b]0;title\x07", b"\r", b"\r\n", b"\n\n", b"\t", b'"', b"'", b",", b"=",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\\u001b[2J", b"\xe2\x80\xa8",
    b"[" * 20_000, b"{" * 5000, b'{"a":' * 20_000, b"- " * 3000, b"&a [*a]", b"!!python/object:os.system", b"../../x",
    b"charge=inf", b"charge=1e300", b"Properties=species:S:1:pos:R:99999999999999999999", b"C" * 500, b"(" * 300,
    b"%999", b"[999H+99]", b"*", b"$$$$\n", b"M  END\n", b"V3000", b"1e308", b"\xf0\x9f\x92\xa9", b"x" * 200_000,
)  # fmt: skip


def damaged(seeds: Sequence[bytes], number: int) -> bytes:
    """Returns one of the seeds with one to four random changes, the same for the same `number`."""
    draw = random.Random(number)
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 4)):
        CHANGES[draw.randrange(len(CHANGES))](data, draw, seeds)
    return bytes(data)


def _flip(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _cut(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    del data[draw.randrange(len(data) + 1) :]


def _delete(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    begin = draw.randrange(len(data) + 1)
    del data[begin : begin + draw.randint(1, 30)]


def _repeat(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    begin = draw.randrange(len(data) + 1)
    data[begin:begin] = data[begin : begin + draw.randint(1, 60)] * draw.randint(1, 3)


def _insert(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    begin = draw.randrange(len(data) + 1)
    data[begin : begin + draw.choice((0, 0, 1, 4))] = draw.choice(TOKENS)


def _replace_word(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    words = bytes(data).split()
    if words:
        word = draw.choice(words)
        data[:] = bytes(data).replace(word, draw.choice(TOKENS), 1)


def _randomise(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    begin = draw.randrange(len(data) + 1)
    data[begin : begin + 8] = draw.randbytes(8)


def _join(data: bytearray, draw: random.Random, seeds: Sequence[bytes]) -> None:
    other = draw.choice(seeds)
    data[draw.randrange(len(data) + 1) :] = other[draw.randrange(len(other) + 1) :]


def _encode(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    text = bytes(data).decode("utf-8", "replace")
    data[:] = text.encode(draw.choice(("utf-16", "latin-1", "utf-16-be", "utf-8-sig")), "replace")


def _replace_value(data: bytearray, draw: random.Random, _: Sequence[bytes]) -> None:
    """Puts another value in the place of one in JSON, or under another key."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return
    places = [
        (part, key) for part in parts_of(content) for key in (part if isinstance(part, dict) else range(len(part)))
    ]
    if not places:
        return
    part, key = draw.choice(places)
    if isinstance(part, dict) and draw.random() < 0.2:
        part[draw.choice(("", "x", "../x", "\x1b[2J", "\ud800"))] = part.pop(key)
    else:
        part[key] = draw.choice(VALUES)
    data[:] = json.dumps(content).encode()


def parts_of(value: Any) -> Iterator[Any]:
    """Yields the lists and objects in a JSON value."""
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts_of(item)


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**18, 10**30, 10**400, 1e308, "", "x", "../x", "\x1b[31m", "\ud800", "nan", [], {},
    [None], {"x": []}, [[[]]], "x" * 10_000,
)  # fmt: skip
Change = Callable[[bytearray, random.Random, Sequence[bytes]], None]
CHANGES: tuple[Change, ...] = (
    _flip, _cut, _delete, _repeat, _insert, _insert, _replace_word, _replace_word, _randomise, _join, _encode,
    _replace_value, _replace_value, _replace_value,
)  # fmt: skip

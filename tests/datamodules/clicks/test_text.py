"""The parser accepts click logs exactly and refuses all else; files are divided between lines."""

from pathlib import Path

import numpy as np
import pytest

from src.datamodules.clicks.raw import Span, blocks, estimated_rows, lines_before, spans
from src.datamodules.clicks.text import PAD, explain, parse
from src.errors import UserError
from tests.support import criteo_rows


def parsed(text: bytes) -> np.ndarray | None:
    return parse(np.frombuffer(bytes(PAD) + text, np.uint8))


def test_fields_are_converted_exactly() -> None:
    numbers = ["", "0", "-1", "-2", "65532", "65533", "99999999", "100000000", "123456789012", "-0", "007", "5", "1"]
    ids = ["", "0", "f", "FF", "deadbeef", "DeadBeef", "ffffffff", "00000000", "00000001", "abcdef0", *["9"] * 16]
    records = parsed(("1\t" + "\t".join(numbers + ids) + "\n").encode())
    assert records is not None and records["label"].tolist() == [1]
    assert records["ids"][0].tolist() == [int(field or "0", 16) for field in ids]
    assert records["missing"].tolist() == [1]
    reference = [float(np.float16(np.log(int(field) + 3.0))) if field else 0.0 for field in numbers]
    assert records["numerical"][0].tolist() == reference


def test_the_least_number_of_the_kaggle_log_becomes_0_as_published() -> None:
    records = parsed(("1\t" + "\t".join(["-3", "-2", "-1", *[""] * 36]) + "\n").encode())
    assert records is not None
    assert records["numerical"][0, :3].tolist() == [0, 0, float(np.float16(np.log(2)))]
    assert parsed(("1\t" + "\t".join(["-4", *[""] * 38]) + "\n").encode()) is None


@pytest.mark.parametrize("label", ["", "2", "-1", "01", "x1"])
def test_a_label_is_one_digit(label: str) -> None:
    assert parsed(("1" + "\t" * 39 + "\n").encode()) is not None
    assert parsed((label + "\t" * 39 + "\n").encode()) is None


@pytest.mark.slow
def test_the_fast_parser_agrees_with_the_slow_one() -> None:
    """With random bytes changed, both refuse the same texts and read the same ids in the others."""
    generator = np.random.default_rng(0)
    good = "".join(criteo_rows.lines(3, 0)).encode()
    accepted = refused = 0
    alphabet = b"\t\n 0159afAFgG`@/:x-+.\r\0\x7f\x80\xb0\xff"
    for _ in range(6000):
        text = bytearray(good)
        for offset in generator.integers(len(text) - 1, size=generator.integers(1, 3)):
            text[offset] = alphabet[generator.integers(len(alphabet))]
        records = parsed(bytes(text))
        try:
            error: Exception | None = explain(bytes(text), 1, "log")
        except AssertionError:
            error = None
        assert (records is None) == (error is not None), bytes(text)
        if records is None:
            refused += 1
            continue
        accepted += 1
        fields = [line.split(b"\t") for line in bytes(text).splitlines()]
        assert records["ids"].tolist() == [[int(field or b"0", 16) for field in row[14:]] for row in fields]
    assert accepted > 300 and refused > 3000


@pytest.mark.parametrize("span_bytes", [1, 50, 237, 1000, 10**6])
def test_every_line_is_in_exactly_one_span(tmp_path: Path, span_bytes: int) -> None:
    content = criteo_rows.lines(12, 1)
    path = criteo_rows.write(tmp_path / "log", content)
    pieces = [block for span in spans(path, span_bytes) for block in _copied(span)]
    assert b"".join(text for _, text in pieces) == path.read_bytes()
    assert all(text.endswith(b"\n") for _, text in pieces)
    for offset, text in pieces:
        assert path.read_bytes()[offset : offset + len(text)] == text
        assert lines_before(path, offset) == path.read_bytes()[:offset].count(b"\n")


def _copied(span: Span) -> list[tuple[int, bytes]]:
    return [(block.offset, block.text[PAD:].tobytes()) for block in blocks(span)]


@pytest.mark.parametrize("name", ["log", "log.gz"])
def test_blocks_concatenate_to_the_log(tmp_path: Path, name: str) -> None:
    content = criteo_rows.lines(2000, 2)
    path = criteo_rows.write(tmp_path / name, content)
    pieces = [block for span in spans(path, 150_000) for block in _copied(span)]
    assert len(pieces) > 4
    assert b"".join(text for _, text in pieces) == "".join(content).encode()
    assert abs(estimated_rows(path) / 2000 - 1) < 0.02


def test_a_line_longer_than_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\t" * 200_000 + b"\n")
    with pytest.raises(UserError, match="log line 1 is longer than"):
        list(blocks(Span(path, 0, path.stat().st_size)))

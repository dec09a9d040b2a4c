"""A precision that is slow on a CPU is named when the run begins."""

import pytest

from src.launch.devices import set_precision, slow_on_cpu
from tests.support.composing import composed


@pytest.mark.parametrize(
    ("precision", "flags", "words"),
    [
        ("fp32", set(), None),
        ("bf16", {"avx2", "avx512_bf16"}, None),
        (
            "bf16",
            {"avx2"},
            "precision=bf16 is slow on this CPU, which has no instructions for it: choose precision=fp32",
        ),
        ("amp", {"avx2"}, "precision=amp is slow on a CPU: choose precision=fp32"),
        ("amp", {"amx_bf16"}, "precision=amp is slow on a CPU: choose precision=fp32, or bf16, which this CPU has"),
        ("fp16", {"avx512_fp16"}, "precision=fp16 is slow on a CPU: choose precision=fp32"),
    ],
)
def test_a_note_says_which_precision_is_slow_on_a_cpu(precision: str, flags: set[str], words: str | None) -> None:
    note = slow_on_cpu(precision, flags)
    assert note is None if words is None else note is not None and note.startswith(words)


def test_the_note_is_printed_once_at_the_start_on_a_cpu_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    amp = composed("train", "precision=amp").precision
    try:
        set_precision(amp, "cpu")
        assert capsys.readouterr().out.count("note: precision=amp is slow on a CPU") == 1
        set_precision(amp, "cuda")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        monkeypatch.setenv("RANK", "1")
        set_precision(amp, "cpu")
        assert capsys.readouterr().out == ""
    finally:
        set_precision(composed("train").precision, "cpu")

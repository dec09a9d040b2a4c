"""What fast modules leave to plain torch, and what the log says of it; which assembler Triton takes."""

import os

import pytest
import torch

from src.gpu import triton_helpers
from src.gpu.triton_helpers import ASSEMBLER, can_take, lacks, take_newer_assembler

FLOAT, DOUBLE = torch.ones(1), torch.ones(1, dtype=torch.float64)


@pytest.fixture(autouse=True)
def kernels_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    triton_helpers.note.cache_clear()


def test_the_log_says_once_which_name_and_why(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert can_take("mlp", FLOAT, width=37)
        assert not can_take("mlp", FLOAT, False, width=37, layers=2)
        assert not can_take("mlp", DOUBLE, width=37)
        assert not lacks("tables", FLOAT, "updates")
    assert caplog.messages == [
        f"execution.kernels: {reason}; plain torch computes the same, more slowly"
        for reason in (
            "mlp does not support width=37, layers=2",
            "mlp does not support torch.float64",
            "tables does not support updates",
        )
    ]


def test_nothing_is_said_where_plain_torch_is_expected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda"})
    assert not any((can_take("mlp", FLOAT), can_take("mlp", DOUBLE, False), lacks("mlp", FLOAT, "updates")))
    assert not caplog.messages


def test_a_compiled_function_stays_one_graph() -> None:
    assert not torch.compile(lambda x: lacks("conv", x, "maps"), fullgraph=True, backend="eager")(FLOAT)


@pytest.mark.parametrize(
    ("triton", "cuda", "is_newer"),
    [("3.6.0", "12.6", True), ("3.7.1", "13.0", True), ("3.7.1", "12.8", False), ("3.10.0+git", None, False)],
)
def test_the_newer_assembler_is_taken_where_the_driver_takes_what_it_makes(
    triton: str, cuda: str | None, is_newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ASSEMBLER, raising=False)
    monkeypatch.setattr(triton_helpers, "version", lambda name: triton)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    take_newer_assembler()
    assert os.environ.get(ASSEMBLER, "").endswith("ptxas-blackwell") == is_newer
    monkeypatch.setenv(ASSEMBLER, "mine")
    take_newer_assembler()
    assert os.environ[ASSEMBLER] == "mine"

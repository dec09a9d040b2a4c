"""Which checkpoint is that of a run that is done; tests/launch/test_resuming_ended.py resumes whole runs."""

from pathlib import Path

import pytest

from src.launch.done import record_if_done
from src.report.record import Case, Leg, Record, write_record

CASE = Case(model="moflow", datamodule="zinc250k", trainer="1x1", precision="fp32", fix_hp="/", hardware="cpu",
            batch_size=8, batch_per="device")  # fmt: skip
LEG = Leg(first_step=1, last_step=8, began="2026-11-28", wall_s=1.0, status="done", samples=64, ranks=1)


@pytest.mark.parametrize(
    ("run", "step", "status", "is_done"),
    [("a", 8, "done", True), ("a", 6, "done", False), ("b", 8, "done", False), ("a", 8, "interrupted", False)],
)
def test_the_last_checkpoint_of_a_run_that_ended_well_is_done(
    tmp_path: Path, run: str, step: int, status: str, is_done: bool
) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    checkpoint = {"legs": {"run": run, "legs": []}, "global_step": step}
    assert record_if_done(checkpoint, path) is None
    record = Record(kind="train", case=CASE, status=status, unit="molecules", run="a", legs=[LEG])  # type: ignore[arg-type]
    write_record(record, tmp_path / "result.json")
    assert record_if_done(checkpoint, path) == (record if is_done else None)

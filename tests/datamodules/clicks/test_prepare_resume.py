"""An interrupted preparation resumes, and its result is the same as without the interruption."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from src.datamodules.clicks.prepare import Sizes, prepare_criteo
from src.errors import UserError
from tests.support import ROOT, criteo_rows

pytestmark = pytest.mark.slow

SMALL = Sizes(span_bytes=30_000, rows=120)
CALL = "from tests.datamodules.clicks.test_prepare_resume import SMALL, prepare; import sys; prepare(*sys.argv[1:])"


def prepare(raw: str, folder: str, frequency_limit: str = "2") -> None:
    prepare_criteo(Path(raw), Path(folder), frequency_limit=int(frequency_limit), workers=1, sizes=SMALL)


def killed_after(raw: Path, folder: Path, note: str) -> None:
    """Prepares in a process that is killed once a job whose name begins with `note` is done."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = folder.with_name(f".{folder.name}.partial") / "done"
    command = [sys.executable, "-c", CALL, str(raw), str(folder)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            while not any(done.glob(f"{note}*")):
                with suppress(subprocess.TimeoutExpired):
                    pytest.fail(f"it ended with {process.wait(0.002)} before a job {note} was done")
        finally:
            process.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, bytes]]:
    """A log, and the files that an uninterrupted preparation writes."""
    home = tmp_path_factory.mktemp("uninterrupted")
    raw = criteo_rows.write(home / "log.tsv", criteo_rows.lines(1500, 0))
    prepare(str(raw), str(home / "out"))
    return raw.read_bytes(), contents(home / "out")


@pytest.mark.parametrize("note", [pytest.param("deal", marks=pytest.mark.slow), "bucket"])
def test_a_killed_preparation_resumes_with_the_same_settings(
    tmp_path: Path, note: str, uninterrupted: tuple[bytes, dict[str, bytes]]
) -> None:
    log, expected = uninterrupted
    raw = tmp_path / "log.tsv"
    raw.write_bytes(log)
    killed_after(raw, tmp_path / "out", note)
    partial = tmp_path / ".out.partial"
    assert partial.exists() and not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"out.partial was begun with other files or settings"):
        prepare(str(raw), str(tmp_path / "out"), "3")
    # Finished jobs are not repeated: only the first pass reads the text, which is invalid now.
    if note == "bucket":
        raw.write_bytes(b"?" * raw.stat().st_size)
    prepare(str(raw), str(tmp_path / "out"))
    assert contents(tmp_path / "out") == expected
    assert not partial.exists()

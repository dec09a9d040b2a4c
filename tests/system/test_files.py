"""What several processes want at once one of them makes; the others wait for it, and make it if that one cannot."""

import errno
import fcntl
import hashlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest

from src.datamodules.clicks.prepare import prepare_criteo
from src.datamodules.clicks.synthetic_files import generate
from src.datamodules.download import from_package, from_url
from src.datamodules.prepared import atomic_folder, prepare
from src.errors import UserError
from src.models.distilbert.convert import convert
from src.system.files import (
    HOST,
    check_writable,
    locked,
    open_to_append,
    sole_maker,
    sole_run,
    try_lock,
    write_text,
    written_atomically,
)
from tests.support import ROOT
from tests.support.limits import limited_files

CONTENT = b"numbers"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ORIGIN = {"source": "numbers"}
WAIT_S = 20  # far longer than anything here takes


class Told(io.StringIO):
    """A stderr that calls `then` when something is said, and keeps what."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    def write(self, text: str) -> int:
        self.then()
        return super().write(text)


def lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def write(folder: Path) -> dict[str, Any]:
    (folder / "numbers.bin").write_bytes(CONTENT)
    return {}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("first_fails", [False, True])
def test_one_prepares_and_the_other_waits(first_fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, begun, waits = tmp_path / "data" / "prepared", threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "stderr", told := Told(waits.set))
    writers = []

    def first(folder: Path) -> dict[str, Any]:
        begun.set()
        assert waits.wait(WAIT_S)
        if first_fails:
            raise UserError("damaged")
        return second(folder)

    def second(folder: Path) -> dict[str, Any]:
        writers.append(folder)
        return write(folder)

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(prepare, prepared, ORIGIN, first)
        assert begun.wait(WAIT_S)
        other = threads.submit(prepare, prepared, ORIGIN, second)
        assert other.result() == prepared
    assert (str(one.exception()) if first_fails else one.result()) == ("damaged" if first_fails else prepared)
    assert len(writers) == 1 and (prepared / "numbers.bin").read_bytes() == CONTENT
    assert told.getvalue() == f"another process prepares {prepared}: this one waits for it\n"
    assert names(tmp_path / "data") == ["prepared"]


def test_the_next_one_prepares_if_the_first_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = tmp_path / "prepared"
    code = "import sys; from pathlib import Path; from src.system.files import sole_maker\n"
    code += "with sole_maker(Path(sys.argv[1])): print('inside', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(prepared)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"inside\n"
        monkeypatch.setattr(sys, "stderr", told := Told(process.kill))
        prepare(prepared, ORIGIN, write)
    assert told.getvalue() and names(tmp_path) == ["prepared"]


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A run that is killed amid a write holds the folder no longer, and its half-written file goes."""
    code = "import sys; from pathlib import Path; from src.system.files import sole_run, written_atomically\n"
    code += "with sole_run(Path('run')), written_atomically(Path('run/last.ckpt')) as part:\n"
    code += "    part.write_text('half'); print(part, flush=True); sys.stdin.read()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        part = tmp_path / process.stdout.readline().decode().strip()
        with pytest.raises(UserError, match="another run is writing there"), sole_run(tmp_path / "run"):
            pass
        assert part.read_text() == "half"
        process.kill()
    living = tmp_path / "run" / "best.ckpt"
    with written_atomically(living) as half:
        with sole_run(tmp_path / "run"):
            assert names(tmp_path / "run") == [half.name]
        half.write_text("whole")
    assert names(tmp_path / "run") == [living.name]


def test_a_write_removes_what_a_killed_one_of_the_same_file_left(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left, other = (tmp_path / f".{name}.{HOST}-{ended.pid}.tmp" for name in ("a.txt", "b.txt"))
    for path in (left, other):
        path.touch()
    write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == [other.name, "a.txt"]


def test_what_was_left_goes_although_its_process_can_still_be_seen(tmp_path: Path) -> None:
    """It is killed but nobody has waited for it, or its number is this process's, as in containers."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as zombie:
        left = [tmp_path / f".a.txt.{HOST}-{number}.tmp" for number in (zombie.pid, os.getpid())]
        for path in left:
            path.touch()
        zombie.kill()
        write_text(tmp_path / "a.txt", "whole")
        assert psutil.pid_exists(zombie.pid)
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_without_room_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    message = rf"^cannot write {folder} \(File too large\): choose another output folder$"
    with limited_files(0), pytest.raises(UserError, match=message), sole_run(folder):
        pass
    assert names(folder) == []


# What waits for a lock, given its target, and the target that somebody else makes meanwhile.


def make_folder(target: Path) -> None:
    target.mkdir()
    (target / "something").touch()


def make_file(target: Path) -> None:
    target.write_bytes(CONTENT)


def criteo(target: Path) -> Path:
    log = target.with_name("log.tsv")
    log.write_text("1\n")
    return prepare_criteo(log, target)


MAKERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], None], str | None]] = {
    "logs": (criteo, make_folder, "target/feature_spec.yaml"),
    "clicks": (lambda target: generate(target, train_rows=1, test_rows=1), make_folder, "target/feature_spec.yaml"),
    "encoder": (lambda target: convert("nowhere", target), make_folder, "exists already"),
    "download": (lambda target: from_url("http://nowhere.invalid/x", SHA256, target), make_file, None),
    "package": (lambda path: from_package("x", "1", {f"x/{path.name}": SHA256}, path.parent), make_file, None),
}


@pytest.mark.parametrize("case", MAKERS)
def test_who_has_waited_takes_what_is_there(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, make, refused = MAKERS[case]
    target, waits = tmp_path / "target", threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with locked(lock_of(target)), monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", Told(waits.set))
            future: Future[object] = threads.submit(maker, target)
            assert waits.wait(WAIT_S), "it did not wait"
            assert set(names(tmp_path)) <= {".target.lock", "log.tsv"}
            make(target)
        error = future.exception(WAIT_S)
    assert refused in str(error) if refused else error is None
    assert set(names(tmp_path)) <= {"target", "log.tsv"}


def test_what_is_there_needs_no_lock(tmp_path: Path) -> None:
    """As in a folder that cannot be written."""
    prepared, lock = tmp_path / "prepared", lock_of(tmp_path / "prepared")
    lock.mkdir()
    with pytest.raises(UserError, match=r"cannot write .*prepared \(Is a directory\)"):
        prepare(prepared, ORIGIN, write)
    lock.rmdir()
    prepare(prepared, ORIGIN, write)
    lock.mkdir()
    assert prepare(prepared, ORIGIN, write) == prepared


def test_a_lock_that_was_left_over_locks_nothing(tmp_path: Path) -> None:
    lock_of(tmp_path / "prepared").touch()
    prepare(tmp_path / "prepared", ORIGIN, write)
    assert names(tmp_path) == ["prepared"]


@pytest.mark.parametrize("origin", [ORIGIN, {"source": "letters"}])
def test_another_machine_that_shares_no_locks_may_be_first(origin: dict[str, str], tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"

    def late(folder: Path) -> dict[str, Any]:
        with atomic_folder(prepared) as part:
            (part / "meta.json").write_text(f'{{"source": "{origin["source"]}", "sha256": {{}}}}')
        return write(folder)

    if origin == ORIGIN:
        assert prepare(prepared, ORIGIN, late) == prepared
    else:
        with pytest.raises(UserError, match="was prepared from other files or settings"):
            prepare(prepared, ORIGIN, late)
    assert names(tmp_path) == ["prepared"] and names(prepared) == ["meta.json"]


def test_what_a_killed_preparation_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A living one's folder stays, and another machine's, of which nobody here can tell."""
    prepared = tmp_path / "prepared [1]"
    elsewhere = tmp_path / f".{prepared.name}.elsewhere.1.tmp"
    elsewhere.mkdir()
    script = "import sys; from pathlib import Path; from src.datamodules.prepared import atomic_folder\n"
    script += "with atomic_folder(Path(sys.argv[1])) as part: print(part, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(prepared)]
    with ExitStack() as stack:
        begun = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, text=True, stdin=PIPE, stdout=PIPE)) for _ in "ab"
        ]
        killed, living = (Path(process.stdout.readline().strip()) for process in begun)  # type: ignore[union-attr]
        begun[0].kill()
        begun[0].communicate(timeout=WAIT_S)
        assert killed.is_dir() and living.is_dir()
        prepare(prepared, ORIGIN, write)
        assert names(tmp_path) == sorted([living.name, elsewhere.name, prepared.name])
        begun[1].communicate(timeout=WAIT_S)
    assert names(tmp_path) == [elsewhere.name, prepared.name]


def test_a_file_system_without_locks_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with sole_maker(tmp_path / "prepared"):
        prepare(tmp_path / "prepared", ORIGIN, write)
    assert names(tmp_path) == ["prepared"]


def test_never_two_are_inside_though_the_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", told := Told(lambda: None))
    alone = threading.Lock()

    def enter(number: int) -> bool:
        with locked(tmp_path / "lock", f"{number} waits"):
            if not alone.acquire(blocking=False):
                return False
            other = try_lock(tmp_path / "lock")
            alone.release()
        if other is not None:
            os.close(other)
        return other is None

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(enter, range(800)))
    assert names(tmp_path) == []
    notices = [line for line in told.getvalue().splitlines() if line]
    assert len(notices) == len(set(notices)) > 0


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for name in (f".file.{HOST}-{os.getpid()}.tmp", f".probe.{HOST}-{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(kept)
    check_writable(tmp_path)
    write_text(tmp_path / "file", "new")
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_regular_file_is_appended_to(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    for text in ("one\n", "two\n"):
        with open(open_to_append(file), "a") as log:
            log.write(text)
    assert file.read_text() == "one\ntwo\n"
    other = tmp_path / "other"
    {"link": lambda: other.symlink_to(file), "pipe": lambda: os.mkfifo(other), "folder": other.mkdir}[kind]()
    with pytest.raises(
        UserError, match=f"^{other} is a link, a pipe or a folder, where a run writes a file: remove it"
    ):
        open_to_append(other)
    assert file.read_text() == "one\ntwo\n"

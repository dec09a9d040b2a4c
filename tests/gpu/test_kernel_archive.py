"""An archive of compiled kernels is what Triton finds on another machine, whose cache lies elsewhere."""

import json
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from src.gpu import kernel_archive
from src.gpu.kernel_archive import VERSIONS, main

triton = pytest.importorskip("triton")


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what moves to a machine with an empty cache of that name."""

    def move(name: str) -> Path:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / name))
        return tmp_path / name

    return move


def compile_kernel(key: str, content: bytes = b"\x7fELF code") -> None:
    """Writes by Triton's own cache what a compiled kernel leaves there."""
    cache = triton.runtime.cache.FileCacheManager(key)
    texts = {name: cache.put("{}", name, binary=False) for name in ("add.json", "add.ptx")}
    paths = {"add.cubin": cache.put(content, "add.cubin"), **texts}
    cache.put_group("add.json", paths)


def kernel(key: str) -> bytes | None:
    """Returns the code that Triton finds."""
    group = triton.runtime.cache.FileCacheManager(key).get_group("add.json") or {}
    return Path(group["add.cubin"]).read_bytes() if "add.cubin" in group else None


def test_triton_finds_kernels_of_another_machine(
    caches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, archive = caches("first"), tmp_path / "kernels.zip"
    compile_kernel("ONE")
    compile_kernel("TWO", b"\x7fELF other")
    (first / "reprise").mkdir()
    (first / "reprise" / "done").touch()
    (first / "ONE" / "tmp.pid_7").mkdir()  # of a process that was ended
    assert main(["pack", str(archive)]) == 0
    first.rename(tmp_path / "gone")
    second = caches("second/of/another")
    assert kernel("ONE") is None
    compile_kernel("TWO", b"\x7fELF other")
    assert main(["unpack", str(archive)]) == 0
    assert capsys.readouterr().out.endswith(f"{second}: 2 kernels of {archive}, 1 of them new\n")
    assert (kernel("ONE"), kernel("TWO")) == (b"\x7fELF code", b"\x7fELF other")
    assert (second / "reprise" / "done").exists()
    assert sorted(path.name for path in second.iterdir()) == ["ONE", "TWO", "reprise"]
    assert not (second / "ONE" / "add.ptx").exists()  # which does not run


def altered(archive: Path, name: str, content: bytes | str) -> None:
    with zipfile.ZipFile(archive) as members:
        contents = {member: members.read(member) for member in members.namelist()}
    with zipfile.ZipFile(archive, "w") as members:
        for member, old in {**contents, name: content}.items():
            members.writestr(member, content if member == name else old)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (VERSIONS, json.dumps({"triton": "2.0"}), "was made by triton 2.0, and here is triton "),
        (VERSIONS, "[]", "was made by other versions, and here is triton "),
        (VERSIONS, "{", "is not JSON"),
        ("../ONE/add.cubin", "", "other files than Triton's cache"),
        ("/ONE/add.cubin", "", "other files than Triton's cache"),
        ("ONE/more/add.cubin", "", "other files than Triton's cache"),
        ("ONE/__grp__add.json", "[]", "is damaged"),
        ("ONE/__grp__add.json", json.dumps({"child_paths": {"add.cubin": 3}}), "is damaged"),
    ],
)
def test_another_archive_is_refused_in_one_line_and_nothing_is_written(
    name: str, content: str, words: str, caches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caches("first")
    compile_kernel("ONE")
    archive = tmp_path / "kernels.zip"
    assert main(["pack", str(archive)]) == 0
    altered(archive, name, content)
    second = caches("second")
    assert main(["unpack", str(archive)]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1 and error.endswith("kernel_archive pack FILE\n")
    assert not second.exists()


def test_what_cannot_be_packed_is_said(
    caches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches("empty")
    assert main(["pack", str(tmp_path / "kernels.zip")]) == 2
    assert "has no compiled kernels: run python -m src.gpu.precompile first" in capsys.readouterr().err
    assert main(["unpack", str(tmp_path / "missing.zip")]) == 2
    assert "missing.zip" in capsys.readouterr().err
    assert list(tmp_path.glob("*.zip")) == []

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kernel_archive, "version", missing)
    assert main(["pack", str(tmp_path / "kernels.zip")]) == 2
    assert capsys.readouterr().err == "error: Triton is not installed here: install the project with its GPU extra\n"

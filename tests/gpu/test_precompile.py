"""Kernels of the lists are what a launch would compile, and are compiled side by side without a GPU."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from src.gpu import precompile
from src.gpu.precompile import LIST, compile_kernel, constant, done_file, entry_of, named, side_by_side
from src.system.interpreter import python, safe_path
from tests.support import ROOT

triton = pytest.importorskip("triton")
FOLDERS = sorted(file.parent for file in (ROOT / "src" / "models").glob(f"*/fast/{LIST}"))


def entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / LIST).read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.parent.name for folder in FOLDERS])
def test_a_list_names_kernels_and_arguments_as_they_are(folder: Path) -> None:
    for entry in entries(folder):
        kernel = named(entry["kernel"])
        assert entry["kernel"].startswith((f"src.models.{folder.parent.name}.fast.", "src.gpu."))
        assert entry["capability"] == 90
        assert list(entry["signature"]) == kernel.arg_names
        constants = {kernel.arg_names[key[0]] for key, _ in entry["constants"]}
        assert constants == {name for name, kind in entry["signature"].items() if kind == "constexpr"}


def small(name: str) -> dict[str, Any]:
    return next(entry for entry in entries(ROOT / "src/models/dlrm/fast") if entry["kernel"].endswith(f":{name}"))


def find_by_launch() -> None:
    """Compiles a kernel of a list, and again as its launch does: with all options as Triton has completed them."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile, make_backend

    entry, cache = small("number_rows"), Path(os.environ["TRITON_CACHE_DIR"])
    compiled = compile_kernel(entry)
    assert "cubin" in compiled.asm and compiled.metadata.target.arch == 90
    before = sorted(cache.rglob("*"))
    target = GPUTarget("cuda", 90, 32)
    options = make_backend(target).parse_options({**entry["options"], "debug": False, "instrumentation_mode": ""})
    constants = {tuple(key): constant(value) for key, value in entry["constants"]}
    attributes = {tuple(key): value for key, value in entry["attributes"]}
    source = ASTSource(named(entry["kernel"]), entry["signature"], constants, attributes)
    assert compile(source, target=target, options=options.__dict__).hash == compiled.hash
    assert sorted(cache.rglob("*")) == before


def compile_two() -> None:
    """Compiles a kernel in a process of its own, and one that cannot be."""
    entry = small("number_rows")
    assert side_by_side([partial(compile_kernel, entry)], processes=2)
    assert list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
    assert not side_by_side([partial(compile_kernel, entry | {"signature": {}})], processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("check", [find_by_launch, compile_two])
def test_a_kernel_of_a_list_is_compiled_as_its_launch_does(check: Callable[[], None], tmp_path: Path) -> None:
    """In a process without Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = python("-c", f"from tests.gpu.test_precompile import {check.__name__}; {check.__name__}()")
    changes = {"TRITON_CACHE_DIR": str(tmp_path), **safe_path()}
    subprocess.run(command, env=environment | changes, cwd=ROOT, check=True)


def test_without_a_gpu_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def forked() -> int:
        raise AssertionError("a process was begun")

    monkeypatch.setattr(precompile.os, "fork", forked)
    monkeypatch.setattr(precompile, "capability", lambda: 0)
    precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")
    monkeypatch.setattr(precompile, "capability", lambda: 80)  # of no list
    precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")
    monkeypatch.setattr(precompile, "capability", lambda: 90)
    precompile.begin("src.models.dlrm.task.DLRMTask", "off", "amp")
    precompile.begin("no.such.module", "auto", "amp")
    with pytest.raises(AssertionError, match="a process was begun"):
        precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")


def test_kernels_that_were_compiled_are_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "capability", lambda: 90)
    monkeypatch.setattr(precompile.os, "fork", lambda: pytest.fail("a process was begun"))
    file = done_file(ROOT / "src/models/dlrm/fast", "amp")
    assert file.is_relative_to(tmp_path)
    file.parent.mkdir()
    file.touch()
    precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")


def test_an_entry_is_made_of_what_triton_tells() -> None:
    entry = small("number_rows")
    data = {
        "signature": entry["signature"], "constant_keys": [key for key, _ in entry["constants"]],
        "constant_vals": [value for _, value in entry["constants"]],
        "attrs_keys": [key for key, _ in entry["attributes"]],
        "attrs_vals": [value for _, value in entry["attributes"]],
        "options": {**entry["options"], "arch": "sm90", "extern_libs": [["libdevice", "somewhere"]], "maxnreg": None},
    }  # fmt: skip

    class Info:
        module, name = entry["kernel"].split(":")

    assert entry_of(Info, json.dumps(data), 90) | {"precisions": entry["precisions"]} == entry

"""Kernels of the lists are what a launch would compile, and are compiled side by side without a GPU."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from src.gpu import precompile
from src.gpu.precompile import (
    LIST,
    TYPES,
    compile_kernel,
    constant,
    done_file,
    entry_of,
    named,
    side_by_side,
)  # fmt: skip
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
        assert set(entry["precisions"]) <= set(precompile.PRECISIONS)
        assert {*entry["arguments"], *entry["constants"]} == set(kernel.arg_names)


def small(model: str, name: str) -> dict[str, Any]:
    found = (entry for entry in entries(ROOT / "src/models" / model / "fast") if entry["kernel"].endswith(f":{name}"))
    return next(found)


def find_by_launch() -> None:
    """Compiles kernels of lists, then again with tensors as a launch does; what Triton tells of it is the entry."""
    from triton import knobs

    cache, told = Path(os.environ["TRITON_CACHE_DIR"]), []
    for model, name in [
        ("dlrm", "number_rows"),
        ("se3_transformer", "contract"),
        ("distilbert", "add_norm"),
        ("moflow", "advance"),
        ("distilbert", "update"),
    ]:
        entry = small(model, name)
        compiled, kernel = compile_kernel(entry), named(entry["kernel"])
        assert "cubin" in compiled.asm and compiled.metadata.target.arch == 90
        before = sorted(cache.rglob("*"))
        arguments = {name: real(kind) for name, kind in entry["arguments"].items()}
        constants = {name: constant(value) for name, value in entry["constants"].items()}
        kernel.device_caches.clear()
        knobs.runtime.jit_post_compile_hook = lambda *, compile, **_: told.append(compile["specialization_data"])  # type: ignore
        again = kernel.warmup(grid=(1,), **arguments, **constants, num_warps=entry["options"]["num_warps"],
                              num_stages=entry["options"]["num_stages"])  # fmt: skip
        knobs.runtime.jit_post_compile_hook = None  # type: ignore
        assert again.hash == compiled.hash
        assert sorted(cache.rglob("*")) == before
        wanted = {key: entry[key] for key in ("kernel", "capability", "arguments", "constants", "options")}
        assert json.loads(json.dumps(entry_of(Info(entry["kernel"]), told[-1], 90))) == wanted


class Info:
    def __init__(self, kernel: str) -> None:
        self.module, self.name = kernel.split(":")


def real(kind: Any) -> Any:
    """Returns a tensor with the type and the alignment that an entry says, or the number."""
    if not isinstance(kind, str):
        return kind
    name, _, unaligned = kind.removeprefix("*").partition(" ")
    dtype = getattr(torch, TYPES[name])
    return torch.zeros(64, dtype=dtype)[8 // dtype.itemsize :] if unaligned else torch.zeros(64, dtype=dtype)


def compile_two() -> None:
    """Compiles a kernel in a process of its own, and one that cannot be."""
    entry = small("dlrm", "number_rows")
    assert side_by_side([partial(compile_kernel, entry)], processes=2)
    assert list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
    assert not side_by_side([partial(compile_kernel, entry | {"arguments": {}})], processes=2)


def read_by_pointers_of_loops() -> None:
    """Compiles depthwise kernels, whose loads and stores of rows must not cost a search each (see strips_triton)."""
    for module in ("depthwise_triton:forward", "depthwise_backward_triton:backward"):
        mobilenet = entries(ROOT / "src/models/mobilenet_v1/fast")
        ttir = compile_kernel(next(entry for entry in mobilenet if entry["kernel"].endswith(module))).asm["ttir"]
        computed = set(re.findall(r"^ *(%\w+)(?::\d+)? = ", ttir, re.M))
        rows = re.findall(r"tt\.(?:load|store) (%\w+)\b.* tensor<\d+x\d+x!tt\.ptr", ttir)
        assert len(rows) > 40 and not computed.intersection(rows), (module, computed.intersection(rows))


@pytest.mark.slow
@pytest.mark.parametrize("check", [find_by_launch, compile_two, read_by_pointers_of_loops])
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
    precompile.wait()  # nothing was begun


def test_a_run_waits_for_its_kernels_and_not_where_no_process_could_be_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "capability", lambda: 90)

    def failing() -> int:
        raise OSError("Resource temporarily unavailable")

    with monkeypatch.context() as full:
        full.setattr(precompile.os, "fork", failing)
        precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")
    precompile.wait()  # returns at once
    reader, writer = os.pipe()
    monkeypatch.setattr(precompile, "_running", reader)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(precompile.wait)
        assert not waiting.done()
        os.close(writer)
        waiting.result(timeout=60)


@pytest.mark.parametrize("is_plain", [False, True])
def test_triton_s_files_are_hashed_before_the_first_step_needs_them(
    is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_PLAIN_START", "1" if is_plain else "")
    cache = triton.runtime.cache
    cache.triton_key.cache_clear()
    monkeypatch.setattr(precompile, "DEVICE", str(tmp_path / "none"))
    precompile.hash_triton_ahead()
    precompile.wait()
    assert cache.triton_key.cache_info().currsize == 0  # no GPU
    monkeypatch.setattr(precompile, "DEVICE", str(tmp_path))
    precompile.hash_triton_ahead()
    precompile.wait()
    assert cache.triton_key.cache_info().currsize == (not is_plain)


def test_kernels_that_were_compiled_are_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompile, "capability", lambda: 90)
    monkeypatch.setattr(precompile.os, "fork", lambda: pytest.fail("a process was begun"))
    file = done_file(ROOT / "src/models/dlrm/fast", 90, "amp")
    assert file.is_relative_to(tmp_path)
    file.parent.mkdir()
    file.touch()
    precompile.begin("src.models.dlrm.task.DLRMTask", "auto", "amp")


def test_kernels_of_an_option_are_compiled_with_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(precompile, "capability", lambda: 90)
    monkeypatch.setattr(precompile, "fast_folder", lambda _: tmp_path)
    common = {"capability": 90, "precisions": ["amp"]}
    names = {"both": None, "exact": {"logdet": "exact"}, "published": {"logdet": "published"}}
    listing = [common | {"kernel": name} | ({"when": when} if when else {}) for name, when in names.items()]
    (tmp_path / LIST).write_text(json.dumps(listing))

    def pending(**options: str) -> dict[Path, list[str]]:
        groups = precompile.pending("task", "auto", "amp", options.get)
        return {done: [entry["kernel"] for entry in entries] for done, entries in groups.items()}

    exact = pending(logdet="exact")
    assert list(exact.values()) == [["both"], ["exact"]]
    assert list(pending().values()) == [["both"]]
    for done in exact:
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    assert pending(logdet="exact") == {}
    assert list(pending(logdet="published").values()) == [["published"]]  # compiled apart


def test_whether_kernels_are_to_be_compiled_is_known_before_torch_is_imported() -> None:
    """So that CUDA begins beside the imports of a run that forks no more."""
    code = """
import sys
from src.gpu import precompile
precompile.capability = lambda: 90
assert precompile.pending("src.models.dlrm.task.DLRMTask", "auto", "amp")
assert not {"torch", "triton", "src.models.dlrm"} & set(sys.modules)
for task, kernels in ("src.models.dlrm.task.DLRMTask", "off"), ("Task", "auto"), ("torch.nn.Module", "auto"):
    assert not precompile.pending(task, kernels, "amp")
from triton import knobs
assert precompile.cache_folder() == __import__("pathlib").Path(knobs.cache.dir)
"""
    for variables in {"TRITON_CACHE_DIR": "/none/cache"}, {"TRITON_HOME": "/none/home"}, dict[str, str]():
        others = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        subprocess.run(python("-c", code), env=others | variables | safe_path(), cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_command_compiles_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    first, second = tmp_path / "first", tmp_path / "second"

    def run(cache: Path, *words: str) -> str:
        variables = environment | {"TRITON_CACHE_DIR": str(cache), **safe_path()}
        command = python("-m", *words)
        return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    output = run(first, "src.gpu.precompile", "dlrm", "--capability", "90")
    assert output.startswith("dlrm amp: 16 kernels, ") and "dlrm tf32: 13 kernels, " in output
    assert len({file.parent for file in first.rglob("*.cubin")}) == 27  # two are of both precisions
    assert done_file_in(first, "amp") and done_file_in(first, "tf32")
    run(first, "src.gpu.kernel_archive", "pack", str(tmp_path / "kernels.zip"))
    first.rename(tmp_path / "of another machine")
    run(second, "src.gpu.kernel_archive", "unpack", str(tmp_path / "kernels.zip"))
    before = {file: file.stat().st_mtime_ns for file in second.rglob("*") if file.is_file()}
    run(second, "src.gpu.precompile", "dlrm", "--capability", "90")
    after = {file: file.stat().st_mtime_ns for file in second.rglob("*") if file.is_file()}
    assert {file for file in after if before.get(file) != after[file]} <= {*second.glob("reprise/*")}  # none compiled


def done_file_in(folder: Path, precision: str) -> bool:
    return bool(list(folder.glob(f"reprise/*_90_{precision}")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "there is no NVIDIA GPU here; give --capability=90"), (["resnet", "--capability=90"], "resnet has no list")],
)
def test_the_command_says_a_mistake_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompile, "capability", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        precompile.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]

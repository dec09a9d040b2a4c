"""The scripts of the result pages, and `make test-gpu`, run in the environment of the project."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from src.report.record import Record, read_record, write_record
from tests.support import ROOT

ARGUMENTS = {
    "all.sh": (),
    "auto.sh": ("moflow",),
    "beside.sh": ("moflow",),
    "comparisons.sh": (),
    "distilbert.sh": ("full",),
    "dlrm.sh": ("speed",),
    "mobilenet_v1.sh": ("speed",),
    "moflow.sh": ("speed",),
    "scaling.sh": ("moflow",),
    "se3_transformer.sh": ("speed",),
    "starts.sh": (),
}


def test_every_script_is_tested() -> None:
    there = {path.name for path in (ROOT / "docs" / "results").glob("*.sh")}
    assert set(ARGUMENTS) == there - {"rows.sh"}  # the others source it


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_script_runs_the_projects_python_or_the_one_that_is_given(tmp_path: Path, script: str) -> None:
    """The programs here write down that they were called; those of the system are not to be."""
    folder = tmp_path / "bin"
    program(folder / "python3", f"echo system >> {tmp_path}/called")
    program(folder / "python", f"echo system >> {tmp_path}/called")
    program(folder / "nvidia-smi", "echo 'GPU 0'")
    program(tmp_path / ".venv" / "bin" / "python", f"echo project >> {tmp_path}/called")
    python = program(tmp_path / "given", f"echo given >> {tmp_path}/called")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", str(ROOT / "docs" / "results" / script), "out", *ARGUMENTS[script]]
    for variables, expected in (({}, "project"), ({"PYTHON": str(python)}, "given")):
        subprocess.run(command, cwd=tmp_path, env=environment | variables, check=True)
        assert set((tmp_path / "called").read_text().split()) == {expected}
        (tmp_path / "called").unlink()


def test_rows_that_are_done_are_left_out_and_those_that_failed_are_not(tmp_path: Path, trained: Record) -> None:
    python = program(tmp_path / "given", f'echo "$@" >> {tmp_path}/called')
    for name, status in (("train_512_amp", "done"), ("train_512_tf32", "failed")):
        (tmp_path / "out" / name).mkdir(parents=True)
        write_record(replace(trained, status=status), tmp_path / "out" / name / "result.json")
    command = ["bash", str(ROOT / "docs" / "results" / "moflow.sh"), "out", "speed"]
    variables = {**os.environ, "PYTHON": str(python), "ROWS": "train_512_@(amp|tf32|bf16)"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "train_512_amp is done: out/train_512_amp\n"
    called = re.findall(r"output_dir=(\S+)", (tmp_path / "called").read_text())
    assert called == ["out/train_512_tf32", "out/train_512_bf16"]


def test_all_rows_copy_complete_records_without_paths_of_the_machine(tmp_path: Path, trained: Record) -> None:
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results", ignore=shutil.ignore_patterns("*.json"))
    done = tmp_path / "out" / "moflow" / "train_512_amp"
    failed = done.with_name("train_512_tf32")
    for folder, status in ((done, "done"), (failed, "failed")):
        folder.mkdir(parents=True)
        write_record(replace(trained, status=status, config={"output_dir": str(folder)}), folder / "result.json")
    (done.parent / "optimise_quality_1_qed").mkdir()
    (done.parent / "optimise_quality_1_qed" / "molecules_optimised.png").write_text("a picture")
    (done.parent / "temperatures_published_1").mkdir()
    (done.parent / "temperatures_published_1" / "molecules_properties.png").write_text("another")
    write_record(trained, tmp_path / "docs" / "results" / "records" / "moflow_weak_512_amp_x1.json")
    python = program(tmp_path / "given", f'echo "$@" >> {tmp_path}/called')
    variables = {**os.environ, "PYTHON": str(python)}
    subprocess.run(["bash", "docs/results/all.sh", "out"], cwd=tmp_path, env=variables, capture_output=True, check=True)
    assert (tmp_path / "docs" / "results" / "moflow_optimised_qed.png").read_text() == "a picture"
    assert (tmp_path / "docs" / "results" / "moflow_published_1_properties.png").read_text() == "another"
    made = [line for line in (tmp_path / "called").read_text().splitlines() if line.startswith("report.py")]
    assert made[0].startswith("report.py scaling docs/results/records/moflow_weak_512_amp_x1.json --picture ")
    assert made[-1] == "report.py --docs" and any(
        "docs/results/comparisons/moflow_precision.html" in line for line in made
    )
    (tmp_path / "docs" / "results" / "records" / "moflow_weak_512_amp_x1.json").unlink()
    (file,) = (tmp_path / "docs" / "results" / "records").glob("*.json")
    assert file.name == "moflow_train_512_amp.json"
    assert read_record(file).config == {"output_dir": "out/moflow/train_512_amp"}


def test_all_rows_are_of_one_commit(tmp_path: Path, trained: Record) -> None:
    for name, commit in (("train_512_amp", "a"), ("train_512_tf32", "b")):
        environment = trained.environment | {"git": {"commit": commit * 40, "dirty": False}}
        (tmp_path / "out" / "moflow" / name).mkdir(parents=True)
        write_record(replace(trained, environment=environment), tmp_path / "out" / "moflow" / name / "result.json")
    command = ["bash", str(ROOT / "docs" / "results" / "all.sh"), "out"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHON": "false"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "out has records of commits aaaaaaa bbbbbbb: measure in a new folder\n"


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_script_without_arguments_says_its_usage(tmp_path: Path, script: str) -> None:
    command = ["bash", str(ROOT / "docs" / "results" / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: docs/results/{script} OUT ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "python"), [([], ".venv/bin/python"), (["GPU_PYTHON=python3"], "python3")])
def test_the_tests_on_a_gpu_run_the_projects_python_or_the_one_that_is_given(arguments: list[str], python: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-n", "test-gpu", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-2:] == [f"{python} -m pytest -m gpu", f"{python} -m benchmarks.wgmma"]
    assert python == ".venv/bin/python" or not any(".venv" in line for line in lines)  # nor is that set up then


@pytest.mark.parametrize(
    ("gpus", "arguments", "torch", "fbgemm"),
    [("", [], "2.13.0", None), ("GPU 0: NVIDIA H200", [], "2.11.0", "1.6.0"), ("GPU 0", ["GPU="], "2.13.0", None)],
)
def test_the_environment_is_that_of_the_machine(
    tmp_path: Path, gpus: str, arguments: list[str], torch: str, fbgemm: str | None
) -> None:
    """With a GPU that nvidia-smi lists: torch and FBGEMM's CUDA build as measured; without: as CI has it."""
    program(tmp_path / "nvidia-smi", f"echo '{gpus}'")
    variables = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    variables["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    command = ["make", "-n", "-W", "pyproject.toml", "env", *arguments]
    lines = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert any(line.endswith(f" torch=={torch}") for line in lines)
    builds = [line.rpartition(" ")[2] for line in lines if "fbgemm" in line]
    assert builds == ([] if fbgemm is None else ["fbgemm-gpu-cpu", f"fbgemm-gpu=={fbgemm}"])

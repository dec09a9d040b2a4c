"""What the scripts of the result pages run are commands that the configs take: a typo is not to cost time on a GPU."""

import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from benchmarks.beside.cases import CASES
from src.config.values import check_training, check_values
from src.datamodules.graphs.qm9 import COLUMNS
from tests.support import ROOT
from tests.support.composing import composed

SEPARATOR = "\x1f"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The words of every training and prediction that all.sh runs on a machine with eight GPUs."""
    folder = tmp_path_factory.mktemp("scripts")
    log, python, smi = folder / "log", folder / "python", folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    python.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\037" "$word"; done >> {log}\necho >> {log}\n')
    smi.write_text("#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo GPU $i; done\n")
    for program in (python, smi):
        program.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(python), "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    script = ROOT / "docs" / "results" / "all.sh"
    subprocess.run(["bash", str(script), "out"], cwd=folder, env=variables, check=True)
    calls = [line.removesuffix(SEPARATOR).split(SEPARATOR) for line in log.read_text().splitlines()]
    return [words for words in calls if words[0] != "report.py"]


def jobs(words: list[str]) -> Iterator[list[str]]:
    """Yields the overrides of a command: of a sweep over batch sizes the first and the last job's."""
    overrides = [word for word in words[1:] if word != "-m" and not word.startswith("hydra")]
    swept = [word for word in overrides if "-m" in words and word.startswith("batch_size=")]
    rest = [word for word in overrides if word not in swept]
    values = swept[0].partition("=")[2].split(",") if swept else [""]
    for value in dict.fromkeys((values[0], values[-1])):
        yield [*rest, *([f"batch_size={value}"] if value else [])]


@pytest.mark.slow
def test_all_rows_are_commands_that_compose(commands: list[list[str]]) -> None:
    for words in commands:
        assert words[0] in ("train.py", "predict.py"), words
        for overrides in jobs(words):
            config = composed(Path(words[0]).stem, *overrides)
            assert config.datamodule.get("task", "homo") in COLUMNS  # of QM9; others have none
            if words[0] == "train.py":
                check_training(config)
            else:
                check_values("model.predict.", config.model.predict)
    assert len(commands) > 150


def test_comparisons_are_cases_with_peers_and_leave_out_two(tmp_path: Path) -> None:
    """The script names both; a case that has a ratio is left out, one without is measured again."""
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\037" "$word"; done >> {log}\necho >> {log}\n')
    python.chmod(0o755)
    for name, ratio in (("train_512_amp", '{"mean": 3.5}'), ("train_512_tf32", "null")):
        (tmp_path / "out" / "moflow" / name).mkdir(parents=True)
        (tmp_path / "out" / "moflow" / name / "beside.json").write_text(f'{{"ours_over_it": {ratio}}}')
    script = ["bash", str(ROOT / "docs" / "results" / "beside.sh"), "out"]
    for model in CASES:
        subprocess.run([*script, model], cwd=tmp_path, env={**os.environ, "PYTHON": str(python)}, check=True)
    lines = [line.split(SEPARATOR) for line in log.read_text().splitlines()]
    run = {(model, case): peers for _, _, model, case, _, peers, *_ in lines}
    every = {(model, case.name): case for model, cases in CASES.items() for case in cases}
    for of, peers in run.items():
        assert any(fnmatch(peer.name, peers) for peer in every[of].peers), of
    absent = {("moflow", "train_3584_tf32"), ("se3_transformer", "train_1600_tf32"), ("moflow", "train_512_amp")}
    assert set(every) - set(run) == absent


def test_every_row_has_a_folder_of_its_own(commands: list[list[str]]) -> None:
    names = ("output_dir=", "hydra.sweep.subdir=")
    folders = [word for words in commands for word in words if word.startswith(names)]
    assert len(folders) == len(set(folders)) == len(commands)

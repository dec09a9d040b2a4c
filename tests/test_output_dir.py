"""`output_dir=FOLDER` has all files of a run, Hydra's too; a command that is refused changes none of an earlier run."""

import subprocess
from pathlib import Path

import pytest

from src.system.files import sole_run
from tests.support import warm
from tests.support.refusing import Command, EntryPoint
from tests.support.tiny_run import tiny_overrides

pytestmark = pytest.mark.slow

SHORT = ("fit.max_steps=1", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", "pictures=false")
MISTAKES = ["hp.lr=-1", "model.task.network.norm_batch=3"]  # seen before and after the run has its folder


def run_train(home: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return warm.run("train.py", *tiny_overrides(home), *overrides)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run that has ended in the folder `a/run`."""
    home = tmp_path_factory.mktemp("home")
    ended = run_train(home, *SHORT, f"output_dir={home / 'a' / 'run'}")
    assert ended.returncode == 0, ended.stderr
    return home


@pytest.mark.parametrize("trainer", ["1x1", "1x2"])
def test_a_training_has_hydras_files_in_its_folder_and_none_elsewhere(trainer: str, home: Path) -> None:
    folder = home / "a" / "run"
    if trainer != "1x1":
        folder = home / trainer
        ended = run_train(home, *SHORT, f"output_dir={folder}", f"trainer={trainer}")
        assert ended.returncode == 0, ended.stderr
    assert {".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml", "train.log", "result.json"} <= {
        *contents(folder)
    }
    assert not (home / "outputs").exists()


def test_a_prediction_has_hydras_files_in_its_folder_and_none_elsewhere(home: Path, command: Command) -> None:
    checkpoint, folder = home / "a" / "run" / "checkpoints" / "last.ckpt", home / "predicted"
    options = "model=moflow", "hardware=cpu", "num_samples=4", "batch_size=4", f"output_root={home / 'outputs'}"
    ended = command("predict.py", *options, f"ckpt_path={checkpoint}", f"output_dir={folder}")
    assert ended.code == 0, ended.err
    assert {".hydra/config.yaml", "predict.log", "result.json"} <= {*contents(folder)}
    assert not (home / "outputs").exists()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_changes_no_file_of_the_run_that_is_there(mistake: str, home: Path, refused: EntryPoint) -> None:
    folder = home / "a" / "run"
    before = contents(folder)
    refused("train.py", *tiny_overrides(home), f"output_dir={folder}", mistake)
    assert contents(folder) == before
    assert not (home / "outputs").exists()


def test_a_mistake_that_ranks_see_changes_no_file_of_the_run_that_is_there(home: Path) -> None:
    folder = home / "a" / "run"
    before = contents(folder)
    ended = run_train(home, f"output_dir={folder}", MISTAKES[-1], "trainer=1x2")
    assert ended.returncode == 2 and ended.stderr.count("error: ") == 1, ended.stderr
    assert contents(folder) == before
    assert not (home / "outputs").exists()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_leaves_nothing(mistake: str, home: Path, tmp_path: Path, refused: EntryPoint) -> None:
    """Nor in a folder that is not a run's, where it makes none of its own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").touch()
    for folder in (tmp_path / "new", tmp_path / "own"):
        refused("train.py", *tiny_overrides(home), f"output_dir={folder}", mistake)
    assert {*tmp_path.rglob("*")} == {tmp_path / "own", tmp_path / "own" / "thesis.txt"}
    assert not (home / "outputs").exists()


def test_a_run_in_the_folder_of_one_that_lives_is_refused_and_changes_nothing(home: Path, refused: EntryPoint) -> None:
    folder = home / "a" / "run"
    before = contents(folder)
    with sole_run(folder):
        assert "another run is writing there" in refused("train.py", *tiny_overrides(home), f"output_dir={folder}")
    assert contents(folder) == before


@pytest.mark.parametrize("value", ["", "${run_dir:}", "${hydra:runtime.output_dir}/in"])
def test_an_output_dir_that_needs_hydras_folder_lies_in_that(
    value: str, home: Path, tmp_path: Path, command: Command
) -> None:
    options = *tiny_overrides(home), *SHORT, f"output_root={tmp_path}", f"output_dir={value}"
    ended = command("train.py", *options)
    assert ended.code == (0 if value else 2), ended.err
    assert [path.name for path in tmp_path.iterdir()] == (["moflow"] if value else [])

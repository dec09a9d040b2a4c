"""What decides when a run ends is in its checkpoint: a run that is done stays as it is, and a killed one ends there."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from src.errors import UserError
from src.report.record import read_record
from src.run import train
from tests.support import warm
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, train_with
from tests.support.same import assert_same_bits, lasting_state
from tests.support.started import provoked, run
from tests.support.tiny_mobilenet import tiny_mobilenet, tiny_overrides

pytestmark = pytest.mark.slow

BY_STEPS = "fit.eval_every_n_epochs=null", "fit.eval_every_n_steps=3", "fit.checkpoint_every_n_steps=3"
# With one class every image is right from the first evaluation on, however a processor rounds.
PLATEAU = "fit.max_epochs=9", "fit.stop_after_plateau=2", "datamodule.num_classes=1"
TARGET = "fit.max_epochs=9", "fit.stop_at_target=true", "model.task.target=0.125"
ENDINGS = {
    "epochs": ("fit.max_epochs=1",),
    "steps": ("fit.max_steps=5",),
    "plateau": PLATEAU,
    "plateau within an epoch": (*PLATEAU, *BY_STEPS),
    "target": TARGET,
    "target within an epoch": (*TARGET, *BY_STEPS),
    "epochs and plateau": (*PLATEAU, "fit.max_epochs=3"),
    "time": ("datamodule.steps_per_epoch=100000", "fit.max_time_s=0.5"),
}


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Returns the time of the last change and the content of each file of a run."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def outcome(folder: Path) -> dict[str, Any]:
    """Returns what must be the same after a run, however it was ended on the way."""
    record = read_record(folder)
    rows = [{key: row[key] for key in ("step", "samples", "top1", "loss") if key in row} for row in record.history]
    figures = {"status": record.status, "samples": record.samples, "metric": record.final_metric, "rows": rows}
    return figures | {"state": lasting_state(folder / "checkpoints" / "last.ckpt")}


TO_GO_ON = {
    "epochs": "fit.max_epochs above 1",
    "steps": "fit.max_steps above 5",
    "plateau within an epoch": "fit.stop_after_plateau above 2, or null",
    "target within an epoch": "fit.stop_at_target=false",
    "epochs and plateau": "fit.max_epochs above 3 and fit.stop_after_plateau above 2, or null",
    "time": "fit.max_time_s above 0.5",
}


@pytest.mark.parametrize("ending", TO_GO_ON)
def test_a_run_that_is_done_says_so_and_stays_as_it_is(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was killed before its record ends as it was to."""
    overrides = (*ENDINGS[ending], "logger=csv")
    first = train(tiny_mobilenet(tmp_path, *overrides))
    before, folder = state_of(tmp_path / "run"), tmp_path / "run"
    capsys.readouterr()
    again = train(tiny_mobilenet(tmp_path, *overrides, "resume=true"))
    assert state_of(folder) == before
    assert again.run == first.run and again.samples == first.samples and again.p_whole == first.p_whole
    line = capsys.readouterr().out
    assert first.legs is not None
    done = f"the run in {folder} is done, after {first.legs[-1].last_step} steps, and stays as it is; to go on, give "
    assert line.startswith(f"{done}{TO_GO_ON[ending]}") and line.count("\n") == 1
    if ending != "time":
        expected = outcome(folder)
        (folder / "result.json").unlink()  # as a kill before its last write leaves the folder
        train(tiny_mobilenet(tmp_path, *overrides, "resume=true"))
        assert_same_bits(outcome(folder), expected)


TWICE = ("fit.max_epochs=2", *BY_STEPS)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of two epochs leaves that nothing ends on the way."""
    home = tmp_path_factory.mktemp("straight")
    train(tiny_mobilenet(home, *TWICE))
    return outcome(home / "run")


@pytest.mark.parametrize("step", [7, 10])
def test_an_evaluation_within_an_epoch_is_in_the_checkpoint_that_follows_it(
    step: int, straight: dict[str, Any], tmp_path: Path
) -> None:
    """Saved before it, a checkpoint would be gone on from without the evaluation and what that decides."""
    with pytest.raises(ArithmeticError):
        train(tiny_mobilenet(tmp_path, *TWICE, provoked(what="fails", step=step)))
    train(tiny_mobilenet(tmp_path, *TWICE, "resume=true"))
    assert_same_bits(outcome(tmp_path / "run"), straight)


@pytest.mark.parametrize(("what", "step"), [("is_terminated", 6), ("is_interrupted", 5), ("is_interrupted", 7)])
def test_a_signal_neither_loses_nor_adds_an_evaluation(
    what: str, step: int, straight: dict[str, Any], tmp_path: Path
) -> None:
    """The run ends after the step after it: 6 has an evaluation; 8 ends an epoch, where Lightning would make one."""
    with pytest.raises(SystemExit):
        train(tiny_mobilenet(tmp_path, *TWICE, provoked(what=what, step=step)))
    train(tiny_mobilenet(tmp_path, *TWICE, "resume=true"))
    assert_same_bits(outcome(tmp_path / "run"), straight)


@pytest.mark.parametrize(
    ("ending", "more", "steps"),
    [
        ("epochs", "fit.max_epochs=2", 16),
        ("steps", "fit.max_steps=7", 7),
        ("target", "fit.stop_at_target=false", 16),
        ("plateau", "fit.stop_after_plateau=3", None),
    ],
)
def test_a_run_that_is_done_goes_on_where_more_is_asked_for(
    ending: str, more: str, steps: int | None, tmp_path: Path
) -> None:
    overrides = (*ENDINGS[ending], *(["fit.max_epochs=2"] if ending == "target" else []))
    first = train(tiny_mobilenet(tmp_path, *overrides))
    again = train(tiny_mobilenet(tmp_path, *overrides, more, "resume=true"))
    assert again.legs is not None and first.legs is not None
    assert again.legs[-1].last_step == (steps or first.legs[-1].last_step + 8)
    assert again.samples == 8 * again.legs[-1].last_step


@pytest.mark.parametrize(
    ("override", "limit"), [("fit.max_epochs=3", "fit.max_epochs=2"), ("fit.max_steps=5", "fit.max_steps=4")]
)
def test_a_limit_below_what_is_done_is_refused(override: str, limit: str, tmp_path: Path) -> None:
    train(tiny_mobilenet(tmp_path, override))
    before, last = state_of(tmp_path / "run"), tmp_path / "run" / "checkpoints" / "last.ckpt"
    done = override.split("=")[1]
    with pytest.raises(UserError) as raised:
        train(tiny_mobilenet(tmp_path, override, limit, "resume=true"))
    assert str(raised.value) == f"{last} has trained for {done}, beyond {limit}; give {override} or more"
    assert state_of(tmp_path / "run") == before


def test_no_new_folder_is_left_of_a_run_that_is_done(tmp_path: Path) -> None:
    root, done = tmp_path / "outputs", tmp_path / "outputs" / "mobilenet_v1" / "done"
    train(tiny_mobilenet(tmp_path, f"output_dir={done}"))
    overrides = [override for override in tiny_overrides(tmp_path) if not override.startswith("output_dir=")]
    ended = warm.run("train.py", *overrides, "resume=true")
    assert ended.returncode == 0 and f"the run in {done} is done, after 8 steps" in ended.stdout, ended.stderr
    assert list(root.glob("*/*")) == [done]


def test_two_ranks(tmp_path: Path) -> None:
    """One that is killed before its record gets it; a run that is done stays as it is; a larger limit goes on."""
    overrides, folder = (*tiny_overrides(tmp_path), *PLATEAU, *BY_STEPS), tmp_path / "run"
    with closing(Ranks(2, tmp_path)) as ranks:
        ranks(as_one_of_many, train_with, *overrides)
        expected = outcome(folder)
        (folder / "result.json").unlink()
        ranks(as_one_of_many, train_with, *overrides, "resume=true")
        assert_same_bits(outcome(folder), expected)
        before = state_of(folder)
        code, out, err = run(tmp_path, "trainer=1x2", *PLATEAU, *BY_STEPS, "resume=true")
        assert code == 0 and state_of(folder) == before, err
        assert out.count("\n") == 1 and f"the run in {folder} is done, after " in out, out
        more = "resume=true", "fit.stop_after_plateau=null", "fit.max_epochs=3"
        ranks(as_one_of_many, train_with, *overrides, *more)
    assert read_record(folder).history[-1]["step"] == 24

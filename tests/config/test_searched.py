"""A search that goes on takes its other overrides from its folder."""

from pathlib import Path

import pytest

from src.config.searched import as_searched
from src.errors import UserError

HYDRAS = ("hydra/sweeper=search", "hydra.sweeper.maximize=p_train", "hydra.sweeper.trials=2", "hydra.sweep.dir=there")
TASK = ("experiment=dlrm_quick", "hp.lr=tag(log,interval(1e-3,1e-1))", "+fix_hp=max_bs", "sweep.parallel=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A search's folder, as far as is read."""
    lines = ["hydra:", "  overrides:"]
    for name, overrides in (("hydra", (*HYDRAS, "hydra.mode=MULTIRUN", "hydra.job.env_set.A=b")), ("task", TASK)):
        lines += [f"    {name}:", *(f"    - {text}" for text in overrides)]
    (tmp_path / "multirun.yaml").write_text("\n".join(lines))
    (tmp_path / "search.db").touch()
    return tmp_path


def test_keys_that_are_not_given_are_those_of_before(folder: Path) -> None:
    given = ["-m", f"sweep.resume={folder}", "hydra.sweeper.trials=9"]
    assert as_searched(given) == [*HYDRAS[:2], *TASK, *given]


def test_keys_that_are_given_come_first(folder: Path) -> None:
    given = [f"sweep.resume='{folder}'", "hp.lr=interval(1e-2,1)", "~fix_hp", "experiment=moflow"]
    assert as_searched(given) == [*HYDRAS[:3], "sweep.parallel=2", *given]


@pytest.mark.parametrize("text", ["hydra: 3", "a: [", "hydra: {overrides: {hydra: []}}"])
def test_a_broken_file_is_named(text: str, folder: Path) -> None:
    (folder / "multirun.yaml").write_text(text)
    with pytest.raises(UserError, match=r"multirun.yaml .*: give all overrides of the search in a new folder"):
        as_searched([f"sweep.resume={folder}"])


@pytest.mark.parametrize("missing", ["multirun.yaml", "search.db"])
def test_a_grid_and_a_new_search_are_left_as_they_are(missing: str, folder: Path) -> None:
    (folder / missing).unlink()
    for given in ([f"sweep.resume={folder}", "hp.lr=1,2"], ["hydra/sweeper=search", "hp.lr=1,2"], ["sweep.resume="]):
        assert as_searched(given) == given


def test_a_secret_is_asked_for_again(folder: Path) -> None:
    file = folder / "multirun.yaml"
    file.write_text(file.read_text() + "\n    - +logger.mine.api_key=***")
    with pytest.raises(UserError, match=r"logger.mine.api_key was given a secret to .*; give it again"):
        as_searched([f"sweep.resume={folder}"])
    assert "+logger.mine.api_key=k" in as_searched([f"sweep.resume={folder}", "+logger.mine.api_key=k"])

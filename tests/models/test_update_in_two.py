"""What came early is updated before the last gradients are there: two ranks make the step that they make at once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "distilbert_ranks.py"
CASES = "single", "overflow"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of two ranks has left of each case, where the optimiser divides gradients itself and where not."""
    home, names = tmp_path_factory.mktemp("ranks"), [*CASES, *(f"{case}_in_two" for case in CASES)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    options = ["hardware=cpu", "fit.max_epochs=4"]
    ended = subprocess.run([*command, str(home), *names, *options], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return {name: [torch.load(home / f"{name}_2_{rank}.pt") for rank in (0, 1)] for name in names}


@pytest.mark.parametrize("case", CASES)
def test_two_updates_make_the_step_of_one(case: str, found: dict[str, list[dict[str, Any]]]) -> None:
    at_once, in_two = found[case], found[f"{case}_in_two"]
    assert all(each["in_two"] == 0 for each in at_once)
    assert all(each["in_two"] == len(each["losses"]) == 16 for each in in_two)
    for one, two in zip(at_once, in_two, strict=True):
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-3, abs=1e-4)
    first, second = (each["after"] for each in in_two)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name, weight in at_once[0]["after"].items():
        torch.testing.assert_close(first[name], weight, rtol=1e-3, atol=1e-3)
    assert any((first[name] - weight).abs().max() > 0.05 for name, weight in in_two[0]["before"].items())

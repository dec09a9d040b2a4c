"""Every model's losses are those that golden.json keeps, bit for bit where torch and processor are the same."""

import json
from pathlib import Path

import pytest

from tests.reliability.golden import FILE, STEPS, losses, rounding
from tests.reliability.kills import MODELS


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_earlier_commits(model: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    expected, actual = golden["losses"][model], losses(model, tmp_path)
    assert len(actual) == len(expected) == STEPS
    assert actual[0] == pytest.approx(expected[0], rel=1e-4)
    if golden["rounding"] == rounding():  # elsewhere training amplifies what is rounded otherwise
        assert actual == expected

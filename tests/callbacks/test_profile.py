"""A profile of the steps that there are, also where training ends within them."""

from pathlib import Path

import pytest

from src.run import train
from tests.support.tiny_mobilenet import tiny_mobilenet

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("first", "profiled"), [(2, 3), (7, 2), (9, 0)])
def test_the_steps_that_were_trained_are_profiled(
    first: int, profiled: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = f"+callbacks.profile={{_target_:src.callbacks.profile.Profile,first_step:{first},steps:3}}"
    train(tiny_mobilenet(tmp_path, callback))  # 8 steps
    page = tmp_path / "run" / "profile.txt"
    assert page.exists() == (tmp_path / "run" / "trace.json").exists() == (profiled > 0)
    assert ("no profile: training ended after 8 steps" in capsys.readouterr().out) == (not profiled)
    if profiled:
        text = page.read_text()
        assert f"of cpu time a step, mean of {profiled} steps" in text.splitlines()[0]
        assert "aten::" in text

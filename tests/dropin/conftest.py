"""The wheel of se3-transformer, built once for all tests, and graphs on a CPU."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from src.gpu import inference_graphs, recorded
from tests.library.test_wheel import run
from tests.support import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("dropin")
    copy = home / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("wheel_backend.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    words = "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(home)
    run(*words, "--config-settings", "distribution=se3-transformer", str(copy), cwd=home)
    return next(home.glob("*.whl"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets modules on a CPU be recorded: a replay there calls the function again, on the same memory."""

    def capture(function: Any, static: list[Tensor], place: Any) -> SimpleNamespace:
        results = function(static)
        for result in results:  # which a capture does not compute
            result.zero_().sub_(7)
        return SimpleNamespace(graph=SimpleNamespace(replay=lambda: function(static)), inputs=static, outputs=results)

    if request.param == "cpu":
        monkeypatch.setattr(recorded, "can_capture", lambda device: True)
        monkeypatch.setattr(inference_graphs, "place_of", lambda device: (device, 0))
        monkeypatch.setattr(inference_graphs, "capture", capture)
    return request.param

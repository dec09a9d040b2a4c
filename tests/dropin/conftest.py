"""The wheel of se3-transformer, built once for all tests."""

import shutil
from pathlib import Path

import pytest

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

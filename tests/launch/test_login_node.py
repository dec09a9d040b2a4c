"""A machine of a cluster where runs are started without SLURM."""

import os
import warnings
from pathlib import Path

import pytest
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

from src.run import quieten


def test_srun_on_the_path_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning asks at the start of every training."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SLURMEnvironment.detect()
        assert len(caught) == 1 and "srun" in str(caught[0].message)
        quieten()
        SLURMEnvironment.detect()
        assert len(caught) == 1

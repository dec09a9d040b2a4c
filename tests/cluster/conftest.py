"""A cluster for all tests of this folder: `make test-cluster` runs them, in an environment with submitit and Ray."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm import Slurm, missing


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    if names := missing():
        needs = f"needs {', '.join(names)}: install Debian's slurmctld, slurmd, slurm-client and munge"
        if "CI" in os.environ:
            pytest.fail(needs)
        pytest.skip(needs)
    with tempfile.TemporaryDirectory(prefix="slurm_") as home:
        cluster = Slurm(Path(home))
        try:
            cluster.begin()
            yield cluster
        finally:
            cluster.end()

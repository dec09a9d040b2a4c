"""requirements.lock has every dependency with its hashes, and `make env` installs what it says."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.support import ROOT

LINES = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
LOCKED = [Requirement(line.split(" --hash")[0]) for line in LINES if not line.startswith("#")]
OF_TORCH = r"torch|cuda-.*|nvidia-(?!ml-py).*"  # installed by pip, in the build that fits the machine
FOR_CUDA = {"torchrec", "triton", "fbgemm-gpu-cpu"}  # the Makefile has others for torch's CUDA build
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READY = ROOT / ".venv" / ".ready"


def here() -> dict[NormalizedName, str]:
    """Returns the locked versions for this Python and machine, by name."""
    chosen = [requirement for requirement in LOCKED if requirement.marker is None or requirement.marker.evaluate()]
    versions = {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version for requirement in chosen
    }
    assert len(versions) == len(chosen)
    return versions


def needed(extra: str | None = None) -> Iterator[Requirement]:
    """Yields the project's dependencies and those of an extra."""
    for text in PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for other in requirement.extras:
                yield from needed(other)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def test_each_package_has_a_version_and_hashes() -> None:
    for line in LINES:
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+( ; [^#]*?)?( +--hash=sha256:[0-9a-f]{64})+", line)
    assert not [requirement.name for requirement in LOCKED if re.fullmatch(OF_TORCH, requirement.name)]


def test_each_dependency_is_locked_within_its_bounds() -> None:
    versions = here()
    for requirement in [*needed(), *needed("dev")]:
        name = canonicalize_name(requirement.name)
        assert name == "torch" or requirement.specifier.contains(versions[name], prereleases=True), (
            f"{requirement} is not what requirements.lock has; run `make lock`"
        )


def test_the_environment_is_the_locked_one() -> None:
    """Only where `make env` made it: a machine's own environment and `make env LATEST=1` have other versions."""
    made_of = READY.read_text().split() if Path(sys.prefix) == READY.parent else []
    if "locked" not in made_of:
        pytest.skip("the environment is not one that `make env` made of requirements.lock")
    wanted = {name: version for name, version in here().items() if "cuda" not in made_of or name not in FOR_CUDA}
    installed = {canonicalize_name(distribution.name): distribution.version for distribution in distributions()}
    differ = [f"{name} {installed.get(name)}" for name, version in wanted.items() if installed.get(name) != version]
    assert not differ, f"{', '.join(differ)}: not as in requirements.lock; run `make clean env`"

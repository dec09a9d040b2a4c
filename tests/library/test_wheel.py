"""The wheel: built, installed beside the dependencies alone, and used from an empty folder as the guide says."""

import os
import random
import re
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from src import __version__
from tests.support import ROOT
from tests.support.started import LIMIT_S

pytestmark = pytest.mark.slow

GUIDE = ROOT / "docs" / "guides" / "library.md"
WORDS = {"sport": ["match", "goal", "team"], "food": ["bread", "soup", "cheese"]}
NEEDED = "src", "conf", "hydra_plugins", "*.py", "pyproject.toml", "README.md", "LICENSE"


def scripts() -> dict[str, str]:
    """Returns the guide's scripts by name: each follows a line with its name and is in Python or for a shell."""
    return dict(re.findall(r"^`(\w+\.(?:py|sh))`:\n\n```\w+\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds it from a copy, since setuptools writes into the folder."""
    home = tmp_path_factory.mktemp("wheel")
    for path in (path for pattern in NEEDED for path in ROOT.glob(pattern)):
        if path.is_dir():
            shutil.copytree(path, home / "copy" / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (home / "copy").mkdir(exist_ok=True)
            shutil.copy(path, home / "copy")
    run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(home), str(home / "copy"), cwd=home)
    return next(home.glob("reprise-*.whl"))


@pytest.fixture(scope="module")
def library(wheel: Path) -> Path:
    """Returns the Python of a fresh environment with the wheel; it finds the packages of this one, and no checkout."""
    home = wheel.parent / "venv"
    run("-m", "venv", "--without-pip", str(home), cwd=wheel.parent)
    python = home / "bin" / "python"
    run("-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel), cwd=wheel.parent)
    packages = next(home.glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")  # whose own .pth files are not read
    return python


def run(*words: str, python: str | Path = sys.executable, cwd: Path) -> str:
    """Runs Python with these words and no PYTHONPATH; returns what it prints."""
    return run_command([str(python), *words], cwd)


def run_command(command: list[str], cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        texts = {name: archive.read(name).decode() for name in names if name.endswith((".py", ".yaml", "METADATA"))}
        record = archive.read(next(name for name in names if name.endswith("RECORD"))).decode()
    assert {name.partition("/")[0] for name in names} == {
        "reprise",
        "hydra_plugins",
        f"reprise-{__version__}.dist-info",
    }
    assert {f"reprise/{path.relative_to(ROOT / 'src')}" for path in (ROOT / "src").rglob("*.py")} <= set(names)
    assert {f"reprise/scripts/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")} <= set(names)
    assert len(set(names)) == len(names) and [line.partition(",")[0] for line in record.splitlines()] == names
    imported = re.compile(r"^\s*(?:from|import) src\b|(?:_target_|class): src\b", re.MULTILINE)
    assert [name for name, text in texts.items() if imported.search(text)] == []
    metadata = next(text for name, text in texts.items() if name.endswith("METADATA"))
    assert "Provides-Extra: dlrm" in metadata and "Requires-Dist: torch" in metadata


def test_the_build_step_is_short() -> None:
    assert len((ROOT / "wheel_backend.py").read_text().splitlines()) <= 60


def test_importing_the_library_is_light_and_finds_no_checkout(library: Path, tmp_path: Path) -> None:
    code = """
import importlib.util, sys
import reprise, reprise.measure
heavy = {"torch", "hydra", "omegaconf", "pytorch_lightning", "numpy"} & set(sys.modules)
assert not heavy and importlib.util.find_spec("src") is None, heavy
reprise.measure.training
assert "pytorch_lightning" not in sys.modules and "hydra" not in sys.modules
from reprise.models.mobilenet_v1 import MobileNetV1
from reprise.models.moflow import MoFlow
import reprise.models.distilbert.fast, reprise.models.dlrm.fast, reprise.models.se3_transformer.fast
assert "hydra" not in sys.modules and "pytorch_lightning" not in sys.modules
print(reprise.__version__)
"""
    assert run("-c", code, python=library, cwd=tmp_path).strip() == __version__


def test_listed_kernels_are_those_of_the_library(library: Path, tmp_path: Path) -> None:
    """Compiled as a first run on an H100 or H200 does."""
    command = [str(library), "-m", "reprise.gpu.precompile", "dlrm", "--capability", "90"]
    printed = run_command(command, tmp_path, TRITON_CACHE_DIR=str(tmp_path / "cache"), TRITON_INTERPRET="0")
    assert printed.startswith("dlrm amp: 16 kernels, ") and list(tmp_path.rglob("*.cubin"))


def test_every_module_imports_under_the_new_name(library: Path, tmp_path: Path) -> None:
    code = """
import importlib.util, pkgutil, sys
import reprise
names = [module.name for module in pkgutil.walk_packages(reprise.__path__, "reprise.")]
others = "reprise.scripts", "reprise.__main__"
if importlib.util.find_spec("timm") is None:
    others += ("reprise.models.mobilenet_v1.fast.timm",)
if importlib.util.find_spec("ase") is None:
    others += ("reprise.models.se3_transformer.calculator",)
ours = [name for name in names if "_triton" not in name and not name.startswith(others)]
for name in ours:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.split(".")[0] == "src"]
print(len(ours))
"""
    assert int(run("-c", code, python=library, cwd=tmp_path)) > 250


def test_the_five_scripts_of_the_guide(library: Path, tmp_path: Path) -> None:
    source = random.Random(0)
    rows = [(" ".join(source.choices(WORDS[label], k=4)), label) for label in sorted(WORDS) * 60]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *(",".join(row) for row in rows), ""]))
    (tmp_path / "new.txt").write_text("the team scored a goal\nsoup with bread\n")
    texts = scripts()
    assert list(texts) == ["train.sh", "predict.sh", "load.py", "measuring.py", "export.sh"]
    printed = {}
    for name, text in texts.items():
        assert len(text.splitlines()) <= 15
        (tmp_path / name).write_text(text)
        starting = [str(library)] if name.endswith(".py") else ["bash", "-e"]
        where = {"PATH": f"{library.parent}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        printed[name] = run_command([*starting, name], tmp_path, **where)
    labels = (tmp_path / "labels.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in labels] == ["label", "sport", "food"]
    first = [line.split()[0] for line in printed["load.py"].splitlines()]
    assert first[:2] == ["sport", "food"] and first[2].removeprefix("Fast") == "DistilBert"
    assert "p_core" in printed["measuring.py"] and "host's monotonic clock" in printed["measuring.py"]
    assert "greatest difference 0" in printed["export.sh"]
    code = "import reprise; print(*reprise.from_pretrained('exported', device='cpu')(['soup with bread']).labels)"
    assert run("-c", code, python=library, cwd=tmp_path).split()[-1] == "food"


def test_a_wrong_command_is_one_line(library: Path, tmp_path: Path) -> None:
    ended = subprocess.run([library, "-m", "reprise", "trian"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stdout == ""
    assert re.fullmatch(r"error: reprise trian: expected one of .*predict, .*train.*\n", ended.stderr)

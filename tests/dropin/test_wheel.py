"""The wheel of se3-transformer: built by the same build step, installed alone, and run without this checkout."""

import site
import zipfile
from pathlib import Path

import pytest

from tests.library.test_wheel import run

pytestmark = pytest.mark.slow

FORWARD = """
import sys, torch
from se3_transformer import graphs as dgl
from se3_transformer.model import SE3Transformer
from se3_transformer.model.fiber import Fiber

fiber = Fiber({0: 8, 1: 3})
network = SE3Transformer(1, fiber, Fiber.create(2, 16), Fiber({0: 8, 1: 2}), 4, 4, Fiber({0: 5}))
src, dst = torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]])
G = dgl.graph((src, dst), num_nodes=3).to("cpu")
positions = torch.randn(3, 3)
G.edata["rel_pos"] = positions[dst] - positions[src]
out = network(G, {"0": torch.randn(3, 8, 1), "1": torch.randn(3, 3, 3)}, {"0": torch.randn(4, 5, 1)})
out["0"].sum().backward()
assert not {"dgl", "src", "reprise", "hydra", "pytorch_lightning", "rdkit", "scipy.stats"} & set(sys.modules)
print({name: list(x.shape) for name, x in out.items()})
"""


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {name: archive.read(name).decode() for name in names}
    info = next(name for name in names if name.endswith("METADATA"))
    needed = [line.partition(": ")[2] for line in texts[info].splitlines() if line.startswith("Requires-Dist")]
    assert [line.partition(">")[0] for line in needed] == ["torch", "e3nn", "jaxtyping"]
    assert {name.partition("/")[0] for name in names} == {"se3_transformer", info.partition("/")[0]}
    modules = [name for name in names if name.endswith(".py")]
    assert not [name for name in modules if "from src" in texts[name] or "import src" in texts[name]]
    assert "se3_transformer/reprise/models/se3_transformer/fast/contraction_triton.py" in names
    assert not [name for name in names if "mobilenet" in name or "training" in name or "config" in name]
    assert wheel.stat().st_size < 150_000


def test_it_runs_where_nothing_else_of_ours_is(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    run("-m", "venv", "--without-pip", str(home), cwd=tmp_path)
    python = home / "bin" / "python"
    run("-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel), cwd=tmp_path)
    packages = next(home.glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")  # torch and e3nn
    assert run("-c", FORWARD, python=python, cwd=tmp_path).strip() == "{'0': [3, 8, 1], '1': [3, 2, 3]}"

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
from se3_transformer.recording import record, report
from se3_transformer.reprise.errors import UserError

fiber = Fiber({0: 8, 1: 3})
network = SE3Transformer(1, fiber, Fiber.create(2, 16), Fiber({0: 8, 1: 2}), 4, 4, Fiber({0: 5}))
src, dst = torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]])
G = dgl.graph((src, dst), num_nodes=3).to("cpu")
positions = torch.randn(3, 3)
G.edata["rel_pos"] = positions[dst] - positions[src]
out = network(G, {"0": torch.randn(3, 8, 1), "1": torch.randn(3, 3, 3)}, {"0": torch.randn(4, 5, 1)})
out["0"].sum().backward()

nodes, edges = {"0": torch.randn(3, 8, 1), "1": torch.randn(3, 3, 3)}, {"0": torch.randn(4, 5, 1)}
listed = dgl.graph((src, dst), num_nodes=3)
listed.edata["rel_pos"] = []
for wrong, why in (  # which the type checks of the tests would refuse otherwise
    (lambda: network(G, nodes["0"], edges), "node_feats is a Tensor; expected a dictionary by degree as text"),
    (lambda: network(G, nodes, {0: edges["0"]}), "edge_feats is of the key 0; expected a dictionary"),
    (lambda: network(G, {0: nodes["0"]}, edges), "node_feats is of the key 0; expected a dictionary"),
    (lambda: network((src, dst), nodes, edges), "the graph is a tuple; expected se3_transformer.graphs.graph"),
    (lambda: SE3Transformer(1, {0: 8}, fiber, fiber, 4, 4), "fiber_in is a dict; expected a se3_transformer"),
    (lambda: network(listed, nodes, edges), "edata['rel_pos'] is a list; expected a tensor [4, 3]"),
    (lambda: Fiber([1]), "Fiber([1]) is not allowed; expected channels by degree"),
    (lambda: dgl.graph((src, dst), num_nodes=2.5), "num_nodes=2.5 is not allowed; expected a whole number"),
    (lambda: record([network]), "record(model) takes a torch.nn.Module, not a list"),
):
    try:
        wrong()
    except UserError as error:
        assert why in str(error) and len(str(error).splitlines()) == 1, error
    else:
        raise AssertionError(why)
around = torch.nn.Sequential(network)
assert record(around) is around and report(around) == "Sequential: 1 not called twice alike without gradients"
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

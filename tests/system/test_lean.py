"""What a start does not load, and that it is there for who needs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.system import lean
from tests.support import ROOT

PACKAGES = """
import sys
from src.system.lean import OPTIONAL, install
install()
import torchmetrics
print(torchmetrics.MeanMetric()(1.0).item(), *(name for name in OPTIONAL if name in sys.modules))
import scipy.signal, matplotlib.pyplot
from lightning_utilities.core.imports import RequirementCache
print(bool(RequirementCache("scipy")))
"""


COMPILER = """
import sys
from pathlib import Path
from src.system.lean import install, loading
install()
with loading():
    from src.run import train
from tests.support.tiny_mobilenet import tiny_mobilenet
train(tiny_mobilenet(Path(sys.argv[1]), "fit.max_steps=2"))
print([name for name in ("torch._dynamo.eval_frame", "torch._inductor", "sympy") if name in sys.modules])

import torch
from torch.optim.sgd import SGD
from lightning_fabric.wrappers import OptimizedModule
optimiser = SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
optimiser.zero_grad()
kept_out = torch.compiler.disable(lambda x: x + torch.compiler.is_compiling())
print(int(kept_out(torch.zeros(()))), isinstance(torch.nn.ReLU(), OptimizedModule))

import torch._dynamo.eval_frame as first  # a submodule before the package itself
graphs = []
def backend(graph, inputs):
    graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
    return graph.forward
@torch.compile(backend=backend)
def partly(x):
    return torch.sin(kept_out(torch.cos(x)))
assert first.__spec__.origin == first.__file__
print(first is torch._dynamo.eval_frame, first.OptimizedModule is torch._dynamo.OptimizedModule)
print(float(partly(torch.zeros(()))) == float(torch.sin(torch.ones(()))), graphs == [[torch.cos], [torch.sin]])
compiled, plain = torch.compile(torch.nn.ReLU(), backend=backend), torch.nn.ReLU()
print(isinstance(compiled, OptimizedModule), isinstance(plain, OptimizedModule))
optimiser.zero_grad()
optimiser.step()
"""


def printed(code: str, *arguments: str, **environment: str) -> list[str]:
    """Returns the last lines of what code prints in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_torchmetrics_loads_nothing_that_nobody_uses_and_others_still_can() -> None:
    assert printed(PACKAGES, REPRISE_PLAIN_START="") == ["1.0", "True"]


@pytest.mark.slow
def test_a_run_loads_no_compiler_and_the_compiler_still_works(tmp_path: Path) -> None:
    lines = printed(COMPILER, str(tmp_path), REPRISE_PLAIN_START="")[-5:]
    assert lines == ["[]", "0 False", "True True", "True True", "True False"]


@pytest.mark.slow
def test_with_the_switch_everything_is_imported_as_it_is_and_a_run_works(tmp_path: Path) -> None:
    *_, loaded, _, _, _, _ = printed(COMPILER, str(tmp_path), REPRISE_PLAIN_START="1")
    assert loaded == "['torch._dynamo.eval_frame', 'torch._inductor', 'sympy']"


def test_an_untried_version_is_imported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.meta_path)
    monkeypatch.setitem(lean.TRIED, "torch", ("0.",))
    lean.install()
    assert sys.meta_path == before

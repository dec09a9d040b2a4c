"""NVIDIA's package and its copies in RFdiffusion and the RoseTTAFolds, to compare with: in clones that the user names.

`SE3_CLONES` names a folder with any of the clones in PACKAGES. They run with `graphs` and the functions here in DGL's
place, so that no DGL is needed; where it is installed it is used.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.dropin import graphs

VARIABLE = "SE3_CLONES"
PACKAGES = {  # the folder to import from and the package's name
    "RFdiffusion": ("env/SE3Transformer", "se3_transformer"),
    "RoseTTAFold2": ("SE3Transformer", "se3_transformer"),
    "RoseTTAFold2NA": ("SE3Transformer", "se3_transformer"),
    "DeepLearningExamples": ("DGLPyTorch/DrugDiscovery/SE3Transformer", "se3_transformer"),
    "RoseTTAFold-All-Atom": (".", "rf2aa.SE3Transformer.se3_transformer"),
}


class Package(NamedTuple):
    """A package's public classes. `graph` makes its graphs, `basis` its tables in the dtype of the positions."""

    SE3Transformer: Any
    SE3TransformerPooled: Any
    Fiber: Any
    graph: Callable[..., Any]
    basis: Callable[[Tensor, int, bool], dict[str, Tensor]] | None


def clone(project: str) -> Path | None:
    """Returns the clone's folder to import from, None where there is none."""
    folder = Path(os.environ.get(VARIABLE, "/nonexistent")) / project / PACKAGES[project][0]
    return folder if folder.is_dir() else None


def original(project: str) -> Package:
    """Imports a project's package; a further call imports it again."""
    folder, name = clone(project), PACKAGES[project][1]
    assert folder is not None
    with imported_from(folder, name.partition(".")[0]):
        model, fiber = import_module(f"{name}.model"), import_module(f"{name}.model.fiber")
        tables, dgl = import_module(f"{name}.model.basis"), import_module("dgl")

    def basis(rel_pos: Tensor, max_degree: int, pad: bool) -> dict[str, Tensor]:
        """As its `get_basis`, which rounds to float32."""
        harmonics, degrees = tables.get_spherical_harmonics(rel_pos, max_degree), range(max_degree + 1)
        by_pair = {}
        for d_in in degrees:
            for d_out in degrees:
                symbols = [tables.get_clebsch_gordon(j, d_in, d_out, rel_pos.device) for j in frequencies(d_in, d_out)]
                terms = [
                    torch.einsum("klf,nf->nlk", q.to(rel_pos.dtype), harmonics[(q.shape[2] - 1) // 2]) for q in symbols
                ]
                by_pair[f"{d_in},{d_out}"] = F.pad(torch.stack(terms, 2), (0, int(pad)))
        return by_pair

    return Package(model.SE3Transformer, model.SE3TransformerPooled, fiber.Fiber, dgl.graph, basis)


def frequencies(d_in: int, d_out: int) -> range:
    return range(abs(d_in - d_out), d_in + d_out + 1)


@contextmanager
def imported_from(folder: Path, top: str) -> Iterator[None]:
    """Imports within find this folder's package, and it is forgotten afterwards, so that another one may come."""
    stubs = {} if find_spec("dgl") else dgl_modules()
    modules, path, nvtx = dict(sys.modules), list(sys.path), torch.cuda.nvtx.range
    if not torch.cuda.is_available():
        torch.cuda.nvtx.range = nullcontext  # builds for CPUs have none
    sys.modules.update(stubs)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        torch._C._jit_set_profiling_executor(True)  # RoseTTAFold2's package turns them off
        torch._C._jit_set_profiling_mode(True)
        for name in [name for name in sys.modules if name.partition(".")[0] == top or name in stubs]:
            if name not in modules:
                del sys.modules[name]
        sys.path[:], torch.cuda.nvtx.range = path, nvtx


def dgl_modules() -> dict[str, ModuleType]:
    """Returns what the packages import of DGL, in plain torch."""
    names = "dgl", "dgl.ops", "dgl.nn", "dgl.nn.pytorch"
    modules = {name: ModuleType(name) for name in names}
    dgl = modules["dgl"]
    for name, value in {"graph": graphs.graph, "DGLGraph": graphs.Graph, "ops": modules["dgl.ops"]}.items():
        setattr(dgl, name, value)
    for function in (e_dot_v, edge_softmax, copy_e_sum, copy_e_mean):
        setattr(modules["dgl.ops"], function.__name__, function)
    for kind in (AvgPooling, MaxPooling):
        setattr(modules["dgl.nn.pytorch"], kind.__name__, kind)
    return modules


def e_dot_v(graph: graphs.Graph, of_edges: Tensor, of_nodes: Tensor) -> Tensor:
    return (of_edges * of_nodes[graph.edges()[1]]).sum(-1, keepdim=True)


def edge_softmax(graph: graphs.Graph, logits: Tensor) -> Tensor:
    powers = (logits - logits.detach().max()).exp()
    return powers / copy_e_sum(graph, powers)[graph.edges()[1]]


def copy_e_sum(graph: graphs.Graph, of_edges: Tensor) -> Tensor:
    return of_edges.new_zeros(graph.num_nodes(), *of_edges.shape[1:]).index_add(0, graph.edges()[1], of_edges)


def copy_e_mean(graph: graphs.Graph, of_edges: Tensor) -> Tensor:
    counts = graph.in_degrees().clamp_min(1)
    return copy_e_sum(graph, of_edges) / counts.view(-1, *[1] * (of_edges.dim() - 1))


class AvgPooling(nn.Module):
    def forward(self, graph: graphs.Graph, features: Tensor) -> Tensor:
        return torch.stack([part.mean(0) for part in features.split(graph.batch_num_nodes().tolist())])


class MaxPooling(nn.Module):
    def forward(self, graph: graphs.Graph, features: Tensor) -> Tensor:
        return torch.stack([part.amax(0) for part in features.split(graph.batch_num_nodes().tolist())])

"""Networks of the four projects and others, each run on one graph: what is compared with NVIDIA's code.

`python -m tests.dropin.cases` runs the originals (see `originals`) with e3nn 0.3.3, which they pin, and writes their
numbers to TABLE: a projection of each output, gradient and parameter, in float64. With a torch after 2.5 that needs
TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import e3nn
import torch
from torch import Tensor

from src.dropin.graphs import graph as our_graph
from src.dropin.model import SE3Transformer, SE3TransformerPooled
from src.dropin.model.fiber import Fiber
from src.models.se3_transformer.signs import NVIDIA_E3NN
from tests.dropin.originals import Package, original

TABLE = Path(__file__).parent / "table.json"
OURS = Package(SE3Transformer, SE3TransformerPooled, Fiber, our_graph, None)


@dataclass(frozen=True)
class Case:
    """A network: of this project's package, with the channels of its fibers."""

    name: str
    project: str
    inputs: dict[int, int]
    outputs: dict[int, int]
    edges: dict[int, int]
    channels: int = 32
    degrees: int = 2
    arguments: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)  # arguments of ours alone


def case(name: str, project: str, scalars: int, channels: int = 32, vectors: int = 3, **arguments: Any) -> Case:
    """Returns a network that a project's configuration has: as many scalars come out, and are of edges unless given."""
    of_edges = arguments.pop("edges", scalars)
    sizes = {0: scalars, 1: vectors}, {0: scalars, 1: 2}, {0: of_edges}
    return Case(name, project, *sizes, channels, arguments={"num_layers": 1, **arguments})


RF2: dict[str, Any] = {"populate_edge": "arcsin", "final_layer": "lin"}
NA: dict[str, Any] = {"tensor_cores": True, "low_memory": True}
CASES = [
    case("rfdiffusion full", "RFdiffusion", 8, edges=32),
    case("rfdiffusion topk", "RFdiffusion", 64),
    case("rf2 full", "RoseTTAFold2", 32, 48, vectors=2, **RF2),
    case("rf2 topk", "RoseTTAFold2", 64, 128, vectors=2, **RF2),
    case("rf2na", "RoseTTAFold2NA", 64, **NA),
    case("rf2na refiner", "RoseTTAFold2NA", 64, **NA, num_layers=2),
    case("rfaa", "RoseTTAFold-All-Atom", 64, **RF2),
    case("rfaa refiner", "RoseTTAFold-All-Atom", 64, **RF2, num_layers=2),
    case("rfaa attention", "RoseTTAFold-All-Atom", 16, populate_edge="arcsin", final_layer="att"),
    case("mean, log", "RoseTTAFold-All-Atom", 16, populate_edge="log", sum_over_edge=False),
    case("zero", "RoseTTAFold2NA", 16, populate_edge="zero"),
    Case("low memory 2022", "DeepLearningExamples", {0: 8, 1: 8}, {0: 6, 1: 6}, {0: 4}, 8,
         arguments={"num_layers": 2, **NA}, ours={"layout": "2022"}),
    Case("all fused", "DeepLearningExamples", {0: 8, 1: 8, 2: 8}, {0: 6, 1: 6, 2: 6}, {0: 4}, 8, 3,
         {"num_layers": 2, "tensor_cores": True}),
    Case("four degrees", "DeepLearningExamples", {0: 5, 2: 3}, {0: 4, 1: 2, 3: 2}, {0: 2}, 8, 4, {"num_layers": 1}),
    Case("no norms, vectors of edges", "DeepLearningExamples", {0: 5, 1: 3}, {1: 4}, {0: 2, 1: 2}, 8, 2,
         {"num_layers": 2, "norm": False, "use_layer_norm": False}),
    Case("from scalars", "RFdiffusion", {0: 6}, {0: 7, 1: 2}, {}, 8, 3, {"num_layers": 2}),
    Case("scalars alone", "DeepLearningExamples", {0: 6}, {0: 7}, {0: 3}, 8, 1,
         {"num_layers": 1, "tensor_cores": True}),
    Case("pooled average", "RFdiffusion", {0: 6, 1: 2}, {0: 7, 1: 4}, {}, 8, 2,
         {"num_layers": 1, "pooling": "avg", "return_type": 1}),
]  # fmt: skip


def ends() -> tuple[Tensor, Tensor]:
    """Returns edges of 11 nodes in no order, among them self-loops and duplicates; the last node has none."""
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, 10, (2, 40), generator=generator)
    loops = torch.tensor([2, 5, 7])
    return torch.cat([src, loops, src[:4]]), torch.cat([dst, loops, dst[:4]])


def positions() -> Tensor:
    """Returns 11 positions, two of them equal."""
    places = 4 * torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    places[3] = places[8]
    return places


def features(sizes: dict[int, int], rows: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        str(degree): torch.randn(rows, count, 2 * degree + 1, dtype=torch.float64, generator=generator)
        for degree, count in sizes.items()
    }


def built(package: Package, case: Case, version: str = NVIDIA_E3NN) -> Any:
    """Returns the network of seed 0, in float32; ours with the signs of this version of e3nn."""
    torch.manual_seed(0)
    fiber = package.Fiber
    of_ours = {"e3nn": version, **case.ours} if package is OURS else {}
    return package.SE3Transformer(
        fiber_in=fiber(case.inputs),
        fiber_hidden=fiber.create(case.degrees, case.channels),
        fiber_out=fiber(case.outputs),
        fiber_edge=fiber(case.edges),
        num_heads=4,
        channels_div=2 if case.channels == 8 else 4,
        **case.arguments,
        **of_ours,
    )


def run(
    package: Package, case: Case, network: Any, dtype: torch.dtype = torch.float64, basis: bool = False
) -> dict[str, Tensor]:
    """Returns outputs by name, and gradients of a weighted sum of them."""
    network = network.to(dtype)
    src, dst = ends()
    places = positions()
    graph = package.graph((src, dst), num_nodes=len(places))
    rel_pos = (places[dst] - places[src]).to(dtype).requires_grad_()
    graph.edata["rel_pos"] = rel_pos
    nodes, edges = features(case.inputs, len(places), 5), features(case.edges, len(src), 6)
    nodes, edges = ({name: x.to(dtype).requires_grad_() for name, x in part.items()} for part in (nodes, edges))
    tables = {}
    if package.basis is not None and (basis or dtype == torch.float64):
        pads = case.arguments.get("tensor_cores", False) and not case.arguments.get("low_memory", False)
        tables = {"basis": package.basis(rel_pos.detach(), network.max_degree, pads)}
    out = network(graph, dict(nodes), dict(edges), **tables)
    out = out if isinstance(out, dict) else {"pooled": out}
    weights = [
        torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) for x in out.values()
    ]
    torch.stack([(x * w.to(dtype)).sum() for x, w in zip(out.values(), weights, strict=True)]).sum().backward()
    leaves = {f"node {k}": x for k, x in nodes.items()} | {f"edge {k}": x for k, x in edges.items()}
    leaves |= {"rel_pos": rel_pos, **dict(network.named_parameters())}
    gradients = {f"d {name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return {**{name: x.detach() for name, x in out.items()}, **gradients}


def projection(tensor: Tensor) -> float:
    """Returns the sum of a tensor's elements times waves, which no change of few elements or of their order leaves."""
    places = torch.arange(tensor.numel(), dtype=torch.float64)
    values = tensor.detach().double().flatten()
    return float(f"{(values * ((0.7 * places).cos() + (1.3 * places + 1).sin())).sum():.12g}")


def numbers(package: Package, case: Case) -> dict[str, Any]:
    """Returns the projections of each parameter with its gradient, and of the other results."""
    network = built(package, case)
    parameters = {name: projection(parameter) for name, parameter in network.named_parameters()}
    results = {name: projection(tensor) for name, tensor in run(package, case, network).items()}
    pairs = {name: [value, results.pop(f"d {name}")] for name, value in parameters.items()}
    return {"parameters": pairs, "results": results}


def main() -> None:
    if e3nn.__version__ != NVIDIA_E3NN:
        raise SystemExit(f"error: the projects run with e3nn {NVIDIA_E3NN}, here is {e3nn.__version__}; install theirs")
    table = {case.name: numbers(original(case.project), case) for case in CASES}
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

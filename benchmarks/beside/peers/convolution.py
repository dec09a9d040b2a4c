"""A convolution of the SE(3)-Transformer by ours and by libraries of equivariant tensor products.

A library has the tensor product of features, spherical harmonics and radial weights. What is around it is the same for
all of them and ours in plain torch: the radial network, which makes 45,056 weights for an edge, the gathering of source
features, and the sum at the destination by a segmented reduction. A step is a forward and a backward pass in one CUDA
graph, with gradients to features and parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers.common import Once, autocast, in_graph, set_precision
from benchmarks.beside.peers.graph_operations import SumAtDestination

DEGREES, CHANNELS, SCALARS, HIDDEN = 4, 32, 5, 32
EDGES_OF_NODE = 2  # of QM9's atoms, by their bonds
INCLUDES = "radial network, gathering, sum at the destination, gradients; geometry and spherical harmonics are given"
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(assignment: Assignment, device: torch.device) -> Prepared:
    """Runs our ConvSE3 with its kernels."""
    from src.batches.molecular_graphs import Graph
    from src.gpu.replace import replace_submodules
    from src.models.se3_transformer import fast
    from src.models.se3_transformer.conv import ConvSE3, Geometry
    from src.models.se3_transformer.fiber import Fiber

    set_precision(assignment.case.precision)
    src, dst, positions = ring(assignment.batch_size)
    graph = Graph.build(positions, src, dst, [len(positions)])
    graph = Graph(*(tensor.to(device) for tensor in graph[:7]), distinct=True)
    fiber = Fiber.create(DEGREES, channels(assignment))
    layer: Any = ConvSE3(fiber, fiber, SCALARS - 1, DEGREES - 1, use_layer_norm=True).to(device)
    replace_submodules(layer, fast.REPLACEMENTS)
    scalars = torch.randn(assignment.batch_size, SCALARS - 1, device=device)
    geometry = Geometry.of(graph, scalars, DEGREES - 1)
    features = torch.randn(len(positions), fiber.num_features, device=device, requires_grad=True)
    step = forward_and_backward(lambda: layer(features, geometry), features, layer, assignment, device)
    return Prepared(Once(lambda: in_graph(step, device)), INCLUDES, ["triton"])


def equivariant(assignment: Assignment, device: torch.device) -> Prepared:
    """Runs the tensor product of a library: e3nn, e3nn compiled, cuequivariance or openequivariance."""
    from e3nn import o3

    set_precision(assignment.case.precision)
    product, weights, packages, differs = PRODUCTS[assignment.variant.split()[0]](assignment, device)
    if "compiled" in assignment.variant and device.type == "cuda":
        product = torch.compile(product)
    src, dst, positions = (tensor.to(device) for tensor in ring(assignment.batch_size))
    harmonics = o3.spherical_harmonics(list(range(2 * DEGREES - 1)), positions[dst] - positions[src], normalize=True)
    offsets = nn.functional.pad(dst.bincount(minlength=len(positions)).cumsum(0), (1, 0))
    radial = nn.Sequential(
        nn.Linear(SCALARS, HIDDEN), nn.LayerNorm(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN),
        nn.ReLU(), nn.Linear(HIDDEN, weights, bias=False),
    ).to(device)  # fmt: skip
    scalars = torch.randn(assignment.batch_size, SCALARS, device=device)
    features = torch.randn(len(positions), channels(assignment) * DEGREES**2, device=device, requires_grad=True)

    def convolution() -> Tensor:
        messages = product(features[src], harmonics, radial(scalars))
        return SumAtDestination.apply(messages, offsets, dst)

    step = forward_and_backward(convolution, features, radial, assignment, device)
    return Prepared(Once(lambda: in_graph(step, device)), INCLUDES, packages, [NO_ATTENTION, *differs])


NO_ATTENTION = "the library has the convolution's tensor product; it has no attention and no norm of this network"


def channels(assignment: Assignment) -> int:
    return 2 if assignment.tiny else CHANNELS


def ring(edges: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sources, destinations and positions of nodes that are joined to the next ones, sorted by destination."""
    nodes = edges // EDGES_OF_NODE
    dst = torch.arange(edges) // EDGES_OF_NODE
    src = (dst + 1 + torch.arange(edges) % EDGES_OF_NODE) % nodes
    return src, dst, torch.randn(nodes, 3, generator=torch.Generator().manual_seed(0))


def forward_and_backward(
    layer: Callable[[], Tensor], features: Tensor, module: nn.Module, assignment: Assignment, device: torch.device
) -> Callable[[], Any]:
    leaves = [features, *module.parameters()]
    with torch.no_grad(), autocast(assignment.case.precision, device):
        above = torch.randn_like(layer())

    def step() -> None:
        with autocast(assignment.case.precision, device):
            out = layer()
        torch.autograd.grad(out, leaves, above)

    return step


def irreps(assignment: Assignment) -> tuple[str, str]:
    """Returns the irreps of features and harmonics. All are even: the network is of SO(3) and knows no parity."""
    features = " + ".join(f"{channels(assignment)}x{degree}e" for degree in range(DEGREES))
    return features, " + ".join(f"1x{degree}e" for degree in range(2 * DEGREES - 1))


def of_e3nn(assignment: Assignment, device: torch.device) -> tuple[Any, int, list[str], list[str]]:
    import e3nn
    from e3nn import o3

    features, harmonics = irreps(assignment)
    if "compiled" in assignment.variant:
        e3nn.set_optimization_defaults(jit_mode="eager")  # torch.compile cannot look into TorchScript
    product: Any = o3.FullyConnectedTensorProduct(
        features, harmonics, features, internal_weights=False, shared_weights=False
    )
    return product.to(device), product.weight_numel, ["e3nn", "opt-einsum-fx"], []


def of_cuequivariance(assignment: Assignment, device: torch.device) -> tuple[Any, int, list[str], list[str]]:
    import cuequivariance as cue  # pyright: ignore[reportMissingImports]
    import cuequivariance_torch as cuet  # pyright: ignore[reportMissingImports]

    features, harmonics = (cue.Irreps("SO3", text.replace("e", "")) for text in irreps(assignment))
    product = cuet.FullyConnectedTensorProduct(
        features, harmonics, features, layout=cue.mul_ir, internal_weights=False, shared_weights=False, device=device,
        method="fused_tp" if device.type == "cuda" else "naive",
    )  # fmt: skip
    half = assignment.case.precision == "amp"

    def call(x: Tensor, sh: Tensor, w: Tensor) -> Tensor:
        dtype = torch.float16 if half else torch.float32
        return product(x.to(dtype), sh.to(dtype), w.to(dtype))

    packages = ["cuequivariance", "cuequivariance-torch", "cuequivariance-ops-torch-cu13"]
    return call, product.weight_numel, packages, ["its kernel of tensor products computes in float32"]


def of_openequivariance(assignment: Assignment, device: torch.device) -> tuple[Any, int, list[str], list[str]]:
    import openequivariance as oeq  # pyright: ignore[reportMissingImports]
    from e3nn import o3

    features, harmonics = (o3.Irreps(text) for text in irreps(assignment))
    example: Any = o3.FullyConnectedTensorProduct(
        features, harmonics, features, internal_weights=False, shared_weights=False
    )
    paths = [(i.i_in1, i.i_in2, i.i_out, "uvw", True) for i in example.instructions]
    problem = oeq.TPProblem(features, harmonics, features, paths, shared_weights=False, internal_weights=False)
    product = oeq.TensorProduct(problem, torch_op=True)

    def call(x: Tensor, sh: Tensor, w: Tensor) -> Tensor:
        return product(x.float(), sh, w.float())

    return call, example.weight_numel, ["openequivariance", "e3nn"], ["it computes in float32"]


PRODUCTS = {"e3nn": of_e3nn, "cuequivariance": of_cuequivariance, "openequivariance": of_openequivariance}

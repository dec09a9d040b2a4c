"""NVIDIA's SE(3)-Transformer, from the clone that the user names."""

import ctypes
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers import graph_operations
from benchmarks.beside.peers.common import (
    Once,
    autocast,
    batches,
    fused,
    in_graph,
    over,
    set_precision,
    training_step,
)
from benchmarks.beside.peers.reference import folder_of, identity
from src.batches.molecular_graphs import GraphBatch

SIZES = {"num_layers": 7, "num_degrees": 4, "num_channels": 32, "num_heads": 8, "channels_div": 2}
TINY = {"num_layers": 2, "num_degrees": 4, "num_channels": 4, "num_heads": 2, "channels_div": 2}
PACKAGES = ["e3nn"]
APEX = "torch's fused AdamW in place of apex's FusedAdam"
INSTALLED = "the installed e3nn in place of 0.3.3, for spherical harmonics and Wigner 3j symbols"
L2_FETCH_LIMIT, L2_FETCH_BYTES = 5, 128  # cudaLimitMaxL2FetchGranularity, and what its scripts set it to


def training(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains as its runtime/training.py does; the variant is eager, or one CUDA graph, which is ours."""
    folder, model, pool = prepared(assignment, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, **fused(device, capturable=True))

    def loss(batch: tuple[Any, ...]) -> Tensor:
        *inputs, target = batch
        return nn.functional.l1_loss(model(*inputs), target)

    step = training_step(loss, optimizer, assignment.case.precision, device)
    graphed = "graph" in assignment.variant
    eager = over(step, pool[:1] if graphed else pool)
    return Prepared(
        Once(lambda: in_graph(eager, device)) if graphed else eager,
        "bases, casts, loss scaling, optimizer; graphs lie on the GPU",
        PACKAGES,
        [graph_operations.DIFFERS, APEX, INSTALLED, *(["the CUDA graph of a step is ours"] if graphed else [])],
        reference=identity(folder),
    )


def prediction(assignment: Assignment, device: torch.device) -> Prepared:
    """Predicts as its runtime/inference.py does; the variant is eager, or one CUDA graph, which is ours."""
    folder, model, pool = prepared(assignment, device)
    model.eval()

    @torch.inference_mode()
    def step(batch: tuple[Any, ...]) -> None:
        with autocast(assignment.case.precision, device):
            model(*batch[:-1])

    graphed = "graph" in assignment.variant
    eager = over(step, pool[:1] if graphed else pool)
    return Prepared(
        Once(lambda: in_graph(eager, device)) if graphed else eager,
        "bases and casts; graphs lie on the GPU, predictions stay there, batches follow each other without a wait",
        PACKAGES,
        [graph_operations.DIFFERS, INSTALLED, *(["the CUDA graph of a batch is ours"] if graphed else [])],
        reference=identity(folder),
    )


def prepared(assignment: Assignment, device: torch.device) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    """Returns the folder of the clone, the network, and batches on the device."""
    folder = folder_of(assignment)
    graph_operations.install()
    if device.type != "cuda":
        torch.cuda.nvtx.range = lambda *_: nullcontext()  # torch for CPUs has no such marks
    from se3_transformer.model.fiber import Fiber  # pyright: ignore[reportMissingImports]
    from se3_transformer.model.transformer import SE3TransformerPooled  # pyright: ignore[reportMissingImports]

    set_precision(assignment.case.precision)
    if device.type == "cuda":
        fetch_more_into_l2()
    datamodule, ours = batches(assignment, device, keep=lambda batch: batch.count == assignment.batch_size)
    pool = [as_taken(batch, datamodule.mean, datamodule.std) for batch in ours]
    torch.manual_seed(0)
    sizes = TINY if assignment.tiny else SIZES
    model = SE3TransformerPooled(
        fiber_in=Fiber({0: ours[0].node_features.shape[1]}),
        fiber_out=Fiber({0: sizes["num_degrees"] * sizes["num_channels"]}),
        fiber_edge=Fiber({0: ours[0].edge_features.shape[1]}),
        output_dim=1, tensor_cores=True, pooling="max", norm=True, use_layer_norm=True, low_memory=False, **sizes,
    )  # fmt: skip
    return folder, model.to(device).train(), pool


def as_taken(batch: GraphBatch, mean: float, std: float) -> tuple[Any, ...]:
    """Returns graph, node features, edge features and targets as its network takes them, without our padding."""
    pointers = batch.graph_ptr[: batch.count + 1].long()
    nodes = int(pointers[-1])
    edges = int(batch.dst_ptr[nodes])
    src, dst = batch.src[:edges].long(), batch.dst[:edges].long()
    graph = graph_operations.DGLGraph(src, dst, pointers.diff())
    positions = batch.positions.float()
    graph.edata["rel_pos"] = positions[dst] - positions[src]
    node_features = {"0": batch.node_features[:nodes, :, None].float()}
    edge_features = {"0": batch.edge_features[:edges, :, None].float()}
    return graph, node_features, edge_features, ((batch.targets[: batch.count] - mean) / std).float()


def fetch_more_into_l2() -> None:
    """Sets the limit that its scripts set, where CUDA's library is found."""
    for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12"):
        try:
            ctypes.CDLL(name).cudaDeviceSetLimit(ctypes.c_int(L2_FETCH_LIMIT), ctypes.c_size_t(L2_FETCH_BYTES))
            return
        except OSError:
            continue

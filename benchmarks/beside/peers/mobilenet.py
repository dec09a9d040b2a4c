"""timm's MobileNetV1."""

import torch
from torch.nn import functional as F

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers.common import Once, batches, fused, in_graph, over, set_precision, training_step
from src.training.task import begin_momentum


def timm_training(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains mobilenetv1_100 with SGD and Nesterov's momentum, as our recipe does; variants name how."""
    import timm  # pyright: ignore[reportMissingImports]

    set_precision(assignment.case.precision)
    datamodule, pool = batches(assignment, device)
    network = timm.create_model("mobilenetv1_100", num_classes=datamodule.num_classes).to(device).train()
    if "channels_last" in assignment.variant:
        network = network.to(memory_format=torch.channels_last)
    forward = torch.compile(network) if "compiled" in assignment.variant and device.type == "cuda" else network
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4} | fused(device)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, **options)
    begin_momentum(optimizer)
    mean, deviation = torch.tensor([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]], device=device)
    ready = [(((b.pixels - mean) / deviation).permute(0, 3, 1, 2), b.labels) for b in pool]  # is channels_last
    if "channels_last" not in assignment.variant:
        ready = [(images.contiguous(), labels) for images, labels in ready]

    step = training_step(
        lambda batch: F.cross_entropy(forward(batch[0]), batch[1]), optimizer, assignment.case.precision, device
    )
    eager = over(step, ready[:1] if "graph" in assignment.variant else ready)
    return Prepared(
        Once(lambda: in_graph(eager, device)) if "graph" in assignment.variant else eager,
        "casts, loss scaling, optimizer; normalised images lie on the GPU",
        ["timm", "torchvision", "triton"],
    )

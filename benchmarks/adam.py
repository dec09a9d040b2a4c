"""Times Adam on an NVIDIA GPU, for MoFlow and DistilBERT: `python -m benchmarks.adam [BLOCK:WARPS ...]`.

Each is a replay of one captured step with a gradient scale, as clipping sets it: torch's fused Adam's, and ours with
these block sizes and warps. The bandwidth is that of a copy; an update moves 28 bytes a parameter at least.
"""

import sys
from typing import Any

import torch
from torch import nn

from src.measure.replay import device_ms
from src.models.distilbert import Sizes
from src.models.distilbert.network import DistilBert
from src.models.moflow.network import MoFlow
from src.training import adam

MOFLOW: dict[str, Any] = {
    "num_nodes": 40, "num_atom_classes": 10, "num_bond_classes": 4, "max_atoms": 38, "bond_squeeze": 20,
    "bond_hidden": [512, 512], "num_bond_flows": 10, "conv_lu": 2, "num_atom_flows": 38, "gnn_channels": 256,
    "atom_hidden": [512, 64], "noise_scale": 0.6,
}  # fmt: skip
BYTES = 28  # a parameter: read it, gradient and both averages, write all but the gradient


def copy_rate() -> float:
    """Returns the bytes a second that a copy of 1 GiB reads and writes."""
    source = torch.zeros(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (device_ms(lambda: target.copy_(source)) / 1e3)


def update_ms(parameters: list[nn.Parameter], ours: bool) -> float:
    """Returns the device time of one update."""
    optimizer: Any = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.99), fused=True, capturable=True)
    optimizer.grad_scale = torch.tensor(1024.0, device="cuda")
    if ours:
        adam.use_kernels(optimizer)
    return device_ms(optimizer.step, calls=1, repeats=20)  # a graph holds one step of ours


def main() -> None:
    """Prints one line for each network and way."""
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e12:.2f} TB/s\n")
    print("| network | update | us | share of the copy's bandwidth |\n|---|---|---:|---:|")
    for name, network in {"MoFlow": MoFlow(**MOFLOW), "DistilBERT": DistilBert(Sizes())}.items():
        parameters = sorted(network.cuda().parameters(), key=torch.numel, reverse=True)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        least_ms = 1e3 * BYTES * sum(map(torch.numel, parameters)) / rate
        for way in ["torch", *(sys.argv[1:] or [f"{adam.BLOCK}:{adam.WARPS}"])]:
            if way != "torch":
                adam.BLOCK, adam.WARPS = map(int, way.split(":"))
            ms = update_ms(parameters, way != "torch")
            print(f"| {name} | {way} | {1e3 * ms:.0f} | {least_ms / ms:.0%} |", flush=True)


if __name__ == "__main__":
    main()

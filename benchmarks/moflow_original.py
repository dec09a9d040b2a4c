"""Trains NVIDIA's MoFlow and ours side by side in float64, and fails where they differ by more than rounding.

    python -m benchmarks.moflow_original ../DeepLearningExamples [--steps 3] [--batch 16] [--group 8] [--lr 5e-4]
        [--conv_lu 2]

The argument is a clone of NVIDIA/DeepLearningExamples at commit 729963d. Both start from the same weights, set ActNorm
from the same first batch, and get the same random molecules and noise. NVIDIA's code computes a batch in groups, each
as on a device of its own: ActNorm starts from the mean over networks with weights of their own, gradients are
averaged and rank 0's statistics of BatchNorm are kept, as DistributedDataParallel does. Ours computes the batch at
once, with `norm_batch`. Prints each step's bits per dimension and gradient norm, and exits with 1 where one of them,
ActNorm's start, a weight, ln_var or a decoded molecule differs. Running statistics of BatchNorm are compared where
there is one group: only there they mean the same. Runs on the CPU; the default takes about three minutes.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from benchmarks.beside.peers.reference import FOLDERS, identity, stand_in
from src.models.moflow.fast import accelerate
from src.models.moflow.network import MoFlow

TOLERANCE = 1e-9  # relative
ATOM = {
    "coupling.net_conv.0.graph_conv.graph_linear_self": "graph_conv.self_linear",
    "coupling.net_conv.0.graph_conv.graph_linear_edge": "graph_conv.edge_linear",
    "coupling.net_conv.0.bn": "norms.0",
    "coupling.net_lin.0.lin": "linears.0",
    "coupling.net_lin.0.bn": "norms.1",
    "coupling.net_lin.1.lin": "linears.1",
    "coupling.net_lin.1.bn": "norms.2",
    "coupling.net_lin.2": "linears.2",
    "actnorm": "actnorm",
}
BOND = {
    "coupling.layers.0": "coupling.convs.0",
    "coupling.layers.1": "coupling.norms.0",
    "coupling.layers.3": "coupling.convs.1",
    "coupling.layers.4": "coupling.norms.1",
    "coupling.layers.6": "coupling.convs.2",
    "actnorm": "actnorm",
}
CONV = {"w_l": "lower", "w_u": "upper", "w_s": "log_s", "s_sign": "sign", "w_p": "permutation", "weight": "weight"}
FLOWS = {"atom_model": ("atom_flow", ATOM), "bond_model": ("bond_flow", BOND)}
NOT_OURS = ("num_batches_tracked", "num_elements", "mask", "initialized", "l_eye")


def our_name(theirs: str) -> str:
    """Returns our name of NVIDIA's weight `atom_model.blocks.0.flows.INDEX.LAYER.KIND`."""
    model, _, _, _, index, *layer, kind = theirs.split(".")
    flow, layers = FLOWS[model]
    if layer == ["invconv"]:
        return f"{flow}.steps.{index}.conv.{CONV[kind]}"
    return f"{flow}.steps.{index}.{layers['.'.join(layer)]}.{kind}"


def weights_of(original: nn.Module) -> dict[str, Tensor]:
    """Returns weights and running statistics by our names."""
    tensors = {name: value for name, value in original.state_dict().items() if not name.endswith(NOT_OURS)}
    return {our_name(name): value.argmax(1) if name.endswith("w_p") else value for name, value in tensors.items()}


def as_original(original: nn.Module, ours: nn.Module) -> nn.Module:
    """Gives NVIDIA's network the weights of ours; returns it."""
    weights = {name: F.one_hot(value) if name.endswith("permutation") else value
               for name, value in ours.state_dict().items()}  # fmt: skip
    original.load_state_dict(
        {name: weights[our_name(name)].view_as(value) for name, value in original.state_dict().items()
         if not name.endswith(NOT_OURS)}, strict=False)  # fmt: skip
    return original


def molecules(size: int, config: Any, encode: Any) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns random graphs: ours as classes, and as NVIDIA's code encodes the same atomic numbers and bonds."""
    atoms = config.dataset_config.max_num_atoms
    nodes = torch.randint(0, config.num_node_features, (size, atoms), dtype=torch.uint8)
    upper = torch.randint(0, config.num_edge_features, (size, atoms, atoms), dtype=torch.uint8).triu(1)
    edges = upper + upper.transpose(1, 2)
    numbers = np.array(list(config.dataset_config.code_to_atomic.values()), dtype=np.uint8)[nodes.numpy()]
    pairs = [encode((atomic, bonds), config) for atomic, bonds in zip(numbers, edges.numpy(), strict=True)]
    x, adj = (torch.from_numpy(np.stack(part)).double() for part in zip(*pairs, strict=True))
    return (nodes, edges), (x, adj)


@contextmanager
def noise(*values: Tensor) -> Iterator[None]:
    """Makes the next calls of torch.rand_like return these."""
    left = list(values)
    with patch.object(torch, "rand_like", lambda like: left.pop(0).view_as(like)):
        yield


def start_as_devices(
    models: Sequence[nn.Module],
    x: Tensor,
    adj: Tensor,
    drawn: Sequence[Tensor],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Initialises NVIDIA's models as processes of one group do, with a part of the batch and of its noise each.

    Its ActNorms average over the group what each process finds in its own network; here each process is a thread.
    """
    from moflow.model import basic  # pyright: ignore[reportMissingImports]
    from moflow.model.utils import initialize  # pyright: ignore[reportMissingImports]

    count = len(models)
    parts = list(zip(*(tensor.chunk(count) for tensor in (adj, x, *drawn)), strict=True))
    barrier, values, local = threading.Barrier(count), [torch.empty(0)] * count, threading.local()

    def mean(value: Tensor, _world: int) -> Tensor:
        values[local.index] = value
        barrier.wait()
        total = torch.stack(values).sum(0)
        barrier.wait()
        return total / count

    def process(index: int) -> None:
        local.index, local.noise = index, list(parts[index][2:])
        try:
            with torch.no_grad(), autocast():
                initialize(models[index], parts[index][:2])
        except BaseException:
            barrier.abort()
            raise

    with (
        patch.object(basic, "get_world_size", lambda: count),
        patch.object(basic, "reduce_tensor", mean),
        patch.object(torch, "rand_like", lambda like: local.noise.pop(0).view_as(like)),
        ThreadPoolExecutor(count) as pool,
    ):
        list(pool.map(process, range(count)))


def statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.named_buffers() if "running" in name}


def original_step(model: nn.Module, loss: nn.Module, x: Tensor, adj: Tensor, drawn: list[Tensor], group: int) -> Tensor:
    """Adds the gradients of a batch that devices of `group` molecules share; returns the bits of atoms and bonds."""
    before, shares = statistics(model), len(x) // group
    kept, total = before, torch.zeros(2, dtype=torch.float64)
    for index in range(shares):
        part = slice(index * group, (index + 1) * group)
        with noise(*(tensor[part] for tensor in drawn)):
            bits = torch.stack([value.squeeze() for value in loss(*model(adj[part], x[part]))])
        (bits.sum() / shares).backward()
        total += bits.detach() / shares
        kept = statistics(model) if index == 0 else kept
        model.load_state_dict(before, strict=False)
    model.load_state_dict(kept, strict=False)
    return total


def differ(ours: Tensor, theirs: Tensor) -> bool:
    return not torch.allclose(ours, theirs.view_as(ours), rtol=TOLERANCE, atol=TOLERANCE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares training with NVIDIA's MoFlow, in float64.")
    parser.add_argument("reference", type=Path)
    for name, value in (("steps", 3), ("batch", 16), ("group", 8), ("conv_lu", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=5e-4)
    asked = parser.parse_args()
    if asked.batch % asked.group:
        parser.error(f"--group {asked.group} does not divide --batch {asked.batch}: change one of them")
    folder = asked.reference / FOLDERS["moflow"]
    if not folder.is_dir():
        parser.error(f"{asked.reference} has no {FOLDERS['moflow']}")
    sys.path.insert(0, str(folder))
    stand_in(["dllogger"])
    from moflow.config import CONFIGS  # pyright: ignore[reportMissingImports]
    from moflow.data.transform import transform_fn  # pyright: ignore[reportMissingImports]
    from moflow.model.model import MoFlow as Original  # pyright: ignore[reportMissingImports]
    from moflow.model.model import MoFlowLoss  # pyright: ignore[reportMissingImports]

    config = CONFIGS["zinc250k"]
    config.model_config.bond_config.conv_lu = asked.conv_lu
    torch.manual_seed(0)
    theirs, loss = Original(config).double(), MoFlowLoss(config).double()
    ours = accelerate(MoFlow(norm_batch=asked.group, conv_lu=asked.conv_lu)).double()
    fresh = {name: value.view_as(ours.state_dict()[name]).clone() for name, value in weights_of(theirs).items()}
    ours.load_state_dict(ours.state_dict() | fresh)
    batch, (x, adj) = molecules(asked.batch, config, transform_fn)
    drawn = [torch.rand_like(x), torch.rand_like(adj)]
    networks = ours.networks_of_devices(asked.batch // asked.group)
    start_as_devices(
        [theirs, *(as_original(Original(config).double(), network) for network in networks[1:])], x, adj, drawn
    )
    with noise(*drawn), patch.object(ours, "networks_of_devices", lambda _count: networks):
        ours.initialize(*batch)
    del networks
    begun = ours.state_dict()
    wrong = [f"start of {name}" for name, value in weights_of(theirs).items()
             if "actnorm" in name and differ(begun[name], value)]  # fmt: skip
    started = {name: value.view_as(ours.state_dict()[name]) for name, value in weights_of(theirs).items()}
    ours.load_state_dict(ours.state_dict() | started)
    print(f"NVIDIA's MoFlow {identity(folder)['commit'] or 'of another commit'}; {len(started)} tensors carried over")

    optimizers = [torch.optim.Adam([*part], asked.lr, betas=(0.9, 0.99)) for part in
                  ([*theirs.parameters(), *loss.parameters()], ours.parameters())]  # fmt: skip
    learned = [value for name, value in ours.named_parameters() if name != "ln_var"]
    for step in range(asked.steps):
        batch, (x, adj) = molecules(asked.batch, config, transform_fn)
        drawn = [torch.rand_like(x), torch.rand_like(adj)]
        expected = original_step(theirs, loss, x, adj, drawn, asked.group)
        with noise(*drawn):
            bits = torch.stack(ours.bits_per_dim(ours(*batch)))
        bits.sum().backward()
        norms = [clip_grad_norm_(part, 1.0) for part in (theirs.parameters(), learned)]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {step}: bits of atoms and bonds {bits.tolist()}, NVIDIA's {expected.tolist()}; "
              f"gradient norms {norms[1].item()}, {norms[0].item()}", flush=True)  # fmt: skip
        wrong += [f"step {step}"] if differ(bits, expected) or differ(norms[1], norms[0]) else []

    whole = asked.group == asked.batch
    weights = ours.state_dict()
    wrong += [name for name, value in weights_of(theirs).items()
              if (whole or "running" not in name) and differ(weights[name], value)]  # fmt: skip
    wrong += ["ln_var"] if differ(ours.ln_var, loss.ln_var) else []
    theirs.load_state_dict({name: weights[our_name(name)] for name in statistics(theirs)}, strict=False)  # as in ours
    z = 0.3 * torch.randn(16, config.z_dim, dtype=torch.float64)
    parts = z.split([x[0].numel(), adj[0].numel()], 1)
    with torch.no_grad():
        adj, x = theirs.eval().reverse(z)
        found_x, found_adj = ours.eval().reverse(parts[0].view_as(x), parts[1].view_as(adj))
    wrong += ["decoded molecules"] if differ(found_x, x) or differ(found_adj, adj) else []
    print(f"differ: {', '.join(wrong[:5])}" if wrong else f"all equal to {TOLERANCE:g}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

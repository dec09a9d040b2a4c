"""NVIDIA's MoFlow, from the clone that the user names."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers.common import (
    Once,
    autocast,
    batches,
    fused,
    over,
    remember_loss,
    set_precision,
)
from benchmarks.beside.peers.reference import folder_of, identity, stand_in

EAGER_STEPS = 5  # before its graphs are captured; its own default is 20
PACKAGES = ["rdkit", "scipy"]
APEX = "torch's fused Adam and clip_grad_norm_ in place of apex's"


def training(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains as its runtime/train.py does; the variant is graph (its make_graphed_callables), jit or eager."""
    folder = folder_of(assignment)
    stand_in(["dllogger"])
    from moflow.model.model import MoFlow, MoFlowLoss  # pyright: ignore[reportMissingImports]
    from moflow.model.utils import initialize  # pyright: ignore[reportMissingImports]

    torch._C._jit_set_autocast_mode(True)
    set_precision(assignment.case.precision)
    config = config_of(assignment)
    pool = inputs(assignment, config, device)
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())
    torch.manual_seed(0)
    model, loss_module = MoFlow(config).to(device), MoFlowLoss(config).to(device)
    with autocast(assignment.case.precision, device):
        initialize(model, pool[0])
    model.to(memory_format=torch.channels_last)
    if assignment.variant == "jit":
        model.bond_model, model.atom_model = (torch.jit.script(m) for m in (model.bond_model, model.atom_model))
    with torch.no_grad():
        model(*pool[0])
    options = fused(device)
    optimizer = torch.optim.Adam([*model.parameters(), *loss_module.parameters()], 5e-4, betas=(0.9, 0.99), **options)
    scaler = torch.amp.GradScaler(device.type, enabled=assignment.case.precision == "amp")

    def step(batch: tuple[Tensor, Tensor], graphed: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16, assignment.case.precision == "amp", cache_enabled=not graphed):
            of_atoms, of_bonds = loss_module(*model(*batch, with_cuda_graph=graphed))
            loss = of_atoms + of_bonds
        remember_loss(loss)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def with_graphs() -> Callable[[], Any]:
        for batch in (pool * EAGER_STEPS)[:EAGER_STEPS]:
            step(batch, False)
        return over(lambda batch: step(batch, device.type == "cuda"), pool)

    run = Once(with_graphs) if assignment.variant == "graph" else over(lambda batch: step(batch, False), pool)
    return Prepared(run, "casts, loss scaling, clipping, optimizer; one-hot molecules lie on the GPU", PACKAGES,
                    [APEX], reference=identity(folder))  # fmt: skip


def generation(assignment: Assignment, device: torch.device) -> Prepared:
    """Generates as its runtime/generate.py does, untrained; the variant is jit or eager."""
    folder = folder_of(assignment)
    stand_in(["dllogger"])
    from moflow.model.model import MoFlow  # pyright: ignore[reportMissingImports]
    from moflow.runtime.generate import infer  # pyright: ignore[reportMissingImports]

    torch._C._jit_set_autocast_mode(True)
    set_precision(assignment.case.precision)
    config = config_of(assignment)
    torch.manual_seed(0)
    model = MoFlow(config).to(device, memory_format=torch.channels_last).eval()
    if assignment.variant == "jit":
        model.bond_model, model.atom_model = (torch.jit.script(m) for m in (model.bond_model, model.atom_model))

    def step() -> None:
        with autocast(assignment.case.precision, device):
            infer(model, config, device=device, ln_var=0, temp=0.3, batch_size=assignment.batch_size)

    return Prepared(step, "its infer(): random numbers, the reverse pass, atoms and bonds on the host", PACKAGES,
                    reference=identity(folder))  # fmt: skip


def config_of(assignment: Assignment) -> Any:
    """Returns its configuration for ZINC-250k, or one with small layers."""
    from moflow.config import (  # pyright: ignore[reportMissingImports]
        ZINC250K_CONFIG,
        AtomFlowConfig,
        BondFlowConfig,
        Config,
        ModelConfig,
    )

    if not assignment.tiny:
        return ZINC250K_CONFIG
    small = ModelConfig(AtomFlowConfig(3, [8], [8, 8]), BondFlowConfig([8, 8], 2, 20, n_flow=2))
    return Config(ZINC250K_CONFIG.dataset_config, small, ZINC250K_CONFIG.max_num_nodes)


def inputs(assignment: Assignment, config: Any, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Returns batches of ours as it takes them: one-hot bonds [batch, 4, 40, 40] and atoms [batch, 40, 10]."""
    _, pool = batches(assignment, device)
    pairs = []
    for nodes, edges in pool:
        more = config.max_num_nodes - nodes.shape[1]
        atoms = F.one_hot(F.pad(nodes, (0, more)).long(), config.num_node_features).float()
        bonds = F.one_hot(F.pad(edges, (0, more, 0, more)).long(), config.num_edge_features).float()
        pairs.append((bonds.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last), atoms))
    return pairs

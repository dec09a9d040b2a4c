"""Trains NVIDIA's MoFlow by the published 1x8 recipe on fewer GPUs, and judges it as our own trainings are judged.

    python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.moflow_original_training ../DeepLearningExamples \
        --data data/zinc250k --split valid_idx_zinc.json [--epochs 300] [--network theirs]

The first argument is a clone of NVIDIA/DeepLearningExamples at commit 729963d, whose modules, CUDA graphs and sampling
are used as they are. A step has `--batch` molecules in groups of `--group`, each as on a device of its own: ActNorm
starts from the mean over as many networks with weights of their own, gradients are averaged, and BatchNorm's running
statistics are those of the first group of rank 0, as DistributedDataParallel keeps them. In place of apex's fused Adam
and clipping it takes torch's, and our batches on the GPU in place of its loader, after checking one of them against its
own encoding. `--network ours` trains our network in the same loop, without compilation and CUDA graph, and tells a
difference of the networks from one of the trainings.

After the first epoch and every `--every` epochs rank 0 prints a line: bits per dimension of held-out molecules with
noise, and validity, uniqueness and NUV of `--molecules` generated ones, by batches of 512. Where NVIDIA's modules are
trained, the line also has the validity that our network reaches with their weights, in this precision and in float32
(`ours_validity`, `ours_fp32_validity`), and how many of 512 molecules its own rules and ours judge differently
(`judged_differently`). `--out` also writes a csv, `--weights` the last weights by our names.
`--steps` ends each epoch early and judges few held-out molecules: a rehearsal, which a CPU can do.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.beside.peers.reference import FOLDERS, identity, stand_in
from benchmarks.moflow_original import start_as_devices, weights_of
from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.molecules.zinc250k import load
from src.errors import UserError
from src.models.moflow.fast import accelerate
from src.models.moflow.network import MoFlow
from src.molecules.score import Scorer
from src.system.tables import write_csv

EAGER_STEPS = 20  # before NVIDIA's graphs are captured, its own default
SAMPLED = 512  # molecules generated at once
Batch = tuple[Tensor, Tensor]


class Trained(Protocol):
    """A network in this loop: `modules` are trained, of which `clipped` have their gradients' norm limited."""

    modules: Any
    clipped: list[nn.Parameter]
    ln_var: nn.Parameter

    def bits(self, batch: Batch, graph: bool) -> Tensor: ...  # of atoms and bonds, with noise
    def sample(self, count: int, temperature: float) -> tuple[np.ndarray, np.ndarray]: ...
    def checked(self, scorer: Scorer, temperature: float) -> dict[str, float]: ...  # what else there is to compare


class Theirs:
    """NVIDIA's network and loss, with its own way to sample."""

    def __init__(self, folder: Path, first: Batch, groups: int, amp: bool) -> None:
        sys.path.insert(0, str(folder))
        stand_in(["dllogger"])
        from moflow.config import ZINC250K_CONFIG  # pyright: ignore[reportMissingImports]
        from moflow.model.model import MoFlow as Original  # pyright: ignore[reportMissingImports]
        from moflow.model.model import MoFlowLoss  # pyright: ignore[reportMissingImports]
        from moflow.runtime.generate import infer  # pyright: ignore[reportMissingImports]

        self.config, self._infer = ZINC250K_CONFIG, infer
        self.encoder = MoFlow(bond_hidden=(8, 8), num_bond_flows=1, num_atom_flows=1)  # for its one_hot alone
        self.check_encoding(first)
        device = first[0].device
        self.encoder.to(device)
        self.model, self.loss = Original(self.config).to(device), MoFlowLoss(self.config).to(device)
        adj, x = self.inputs(first)
        drawn = [torch.rand_like(x), torch.rand_like(adj)]
        others = [Original(self.config).to(device) for _ in range(groups - 1)]
        autocast = partial(torch.autocast, device.type, torch.float16, amp)
        start_as_devices([self.model, *others], x, adj, drawn, autocast)
        self.model.to(memory_format=torch.channels_last)
        self.modules: Any = nn.ModuleList([self.model, self.loss])
        self.clipped, self.ln_var = list(self.model.parameters()), self.loss.ln_var

    def inputs(self, batch: Batch) -> Batch:
        """Returns one-hot bonds and atoms."""
        atoms, bonds = self.encoder.one_hot(*batch)
        return bonds.contiguous(memory_format=torch.channels_last), atoms

    def check_encoding(self, batch: Batch) -> None:
        """Raises UserError where its own code encodes the first of these molecules in another way."""
        from moflow.data.transform import transform_fn  # pyright: ignore[reportMissingImports]

        numbers = np.array(list(self.config.dataset_config.code_to_atomic.values()), dtype=np.uint8)
        nodes, edges = (tensor[:16].cpu() for tensor in batch)
        bonds, atoms = self.inputs((nodes, edges))
        for index, pair in enumerate(zip(numbers[nodes.numpy()], edges.numpy(), strict=True)):
            x, adj = transform_fn(pair, self.config)
            if not (np.array_equal(atoms[index], x) and np.array_equal(bonds[index], adj)):
                raise UserError("the clone encodes molecules in another way: check out commit 729963d")

    def bits(self, batch: Batch, graph: bool) -> Tensor:
        adj, x = self.inputs(batch)
        if self.model.training:
            return torch.stack([value.squeeze() for value in self.loss(*self.model(adj, x, with_cuda_graph=graph))])
        # In evaluation its forward adds no noise: call its two flows with what it adds in training.
        width = self.model.noise_scale
        z_atom, logdet_atom = self.model.atom_model(adj, x + torch.rand_like(x) * width)
        z_bond, logdet_bond = self.model.bond_model(adj + torch.rand_like(adj) * width)
        return torch.stack([value.squeeze() for value in self.loss(z_atom, z_bond, logdet_atom, logdet_bond)])

    def sample(self, count: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        ln_var, device = self.ln_var.item(), self.ln_var.device
        adj, numbers = self._infer(
            self.model, self.config, device=device, ln_var=ln_var, temp=temperature, batch_size=count
        )
        self.sampled = adj, numbers
        atomic_numbers = np.array(list(self.config.dataset_config.code_to_atomic.values()))
        edges = adj.astype(np.uint8)
        edges[:, np.arange(edges.shape[1]), np.arange(edges.shape[1])] = 0  # its construct_mol reads none of these
        return np.searchsorted(atomic_numbers, numbers).astype(np.uint8), edges

    def ours(self) -> MoFlow:
        """Returns our network with these weights, for evaluation."""
        network = accelerate(MoFlow()).to(self.ln_var.device)
        state = network.state_dict() | {"ln_var": self.ln_var.detach()} | weights_of(self.model)
        network.load_state_dict({name: value.view_as(network.state_dict()[name]) for name, value in state.items()})
        return network.eval()

    def checked(self, scorer: Scorer, temperature: float) -> dict[str, float]:
        """Returns the validity of our network with these weights, and how many samples its own rules judge otherwise.

        The weights are those of evaluation mode; call it under the autocast of the training.
        """
        from moflow.utils import check_validity, convert_predictions_to_mols  # pyright: ignore[reportMissingImports]

        network, figures = self.ours(), dict[str, float]()
        for name, autocast in (("ours_validity", torch.is_autocast_enabled(self.ln_var.device.type)),
                               ("ours_fp32_validity", False)):  # fmt: skip
            with torch.autocast(self.ln_var.device.type, torch.float16, autocast):
                arrays = [[part.cpu().numpy() for part in network.sample(SAMPLED, temperature)] for _ in range(4)]
            smiles = [text for nodes, edges in arrays for text in scorer.build(nodes, edges).result()]
            figures[name] = 100 * sum(text is not None for text in smiles) / len(smiles)
        nodes, edges = self.sample(SAMPLED, temperature)
        by_ours = scorer.build(nodes, edges).result()
        by_theirs = [check_validity([mol])["valid_smiles"] for mol in convert_predictions_to_mols(*self.sampled)]
        return figures | {"judged_differently": sum(
            (text is None) != (not verdict) for text, verdict in zip(by_ours, by_theirs, strict=True))}  # fmt: skip


class Ours:
    """Our network; its groups are trained one by one, as NVIDIA's are."""

    def __init__(self, first: Batch, groups: int, amp: bool) -> None:
        self.modules: Any = accelerate(MoFlow(norm_batch=len(first[0]) // groups)).to(first[0].device)
        with torch.autocast(first[0].device.type, torch.float16, amp):
            self.modules.initialize(*first)
        self.clipped = [value for name, value in self.modules.named_parameters() if name != "ln_var"]
        self.ln_var: nn.Parameter = self.modules.ln_var

    def bits(self, batch: Batch, graph: bool) -> Tensor:
        network = self.modules
        if network.training:
            return torch.stack(network.bits_per_dim(network(*batch)))
        return torch.stack(network.likelihood(*batch))

    def sample(self, count: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        nodes, edges = self.modules.sample(count, temperature)
        return nodes.cpu().numpy(), edges.cpu().numpy()

    def checked(self, scorer: Scorer, temperature: float) -> dict[str, float]:
        return {}


class Training:
    """The published step on this rank's share of a batch."""

    def __init__(self, trained: Trained, asked: argparse.Namespace, device: torch.device, world: int) -> None:
        self.trained, self.asked, self.device, self.world, self.steps = trained, asked, device, world, 0
        self.parameters = list(trained.modules.parameters())
        self.buffers = [buffer for name, buffer in trained.modules.named_buffers() if "running" in name]
        sizes = [parameter.numel() for parameter in self.parameters]
        self.flat = torch.zeros(sum(sizes), device=device, dtype=trained.ln_var.dtype)
        self.grads = [part.as_strided(parameter.shape, parameter.stride())
                      for part, parameter in zip(self.flat.split(sizes), self.parameters, strict=True)]  # fmt: skip
        self.optimizer = torch.optim.Adam(self.parameters, asked.lr, betas=(0.9, 0.99))
        self.scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda" and asked.precision == "amp")

    def autocast(self, graph: bool = False) -> torch.autocast:
        return torch.autocast(self.device.type, torch.float16, self.scaler.is_enabled(), cache_enabled=not graph)

    def __call__(self, batch: Batch) -> Tensor:
        """Trains on a share of a batch; returns its bits of atoms and bonds."""
        bits = self.gradients(batch)
        if self.world > 1:
            distributed.all_reduce(self.flat)
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.trained.clipped, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for parameter in self.parameters:
            parameter.grad = None
        self.steps += 1
        return bits

    def gradients(self, batch: Batch) -> Tensor:
        """Sets `grads` to this share's part of the mean over all groups, times the loss scale; returns its bits."""
        graph = self.device.type == "cuda" and self.asked.network == "theirs" and self.steps >= EAGER_STEPS
        groups = list(zip(*(tensor.split(self.asked.group) for tensor in batch), strict=True))
        kept, bits = list[Tensor](), torch.zeros(2).to(self.flat)
        self.flat.zero_()
        for group in groups:
            with self.autocast(graph):
                group_bits = self.trained.bits(group, graph)
            self.scaler.scale(group_bits.sum() / (len(groups) * self.world)).backward()
            found_grads = [parameter.grad for parameter in self.parameters]
            torch._foreach_add_(self.grads, found_grads)  # pyright: ignore
            for parameter in self.parameters:
                parameter.grad = None  # it may lie in the graph's memory, which the next group overwrites
            bits += group_bits.detach() / len(groups)
            kept = kept or [buffer.clone() for buffer in self.buffers]  # after the first group
        for buffer, value in zip(self.buffers, kept, strict=True):
            buffer.copy_(value)
        return bits

    def share_statistics(self) -> None:
        if self.world > 1:
            for buffer in self.buffers:
                distributed.broadcast(buffer, 0)


def shares(index: Tensor, nodes: Tensor, edges: Tensor, batch: int, rank: int, world: int) -> Iterator[Batch]:
    """Yields this rank's share of each whole batch of these rows."""
    for start in range(0, len(index) // batch * batch, batch):
        rows = index[start : start + batch].chunk(world)[rank]
        yield nodes[rows], edges[rows]


def judged(training: Training, data: MolecularData, held_out: Batch, scorer: Scorer | None) -> dict[str, float] | None:
    """Returns held-out bits and scores of generated molecules on the rank with a scorer, None on the others."""
    training.share_statistics()
    training.trained.modules.eval()
    figures: dict[str, float] | None = None
    if scorer is not None:
        with torch.no_grad(), training.autocast():
            parts = list(zip(*(tensor.split(SAMPLED) for tensor in held_out), strict=True))
            bits = torch.stack([training.trained.bits(part, False) * len(part[0]) for part in parts]).sum(0)
            pending = [scorer.build(*training.trained.sample(SAMPLED, training.asked.temperature))
                       for _ in range(-(-training.asked.molecules // SAMPLED))]  # fmt: skip
            checked = training.trained.checked(scorer, training.asked.temperature)
        smiles = [text for future in pending for text in future.result()]
        scores = scorer.score(smiles, SAMPLED, pool=len(smiles))
        atom, bond = (bits / len(held_out[0])).tolist()
        figures = {"val_bits_atom": atom, "val_bits_bond": bond} | {
            name: scores[name] for name in ("validity", "uniqueness", "nuv", "pool_uniqueness")
        } | checked  # fmt: skip
    training.trained.modules.train()
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains NVIDIA's MoFlow by the published 1x8 recipe.")
    parser.add_argument("reference", type=Path)
    for name, value in (("data", Path("data/zinc250k")), ("split", None), ("out", None), ("weights", None)):
        parser.add_argument(f"--{name}", type=Path, default=value)
    for name, value in (("epochs", 300), ("every", 25), ("batch", 4096), ("group", 512), ("seed", 1),
                        ("molecules", 2048), ("steps", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--network", choices=["theirs", "ours"], default="theirs")
    parser.add_argument("--precision", choices=["amp", "tf32"], default="amp")
    asked = parser.parse_args()
    if not (asked.reference / FOLDERS["moflow"]).is_dir():
        parser.error(f"{asked.reference} has no {FOLDERS['moflow']}: give a clone of NVIDIA/DeepLearningExamples")
    at_once = asked.group * int(os.environ.get("WORLD_SIZE", "1"))
    if asked.batch % at_once:
        parser.error(f"--batch {asked.batch} is no multiple of {at_once}, --group times the processes: change one")
    return asked


def own_device() -> torch.device:
    """Returns this rank's device, set up for the training."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return device


def train(asked: argparse.Namespace, rank: int, world: int) -> None:
    data, device = load(asked.data, split_file=asked.split), own_device()
    nodes, edges = (torch.from_numpy(np.array(array)).to(device) for array in (data.nodes, data.edges))
    rows, held = (torch.from_numpy(np.asarray(array)).to(device) for array in (data.train_index, data.valid_index))
    held = held[: asked.group if asked.steps else None]

    torch.manual_seed(asked.seed)
    order = torch.Generator(device).manual_seed(asked.seed)
    first = rows[torch.randperm(len(rows), generator=order, device=device)[: asked.batch]]
    start, amp = (nodes[first], edges[first]), device.type == "cuda" and asked.precision == "amp"
    folder = asked.reference / FOLDERS["moflow"]
    begin = partial(Theirs, folder) if asked.network == "theirs" else Ours
    trained: Trained = begin(start, asked.batch // asked.group, amp)
    if world > 1:  # only now: each rank starts alone as all devices do together
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        for value in (*trained.modules.parameters(), *trained.modules.buffers()):
            distributed.broadcast(value.detach(), 0)
    training = Training(trained, asked, device, world)
    torch.manual_seed(asked.seed + 1000 * (rank + 1))  # the noise, of each rank
    scorer = Scorer(data.vocabulary, data.train_published, data.train_canonical) if rank == 0 else None
    if scorer is not None:
        commit = identity(folder)["commit"] or "of another commit"
        print(f"{asked.network}, NVIDIA's MoFlow {commit}, world size {world}, {vars(asked)}", flush=True)
    lines, bits, began = [], torch.zeros(2), time.perf_counter()
    for epoch in range(1, asked.epochs + 1):
        shuffled = rows[torch.randperm(len(rows), generator=order, device=device)]
        batches = shares(shuffled, nodes, edges, asked.batch, rank, world)
        for batch in islice(batches, asked.steps or None):
            bits = training(batch)
        if epoch % asked.every and epoch not in (1, asked.epochs):
            continue
        atom, bond = bits.tolist()
        line = {"epoch": epoch, "seconds": round(time.perf_counter() - began, 1), "bits_atom": atom,
                "bits_bond": bond, "ln_var": trained.ln_var.item()}  # fmt: skip
        figures = judged(training, data, (nodes[held], edges[held]), scorer)
        if figures is not None:
            lines.append(line | figures)
            print(", ".join(f"{key} {value:.4g}" for key, value in lines[-1].items()), flush=True)
            if asked.out is not None:
                write_csv(asked.out, list(lines[0]), [list(row.values()) for row in lines])
    if scorer is not None:
        scorer.close()
        if asked.weights is not None:
            network = trained.ours() if isinstance(trained, Theirs) else trained.modules
            torch.save(network.state_dict(), asked.weights)
    if world > 1:
        distributed.destroy_process_group()


def main() -> None:
    asked = arguments()
    try:
        train(asked, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""MoFlow: molecules to a Gaussian latent and back, exactly (arXiv:2006.10137, NVIDIA's variant)."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from src.config.ranges import Count, Range, Share
from src.errors import UserError
from src.gpu.replace import replace_alike
from src.gpu.side_stream import side_stream
from src.models.moflow.actnorm import ActNorm, BatchNorm
from src.models.moflow.atom import AtomFlow, LogDet, relations_of
from src.models.moflow.bond import BondFlow, squeeze
from src.models.moflow.flow import Limit, initialize_together
from src.system.group import seed_of_rank

Nodes = UInt8[Tensor, "batch atoms"]
Edges = UInt8[Tensor, "batch atoms atoms"]
Atoms = Float[Tensor, "batch nodes classes"]
Bonds = Float[Tensor, "batch kinds nodes nodes"]
Padding = Literal["prior", "encoded"]


class Latent(NamedTuple):
    """Latents of a batch of molecules, shaped like the inputs, and log-determinants [batch]."""

    z_atom: Tensor
    z_bond: Tensor
    logdet_atom: Tensor
    logdet_bond: Tensor


class MoFlow(nn.Module):
    """The two flows and the learned log-variance of their common prior.

    The defaults are the published ZINC-250k model: 141,108,089 parameters.

    Args:
        num_nodes: node rows inside the network, at least `max_atoms` (40 instead of 38, for tensor cores).
        num_atom_classes: atom classes; 0 is no atom. num_bond_classes: bond kinds; 0 is no bond.
        bond_squeeze: edge length of the blocks that become channels. conv_lu: see `BondFlow`.
        noise_scale: width of the uniform dequantisation noise; 0 selects the original's alternative noise.
        norm_batch: trains as on devices with so many molecules each: BatchNorm normalises them together, and ActNorm
            starts from the mean over networks with weights of their own, one for each device (`initialize`). None: as
            on the devices that there are.
        logdet: `published` counts the terms of all rows in each atom step, `exact` is the Jacobian's.
        padding: latents of the node rows beyond `max_atoms` that no step transforms, when sampling. `prior` draws them
            as published, although no molecule has them there; `encoded` takes those that the rows of no atom have.
    """

    def __init__(
        self,
        num_nodes: Count = 40,
        num_atom_classes: Annotated[int, Range(2)] = 10,
        num_bond_classes: Annotated[int, Range(2)] = 4,
        max_atoms: Count = 38,
        bond_squeeze: Count = 20,
        bond_hidden: Sequence[Count] = (512, 512),
        num_bond_flows: Count = 10,
        conv_lu: Literal[0, 1, 2] = 2,
        num_atom_flows: Count = 38,
        gnn_channels: Count = 256,
        atom_hidden: Sequence[Count] = (512, 64),
        noise_scale: Share = 0.6,
        norm_batch: Count | None = None,
        logdet: LogDet = "published",
        padding: Padding = "prior",
    ) -> None:
        self._arguments: dict[str, Any] = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        super().__init__()
        if max_atoms > num_nodes:
            raise UserError(f"max_atoms={max_atoms} does not fit num_nodes={num_nodes}: raise num_nodes")
        self.num_nodes, self.max_atoms, self.noise_scale = num_nodes, max_atoms, noise_scale
        self.num_atom_classes, self.num_bond_classes = num_atom_classes, num_bond_classes
        self.bond_flow = BondFlow(
            num_nodes, num_bond_classes, bond_squeeze, tuple(bond_hidden), num_bond_flows, conv_lu
        )
        sizes = (num_nodes, num_atom_classes, num_bond_classes)
        self.atom_flow = AtomFlow(*sizes, num_atom_flows, gnn_channels, tuple(atom_hidden), logdet)
        self.logdet = logdet
        self.ln_var = nn.Parameter(torch.zeros(()))
        self.first_padding = num_nodes if padding == "prior" else max(max_atoms, min(num_atom_flows, num_nodes))
        self.norm_batch = norm_batch
        if norm_batch is not None:
            positions = (num_nodes // bond_squeeze) ** 2
            for flow, rows in ((self.atom_flow, 1), (self.bond_flow, positions)):  # rows of dimension 0 per molecule
                for norm in (module for module in flow.modules() if isinstance(module, BatchNorm)):
                    norm.group = norm_batch * rows

    def with_atom_classes(self, count: int) -> "MoFlow":
        """Returns a new network of the same sizes for another number of atom classes, with random weights."""
        return self._another(num_atom_classes=count)

    def _another(self, **changes: Any) -> "MoFlow":
        """Returns a new network of the same sizes but for `changes`, with modules of this one's classes."""
        network = MoFlow(**{**self._arguments, **changes})
        replace_alike(network, self)
        return network

    def compile_steps(self, **kwargs: Any) -> None:
        """Compiles the flow steps with `torch.compile(**kwargs)`: one graph for all atom steps, two for bond steps."""
        self.bond_flow.compile_steps(**kwargs)
        self.atom_flow.compile_steps(**kwargs)

    @property
    def initialized(self) -> bool:
        """Whether every ActNorm is initialised. Synchronises with the device."""
        return bool(torch.stack([norm.initialized for norm in self._actnorms()]).all())

    def _actnorms(self) -> list[ActNorm]:
        return [module for module in self.modules() if isinstance(module, ActNorm)]

    @torch.no_grad()
    def initialize(self, nodes: Nodes, edges: Edges, batch_size: int | None = None) -> None:
        """Initialises the ActNorms from the (noised) molecules of all ranks, unless they are initialised.

        All ranks must call it. Each batch of `batch_size` molecules (all if not given), or with `norm_batch` each group
        of so many, passes through a network of its own, and the ActNorms take the mean over these networks: each of
        NVIDIA's devices draws its own weights, and takes the first one's only after this. Started from one network,
        training on eight devices ends at fewer valid molecules (docs/notes/2026-11-26-moflow-published.md). Raises
        UserError for a batch that norm_batch does not divide.
        """
        batch_size = batch_size or len(nodes)
        if self.norm_batch is not None and batch_size > self.norm_batch and batch_size % self.norm_batch:
            raise UserError(
                f"model.task.network.norm_batch={self.norm_batch} does not divide a device's batch of {batch_size}: "
                "change it or hp.batch_size"
            )
        if self.initialized:
            return
        _, graph = clean = self.one_hot(nodes, edges)
        x, adj = self.dequantise(*clean, noise=True)
        size = min(self.norm_batch or batch_size, batch_size)
        networks = self.networks_of_devices(len(x) // size)
        bonds = [(squeeze(part, self.bond_flow.fold),) for part in adj.split(size)]
        atoms = [(part, relations_of(bond)) for part, bond in zip(x.split(size), graph.split(size), strict=True)]
        initialize_together([network.bond_flow for network in networks], bonds)
        initialize_together([network.atom_flow for network in networks], atoms)
        for norm, started in zip(self._actnorms(), networks[0]._actnorms(), strict=True):
            norm.load_state_dict(started.state_dict())

    def networks_of_devices(self, count: int) -> list["MoFlow"]:
        """Returns a network with new weights, in training mode, for each of `count` devices that this rank stands for.

        The first device of rank 0 has this network's weights. Those of the others depend on rank 0's seed and their
        number among the devices of all ranks, so that these may be on one rank or on several. Collective. Draws no
        random numbers of the caller's.
        """
        device, rank, seeds = self.ln_var.device, 0, [torch.initial_seed()]
        if distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank()
            distributed.broadcast_object_list(seeds, 0)
        networks = []
        for number in range(rank * count, (rank + 1) * count):
            if number == 0:
                networks.append(deepcopy(self).train())
                continue
            with device, torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(seed_of_rank(seeds[0], number))
                networks.append(self._another().to(self.ln_var).train())
        return networks

    def one_hot(self, nodes: Nodes, edges: Edges) -> tuple[Atoms, Bonds]:
        """Returns atom classes and bond kinds one-hot, padded to `num_nodes` with class 0 and no bond."""
        pad = self.num_nodes - self.max_atoms
        classes = torch.arange(self.num_atom_classes, device=nodes.device, dtype=nodes.dtype)
        kinds = torch.arange(self.num_bond_classes, device=edges.device, dtype=edges.dtype)[:, None, None]
        x = F.pad(nodes, (0, pad))[:, :, None] == classes
        adj = F.pad(edges, (0, pad, 0, pad))[:, None] == kinds
        return x.to(self.ln_var.dtype), adj.to(self.ln_var.dtype)

    def dequantise(self, x: Atoms, adj: Bonds, noise: bool) -> tuple[Atoms, Bonds]:
        """Returns the flows' inputs: with `noise`, every entry v becomes v + noise_scale U[0, 1).

        With noise_scale 0, v becomes v/2 - 1/2, with `noise` plus 0.4 U[0, 1).
        """
        width = self.noise_scale or 0.4
        if self.noise_scale == 0:
            x, adj = x / 2 - 0.5, adj / 2 - 0.5
        if noise:
            x, adj = x + torch.rand_like(x) * width, adj + torch.rand_like(adj) * width
        return x, adj

    def _encode(self, nodes: Nodes, edges: Edges, noise: bool) -> Latent:
        clean = self.one_hot(nodes, edges)
        x, adj = self.dequantise(*clean, noise=noise)
        # The flows are independent, so the atom flow runs on a side stream. The bond flow comes second and so runs
        # backward first: it has 19 of 20 gradients, and their all-reduce then overlaps with the rest.
        stream = side_stream(x.device)
        stream.reads(x, clean[1])
        with stream:
            z_atom, logdet_atom = self.atom_flow(x, clean[1])
        z_bond, logdet_bond = self.bond_flow(adj)
        stream.join()
        return Latent(z_atom, z_bond, logdet_atom, logdet_bond)

    def forward(self, nodes: Nodes, edges: Edges) -> Latent:
        """Returns latents of the molecules, with dequantisation noise in training mode only."""
        return self._encode(nodes, edges, noise=self.training)

    def bits_per_dim(self, latent: Latent) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Returns atoms' and bonds' negative log-likelihood per dimension in bits, as published."""
        z_atom, z_bond, logdet_atom, logdet_bond = latent
        return self._bits_per_dim(z_atom, logdet_atom), self._bits_per_dim(z_bond, logdet_bond)

    def _bits_per_dim(self, z: Float[Tensor, "batch *sample"], logdet: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        dims = z[0].numel()
        squares = z.flatten(1).square().sum(1)
        nll = (dims * (self.ln_var + math.log(2 * math.pi)) + squares * torch.exp(-self.ln_var)) / 2 - logdet
        # One bit per dimension for the 1-bit dequantisation, as in the published figures.
        return nll.mean() / (dims * math.log(2)) + 1

    def loss(self, latent: Latent) -> Float[Tensor, ""]:
        """Returns the training objective: atoms' plus bonds' bits per dimension."""
        atom, bond = self.bits_per_dim(latent)
        return atom + bond

    @torch.no_grad()
    def likelihood(self, nodes: Nodes, edges: Edges) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Returns bits per dimension (atoms, bonds) of held-out molecules; call it in evaluation mode.

        Adds the noise of training: without it, the result would be the density at the corner of each cell.
        """
        return self.bits_per_dim(self._encode(nodes, edges, noise=True))

    def reverse(self, z_atom: Atoms, z_bond: Bonds) -> tuple[Atoms, Bonds]:
        """Returns continuous atom classes and the discretised adjacency that they are conditioned on."""
        adj = discrete_bonds(self.continuous_bonds(z_bond))
        return self.continuous_atoms(z_atom, adj), adj

    def continuous_bonds(self, z_bond: Bonds, limit: Limit | None = None) -> Bonds:
        """Returns symmetric bond kinds before they become 0 and 1. `limit`: see `FlowChain.run_reverse`."""
        adj = self._undo_scaling(self.bond_flow.reverse(z_bond, limit))
        return (adj + adj.transpose(2, 3)) / 2

    def continuous_atoms(self, z_atom: Atoms, adj: Bonds, limit: Limit | None = None) -> Atoms:
        """Returns atom classes before the most likely is taken, given bonds of 0 and 1. `limit`: as above."""
        return self._undo_scaling(self.atom_flow.reverse(z_atom, adj, limit))

    def _undo_scaling(self, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return (values + 0.5) * 2 if self.noise_scale == 0 else values

    def _discrete(self, x: Atoms, adj: Bonds) -> tuple[Nodes, Edges]:
        """Returns the most likely classes of the first `max_atoms` nodes, without self-loops."""
        atoms = self.max_atoms
        nodes = x[:, :atoms].argmax(2).to(torch.uint8)
        edges = adj[:, :, :atoms, :atoms].argmax(1).to(torch.uint8)
        return nodes, edges.masked_fill(torch.eye(atoms, dtype=torch.bool, device=edges.device), 0)

    @torch.no_grad()
    def decode(self, z_atom: Atoms, z_bond: Bonds) -> tuple[Nodes, Edges]:
        """Returns the molecules at these latents as classes. Call it in evaluation mode, like all below."""
        return self._discrete(*self.reverse(z_atom, z_bond))

    @torch.no_grad()
    def sample(
        self, batch_size: int, temperature: float | Sequence[float], generator: torch.Generator | None = None
    ) -> tuple[Nodes, Edges]:
        """Returns molecules at latents drawn from the prior, its standard deviation multiplied by `temperature`.

        Two temperatures are that of the atoms and that of the bonds.
        """
        device, dtype = self.ln_var.device, self.ln_var.dtype
        factors = (temperature, temperature) if isinstance(temperature, int | float) else temperature
        sigma = torch.exp(self.ln_var / 2)
        shapes = (self.num_nodes, self.num_atom_classes), (self.num_bond_classes, self.num_nodes, self.num_nodes)
        drawn = [torch.randn(batch_size, *shape, generator=generator, device=device, dtype=dtype) for shape in shapes]
        z_atom, z_bond = (z * (sigma * factor) for z, factor in zip(drawn, factors, strict=True))
        z_atom = self.with_padding(z_atom, factors[0], generator)
        return self.decode(z_atom, z_bond)

    def with_padding(
        self, z_atom: Atoms, temperature: float | Tensor, generator: torch.Generator | None = None
    ) -> Atoms:
        """Returns the latents with those of rows that no step transforms replaced, unless `padding` is `prior`.

        They are those of no atom, with the noise of training times `temperature` around its mean.
        """
        if self.first_padding == self.num_nodes:
            return z_atom
        clean = torch.zeros_like(z_atom[:, self.first_padding :])
        clean[:, :, 0] = 1
        noise = torch.rand(*clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        width = self.noise_scale or 0.4
        clean = clean / 2 - 0.5 if self.noise_scale == 0 else clean
        rows = self.atom_flow.scaled(clean + width * (0.5 + temperature * (noise - 0.5)), self.first_padding)
        return torch.cat([z_atom[:, : self.first_padding], rows], 1)

    @torch.no_grad()
    def encode(self, nodes: Nodes, edges: Edges) -> Latent:
        """Returns latents of the molecules, without noise."""
        return self._encode(nodes, edges, noise=False)

    @torch.no_grad()
    def reconstruct(self, nodes: Nodes, edges: Edges) -> tuple[Nodes, Edges]:
        """Returns the molecules after encoding and decoding; the atoms are decoded with the true adjacency."""
        latent = self.encode(nodes, edges)
        _, adj = self.one_hot(nodes, edges)
        return self._discrete(
            self.continuous_atoms(latent.z_atom, adj), discrete_bonds(self.continuous_bonds(latent.z_bond))
        )

    @torch.no_grad()
    def interpolate(
        self,
        nodes0: UInt8[Tensor, " atoms"],
        edges0: UInt8[Tensor, "atoms atoms"],
        nodes1: UInt8[Tensor, " atoms"],
        edges1: UInt8[Tensor, "atoms atoms"],
        steps: int,
    ) -> tuple[UInt8[Tensor, "steps atoms"], UInt8[Tensor, "steps atoms atoms"]]:
        """Returns molecules at `steps` evenly spaced latents between two molecules, both included."""
        latent = self.encode(torch.stack([nodes0, nodes1]), torch.stack([edges0, edges1]))
        share = torch.linspace(0, 1, steps, device=self.ln_var.device, dtype=self.ln_var.dtype)
        ends = (latent.z_atom, latent.z_bond)
        return self.decode(*(torch.lerp(z[:1], z[1:], share.view(-1, *[1] * (z.dim() - 1))) for z in ends))


def discrete_bonds(bonds: Bonds) -> Bonds:
    """Returns continuous bond kinds as 0 and 1. Kinds that tie are all 1, as published."""
    probabilities = torch.softmax(bonds, 1)
    return torch.floor(probabilities / probabilities.amax(1, keepdim=True))

"""A loss on generated molecules: in one piece, of possible valences, their bonds distributed as real ones."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from src.config.ranges import Positive, Range
from src.errors import UserError
from src.models.moflow.actnorm import reused_statistics
from src.models.moflow.flow import Limit
from src.models.moflow.network import MoFlow, discrete_bonds

SHARPNESS = 20.0  # of the softmax over kinds and classes: those of real molecules are at least 0.4 apart
MOST_BONDS = 4.0  # of an atom; few elements have more
REAL = 512  # molecules of the batch that are compared with each other, for the printed discrepancy alone
SCALES = (2.0, 8.0, 32.0)  # of the kernels, in squared distances: 2 for each pair of atoms with another bond


class Drawn(NamedTuple):
    """Molecules at random latents: continuous bond kinds, the same as 0 and 1, and continuous atom classes."""

    bonds: Float[Tensor, "batch kinds atoms atoms"]
    adj: Float[Tensor, "batch kinds atoms atoms"]
    atoms: Float[Tensor, "batch atoms classes"]
    limit: Limit


class GeneratedMolecules:
    """A loss on the molecules that the network generates at random latents, weighted in bits like the likelihood.

    In the order of a SMILES every atom but the first has a bond to an earlier one. The bond flow draws each bond by
    itself, and where it is undecided between two earlier atoms it often takes neither: an orphan, which is what most
    molecules in pieces have. Without orphans a molecule is in one piece. Without the discrepancy a network could map
    all latents to one molecule that has none. The atom flow learns from real bonds alone, and where generated ones are
    of another kind it gives an atom more of them than its element can have.

    Args:
        defects: bits of an orphan, of a bond above four at an atom, of one above what an atom's element can have, and
            of ten units of `Limit.beyond`.
        discrepancy: bits of the squared maximum mean discrepancies (Gretton et al. 2012, unbiased) between generated
            bonds and those of the batch, of `pairs` and of `spans`; each is 0 for equal distributions, 2 at most.
        molecules: latents drawn at each step, on each rank.
        temperatures: least and greatest; each molecule's two are drawn between them. Raises UserError otherwise.
    """

    def __init__(
        self,
        defects: Positive = 30.0,
        discrepancy: Positive = 150.0,
        molecules: Annotated[int, Range(2)] = 512,
        temperatures: Sequence[Positive] = (0.3, 1.0),
    ) -> None:
        if len(temperatures) != 2 or temperatures[0] > temperatures[1]:
            raise UserError(
                f"model.task.generated_molecules.temperatures={list(temperatures)} must be two, the least and the "
                "greatest"
            )
        self.defects, self.discrepancy = defects, discrepancy
        self.molecules, self.temperatures = molecules, tuple(temperatures)

    def __call__(
        self, network: MoFlow, edges: UInt8[Tensor, "batch atoms atoms"], most_bonds: Float[Tensor, " classes"]
    ) -> dict[str, Tensor]:
        """Returns the `penalty` in bits per dimension, and each part of it as a mean or as the discrepancies' sum.

        Call it behind a training forward of these molecules, within `kept_statistics`.

        Args:
            most_bonds: of an atom of each class.
        """
        bonds, adj, atoms, limit = self.drawn(network)
        kinds = torch.arange(bonds.shape[1], device=bonds.device, dtype=edges.dtype)[:, None, None]
        with torch.autocast(bonds.device.type, enabled=False):
            likely, real = probabilities(bonds), (edges[:, None] == kinds).to(bonds)
            found = {
                "orphans": orphans(bonds).mean(),
                "excess_bonds": excess_bonds(bonds).mean(),
                "excess_valence": excess_valence(atoms, adj, most_bonds).mean(),
                "overflow": limit.beyond,
                "discrepancy": discrepancy(pairs(likely), pairs(real)) + discrepancy(spans(likely), spans(real)),
            }
        defects = found["orphans"] + found["excess_bonds"] + found["excess_valence"] + 0.1 * found["overflow"]
        bits = self.defects * defects + self.discrepancy * found["discrepancy"]
        return {"penalty": bits / (len(kinds) * network.num_nodes**2), **found}

    def drawn(self, network: MoFlow) -> Drawn:
        """Returns molecules at random latents and what was cut off on the way. No gradient goes from atoms to bonds."""
        nodes, limit = network.num_nodes, Limit()
        z_bond, _ = self._latents(network, network.num_bond_classes, nodes, nodes)
        z_atom, temperature = self._latents(network, nodes, network.num_atom_classes)
        with reused_statistics(network):
            bonds = network.continuous_bonds(z_bond, limit)
            adj = discrete_bonds(bonds.detach())
            atoms = network.continuous_atoms(network.with_padding(z_atom, temperature), adj, limit)
        real = slice(network.max_atoms)
        bonds, adj = (each[:, :, real, real].to(z_bond.dtype) for each in (bonds, adj))
        return Drawn(bonds, adj, atoms[:, real].to(z_bond.dtype), limit)

    def _latents(self, network: MoFlow, *shape: int) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
        """Returns latents of this shape and the temperature of each."""
        like = {"device": network.ln_var.device, "dtype": network.ln_var.dtype}
        low, high = self.temperatures
        temperature = low + (high - low) * torch.rand(self.molecules, *(1 for _ in shape), **like)
        return temperature * torch.exp(network.ln_var.detach() / 2) * torch.randn(
            self.molecules, *shape, **like
        ), temperature


def probabilities(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, "batch kinds atoms atoms"]:
    """Returns those of each bond kind, from symmetric values of about 0 and 1."""
    return torch.softmax(SHARPNESS * bonds, 1)


def orphans(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, " batch"]:
    """Returns the expected number of atoms of each molecule with a bond to a later atom, but to no earlier one.

    Kind 0 is no bond. All pairs are taken as independent.
    """
    none = torch.log_softmax(SHARPNESS * bonds, 1)[:, 0]
    has_earlier = 1 - none.tril(-1).sum(2).exp()
    has_later = 1 - none.triu(1).sum(2).exp()
    return (has_later * (1 - has_earlier))[:, 1:].sum(1)


def excess_bonds(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, " batch"]:
    """Returns the expected bond orders of each molecule's atoms, as far as they go beyond four."""
    return F.relu(orders(probabilities(bonds)) - MOST_BONDS).sum(1)


def excess_valence(
    atoms: Float[Tensor, "batch atoms classes"],
    adj: Float[Tensor, "batch kinds atoms atoms"],
    most_bonds: Float[Tensor, " classes"],
) -> Float[Tensor, " batch"]:
    """Returns the bond orders of each molecule's atoms beyond what their elements can have, expected over the classes.

    No atom, which is class 0, can have none.
    """
    beyond = F.relu(orders(adj)[:, :, None] - most_bonds)
    return (torch.softmax(SHARPNESS * atoms, 2) * beyond).sum((1, 2))


def orders(probability: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, "batch atoms"]:
    """Returns the sum of the bond orders of each atom. Kind k has order k."""
    order = torch.arange(probability.shape[1], device=probability.device, dtype=probability.dtype)[:, None, None]
    others = 1 - torch.eye(probability.shape[2], device=probability.device, dtype=probability.dtype)
    return (probability * order * others).sum((1, 3))


def pairs(probability: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, "batch features"]:
    """Returns each bond of each pair of atoms."""
    return probability.tril(-1).flatten(1)


def spans(probability: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, "batch features"]:
    """Returns how many bonds of each kind, but none, join atoms one place apart in the order, two places, and so on.

    A ring of six closes with a bond of five places. Between all pairs such bonds are too few and too scattered to show.
    """
    number = torch.arange(probability.shape[-1], device=probability.device)
    apart = (number[:, None] - number)[:, :, None] == number[1:]
    return (probability[:, 1:].flatten(2) @ apart.flatten(0, 1).to(probability)).flatten(1)


def discrepancy(
    generated: Float[Tensor, "generated features"], real: Float[Tensor, "real features"]
) -> Float[Tensor, ""]:
    """Returns the unbiased estimate of the squared maximum mean discrepancy.

    Compares only the first `REAL` real samples with each other.
    """
    among = off_diagonal_mean(kernel(generated, generated)) + off_diagonal_mean(kernel(real[:REAL], real[:REAL]))
    return among - 2 * kernel(generated, real).mean()


def kernel(first: Float[Tensor, "n features"], second: Float[Tensor, "m features"]) -> Float[Tensor, "n m"]:
    """Returns the mean of rational quadratic kernels scale / (scale + squared distance)."""
    lengths, others = first.square().sum(1), second.square().sum(1)
    distance = (lengths[:, None] + others - 2 * first @ second.T).clamp(min=0)
    return torch.stack([scale / (scale + distance) for scale in SCALES]).mean(0)


def off_diagonal_mean(square: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    return (square.sum() - square.diagonal().sum()) / (len(square) * (len(square) - 1))

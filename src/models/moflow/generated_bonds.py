"""A loss on generated bonds: molecules in one piece, of possible valences, distributed as real ones."""

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from src.config.ranges import Positive, Range
from src.errors import UserError
from src.models.moflow.actnorm import reused_statistics
from src.models.moflow.flow import Limit
from src.models.moflow.network import MoFlow

SHARPNESS = 20.0  # of the softmax over bond kinds: those of real molecules are at least 0.4 apart
MOST_BONDS = 4.0  # of an atom; few elements have more
REAL = 512  # molecules of the batch that are compared with each other, for the printed discrepancy alone
SCALES = (2.0, 8.0, 32.0)  # of the kernels, in squared distances: 2 for each pair of atoms with another bond


class GeneratedBonds:
    """A loss on the bonds that the network generates at random latents, weighted in bits like the likelihood.

    In the order of a SMILES every atom but the first has a bond to an earlier one. The bond flow draws each bond by
    itself, and where it is undecided between two earlier atoms it often takes neither: an orphan, which is what most
    molecules in pieces have. Without orphans a molecule is in one piece. Without the discrepancy a network could map
    all latents to one molecule that has none.

    Args:
        defects: bits of an orphan, of a bond above four at an atom, and of ten units of `Limit.beyond`.
        discrepancy: bits of the squared maximum mean discrepancy (Gretton et al. 2012, unbiased) between generated
            bonds and those of the batch; 0 for equal distributions, 2 at most.
        molecules: latents drawn at each step, on each rank.
        temperatures: least and greatest; each molecule's is drawn between them. Raises UserError otherwise.
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
                f"model.task.generated_bonds.temperatures={list(temperatures)} must be two, the least and the greatest"
            )
        self.defects, self.discrepancy = defects, discrepancy
        self.molecules, self.temperatures = molecules, tuple(temperatures)

    def __call__(self, network: MoFlow, edges: UInt8[Tensor, "batch atoms atoms"]) -> dict[str, Tensor]:
        """Returns the `penalty` in bits per dimension, and each part of it as a mean or as the discrepancy.

        Call it behind a training forward of these molecules, within `kept_statistics`.
        """
        bonds, limit = self.drawn(network)
        kinds = torch.arange(bonds.shape[1], device=bonds.device, dtype=edges.dtype)[:, None, None]
        with torch.autocast(bonds.device.type, enabled=False):
            found = {
                "orphans": orphans(bonds).mean(),
                "excess_bonds": excess_bonds(bonds).mean(),
                "overflow": limit.beyond,
                "discrepancy": discrepancy(
                    *(each.tril(-1).flatten(1) for each in (probabilities(bonds), (edges[:, None] == kinds).to(bonds)))
                ),
            }
        defects = found["orphans"] + found["excess_bonds"] + 0.1 * found["overflow"]
        bits = self.defects * defects + self.discrepancy * found["discrepancy"]
        return {"penalty": bits / (len(kinds) * network.num_nodes**2), **found}

    def drawn(self, network: MoFlow) -> tuple[Float[Tensor, "batch kinds atoms atoms"], Limit]:
        """Returns symmetric bond kinds at random latents, of about 0 and 1, and what was cut off on the way."""
        shape = network.num_bond_classes, network.num_nodes, network.num_nodes
        low, high = self.temperatures
        like = {"device": network.ln_var.device, "dtype": network.ln_var.dtype}
        temperature = low + (high - low) * torch.rand(self.molecules, 1, 1, 1, **like)
        z = temperature * torch.exp(network.ln_var.detach() / 2) * torch.randn(self.molecules, *shape, **like)
        limit = Limit()
        with reused_statistics(network.bond_flow):
            bonds = network.continuous_bonds(z, limit)
        return bonds[:, :, : network.max_atoms, : network.max_atoms].to(z.dtype), limit


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
    """Returns the expected bond orders of each molecule's atoms, as far as they go beyond four. Kind k has order k."""
    order = torch.arange(bonds.shape[1], device=bonds.device, dtype=bonds.dtype)[:, None, None]
    others = 1 - torch.eye(bonds.shape[2], device=bonds.device, dtype=bonds.dtype)
    return F.relu((probabilities(bonds) * order * others).sum((1, 3)) - MOST_BONDS).sum(1)


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

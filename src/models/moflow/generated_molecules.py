"""A loss on generated molecules: in one piece, of possible valences, their bonds distributed as real ones."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from src.config.ranges import Positive, Range
from src.errors import UserError
from src.models.moflow.actnorm import reused_statistics
from src.models.moflow.counts import atom_counts, bond_counts, orders, pairs, without_loops
from src.models.moflow.flow import Limit
from src.models.moflow.network import MoFlow, discrete_bonds

SHARPNESS = 20.0  # of the softmax over kinds and classes: those of real molecules are at least 0.4 apart
MOST_BONDS = 4.0  # of an atom; few elements have more
REAL = 512  # molecules of the batch that are compared with each other, for the printed discrepancy alone
SCALES = (1 / 16, 1 / 4, 1.0, 4.0)  # of the kernels, in the real counts' variance; narrow ones see copies
LEAST_SPREAD = 0.1  # a standard deviation of counts is taken as so much more: some elements are rare
FAREST = 5.0  # standard deviations
DEFECTS = "orphans", "excess_bonds", "wrong_elements"  # each weighted by `defects`

NOTHING = nullcontext()


class Drawn(NamedTuple):
    """Molecules at random latents: continuous bond kinds, the same as 0 and 1, and continuous atom classes."""

    bonds: Float[Tensor, "batch kinds atoms atoms"]
    adj: Float[Tensor, "batch kinds atoms atoms"]
    atoms: Float[Tensor, "batch atoms classes"]
    limit: Limit


class GeneratedMolecules:
    """A loss on the molecules that the network generates at random latents, weighted in bits like the likelihood.

    In the order of a SMILES every atom but the first has a bond to an earlier one. The bond flow draws each bond by
    itself, and where it is undecided between two earlier atoms it often takes neither: an orphan. Without orphans the
    bonds are in one piece. Without the discrepancy a network could map all latents to one molecule that has none. The
    atom flow learns from real bonds alone, and where generated ones are of another kind it gives an atom more of them
    than its element can have, or puts an atom where there is no bond.

    Args:
        defects: bits of an orphan, of a bond above four at an atom, of one nat of `wrong_elements`, and of ten units
            of `Limit.beyond`.
        discrepancy: bits of the squared maximum mean discrepancies (Gretton et al. 2012, unbiased) between generated
            molecules and those of the batch: of `pairs`, of `bond_counts` and of `atom_counts`, the latter two
            standardised; each is 0 for equal distributions.
        molecules: latents drawn at each step, on each rank.
        temperatures: least and greatest; each molecule's two are drawn between them. Raises UserError otherwise.
    """

    def __init__(
        self,
        defects: Positive = 100.0,
        discrepancy: Positive = 150.0,
        molecules: Annotated[int, Range(2)] = 512,
        temperatures: Sequence[Positive] = (0.5, 1.0),
    ) -> None:
        if len(temperatures) != 2 or temperatures[0] > temperatures[1]:
            raise UserError(
                f"model.task.generated_molecules.temperatures={list(temperatures)} must be two, the least and the "
                "greatest"
            )
        self.defects, self.discrepancy = defects, discrepancy
        self.molecules, self.temperatures = molecules, tuple(temperatures)
        self.fast_discrepancy: Callable[[Tensor, Tensor], Tensor] | None = None  # by kernels, of the same value

    def __call__(
        self,
        network: MoFlow,
        nodes: UInt8[Tensor, "batch atoms"],
        edges: UInt8[Tensor, "batch atoms atoms"],
        most_bonds: Float[Tensor, " classes"],
        of_padding: AbstractContextManager[None] = NOTHING,
    ) -> dict[str, Tensor]:
        """Returns the `penalty` in bits per dimension, and each part of it as a mean or as the discrepancies' sum.

        Call it behind a training forward of these molecules, within `kept_statistics`.

        Args:
            most_bonds: of an atom of each class.
            of_padding: a use of the network's parameters of its own (`separate_uses`), for the latents' padding.
        """
        bonds, adj, atoms, limit = self.drawn(network, of_padding)
        discrepancy_of = self.fast_discrepancy or discrepancy
        kinds = torch.arange(bonds.shape[1], device=bonds.device, dtype=edges.dtype)[:, None, None]
        classes = torch.arange(atoms.shape[2], device=atoms.device, dtype=nodes.dtype)
        with torch.autocast(bonds.device.type, enabled=False):
            likely, adj = without_loops(probabilities(bonds, 1)), without_loops(adj)
            real = (edges[:, None] == kinds).to(bonds)
            elements, real_elements = probabilities(atoms, 2), (nodes[:, :, None] == classes).to(atoms)
            parts = {
                "orphans": orphans(bonds).mean(),
                "excess_bonds": excess_bonds(likely).mean(),
                "wrong_elements": wrong_elements(atoms, adj, most_bonds).mean(),
                "overflow": limit.beyond,
                "discrepancy": discrepancy_of(pairs(likely), pairs(real))
                + discrepancy_of(*standardised(bond_counts(likely), bond_counts(real)))
                + discrepancy_of(*standardised(atom_counts(elements, adj), atom_counts(real_elements, real))),
            }
        defects = sum(parts[name] for name in DEFECTS) + 0.1 * parts["overflow"]
        bits = self.defects * defects + self.discrepancy * parts["discrepancy"]
        return {"penalty": bits / (len(kinds) * network.num_nodes**2), **parts}

    def drawn(self, network: MoFlow, of_padding: AbstractContextManager[None] = NOTHING) -> Drawn:
        """Returns molecules at random latents and what was cut off on the way. No gradient goes from atoms to bonds."""
        nodes, limit = network.num_nodes, Limit()
        z_bond, _ = self._latents(network, network.num_bond_classes, nodes, nodes)
        z_atom, temperature = self._latents(network, nodes, network.num_atom_classes)
        with of_padding:
            z_atom = network.with_padding(z_atom, temperature)
        with reused_statistics(network):
            bonds = network.continuous_bonds(z_bond, limit)
            adj = discrete_bonds(bonds.detach())
            atoms = network.continuous_atoms(z_atom, adj, limit)
        real = slice(network.max_atoms)
        bonds, adj = (tensor[:, :, real, real].to(z_bond.dtype) for tensor in (bonds, adj))
        return Drawn(bonds, adj, atoms[:, real].to(z_bond.dtype), limit)

    def _latents(self, network: MoFlow, *shape: int) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
        """Returns latents of this shape and the temperature of each."""
        like = {"device": network.ln_var.device, "dtype": network.ln_var.dtype}
        low, high = self.temperatures
        temperature = low + (high - low) * torch.rand(self.molecules, *(1 for _ in shape), **like)
        return temperature * torch.exp(network.ln_var.detach() / 2) * torch.randn(
            self.molecules, *shape, **like
        ), temperature


def probabilities(values: Float[Tensor, "batch *sizes"], dim: int) -> Float[Tensor, "batch *sizes"]:
    """Returns those of each bond kind or atom class, along `dim`, from values of about 0 and 1."""
    return torch.softmax(SHARPNESS * values, dim)


def orphans(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, " batch"]:
    """Returns the expected number of atoms of each molecule without a bond to an earlier atom, up to the last bond.

    The first atom is none. Kind 0 is no bond. All pairs are taken as independent.
    """
    none_earlier = torch.log_softmax(SHARPNESS * bonds, 1)[:, 0].tril(-1).sum(2)
    none_later = none_earlier.sum(1, keepdim=True) - none_earlier.cumsum(1)  # has a bond to an atom before itself
    return (none_earlier.exp() * (1 - none_later.exp()))[:, 1:].sum(1)


def excess_bonds(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, " batch"]:
    """Returns the expected bond orders of each molecule's atoms, as far as they go beyond four. Without loops."""
    return F.relu(orders(bonds) - MOST_BONDS).sum(1)


def wrong_elements(
    atoms: Float[Tensor, "batch atoms classes"],
    adj: Float[Tensor, "batch kinds atoms atoms"],
    most_bonds: Float[Tensor, " classes"],
) -> Float[Tensor, " batch"]:
    """Returns -log of the probability that an atom's class can have its bonds, summed over each molecule's atoms.

    Elements can that have at least as many in the data, by their orders, or the most of all; without a bond it must be
    class 0, no atom. A count of wrong atoms would have a slope only where the flow is undecided.
    """
    bond_orders = orders(adj)[:, :, None].clamp(max=most_bonds.max())
    no_atom = torch.arange(atoms.shape[2], device=atoms.device) == 0
    possible = torch.where(bond_orders > 0, bond_orders <= most_bonds, no_atom)
    values = SHARPNESS * atoms
    return (values.logsumexp(2) - values.masked_fill(~possible, -torch.inf).logsumexp(2)).sum(1)


def discrepancy(generated: Float[Tensor, "generated counts"], real: Float[Tensor, "real counts"]) -> Float[Tensor, ""]:
    """Returns the unbiased estimate of the squared maximum mean discrepancy, 0 for equal distributions.

    The kernel is a scalar product, which compares means, plus the mean of rational quadratic ones, which compare the
    rest; both are relative to the real counts' variance. Compares only the first `REAL` real molecules with each other.
    """
    variance = variance_of(real)
    among = off_diagonal_mean(kernel(generated, generated, variance))
    among = among + off_diagonal_mean(kernel(real[:REAL], real[:REAL], variance))
    return among - 2 * kernel(generated, real, variance).mean()


def kernel(
    first: Float[Tensor, "n counts"], second: Float[Tensor, "m counts"], variance: Float[Tensor, ""]
) -> Float[Tensor, "n m"]:
    """Returns the scalar product over the variance, plus the mean of scale / (scale + squared distance)."""
    product = first @ second.T
    distance = (first.square().sum(1)[:, None] + second.square().sum(1) - 2 * product).clamp(min=0)
    curved = torch.stack([scale * variance / (scale * variance + distance) for scale in SCALES]).mean(0)
    return product / variance + curved


def standardised(
    generated: Float[Tensor, "generated counts"], real: Float[Tensor, "real counts"]
) -> tuple[Float[Tensor, "generated counts"], Float[Tensor, "real counts"]]:
    """Returns both less the real mean and in real standard deviations, far ones bent towards `FAREST`."""
    spread, mean = real.std(0, correction=0) + LEAST_SPREAD, real.mean(0)
    values = ((counts - mean) / spread for counts in (generated, real))
    first, second = (counts / (1 + (counts / FAREST).square()).sqrt() for counts in values)
    return first, second


def off_diagonal_mean(square: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Returns the mean without the diagonal; 0 for a single number, as where there is but one molecule."""
    return (square.sum() - square.diagonal().sum()) / pairs_among(square)


def pairs_among(samples: Float[Tensor, "n _"]) -> int:
    """Returns the number of pairs of different samples, in both orders; 1 for a single sample."""
    return max(len(samples) * (len(samples) - 1), 1)


def variance_of(real: Float[Tensor, "real counts"]) -> Float[Tensor, ""]:
    """Returns the sum of the counts' variances, which the kernels' widths are relative to."""
    return real.var(0, correction=0).sum().clamp(min=LEAST_SPREAD)

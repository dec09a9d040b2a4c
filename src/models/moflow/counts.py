"""Counts of what molecules are made of, as differentiable functions of the probabilities of bonds and elements.

All bonds of a molecule are taken as independent. A count of real molecules, whose probabilities are 0 and 1, is exact.
Bonds of kind 1, 2, ... have that order; kind 0 is no bond. No atom has a bond to itself: `without_loops` removes those.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Probabilities = Float[Tensor, "batch kinds atoms atoms"]
Counts = Float[Tensor, "batch counts"]

FAR = 8  # a ring's last bond spans its size less one: rings of up to nine atoms
MOST_ORDERS = 7  # the greatest sum of bond orders of an atom that is counted


def pairs(bonds: Probabilities) -> Counts:
    """Returns each bond, of every kind, of each pair of atoms."""
    return bonds.tril(-1).flatten(1)


def bond_counts(bonds: Probabilities) -> Counts:
    """Returns counts of bonds, of rings and of what is bonded to one atom."""
    return torch.cat([spans(bonds), rings(bonds), alternating(bonds), neighbours(bonds)], 1)


def atom_counts(elements: Float[Tensor, "batch atoms classes"], bonds: Probabilities) -> Counts:
    """Returns counts of bonds between elements, and of atoms by element and bond orders. `bonds` are 0 and 1."""
    return torch.cat([bonded(elements, bonds), valences(elements, bonds)], 1)


def without_loops(bonds: Probabilities) -> Probabilities:
    """Returns the bonds without an atom's to itself, of which it then has no kind."""
    return bonds * (1 - torch.eye(bonds.shape[-1], device=bonds.device, dtype=bonds.dtype))


def orders(bonds: Probabilities) -> Float[Tensor, "batch atoms"]:
    """Returns the sum of each atom's bond orders."""
    order = torch.arange(1, bonds.shape[1], device=bonds.device, dtype=bonds.dtype)
    return (bonds[:, 1:].sum(3) * order[:, None]).sum(1)


def spans(bonds: Probabilities) -> Counts:
    """Returns the bonds of each kind between atoms one place apart in the order, two, ..., FAR, and farther.

    Between all pairs of atoms the bonds that close rings are too few and too scattered to be compared.
    """
    number = torch.arange(bonds.shape[-1], device=bonds.device)
    places = torch.arange(1, min(FAR + 2, len(number)), device=bonds.device)
    apart = (number[:, None] - number).clamp(max=FAR + 1)[:, :, None] == places
    return (bonds[:, 1:].flatten(2) @ apart.flatten(0, 1).to(bonds)).flatten(1)


def rings(bonds: Probabilities) -> Counts:
    """Returns the cycles of three, four and five atoms: closed walks, less those that pass a bond twice."""
    single = bonds[:, 1:].sum(1)
    squares = single.square()
    two = single @ single
    three = two @ single
    at_atom, degree = three.diagonal(dim1=1, dim2=2), squares.sum(2)
    return torch.stack(
        [
            at_atom.sum(1) / 6,
            (two.square().sum((1, 2)) - 2 * degree.square().sum(1) + squares.square().sum((1, 2))) / 8,
            ((three * two).sum((1, 2)) - 5 * (at_atom * degree).sum(1) + 5 * (two * single * squares).sum((1, 2))) / 10,
        ],
        1,
    )


def alternating(bonds: Probabilities) -> Counts:
    """Returns closed walks of six bonds, single and double in turn, as in benzene, and such walks of two to four."""
    single, double = bonds[:, 1:3].unbind(1)
    two = single @ double
    four = two @ two
    closed = (four @ two).diagonal(dim1=1, dim2=2).sum(1) / 6
    return torch.stack([closed, *(path.sum((1, 2)) for path in (two, two @ single, four))], 1)


def neighbours(bonds: Probabilities) -> Counts:
    """Returns the bonds of each kind, the pairs of bonds at an atom by their kinds, and the sum of cubed degrees."""
    by_kind = bonds[:, 1:]
    degrees = by_kind.sum(3)
    together = degrees @ degrees.transpose(1, 2) - by_kind.flatten(2) @ by_kind.flatten(2).transpose(1, 2)
    return torch.cat([degrees.sum(2) / 2, together.flatten(1), degrees.sum(1).pow(3).sum(1, keepdim=True)], 1)


def bonded(elements: Float[Tensor, "batch atoms classes"], bonds: Probabilities) -> Counts:
    """Returns the bonds of each kind between atoms of two classes, for each pair of classes."""
    ends = elements.transpose(1, 2)[:, None] @ bonds[:, 1:] @ elements[:, None]
    return ends.flatten(1)


def valences(elements: Float[Tensor, "batch atoms classes"], bonds: Probabilities) -> Counts:
    """Returns the atoms of each class whose bond orders sum to 0, 1, ..., MOST_ORDERS."""
    total = torch.arange(MOST_ORDERS + 1, device=bonds.device)
    has = (orders(bonds)[:, :, None].round() == total).to(elements)
    return (elements.transpose(1, 2) @ has).flatten(1)

"""A penalty on generated bonds that leave a molecule in pieces."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from src.config.ranges import Count, Positive
from src.errors import UserError
from src.models.moflow.actnorm import reused_statistics
from src.models.moflow.network import MoFlow

SHARPNESS = 20.0  # of the softmax over bond kinds: those of real molecules are at least 0.4 apart
BOUND = 50.0  # where the flow diverges on a latent, this cuts off its values and their gradients before they overflow


class Connected:
    """The number of orphans that molecules at random latents have: atoms with a bond to a later one, but to no earlier.

    In the order of a SMILES every atom but the first has a bond to an earlier one. The bond flow draws each bond by
    itself, and where it is undecided between two earlier atoms it often takes neither: the molecule falls in pieces,
    which is what makes most invalid ones so. A molecule without orphans is in one piece.

    Args:
        weight: of an orphan in the loss, in bits per dimension. At 0.005 the quick start's network generates more valid
            molecules, the full one maps all random latents to one graph (docs/notes/2026-11-22-moflow-quality.md).
        molecules: latents drawn at each step, on each rank.
        temperatures: least and greatest; each molecule's is drawn between them. Raises UserError otherwise.
    """

    def __init__(
        self, weight: Positive = 0.005, molecules: Count = 512, temperatures: Sequence[Positive] = (0.3, 1.0)
    ) -> None:
        if len(temperatures) != 2 or temperatures[0] > temperatures[1]:
            raise UserError(
                f"model.task.connected.temperatures={list(temperatures)} must be two, the least and the greatest"
            )
        self.weight, self.molecules, self.temperatures = weight, molecules, tuple(temperatures)

    def __call__(self, network: MoFlow) -> Float[Tensor, ""]:
        """Returns the mean number of orphans; call it behind a training forward, within `kept_statistics`."""
        shape = network.num_bond_classes, network.num_nodes, network.num_nodes
        low, high = self.temperatures
        like = {"device": network.ln_var.device, "dtype": network.ln_var.dtype}
        temperature = low + (high - low) * torch.rand(self.molecules, 1, 1, 1, **like)
        z = temperature * torch.exp(network.ln_var.detach() / 2) * torch.randn(self.molecules, *shape, **like)
        with reused_statistics(network.bond_flow):
            bonds = network.continuous_bonds(z, BOUND)
        return orphans(bonds[:, :, : network.max_atoms, : network.max_atoms]).mean()


def orphans(bonds: Float[Tensor, "batch kinds atoms atoms"]) -> Float[Tensor, " batch"]:
    """Returns the expected number of orphans of each molecule, from symmetric bond kinds of about 0 and 1.

    Kind 0 is no bond. All pairs are taken as independent, with probabilities softmax(SHARPNESS * bonds).
    """
    none = torch.log_softmax(SHARPNESS * bonds.float(), 1)[:, 0]
    has_earlier = 1 - none.tril(-1).sum(2).exp()
    has_later = 1 - none.triu(1).sum(2).exp()
    return (has_later * (1 - has_earlier))[:, 1:].sum(1)

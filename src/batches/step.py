"""What a training loader yields: the batches of one optimiser step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class StepBatches(NamedTuple):
    """The batches of one optimiser step of one rank.

    The step's gradient is that of the mean loss over all samples of all ranks: each rank sums its batches' mean losses
    times their weights, and the ranks' gradients are averaged.
    """

    batches: list[Any]
    samples: int  # of all ranks
    weights: Float[Tensor, " batches"] | None = None  # None: 1 / batches, as all have equally many samples

    @staticmethod
    def of(batches: list[Any], counts: Sequence[Sequence[int]], rank: int) -> "StepBatches":
        """Returns the step of these batches; `counts` has the samples of every rank in each of them."""
        samples = sum(map(sum, counts))
        if len({count for of_ranks in counts for count in of_ranks}) == 1:
            return StepBatches(batches, samples)
        shares = [of_ranks[rank] * len(of_ranks) / samples for of_ranks in counts]
        return StepBatches(batches, samples, torch.tensor(shares, dtype=torch.float32))

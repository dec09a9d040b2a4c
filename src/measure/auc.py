"""The exact area under the ROC curve over the scores of all ranks, without gathering them on one rank."""

from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64, Shaped
from torch import Tensor, distributed

from src.errors import UserError

INFINITY = 0x7F800000  # the key of +infinity; that of -infinity is ~INFINITY
HALF_BINS = 1 << 15  # a bin is the upper 16 bits of a key, -HALF_BINS to HALF_BINS - 1


class Tally(NamedTuple):
    """The number of negatives and positives with each score; `keys` are distinct and ascend."""

    keys: Int32[Tensor, " keys"]
    negatives: Int64[Tensor, " keys"]
    positives: Int64[Tensor, " keys"]


class ExactAUC:
    """The share of (positive, negative) pairs in which the positive has the higher score; a tie counts one half.

    Counts are integers, exact while positives times negatives are below 2^62 (four billion samples); only the final
    division rounds. If one rank calls `compute`, every rank must, also one without samples.

    Args:
        device: where the scores are kept (5 bytes each) and sorted; with NCCL it must be the rank's GPU.

    Attributes:
        num_positives, num_negatives: over all ranks, set by `compute`.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.keys: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.num_positives = self.num_negatives = 0

    def update(self, scores: Float[Tensor, " n"], labels: Shaped[Tensor, " n"]) -> None:
        """Adds samples; does not synchronise if they are on `device` already.

        Args:
            scores: float32, float16 or bfloat16. labels: positive where not 0.
        """
        self.keys.append(ordered_keys(scores.detach()).to(self.device))
        self.labels.append((labels != 0).to(self.device))

    def compute(self) -> float:
        """Returns the area, equal on all ranks; NaN without a positive or without a negative.

        Raises UserError on all ranks if one has a NaN score.
        """
        labels = torch.cat([torch.zeros(0, dtype=torch.bool, device=self.device), *self.labels])
        keys = torch.cat([torch.zeros(0, dtype=torch.int32, device=self.device), *self.keys])
        wrong = (keys > INFINITY) | (keys < ~INFINITY)
        totals = sum_over_ranks(torch.stack([(~labels).sum(), labels.sum(), wrong.sum()])).tolist()
        self.num_negatives, self.num_positives, num_wrong = totals
        if num_wrong:
            raise UserError(f"{num_wrong} of {sum(totals[:2])} scores are NaN, so there is no AUC; look at the loss")
        pairs = self.num_negatives * self.num_positives
        if not pairs:
            return nan
        tally = exchange_by_key(count_by_key(keys, (~labels).long(), labels.long()))
        # A positive counts each lower negative of any rank once, and each negative of equal score one half.
        below = negatives_of_lower_ranks(tally) + tally.negatives.cumsum(0) - tally.negatives
        twice = sum_over_ranks((tally.positives * (2 * below + tally.negatives)).sum())
        return int(twice) / (2 * pairs)


def ordered_keys(scores: Float[Tensor, " n"]) -> Int32[Tensor, " n"]:
    """Returns integers in the same order as the scores, equal where they are equal. Raises TypeError for float64."""
    if scores.dtype == torch.float64:
        raise TypeError("AUC takes scores of float32 or narrower: float64 would be rounded, which creates ties")
    bits = (scores.float() + 0.0).view(torch.int32)  # -0 + 0 is +0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def count_by_key(keys: Int32[Tensor, " n"], negatives: Int64[Tensor, " n"], positives: Int64[Tensor, " n"]) -> Tally:
    """Sorts the keys and adds up the counts of equal keys."""
    distinct, index = torch.unique(keys, return_inverse=True)
    zeros = torch.zeros(len(distinct), dtype=torch.int64, device=keys.device)
    return Tally(distinct, zeros.index_add(0, index, negatives), zeros.index_add(0, index, positives))


def num_ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def sum_over_ranks(count: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """Returns the sum over ranks; adds it up in place."""
    if num_ranks() > 1:
        distributed.all_reduce(count)
    return count


def exchange_by_key(tally: Tally) -> Tally:
    """Returns the counts of all ranks for this rank's range of keys; the ranges ascend with the rank.

    The ranges have nearly equal numbers of (rank, key) entries. Keys of one bin, whose scores differ by less than 1%,
    go to one rank.
    """
    ranks = num_ranks()
    if ranks == 1:
        return tally
    bins = (tally.keys >> 16).long() + HALF_BINS
    sizes = sum_over_ranks(torch.bincount(bins, minlength=2 * HALF_BINS))
    middles = sizes.cumsum(0) - (sizes + 1) // 2
    owners = middles * ranks // sizes.sum()
    outgoing = torch.bincount(owners[bins], minlength=ranks)
    incoming = torch.empty_like(outgoing)
    distributed.all_to_all_single(incoming, outgoing)
    sent, received = outgoing.tolist(), incoming.tolist()

    def send(part: Tensor) -> Tensor:
        result = part.new_empty(sum(received))
        distributed.all_to_all_single(result, part, received, sent)
        return result

    return count_by_key(*map(send, tally))


def negatives_of_lower_ranks(tally: Tally) -> Int64[Tensor, ""]:
    """Returns the number of negatives on lower ranks: their keys are below all keys of this rank."""
    rank = distributed.get_rank() if num_ranks() > 1 else 0
    counts = torch.zeros(num_ranks(), dtype=torch.int64, device=tally.keys.device)
    counts[rank] = tally.negatives.sum()
    return sum_over_ranks(counts)[:rank].sum()

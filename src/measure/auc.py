"""The area under the ROC curve, exactly, over the scores of all ranks, of which none holds the whole set."""

from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64, Shaped
from torch import Tensor, distributed

from src.errors import UserError

INFINITY = 0x7F800000  # the key of +infinity; that of -infinity is ~INFINITY
HALF_BINS = 1 << 15  # bins are told apart by the upper 16 bits of a key, from -HALF_BINS on


class Tally(NamedTuple):
    """How many negatives and positives have each score; the scores' keys ascend."""

    keys: Int32[Tensor, " keys"]
    negatives: Int64[Tensor, " keys"]
    positives: Int64[Tensor, " keys"]


class ExactAUC:
    """Counts the pairs of a positive and a negative in which the positive has the higher score, ties as one half.

    All counts are integers: nothing is rounded until the final division, for as long as positives times negatives stay
    below 2^62 (four billion samples). Every rank must call `compute` if one does, with its own part or without any.

    Args:
        device: where the scores are kept (5 bytes each) and sorted; with NCCL it must be the rank's GPU.

    num_positives, num_negatives: of all ranks, once `compute` has been called.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.keys: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.num_positives = self.num_negatives = 0

    def update(self, scores: Float[Tensor, " n"], labels: Shaped[Tensor, " n"]) -> None:
        """Adds a part; does not wait for the device if the part is there.

        Args:
            scores: float32, float16 or bfloat16. labels: positive where not 0.
        """
        self.keys.append(ordered_keys(scores.detach()).to(self.device))
        self.labels.append((labels != 0).to(self.device))

    def compute(self) -> float:
        """The area, equal on all ranks; NaN without a positive or without a negative.

        Raises UserError on all ranks where one has a score that is NaN.
        """
        labels = torch.cat([torch.zeros(0, dtype=torch.bool, device=self.device), *self.labels])
        keys = torch.cat([torch.zeros(0, dtype=torch.int32, device=self.device), *self.keys])
        wrong = (keys > INFINITY) | (keys < ~INFINITY)
        totals = summed(torch.stack([(~labels).sum(), labels.sum(), wrong.sum()])).tolist()
        self.num_negatives, self.num_positives, num_wrong = totals
        if num_wrong:
            raise UserError(f"{num_wrong} of {sum(totals[:2])} scores are NaN, so there is no AUC; look at the loss")
        pairs = self.num_negatives * self.num_positives
        if not pairs:
            return nan
        tally = exchanged(tallied(keys, (~labels).long(), labels.long()))
        # A positive wins against the negatives below it, wherever they are, and half against those of its own score.
        below = negatives_of_lower_ranks(tally) + tally.negatives.cumsum(0) - tally.negatives
        twice = summed((tally.positives * (2 * below + tally.negatives)).sum())
        return int(twice) / (2 * pairs)


def ordered_keys(scores: Float[Tensor, " n"]) -> Int32[Tensor, " n"]:
    """Integers in the order of the scores; equal where they are equal. Raises TypeError for float64."""
    if scores.dtype == torch.float64:
        raise TypeError("AUC takes scores of float32 or narrower: float64 would be rounded, and ties made")
    bits = (scores.float() + 0.0).view(torch.int32)  # -0 + 0 is +0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def tallied(keys: Int32[Tensor, " n"], negatives: Int64[Tensor, " n"], positives: Int64[Tensor, " n"]) -> Tally:
    """Sorts, and adds up what has the same key."""
    distinct, place = torch.unique(keys, return_inverse=True)
    none = torch.zeros(len(distinct), dtype=torch.int64, device=keys.device)
    return Tally(distinct, none.index_add(0, place, negatives), none.index_add(0, place, positives))


def num_ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def summed(count: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """The sum over ranks."""
    if num_ranks() > 1:
        distributed.all_reduce(count)
    return count


def exchanged(tally: Tally) -> Tally:
    """The whole tally cut into ranges of keys, of which each rank gets one, in the order of ranks.

    The ranges have nearly equal numbers of (rank, key) entries; keys of one bin, whose scores differ by less than 1%,
    stay together.
    """
    ranks = num_ranks()
    if ranks == 1:
        return tally
    bins = (tally.keys >> 16).long() + HALF_BINS
    sizes = summed(torch.bincount(bins, minlength=2 * HALF_BINS))
    middles = sizes.cumsum(0) - (sizes + 1) // 2
    owners = middles * ranks // sizes.sum()
    outgoing = torch.bincount(owners[bins], minlength=ranks)
    incoming = torch.empty_like(outgoing)
    distributed.all_to_all_single(incoming, outgoing)
    sent, received = outgoing.tolist(), incoming.tolist()

    def passed(part: Tensor) -> Tensor:
        result = part.new_empty(sum(received))
        distributed.all_to_all_single(result, part, received, sent)
        return result

    return tallied(*map(passed, tally))


def negatives_of_lower_ranks(tally: Tally) -> Int64[Tensor, ""]:
    """How many negatives lie below all keys of this rank."""
    rank = distributed.get_rank() if num_ranks() > 1 else 0
    counts = torch.zeros(num_ranks(), dtype=torch.int64, device=tally.keys.device)
    counts[rank] = tally.negatives.sum()
    return summed(counts)[:rank].sum()

"""Packing of Hugging Face's padded batches: their real tokens, one after another."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from src.gpu.triton_helpers import launch
from src.models.distilbert.fast import packing_triton as kernels

BUCKET, LENGTHS = 256, 32  # packed tokens and longest sentences are rounded up to multiples, for few shapes of graphs
BLOCK = {"BLOCK": 1024, "num_warps": 4}


class Packing(NamedTuple):
    """A batch's real tokens, one after another, and their places in it; `is_full` where no place is padding."""

    is_full: bool
    total: int
    longest: int
    order: Tensor
    ids: Tensor
    positions: Tensor
    starts: Tensor


def pack(ids: Tensor, mask: Tensor) -> Packing | None:
    """Returns the packed tokens; None where a sentence begins with padding. It waits for the device once.

    After the real tokens there are more, which belong to no sentence, for few different sizes.
    """
    is_token = mask != 0
    lengths = is_token.sum(1)
    total, longest, has_first = torch.stack([lengths.sum(), lengths.max(), is_token[:, 0].all().long()]).tolist()
    if not has_first:
        return None
    if total == ids.numel():
        return Packing(True, total, longest, ids, ids, ids, ids)
    size = rounded(total, BUCKET)
    flat = is_token.flatten()
    place = torch.where(flat, flat.cumsum(0) - 1, size)
    order = torch.zeros(size + 1, dtype=torch.int64, device=ids.device)
    order = order.scatter_(0, place, torch.arange(len(flat), device=ids.device))[:size]
    starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    packed = ids.flatten()[order].int(), (order % ids.shape[1]).int(), starts
    return Packing(False, total, rounded(longest, LENGTHS), order, *packed)


def rounded(count: int, unit: int) -> int:
    """Returns the smallest multiple of `unit` that is at least `count`."""
    return -(-count // unit) * unit


class PackedMemory:
    """Memory for the packed tokens of batches of at most `most` places, which graphs read where it is.

    `start` launches the packing and a copy of the sentences' lengths to the host; `lengths` waits for that copy alone,
    so that the device has what was launched between the two to do meanwhile.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.ids, self.positions = torch.zeros(2, most + BUCKET, dtype=torch.int32, device=device)
        self.starts = torch.zeros(most + 1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(most, dtype=torch.int32, device=device)
        self._on_host = torch.zeros(most, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def start(self, ids: Tensor, mask: Tensor) -> None:
        """Packs a batch, behind what the current stream does."""
        count, length = ids.shape
        launch(
            kernels.pack, (count + 1,), ids, mask, self._lengths, self.starts, self.ids, self.positions, count, length,
            *ids.stride(), *mask.stride(), REST=BUCKET, **BLOCK,
        )  # fmt: skip
        self._on_host[:count].copy_(self._lengths[:count], non_blocking=True)
        if self._event is not None:
            self._event.record()

    def lengths(self, count: int) -> list[int]:
        """Returns the number of tokens of the sentences, -1 for one that begins with padding."""
        if self._event is not None:
            self._event.synchronize()
        return self._on_host[:count].tolist()

    def inputs(self, count: int, total: int) -> list[Tensor]:
        """Returns ids, positions and starts of a batch of `count` sentences and `total` tokens, the last rounded up."""
        size = rounded(total, BUCKET)
        return [self.ids[:size], self.positions[:size], self.starts[: count + 1]]

"""Batches of tokenised sentences, padded or packed, in few sizes, from a data set on the training device.

The tokens of a whole epoch are laid out at its start with a few gathers (SST-2 packed: 4 MB; padded to 512: 138 MB). A
batch is then a few slices of them, which costs the host microseconds and the device nothing.
"""

from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional as F

from src.batches.tokens import PackedTokens, PaddedTokens
from src.datamodules.resident import OrderedLoader
from src.datamodules.text.data import TokenData

Padding = Literal["max_length", "longest", "bucketed", "packed"]
PADDINGS = get_args(Padding)
MAX_SIZES = 4  # src.gpu.cuda_graphs keeps as many graphs
SAMPLED_EPOCHS = 4  # epochs whose batches determine the sizes
MULTIPLE = {"longest": 8, "bucketed": 8, "packed": 32}  # sizes are multiples of it


class ResidentTokens:
    """Sentences on one device; their lengths are on the host too."""

    def __init__(self, data: TokenData, device: torch.device) -> None:
        self.device = device
        self.lengths = torch.from_numpy(data.lengths)
        self.longest = int(self.lengths.max())
        self.ids = torch.from_numpy(data.ids).to(device)
        self.starts = torch.from_numpy(data.starts).to(device)
        self.labels = torch.from_numpy(data.labels).to(device)

    def __len__(self) -> int:
        return len(self.lengths)


class TokenLoader(OrderedLoader[PaddedTokens | PackedTokens]):
    """Batches of all sentences for this rank; `train` shuffles and drops an incomplete last batch.

    Kinds of padding:
    - `max_length`: every sentence is padded to `max_length` tokens, as published.
    - `longest`: to the longest of its batch, rounded up.
    - `bucketed`: as `longest`; training batches have sentences of similar length and come in random order.
    - `packed`: not at all, only the batch at its end. A training batch has one sentence of each of `batch_size` groups
      of similar length, so that all batches have about the same number of tokens.

    The size of a batch (tokens of each sentence; of the whole batch if packed) is one of few, chosen for the least
    padding in the first epochs. Only a batch of a later epoch that exceeds them all has its own size.

    Args:
        tokens: the sentences.
        batch_size: sentences of this rank in each batch.
        padding: kind of padding.
        max_length: most tokens of a sentence.
        order: seed, rank and world_size, as for OrderedLoader.
    """

    def __init__(
        self, tokens: ResidentTokens, batch_size: int, *, padding: str, max_length: int, train: bool, **order: Any
    ) -> None:
        """Raises UserError if training has fewer sentences than a global batch."""
        super().__init__(torch.arange(len(tokens)), batch_size, shuffle=train, drop_last=train, **order)
        self.tokens, self.padding, self.max_length = tokens, padding, max_length
        self.sizes = torch.tensor(self._sizes(), dtype=torch.int64)
        self.counts: list[tuple[int, int]] = []  # real and processed tokens of each batch so far
        self._epoch: Epoch | None = None

    def begin(self, order: Int64[Tensor, " rows"]) -> None:
        minimum = self._min_sizes(order)
        sizes = self.sizes[torch.searchsorted(self.sizes, minimum).clamp(max=len(self.sizes) - 1)].maximum(minimum)
        self._epoch = Epoch(self.tokens, order, self.batch_size, sizes, packed=self.padding == "packed")

    def batch(self, step: int) -> PaddedTokens | PackedTokens:
        assert self._epoch is not None
        batch = self._epoch.batch(step)
        self.counts.append((self._epoch.real_tokens[step], batch.processed_tokens))
        return batch

    def _order(self) -> Int64[Tensor, " rows"]:
        order = super()._order()
        if not self.shuffle or self.padding not in ("bucketed", "packed"):
            return order
        # All ranks draw the same numbers, so that in each step their batches have similar sizes.
        generator = torch.Generator().manual_seed((self.seed << 20) + self.epoch)
        by_length = order[self.tokens.lengths[order].argsort(stable=True)]
        if self.padding == "bucketed":
            batches = by_length.view(-1, self.batch_size)
            return batches[torch.randperm(len(batches), generator=generator)].flatten()
        groups = by_length.view(self.batch_size, -1)
        return groups.gather(1, torch.rand(groups.shape, generator=generator).argsort(1)).T.flatten()

    def _min_sizes(self, order: Int64[Tensor, " rows"]) -> Int64[Tensor, " steps"]:
        """Returns the smallest possible size of each batch of this order."""
        lengths = in_batches(self.tokens.lengths[order], self.batch_size)
        if self.padding == "max_length":
            return torch.full((len(lengths),), self.max_length)
        minimum = lengths.sum(1) if self.padding == "packed" else lengths.amax(1)
        multiple = MULTIPLE[self.padding]
        minimum = (minimum + multiple - 1) // multiple * multiple
        return minimum if self.padding == "packed" else minimum.clamp(max=self.max_length)

    def _sizes(self) -> list[int]:
        minimum = []
        for epoch in range(SAMPLED_EPOCHS if self.shuffle else 1):
            self.epoch = epoch
            minimum.append(self._min_sizes(self._order()))
        self.epoch = 0
        return few_sizes(torch.cat(minimum), MAX_SIZES)


class Epoch:
    """The tokens of one epoch, laid out batch after batch.

    Args:
        tokens: the data set.
        order: its rows in the order of the epoch.
        batch_size: sentences of a batch; the last one may have fewer.
        sizes: tokens of each batch if packed, else of each sentence of the batch.
        packed: concatenate the sentences of a batch instead of padding each.
    """

    def __init__(
        self,
        tokens: ResidentTokens,
        order: Int64[Tensor, " rows"],
        batch_size: int,
        sizes: Int64[Tensor, " steps"],
        *,
        packed: bool,
    ) -> None:
        self.total, self.batch_size, self.packed = len(order), batch_size, packed
        self.longest = tokens.longest
        lengths = tokens.lengths[order]
        by_batch = in_batches(lengths, batch_size)
        self.sizes, self.real_tokens = sizes.tolist(), by_batch.sum(1).tolist()
        slots = sizes if packed else sizes * (by_batch > 0).sum(1)
        ends = slots.cumsum(0)
        self._bounds = [0, *ends.tolist()]
        starts = F.pad(by_batch.cumsum(1), (1, 0))
        within = starts[:, :-1] if packed else torch.arange(batch_size) * sizes[:, None]
        first_slots = ((ends - slots)[:, None] + within).flatten()[: self.total]

        device, rows = tokens.device, order.to(tokens.device)
        self._labels = tokens.labels[rows]
        self._starts = starts.to(device, torch.int32)
        on_device = lengths.to(device)
        self._lengths = on_device.int()
        sentence = torch.arange(self.total, device=device).repeat_interleave(
            on_device, output_size=sum(self.real_tokens)
        )
        position = torch.arange(len(sentence), device=device) - (on_device.cumsum(0) - on_device)[sentence]
        slot = first_slots.to(device)[sentence] + position
        self._ids = torch.zeros(self._bounds[-1], dtype=torch.int32, device=device)
        self._ids[slot] = tokens.ids[tokens.starts[rows][sentence] + position]
        if packed:
            self._positions = torch.zeros_like(self._ids)
            self._positions[slot] = position.int()

    def batch(self, step: int) -> PaddedTokens | PackedTokens:
        """Returns the batch number `step`: slices of the epoch's tensors."""
        first, last = step * self.batch_size, min((step + 1) * self.batch_size, self.total)
        slots = slice(self._bounds[step], self._bounds[step + 1])
        ids, labels = self._ids[slots], self._labels[first:last]
        if self.packed:
            starts = self._starts[step, : last - first + 1]
            return PackedTokens(ids, self._positions[slots], starts, labels, self.longest)
        return PaddedTokens(ids.view(last - first, self.sizes[step]), self._lengths[first:last], labels)


def in_batches(lengths: Int64[Tensor, " rows"], batch_size: int) -> Int64[Tensor, "steps batch"]:
    """Returns the lengths of each batch's sentences; an incomplete batch is padded with zeros."""
    return F.pad(lengths, (0, -len(lengths) % batch_size)).view(-1, batch_size)


def few_sizes(minimum: Int64[Tensor, " batches"], max_sizes: int) -> list[int]:
    """Chooses at most `max_sizes` sizes, ascending, that minimise the total size of all batches; none for no batch.

    Each batch takes the smallest size not below its minimum. Dynamic programming: the best choice of k sizes with a
    given largest one extends the best choice of k - 1 sizes with a smaller largest one.
    """
    values, counts = (part.tolist() for part in minimum.unique(return_counts=True))
    if not values:
        return []
    below = list(accumulate(counts))  # batches whose minimum is at most each value
    best = [(count * value, [value]) for count, value in zip(below, values, strict=True)]
    for _ in range(max_sizes - 1):
        longer = [
            [
                (total + (below[i] - below[j]) * values[i], [*sizes, values[i]])
                for j, (total, sizes) in enumerate(best[:i])
            ]
            for i in range(len(values))
        ]
        best = [min([same, *more]) for same, more in zip(best, longer, strict=True)]
    return best[-1][1]

"""The plan of one group's convolution in edge frames: which input columns multiply which weights.

With the radial weights mixed into a and b (see `basis`), the message of signed component m in its edge frame is
out_m = sum over channels in of a in_m + b in_-m, out_-m = a in_-m - b in_m, and for m = 0 only the a term.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from src.models.se3_transformer.basis import num_frequencies, polar_coefficients
from src.models.se3_transformer.fast.frames import EdgeLayout
from src.models.se3_transformer.radial import Group


@dataclass(frozen=True)
class Piece:
    """Consecutive output channels `begin` .. `begin + width` and their first column for m and -m (equal for m = 0)."""

    begin: int
    width: int
    plus: int
    minus: int


@dataclass(frozen=True)
class Block:
    """All products for one output degree and one |m|.

    Mixed weights of term a are [num_inputs, channels, mid] from offset `weight_a` * mid, those of term b (m > 0) from
    offset `weight_b` * mid. `plus` and `minus` are the first of `num_inputs` consecutive input columns of m and -m.
    """

    m: int
    num_inputs: int
    channels: int
    plus: int
    minus: int
    weight_a: int
    weight_b: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Plan:
    """A group with the layouts of its input and outputs."""

    group: Group
    source: EdgeLayout
    outputs: tuple[EdgeLayout, ...]

    def terms(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields (m, term, degree out, degree in) in the order of the mixed weights; term 0 is a, 1 is b."""
        for m in range(min(self.group.inputs.max_degree, self.group.outputs.max_degree) + 1):
            for term in range(2 if m else 1):
                for d_out in self.group.outputs:
                    for d_in in self.group.inputs:
                        if min(d_in, d_out) >= m:
                            yield m, term, d_out, d_in

    @property
    def num_columns(self) -> int:
        return sum(layout.num_features for layout in self.outputs)

    @cached_property
    def mixing(self) -> Float[Tensor, "terms frequencies"]:
        """The matrix from radial weights (by pair, then J) to mixed weights, in float64."""
        pairs = list(self.group.pairs())
        begins, total = {}, 0
        for pair in pairs:
            begins[pair] = total
            total += num_frequencies(pair)
        rows = []
        for m, term, d_out, d_in in self.terms():
            row = torch.zeros(total, dtype=torch.float64)
            coefficients = polar_coefficients((d_in, d_out))[max(2 * m - 1 + term, 0)]
            begin = begins[d_in, d_out]
            row[begin : begin + len(coefficients)] = 1 if self.group.is_scalar else coefficients
            rows.append(row)
        return torch.stack(rows)

    @cached_property
    def mixes_at_once(self) -> bool:
        """Whether all pairs have equally many weights, so that one matrix product mixes them."""
        return len({self.group.size(pair) for pair in self.group.pairs()}) == 1

    def mix(self, weight: Float[Tensor, "rows mid"]) -> Float[Tensor, " _"]:
        """Returns the mixed weights of all blocks, one after the other."""
        pairs, mid, mixing = list(self.group.pairs()), weight.shape[1], mixing_on(self, weight.device, weight.dtype)
        if self.mixes_at_once:
            return (mixing @ weight.view(mixing.shape[1], -1)).view(-1)
        sizes = [num_frequencies(pair) * self.group.size(pair) for pair in pairs]
        by_pair = dict(zip(pairs, weight.split(sizes), strict=True))
        by_pair_mixing = dict(zip(pairs, mixing.split([num_frequencies(pair) for pair in pairs], 1), strict=True))
        mixed = []
        for row, (_, _, d_out, d_in) in enumerate(self.terms()):
            pair = d_in, d_out
            parts = by_pair[pair].view(num_frequencies(pair), self.group.size(pair) * mid)
            mixed.append(by_pair_mixing[pair][row] @ parts)
        return torch.cat(mixed)

    def contract(
        self,
        hidden: Float[Tensor, "edges mid"],
        columns: Float[Tensor, "edges inputs"],
        mixed: Float[Tensor, " _"],
    ) -> Float[Tensor, "edges outputs"]:
        """Computes the messages of the group in the edge frames; columns outside the group are zero.

        Args:
            hidden: output of the hidden layers of the group's radial network.
            columns: source features in the layout `source`.
            mixed: `mix` of the group's weight.
        """
        edges, mid = hidden.shape
        out: dict[int, Tensor] = {}  # by first column
        for block in self.blocks:
            size, shape = block.num_inputs * block.channels, (block.num_inputs, block.channels)
            offsets = (block.weight_a, block.weight_b)[: 2 if block.m else 1]
            weights = torch.cat([mixed[offset * mid : (offset + size) * mid].view(*shape, mid) for offset in offsets])
            # Channels out first: small batched products with a transposed matrix take a CPU half as long.
            by_output = hidden @ weights.transpose(0, 1).reshape(-1, mid).t()
            radial = by_output.view(edges, shape[1], len(offsets) * shape[0]).transpose(1, 2)
            plus = columns.narrow(1, block.plus, block.num_inputs)
            if block.m:
                minus = columns.narrow(1, block.minus, block.num_inputs)
                rows = torch.stack([torch.cat([plus, minus], 1), torch.cat([minus, -plus], 1)], 1)
            else:
                rows = plus[:, None]
            result = torch.bmm(rows, radial)
            for piece in block.pieces:
                out[piece.plus] = result[:, 0, piece.begin : piece.begin + piece.width]
                out[piece.minus] = result[:, -1, piece.begin : piece.begin + piece.width]
        pieces, column = [], 0
        for begin in sorted(out):
            if begin > column:
                pieces.append(columns.new_zeros(edges, begin - column))
            pieces.append(out[begin])
            column = begin + out[begin].shape[1]
        if column < self.num_columns:
            pieces.append(columns.new_zeros(edges, self.num_columns - column))
        return torch.cat(pieces, 1)

    def null_messages(
        self,
        hidden: Float[Tensor, "edges mid"],
        columns: Float[Tensor, "edges inputs"],
        weight: Float[Tensor, "rows mid"],
    ) -> Float[Tensor, "edges outputs"]:
        """Computes the messages of edges of length 0, in any frames: only J = 0 is left, which is a multiple of 1.

        `weight` is that of the group. Equals `contract` where the basis is that of `pair_basis`.
        """
        messages, begin = columns.new_zeros(len(columns), self.num_columns), 0
        for pair in self.group.pairs():
            size = self.group.size(pair)
            rows, begin = weight[begin : begin + size], begin + num_frequencies(pair) * size
            degree = pair[0]
            if pair[1] != degree:
                continue
            count = self.group.inputs.channels(degree)
            factor = 1.0 if self.group.is_scalar else float(polar_coefficients(pair)[0, 0])
            radial = (hidden.to(rows.dtype) @ rows.t() * factor).view(len(columns), count, -1).to(columns.dtype)
            for m in range(-degree, degree + 1):
                begin_in = self.source.offsets[degree, m]
                part = torch.bmm(columns[:, None, begin_in : begin_in + count], radial)[:, 0]
                for piece in self._pieces(degree, abs(m)):
                    first = piece.minus if m < 0 else piece.plus
                    messages[:, first : first + piece.width] = part[:, piece.begin : piece.begin + piece.width]
        return messages

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        first: dict[tuple[int, int, int], int] = {}  # the first mixed weight of each (m, term, degree out)
        inputs: dict[tuple[int, int], int] = {}
        offset = 0
        for m, term, d_out, d_in in self.terms():
            first.setdefault((m, term, d_out), offset)
            if term == 0:
                inputs[m, d_out] = inputs.get((m, d_out), 0) + self.group.inputs.channels(d_in)
            offset += self.group.size((d_in, d_out))
        blocks = []
        for (m, d_out), count in inputs.items():
            lowest = min(degree for degree in self.group.inputs if degree >= m)
            blocks.append(
                Block(
                    m=m,
                    num_inputs=count,
                    channels=self.group.outputs.channels(d_out),
                    plus=self.source.offsets[lowest, m],
                    minus=self.source.offsets[lowest, -m],
                    weight_a=first[m, 0, d_out],
                    weight_b=first[m, 1, d_out] if m else 0,
                    pieces=self._pieces(d_out, m),
                )
            )
        return tuple(blocks)

    def _pieces(self, degree: int, m: int) -> tuple[Piece, ...]:
        """Returns the columns of an output degree's channels, which are assigned to the outputs in order."""
        pieces, begin, base = [], 0, 0
        for layout in self.outputs:
            if width := layout.fiber.channels(degree):
                offsets = layout.offsets
                pieces.append(Piece(begin, width, base + offsets[degree, m], base + offsets[degree, -m]))
                begin += width
            base += layout.num_features
        return tuple(pieces)


@cache
@torch.inference_mode(False)
def mixing_on(plan: Plan, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "terms frequencies"]:
    """Returns the plan's mixing on a device; cached, because a CUDA graph cannot capture the copy."""
    return plan.mixing.to(device, dtype)

"""Edge-aligned frames: rotations of each edge to e3nn's polar axis, and features in these frames.

In its edge frame a message needs no basis: components of different |m| do not mix (see `basis`). Features in edge
frames are ordered by m: all degrees' channels of m = 0, then of m = +1, m = -1, m = +2 and so on (`EdgeLayout`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import can_take, lacks, note, package, working_dtype
from src.models.se3_transformer.basis import wigner_3j_on
from src.models.se3_transformer.conv import Geometry, angular_basis
from src.models.se3_transformer.fiber import Fiber


def has_frames(geometry: Geometry) -> bool:
    """Returns whether edges have frames: no gradient of their directions is needed, and those of length 0 are known.

    An edge of length 0 has any frame (`FastConvSE3.edge_messages`).
    """
    if angular_basis in geometry.computed and not geometry.rel_pos.requires_grad:
        return False  # a caller gave the basis, which may be another one
    has_directions = geometry.graph.distinct or geometry.null is not None
    if not has_directions:
        note("an edge has length 0 (two atoms at one position): plain convolutions run, fast ones need its direction")
    if geometry.rel_pos.requires_grad:
        return lacks("conv", geometry.rel_pos, "gradients of the positions")
    return has_directions


def edge_wigner(geometry: Geometry) -> Float[Tensor, "edges packed"]:
    """Returns the Wigner matrices of the edges' rotations, as `wigner` does, in the positions' dtype or autocast's."""
    dtype = working_dtype(geometry.rel_pos)
    is_supported = can_take("conv", geometry.rel_pos, geometry.max_degree <= 4, max_degree=geometry.max_degree)
    if is_supported and (rotations := package(f"{__package__}.rotations")):
        return rotations.edge_matrices(geometry.rel_pos, geometry.max_degree, dtype)
    with torch.no_grad(), torch.autocast(geometry.rel_pos.device.type, enabled=False):
        packed = wigner(edge_rotations(geometry.rel_pos), geometry.max_degree)
    return packed.to(dtype)


def packed_size(max_degree: int) -> int:
    """Returns the number of entries of one edge's Wigner matrices of degrees 0 .. max_degree."""
    return sum((2 * degree + 1) ** 2 for degree in range(max_degree + 1))


def packed_offset(degree: int) -> int:
    """Returns the offset of a degree's matrix in the packed Wigner matrices."""
    return packed_size(degree - 1)


def edge_rotations(rel_pos: Float[Tensor, "edges 3"]) -> Float[Tensor, "edges 3 3"]:
    """Returns rotations that take each direction to the y axis; for a vector of length 0 some rotation.

    The rotation about the edge is arbitrary, and no result depends on it.
    """
    # Divided by the largest component first, because squares of tiny vectors underflow.
    scaled = rel_pos / rel_pos.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rel_pos.dtype).tiny)
    axis = torch.arange(3, device=rel_pos.device)
    is_null = (rel_pos == 0).all(1, keepdim=True)
    direction = torch.nn.functional.normalize(scaled.where(~is_null, (axis == 1).to(scaled)), dim=1)
    helper = (axis == direction.abs().argmin(1, keepdim=True)).to(direction)
    across = torch.nn.functional.normalize(torch.linalg.cross(direction, helper), dim=1)
    return torch.stack([across, direction, torch.linalg.cross(across, direction)], 1)


def wigner(rotations: Float[Tensor, "edges 3 3"], max_degree: int) -> Float[Tensor, "edges packed"]:
    """Returns e3nn's Wigner matrices D_0, .., D_max of rotations, row by row, one degree after the other.

    D_1 is the rotation itself in e3nn's basis; D_l is the degree l part of D_1 x D_(l-1).
    """
    matrices = [torch.ones_like(rotations[:, :1, :1]), rotations]
    for degree in range(2, max_degree + 1):
        # sqrt(2l + 1) w3j takes (degree 1) x (degree l - 1) to degree l isometrically.
        w3j = wigner_3j_on(degree - 1, degree, 1, rotations.device, rotations.dtype)
        couple = (2 * degree + 1) ** 0.5 * w3j.permute(2, 1, 0)
        half = torch.einsum("eij,jbn->eibn", rotations, couple)
        half = torch.einsum("eab,eibn->eian", matrices[-1], half)
        matrices.append(torch.einsum("iam,eian->emn", couple, half))
    return torch.cat([matrix.flatten(1) for matrix in matrices[: max_degree + 1]], 1)


def wigner_of(packed: Float[Tensor, "edges packed"], degree: int) -> Float[Tensor, "edges size size"]:
    """Returns a view of one degree's matrices."""
    size = 2 * degree + 1
    return packed.narrow(1, packed_offset(degree), size * size).unflatten(1, (size, size))


def rotate(
    matrices: Float[Tensor, "edges rows components"], features: Float[Tensor, "edges components channels"]
) -> Float[Tensor, "edges rows channels"]:
    """Returns matrices @ features; vectors of many channels without the slow product of small matrices on a CPU."""
    if features.is_cuda or features.shape[1] > 3 or features.shape[2] < 8 or torch.is_grad_enabled():
        return matrices @ features
    total = matrices[:, :, :1] * features[:, :1]
    for component in range(1, features.shape[1]):
        total.addcmul_(matrices[:, :, component, None], features[:, component, None])
    return total


@dataclass(frozen=True)
class EdgeLayout:
    """The column order of a fiber's features in edge frames; components with |m| > `max_m` are dropped."""

    fiber: Fiber
    max_m: int

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yields (degree, signed m) of each block of channels, in order."""
        for m in range(min(self.max_m, self.fiber.max_degree) + 1):
            for sign in (1, -1)[: 2 if m else 1]:
                for degree in self.fiber:
                    if degree >= m:
                        yield degree, sign * m

    @cached_property
    def offsets(self) -> dict[tuple[int, int], int]:
        """The first column of each (degree, signed m)."""
        offsets, column = {}, 0
        for degree, m in self.rows():
            offsets[degree, m] = column
            column += self.fiber.channels(degree)
        return offsets

    @cached_property
    def num_features(self) -> int:
        return sum(self.fiber.channels(degree) for degree, _ in self.rows())

    @property
    def channels(self) -> int | None:
        """The channels of every row if degrees 0, 1, .. have equal channels (features are one rectangle), else None."""
        complete = self.fiber.degrees == tuple(range(len(self.fiber)))
        return self.fiber.equal_channels if complete else None

    def to_edge(
        self, features: Float[Tensor, "edges features"], packed: Float[Tensor, "edges packed"]
    ) -> Float[Tensor, "edges columns"]:
        """Returns the fiber's flat features, one row per edge, rotated into the edge frames."""
        parts = {degree: self.fiber.part(features, degree) for degree in self.fiber}
        rotated = {
            degree: rotate(wigner_of(packed, degree), part) if degree else part for degree, part in parts.items()
        }
        return torch.cat([rotated[degree][:, degree + m] for degree, m in self.rows()], 1)

    def from_edge(
        self, columns: Float[Tensor, "edges columns"], packed: Float[Tensor, "edges packed"]
    ) -> Float[Tensor, "edges features"]:
        """Applies the transpose of `to_edge`; returns flat features in the common frame."""
        parts = []
        for degree, channels in self.fiber.items():
            if degree == 0:  # scalars do not rotate
                parts.append(columns.narrow(1, self.offsets[0, 0], channels))
                continue
            high = min(degree, self.max_m)
            components = [columns.narrow(1, self.offsets[degree, m], channels) for m in range(-high, high + 1)]
            matrices = wigner_of(packed, degree)[:, degree - high : degree + high + 1]
            parts.append(rotate(matrices.transpose(1, 2), torch.stack(components, 1)).flatten(1))
        return torch.cat(parts, 1)


@cache
def rotation_table(layout: EdgeLayout, size: int, device: torch.device) -> Tensor:
    """Returns for each (row of the layout, flat component) the index in the packed Wigner matrices, -1 for zero.

    The table is int32 [size, size]; the layout's rows must have equal channels.
    """
    table = torch.full((size, size), -1, dtype=torch.int32)
    for row, (degree, m) in enumerate(layout.rows()):
        width = 2 * degree + 1
        begin = packed_offset(degree) + (degree + m) * width
        table[row, degree**2 : degree**2 + width] = torch.arange(begin, begin + width)
    return table.to(device)

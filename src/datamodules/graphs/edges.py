"""The edges of molecular graphs: the bonds, all pairs of atoms within a radius, or all pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from src.config.ranges import Positive
from src.datamodules.graphs.data import Arrays

CHUNK = 1 << 22  # pairs of atoms processed at a time


class DirectedEdges(NamedTuple):
    """The edges of many molecules, those of each sorted by destination, then source; every edge has its reverse."""

    num_edges: Int[np.ndarray, " molecules"]
    src: Int[np.ndarray, " edges"]  # atom number within the molecule
    dst: Int[np.ndarray, " edges"]
    reverse: Int[np.ndarray, " edges"]  # index of the reverse edge minus index of this one
    orders: UInt8[np.ndarray, " edges"]  # of the bond: 1 single, 2 double, 3 triple, 4 aromatic; 0 without a bond


Kind = Literal["bonds", "radius", "full"]


@dataclass(frozen=True)
class Edges:
    """Selects the edges of a graph.

    Args:
        kind: `bonds`; `radius`, the bonds and all pairs of atoms within `cutoff`; or `full`, all pairs.
        cutoff: of `radius`, in angstrom.
    """

    kind: Kind = "bonds"
    cutoff: Positive = 5.0

    def of(self, arrays: Arrays) -> DirectedEdges:
        """Returns the edges of these molecules."""
        parts = [self._of(part) for part in _chunks(arrays)] or [self._of(arrays)]
        return DirectedEdges(*(np.concatenate(field) for field in zip(*parts, strict=True)))

    def _of(self, arrays: Arrays) -> DirectedEdges:
        """As `of`, for a chunk: enumerates all pairs of atoms, sorted by molecule, destination and source."""
        sizes = arrays.num_atoms.astype(np.int64)
        ends = np.cumsum(sizes**2)
        molecule = np.repeat(np.arange(len(sizes)), sizes**2)
        start, size = (ends - sizes**2)[molecule], sizes[molecule]
        dst, src = np.divmod(np.arange(len(molecule)) - start, size)
        of_bond = np.repeat(np.arange(len(sizes)), arrays.num_bonds)
        orders = np.zeros(len(molecule), np.uint8)
        for one, other in (arrays.bonds.T, arrays.bonds.T[::-1]):
            orders[(ends - sizes**2)[of_bond] + one * sizes[of_bond] + other] = arrays.orders
        first_atom = (np.cumsum(sizes) - sizes)[molecule]
        chosen = (orders > 0) | self._is_edge(arrays.positions, first_atom + src, first_atom + dst)
        kept, number = np.flatnonzero(chosen), np.cumsum(chosen) - 1
        reversed_pair = (start + src * size + dst)[kept]
        return DirectedEdges(
            num_edges=np.bincount(molecule[kept], minlength=len(sizes)).astype(np.int32),
            src=src[kept].astype(np.int32),
            dst=dst[kept].astype(np.int32),
            reverse=(number[reversed_pair] - np.arange(len(kept))).astype(np.int32),
            orders=orders[kept],
        )

    def _is_edge(
        self, positions: Float[np.ndarray, "atoms 3"], src: Int[np.ndarray, " pairs"], dst: Int[np.ndarray, " pairs"]
    ) -> Bool[np.ndarray, " pairs"]:
        """Returns whether a pair of atoms is an edge even without a bond."""
        if self.kind == "bonds":
            return np.zeros(len(src), bool)
        if self.kind == "full":
            return src != dst
        squares = ((positions[dst] - positions[src]) ** 2).sum(1)
        return (src != dst) & (squares <= self.cutoff**2)


def _chunks(arrays: Arrays) -> Iterator[Arrays]:
    """Yields consecutive molecules with at most CHUNK pairs of atoms, or one larger molecule."""
    pairs = np.cumsum(arrays.num_atoms.astype(np.int64) ** 2)
    atoms, bonds = (np.append(0, np.cumsum(sizes)) for sizes in (arrays.num_atoms, arrays.num_bonds))
    start = 0
    while start < len(pairs):
        before = pairs[start - 1] if start else 0
        stop = max(int(np.searchsorted(pairs, before + CHUNK, side="right")), start + 1)
        of_atoms, of_bonds = slice(atoms[start], atoms[stop]), slice(bonds[start], bonds[stop])
        yield Arrays(
            arrays.num_atoms[start:stop],
            arrays.numbers[of_atoms],
            arrays.positions[of_atoms],
            arrays.num_bonds[start:stop],
            arrays.bonds[of_bonds],
            arrays.orders[of_bonds],
        )
        start = stop

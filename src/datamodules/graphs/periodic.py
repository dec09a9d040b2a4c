"""Molecules in periodic boxes: each is made whole by the minimum image, and neighbours across the border are found.

A box is a matrix whose rows are the lattice vectors, zero along the directions that are not periodic.
"""

from collections import deque
from collections.abc import Iterator
from itertools import product

import numpy as np
from jaxtyping import Float, Int
from rdkit import Chem

from src.datamodules.graphs.data import MoleculeError

TOLERANCE, STRETCH = 0.45, 1.3  # the longest bond: the sum of covalent radii, plus or times these
MOST_PAIRS = 300_000_000  # pairs of atoms and images that are compared
FLAT = 1e-6  # part of the vectors' product; a smaller volume is none
NEARER = 1e-3  # angstrom

Positions = Float[np.ndarray, "atoms 3"]
Box = Float[np.ndarray, "3 3"]


def whole(numbers: Int[np.ndarray, " atoms"], positions: Positions, box: Box) -> tuple[Positions, bool]:
    """Returns the positions with every molecule in one piece and its neighbours beside it, and whether any changed.

    An atom moves by lattice vectors alone. Raises MoleculeError where bonds never end, as in a crystal.
    """
    table = Chem.GetPeriodicTable()
    radii = np.array([table.GetRcovalent(int(number)) for number in numbers])
    sums = radii[:, None] + radii
    longest = np.maximum(STRETCH * sums, sums + TOLERANCE)
    atoms = len(positions)
    neighbours: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(atoms)]
    nearest, nearest_shift = np.full((atoms, atoms), np.inf), np.zeros((atoms, atoms, 3), np.int64)
    for distances, shifts in _images(positions, box, float(longest.max())):
        itself = np.eye(atoms, dtype=bool) & ~shifts.any(-1)
        for i, j in zip(*(ends.tolist() for ends in ((distances <= longest) & ~itself).nonzero()), strict=True):
            neighbours[i].append((j, tuple(shifts[i, j].tolist())))
        nearer = distances < nearest - NEARER
        nearest[nearer], nearest_shift[nearer] = distances[nearer], shifts[nearer]
    offsets, parts = _along_bonds(neighbours)
    _gather(offsets, parts, nearest, nearest_shift)
    return positions + offsets @ box, bool(offsets.any())


def image_neighbours(positions: Positions, box: Box, cutoff: float | None) -> tuple[int, int] | None:
    """Returns the first two atoms that are neighbours through the border of the box; None without such a pair.

    They are nearer than `cutoff`, in angstrom; if it is None, nearer than without the border.
    """
    if not box.any() or not len(positions):
        return None
    direct = np.linalg.norm(positions[None] - positions[:, None], axis=-1)
    reach = float(direct.max()) if cutoff is None else cutoff
    limit = direct - NEARER if cutoff is None else np.full_like(direct, cutoff)
    for distances, shifts in _images(positions, box, reach):
        first, second = ((distances <= limit) & shifts.any(-1)).nonzero()
        if len(first):
            return int(first[0]), int(second[0])
    return None


def _images(
    positions: Positions, box: Box, reach: float
) -> Iterator[tuple[Float[np.ndarray, "atoms atoms"], Int[np.ndarray, "atoms atoms 3"]]]:
    """Yields distances i to j and the lattice shift of j, until every image of j within `reach` of i was among them.

    Raises MoleculeError for a box that has no volume, or is so small that there are too many images.
    """
    is_periodic = np.any(box != 0, axis=1)
    cell = _completed(box, is_periodic)
    inverse = np.linalg.inv(cell)
    heights = 1 / np.linalg.norm(inverse, axis=0)
    vectors = positions[None] - positions[:, None]
    nearest = -np.rint(vectors @ inverse) * is_periodic
    most = np.where(is_periodic, np.floor(reach / heights + 0.5), 0)
    if np.prod(2 * most + 1) * len(positions) ** 2 > MOST_PAIRS:
        raise MoleculeError(f"has a periodic box only {heights[is_periodic].min():.3g} angstrom wide: check Lattice")
    for steps in product(*(range(-int(count), int(count) + 1) for count in most)):
        shifts = nearest + np.array(steps)
        yield np.linalg.norm(vectors + shifts @ cell, axis=-1), shifts.astype(np.int64)


def _completed(box: Box, is_periodic: np.ndarray) -> Box:
    """Returns the box with unit vectors across the periodic directions in place of zeros."""
    vectors = box[is_periodic]
    cell = box.copy()
    _, sizes, basis = np.linalg.svd(vectors)
    if np.prod(sizes) <= FLAT * np.prod(np.linalg.norm(vectors, axis=1)):
        raise MoleculeError("has a periodic box without volume: check Lattice")
    cell[~is_periodic] = basis[len(vectors) :]
    return cell


def _along_bonds(
    neighbours: list[list[tuple[int, tuple[int, ...]]]],
) -> tuple[Int[np.ndarray, "atoms 3"], Int[np.ndarray, " atoms"]]:
    """Returns each atom's lattice shift, that keeps bonds short, and the number of its molecule."""
    offsets = np.zeros((len(neighbours), 3), np.int64)
    parts = np.full(len(neighbours), -1)
    for root in range(len(neighbours)):
        if parts[root] >= 0:
            continue
        parts[root] = root
        queue = deque([root])
        while queue:
            atom = queue.popleft()
            for other, shift in neighbours[atom]:
                offset = offsets[atom] + shift
                if parts[other] < 0:
                    parts[other], offsets[other] = root, offset
                    queue.append(other)
                elif (offsets[other] != offset).any():
                    raise MoleculeError(
                        "is bonded to its own periodic images, as a crystal or a polymer is, and only molecules are "
                        'read: give pbc="F F F" to read the atoms of one box alone'
                    )
    return offsets, parts


def _gather(
    offsets: Int[np.ndarray, "atoms 3"],
    parts: Int[np.ndarray, " atoms"],
    nearest: Float[np.ndarray, "atoms atoms"],
    shifts: Int[np.ndarray, "atoms atoms 3"],
) -> None:
    """Moves whole molecules, in place, each to its image that is nearest to those before."""
    placed = parts == parts[:1]
    while not placed.all():
        rows, columns = np.flatnonzero(placed), np.flatnonzero(~placed)
        row, column = np.divmod(int(nearest[np.ix_(rows, columns)].argmin()), len(columns))
        i, j = rows[row], columns[column]
        part = parts == parts[j]
        offsets[part] += offsets[i] + shifts[i, j] - offsets[j]
        placed |= part

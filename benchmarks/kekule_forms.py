"""Counts which Kekule forms the installed RDKit gives to molecules, encoded as the published MoFlow data were.

    python -m benchmarks.kekule_forms data/zinc250k/zinc250k.smiles [--each 100]
    python -m benchmarks.kekule_forms data/zinc250k/prepared_all/smiles.txt --each 5 --arrays data/zinc250k/prepared_all

Needs RDKit alone, so that older versions can be asked from an environment of their own. Prints the share of molecules
whose form differs from `src.molecules.kekule`, and shares of double bonds in aromatic rings. `--arrays` also compares a
folder of prepared molecules, made with whatever RDKit, with what this one encodes by the published steps.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import rdkit
from rdkit import Chem, RDLogger

from src.molecules.kekule import kekulize


def aromatic_orders(molecule: Chem.Mol) -> dict[tuple[int, int], bool]:
    """Returns whether each aromatic bond of a kekulised molecule is double, by its atoms, the first one first."""
    bonds = [bond for bond in molecule.GetBonds() if bond.GetIsAromatic()]
    pairs = [sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in bonds]
    return {(a, b): bond.GetBondType() == Chem.BondType.DOUBLE for (a, b), bond in zip(pairs, bonds, strict=True)}


class Prepared:
    """Arrays of prepared molecules, and how many of those compared have other atoms or bonds there."""

    def __init__(self, folder: Path) -> None:
        self.nodes, self.edges = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("nodes", "edges"))
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        self.numbers = np.array(meta["atomic_numbers"], np.uint8)
        self.other_atoms = self.other_bonds = 0

    def compare(self, row: int, molecule: Chem.Mol) -> None:
        """Compares a row with a kekulised molecule, encoded as published: atomic numbers and bond orders."""
        atoms, bonds = np.zeros_like(self.nodes[row]), np.zeros_like(self.edges[row])
        atoms[: molecule.GetNumAtoms()] = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
        for bond in molecule.GetBonds():
            ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            bonds[ends] = bonds[ends[::-1]] = int(bond.GetBondTypeAsDouble())
        self.other_atoms += not np.array_equal(atoms, self.numbers[self.nodes[row]])
        self.other_bonds += not np.array_equal(bonds, self.edges[row])


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the Kekule forms of the installed RDKit.")
    parser.add_argument("smiles", type=Path, help="a file with one SMILES a line")
    parser.add_argument("--each", type=int, default=100, help="takes every such line")
    parser.add_argument("--arrays", type=Path, help="a folder of prepared molecules; SMILES is its smiles.txt")
    asked = parser.parse_args()
    lines = asked.smiles.read_text(encoding="utf-8").split()
    prepared = Prepared(asked.arrays) if asked.arrays else None
    if prepared and len(lines) != len(prepared.nodes):
        parser.error(f"{asked.smiles} is not of these arrays: give {asked.arrays / 'smiles.txt'}")
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    molecules, other = 0, 0
    counts: dict[str, Counter[bool]] = {}
    for row in range(0, len(lines), asked.each):
        smiles = Chem.MolToSmiles(Chem.MolFromSmiles(lines[row]), isomericSmiles=False)
        molecule, ours = Chem.MolFromSmiles(smiles), Chem.MolFromSmiles(smiles)
        rings = [ring for ring in molecule.GetRingInfo().AtomRings() if len(ring) == 6]
        Chem.Kekulize(molecule)
        kekulize(ours)
        if prepared:
            prepared.compare(row, molecule)
        orders = aromatic_orders(molecule)
        molecules, other = molecules + 1, other + (orders != aromatic_orders(ours))
        for (first, second), double in orders.items():
            kind = "between neighbours in the order" if second == first + 1 else "that close rings"
            counts.setdefault(f"aromatic bonds {kind}", Counter())[double] += 1
        for ring in rings:
            begin = sorted(pair for pair in orders if set(pair) <= set(ring))
            if len(begin) == 6:
                counts.setdefault("first bonds of six-membered aromatic rings", Counter())[orders[begin[0]]] += 1
    print(f"RDKit {rdkit.__version__}: {molecules:,} molecules, {other:,} ({other / molecules:.1%}) in another form")
    if prepared:
        print(f"  other atoms in the arrays: {prepared.other_atoms:,} molecules; other bonds: {prepared.other_bonds:,}")
    for name, count in counts.items():
        print(f"  {count[True] / count.total():.1%} of {count.total():,} {name} are double")


if __name__ == "__main__":
    main()

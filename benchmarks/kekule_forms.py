"""Counts which Kekule forms the installed RDKit gives to molecules, encoded as the published MoFlow data were.

    python -m benchmarks.kekule_forms data/zinc250k/zinc250k.smiles [--each 100]

Needs RDKit alone, so that older versions can be asked from an environment of their own. Prints the share of molecules
whose form differs from `src.molecules.kekule`, and shares of double bonds in aromatic rings.
"""

import argparse
from collections import Counter
from pathlib import Path

import rdkit
from rdkit import Chem, RDLogger

from src.molecules.kekule import kekulize


def aromatic_orders(molecule: Chem.Mol) -> dict[tuple[int, int], bool]:
    """Returns whether each aromatic bond of a kekulised molecule is double, by its atoms, the first one first."""
    bonds = [bond for bond in molecule.GetBonds() if bond.GetIsAromatic()]
    pairs = [sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in bonds]
    return {(a, b): bond.GetBondType() == Chem.BondType.DOUBLE for (a, b), bond in zip(pairs, bonds, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the Kekule forms of the installed RDKit.")
    parser.add_argument("smiles", type=Path, help="a file with one SMILES a line")
    parser.add_argument("--each", type=int, default=100, help="takes each such line")
    asked = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    molecules, other = 0, 0
    counts: dict[str, Counter[bool]] = {}
    for line in asked.smiles.read_text(encoding="utf-8").split()[:: asked.each]:
        smiles = Chem.MolToSmiles(Chem.MolFromSmiles(line), isomericSmiles=False)
        molecule, ours = Chem.MolFromSmiles(smiles), Chem.MolFromSmiles(smiles)
        rings = [ring for ring in molecule.GetRingInfo().AtomRings() if len(ring) == 6]
        Chem.Kekulize(molecule)
        kekulize(ours)
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
    for name, count in counts.items():
        print(f"  {count[True] / count.total():.1%} of {count.total():,} {name} are double")


if __name__ == "__main__":
    main()

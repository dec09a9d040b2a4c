"""Which molecules are the same, or have the same scaffold: groups that a split keeps together."""

from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from src.datamodules.graphs.data import Molecule


def graph_of(molecule: Molecule) -> str:
    """Returns a text that is the same for the same elements and connections in any order, form or conformation.

    Orders of bonds, charges and stereo do not count: files and formats write them differently for one molecule.
    """
    mol = Chem.RWMol()
    for number in molecule.numbers.tolist():
        atom = Chem.Atom(number)
        atom.SetNoImplicit(True)
        mol.AddAtom(atom)
    for begin, end in molecule.bonds.tolist():
        mol.AddBond(begin, end, Chem.BondType.SINGLE)
    return Chem.MolToSmiles(mol)


def scaffold_of(mol: Chem.Mol) -> str:
    """Returns the SMILES of a molecule's rings and what links them (Bemis and Murcko), "" without rings."""
    try:
        return MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.RemoveHs(mol, sanitize=False), includeChirality=False)
    except (RuntimeError, ValueError):  # of RDKit, for molecules beyond its rules of valence
        return ""

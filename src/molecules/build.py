"""Build molecules from arrays, as published for MoFlow (github.com/calvin-zcx/moflow)."""

from functools import cache

import numpy as np
from jaxtyping import UInt8
from rdkit import Chem

from src.molecules.vocabulary import Vocabulary

Nodes = UInt8[np.ndarray, " max_atoms"]
Edges = UInt8[np.ndarray, "max_atoms max_atoms"]
Bond = tuple[int, int, int]

ORDERS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}
# The published base valences; one more bond makes these atoms cations.
CHARGEABLE = {7: 3, 8: 2, 16: 2}
# A higher valence is invalid with any charge and after the parser's clean-up (as of a nitro group with double bonds).
MAX_VALENCE = {6: 4, 8: 3, 9: 1, 16: 6}


def build_molecule(nodes: Nodes, edges: Edges, vocabulary: Vocabulary) -> Chem.Mol | None:
    """Returns the molecule of one graph as a parser reads it, or None if the graph is no valid molecule.

    A molecule is valid if its SMILES is not empty, is one fragment, and parses.
    """
    numbers, bonds = _graph(nodes, edges, vocabulary)
    valences = _valences(len(numbers), bonds)
    if not numbers or any(valences[i] > MAX_VALENCE.get(number, 99) for i, number in enumerate(numbers)):
        return None
    if not _is_connected(len(numbers), bonds):
        return None
    return Chem.MolFromSmiles(Chem.MolToSmiles(_assemble(numbers, bonds)))


def correct(nodes: Nodes, edges: Edges, vocabulary: Vocabulary) -> Chem.Mol | None:
    """Returns the molecule after the published validity correction; None without atoms or if it does not parse.

    While an atom has too many bonds, the order of its highest bond is lowered by one. Only the fragment with most atoms
    is kept (the first by atom index among equals) and has to be valid.
    """
    molecule = _assemble(*_graph(nodes, edges, vocabulary))
    while (atom := _overvalent_atom(molecule)) is not None:
        bond = max(molecule.GetAtomWithIdx(atom).GetBonds(), key=lambda bond: bond.GetBondTypeAsDouble())
        start, end, order = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), int(bond.GetBondTypeAsDouble()) - 1
        molecule.RemoveBond(start, end)
        if order:
            molecule.AddBond(start, end, ORDERS[order])
    # Not from the SMILES, which orders fragments by their text and not by atom index.
    fragments = Chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    if not fragments:
        return None
    return Chem.MolFromSmiles(Chem.MolToSmiles(max(fragments, key=lambda fragment: fragment.GetNumAtoms())))


def published_smiles(nodes: Nodes, edges: Edges, vocabulary: Vocabulary) -> str:
    """Returns the SMILES that the published code writes for a training molecule: Kekule form, not parsed again.

    Generated molecules are parsed again before they are written, so an aromatic one never equals any of these.
    """
    return Chem.MolToSmiles(_assemble(*_graph(nodes, edges, vocabulary)))


def canonical_smiles(molecule: Chem.Mol) -> str:
    """Returns RDKit's canonical SMILES without stereo."""
    return Chem.MolToSmiles(molecule, isomericSmiles=False)


def _graph(nodes: Nodes, edges: Edges, vocabulary: Vocabulary) -> tuple[list[int], list[Bond]]:
    """Returns atomic numbers, and the lower triangle's bonds row by row as (later atom, earlier atom, order)."""
    present = np.flatnonzero(nodes)
    numbers = [vocabulary.atomic_numbers[k] for k in nodes[present].tolist()]
    lower = np.tril(edges[np.ix_(present, present)], -1)
    rows, columns = lower.nonzero()
    return numbers, list(zip(rows.tolist(), columns.tolist(), lower[rows, columns].tolist(), strict=True))


def _valences(num_atoms: int, bonds: list[Bond]) -> list[int]:
    valences = [0] * num_atoms
    for start, end, order in bonds:
        valences[start] += order
        valences[end] += order
    return valences


def _is_connected(num_atoms: int, bonds: list[Bond]) -> bool:
    fragment = list(range(num_atoms))
    for start, end, _ in bonds:
        if fragment[start] != fragment[end]:
            old, new = fragment[start], fragment[end]
            fragment = [new if f == old else f for f in fragment]
    return len(set(fragment)) == 1


def _assemble(numbers: list[int], bonds: list[Bond]) -> Chem.RWMol:
    """Returns the unsanitised molecule; N, O and S get a charge when a bond exceeds their base valence by one.

    The published procedure has RDKit check the valences after every bond. A check that passes changes only hydrogen
    counts, which the next check computes again. So if no atom can fail, one check at the end is equivalent.
    """
    molecule = Chem.RWMol()
    for number in numbers:
        molecule.AddAtom(Chem.Atom(number))
    valences = _valences(len(numbers), bonds)
    may_fail = any(valences[i] > _largest_valence(number) for i, number in enumerate(numbers))
    valences = [0] * len(numbers)
    for start, end, order in bonds:
        molecule.AddBond(start, end, ORDERS[order])
        valences[start] += order
        valences[end] += order
        if may_fail and (atom := _overvalent_atom(molecule)) is not None:
            base = CHARGEABLE.get(numbers[atom])
            if base is not None and valences[atom] == base + 1:
                molecule.GetAtomWithIdx(atom).SetFormalCharge(1)
    if bonds and not may_fail:
        Chem.SanitizeMol(molecule, Chem.SANITIZE_PROPERTIES)
    return molecule


@cache
def _largest_valence(number: int) -> int:
    """Returns RDKit's highest valence of an uncharged atom; -1 without a limit, which only causes extra checks."""
    return max(Chem.GetPeriodicTable().GetValenceList(number))


def _overvalent_atom(molecule: Chem.RWMol) -> int | None:
    """Returns the first atom with more bonds than its element and charge allow; None if there is none."""
    try:
        Chem.SanitizeMol(molecule, Chem.SANITIZE_PROPERTIES)
    except Chem.AtomValenceException as error:
        return error.cause.GetAtomIdx()  # pyright: ignore[reportAttributeAccessIssue]
    return None

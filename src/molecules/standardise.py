"""What a graph of elements and bond orders can hold of a SMILES: the rest is removed where that is allowed, or refused.

For a person's own molecules. The published data sets are encoded as published (`src.molecules.encode.encode`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from rdkit import Chem
from rdkit.Chem.MolStandardize import rdMolStandardize

from src.molecules.build import Edges, Nodes, build_molecule, canonical_smiles, published_smiles
from src.molecules.encode import LONGEST_SMILES, EncodingError, Reason, encode
from src.molecules.vocabulary import Vocabulary

BONDS = Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC
ROUNDS = 6  # of canonicalisation; a few molecules alternate between two or three SMILES for ever
NITROGEN, PARTNERS = 7, (7, 8)  # of charges that a double bond can replace
ALL_ELEMENTS = tuple(range(119))


@dataclass(frozen=True)
class Allowed:
    """What may be removed from a molecule that cannot be encoded with it."""

    keep_largest_fragment: bool = False
    drop_stereo: bool = True
    neutralise: bool = False
    drop_isotopes: bool = False
    saturate_radicals: bool = False


@dataclass(frozen=True)
class Represented:
    """What is known of a molecule whose arrays give it again.

    `published` and `canonical` are as in `src.molecules.encode.Encoded`. The molecule is that of the SMILES but for
    `changes`.
    """

    published: str
    canonical: str
    elements: frozenset[int]  # atomic numbers
    changes: tuple[str, ...]


def represent(text: str, allowed: Allowed, max_atoms: int) -> tuple[Nodes, Edges, Represented]:
    """Returns the arrays of a SMILES that give the same molecule again; the classes in them are atomic numbers.

    Raises EncodingError where there are none.
    """
    molecule, changes = standardise(text, allowed)
    canonical = settled_smiles(molecule)
    vocabulary = elements_as_classes(max_atoms)
    nodes, edges = encode(canonical, vocabulary)
    built = ""
    for graph in _forms(canonical, nodes, edges):
        rebuilt = build_molecule(*graph, vocabulary)
        if rebuilt is not None and settled_smiles(rebuilt) == canonical:
            elements = frozenset(np.unique(nodes).tolist()) - {0}
            return *graph, Represented(published_smiles(*graph, vocabulary), canonical, elements, tuple(changes))
        built = built or ("" if rebuilt is None else canonical_smiles(rebuilt))
    charged = any(atom.GetFormalCharge() for atom in molecule.GetAtoms())
    became = f": it would become {built!r}" if built else ""
    raise EncodingError(Reason.CHARGE if charged else Reason.VALENCE, became)


def encoded_as(smiles: str, nodes: Nodes, edges: Edges, vocabulary: Vocabulary) -> str | None:
    """Returns the SMILES of the molecule that arrays give where it is not that of `smiles`, "" where they give none.

    None if it is the same molecule. Stereo counts: the arrays have none.
    """
    built = build_molecule(nodes, edges, vocabulary)
    if built is None:
        return ""
    text = canonical_smiles(built)
    return None if text == Chem.MolToSmiles(Chem.MolFromSmiles(smiles)) else text


def standardise(text: str, allowed: Allowed) -> tuple[Chem.Mol, list[str]]:
    """Returns the molecule of a SMILES (with a CXSMILES extension) without what a graph cannot hold, and the changes.

    Raises EncodingError for what is not allowed to be removed.
    """
    molecule, changes = _parsed(text), list[str]()
    if len(Chem.GetMolFrags(molecule)) > 1:
        _require(allowed.keep_largest_fragment, Reason.FRAGMENTS)
        molecule = _fragment_chooser().choose(molecule)
        changes.append("all but the largest fragment removed")
    if any(atom.GetAtomMapNum() for atom in molecule.GetAtoms()):
        for atom in molecule.GetAtoms():
            atom.SetAtomMapNum(0)
        changes.append("atom map numbers removed")
    if any(atom.GetIsotope() for atom in molecule.GetAtoms() if atom.GetAtomicNum()):
        _require(allowed.drop_isotopes, Reason.ISOTOPE)
        for atom in molecule.GetAtoms():
            atom.SetIsotope(0)
        molecule = Chem.RemoveHs(molecule)
        changes.append("isotope labels removed")
    numbers = {atom.GetAtomicNum() for atom in molecule.GetAtoms()}
    _require(0 not in numbers, Reason.WILDCARD)
    _require(1 not in numbers, Reason.HYDROGEN)
    _require(all(bond.GetBondType() in BONDS for bond in molecule.GetBonds()), Reason.UNSUPPORTED_BOND)
    if any(atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()):
        _require(allowed.saturate_radicals, Reason.RADICAL)
        for atom in molecule.GetAtoms():
            atom.SetNumExplicitHs(atom.GetNumExplicitHs() + atom.GetNumRadicalElectrons())
            atom.SetNumRadicalElectrons(0)
        Chem.SanitizeMol(molecule)
        changes.append("radicals saturated with hydrogen")
    if Chem.MolToSmiles(molecule) != canonical_smiles(molecule):
        _require(allowed.drop_stereo, Reason.STEREO)
        Chem.RemoveStereochemistry(molecule)
        changes.append("stereo removed")
    if allowed.neutralise and any(atom.GetFormalCharge() for atom in molecule.GetAtoms()):
        before = canonical_smiles(molecule)
        molecule = _uncharger().uncharge(molecule)
        changes += ["charges neutralised"] if canonical_smiles(molecule) != before else []
    return molecule, changes


def settled_smiles(molecule: Chem.Mol) -> str:
    """Returns a canonical SMILES without stereo that is the same for all spellings.

    RDKit 2025.03 writes a few molecules otherwise each time that they are parsed and written again; 2026.09 does not.
    """
    texts = [canonical_smiles(molecule)]
    for _ in range(ROUNDS):
        parsed = Chem.MolFromSmiles(texts[-1])
        if parsed is None:
            raise EncodingError(Reason.UNPARSABLE, f": {texts[-1]!r}, its canonical form")
        if (text := canonical_smiles(parsed)) in texts:
            return min(texts[texts.index(text) :])
        texts.append(text)
    return min(texts)


@cache
def elements_as_classes(max_atoms: int) -> Vocabulary:
    """Returns the vocabulary in which the class of each element is its atomic number."""
    return Vocabulary("all elements", ALL_ELEMENTS, max_atoms)


def _parsed(text: str) -> Chem.Mol:
    if len(text) > LONGEST_SMILES:
        raise EncodingError(Reason.TOO_LONG, f": {len(text):,} characters, and at most {LONGEST_SMILES:,} are read")
    smiles = text.split(maxsplit=1)[0] if text.strip() else ""
    if not smiles:
        raise EncodingError(Reason.EMPTY)
    if ">" in smiles.replace("->", ""):
        raise EncodingError(Reason.REACTION)
    molecule = Chem.MolFromSmiles(text)
    if molecule is None or molecule.GetNumAtoms() == 0:
        raise EncodingError(Reason.UNPARSABLE, _why_unparsable(smiles, text))
    if Chem.GetMolSubstanceGroups(molecule) or molecule.HasProp("_molLinkNodes"):
        raise EncodingError(Reason.REPEAT)
    if any(bond.HasProp("_MolFileBondEndPts") for bond in molecule.GetBonds()):
        raise EncodingError(Reason.REPEAT)
    return molecule


def _why_unparsable(smiles: str, text: str) -> str:
    """Returns what is known of why a SMILES does not parse, as the end of a message."""
    if smiles.startswith("InChI="):
        return ": it is an InChI"
    if any(mark in smiles for mark in ",;\"'"):
        return ": a table needs the suffix .csv or .tsv"
    if smiles != text and Chem.MolFromSmiles(smiles) is not None:
        return ": its CXSMILES extension is wrong"
    molecule = Chem.MolFromSmiles(smiles, sanitize=False)
    problems = [] if molecule is None else Chem.DetectChemistryProblems(molecule)
    return f": {problems[0].Message().rstrip()}" if problems else ""


def _require(allowed: bool, reason: Reason) -> None:
    if not allowed:
        raise EncodingError(reason)


def _forms(canonical: str, nodes: Nodes, edges: Edges) -> Iterator[tuple[Nodes, Edges]]:
    """Yields the graph of a canonical SMILES, and where neighbouring charges cancel that with double bonds instead.

    A nitro group, an N-oxide, an azide: RDKit's parser gives five-valent nitrogen its charges back. A nitrogen must
    not have four bonds on the way, where bonds are added row by row: an atom that causes it comes last.
    """
    yield nodes, edges
    parsed = Chem.MolFromSmiles(canonical)
    pairs = [pair for bond in parsed.GetBonds() if (pair := _cancelling(bond))]
    if not pairs:
        return
    raised = edges.copy()
    for cation, anion in pairs:
        raised[cation, anion] += 1
        raised[anion, cation] += 1
    yield nodes, raised
    order = list(range(parsed.GetNumAtoms()))
    for cation, anion in pairs:
        last = max(atom.GetIdx() for atom in parsed.GetAtomWithIdx(cation).GetNeighbors())
        order.remove(anion)
        order.insert(order.index(last) + 1 if last != anion else anion, anion)
    order += range(len(order), len(nodes))
    yield nodes[order], raised[np.ix_(order, order)]


def _cancelling(bond: Chem.Bond) -> tuple[int, int] | None:
    """Returns a cationic nitrogen and the anionic oxygen or nitrogen of a bond, by their indices."""
    ends = sorted((bond.GetBeginAtom(), bond.GetEndAtom()), key=lambda atom: -atom.GetFormalCharge())
    if [atom.GetFormalCharge() for atom in ends] != [1, -1]:
        return None
    cation, anion = ends
    fits = cation.GetAtomicNum() == NITROGEN and anion.GetAtomicNum() in PARTNERS
    return (cation.GetIdx(), anion.GetIdx()) if fits else None


@cache
def _fragment_chooser() -> rdMolStandardize.LargestFragmentChooser:
    """An organic fragment comes before a larger inorganic one, such as hexafluorophosphate."""
    return rdMolStandardize.LargestFragmentChooser(preferOrganic=True)


@cache
def _uncharger() -> rdMolStandardize.Uncharger:
    return rdMolStandardize.Uncharger()

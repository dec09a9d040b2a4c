import numpy as np
import pytest
from rdkit import Chem

from src.molecules.build import build_molecule, canonical_smiles, correct, published_smiles
from src.molecules.encode import EncodingError, Reason, encode, encode_all
from src.molecules.vocabulary import QM9, ZINC250K, of_elements


def test_a_molecule_becomes_classes_and_orders():
    nodes, edges = encode("OC=C", QM9)
    # RDKit's canonical order is C=CO.
    assert nodes.tolist() == [1, 1, 3, 0, 0, 0, 0, 0, 0]
    expected = np.zeros((9, 9), np.uint8)
    expected[0, 1] = expected[1, 0] = 2
    expected[1, 2] = expected[2, 1] = 1
    assert np.array_equal(edges, expected)


def test_aromatic_bonds_alternate_and_charges_are_dropped():
    _, edges = encode("c1ccccc1", QM9)
    assert sorted(edges[np.tril_indices(6, -1)].tolist())[-6:] == [1, 1, 1, 2, 2, 2]
    assert edges[0, 1] == edges[2, 3] == edges[4, 5] == 2  # the published form; test_kekule.py has more
    charged, neutral = encode("CC(=O)[O-]", QM9), encode("CC(=O)O", QM9)
    assert all(np.array_equal(a, b) for a, b in zip(charged, neutral, strict=True))


def test_every_neutral_molecule_is_rebuilt(neutral):
    assert len(neutral) == 30
    for smiles in neutral:
        molecule = build_molecule(*encode(smiles, ZINC250K), ZINC250K)
        assert molecule is not None
        assert canonical_smiles(molecule) == canonical_smiles(Chem.MolFromSmiles(smiles))


@pytest.mark.parametrize(
    "smiles",
    [
        *("C[Si](C)(C)OC", "OB(O)c1ccccc1", "C[Se]CC[C@H](N)C(=O)O", "c1cc[se]c1", "O=[As](O)(O)C", "C[Ge](C)(C)C"),
        *("CC[Sn](CC)(CC)CC", "C[Te]C", "B1(OCCO1)c1ccsc1", "FS(F)(F)(F)(F)F", "Cl[P](Cl)(Cl)(Cl)Cl", "C[Hg]C"),
    ],
)
def test_molecules_of_other_elements_are_rebuilt_as_rdkit_reads_them(smiles):
    parsed = Chem.MolFromSmiles(smiles)
    vocabulary = of_elements("own", {atom.GetSymbol() for atom in parsed.GetAtoms()}, 20)
    for build in (build_molecule, correct):
        molecule = build(*encode(smiles, vocabulary), vocabulary)
        assert molecule is not None and canonical_smiles(molecule) == canonical_smiles(parsed)


def test_a_silicon_with_five_bonds_is_invalid_and_corrected_to_four():
    vocabulary = of_elements("own", ["C", "Si"], 6)
    nodes = np.array([2, 1, 1, 1, 1, 1], np.uint8)
    edges = np.zeros((6, 6), np.uint8)
    edges[0, 1:] = edges[1:, 0] = 1
    assert Chem.MolFromSmiles("C[Si](C)(C)(C)C") is None
    assert build_molecule(nodes, edges, vocabulary) is None
    corrected = correct(nodes, edges, vocabulary)
    assert corrected is not None and canonical_smiles(corrected) == "C[Si](C)(C)C"


def test_an_ammonium_is_rebuilt_with_its_charge():
    molecule = build_molecule(*encode("C[N+](C)(C)CC", ZINC250K), ZINC250K)
    assert molecule is not None and canonical_smiles(molecule) == "CC[N+](C)(C)C"


def test_the_published_form_is_the_kekule_form():
    assert published_smiles(*encode("c1ccccc1", QM9), QM9) == "C1=CC=CC=C1"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("smiles", "reason", "message"),
    [
        ("C1CC", Reason.UNPARSABLE, "does not parse"),
        ("", Reason.UNPARSABLE, "does not parse"),
        ("CN(C)(C)(C)C", Reason.UNPARSABLE, "does not parse"),
        ("C[Si](C)C", Reason.UNKNOWN_ATOM, "outside the vocabulary of zinc250k: Si"),
        ("C" * 39, Reason.TOO_LARGE, "too many atoms: 39, and at most 38 fit"),
        ("C$C", Reason.UNSUPPORTED_BOND, "bond"),
    ],
)
def test_a_smiles_that_cannot_be_encoded_gives_the_reason(smiles, reason, message):
    with pytest.raises(EncodingError, match=message) as caught:
        encode(smiles, ZINC250K)
    assert caught.value.reason is reason


def refuse(position: int, error: EncodingError) -> None:
    pytest.fail(f"molecule {position} {error}")


@pytest.mark.slow
def test_encoding_with_workers_keeps_the_order(neutral):
    smiles = [text for text in neutral for _ in range(20)]
    encoded = encode_all(smiles, ZINC250K, on_bad=refuse, workers=2)
    assert len(encoded.nodes) == len(encoded.published) == 600
    for position in (0, 255, 256, 599):
        nodes, edges = encode(smiles[position], ZINC250K)
        assert np.array_equal(encoded.nodes[position], nodes)
        assert np.array_equal(encoded.edges[position], edges)
        assert encoded.canonical[position] == canonical_smiles(Chem.MolFromSmiles(smiles[position]))
        assert encoded.published[position] == published_smiles(nodes, edges, ZINC250K)


def test_bad_smiles_are_reported_in_order_and_left_out():
    reported = []
    smiles = ["CCO", "C1CC", *["CC"] * 300, "[Na]", "CCN"]
    encoded = encode_all(smiles, QM9, on_bad=lambda position, error: reported.append((position, error)), workers=2)
    assert [position for position, _ in reported] == [1, 302]
    assert reported[1][1].reason is Reason.UNKNOWN_ATOM and "Na" in str(reported[1][1])
    assert len(encoded.edges) == 302
    assert [encoded.canonical[i] for i in (0, 1, -1)] == ["CCO", "CC", "CCN"]

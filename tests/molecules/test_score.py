import subprocess
import sys

import numpy as np
import pytest

from src.molecules.encode import encode
from src.molecules.score import Scorer, penalised_logp, properties_of, score, score_batches, similarities_of
from src.molecules.vocabulary import QM9, ZINC250K
from src.system.interpreter import ROOT


def test_scores_of_a_batch_follow_the_published_formulas():
    scores = score_batches([["A", "A", "B", "T", None, None, None, "T"]], frozenset({"T", "U"}))
    assert scores.validity == 62.5
    assert scores.uniqueness == 60.0
    assert scores.novelty == 60.0
    assert scores.abs_uniqueness == 37.5
    assert scores.abs_novelty == 37.5
    assert scores.nuv == 25.0


def test_scores_without_valid_molecules_are_0():
    assert set(score([None, None], frozenset(), frozenset(), 2, 2).values()) == {0.0}
    assert score([], frozenset(), frozenset(), 2, 1)["validity"] == 0.0


def test_scores_weigh_every_molecule_equally_and_repeat_counts_within_a_batch_alone():
    published, canonical = frozenset({"C1=CC=CC=C1"}), frozenset({"c1ccccc1"})
    smiles = ["c1ccccc1", "CO", "CO", "CO", None, "CO"]
    scores = score(smiles, published, canonical, batch_size=4, pool=5)
    assert scores["validity"] == pytest.approx(100 * 5 / 6)
    assert scores["uniqueness"] == pytest.approx(100 * (2 + 1) / (4 + 1))
    assert scores["abs_uniqueness"] == pytest.approx(100 * (2 + 1) / 6)
    # An aromatic training molecule counts as novel in the published scores only.
    assert scores["novelty"] == 100.0
    assert scores["abs_novelty"] == pytest.approx(100 * 5 / 6)
    assert scores["nuv"] == pytest.approx(100 * (2 + 1) / 6)
    assert scores["canonical_novelty"] == pytest.approx(100 * 4 / 5)
    assert scores["canonical_abs_novelty"] == pytest.approx(100 * 4 / 6)
    assert scores["canonical_nuv"] == pytest.approx(100 * (1 + 1) / 6)
    assert scores["pool_uniqueness"] == 50.0
    assert scores["pool_nuv"] == 20.0
    assert "pool_nuv" not in score(smiles, published, canonical, batch_size=4, pool=7)


def test_a_last_batch_of_one_molecule_weighs_as_one():
    """One valid molecule of 17, in a batch of its own: the mean of the batches would be 50%."""
    scores = score([None] * 16 + ["CO"], frozenset(), frozenset(), batch_size=16, pool=99)
    assert scores["validity"] == scores["nuv"] == pytest.approx(100 / 17)
    assert scores["uniqueness"] == scores["novelty"] == 100.0


@pytest.mark.slow
def test_workers_return_molecules_and_properties_in_order(neutral):
    smiles = [*neutral, "CC.CC"] * 5
    graphs = [encode(text, ZINC250K) for text in smiles]
    nodes, edges = np.array([n for n, _ in graphs]), np.array([e for _, e in graphs])
    with Scorer(ZINC250K, frozenset(), frozenset({"O=C1CCCCCN1"}), workers=2) as scorer:
        plain, corrected = scorer.build(nodes, edges), scorer.build(nodes, edges, correct_validity=True)
        built = plain.result()
        assert built[30] is None and corrected.result()[30] == "CC"
        assert built[28] == "O=C1CCCCCN1" and built[28::31] == [built[28]] * 5
        assert scorer.score(built, batch_size=31, pool=155)["canonical_novelty"] == pytest.approx(100 * 29 / 30)
        rated = scorer.properties(["CC(=O)Oc1ccccc1C(=O)O", *["CCO"] * 70]).result()
    assert len(rated) == 71
    # Aspirin's values in RDKit's documentation and the SA score's paper.
    assert rated[0].qed == pytest.approx(0.5501, abs=1e-3)
    assert rated[0].logp == pytest.approx(1.3101, abs=1e-3)
    assert rated[0].sas == pytest.approx(1.58, abs=0.01)


def test_penalised_logp_is_the_published_sum_of_z_scores():
    """By hand, from the means and deviations that the published code names."""
    assert penalised_logp(2.4570953396190123, 3.0525811293166134, 6) == pytest.approx(0.0485696876403053 / 0.28602121)
    logp = (5 - 2.45709534) / 1.43432440
    sas = (3.05258113 - 2) / 0.83352070
    for largest_ring, excess in ((0, 0), (5, 0), (6, 0), (7, 1), (12, 6)):
        ring = (0.04856969 - excess) / 0.28602121
        assert penalised_logp(5, 2, largest_ring) == pytest.approx(logp + sas + ring, abs=1e-5)


def test_penalised_logp_counts_the_largest_ring():
    """Rings of 6 and 8 atoms, and of 6 and 10 that share a bond: the 14 atoms around both are no ring of RDKit's."""
    for smiles, largest_ring in (("C1CCCCC1C1CCCCCCC1", 8), ("C1CCC2CCCCCCCCC2C1", 10), ("CCO", 0)):
        (rated,) = properties_of([smiles])
        assert rated.plogp == pytest.approx(penalised_logp(rated.logp, rated.sas, largest_ring))


def test_similarity_is_of_morgan_fingerprints_of_radius_2():
    """Ethane and propane by hand: CH3 and its surroundings of radius 1; CH3, CH2, and theirs."""
    assert similarities_of([("CC", "CC"), ("CCO", "OCC"), ("CC", "FF")]) == [1, 1, 0]
    assert similarities_of([("CC", "CCC")]) == [pytest.approx(1 / 5)]
    pairs = [("CCO", "CCN")] * 70 + [("CC", "CC")]
    with Scorer(QM9, frozenset(), frozenset(), workers=1) as scorer:
        assert scorer.similarities(pairs).result() == similarities_of(pairs)


@pytest.mark.filterwarnings("ignore")
def test_properties_of_an_invalid_smiles_are_refused():
    with pytest.raises(ValueError, match="C1CC"):
        properties_of(["CC", "C1CC"])


def test_scoring_does_not_import_torch():
    code = "import sys, src.molecules.score, src.molecules.encode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_workers_build_qm9_graphs():
    nodes, edges = encode("CC#N", QM9)
    with Scorer(QM9, frozenset(), frozenset(), workers=1) as scorer:
        assert scorer.build(nodes[None], edges[None]).result() == ["CC#N"]

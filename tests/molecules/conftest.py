"""Molecules shared by the tests."""

import pytest

NEUTRAL = [
    "CC(C)(C)c1ccc2occ(CC(=O)Nc3ccccc3F)c2c1",
    "C[C@@H]1CC(Nc2cncc(-c3nncn3C)c2)C[C@@H](C)C1",
    "N#Cc1ccc(-c2ccc(O[C@@H](C(=O)N3CCCC3)c3ccccc3)cc2)cc1",
    "CCOC(=O)[C@@H]1CCCN(C(=O)c2nc(-c3ccc(C)cc3)n3c2CCCCC3)C1",
    "COc1ccc(C(=O)N(C)[C@@H](C)C/C(N)=N/O)cc1O",
    "O=C(Nc1nc[nH]n1)c1cccnc1Nc1cccc(F)c1",
    "Cc1c(/C=N/c2cc(Br)ccn2)c(O)n2c(nc3ccccc32)c1C#N",
    "C[C@@H]1CN(C(=O)c2cc(Br)cn2C)CC[C@H]1N",
    "CCOc1ccc(OCC)c([C@H]2C(C#N)=C(N)N(c3ccccc3C(F)(F)F)C2=O)c1",
    "Cc1ccc2nc(S[C@@H](C)C(=O)NC3CCC(C)CC3)n(C)c(=O)c2c1",
    "O=C(N1CCc2c(F)ccc(F)c2C1)C1(O)Cc2ccccc2C1",
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(C)Cc1ccc([C@H](C)C(=O)O)cc1",
    "CN1C=NC2=C1C(=O)N(C)C(=O)N2C",
    "CC(=O)Nc1ccc(O)cc1",
    "CN1CCC[C@H]1c1cccnc1",
    "Clc1ccccc1C1=NCC(=O)Nc2ccc(Cl)cc21",
    "CCN(CC)CCNC(=O)c1ccc(N)cc1",
    "COc1cc2nc(N3CCN(C(=O)c4ccco4)CC3)nc(N)c2cc1OC",
    "CS(=O)(=O)c1ccc(C2=C(c3ccccc3)C(=O)OC2)cc1",
    "Cc1ccc(-c2cc(C(F)(F)F)nn2-c2ccc(S(N)(=O)=O)cc2)cc1",
    "OC(Cn1cncn1)(Cn1cncn1)c1ccc(F)cc1F",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "CCOP(=O)(OCC)OCC",
    "Ic1ccc(C2=CCCCC2)cc1",
    "c1ccc2c(c1)[nH]c1ccccc12",
    "CSc1nc2ccccc2s1",
    "C#CCN1CCOCC1",
    "O=C1CCCCCN1",
    "CC1=C(C(=O)OC(C)C)C(c2cccs2)C(C#N)=C(N)O1",
]


@pytest.fixture
def neutral() -> list[str]:
    """Thirty uncharged, mostly drug-like molecules within ZINC-250k's vocabulary."""
    return NEUTRAL

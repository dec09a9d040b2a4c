"""Networks equal NVIDIA's: by numbers that its code gave (table.json), and beside it where its clones are named."""

import json
from typing import Any

import e3nn
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from src.dropin.model import tables
from tests.dropin import rfdiffusion
from tests.dropin.cases import CASES, OURS, TABLE, Case, built, numbers, run
from tests.dropin.originals import VARIABLE, Package, clone, original

NUMBERS: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
TWO_DEGREES = [case for case in CASES if case.degrees == 2 and case.edges.keys() <= {0}]
beside = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=pytest.mark.skipif(clone(case.project) is None, reason=f"{VARIABLE} has no {case.project}"),
        )
        for case in CASES
    ],
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_seed_gives_the_parameters_and_results_of_the_table(case: Case) -> None:
    numbers_here, expected = numbers(OURS, case), NUMBERS[case.name]
    assert list(numbers_here["parameters"]) == list(expected["parameters"])
    assert numbers_here["results"].keys() == expected["results"].keys()
    assert_close(numbers_here, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", TWO_DEGREES, ids=lambda case: case.name)
def test_products_at_the_nodes_are_those_at_the_edges(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes nodes of many edges so: here of any number, with self-loops, duplicates and a node of none."""
    call, results = tables.TableConvolution.__call__, []
    for least, expected in ((1000, False), (0, True)):
        taken: list[Any] = []

        def noted(*arguments: Any, taken: list[Any] = taken) -> Tensor:
            taken.append(arguments)
            return call(*arguments)

        monkeypatch.setattr(tables, "LEAST_EDGES", least)
        monkeypatch.setattr(tables, "MOST_PADDING", 100)
        monkeypatch.setattr(tables.TableConvolution, "__call__", noted)
        network = built(OURS, case)
        for parameter in network.parameters():
            parameter.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(parameter.numel()))
        results.append(run(OURS, case, network))
        assert bool(taken) is expected
    assert_close(*results, rtol=0, atol=1e-10)


@beside
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:torch.utils.checkpoint")  # of the originals
def test_outputs_and_gradients_equal_the_originals(case: Case) -> None:
    theirs = original(case.project)
    networks = built(theirs, case), built(OURS, case, e3nn.__version__)
    (names, values), (our_names, our_values) = (zip(*n.named_parameters(), strict=True) for n in networks)
    assert names == our_names and all(torch.equal(a, b) for a, b in zip(values, our_values, strict=True))
    for dtype, allowed in ((torch.float32, 4e-6), (torch.float64, 2e-14)):
        expected, results = (run(p, case, n, dtype) for p, n in zip((theirs, OURS), networks, strict=True))
        assert expected.keys() == results.keys()
        for name, tensor in expected.items():
            largest = max(float(tensor.abs().max()), 1.0) if tensor.numel() else 1.0
            difference = float((results[name] - tensor).abs().max()) if tensor.numel() else 0.0
            print(f"{case.name}: {dtype} {name} {difference / largest:.1e}")
            assert difference <= allowed * largest, (dtype, name, difference, largest)
        for network in networks:
            network.zero_grad()


@beside
def test_weights_load_strictly_both_ways(case: Case) -> None:
    theirs: Package = original(case.project)
    torch.manual_seed(1)
    networks = built(theirs, case), built(OURS, case)
    with torch.no_grad():
        for network in networks:
            for parameter in network.parameters():
                parameter.normal_()
    for source, target in (networks, networks[::-1]):
        target.load_state_dict(source.state_dict(), strict=True)


@pytest.mark.slow
@pytest.mark.skipif(clone("RFdiffusion") is None, reason=f"{VARIABLE} has no RFdiffusion")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of RFdiffusion
def test_rfdiffusion_as_a_whole() -> None:
    (ours, _), (theirs, _), _ = rfdiffusion.sides(12, n_extra_block=1, n_main_block=2, n_ref_block=1)
    with torch.no_grad():
        expected, results = theirs(), ours()
    for name, tensor in expected.items():
        assert float((results[name] - tensor).abs().max()) < 1e-5 * max(float(tensor.abs().max()), 1.0), name

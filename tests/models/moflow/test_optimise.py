"""Property optimisation: regressor, walk, limits of similarity, and what predict.py writes."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem

from src.errors import UserError
from src.models.moflow.network import MoFlow
from src.models.moflow.optimise import (
    WALKS,
    Found,
    Optimised,
    Regressor,
    Start,
    checked_plan,
    decoded,
    encoded,
    fit,
    walk,
)
from src.models.moflow.optimised import best_new, best_pairs, figures_of
from src.molecules.score import properties_of, similarities_of
from src.report.record import Record
from src.run import train
from tests.support.composing import prediction_of
from tests.support.tiny_moflow import make_molecules, make_network
from tests.support.tiny_run import tiny_config

OPTIONS = {"goal": "qed", "starts": 10, "molecules": 100, "steps": 5, "similarity": [0, 0.4]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny run."""
    home = tmp_path_factory.mktemp("trained")
    train(tiny_config(home, "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"))
    return home


def optimised(home: Path, folder: Path, *overrides: str) -> Record:
    """Returns the record of an optimisation from four training molecules, two at either end."""
    checkpoint = home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt"
    data = [] if any(text.startswith("datamodule=") for text in overrides) else ["datamodule=smiles_file"]
    mine = [f"ckpt_path={checkpoint}", "hardware=cpu", f"output_dir={folder}", "num_samples=4", "batch_size=16"]
    options = ["correct_validity=true", "optimise=qed", "optimise_starts=2", "optimise_steps=4"]
    return prediction_of([*data, *mine, *(f"model.predict.{text}" for text in options), *overrides])


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_regressor_finds_a_linear_property_and_judges_it_on_held_out_molecules() -> None:
    torch.manual_seed(0)
    latents, weight = torch.randn(2000, 6), torch.tensor([2.0, -1, 0, 0, 0.5, 0])
    regressor = fit(latents, latents @ weight + 3)
    assert torch.allclose(regressor.weight, weight, atol=0.05)
    assert float(regressor.bias) == pytest.approx(3, abs=0.05)
    assert regressor.r2 > 0.99 and regressor.deviation == pytest.approx(1, abs=0.05)
    values = latents @ weight
    values[1800:] = torch.randn(200)  # only the held-out tenth: the fit stays as good
    assert fit(latents, values).r2 < 0


def test_every_point_of_a_walk_has_a_higher_prediction() -> None:
    torch.manual_seed(0)
    latent, weight = torch.randn(50), torch.randn(50)
    regressor = Regressor(weight, torch.tensor(1.0), 0.5, deviation=0.7)
    points = walk(latent, regressor, steps=3)
    assert points.shape == (WALKS * 3, 50)
    assert (regressor(points) > regressor(latent[None])).all()
    lengths = (points - latent).square().mean(1).sqrt().view(3, WALKS)
    assert lengths[:, 0].tolist() == pytest.approx([0.7 * 5, 0.7, 0.7 * 0.2])  # the whole gradient
    assert (lengths[:, 1:] < lengths[:, :1]).all()  # some of its coordinates
    predictions = regressor(points).view(3, WALKS)
    assert (predictions[:-1] > predictions[1:]).all()  # the farther, the higher


def test_a_latent_vector_decodes_to_its_molecule_and_equal_graphs_are_returned_once() -> None:
    network = make_network().eval()
    nodes, edges = make_molecules(6)
    latents = encoded(network, nodes, edges, batch_size=4)
    nodes_again, edges_again = decoded(network, torch.cat([latents, latents]), batch_size=5)
    expected = {
        graph_key(*graph) for graph in zip(*(a.numpy() for a in network.reconstruct(nodes, edges)), strict=True)
    }
    keys = [graph_key(*graph) for graph in zip(nodes_again, edges_again, strict=True)]
    assert sorted(keys) == sorted(expected)


def graph_key(nodes: np.ndarray, edges: np.ndarray) -> tuple[int, ...]:
    return (*nodes.tolist(), *edges.ravel().tolist())


START, OTHER = Start("lowest", "CCO", 0.3), Start("highest", "CCN", 0.9)
FOUND = Optimised(
    [START, OTHER],
    [
        Found(START, "CCCl", 0.8, 0.1),
        Found(START, "CCBr", 0.5, 0.4),
        Found(START, "CCS", 0.2, 0.9),  # lower than the start
        Found(OTHER, "CCF", 0.9, 0.7),  # as high
    ],
    r2=0.25,
    train=frozenset({"CCCl"}),
)


def test_the_best_found_molecule_is_similar_enough_and_better_than_its_start() -> None:
    pairs = best_pairs(FOUND, [0, 0.4, 0.6])
    assert [molecule and molecule.smiles for molecule in pairs.values()] == ["CCCl", "CCBr", None, None, None, None]


def test_figures_are_over_starts_and_their_successes() -> None:
    figures = {
        (figure.group, figure.name): figure.value for figure in figures_of(best_pairs(FOUND, [0, 0.6]), FOUND, "qed")
    }
    assert figures["", "R2"] == 0.25
    lowest, highest = (
        {name: value for (group, name), value in figures.items() if group == chosen} for chosen in ("lowest", "highest")
    )
    assert (lowest["similarity >= 0: improved"], highest["similarity >= 0: improved"]) == (100, 0)
    assert lowest["similarity >= 0.6: improved"] == 0 and lowest["similarity >= 0.6: mean improvement"] is None
    assert lowest["similarity >= 0: mean improvement"] == pytest.approx(0.5)
    assert lowest["similarity >= 0: mean similarity"] == 0.1
    assert [figures["", f"best {i}"] for i in (1, 2, 3)] == [0.9, 0.5, 0.2]


def test_the_best_molecules_are_new() -> None:
    assert [molecule.smiles for molecule in best_new(FOUND)] == ["CCF", "CCBr", "CCS"]


@pytest.mark.slow
def test_pairs_have_the_values_and_similarities_of_rdkit(home: Path, tmp_path: Path) -> None:
    record = optimised(home, tmp_path, "model.predict.optimise=plogp")
    rows = rows_of(tmp_path / "molecules_optimised.csv")
    assert list(rows[0]) == ["group", "start", "start_value", "found", "found_value", "similarity", "delta"]
    assert [row["group"] for row in rows] == ["lowest"] * 8 + ["highest"] * 8
    assert [float(row["delta"]) for row in rows] == [0, 0.2, 0.4, 0.6] * 4
    successes = [row for row in rows if row["found"]]
    assert successes
    for row in successes:
        values = [rated.plogp for rated in properties_of([row["start"], row["found"]])]
        assert [float(row["start_value"]), float(row["found_value"])] == pytest.approx(values, abs=1e-4)
        assert values[1] > values[0]
        assert float(row["similarity"]) == pytest.approx(similarities_of([(row["start"], row["found"])])[0], abs=1e-4)
        assert float(row["similarity"]) >= float(row["delta"])
    lowest = {row["start"]: float(row["start_value"]) for row in rows if row["group"] == "lowest"}
    highest = {row["start"]: float(row["start_value"]) for row in rows if row["group"] == "highest"}
    assert len(lowest) == len(highest) == 2 and max(lowest.values()) < min(highest.values())
    assert (tmp_path / "molecules_optimised.png").stat().st_size > 1000
    assert record.quality is not None
    figures = {(figure.group, figure.name): figure.value for figure in record.quality}
    rate = 100 * sum(bool(row["found"]) for row in rows if (row["group"], row["delta"]) == ("lowest", "0")) / 2
    assert figures["lowest", "similarity >= 0: improved"] == rate
    assert (figures["", "R2"] or 0) <= 1


@pytest.mark.slow
def test_given_molecules_are_the_starts(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = "model.predict.optimise_starts=['OCC','c1ccccc1C(=O)O',CCO]"
    record = optimised(home, tmp_path, starts, "model.predict.optimise_similarity=0.1")
    rows = rows_of(tmp_path / "molecules_optimised.csv")
    canonical = [Chem.CanonSmiles(text) for text in ("CCO", "c1ccccc1C(=O)O")]
    assert [(row["group"], row["start"], row["delta"]) for row in rows] == [
        ("given", text, "0.1") for text in canonical
    ]
    assert [figure.name.partition(": ")[2] for figure in record.quality or () if figure.group == "given"] == [
        "improved", "mean improvement", "mean similarity",
    ]  # fmt: skip
    assert "given: 2 starts" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"starts": []}, {"similarity": []}])
def test_empty_lists_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"optimise_starts=.*optimise_similarity=.*: give one at least"):
        checked_plan(**(OPTIONS | options))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.predict.optimise_starts=[CCO,C1CC]", "model.predict.optimise_starts: 'C1CC' does not parse"),
        ("data_root=nowhere", r"nowhere.* has none: run python prepare\.py datamodule=smiles_file, or give data_root"),
        ("datamodule=cifar10", "model.predict.optimise needs the molecules of the training; give datamodule=zinc250k"),
    ],
)
@pytest.mark.slow
def test_wrong_starts_and_missing_data_are_refused_before_any_work(
    override: str, words: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(MoFlow, "sample")
    with pytest.raises(UserError, match=words):
        optimised(home, tmp_path, override)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]


def test_molecules_of_other_atoms_are_refused(home: Path, tmp_path: Path) -> None:
    """A network for 38 atoms on prepared molecules of up to 30."""
    with pytest.raises(
        UserError, match=r"smiles_file has other elements .* or molecules of other sizes .up to 38 atoms"
    ):
        optimised(home, tmp_path, "datamodule.source.max_atoms=30", "datamodule.source.skip_bad=true")

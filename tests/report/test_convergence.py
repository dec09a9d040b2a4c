"""Reference convergence points: epochs to a target over seeds, as MLCommons' rcp_checker counts them."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import pstdev
from typing import Any

import pytest

from src.errors import UserError
from src.report.cli import main
from src.report.convergence import Point, as_json, as_table, points, pruned
from src.report.load import Loaded, load
from src.report.record import ReachedMetric, Record
from tests.support import ROOT

RESULTS = ROOT / "docs" / "results"
STEPS = 10  # an epoch
FIT = {"max_epochs": 5, "eval_every_n_epochs": None, "eval_every_n_steps": 5}
OPTIMIZER = {"_target_": "torch.optim.Adam", "lr": 5e-4, "betas": [0.9, 0.99]}


@pytest.fixture
def run(trained: Record) -> Callable[..., Record]:
    """A run whose metric is at its target of 80 from the evaluation at step `at` on."""

    def make(seed: int, at: int, batch: int = 512, fit: dict[str, Any] = FIT, **changes: Any) -> Record:
        history = [
            {"step": step, "epoch": (step - 1) // STEPS, "samples": step * batch, "nuv": 80.0 + (step >= at) - 1}
            for step in range(5, 51, 5)
        ]
        history += [{"step": 50, "epoch": 5, "samples": 50 * batch, "nuv": 80.0}]
        config = {
            "seed": seed, "hp": {"lr": 5e-4, "accumulate": 1}, "fit": fit,
            "model": {"task": {"optimizer": OPTIMIZER, "schedule": None}},
        }  # fmt: skip
        return replace(
            trained, case=replace(trained.case, batch_size=batch), config=config, history=history,
            final_metric=ReachedMetric(name="nuv", value=80.0, target=80.0, reached=True), **changes,
        )  # fmt: skip

    return make


def loaded(records: Sequence[Record]) -> Loaded:
    return Loaded([(f"run{i}", record) for i, record in enumerate(records)], [], [])


def test_a_run_counts_from_its_first_evaluation_at_the_target(run: Callable[..., Record]) -> None:
    (point,) = points(loaded([run(seed, at) for seed, at in enumerate((15, 20, 30, 50))]))
    assert point.epochs == [1.5, 2.0, 3.0, 5.0]
    assert point.samples == [15 * 512, 20 * 512, 30 * 512, 50 * 512]
    assert point.mean == 2.5 and point.sd == pstdev([1.5, 2, 3, 5]) and point.every == 0.5
    entry = json.loads(as_json([point], "mine"))["mine_ref_512"]
    assert (entry["BS"], entry["Epochs to converge"], entry["RCP Mean"]) == (512, [1.5, 2.0, 3.0, 5.0], 2.5)
    assert entry["Hyperparams"] == {
        "opt_name": "adam", "opt_base_learning_rate": 5e-4, "opt_adam_beta_1": 0.9, "opt_adam_beta_2": 0.99,
        "gradient_accumulation_steps": 1,
    }  # fmt: skip
    assert as_table([point]).splitlines()[2].split("|")[4:8] == ["     80 ", "   512 ", "   4 ", "    2.5 "]


def test_more_ranks_are_the_same_point_and_other_batches_others(run: Callable[..., Record]) -> None:
    one, two, three = (run(seed, 20) for seed in (1, 2, 3))
    two = replace(two, ranks=2, case=replace(two.case, batch_size=256, trainer="1x2"))
    larger = [run(seed, 30, batch=1024) for seed in (1, 2, 3)]
    assert [(point.batch, point.mean) for point in points(loaded([*larger, one, two, three]))] == [(512, 2), (1024, 3)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "run2 has the seed 1 of run0: give each seed once"),
        (
            {"fit": FIT | {"clip_norm": 1.0}},
            "run2 has fit.clip_norm=1.0, run0 None: give runs of one batch that differ",
        ),
        ({"at": 51, "history": []}, "1 of 3 runs of batch 512 did not reach 80 (run2)"),
        ({"batch": 1024}, "2 runs of batch 512: a reference convergence point needs 3 seeds or more"),
        ({"batch": 1024, "unit": "x", "model": "other"}, "run2 has model.name=other, run0 moflow"),
        ({"target": None}, "run2 has target=None, run0 80.0"),
    ],
)
def test_runs_that_make_no_point_are_refused(
    changes: dict[str, Any], words: str, run: Callable[..., Record], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = {"seed": 3, "at": 20} | {k: v for k, v in changes.items() if k in ("seed", "at", "batch", "fit")}
    other = run(**given)
    if "history" in changes:
        other = replace(other, history=other.history[:2])
    if "model" in changes:
        other = replace(other, case=replace(other.case, model="other"))
    if "target" in changes:
        other = replace(other, final_metric=ReachedMetric(name="nuv", value=80.0))
    monkeypatch.setattr("src.report.commands.load", lambda _: loaded([run(1, 20), run(2, 20), other]))
    assert main(["rcp", "here"]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_the_steps_of_an_epoch_are_those_that_the_record_shows(run: Callable[..., Record]) -> None:
    """Of a run of all its epochs, or of its evaluation after some of them; otherwise it does not say."""
    by_epoch = FIT | {"eval_every_n_epochs": 2, "eval_every_n_steps": None, "max_epochs": 9, "stop_at_target": True}
    rows = [{"step": 20, "epoch": 1, "nuv": 80.0}, {"step": 33, "epoch": 4, "nuv": 80.0}]
    every = [replace(run(seed, 20, fit=by_epoch), history=rows) for seed in (1, 2, 3)]
    assert points(loaded(every))[0].epochs == [2, 2, 2]
    unknown = [
        replace(record, config=record.config | {"fit": by_epoch | {"eval_every_n_epochs": None}}) for record in every
    ]
    with pytest.raises(UserError, match="does not say how many steps an epoch has"):
        points(loaded(unknown))


def test_a_target_can_be_given(run: Callable[..., Record]) -> None:
    (point,) = points(loaded([run(seed, 20) for seed in (1, 2, 3)]), target=79.0)
    assert point.mean == 0.5


@pytest.fixture
def several(run: Callable[..., Record]) -> list[Point]:
    """Of five batches: the smallest is slower than the next, and the third slower than its neighbours let expect."""
    steps = {256: 25, 512: 20, 1024: 40, 2048: 30, 4096: 45}
    return points(loaded([run(seed, at, batch=batch) for batch, at in steps.items() for seed in (1, 2, 3, 4)]))


def test_pruning_leaves_the_points_that_no_other_makes_needless(several: list[Point]) -> None:
    assert [point.batch for point in pruned(several)] == [256, 1024]


def test_mlcommons_own_checker_reads_the_file_and_agrees(
    several: list[Point], run: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = pytest.importorskip(
        "mlperf_logging.rcp_checker.rcp_checker", reason="needs MLCommons' logging: github.com/mlcommons/logging"
    )
    monkeypatch.setitem(checker.submission_runs["training"], "moflow", 5)
    spread = points(loaded([run(seed, at, batch=8192) for seed, at in enumerate((15, 20, 30, 35, 50))]))
    for every in several, spread:
        read = checker.RCP_Checker("training", "5.1.0", "moflow", False, io.StringIO(as_json(every)))
        assert list(read.rcp_data) == [f"moflow_ref_{point.batch}" for point in every]
        for point, theirs in zip(every, read.rcp_data.values(), strict=True):
            assert theirs["RCP Mean"] == pytest.approx(point.mean) and theirs["RCP Stdev"] == pytest.approx(point.sd)
        kept = [point.batch for point in every if point not in pruned(every)]
        assert [entry["BS"] for entry in read.pruned_rcp_data.values()] == kept


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("distilbert", "convergence/distilbert_??.json"),
        ("dlrm", "convergence/dlrm_??.json"),
        ("mobilenet_v1", "convergence/mobilenet_v1_??.json"),
        ("moflow", "moflow_quality_?.json"),
        ("se3_transformer", "se3_transformer_homo_?.json"),
    ],
)
def test_the_kept_files_are_those_of_the_kept_records(name: str, records: str) -> None:
    kept = points(load(sorted((RESULTS / "records").glob(records))))
    assert (RESULTS / "rcps" / f"{name}.json").read_text() == as_json(kept)
    (row,) = [line for line in as_table(kept).splitlines() if line.startswith(f"| {name} ")]
    _, _, _, _, batch, n, epochs, sd, _, every, _ = (cell.strip() for cell in row.strip("|").split("|"))
    page = (RESULTS / "rcps" / "README.md").read_text()
    assert f"| {batch} | {n} | {epochs} | {sd} | {every} |" in next(row for row in page.splitlines() if name in row)

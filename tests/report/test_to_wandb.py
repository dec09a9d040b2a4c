"""`report.py wandb`: the W&B runs of records, read back from their files, and the report of their comparison."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import wandb
from wandb_workspaces.reports.v2 import interface as reports
from wandb_workspaces.reports.v2 import internal

from src.report.cli import main
from src.report.compare.build import compare
from src.report.compare.text import markdown
from src.report.compare.wandb_report import report, specification
from src.report.job import SweepJob, write_job
from src.report.load import load
from src.report.record import Record, RunError, read_record, write_record
from src.report.wandb_run import summary
from src.system.files import write_text
from tests.support import ROOT
from tests.support.wandb_files import wandb_run
from tests.support.wandb_server import wandb_server

RECORDS = ROOT / "docs" / "results" / "records"
SWEPT = sorted((RECORDS / "mobilenet_sweep").glob("*.json"))  # six groups of three seeds


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing answers there
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    yield
    wandb.teardown()


@pytest.fixture
def sweep(tmp_path: Path, trained: Record) -> Path:
    """Three jobs: two of batch 512 with different seeds, and one of batch 1024 that ended for lack of memory."""
    for i, (batch, seed) in enumerate([(512, 1), (512, 2), (1024, 1)]):
        job = tmp_path / "batches" / str(i)
        overrides = [f"hp.batch_size={batch}", f"seed={seed}"]
        write_job(job, SweepJob(key=str(i), overrides=["hp.lr=0.1", *overrides], command=[], cwd="."))
        config = {"seed": seed, "hp": {"batch_size": batch}, "model": {"name": "moflow", "task": {"temperature": 0.5}}}
        record = replace(
            trained, case=replace(trained.case, batch_size=batch), config=config,
            environment={"overrides": overrides},
            history=[{"step": 5, "epoch": 0, "time_s": 14.0, "loss": 3.5 + i},
                     {"step": 5, "epoch": 0, "time_s": 15.5, "nuv": 40.0 + i},
                     {"step": 10, "epoch": 1, "time_s": 19.25, "loss": 2.25, "samples": 1000, "seconds": 7.0}],
        )  # fmt: skip
        if batch == 1024:
            record = replace(record, status="oom", error=RunError(type="OutOfMemoryError", message="out of memory"))
        write_record(record, job / "result.json")
    write_text(tmp_path / "batches" / "0" / "classes.csv", "class,count,share\na,3,0.25\nb,,0.75\n")
    picture = RECORDS.parent / "full"
    (tmp_path / "batches" / "0" / "curves.png").write_bytes(next(picture.parent.rglob("*.png")).read_bytes())
    return tmp_path / "batches"


def written(folder: Path) -> list[dict[str, Any]]:
    """The W&B runs in a folder by their names."""
    wandb.teardown()  # its service writes on for a moment
    files = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    return sorted(map(wandb_run, files), key=lambda run: (run["name"], run["tags"]))


@pytest.mark.slow
def test_the_runs_have_the_numbers_of_their_records(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["wandb", str(sweep), "--project", "bench", "--entity", "lab", "--output", str(out)]) == 0
    assert f"wandb sync {out}/wandb/offline-run-*" in capsys.readouterr().out
    runs = written(out)
    runs = [*runs[1:], runs[0]]
    assert [run["name"] for run in runs] == [
        f"moflow hp.batch_size={batch} seed={seed}" for batch, seed in ((512, 1), (512, 2), (1024, 1))
    ]
    for i, run in enumerate(runs):
        record = read_record(sweep / str(i))
        assert (run["project"], run["group"], run["job_type"]) == ("bench", "batches", "train")
        assert run["tags"] == ["amp", "1x1", "h200", "sweep"]
        assert run["summary"]["p_train"] == record.p_train and run["summary"]["steady.p_train"] == 10200.4321
        assert run["summary"]["figures/metric"] == run["summary"]["final_metric.value"] == 80.314
        assert run["config"]["config"] == record.config and run["config"]["hp"] == record.config["hp"]
        assert [row["_step"] for row in run["rows"]] == [5, 10]
        first, last = run["rows"]
        assert (first["loss"], first["nuv"], first["seconds"], first["samples"]) == (3.5 + i, 40.0 + i, 3.5, 1_122_840)
        assert (last["loss"], last["seconds"], last["samples"], last["epoch"]) == (2.25, 7.0, 1000, 1)
        assert ("record", ["result.json"]) in run["artifacts"]
    states = [(run["summary"]["status"], run["exit_code"], run["summary"].get("error")) for run in runs]
    assert states == [("done", 0, None), ("done", 0, None), ("oom", 1, "OutOfMemoryError: out of memory")]
    (table,) = (out / "wandb").glob("*/files/media/table/classes_*.json")
    assert json.loads(table.read_text())["data"] == [["a", 3, 0.25], ["b", None, 0.75]]
    assert any("curves" in path and path.endswith(".png") for path in runs[0]["files"])


@pytest.mark.slow
def test_a_record_that_is_written_again_is_the_same_run(sweep: Path, tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        main(["wandb", str(sweep / "0"), "--output", str(tmp_path / name)])
        ids += [run["id"] for run in written(tmp_path / name)]
    assert len(ids) == 2 and len(set(ids)) == 1


@pytest.mark.slow
def test_a_run_that_logged_to_wandb_is_not_written_again(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep / "1" / "wandb"
    for name in ("run-20260102_000000-online1", "offline-run-20260101_000000-first", "debug.log"):
        (folder / name).mkdir(parents=True)
    assert main(["wandb", str(sweep), "--output", str(tmp_path / "out")]) == 0
    assert [run["name"] for run in written(tmp_path / "out")] == [
        "moflow hp.batch_size=1024 seed=1", "moflow hp.batch_size=512 seed=1",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert f"{sweep / '1'}: has the W&B run online1" in printed and f"{folder}/offline-run-*" in printed
    assert "'online1'" in (tmp_path / "out" / "report.json").read_text().replace('"', "'")


def texts(made: Any) -> str:
    """The Markdown of a report, with its headings."""
    shown = [f"## {b.text}" if isinstance(b, reports.H2) else getattr(b, "text", "") for b in made.blocks]
    return "\n\n".join(filter(None, shown))


def grids(made: Any) -> list[Any]:
    return [block for block in made.blocks if isinstance(block, reports.PanelGrid)]


def panels(grid: Any, kind: type) -> list[Any]:
    return [panel for panel in grid.panels if isinstance(panel, kind)]


def test_the_report_is_the_comparison(sweep: Path, tmp_path: Path) -> None:
    others = [str(RECORDS / f"moflow_train_512_{name}.json") for name in ("amp", "tf32")]
    assert main(["wandb", *others, "--project", "bench", "--output", str(tmp_path / "out")]) == 0
    model = internal.ReportViewspec.model_validate_json((tmp_path / "out" / "report.json").read_text())
    made: Any = reports.Report._from_model(model)
    comparison = compare(load([Path(path) for path in others]), published=False)
    assert markdown(comparison) == f"# {comparison.title}\n\n{texts(made)}\n"
    assert "## Published rows" not in texts(made)
    picture, grid = grids(made)
    assert made.blocks.index(picture) == 1  # below the answer
    assert {panel.metrics[0].name for panel in picture.panels} == {"figures/p_steady", "figures/mem"}
    ids = {run["config"]["case"]["precision"]: run["id"] for run in written(tmp_path / "out")}
    filters = {runset.name: runset.filters for runset in grid.runsets}
    assert list(filters) == [group.name for group in comparison.groups]
    for group in comparison.groups:
        assert ids[group.case.precision] in filters[group.name]
    assert all(runset.pinned_columns[0] == "summary:figures/p_steady" for runset in grid.runsets)
    lines = {(panel.x.name, y.name) for panel in panels(grid, reports.LinePlot) for y in panel.y}
    metrics = {curve.metric for curve in comparison.curves}
    assert lines == {(axis, metric) for axis in ("samples", "seconds") for metric in metrics} and metrics
    kinds = {type(panel).__name__ for panel in grid.panels}
    assert kinds == {"LinePlot", "ScatterPlot", "BarPlot"}


def test_seeds_are_one_line_with_a_band_and_searched_keys_numeric_axes(tmp_path: Path) -> None:
    comparison = compare(load(SWEPT), published=False)
    runs = {run.source: Path(run.source).stem for group in comparison.groups for run in group.runs}
    spec = specification(report(comparison, runs, [], "p", "", online=False))
    made: Any = reports.Report._from_model(internal.ReportViewspec.model_validate_json(spec))
    picture, grid = grids(made)
    for panel in [*panels(picture, reports.BarPlot), *panels(grid, reports.LinePlot)]:
        assert (panel.aggregate, panel.groupby_aggfunc, panel.groupby_rangefunc) == (True, "mean", "stddev")
    assert [runset.groupby for runset in grid.runsets] == [["config.case.value.model"]] * 6
    colours = {key.runset_name: colour for key, colour in grid.custom_run_colors.items() if not isinstance(key, str)}
    assert list(colours) == [group.name for group in comparison.groups] and len(set(colours.values())) == 6
    (coordinates,) = panels(grid, reports.ParallelCoordinatesPlot)
    logs = {column.metric.name: column.log for column in coordinates.columns}
    assert logs["config.hp.lr"] and not logs["figures/metric"]
    (importance,) = panels(grid, reports.ParameterImportancePlot)
    assert importance.with_respect_to == "figures/metric"


def test_what_the_specification_shows_are_the_numbers_of_the_records(tmp_path: Path) -> None:
    """Each panel's keys are in the summaries and configs of its run set's runs; the table has their means."""
    loaded = load(SWEPT)
    records = {Path(source).stem: record for source, record in loaded.runs}
    comparison = compare(loaded, published=False)
    runs = {run.source: Path(run.source).stem for group in comparison.groups for run in group.runs}
    spec = specification(report(comparison, runs, [], "p", "", online=False))
    made: Any = reports.Report._from_model(internal.ReportViewspec.model_validate_json(spec))
    picture, grid = grids(made)
    shown = {panel.metrics[0].name for panel in panels(picture, reports.BarPlot)}
    columns = panels(grid, reports.ParallelCoordinatesPlot)[0].columns
    rows = next(b.text for b in made.blocks if getattr(b, "text", "").startswith("| group")).splitlines()
    head, lines = _cells(rows[0]), {_cells(row)[0]: _cells(row) for row in rows[2:]}
    for runset in grid.runsets:
        ids = re.findall(r"\d\d", runset.filters)
        assert ids and shown == {"figures/metric", "figures/p_steady", "figures/mem"}
        for name in ids:
            values, record = summary(records[name]), records[name]
            assert record.steady and record.final_metric and record.mem
            assert values["figures/metric"] == record.final_metric.value
            assert values["figures/p_steady"] == record.steady.p_train
            assert values["figures/mem"] == record.mem.peak_reserved_gib
            for path in (column.metric.name.split(".") for column in columns if "/" not in column.metric.name):
                value = reduce(lambda part, key: part[key], path, {"config": record.config})
                assert isinstance(value, int | float)  # an axis of numbers
        for name, title in (("metric", "top1"), ("p_steady", "p_steady, images/s"), ("mem", "memory, GiB")):
            mean = fmean(summary(records[run])[f"figures/{name}"] for run in ids)
            text, _, deviation = lines[runset.name][head.index(title)].replace(",", "").partition(" ± ")
            assert float(text) == pytest.approx(mean, abs=float(deviation) or 1e-9)
            assert abs(float(text) - mean) <= (float(deviation) or 1) * 0.51


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def test_published_rows_are_in_the_report_if_they_are_asked_for(tmp_path: Path) -> None:
    record = str(RECORDS / "moflow_train_512_amp.json")
    assert main(["wandb", record, "--published", "--output", str(tmp_path / "out")]) == 0
    model = internal.ReportViewspec.model_validate_json((tmp_path / "out" / "report.json").read_text())
    assert "## Published rows" in texts(reports.Report._from_model(model))


def test_the_pictures_and_varied_keys_of_a_sweep_are_panels(sweep: Path) -> None:
    comparison = compare(load([sweep]))
    runs = {run.source: f"id{i}" for i, run in enumerate(run for group in comparison.groups for run in group.runs)}
    made = report(comparison, runs, ["curves"], "p", "", online=False)
    _, grid = grids(made)
    (coordinates,) = panels(grid, reports.ParallelCoordinatesPlot)
    assert [column.metric.name for column in coordinates.columns] == [
        "config.hp.batch_size", "figures/metric", "figures/p_steady",
    ]  # fmt: skip
    (media,) = panels(grid, reports.MediaBrowser)
    assert media.media_keys == ["curves"] and "OutOfMemoryError: out of memory" in texts(made)
    assert json.loads(specification(made))["spec"]["blocks"]


@pytest.mark.slow
def test_online_the_runs_are_sent_and_the_report_saved(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["wandb", str(sweep), "--project", "bench", "--output", str(tmp_path / "out")]
    with wandb_server() as server:
        wandb.teardown()
        for name, value in {**server.variables, "WANDB_MODE": "online", "WANDB_SILENT": "true"}.items():
            monkeypatch.setenv(name, value)
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert main(command) == 0  # the same runs: nothing is there twice
        wandb.teardown()
    assert [server.steps(run) for run in server.history] == [[5, 10]] * 3
    assert sorted(server.states.values(), key=str) == [0, 0, 1]
    losses = [[row["loss"] for row in lines.values()] for lines in server.history.values()]
    assert sorted(losses) == [[3.5, 2.25], [4.5, 2.25], [5.5, 2.25]]
    sent = server.reports[0]
    assert (sent["entityName"], sent["projectName"], sent["displayName"]) == (
        "lab", "bench", compare(load([sweep])).title,
    )  # fmt: skip
    assert "/lab/bench/reports/" in printed and "--view1" in printed
    assert "OutOfMemoryError" in sent["spec"] and all(run in sent["spec"] for run in server.history)


@pytest.mark.slow
def test_the_commands_of_the_guide_lead_to_a_shared_report(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "reports.md").read_text(encoding="utf-8")
    lines = page.partition("From two runs to a shared report:\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == 5
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    with wandb_server() as server:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **server.variables}
        for line in lines:
            command = re.sub(r"python (\w+\.py)", rf"python {ROOT}/\1", line).replace("WANDB_API_KEY=... ", "")
            command += " hardware=cpu fit.max_steps=2 measure.window=1" if "train.py" in line else ""
            ended = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    assert sorted(run["name"] for run in written(tmp_path / "wandb_report")) == [
        f"mobilenet_v1 experiment=mobilenet_quick {lr}fit.max_steps=2 measure.window=1" for lr in ("", "hp.lr=0.02 ")
    ]
    assert [server.steps(run) for run in server.history] == [[1, 2]] * 2
    assert len(server.reports) == 1 and (tmp_path / "wandb_report" / "report.json").exists()


def test_a_server_that_does_not_answer_is_one_line(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "wrong")
    assert main(["wandb", str(sweep), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: W&B does not begin a run: ")


def test_without_the_package_nothing_is_written(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports", None)
    assert main(["wandb", str(sweep), "--output", str(tmp_path / "out")]) == 2
    assert "pip install 'reprise[loggers]'" in capsys.readouterr().err and not (tmp_path / "out").exists()

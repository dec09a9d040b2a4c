"""MLflow and trackio on this machine: the rows and figures of the record, and one run for a training that goes on."""

import json
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from src.callbacks.loggers import MLFlowLogger, TrackioLogger
from src.errors import UserError
from src.report.record import read_record
from src.report.wandb_run import FIGURES
from src.run import train
from tests.support.tiny_dlrm import tiny_dlrm

Rows = dict[int, dict[str, float]]
WAYS = ("mlflow", "trackio")


def of_mlflow(home: Path) -> tuple[str, Rows]:
    """Returns the status of the only run, and its metrics by step."""
    client = import_module("mlflow.tracking").MlflowClient(f"file:{home / 'outputs' / 'mlruns'}")
    (run,) = client.search_runs([client.get_experiment_by_name("reprise").experiment_id])
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"result.json"}
    rows: Rows = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            rows.setdefault(metric.step, {})[name] = metric.value
    return run.data.tags["status"], rows


def of_trackio(home: Path) -> tuple[str, Rows]:
    with sqlite3.connect(home / "outputs" / "trackio" / "reprise.db") as database:
        logged = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    assert len({name for name, _, _ in logged}) == 1
    rows: dict[int, dict[str, Any]] = {}
    for _, step, metrics in logged:
        rows.setdefault(step, {}).update(json.loads(metrics))
    return rows[max(rows)]["status"], rows


@pytest.fixture(scope="module", params=WAYS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The logger and the home of a run of one epoch, and of another that goes on with it."""
    way = request.param
    home = tmp_path_factory.mktemp(way)
    options = f"logger={way}", "hp.lr=0.01", "fit.final_evaluation=false"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(home / "outputs" / "trackio"))
        pytest.importorskip(way)  # which reads the variable
        train(tiny_dlrm(home, *options))
        last = home / "run" / "checkpoints" / "last.ckpt"
        train(tiny_dlrm(home, *options, f"output_dir={home / 'next'}", "fit.max_epochs=2", f"ckpt_path={last}"))
        yield way, home


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these packages
def test_the_rows_and_figures_are_those_of_the_record(kept: tuple[str, Path]) -> None:
    way, home = kept
    status, rows = of_mlflow(home) if way == "mlflow" else of_trackio(home)
    record = read_record(home / "next")
    assert status == record.status == "done"
    expected: Rows = {}
    for row in record.history:
        expected.setdefault(row["step"], {}).update(row)
    assert sorted(rows) == sorted(expected) == [2, 4, 6, 8, 10, 12, 14, 16]
    for step, values in expected.items():
        assert {name: rows[step][name] for name in values if name != "step"} == {
            name: pytest.approx(value, nan_ok=True) for name, value in values.items() if name != "step"
        }
    last = rows[max(rows)]
    assert (last["p_whole"], last[f"{FIGURES}p_steady"]) == (record.p_whole, record.steady and record.steady.p_train)


@pytest.mark.parametrize("way", WAYS)
def test_a_package_that_is_missing_is_one_line(way: str) -> None:
    if find_spec(way) is not None:
        pytest.skip(f"{way} is installed")
    with pytest.raises(UserError, match=f"logger={way} needs the package {way}; install it with pip"):
        MLFlowLogger() if way == "mlflow" else TrackioLogger(None, None)

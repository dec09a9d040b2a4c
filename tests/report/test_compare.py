"""report.py compare and stability: groups, intervals, differences, warnings, regressions, and what is refused."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import pytest
from scipy.stats import t as student

from src.measure.intervals import welch_interval
from src.measure.starting import Start
from src.published import rows
from src.report.cli import main
from src.report.compare.build import compare
from src.report.compare.regressions import _by_case, _ratio
from src.report.compare.text import as_csv, latex, markdown
from src.report.job import SweepJob, write_job
from src.report.load import Loaded, load
from src.report.record import ReachedMetric, Record, RunError, Steady, write_record
from src.report.rows import over_full, published_row
from src.report.stability import stability

Make = Callable[..., Path]

ENVIRONMENT = {"gpus": ["H200"], "driver": "580", "libraries": {"torch": "2.11.0"}, "git": {"commit": "a" * 40}}


@pytest.fixture
def make(tmp_path: Path, trained: Record) -> Make:
    """Writes the record of a run: its name, seed, steady rate, metric, config changes by dotted key, other fields."""

    def write(
        name: str, seed: int = 1, rate: float = 100.0, nuv: float = 50.0, config: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Path:  # fmt: skip
        values: dict[str, Any] = {"seed": seed, "hp": {"batch_size": 512, "lr": 5e-4}, "model": {"task": {"lr": 5e-4}}}
        for key, value in (config or {}).items():
            part = values
            for step in key.split(".")[:-1]:
                part = part[step]
            part[key.split(".")[-1]] = value
        metric = ReachedMetric(name="nuv", value=nuv, target=60.0, reached=nuv >= 60, direction="max")
        record = replace(
            trained, config=values, steady=Steady(p_train=rate), final_metric=metric,
            **{"environment": ENVIRONMENT, "history": [], **others},
        )  # fmt: skip
        write_record(record, tmp_path / name / "result.json")
        return tmp_path / name

    return write


def compared(*paths: Path, **options: Any) -> Any:
    return compare(load(paths), **{"published": False, **options})


def test_welch_interval_is_the_formula_of_welch_and_satterthwaite() -> None:
    a, b = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8]
    va, vb = variance(a) / len(a), variance(b) / len(b)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = float(student.ppf(0.975, freedom)) * math.sqrt(va + vb)
    difference = fmean(a) - fmean(b)
    assert welch_interval(a, b) == pytest.approx((difference - half, difference + half))
    assert welch_interval([1.0], b) is None
    assert welch_interval([2.0, 2.0], [1.5, 1.5]) == (0.5, 0.5)


def test_runs_that_differ_in_their_seed_are_one_group_with_mean_and_spread(make: Make) -> None:
    fast = [make(f"fast{i}", seed=i, rate=200.0 + i, config={"hp.lr": 1e-3, "model.task.lr": 1e-3}) for i in range(3)]
    slow = [make(f"slow{i}", seed=i, rate=100.0 + i) for i in range(2)]
    comparison = compared(*slow, *fast)
    assert [group.name for group in comparison.groups] == ["lr=0.0005", "lr=0.001"]
    assert [len(group.runs) for group in comparison.groups] == [2, 3]
    base, other = (group.estimates["p_steady"] for group in comparison.groups)
    assert (other.mean, other.sd, other.n) == (201.0, pytest.approx(1.0), 3)
    assert (other.difference, other.ratio) == (100.5, pytest.approx(201 / 100.5))
    assert (other.low, other.high) == welch_interval(other.values, base.values)
    assert base.difference is None
    assert [difference.key for difference in comparison.config] == ["hp.lr"]  # model.task.lr repeats it
    assert comparison.warnings == ["5 runs cannot tell whether the code had uncommitted changes."]
    assert "201.0 ± 1.0" in markdown(comparison) and "+100.0% [" in markdown(comparison)


def test_what_hinders_a_fair_comparison_is_said(make: Make) -> None:
    git = {"commit": "b" * 40, "dirty": True}
    other = {**ENVIRONMENT, "gpus": ["A100"], "git": git, "libraries": {"torch": "2.12.0", "numpy": "9"}}
    old = {"gpus": ["H200"], "libraries": {"torch": "2.11.0"}, "git": {"commit": "a" * 40, "dirty": False}}
    one = make("one", environment=old)
    two = make("two", config={"hp.lr": 1e-3, "hp.batch_size": 64, "execution": "x"}, environment=other)
    comparison = compared(one, two)
    text = "\n".join(comparison.warnings)
    assert "ran with different gpus, torch, commit" in text
    assert "more than one key of the config (hp.batch_size, hp.lr)" in text
    assert "single run" in text and "uncommitted changes." in text
    assert "Only some runs have the config keys execution" in text
    assert {difference.key: list(difference.values) for difference in comparison.environment}["gpus"] == [
        '["H200"]',
        '["A100"]',
    ]
    same = compared(make("x", seed=1, environment=old), make("y", seed=2, environment=other))
    assert "The runs of 'moflow, amp' differ in gpus, torch, commit." in same.warnings


def test_the_names_of_groups_have_the_keys_that_tell_them_apart_and_no_more(make: Make) -> None:
    runs = [
        make(f"{i}{j}", config={"hp.lr": i, "hp.batch_size": j, "fit": {"e": i + j}}) for i in (1, 2) for j in (3, 4)
    ]
    names = [group.name for group in compared(*runs).groups]
    assert names == ["batch_size=3 lr=1", "batch_size=4 lr=1", "batch_size=3 lr=2", "batch_size=4 lr=2"]


def test_long_numbers_are_rounded_in_names_where_these_still_differ(make: Make) -> None:
    def names(*rates: float) -> list[str]:
        return [group.name for group in compared(*(make(f"{lr}", config={"hp.lr": lr}) for lr in rates)).groups]

    assert names(0.00034471245580917, 0.0073) == ["lr=0.0003447", "lr=0.0073"]
    assert names(0.00034471245580917, 0.00034471) == ["lr=0.00034471245580917", "lr=0.00034471"]


def test_failed_runs_count_for_nothing_and_are_told_with_their_reason(make: Make) -> None:
    error = RunError(type="OutOfMemoryError", message="CUDA out of memory.\nTried")
    good, bad = make("good", seed=1, rate=10.0), make("bad", seed=2, rate=99.0, status="oom", error=error)
    result = compared(good, bad)
    assert result.groups[0].estimates["p_steady"].values == [10.0]
    assert result.groups[0].done == 1
    [failure] = result.failures
    assert (failure.source, failure.status) == (str(bad), "oom")
    assert "| 1 (1 not done) |" in markdown(result) and "OutOfMemoryError: CUDA out of memory. Tried" in markdown(
        result
    )


def test_a_sweep_stands_for_its_jobs_and_those_without_a_record_are_told(make: Make, tmp_path: Path) -> None:
    for i, state in enumerate(("done", "done", "failed")):
        folder = tmp_path / "sweep" / str(i)
        write_job(
            folder, SweepJob(key=str(i), overrides=[f"hp.lr={i}"], command=[], cwd=".", state=state, reason="no file x")
        )
        if state == "done":
            (make("made", rate=10.0 * (i + 1), nuv=50.0 + i, config={"hp.lr": i}) / "result.json").rename(
                folder / "result.json"
            )
    comparison = compared(tmp_path / "sweep")
    assert [group.name for group in comparison.groups] == ["lr=0", "lr=1"]
    assert comparison.best == 1 and "nuv is 51 against 50" in markdown(comparison)
    [failure] = comparison.failures
    assert (failure.varied, failure.status, failure.reason) == ("hp.lr=2", "failed", "no file x")


def test_varied_keys_are_axes_with_the_groups_places(make: Make) -> None:
    def run(batch: int, lr: float, **others: Any) -> Path:
        return make(f"{batch}_{lr}", config={"hp.batch_size": batch, "hp.lr": lr}, **others)

    runs = [run(16, 1e-3, rate=10.0, nuv=50.0), run(16, 1e-2, rate=30.0, nuv=70.0), run(64, 1e-1, rate=20.0, nuv=60.0)]
    comparison = compared(*runs, run(64, 1e-2, status="failed", error=RunError(type="X", message="why")))
    batch, lr = comparison.axes
    assert (batch.key, batch.numbers, batch.log) == ("hp.batch_size", [16, 16, 64, 64], False)
    assert (lr.numbers, lr.log) == ([0.001, 0.01, 0.1, 0.01], True)
    assert lr.lines == ["batch_size=16", "batch_size=16", "batch_size=64", "batch_size=64"]
    assert [(axis.title, axis.places) for axis in comparison.parallel] == [
        ("hp.batch_size", [0, 0, 1, 1]),
        ("hp.lr", [0, 0.5, 1, 0.5]),
        ("nuv", [0, 1, 0.5, None]),
        ("p_steady", [0, 1, 0.5, None]),
    ]
    assert (batch.rank_correlation, lr.rank_correlation) == pytest.approx((0.0, 0.5))  # of those with a metric
    assert [label for _, label in comparison.parallel[2].ticks] == ["50", "55", "60", "65", "70"]
    assert [(failure.varied, failure.reason) for failure in comparison.failures] == [
        ("batch_size=64 lr=0.01", "X: why")
    ]
    assert f"hp.batch_size=16 hp.lr=0.01: {runs[1]}" in markdown(comparison)
    assert not compared(*runs[:2]).axes  # two groups have no course


def test_many_values_of_a_key_stand_at_their_places(make: Make) -> None:
    rates = [10.0**-i for i in range(10)]  # more than are labelled one by one
    comparison = compared(*(make(f"r{i}", config={"hp.lr": lr, "hp.batch_size": i % 2}) for i, lr in enumerate(rates)))
    lr = next(axis for axis in comparison.parallel if axis.title == "hp.lr")
    assert lr.places == pytest.approx([1 - i / 9 for i in range(10)])
    assert [label for _, label in lr.ticks] == ["1e-9", "1e-7", "1e-5", "1e-3", "0.1"]
    assert [place for place, _ in lr.ticks] == pytest.approx([0, 2 / 9, 4 / 9, 6 / 9, 8 / 9])
    assert [axis.places[0] for axis in comparison.parallel if axis.title == "nuv"] == [0.5]  # all are equal


def test_time_and_samples_to_target_count_from_the_first_step(make: Make) -> None:
    history = [
        {"step": 10, "epoch": 0, "time_s": 20.0, "loss": 3.0},
        {"step": 10, "epoch": 0, "time_s": 22.0, "nuv": 55.0},
        {"step": 20, "epoch": 1, "time_s": 34.0, "nuv": 61.0},
        {"step": 40, "epoch": 2, "time_s": 50.0, "nuv": 62.0},
    ]
    comparison = compared(
        make("run", history=history, samples=4000, phases_s={"startup": 12.0, "wall": 60.0}, nuv=62.0)
    )
    estimates = comparison.groups[0].estimates
    assert estimates["seconds_to_target"].mean == 22.0
    assert estimates["samples_to_target"].mean == 2000
    assert "seconds_to_target" not in compared(make("never", history=history[:2], nuv=55.0)).groups[0].estimates
    curve = next(curve for curve in comparison.curves if curve.metric == "nuv")
    assert (curve.values, curve.samples, curve.seconds) == ([55.0, 61.0, 62.0], [1000, 2000, 4000], [10.0, 22.0, 38.0])


def test_where_less_is_better_the_least_is_best_and_reaches_the_target(make: Make) -> None:
    history = [{"step": 1, "time_s": 2.0, "mae": 0.05}, {"step": 2, "time_s": 3.0, "mae": 0.03}]
    runs = [
        make(f"r{value}", config={"hp.lr": value}, history=history, phases_s={"startup": 1.0})
        for value in (0.04, 0.03)
    ]  # fmt: skip
    loaded = load(runs)
    records = [
        (
            source,
            replace(
                record, final_metric=ReachedMetric(name="mae", value=float(record.config["hp"]["lr"]), target=0.04)
            ),
        )
        for source, record in loaded.runs
    ]
    comparison = compare(Loaded(records, loaded.paths, []), published=False)
    assert comparison.best == 1
    assert comparison.groups[0].estimates["seconds_to_target"].mean == 2.0


def test_kinds_units_and_metrics_are_not_mixed(
    make: Make, predicted: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("run")
    write_record(predicted, tmp_path / "predicted" / "result.json")
    assert main(["compare", str(run), str(tmp_path / "predicted")]) == 2
    assert "compare runs of one kind and unit" in capsys.readouterr().err


@pytest.mark.parametrize(("view", "start"), [("markdown", "# moflow"), ("csv", "group,hp.lr,"), ("latex", "% ")])
def test_a_comparison_is_written_in_each_format(
    make: Make, capsys: pytest.CaptureFixture[str], view: str, start: str
) -> None:
    runs = [str(make(f"lr{lr}", config={"hp.lr": lr, "model.task.lr": lr})) for lr in (1, 2)]
    assert main(["compare", *runs, "--format", view, "--no-published"]) == 0
    assert capsys.readouterr().out.startswith(start)
    assert main(["compare", *runs, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["groups"][1]["estimates"]["p_steady"]["mean"] == 100.0 and data["published"]


def test_csv_is_in_the_units_that_it_names_and_latex_is_escaped(make: Make) -> None:
    comparison = compared(make("a", config={"hp.lr": "50%_&"}), make("b", config={"hp.lr": 2}))
    lines = as_csv(comparison).splitlines()
    assert "moflow" not in lines[0] and any(line.split(",")[-9:-7] == ["of_peak_flops", "%"] for line in lines)
    assert r"50\%\_\&" in latex(comparison)


@pytest.mark.parametrize(
    ("old", "new", "better", "regressed"),
    [(0.1, 0.0, "min", False), (0.1, 0.2, "min", True), (0.1, 0.05, "max", True), (0.1, 0.0, "max", True)],
)
def test_an_error_of_0_is_no_regression(old: float, new: float, better: str, regressed: bool) -> None:
    assert (_ratio(new, old, better) < 0.97) == regressed


def test_a_training_and_a_prediction_of_one_config_are_two_cases(trained: Record, predicted: Record) -> None:
    runs = [("a", trained), ("b", replace(predicted, config=trained.config)), ("c", trained)]
    cases = _by_case(Loaded(runs=runs, paths=[], without=[]))
    assert [[record.kind for record in records] for _, _, records in cases] == [["train", "train"], ["predict"]]


def test_a_regression_ends_with_exit_code_1_and_names_the_figure(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [str(make(f"old{i}", seed=i, rate=100.0 + i)) for i in range(2)]
    good = [str(make(f"good{i}", seed=i, rate=99.0 + i, config={"new_key": 1})) for i in range(2)]
    slow = [str(make(f"slow{i}", seed=i, rate=90.0 + i)) for i in range(2)]
    assert main(["compare", *good, "--against", *old]) == 0
    assert "No regression in 2 figures" in capsys.readouterr().out
    assert main(["compare", *slow, "--against", *old, "--fail-below", "0.97"]) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 figures regressed." in printed
    assert "p_steady, molecules/s" in next(line for line in printed.splitlines() if "**regressed**" in line)
    assert main(["compare", *slow, "--against", *old, "--fail-below", "0.85"]) == 0
    failed = str(make("failed", status="failed"))
    assert main(["compare", failed, "--against", *old]) == 1
    assert "not done" in capsys.readouterr().out
    other = str(make("other", config={"hp.lr": 1}))
    assert main(["compare", other, "--against", *old]) == 2
    assert "give runs of the same cases" in capsys.readouterr().err


@pytest.mark.parametrize(("after", "code"), [(40.0, 0), (40.9, 0), (41.5, 1), (30.0, 0)])
def test_a_later_first_step_is_a_regression_beyond_a_second(
    trained: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: float, code: int
) -> None:
    for name, seconds in (("old", 40.0), ("new", after)):
        write_record(replace(trained, start=Start(first_step_s=seconds)), tmp_path / name / "result.json")
    runs = [str(tmp_path / "new"), "--against", str(tmp_path / "old")]
    assert main(["compare", *runs, "--fail-below", "0.98"]) == code
    line = next(line for line in capsys.readouterr().out.splitlines() if "first step, s" in line)
    assert ("**regressed**" in line) == bool(code)
    assert main([str(tmp_path / "new"), "--no-published"]) == 0
    assert "| first step |" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "new"), str(tmp_path / "old"), "--no-published"]) == 0
    assert "first step, s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fail-below", "0.9"], "--fail-below needs --against"),
        (["--interactive", "--format", "csv"], "--interactive needs --format html"),
        (["--against", "RUN", "--fail-below", "2"], "'2' is not a ratio"),
        (["--against", "RUN", "--format", "latex"], "--against has no latex"),
    ],
)
def test_mistakes_in_the_options_are_one_line(
    make: Make, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    run = str(make("run"))
    assert main(["compare", run, *(run if text == "RUN" else text for text in options)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_stability_is_the_spread_of_each_evaluation_beside_the_published_one(make: Make) -> None:
    values = {1: (60.0, 70.0), 2: (62.0, 74.0), 3: (67.0, 78.0)}
    runs = [
        make(f"s{seed}", seed=seed, nuv=late,
             history=[{"step": 5, "epoch": 0, "validity": early, "uniqueness": 99.0},
                      {"step": 10, "epoch": 1, "validity": late}])
        for seed, (early, late) in values.items()
    ]  # fmt: skip
    spreads = {(spread.metric, spread.at, spread.n): spread for spread in stability(load(runs))}
    early = spreads["validity", "step 5", 3]
    assert (early.mean, early.min, early.max, early.median) == (63.0, 60.0, 67.0, 62.0)
    assert early.sd == pytest.approx(stdev([60, 62, 67]))
    assert spreads["nuv", "the end", 3].mean == 74.0
    published = spreads["validity", "epoch 300", 20]
    assert (published.mean, published.sd) == (87.29, 3.70) and "NVIDIA" in published.source
    assert published.sd is not None and published.min is not None and published.min < published.mean
    assert ("uniqueness of 100", "epoch 300", 20) in spreads and ("uniqueness", "epoch 300", 20) not in spreads


def test_stability_wants_seeds_of_one_case(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    one, again, other = (str(make(n, seed=1, config={"hp.lr": lr})) for n, lr in (("a", 1), ("b", 1), ("c", 2)))
    for runs, message in (
        ([str(make("failed", status="failed"))], "none of these runs ended normally"),
        ([one, again], "give each seed once"),
        ([one, other], "another case"),
    ):
        assert main(["stability", *runs]) == 2
        assert message in capsys.readouterr().err


def test_stability_draws_the_seeds_over_the_published_curve(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("a", seed=3, history=[{"step": 540, "epoch": 9, "validity": 80.0}])
    assert main(["stability", str(run), "--picture", str(tmp_path / "curve.png")]) == 0
    assert re.search(r"validity +\| step 540 +\| +1 \| +80 \| +/ \|", capsys.readouterr().out)
    assert "seed 3" in (tmp_path / "curve.svg").read_text()
    run = make("b", history=[])
    assert main(["stability", str(run), "--picture", str(tmp_path / "none.png")]) == 2
    assert "no evaluations to draw" in capsys.readouterr().err and not (tmp_path / "none.png").exists()


def test_published_rows_are_printed_with_their_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", "dlrm"]) == 0
    printed = capsys.readouterr().out
    assert "7292588* (3646294)" in printed and "samples counted 2 x world size times" in printed
    assert "- Task: predicting clicks" in printed and "driver 470.129.06, PyTorch 1.10.0a0+0aef44c" in printed
    assert main(["published", "resnet"]) == 2
    assert "there are those of" in capsys.readouterr().err


def test_the_ratio_to_full_precision_is_the_one_that_nvidia_prints() -> None:
    """Printed: 1.32x (A100, TF32) and 1.50x (V100, FP32) at batch 240."""
    entries = over_full([published_row(row) for row in rows("se3_transformer", "train")])
    ratios = {
        row.config: round(row.figures["over_full"] or 0, 2)
        for row in entries
        if (row.batch, row.precision) == ("240", "amp")
        and "09/2021, training perf" in row.source
        and "1x1" in row.config
    }
    assert ratios == {"A100-80G 1x1": 1.32, "V100-16G 1x1": 1.50}

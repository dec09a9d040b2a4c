"""The sentence that answers a comparison, on records with figures that a reader can check."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy.stats import t as student

from src.measure.intervals import mean_interval, ratio_interval, welch_interval
from src.report.compare.answer import Answer, answer
from src.report.compare.build import compare
from src.report.compare.hindrances import verdict
from src.report.compare.structure import Comparison
from src.report.compare.text import markdown
from src.report.digits import rounded
from src.report.load import Loaded
from src.report.record import Memory, ReachedMetric, Record, Steady

ENVIRONMENT = {"gpus": ["H200"], "libraries": {"torch": "2.11.0"}, "git": {"commit": "a" * 40, "dirty": False}}


class Runs:
    """Records of several groups."""

    def __init__(self, trained: Record) -> None:
        self.trained, self.runs = trained, list[tuple[str, Record]]()

    def add(
        self, lr: Any, rates: Sequence[float], metrics: Sequence[float] = (), memory: float = 8.0, better: str = "max",
        **others: Any,
    ) -> "Runs":  # fmt: skip
        """Adds a group, a run for each of its rates; `metrics` are of the same runs."""
        for seed, rate in enumerate(rates):
            metric = ReachedMetric(name="score", value=metrics[seed], direction=better) if metrics else None  # type: ignore[arg-type]
            record = replace(
                self.trained, config={"seed": seed, "hp": {"lr": lr}}, steady=Steady(p_train=rate),
                final_metric=metric, mem=Memory(peak_reserved_gib=memory),
                **{"environment": ENVIRONMENT, "history": [], **others},
            )  # fmt: skip
            self.runs.append((f"{lr}_{seed}", record))
        return self

    def comparison(self) -> Comparison:
        return compare(Loaded(runs=self.runs, paths=[], without=[]), published=False)

    def answer(self) -> Answer:
        return answer(self.comparison())


@pytest.fixture
def runs(trained: Record) -> Runs:
    return Runs(trained)


def test_intervals_of_ratios_and_means_are_those_of_their_formulas() -> None:
    ours, theirs = [140.0, 150.0, 143.0], [100.0, 104.0, 99.0]
    low, high = welch_interval([math.log(x) for x in ours], [math.log(x) for x in theirs]) or (0.0, 0.0)
    assert ratio_interval(ours, theirs) == pytest.approx((math.exp(low), math.exp(high)))
    half = float(student.ppf(0.975, 2)) * stdev(ours) / math.sqrt(3)
    assert mean_interval(ours) == pytest.approx((fmean(ours) - half, fmean(ours) + half))
    assert mean_interval([1.0]) is None and mean_interval([2.0, 2.0]) == (2.0, 2.0)
    assert ratio_interval([1.0], theirs) is None
    wider = welch_interval(ours, theirs, 0.99)
    assert wider is not None and wider[0] < (welch_interval(ours, theirs) or (0.0, 0.0))[0]


def test_values_have_the_digits_that_their_spread_allows() -> None:
    assert rounded((1.43219, 1.40123, 1.46111), 2 * 0.06) == ["1.43", "1.40", "1.46"]
    assert rounded((1.43219, 1.01, 1.9), 2 * 0.89) == ["1.4", "1.0", "1.9"]
    assert rounded((1.43219, 1.01, 1.9), 2 * 0.89, least=2) == ["1.43", "1.01", "1.90"]
    assert rounded((29091.23, 28000.0, 30000.4), 2 * 2000) == ["29,100", "28,000", "30,000"]
    assert rounded((0.937512345, 1e-9), 1e-9) == ["0.937512", "1e-09"]
    assert rounded((3.0, 512.0), 512.0) == ["3", "510"]
    assert rounded((0.0, 0.25), 0.25) == ["0", "0.25"]
    assert rounded((0.5, 0.5), 0.0) == ["0.5", "0.5"]


def test_two_single_runs_cannot_tell(runs: Runs) -> None:
    told = runs.add("tf32", [100.0], [50.0], 10.0).add("amp", [143.0], [51.5], 6.8).answer()
    assert told.sentence == (
        "Cannot be told from single runs (n=1): lr=amp ran 1.43 times as fast as tf32, with 32% less memory; "
        "score is 51.5 against 50."
    )
    assert [(ratio.quantity, ratio.interval, ratio.is_told) for ratio in told.ratios] == [
        ("p_steady", "", False), ("mem", "", False), ("metric", "", False),
    ]  # fmt: skip
    assert told.metric is not None and told.metric.group is None


def test_three_seeds_against_three_tell_a_speed_and_not_a_metric(runs: Runs) -> None:
    runs.add("tf32", [100.0, 101.0, 99.0], [50.0, 51.0, 52.0], 10.0)
    told = runs.add("amp", [143.0, 144.0, 142.5], [51.0, 52.0, 50.5], 6.8).answer()
    low, high = ratio_interval([143.0, 144.0, 142.5], [100.0, 101.0, 99.0]) or (0.0, 0.0)
    assert f"lr=amp is 1.43 times as fast as tf32 (95% interval {low:.2f} to {high:.2f}), with 32% less memory" in (
        told.sentence
    )
    figures = "51.2 against 51.0, difference 0.2, 95% interval -1.9 to 2.2"
    assert f"score is equal within the spread of 3 seeds ({figures})" in told.sentence
    speed = told.ratios[0]
    assert (speed.low, speed.high, speed.is_told) == (low, high, True)
    assert told.speed is not None and (told.speed.group, told.speed.not_told_apart) == (1, [])
    assert told.metric is not None and told.metric.not_told_apart == [0]


def test_the_faster_group_is_named_first_and_a_worse_metric_is_said(runs: Runs) -> None:
    runs.add("a", [200.0, 201.0, 199.0], [1.0, 1.01, 1.02], better="min")
    told = runs.add("b", [100.0, 101.0, 99.0], [0.5, 0.51, 0.52], 8.05, better="min").answer()
    assert told.sentence.startswith("lr=a is 2.00 times as fast as b (95% interval 1.96 to 2.04), with as much memory;")
    assert "score is worse (1.010 against 0.510, difference 0.500, 95% interval 0.477 to 0.523)" in told.sentence
    assert told.metric is not None and told.metric.group == 1  # less is better


def test_equal_figures_are_a_tie_and_no_best(runs: Runs) -> None:
    told = runs.add("a", [100.0, 100.0], [50.0, 50.0]).add("b", [100.0, 100.0], [50.0, 50.0])
    assert told.answer().sentence == "lr=b is exactly as fast as a, with as much memory; score is equal, 50."
    comparison = told.add("c", [90.0, 90.0], [49.0, 49.0]).comparison()
    assert "Best score: an exact tie of lr=a and lr=b, 50. Fastest: an exact tie of lr=a and lr=b, 100" in (
        answer(comparison).sentence
    )
    assert comparison.best is None and "Best:" not in markdown(comparison)


def test_a_group_without_a_result_is_named(runs: Runs) -> None:
    runs.add("a", [100.0], [50.0]).add("b", [100.0], [50.0], status="oom")
    told = runs.answer()
    assert told.sentence == (
        "Cannot be told: one group alone has a result; score: 50 (n = 1); p_steady, molecules/s: 100 (n = 1). "
        "Without a result (oom): lr=b."
    )
    assert told.without == [1] and told.ratios == []
    assert runs.add("c", [120.0], [50.0]).answer().sentence.endswith(" Without a result (oom): lr=b.")
    only = Runs(runs.trained).add("a", [1.0], status="failed").answer().sentence
    assert only == "Cannot be told: no run ended normally. Without a result (failed): moflow, amp."


def test_different_hardware_is_not_comparable_in_speed(runs: Runs) -> None:
    other = {**ENVIRONMENT, "gpus": ["A100"], "libraries": {"torch": "2.12.0"}}
    comparison = runs.add(1, [100.0, 101.0]).add(2, [150.0, 151.0], environment=other).comparison()
    assert verdict(comparison) == "Not comparable in speed: different gpus, torch."
    same = Runs(runs.trained).add(1, [100.0]).add(2, [110.0]).comparison()
    assert verdict(same) == "Comparable: hp.lr alone differs; data, machine and code are the same."
    # Different GPUs are what is asked where the hardware is the key that differs.
    case = replace(runs.trained.case, hardware="a100")
    asked = Runs(runs.trained).add(1, [100.0]).add(1, [150.0], case=case, environment={**ENVIRONMENT, "gpus": ["A100"]})
    assert verdict(asked.comparison()) == "Comparable: hardware alone differs."


def test_of_a_sweep_the_best_and_the_fastest_are_named_with_those_that_equal_them(runs: Runs) -> None:
    for i in range(12):
        score = 90.0 if i == 3 else 89.9 if i == 5 else 50.0 + i
        runs.add(i + 1, [100.0 + 10 * i + seed for seed in range(3)], [score + 0.2 * seed for seed in range(3)])
    told = runs.answer()
    assert told.metric is not None and (told.metric.group, told.metric.not_told_apart) == (3, [5])
    assert told.speed is not None and (told.speed.group, told.speed.not_told_apart) == (11, [])
    assert told.sentence == (
        "Best mean score: lr=4, 90.2 (95% interval 89.7 to 90.7); the spread of 3 seeds does not tell lr=6 from it. "
        "Fastest: lr=12, 2.09 times as fast as the slowest, lr=1 (95% interval 2.05 to 2.13); "
        "the other 11 differ beyond the spread."
    )
    assert told.ratios == []


def test_a_single_run_among_groups_of_seeds_tells_nothing(runs: Runs) -> None:
    runs.add(1, [100.0, 101.0], [50.0, 51.0]).add(2, [110.0, 111.0], [60.0, 61.0]).add(3, [150.0], [99.0])
    told = runs.answer()
    assert told.sentence.startswith("Cannot be told where a group is a single run (n=1). Best score: lr=3, 99. Fastest")
    assert told.metric is not None and told.metric.group is None and told.metric.top == [2]


def test_the_terminal_begins_with_the_answer_and_its_verdict(runs: Runs) -> None:
    runs.add("tf32", [100.0, 101.0], memory=10.0).add("amp", [143.0, 144.0], memory=6.8)
    lines = markdown(runs.comparison()).splitlines()
    assert lines[2].startswith("**lr=amp is 1.43 times") and lines[4].startswith("Comparable: hp.lr alone differs")
    assert lines[6] == "hp.lr: tf32, amp"


def test_many_values_of_a_key_are_a_range(runs: Runs) -> None:
    for i in range(10):
        runs.add(0.00013471245580917 * 2**i, [100.0 + i], [50.0 + i])
    lines = markdown(runs.comparison()).splitlines()
    assert lines[2].startswith("**Cannot be told from single runs (n=1). Best score: lr=0.06897, 59. Fastest:")
    assert lines[6] == "hp.lr: 10 values from 1.3e-4 to 0.069"


def test_of_many_groups_more_equal_the_best_than_one_by_one(runs: Runs) -> None:
    best, second = [60.0, 60.2, 60.4], [59.4, 59.6, 59.8]
    low, _ = welch_interval(best, second) or (0.0, 0.0)
    assert low > 0  # of two groups these are told apart
    for i in range(12):
        runs.add(i, [100.0, 101.0, 102.0], best if i == 0 else second if i == 1 else [10.0 + i, 10.1 + i, 10.2 + i])
    told = runs.answer()
    assert told.metric is not None and told.metric.not_told_apart == [1]

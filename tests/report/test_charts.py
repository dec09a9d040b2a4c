"""The charts of a comparison: where axes begin, names at the ends of curves, the picture of the answer."""

from dataclasses import replace
from itertools import pairwise

import pytest

from src.measure.intervals import mean_interval
from src.report.compare.answer import answer
from src.report.compare.answer_charts import means_spec, ratio_spec
from src.report.compare.axes import bounded, in_lines, log_ticks, round_ticks, short, value_axis
from src.report.compare.build import compare
from src.report.compare.charts import runs_spec
from src.report.compare.curves import LETTERS, _apart, curve_spec, mean_curves, panels
from src.report.compare.structure import Comparison, Curve, Quantity
from src.report.compare.varied import as_number
from src.report.load import Loaded
from src.report.record import Case, ReachedMetric, Record, Steady

METRIC = Quantity(name="metric", title="acc", unit="", better="max")
MEMORY = Quantity(name="mem", title="memory", unit="GiB", better="min")


@pytest.fixture
def comparison(trained: Record, case: Case) -> Comparison:
    """Two groups of two seeds with curves of a training and a validation loss."""
    runs = []
    for precision, rate in (("amp", 143.0), ("tf32", 100.0)):
        for seed in (1, 2):
            rows = [{"step": i, "time_s": 12.0 + i, "loss": 4.0 / i, "val_loss": 3.0 / i + seed} for i in (1, 2, 3)]
            metric = ReachedMetric(name="acc", value=0.9 + 0.01 * seed, direction="max")
            record = replace(
                trained, case=replace(case, precision=precision), config={"seed": seed}, history=rows,
                steady=Steady(p_train=rate + seed), final_metric=metric,
            )  # fmt: skip
            runs.append((f"{precision}{seed}", record))
    return compare(Loaded(runs=runs, paths=[], without=[]), published=False)


def test_axes_begin_at_zero_or_say_that_they_are_cut() -> None:
    memory = value_axis("y", "memory, GiB", [0.505, 0.511], MEMORY)
    assert memory["scale"]["zero"] and memory["title"] == "memory, GiB"
    cut = value_axis("y", "acc", [0.905, 0.912], METRIC)
    assert cut["scale"]["domain"][0] > 0.9 and cut["title"] == "acc (axis cut, not from 0)"
    assert value_axis("y", "acc", [0.4, 0.9], METRIC)["scale"]["zero"]
    assert value_axis("y", "nuv, %", [80.0, 90.0])["scale"]["zero"]  # a share in percent
    assert value_axis("y", "loss", [-3.0, -2.0])["scale"]["zero"] is False


def test_labels_of_axes_are_short() -> None:
    values = ["0.00134471245580917", "0.03", "65536", "1e-05"]
    assert [short(as_number(value) or 0.0) for value in values] == ["1.3e-3", "0.03", "65,536", "1e-5"]
    assert log_ticks(1.7e-3, 0.28) == [3e-3, 1e-2, 3e-2, 0.1]
    assert round_ticks(50, 70) == [50, 55, 60, 65, 70] and round_ticks(0.13, 1) == [0.2, 0.4, 0.6, 0.8, 1]
    assert log_ticks(1.5e-4, 0.3) == [1e-3, 1e-2, 1e-1] and log_ticks(0.02, 0.3) == [0.02, 0.05, 0.1, 0.2]


def test_a_long_title_of_a_vertical_axis_is_in_two_lines() -> None:
    assert in_lines({"title": "top1 (axis cut, not from 0)"})["title"] == "top1 (axis cut, not from 0)"
    long = in_lines({"title": "bits_atom, bits per dimension (axis cut, not from 0)"})
    assert long["title"] == ["bits_atom, bits per dimension", "(axis cut, not from 0)"]


def test_intervals_of_shares_end_where_shares_do() -> None:
    assert bounded((-0.2, 1.3), METRIC) == (0.0, 1.0)
    assert bounded((-0.2, 1.3), replace(METRIC, title="plogp")) == (-0.2, 1.3)
    assert bounded((-1.0, 120.0), replace(METRIC, title="nuv")) == (0.0, 100.0)
    assert bounded((-1.0, 120.0), MEMORY) == (0.0, 120.0) and bounded(None, METRIC) is None


def test_the_picture_of_two_groups_has_the_ratios_of_the_sentence(comparison: Comparison) -> None:
    answered = answer(comparison)
    drawn = ratio_spec(comparison, answered)
    assert drawn is not None
    speed, memory, metric = drawn["data"]["values"]
    assert (speed["quantity"], speed["ratio"]) == ("speed", answered.ratios[0].ratio)
    assert speed["low"] < speed["ratio"] < speed["high"] and f"{answered.ratios[0].interval}" in speed["label"]
    assert (memory["quantity"], memory["label"], metric["quantity"]) == ("memory", "1", "acc")
    assert "precision=amp over precision=tf32" in str(drawn["layer"])
    low, high = drawn["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 1 < speed["high"] < high


def test_the_picture_of_several_groups_has_means_and_intervals(comparison: Comparison) -> None:
    drawn = means_spec(comparison, comparison.quantity("p_steady"), [1, 0])
    assert drawn is not None
    tf32, amp = drawn["data"]["values"]
    assert (tf32["group"], amp["group"]) == ("precision=tf32", "precision=amp")
    assert (amp["low"], amp["high"]) == mean_interval([144.0, 145.0])


def test_training_and_validation_of_one_loss_share_a_panel(comparison: Comparison) -> None:
    assert panels(comparison) == [("loss", "val_loss")]
    drawn = curve_spec(comparison, ("loss", "val_loss"), "samples")
    assert drawn is not None
    seeds, training, validation, _, names = drawn["layer"]
    assert training["mark"]["strokeWidth"] < validation["mark"]["strokeWidth"]
    assert seeds["mark"]["opacity"] < 0.5 and len(seeds["data"]["values"]) == 4 * 3
    # 3 / i + seed, on average over seeds 1 and 2
    assert [point["y"] for point in validation["data"]["values"]] == [4.5, 3.0, 2.5] * 2
    assert {row["group"] for row in names["data"]["values"]} == {"precision=amp", "precision=tf32"}


def test_seeds_that_were_judged_at_other_samples_stand_for_themselves() -> None:
    one = Curve(group=0, source="a", metric="acc", values=[1, 2, 3], samples=[10, 20, 30], seconds=[1, 2, None])
    other = replace(one, source="b", values=[5, 8], samples=[20, 30], seconds=[4, 5])
    (mean,), seeds = mean_curves([one, other])
    assert (mean.samples, mean.values, mean.seconds) == ([20, 30], [3.5, 5.5], [3.0, None]) and seeds == [one, other]
    apart = [one, replace(other, samples=[21, 31])]
    assert mean_curves(apart) == (apart, [])


def test_names_at_the_ends_of_curves_do_not_cover_each_other() -> None:
    for places in ([10.0, 11.0, 12.0], [215.0, 219.0, 220.0], [0.0, 100.0, 220.0]):
        moved = _apart(places)
        assert all(b - a >= LETTERS for a, b in pairwise(moved)) and moved[-1] <= 220 and moved[0] >= 0


def test_points_of_runs_have_the_names_of_their_groups(comparison: Comparison) -> None:
    drawn = runs_spec(comparison, ("p_steady",), "mem")
    assert drawn is not None
    assert {row["group"] for row in drawn["data"]["values"]} == {"precision=amp", "precision=tf32"}
    assert drawn["layer"][0]["encoding"]["color"]["legend"] is not None

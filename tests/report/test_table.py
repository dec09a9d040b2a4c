"""The table has the figures of the records and the published rows, in FlagPerf's layout."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from src.published import Correction, PublishedMetric, PublishedRow
from src.report import rows
from src.report.digits import number, rounded
from src.report.record import Case, Record, Steady
from src.report.table import as_csv, as_json, markdown, section, tables

WHY = "counts dropped samples"
PUBLISHED = [
    PublishedRow(
        model="moflow",
        kind="train",
        trainer="1x1",
        precision="fp32",
        hardware="a100_40g",
        batch_per="device",
        unit="molecules",
        source="FlagPerf, moflow README",
        fix_hp="bs=3584,lr=0.0001",
        batch_size=3584,
        note="timers | not synchronised",
        p_whole=5810.0,
        p_train=5992.25,
        final_metric=PublishedMetric("nuv", 88.45, None),
        mem_used_gib=37.9,
        mem_total_gib=40.0,
        corrected={"p_whole": Correction(5748.8, WHY), "precision": Correction("tf32", "exceeds the fp32 peak")},
    ),
    PublishedRow(
        model="moflow",
        kind="train",
        trainer="1x8",
        precision="amp",
        hardware="a100_40g",
        batch_per="device",
        unit="molecules",
        source="of another trainer",
        throughput=99.0,
    ),
]
GOLDEN = """\
| config       | precision    | fix_hp            | batch | e2e_time |      p_whole | p_train | p_core | p_steady |  final_nuv |         mem | source            |
| ------------ | ------------ | ----------------- | ----: | -------: | -----------: | ------: | -----: | -------: | ---------: | ----------: | ----------------- |
| H200 1x1     | amp          | /                 |   512 |    244.1 |         9100 |    9877 |  10322 |    10200 | 80.31/87.9 | 8.123/139.8 | runs/a            |
| H200 1x1     | amp          | /                 |   512 |        / |            / |       / |      / |        / |          / |           / | runs/b **oom** [1] |
| A100-40G 1x1 | fp32* (tf32) | bs=3584,lr=0.0001 |  3584 |        / | 5810† (5749) | 5992.25 |      / |        / |      88.45 |     37.9/40 | FlagPerf [2]      |

Rates in molecules/s, times in s, mem in GiB of one device (used/total); p_steady is p_train after warm-up, or the \
rate of a publisher who gives one only; '/' is not reported.

- `*` exceeds the fp32 peak
- `†` counts dropped samples
- [1] OutOfMemoryError: CUDA out of memory. Tried 2 GiB
- [2] FlagPerf, moflow README: timers | not synchronised
"""  # noqa: E501


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest_rows(case: dict[str, Any], kind: str) -> list[PublishedRow]:
        return [row for row in PUBLISHED if (row.model, row.kind) == (case["model"], kind)]

    monkeypatch.setattr(rows, "nearest_rows", nearest_rows)


def _squeezed(text: str) -> list[str]:
    """Returns the lines without the padding of the cells."""
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("| -")]


def test_the_source_marks_rows_that_are_not_comparable_and_names_the_command_of_measured_ones(
    trained: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(PUBLISHED[0], source="Publisher, old page", comparable=False)
    theirs = replace(PUBLISHED[0], source="measured reference: theirs", measured=True, note="eager")
    theirs = replace(theirs, command="benchmarks/theirs.sh")
    monkeypatch.setattr(rows, "nearest_rows", lambda case, kind: [old, theirs])
    [table] = tables([("run", trained)])
    lines = _squeezed(section(table))
    assert [line.split("|")[-2].strip() for line in lines[2:4]] == [
        "Publisher **not comparable** [1]", "measured reference: theirs [2]"
    ]  # fmt: skip
    assert lines[-1] == "- [2] measured reference: theirs: eager; by benchmarks/theirs.sh"
    assert "by benchmarks/theirs.sh" in as_csv([table]) and "by benchmarks/theirs.sh" in as_json([table])


def test_a_table_equals_the_golden_table(trained: Record, out_of_memory: Record) -> None:
    [table] = tables([("runs/a", trained), ("runs/b", out_of_memory)])
    assert _squeezed(section(table)) == _squeezed(GOLDEN)


def test_the_lines_of_a_table_are_aligned(trained: Record, out_of_memory: Record) -> None:
    [table] = tables([("runs/a", trained), ("runs/b", out_of_memory)])
    lines = [line for line in section(table).splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1
    assert "----: |" in lines[1]


def test_a_predict_table_has_latencies_in_milliseconds(predicted: Record) -> None:
    lines = section(*tables([("runs/c", predicted)])).splitlines()
    assert " ".join(lines[0].split()) == (
        "| config | precision | batch | throughput | mean ms | p50 ms | p90 ms | p95 ms | p99 ms | mem | source |"
    )
    assert " ".join(lines[2].split()) == (
        "| H200 1x1 | amp | 512 | 13333 | 38.4 | 38 | 39 | 39.5 | 41.2 | 3.25/139.8 | runs/c |"
    )


def test_each_model_and_kind_has_its_own_table(trained: Record, predicted: Record, case: Case) -> None:
    other = replace(trained, case=replace(case, model="dlrm", batch_per="global"), unit="samples")
    made = tables([("a", trained), ("b", other), ("c", predicted), ("d", trained)], published=False)
    assert [(t.model, t.kind, len(t.rows)) for t in made] == [
        ("moflow", "train", 2),
        ("dlrm", "train", 1),
        ("moflow", "predict", 1),
    ]
    assert "### dlrm, train" in markdown(made)
    assert "512 global" in markdown(made)
    assert "FlagPerf" not in markdown(made)


def test_rows_of_other_trainers_are_shown_only_if_there_is_none_of_the_same(trained: Record, case: Case) -> None:
    assert [row.source for row in rows.published_rows([trained, trained])] == [PUBLISHED[0].source]
    alone = replace(trained, case=replace(case, trainer="1x2"))
    assert [row.source for row in rows.published_rows([alone])] == [row.source for row in PUBLISHED]
    [table] = tables([("a", alone)])
    assert table.rows[-1].figures["p_steady"] == 99.0


def test_cells_name_the_metric_if_there_are_two(trained: Record) -> None:
    metric = replace(trained.final_metric, name="validity") if trained.final_metric else None
    text = section(*tables([("a", replace(trained, final_metric=metric))]))
    assert "final_metric" in text and "validity 80.31/87.9" in text and "nuv 88.45" in text


def test_csv_has_figures_at_full_length(trained: Record, out_of_memory: Record) -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(tables([("a", trained), ("b", out_of_memory)])))))
    assert [line["status"] for line in lines] == ["done", "oom", "published"]
    assert (lines[0]["p_steady"], lines[0]["mem_used_gib"], lines[0]["corrected"]) == ("10200.4321", "8.1234", "")
    assert (lines[1]["p_whole"], lines[1]["fix_hp"]) == ("", "")
    assert (lines[2]["p_whole"], lines[2]["corrected"]) == ("5810.0", "p_whole=5748.8; precision=tf32")


def test_json_has_corrections_with_their_reason(trained: Record) -> None:
    [table] = json.loads(as_json(tables([("a", trained)])))
    run, row = table["rows"]
    assert (run["source"], run["figures"]["e2e_time_s"], run["figures"]["latency_s.p50"]) == ("a", 244.06, None)
    assert run["fix_hp"] is None
    assert row["corrected"]["p_whole"] == {"value": 5748.8, "why": WHY}


def test_a_figure_that_is_not_finite_is_not_reported(trained: Record) -> None:
    assert rows.record_row("a", replace(trained, p_core=float("nan"))).figures["p_core"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27023, "27023"),
        (9876.6, "9877"),
        (244.06, "244.1"),
        (88.449, "88.45"),
        (0.80264, "0.8026"),
        (0, "0"),
        (1e311, "inf"),
    ],
)
def test_a_number_keeps_four_digits(value: float | int, text: str) -> None:
    assert number(value) == text


@pytest.mark.slow
def test_every_published_row_fits_the_table(monkeypatch: pytest.MonkeyPatch, trained: Record) -> None:
    monkeypatch.undo()
    from src.published import rows as every

    assert every()
    for row in every():
        case = replace(
            trained.case, **{key: getattr(row, key) for key in ("model", "trainer", "precision", "hardware")}
        )
        record = Record(kind=row.kind, case=case, status="failed", unit=row.unit)
        assert row.source in section(*tables([("a", record)]))


def test_runs_of_different_commits_or_configs_have_no_ratio(trained: Record, case: Case) -> None:
    tf32 = replace(trained, case=replace(case, precision="tf32"), steady=Steady(p_train=5100.21605))
    [same] = tables([("a", trained), ("b", tf32)], published=False)
    assert [row.figures.get("over_full") for row in same.rows] == [2.0, None]
    assert "over full" in section(same)
    other = replace(tf32, environment={"git": {"commit": "c" * 40}})
    [apart] = tables([("a", trained), ("b", other)], published=False)
    assert "over full" not in section(apart)
    exact = replace(trained, config={**trained.config, "logdet": "exact"})
    [mixed] = tables([("a", exact), ("b", tf32)], published=False)
    assert "over full" not in section(mixed)
    [three] = tables([("a", trained), ("b", tf32), ("c", tf32)], published=False)
    assert "over full" not in section(three)


@pytest.mark.parametrize(
    ("value", "sd", "text"),
    [(17312.45, 812.3, "17,310"), (17312.45, 0.6, "17,312.5"), (17312.45, None, "17,312"), (0.0, 1.0, "0"),
     (5.0, 0.0, "5"), (355142.3, 9000.0, "355,100"), (90.123, 0.5, "90.12")],
)  # fmt: skip
def test_a_mean_has_no_more_digits_than_its_spread_allows(value: float, sd: float | None, text: str) -> None:
    assert rounded([value], sd) == [text]

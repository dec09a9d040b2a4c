"""The summary at the end of a run, and the shares of its phases."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from src.measure.reading import Reading
from src.report.compare.build import compare
from src.report.compare.page import page
from src.report.compare.text import as_csv, as_json, latex, markdown
from src.report.load import Loaded
from src.report.phases import shares
from src.report.record import Memory, Quality, ReachedMetric, Record, Tokens, Utilisation, read_record, write_record
from src.report.text import summary


def test_time_outside_the_phases_is_unaccounted(trained: Record) -> None:
    phases = {share.name: (share.seconds, round(share.share, 3)) for share in shares(trained)}
    assert phases == {
        "startup": (12.0, 0.06),
        "fetch": (8.0, 0.04),
        "compute": (160.0, 0.8),
        "evaluation": (18.0, 0.09),
        "unaccounted": (2.0, 0.01),
    }
    over = shares(replace(trained, phases_s={"compute": 3.0, "wall": 2.0}))
    assert [(share.name, share.seconds) for share in over] == [("compute", 3.0), ("unaccounted", -1.0)]
    assert [share.name for share in shares(replace(trained, phases_s={"compute": 2.0, "wall": 2.001}))] == ["compute"]


def test_summary_has_case_result_rates_phases_and_files(trained: Record) -> None:
    text = summary(trained, {"record": Path("outputs/a/result.json")})
    assert text.startswith("train done: moflow on zinc250k, h200 1x1, amp, batch 512 per device\n")
    for words in (
        "e2e_time  p_whole",
        "80.31/87.9",
        "p_whole      9100 molecules/s",
        "without evaluation",
        "step p50       50 ms",
        "Where 200.0 s went",
        "compute                      160.00 s   80.0%  ██████████████████████████\n",
        "unaccounted                    2.00 s    1.0%",
        "record  outputs/a/result.json",
    ):
        assert words in text


def test_labels_of_all_lengths_stand_apart_from_their_figures(trained: Record) -> None:
    tokens = Tokens(processed_per_s=32639.0)
    text = summary(replace(trained, tokens=tokens, phases_s=trained.phases_s | {"decode": 0.07}), {})
    assert "with padding 32639 tokens/s" in text and "decode (waiting for images)       0.07 s" in text
    rows = [line for line in text.splitlines() if re.search(r"\d s +\d+\.\d%", line)]
    assert len(rows) > 4 and len({line.index("%") for line in rows}) == 1


def test_summary_of_a_prediction(predicted: Record) -> None:
    text = summary(predicted, {})
    assert "throughput  13333 molecules/s" in text and "latency p99  41.2 ms" in text
    assert "p_whole" not in text and "Files" not in text and "Where" not in text


def test_summary_of_a_failed_run_has_the_error(out_of_memory: Record) -> None:
    text = summary(out_of_memory, {})
    assert text.startswith("train oom: ")
    assert "  OutOfMemoryError: CUDA out of memory. Tried 2 GiB (step 3)\n" in text


@pytest.mark.parametrize("factor", [1, 1e4])
def test_summary_stays_under_100_columns(trained: Record, factor: float) -> None:
    large = replace(
        trained,
        case=replace(trained.case, hardware="a100_40g", fix_hp="bs=2097152,lr=0.0001"),
        e2e_time_s=1234567.8,
        p_whole=9100.2 * factor,
        p_train=9100.2 * factor,
        p_core=9100.2 * factor,
        final_metric=ReachedMetric(name="validity", value=0.80264, target=0.8025),
        mem=Memory(peak_reserved_gib=101.25, total_gib=139.8),
    )
    text = summary(large, {"record": Path("result.json")})
    assert max(map(len, text.splitlines())) < 100
    assert "bs=2097152,lr=0.0001" in text and "101.2/139.8" in text


def test_a_share_above_the_peak_is_an_error_of_measurement_everywhere(trained: Record, tmp_path: Path) -> None:
    used = Utilisation(flops_per_s=2.5e11, peak_flops_per_s=1e11, of_peak_flops=2.502, of_peak_bandwidth=0.5)
    write_record(replace(trained, utilisation=used), tmp_path / "result.json")
    stored = (tmp_path / "result.json").read_text()
    (tmp_path / "result.json").write_text(stored.replace('"of_peak_flops": null', '"of_peak_flops": 2.502'))
    record = read_record(tmp_path)
    comparison = compare(Loaded([("run", record)], [tmp_path], []))
    for text in (summary(record, {}), markdown(comparison), page(comparison), latex(comparison)):
        assert "above the peak FLOP/s: an error of measurement" in text
        assert "250.2" not in text and "2.502" not in text
    for text in (as_csv(comparison), as_json(comparison)):
        assert "250.2" not in text and "2.502" not in text
    assert re.search(r"bandwidth +50 %", summary(record, {}))


def test_figures_of_one_rank_say_so(trained: Record) -> None:
    text = summary(replace(trained, ranks=2), {})
    assert "Where 200.0 s of rank 0 went" in text and "half of the steady steps of rank 0 are faster" in text


def test_summary_says_what_was_not_kept_as_written(trained: Record, reading: Reading) -> None:
    text = summary(replace(trained, reading=reading), {})
    assert "\nData\n  own.smi: 447 molecules read, 422 kept as written, 5 kept changed, 20 dropped\n" in text
    assert "    dropped 20: no molecule, as line 5: 'xyz'\n" in text and "    classes of val: active 22\n" in text
    assert "Data" not in summary(replace(trained, reading=Reading("a.smi", "molecules", 3)), {})
    reading.source, reading.notes = "a\nTotal: 0 dropped", ["x\n" * 99]
    data = summary(replace(trained, reading=reading), {}).split("\n\n")[1]
    assert "  a\\nTotal: 0 dropped: 447 molecules" in data and max(map(len, data.splitlines())) < 100


def test_groups_side_by_side_say_once_what_their_figures_are(predicted: Record) -> None:
    figures = [
        Quality(name=name, value=value, unit="%", of=of, group=split)
        for split, count in (("train", 9), ("val", 3))
        for name, value, of in (
            ("accuracy", 50.0, f"right, {count} images of the {split} split"),
            ("majority class", 40.0, "right, always naming cat"),
            ("recall of cat", None, "0 of 0 images"),
        )
    ]
    text = summary(replace(predicted, quality=figures), {})
    assert "  recall of cat   %  /      /\n" in text and "  val: 3 images of the val split\n" in text
    assert text.count("  majority class: right, always naming cat\n") == 1 and "recall of cat: " not in text

"""Speed-ups over one device, of runs and of published rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from src.errors import UserError
from src.report.cli import main
from src.report.compare.build import compare
from src.report.compare.page import page
from src.report.compare.text import markdown
from src.report.compare.varied_charts import scaling_spec
from src.report.load import Loaded
from src.report.record import Communication, Record, Steady, write_record
from src.report.scaling import published_points, scaling, scaling_table


def run(trained: Record, devices: int, batch: int, per: str, rate: float, **changes: str) -> Record:
    case = replace(trained.case, trainer=f"1x{devices}", batch_size=batch, batch_per=per, **changes)
    exchange = None
    if devices > 1:
        exchange = Communication(exposed_s={"min": 1e-4, "mean": 2e-4, "max": 4e-4}, share=0.05)
    return replace(trained, case=case, ranks=devices, steady=Steady(p_train=rate), communication=exchange)


def test_weak_scaling_keeps_the_batch_per_device_and_strong_scaling_the_global_batch(trained: Record) -> None:
    runs = [
        ("four", run(trained, 4, 512, "device", 36_000.0)),
        ("one", run(trained, 1, 512, "device", 10_000.0)),
        ("large", run(trained, 1, 2048, "device", 16_000.0)),
        ("two", run(trained, 2, 512, "device", 19_000.0)),
    ]
    points = scaling(runs, published=False)
    rows = [(p.source, p.kind, p.batch, p.speed_up, p.efficiency) for p in points]
    assert rows == [
        ("two", "weak", "512 per device", 1.9, 0.95),
        ("four", "weak", "512 per device", 3.6, 0.9),
        ("four", "strong", "2048 global", 2.25, 0.5625),
    ]
    assert points[0].exposed_s == 2e-4 and points[0].share == 0.05


def test_a_global_batch_is_that_of_all_devices(trained: Record) -> None:
    runs = [("one", run(trained, 1, 4096, "global", 100.0)), ("two", run(trained, 2, 4096, "global", 150.0))]
    (point,) = scaling(runs, published=False)
    assert (point.kind, point.batch, point.efficiency) == ("strong", "4096 global", 0.75)


def test_runs_of_different_engines_are_not_compared(trained: Record) -> None:
    one, two = run(trained, 1, 512, "device", 1.0), run(trained, 2, 512, "device", 2.0)
    other = replace(two, config={"model": {"task": {"engine": "torchrec"}}})
    assert [point.source for point in scaling([("one", one), ("two", two), ("other", other)], False)] == ["two"]


def test_runs_of_different_networks_are_not_compared(trained: Record) -> None:
    def network(record: Record, **options: str) -> Record:
        return replace(record, config={"model": {"task": {"network": options}}})

    one, two = run(trained, 1, 512, "device", 1.0), run(trained, 2, 512, "device", 2.0)
    runs = [("one", network(one, logdet="exact")), ("same", network(two, logdet="exact", padding="prior"))]
    runs.append(("other", network(two, logdet="published", padding="prior")))
    assert [point.source for point in scaling(runs, False)] == ["same"]  # an option that one does not know may differ


def test_the_run_on_one_device_is_the_fastest_of_the_same_commit_and_machine(trained: Record) -> None:
    def of(record: Record, commit: str, machine: str | None = None) -> Record:
        return replace(record, environment={"git": {"commit": commit}, "machine": machine})

    def only(*runs: Record) -> tuple[float, str]:
        (point,) = scaling([("x", record) for record in runs], False)
        return point.speed_up, point.source

    one, two = run(trained, 1, 8, "device", 100.0), run(trained, 2, 8, "device", 150.0)
    profiled, faster = run(trained, 1, 8, "device", 50.0), run(trained, 1, 8, "device", 200.0)
    here = of(two, "b", "m")
    elsewhere, older = of(faster, "b", "n"), of(faster, "a", "m")
    assert only(of(profiled, "b", "m"), of(one, "b", "m"), here, elsewhere, older) == (1.5, "x")
    assert only(here, elsewhere, older) == (0.75, "x; one device: of another machine")
    words = "x; one device: of commit a, of another machine"
    assert only(here, of(profiled, "a", "n"), of(one, "a", "n")) == (1.5, words)
    assert only(of(one, "b"), of(two, "b")) == (1.5, "x")  # records of before do not know their machine


@pytest.mark.parametrize("change", [{"precision": "tf32"}, {"hardware": "a100_40g"}, {"datamodule": "qm9"}])
def test_only_the_same_case_is_compared(change: dict[str, str], trained: Record) -> None:
    runs = [("one", run(trained, 1, 512, "device", 1.0)), ("two", run(trained, 2, 512, "device", 2.0, **change))]
    with pytest.raises(UserError, match="no run on several devices has a counterpart on one"):
        scaling(runs)


def test_published_efficiencies_are_of_corrected_rates() -> None:
    """FlagPerf's DLRM rows count a sample 2 x devices times: eight devices are slower than one."""
    points = {(p.config, p.kind, p.samples): p for p in published_points("dlrm")}
    eight = points["A100-40G 1x8", "strong", 65536]
    assert eight.speed_up == pytest.approx(0.35, abs=0.005)
    assert all(p.is_published and p.efficiency < 1 for p in points.values())


def test_published_rows_with_different_notes_are_compared() -> None:
    """FlagPerf's DistilBERT rows of batch 96 have different notes on 1, 8 and 16 devices."""
    points = {(p.config, p.samples): p for p in published_points("distilbert")}
    assert sorted(points) == [("A100-40G 1x8", 96), ("A100-40G 2x8", 96)]
    eight = points["A100-40G 1x8", 96]
    one = 287.9 * 67349 / 67392  # p_core of 1x1, corrected
    assert eight.rate == pytest.approx(2181.0 * 67349 / 67584) and eight.speed_up == pytest.approx(eight.rate / one)


def test_published_rows_of_different_models_are_not_compared() -> None:
    """NVIDIA's DLRM rows on several GPUs have the large tables (FL3), those on one the small ones (FL15)."""
    assert [p.config for p in published_points("dlrm") if "NVIDIA" in p.source] == []


def test_the_command_writes_table_and_picture(
    tmp_path: Path, trained: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for devices in (1, 2):
        files.append(str(tmp_path / f"run{devices}.json"))
        write_record(run(trained, devices, 512, "device", 10_000.0 * devices), Path(files[-1]))
    assert main(["scaling", *files, "--picture", str(tmp_path / "scaling.png")]) == 0
    printed = capsys.readouterr().out
    assert "| H200 1x2 " in printed and "100.0%" in printed and "0.2" in printed and "NVIDIA" in printed
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert main(["scaling", *files, "--no-published", "--output", str(tmp_path / "t.md")]) == 0
    assert "NVIDIA" not in (tmp_path / "t.md").read_text()
    assert main(["scaling", files[0]]) == 2
    assert capsys.readouterr().err.startswith("error: no run on several devices")


def test_a_speed_up_that_cannot_be_is_marked_with_its_likely_cause(trained: Record) -> None:
    runs = [("one", run(trained, 1, 512, "device", 1_000.0)), ("two", run(trained, 2, 512, "device", 17_000.0))]
    other = [(name, replace(record, environment={"machine": name})) for name, record in runs]
    causes = "(one) was slowed by other work", "(one) is not comparable: of another machine"
    for pair, cause in zip((runs, other), causes, strict=True):
        (point,) = scaling(pair, published=False)
        table = scaling_table([point])
        assert point.efficiency == 8.5 and "| 850.0% (!) |" in table.replace("  ", "")
        assert "(!) H200 1x2, amp, batch 512 per device: a speed-up of 17.00 on 2 devices is more than linear." in table
        assert cause in table
        comparison = compare(Loaded(pair, [Path()] * 2, []), published=False)
        assert any(cause in text for text in comparison.warnings)
        assert cause in page(comparison) and cause in markdown(comparison)
        spec = scaling_spec(comparison, "weak")
        assert spec is not None and spec["layer"][-1]["mark"]["shape"] == "cross"
        assert [row["efficiency"] for row in spec["layer"][-1]["data"]["values"]] == [850.0]


def test_a_speed_up_that_may_be_is_not_marked(trained: Record) -> None:
    runs = [("one", run(trained, 1, 512, "device", 1_000.0)), ("two", run(trained, 2, 512, "device", 2_150.0))]
    (point,) = scaling(runs, published=False)
    assert "(!)" not in scaling_table([point]) and not point.is_suspicious
    spec = scaling_spec(compare(Loaded(runs, [Path()] * 2, []), published=False), "weak")
    assert spec is not None and len(spec["layer"]) == 1


def test_no_published_speed_up_is_suspicious() -> None:
    assert [p for model in ("dlrm", "distilbert", "moflow") for p in published_points(model) if p.is_suspicious] == []

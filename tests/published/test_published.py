"""The published rows: the data is valid, has the printed figures, and its corrections are consistent."""

import re
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from src.errors import UserError
from src.published import PublishedRow, nearest_rows, rows
from src.published.tables import read
from tests.support import ROOT

MAX_BS = ROOT / "conf" / "fix_hp" / "max_bs.yaml"
CRITEO_TRAIN_ROWS = 4_195_197_692


def one(model: str, kind: str = "train", **values: object) -> PublishedRow:
    """Returns the only row of the model with these values; `source` need only be a part of the row's source."""
    part = str(values.pop("source", ""))
    matches = [
        row
        for row in rows(model, kind)
        if part in row.source and all(getattr(row, key) == value for key, value in values.items())
    ]
    assert len(matches) == 1, f"{len(matches)} rows of {model} with {values}"
    return matches[0]


@pytest.mark.parametrize(
    ("model", "published"),
    [("moflow", 26), ("distilbert", 4), ("dlrm", 108), ("dlrm_dcnv2", 2), ("se3_transformer", 75), ("mobilenet_v1", 4)],
)
def test_every_model_has_all_its_published_rows(model: str, published: int) -> None:
    assert len([row for row in rows(model) if not row.measured]) == published


def test_measured_references_are_labelled_and_come_last() -> None:
    measured = [row.measured for row in rows()]
    assert measured == sorted(measured)
    assert all(row.measured == row.source.startswith("measured reference") for row in rows())
    assert all(row.measured == (row.hardware in ("h100_80g", "h200")) for row in rows() if "MLPerf" not in row.source)


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        (
            {"model": "moflow", "source": "FlagPerf", "trainer": "1x8", "fix_hp": "/"},
            {"batch_size": 512, "e2e_time_s": 3220, "p_whole": 27023, "p_train": 27519, "p_core": 30789}
            | {"final_metric": 88.45, "mem_used_gib": 11.8, "mem_total_gib": 40.0},
        ),
        (
            {"model": "moflow", "source": "FlagPerf", "trainer": "2x8"},
            {"fix_hp": "bs=3072,lr=0.0005", "batch_size": 3072, "e2e_time_s": None, "p_whole": 47655, "p_train": 63957}
            | {"p_core": 90228, "final_metric": None, "mem_used_gib": 34.5},
        ),
        (
            {"model": "moflow", "source": "training performance", "trainer": "1x8", "batch_size": 2048}
            | {"precision": "amp"},
            {"throughput": 42078.31, "hardware": "a100_80g"},
        ),
        (
            {"model": "moflow", "kind": "predict", "batch_size": 2048, "precision": "tf32", "measured": False},
            {"throughput": 11174.75, "latency_s.mean": 0.183, "latency_s.p99": 0.187},
        ),
        (
            {"model": "moflow", "source": "training accuracy", "trainer": "1x1", "precision": "tf32"},
            {"final_metric": 89.63, "train_time_s": 5 * 3600 + 8 * 60},
        ),
        (
            {"model": "distilbert", "trainer": "1x1", "measured": False},
            {"fix_hp": "bs=96,lr=0.00015", "batch_size": 96, "e2e_time_s": 720.8, "p_whole": 283.7, "p_train": 286.1}
            | {"p_core": 287.9, "final_metric": 0.912, "mem_used_gib": 32.7, "precision": "fp32"},
        ),
        (
            {"model": "distilbert", "trainer": "1x8", "fix_hp": "/"},
            {"batch_size": 32, "e2e_time_s": 361, "p_whole": 1764.0, "p_core": 1942.6, "mem_used_gib": 13.9},
        ),
        (
            {"model": "dlrm", "source": "FlagPerf", "trainer": "2x8", "fix_hp": "bs=2752512"},
            {"p_whole": 71511910, "p_train": 72766954, "p_core": 80541553, "mem_used_gib": 23.9, "e2e_time_s": None},
        ),
        (
            {"model": "dlrm", "source": "FlagPerf", "trainer": "1x1", "fix_hp": "/"},
            {"e2e_time_s": 1152, "p_core": 8493416, "final_metric": 0.8026, "mem_used_gib": 20.5, "batch_size": 65536},
        ),
        (
            {"model": "dlrm", "source": "training performance", "trainer": "1x16", "precision": "amp"},
            {"throughput": 10_800_000, "hardware": "v100_32g", "batch_size": 65536},
        ),
        (
            {"model": "dlrm", "source": "training accuracy", "hardware": "v100_32g", "trainer": "1x1"}
            | {"precision": "fp32"},
            {"final_metric": 0.802784, "train_time_s": 7090},
        ),
        (
            {"model": "dlrm", "kind": "predict", "source": "A100 80GB), AMP, eager", "batch_size": 4096},
            {"throughput": 8_203_285, "latency_s.mean": 0.00050, "latency_s.p99": None},
        ),
        (
            {"model": "se3_transformer", "source": "09/2021, training performance", "hardware": "v100_16g"}
            | {"trainer": "1x8", "batch_size": 120, "precision": "amp"},
            {"throughput": 9410},
        ),
        (
            {"model": "se3_transformer", "source": "09/2021, training accuracy", "hardware": "a100_80g"}
            | {"trainer": "1x1", "precision": "tf32"},
            {"final_metric": 0.03456, "train_time_s": 83 * 60, "batch_size": 240},
        ),
        (
            {"model": "se3_transformer", "kind": "predict", "source": "09/2021", "hardware": "v100_16g"}
            | {"batch_size": 1600, "precision": "fp32"},
            {"throughput": 3390, "latency_s.mean": 0.47586, "latency_s.p90": 0.47382, "latency_s.p99": 0.89118},
        ),
        (
            {"model": "se3_transformer", "source": "02/2023, training performance", "hardware": "a100_80g"}
            | {"trainer": "1x1", "batch_size": 240, "precision": "amp"},
            {"throughput": 3230},
        ),
        ({"model": "mobilenet_v1", "source": "OtherFrame"}, {"throughput": 197.514, "hardware": "v100_32g"}),
        ({"model": "mobilenet_v1", "source": "770", "trainer": "1x8"}, {"throughput": 6675.576, "batch_size": 128}),
        (
            {"model": "moflow", "source": "measured", "batch_size": 3584, "precision": "amp"},
            {"throughput": 12796.6, "mem_used_gib": 48.4, "hardware": "h100_80g"},
        ),
    ],
)
def test_rows_have_the_printed_figures(row: dict[str, Any], figures: dict[str, float | str | None]) -> None:
    published = one(**row)
    actual = {key: getattr(published, key) if hasattr(published, key) else None for key in figures}
    actual |= {key: published.figure(key) for key in figures if key == "final_metric" or "." in key}
    assert actual == figures


@pytest.mark.parametrize(
    ("trainer", "epoch_s", "e2e_time_s"), [("1x1", 1150, 1152), ("1x8", 3472, 3485), ("2x8", 4765, 4779)]
)
def test_corrected_dlrm_rates_fit_the_published_time(trainer: str, epoch_s: int, e2e_time_s: int) -> None:
    row = one("dlrm", source="FlagPerf", trainer=trainer, fix_hp="/")
    corrected = row.best("p_whole")
    assert corrected is not None and row.p_whole is not None
    assert CRITEO_TRAIN_ROWS / corrected == pytest.approx(epoch_s, abs=1)
    assert 0 < e2e_time_s - CRITEO_TRAIN_ROWS / corrected < 20  # start-up
    assert row.p_whole == corrected * 2 * row.world_size


def test_every_flagperf_dlrm_rate_is_divided_by_twice_the_world_size() -> None:
    factors = {"1x1": 2, "1x8": 16, "2x8": 32}
    entries = [row for row in rows("dlrm", "train") if "FlagPerf" in row.source]
    assert len(entries) == 6
    for row in entries:
        for name in ("p_whole", "p_train", "p_core"):
            assert row.corrected[name].value == pytest.approx((row.figure(name) or 0) / factors[row.trainer])
            assert row.corrected[name].why


def test_corrected_moflow_rates_count_the_full_batches_only() -> None:
    entries = [row for row in rows("moflow", "train") if "FlagPerf" in row.source]
    assert len(entries) == 4
    for row in entries:
        per_rank = ceil(224_568 / row.world_size)  # the sampler pads every rank to the same length
        assert row.batch_size is not None
        trained = per_rank // row.batch_size * row.batch_size * row.world_size
        assert row.best("p_core") == pytest.approx((row.p_core or 0) * trained / 224_568)
        assert str(trained) in row.corrected["p_core"].why
    assert one("moflow", source="FlagPerf", trainer="2x8").best("p_whole") == pytest.approx(41_721.7, abs=0.1)


def test_corrected_distilbert_rows_count_each_sentence_once_and_are_tf32() -> None:
    entries = [row for row in rows("distilbert") if not row.measured]
    assert entries
    for row in entries:
        assert row.batch_size is not None
        steps = ceil(ceil(67_349 / row.world_size) / row.batch_size)
        counted = steps * row.batch_size * row.world_size
        assert row.best("p_train") == pytest.approx((row.p_train or 0) * 67_349 / counted)
        assert (row.precision, row.true_precision) == ("fp32", "tf32")
    accuracy = one("distilbert", trainer="2x8").best("final_metric")
    assert accuracy == pytest.approx(0.9027, abs=1e-4)


def test_corrected_se3_inference_rates_are_batch_over_mean_latency() -> None:
    row = one("se3_transformer", "predict", source="09/2021", hardware="a100_80g", batch_size=1600, precision="amp")
    assert row.throughput == 11_600
    assert row.best("throughput") == pytest.approx(1600 / 0.14094)


def test_nearest_rows_are_in_the_order_of_similarity() -> None:
    case = {"model": "moflow", "trainer": "1x8", "precision": "amp", "batch_size": 512, "batch_per": "device"}
    for hardware in ("a100_40g", "a100_80g"):
        nearest = nearest_rows({**case, "hardware": hardware}, "train")[0]
        assert (nearest.trainer, nearest.batch_size, nearest.hardware) == ("1x8", 512, hardware)
    entries = nearest_rows(case, "train")
    tiers = [
        0 if (r.trainer, r.batch_size, r.precision) == ("1x8", 512, "amp") else 1 if r.trainer == "1x8" else 2
        for r in entries
    ]
    assert tiers == sorted(tiers) and set(tiers) == {0, 1, 2}
    assert sorted(map(id, entries)) == sorted(map(id, rows("moflow", "train")))
    assert {r.kind for r in nearest_rows(case, "predict")} == {"predict"}
    same_over_all_devices = nearest_rows({**case, "batch_size": 4096, "batch_per": "global"}, "train")
    assert same_over_all_devices[0].batch_size == 512


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_a_row_with_a_wrong_precision_matches_both_precisions(precision: str) -> None:
    case = {"model": "distilbert", "trainer": "1x1", "batch_size": 96, "batch_per": "device", "precision": precision}
    assert nearest_rows(case, "train")[0].p_whole == 283.7


VALID = """
shared: {model: dlrm, unit: samples, batch_per: global, kind: train, precision: amp, hardware: h200}
tables:
  - source: a page
    columns: [trainer, batch_size, p_core]
    rows:
      - [1x1, 64, 10.5]
      - [1x8, /, /]
    corrections: [{where: {trainer: 1x1}, figures: [p_core], times: 1/2, why: counted twice}]
"""


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(VALID)
    first, second = read(tmp_path / "good.yaml")
    assert (first.p_core, first.best("p_core")) == (10.5, 5.25)
    assert (second.batch_size, second.p_core, second.best("p_core"), second.corrected) == (None, None, None, {})
    with pytest.raises(ValueError, match="no figure 'p_corr'"):
        first.figure("p_corr")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("64, 10.5", "64", "bad.yaml, table 1 row 1: 2 values for 3 columns"),
        ("[1x8, /, /]", "[1x8, /, fast]", "bad.yaml, table 1 row 2: p_core is 'fast'"),
        ("[1x8, /, /]", "[1x8, 6.4, /]", "bad.yaml, table 1 row 2: batch_size is 6.4"),
        ("[1x8, /, /]", "[8x, /, /]", "bad.yaml, table 1 row 2: trainer is '8x'"),
        ("precision: amp, ", "", "bad.yaml, table 1 row 1: 'precision' is missing"),
        ("precision: amp", "precision: fp64", "bad.yaml, table 1 row 1: precision is 'fp64'"),
        ("p_core]\n", "pcore]\n", "bad.yaml, table 1 row 1: unknown column 'pcore'"),
        ("shared: {", "shared: {measured: true, ", "bad.yaml, table 1 row 1: 'command' is missing"),
        ("source:", "sauce:", "bad.yaml, table 1: unknown key 'sauce'"),
        ("{trainer: 1x1}", "{trainer: 2x8}", "bad.yaml, table 1: correction 1 applies to no row"),
        (", why: counted twice", "", "bad.yaml, table 1 row 1: 'why' is missing"),
        ("times: 1/2, ", "", "bad.yaml, table 1 row 1: a correction has either `times` or `value`"),
        ("rows:", "rows: [", "bad.yaml: not yaml"),
        (
            "tables:",
            "urls: {a: http://x.org}\ntables:",
            "bad.yaml, table 1 row 1: url is 'http://x.org'; must begin with",
        ),
    ],
)
def test_a_mistake_names_file_table_and_row(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in VALID
    (tmp_path / "bad.yaml").write_text(VALID.replace(old, new, 1))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read(tmp_path / "bad.yaml")
    assert "\n" not in str(caught.value)


def published_hyper_parameters() -> dict[tuple[str, str], dict[str, float]]:
    """Returns batch_size and lr from the printed fix_hp text of every row that has one, by (model, trainer)."""
    parameters = {}
    for row in rows():
        if row.fix_hp != "/":
            printed = dict(part.split("=") for part in row.fix_hp.split(","))
            assert row.batch_size == int(printed["bs"])
            names = {"bs": "batch_size", "lr": "lr"}
            parameters[row.model, row.trainer] = {names[key]: float(value) for key, value in printed.items()}
    return parameters


def test_max_bs_holds_the_published_rows_and_no_others() -> None:
    table = OmegaConf.to_container(OmegaConf.load(MAX_BS).fix_hp.table)
    assert isinstance(table, dict)
    configured = {(model, trainer): row for model, cases in table.items() for trainer, row in cases.items()}
    assert configured == published_hyper_parameters()
    assert len(configured) == 9


@pytest.mark.parametrize(
    ("model", "trainer", "batch_size", "lr"),
    [("dlrm", "2x8", 2752512, 24), ("moflow", "1x8", 3072, 0.003), ("distilbert", "2x8", 96, 7.0)],
)
def test_max_bs_sets_batch_and_lr_and_keeps_the_lr_of_the_case(
    model: str, trainer: str, batch_size: int, lr: float
) -> None:
    primary = {
        "model": {
            "name": model,
            "hp": {"default": {"lr": 24}, "cases": {"2x8": {"lr": 7.0}} if model == "distilbert" else {}},
        },
        "trainer": {"name": trainer},
    }
    composed = OmegaConf.merge(primary, OmegaConf.load(MAX_BS))
    assert OmegaConf.to_container(composed.hp, resolve=True) == {"batch_size": batch_size, "accumulate": 1, "lr": lr}


def test_publications_have_the_address_of_their_source() -> None:
    assert {row.source for row in rows() if not row.measured and not row.url} == set()
    assert "FlagPerf/blob/main/training/nvidia/moflow-pytorch" in one("moflow", source="FlagPerf", trainer="2x8").url

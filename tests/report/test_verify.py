"""Forged figures are found: by the times of steps, by what other fields imply, or by the digest of the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.errors import UserError
from src.measure.clock import StepTimes
from src.measure.rates import raw_times, steady_rates, whole_rates
from src.measure.raw_times import packed, unpacked
from src.report.cli import main
from src.report.docs import write_docs
from src.report.record import from_figures, read_record, write_record
from src.report.verify import DIGESTS, verify, verify_file
from tests.support import ROOT

RESULTS = ROOT / "docs" / "results"
TRAINED, SEVERAL, TOKENS = "moflow_train_512_amp", "dlrm_weak_65536_x2", "distilbert_packed_96_bf16"
PREDICTED, LOADED, METRIC = "dlrm_predict_amp_graph_off_1024", "se3_transformer_predict_400_amp", "mobilenet_v1_cifar10"
BESIDE = "beside/moflow_train_512_amp"

# File, key, and factor or value. A figure alone is changed: the others of its file tell.
FORGERIES: list[tuple[str, str, Any]] = [
    (TRAINED, "steady.p_train", 1.5), (TRAINED, "steady.p_core", 0.5), (TRAINED, "p_whole", 1.5),
    (TRAINED, "p_train", 1.1), (TRAINED, "p_core", 1.02), (TRAINED, "steady.step_time_s.p50", 0.5),
    (TRAINED, "steady.step_time_s.p99", 0.5), (TRAINED, "steady.step_time_s.p90", 2.0), (TRAINED, "samples", 2),
    (TRAINED, "phases_s.compute", 0.8), (TRAINED, "phases_s.wall", 0.8), (TRAINED, "e2e_time_s", 0.9),
    (TRAINED, "utilisation.of_peak_flops", 1.5), (TRAINED, "utilisation.of_peak_bandwidth", 1.2),
    (TRAINED, "utilisation.peak_flops_per_s", 0.5), (TRAINED, "energy.samples_per_joule", 1.3),
    (TRAINED, "energy.joules", 0.7), (TRAINED, "mem.peak_allocated_gib", 3.0), (TRAINED, "ranks", 2),
    (TRAINED, "case.batch_size", 2), (SEVERAL, "p_whole", 0.9), (SEVERAL, "rates_over_ranks.p_core.mean", 1.001),
    (SEVERAL, "communication.share", 0.5), (SEVERAL, "steady.p_train", 0.8), (TOKENS, "tokens.real_per_s", 1.1),
    (TOKENS, "tokens.padding_share", 1.5), (METRIC, "final_metric.value", 1.01), (PREDICTED, "throughput", 1.2),
    (PREDICTED, "latency_s.mean", 0.8), (PREDICTED, "latency_s.p95", 2.0), (LOADED, "with_loading.throughput", 1.5),
    (BESIDE, "sides.1.ours_over_it.median", 2), (BESIDE, "sides.0.throughput", 1.5),
    (BESIDE, "sides.1.throughputs.0", 0.2),
]  # fmt: skip


def changed(source: Path, target: Path, key: str, factor: float) -> Path:
    """Writes a copy of a JSON file with a number multiplied."""
    content = json.loads(source.read_text(encoding="utf-8"))
    part: Any = content
    *parents, last = [int(name) if name.isdecimal() else name for name in key.split(".")]
    for name in parents:
        part = part[name]
    assert part[last]
    part[last] *= factor
    target.write_text(json.dumps(content), encoding="utf-8")
    return target


def kept(name: str) -> Path:
    return RESULTS / f"{name if '/' in name else f'records/{name}'}.json"


@pytest.mark.parametrize(("name", "key", "factor"), FORGERIES)
def test_a_forged_figure_contradicts_the_others(name: str, key: str, factor: float, tmp_path: Path) -> None:
    assert verify_file(kept(name)).wrong == []
    assert verify_file(changed(kept(name), tmp_path / "forged.json", key, factor)).wrong


def test_the_first_ranks_seconds_may_differ_from_the_mean_over_ranks(tmp_path: Path) -> None:
    """By as much as the ranks' rates do, and no more."""
    record = json.loads(kept("dlrm_dcnv2_multihot_torchrec_65536_x2").read_text(encoding="utf-8"))
    over, phases = record["rates_over_ranks"]["p_core"], record["phases_s"]
    assert over["max"] > 1.01 * over["min"]
    assert verify_file(kept("dlrm_dcnv2_multihot_torchrec_65536_x2")).wrong == []
    phases["compute"] += 0.05
    phases["other"] -= 0.05
    (tmp_path / "forged.json").write_text(json.dumps(record), encoding="utf-8")
    assert verify_file(tmp_path / "forged.json").wrong


def folder_of(tmp_path: Path, *names: str) -> Path:
    """Returns a folder of kept results, sealed."""
    for name in names:
        (tmp_path / "records").mkdir(exist_ok=True)
        shutil.copy(kept(name), tmp_path / "records")
    assert main(["verify", str(tmp_path), "--seal"]) == 0
    return tmp_path


def test_a_change_that_contradicts_nothing_is_found_by_the_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder_of(tmp_path, TRAINED) / "records" / f"{TRAINED}.json"
    assert main(["verify", str(tmp_path)]) == 0
    assert ", 0 files with wrong figures\nnot checked in " in capsys.readouterr().out
    changed(file, file, "mem.free_gib", 0.9)
    assert verify_file(file).wrong == []
    (verified,) = verify([tmp_path])
    assert verified.wrong == [f"it is not the file that {tmp_path / DIGESTS} lists"]
    assert main(["verify", str(tmp_path), "--seal"]) == 1  # a line that is there is not replaced
    (tmp_path / DIGESTS).write_text("")
    assert verify([tmp_path])[0].wrong == [
        f"{tmp_path / DIGESTS} does not list it: python report.py verify {tmp_path} --seal"
    ]


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_the_operations_of_a_sample_are_those_of_the_other_records(factor: float, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in "abc"]
    for file in files:
        shutil.copy(kept(TRAINED), file)
    assert not any(verified.wrong for verified in verify([tmp_path]))
    changed(files[1], files[1], "utilisation.flops_per_s", factor)
    wrong = [[what for what in verified.wrong if "of its like" in what] for verified in verify([tmp_path])]
    assert wrong == [[], [f"utilisation.flops_per_s is of {factor:.3f} times the operations of its like"], []]


def test_pages_are_not_made_of_forged_figures(tmp_path: Path) -> None:
    file = folder_of(tmp_path, TRAINED) / "records" / f"{TRAINED}.json"
    changed(file, file, "steady.p_train", 1.5)
    with pytest.raises(UserError, match=rf"{TRAINED}\.json: steady\.p_train and steady\.p_core are not in order"):
        write_docs(tmp_path)
    assert not (tmp_path / "full").exists()


def steps_of(seed: int, count: int) -> StepTimes:
    steps, draw = StepTimes(), np.random.default_rng(seed)
    for seconds in 0.004 + draw.gamma(2.0, 1e-4, count):
        steps.iteration_s.append(seconds)
        steps.compute_s.append(0.9 * seconds)
        steps.samples.append(64)
    return steps


def test_times_are_packed_to_a_tenth_of_a_microsecond_in_few_bytes() -> None:
    seconds = steps_of(0, 1000).iteration_s
    assert np.abs(unpacked(packed(seconds)) - np.sort(seconds)).max() <= 0.5e-7
    assert len(packed(seconds)) < 2 * len(seconds)
    for text in ("", "x", "é", packed(seconds)[:-8], packed([-1.0])):
        with pytest.raises(ValueError, match="no packed times"):
            unpacked(text)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """The record of a run with the times of its steps."""
    steps, spent = steps_of(1, 300), (2.0, 0.25)
    case = json.loads(kept(TRAINED).read_text())["case"]
    figures = {"kind": "train", "case": case, "status": "done", "unit": "molecules", "samples": 300 * 64}
    rates = whole_rates(steps, *spent) | {"steady": steady_rates(steps, 20), "times": raw_times(steps, 20, *spent)}
    write_record(from_figures(figures | rates), tmp_path / "result.json")
    return tmp_path / "result.json"


@pytest.mark.parametrize(
    "key",
    ["p_whole", "p_train", "p_core", "steady.p_train", "steady.p_core", "samples",
     *(f"steady.step_time_s.{name}" for name in ("p50", "p90", "p95", "p99"))],
)  # fmt: skip
def test_figures_are_computed_again_from_the_times_of_steps(key: str, measured: Path) -> None:
    verified = verify_file(measured)
    assert verified.wrong == [] and verified.checked > 10
    before = read_record(measured)
    forged = changed(measured, measured, key, 1.001 if key != "samples" else 2)
    assert [what for what in verify_file(forged).wrong if "digest" not in what]
    write_record(before, measured)
    assert verify_file(measured).wrong == []


@pytest.mark.parametrize(
    "change",
    [lambda record: record["times"].update(iteration="x"), lambda record: record["history"].append({"step": 3})],
)
def test_a_changed_record_has_another_digest(change: Callable[[Any], None], measured: Path) -> None:
    content = json.loads(measured.read_text())
    change(content)
    measured.write_text(json.dumps(content))
    assert "its digest is of other content" in verify_file(measured).wrong


def test_a_kept_comparison_lacks_the_seconds_of_its_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(kept(BESIDE))]) == 0
    assert "not checked in 1 of 1 files: the turns' rates, computed again" in capsys.readouterr().out

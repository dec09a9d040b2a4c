"""A CPU's peaks are measured once a machine, and kept."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from src.measure import cpu_peaks
from src.measure.cpu_peaks import cache_file, kept_peaks
from src.measure.environment import cpu_name
from src.measure.roofline import peaks_of
from src.system.workers import cpu_count


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the peaks in an empty cache folder; measurements are short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_peaks, "MOST_S", 0.01)
    monkeypatch.setattr(cpu_peaks.measured, "__defaults__", (128, 4))
    threads = torch.get_num_threads()
    yield cache_file()
    torch.set_num_threads(threads)


def test_they_are_measured_once(file: Path) -> None:
    first = kept_peaks("fp32")
    assert file == Path(os.environ["XDG_CACHE_HOME"]) / "reprise" / "cpu_peaks.json"
    text = file.read_text()
    assert [kept_peaks("fp32") for _ in range(5)] == [first] * 5
    assert file.read_text() == text
    assert [*file.parent.iterdir()] == [file]


def test_without_a_cache_home_they_are_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_file() == Path.home() / ".cache" / "reprise" / "cpu_peaks.json"


def test_threads_and_dtypes_have_their_own(file: Path) -> None:
    for threads, dtype in ((1, "fp32"), (2, "fp32"), (1, "bf16"), (1, "fp16")):
        torch.set_num_threads(threads)
        kept_peaks(dtype)
    keys = [*json.loads(file.read_text())]
    assert len(keys) == 4
    assert all(torch.__version__ in key and cpu_name() in key for key in keys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 3}', '{"KEY": [0, 1]}', '{"KEY": ["x", 1]}', '{"KEY": [1]}'])
def test_a_damaged_file_is_measured_anew(file: Path, text: str) -> None:
    kept_peaks("fp32")
    (key,) = json.loads(file.read_text())
    file.write_text(text.replace("KEY", key))
    peaks = kept_peaks("fp32")
    assert min(peaks) > 1e6
    assert json.loads(file.read_text()) == {key: [*peaks]}


def test_a_peak_that_a_run_exceeds_is_measured_again_and_the_higher_kept(file: Path) -> None:
    kept_peaks("fp32")
    (key,) = json.loads(file.read_text())
    file.write_text(json.dumps({key: [5.0, 1e30], "another": [1.0, 2.0]}))
    assert kept_peaks("fp32", reached=(4.0, 1e29)) == (5.0, 1e30)
    flops, nbytes = kept_peaks("fp32", reached=(6.0, 1.0))
    assert flops > 1e6 and nbytes == 1e30
    assert json.loads(file.read_text()) == {key: [flops, nbytes], "another": [1.0, 2.0]}


def test_a_folder_that_cannot_be_written_is_no_error(file: Path) -> None:
    file.parent.write_text("in its place")
    assert min(kept_peaks("fp32")) > 1e6


def test_a_rank_is_compared_with_its_share_of_the_cores(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    whole = peaks_of("fp32", {}, None, "cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(cpu_count()))
    assert peaks_of("fp32", {}, None, "cpu") == whole  # one core each
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(4 * cpu_count()))
    shared = peaks_of("fp32", {}, None, "cpu")
    assert shared.flops_per_s == pytest.approx((whole.flops_per_s or 0) / 4)
    assert shared.bytes_per_s == pytest.approx((whole.bytes_per_s or 0) / 4)

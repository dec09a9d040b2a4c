"""A list has each kernel once, with its precisions and with the option that it is for."""

import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from benchmarks import kernel_lists
from benchmarks.kernel_lists import STEPS, Case, cases, listed, slowest_first
from src.config.values import check_training
from tests.support.composing import composed


def test_kernels_of_several_cases_are_listed_once() -> None:
    published, exact = Case([], {"logdet": "published"}), Case([], {"logdet": "exact"})
    norm, atom, row = ({"kernel": name} for name in ("norm", "atom", "row"))
    runs = [(published, "amp", [norm, atom, norm]), (published, "tf32", [atom, norm]), (exact, "amp", [norm, row])]
    assert listed(runs) == [
        norm | {"precisions": ["amp"]},
        norm | {"precisions": ["tf32"], "when": {"logdet": "published"}},
        atom | {"precisions": ["amp", "tf32"], "when": {"logdet": "published"}},
        row | {"precisions": ["amp"], "when": {"logdet": "exact"}},
    ]


def test_kernels_that_take_longest_to_compile_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(entry: dict[str, Any]) -> None:
        end_s = time.process_time() + entry["seconds"]
        while time.process_time() < end_s:
            pass
        time.sleep(entry.get("idle", 0))  # which is no work
        assert entry["kernel"] != "broken"

    monkeypatch.setattr(kernel_lists, "import_kernels", lambda entries: None)
    monkeypatch.setattr(kernel_lists, "compile_kernel", compiled)
    quick = {"kernel": "quick", "seconds": 0, "idle": 0.5}
    entries = [quick, {"kernel": "slow", "seconds": 0.4}, {"kernel": "middle", "seconds": 0.2}]
    assert [entry["kernel"] for entry in slowest_first(entries)] == ["slow", "middle", "quick"]
    with pytest.raises(RuntimeError, match=r"compiled: .*broken"):
        slowest_first([*entries, {"kernel": "broken", "seconds": 0}])


@pytest.mark.parametrize("model", ["moflow", "mobilenet_v1", "se3_transformer", "distilbert", "dlrm"])
def test_cases_are_commands_that_the_configs_take(model: str, tmp_path: Path) -> None:
    for name in ("mols.xyz", "zinc.smiles"):
        (tmp_path / name).touch()
    for case in cases(tmp_path)[model]:
        for precision in case.precisions:
            chosen = f"model={model}", *case.overrides, f"precision={precision}"
            config = composed("train", *chosen, *STEPS, "logger=none", "output_dir=run")
            assert check_training(config)
            for key, value in case.when.items():
                assert OmegaConf.select(config, key) == value

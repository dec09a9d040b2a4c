"""A list has each kernel once, with its precisions and with the option that it is for."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks.kernel_lists import STEPS, Case, cases, listed
from src.config.values import check_training
from tests.support.composing import composed


def test_kernels_of_several_cases_are_listed_once() -> None:
    published, exact = Case([], {"logdet": "published"}), Case([], {"logdet": "exact"})
    norm, atom, row = ({"kernel": name} for name in ("norm", "atom", "row"))
    runs = [(published, "amp", [norm, atom, norm]), (published, "tf32", [atom]), (exact, "amp", [norm, row])]
    assert listed(runs) == [
        norm | {"precisions": ["amp"]},
        atom | {"precisions": ["amp", "tf32"], "when": {"logdet": "published"}},
        row | {"precisions": ["amp"], "when": {"logdet": "exact"}},
    ]


@pytest.mark.parametrize("model", ["moflow", "mobilenet_v1", "se3_transformer", "distilbert", "dlrm"])
def test_cases_are_commands_that_the_configs_take(model: str, tmp_path: Path) -> None:
    for name in ("mols.xyz", "zinc.smiles"):
        (tmp_path / name).touch()
    for case in cases(tmp_path)[model]:
        config = composed(
            "train", f"model={model}", *case.overrides, "precision=amp", *STEPS, "logger=none", "output_dir=run"
        )
        assert check_training(config)
        for key, value in case.when.items():
            assert OmegaConf.select(config, key) == value

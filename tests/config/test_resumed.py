"""A checkpoint is resumed with the data, the seed and the batch that it was trained with."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from src.config.resumed import check_same_run
from src.config.trained import training_choices
from src.errors import UserError
from tests.support.composing import composed

FILE = Path("last.ckpt")


def choices(*overrides: str, group: str = "smiles_file") -> dict[str, Any]:
    given = [f"datamodule={group}", *(["datamodule.source.file=my.smiles"] if group == "smiles_file" else [])]
    config = composed("train", *given, "hp.batch_size=8", "output_dir=unused", "hardware=cpu", *overrides)
    OmegaConf.resolve(config)
    return training_choices(config)


@pytest.mark.parametrize(
    ("override", "there", "here"),
    [
        ("seed=2", "seed=1", "seed=2"),
        ("hp.batch_size=16", "hp.batch_size=8", "hp.batch_size=16"),
        ("hp.batch_per=global", "hp.batch_per=device", "hp.batch_per=global"),
        ("datamodule.source.file=b.smiles", "datamodule.source.file=my.smiles", "datamodule.source.file=b.smiles"),
        ("datamodule.source.max_atoms=9", "datamodule.source.max_atoms=38", "datamodule.source.max_atoms=9"),
        ("datamodule.data_dir=x", "datamodule.data_dir=smiles_file", "datamodule.data_dir=x"),
    ],
)
def test_a_difference_is_named_with_the_way_out(override: str, there: str, here: str) -> None:
    with pytest.raises(UserError) as raised:
        check_same_run(choices(), choices(override), FILE, "start anew")
    assert str(raised.value) == f"last.ckpt was trained with {there}, this run has {here}; give {there}, or start anew"


def test_another_data_set_is_named_alone() -> None:
    with pytest.raises(UserError, match=r"with datamodule=smiles_file, this run has datamodule=qm9_molecules; give"):
        check_same_run(choices(), choices(group="qm9_molecules"), FILE, "start anew")


@pytest.mark.parametrize(
    "override",
    [
        "data_root=elsewhere",
        "hp.lr=9",
        "precision=bf16",
        "fit.max_epochs=3",
        "+datamodule.source.workers=3",
        "trainer=1x4",
    ],
)
def test_what_does_not_change_the_samples_may_differ(override: str) -> None:
    check_same_run(choices("data_root=/data/here"), choices(override), FILE, "start anew")


def test_older_checkpoints_say_less() -> None:
    check_same_run(None, choices(), FILE, "start anew")
    old = {key: choices("data_root=/data/there")[key] for key in ("group", "datamodule", "precision")}
    check_same_run(old, choices("hp.batch_size=9"), FILE, "start anew")
    with pytest.raises(UserError, match=r"with datamodule\.seed=1, this run has datamodule\.seed=5;"):
        check_same_run(old, choices("seed=5"), FILE, "start anew")

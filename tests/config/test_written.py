"""Names that Hydra's grammar reads as numbers reach the config as they were written."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from src import patches
from src.config import schema
from src.config.settings import CONF
from src.config.versions import BASE
from src.errors import UserError


def hydras(entry: str, *overrides: str) -> DictConfig:
    """Returns the config that Hydra composes."""
    schema.register()
    patches.install(patches.HYDRA)
    with initialize_config_dir(str(CONF), **BASE):
        return compose(entry, list(overrides), return_hydra_config=True)


NAMES = "2024_11_1", "2024_1_11", "1e5", "1.50", "1_2", "2024", "0x10", "0o17", "007", "2024-11-01", "on", "yes", "true"


@pytest.mark.parametrize(
    ("entry", "groups", "keys"),
    [
        (
            "train",
            [],
            ["output_dir", "output_root", "data_root", "ckpt_path", "note", "hydra.sweep.dir"],
        ),
        ("train", ["logger=wandb"], ["logger.wandb.name", "logger.wandb.project"]),
        ("train", ["datamodule=smiles_file"], ["datamodule.source.file", "datamodule.data_dir"]),
        pytest.param(
            "predict", ["model=distilbert"], ["output", "ckpt_path", "model.task.weights"], marks=pytest.mark.slow
        ),
        ("prepare", [], ["data_root"]),
    ],
)
def test_a_text_is_as_it_was_written(entry: str, groups: list[str], keys: list[str]) -> None:
    config = hydras(entry, *groups)
    for name in NAMES:
        overrides = OverridesParser.create().parse_overrides([f"{key}={name}" for key in keys])
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
        assert {key: OmegaConf.select(config, key) for key in keys} == dict.fromkeys(keys, name)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("hp.lr=1e-3", 0.001),
        ("hp.batch_size=1_024", 1024),
        ("model.hp.default.lr=1e-2", 0.01),  # in no schema, and a number before
        ("datamodule.source.limit=1_0", 10),  # null before, of the type int
        ("+fix_hp.row={batch_size:1_0,1_1:1e1}", {"batch_size": 10, 11: 10.0}),
        ("pictures=false", False),
        ("fit.max_time_s=null", None),
    ],
)
def test_a_number_is_a_plain_number(override: str, value: Any) -> None:
    config = hydras("train", "datamodule=smiles_file", override)
    node = OmegaConf.to_container(config)
    for name in override.partition("=")[0].lstrip("+").split("."):
        node = node[name]  # type: ignore[index]
    assert node == value and type(node) is type(value)
    assert all(type(item) is type(value[key]) for key, item in node.items()) if isinstance(node, dict) else True


def test_texts_in_lists_and_dictionaries() -> None:
    config = hydras("train", "datamodule=smiles_file", "datamodule.source={elements:[C,1_0],limit:1_0,file:2_1}")
    source = config.datamodule.source
    assert (source.elements, source.limit, source.file) == (["C", "1_0"], 10, "2_1")
    with pytest.raises(UserError, match=r"source\.elements\.0=true is a truth value .* put it in quotes"):
        hydras("train", "datamodule=smiles_file", "datamodule.source.elements=[true]")
    quoted = hydras("train", "datamodule=smiles_file", "datamodule.source.elements=['true']")
    assert quoted.datamodule.source.elements == ["true"]


def test_the_jobs_of_a_sweep_have_what_was_written() -> None:
    hydras("train")
    arguments = ["data_root=1_2,2_1,1e5", "ckpt_path=0_1", "hp.lr=choice(1e-3,1_0)", "seed=range(1,3)"]
    jobs = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(arguments), None)[0]
    assert len(jobs) == 12
    assert {job[0] for job in jobs} == {"data_root=1_2", "data_root=2_1", "data_root=1e5"}
    assert {job[1] for job in jobs} == {"ckpt_path=0_1"}
    assert {job[2] for job in jobs} == {"hp.lr=1e-3", "hp.lr=1_0"}
    assert hydras("train", *jobs[-1]).hp.lr == 10.0

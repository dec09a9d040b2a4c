"""The helper that composes once is Hydra's `compose`, mistakes included, and its configs are the caller's own."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from src.config import schema
from src.config.settings import CONF
from src.config.versions import BASE
from tests.support.composing import composed


def by_hydra(*overrides: str) -> DictConfig:
    schema.register()
    with initialize_config_dir(str(CONF), **BASE):
        return compose("train", list(overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=moflow", "fit.max_epochs=3"],
        ["model=dlrm", "hp.lr=1", "hp.lr=2e-3", "output_dir=/a/b", "~callbacks.energy", "logger=[csv,tensorboard]"],
        ["+fix_hp=auto", "fix_hp.most=18", "+callbacks.limit={_target_:x.Limit,size:${hp.batch_size}}", "pictures=no"],
    ],
)
def test_it_is_what_hydra_composes(overrides: list[str]) -> None:
    config, expected = composed("train", *overrides), by_hydra(*overrides)
    assert OmegaConf.to_container(config) == OmegaConf.to_container(expected)
    config.hp.lr = 7.0
    assert composed("train", *overrides).hp.lr == expected.hp.lr


@pytest.mark.parametrize("wrong", ["hp.batchsize=3", "hp.batch_size=abc", "+hp.lr=3", "model=strange"])
def test_mistakes_are_told_by_hydra(wrong: str) -> None:
    with pytest.raises(HydraException) as expected:
        by_hydra(wrong)
    with pytest.raises(HydraException) as raised:
        composed("train", wrong)
    assert str(raised.value) == str(expected.value)

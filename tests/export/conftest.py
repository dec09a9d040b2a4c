"""A checkpoint of each model, from a run of a second."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig

from src.run import train
from tests.support.composing import composed
from tests.support.tiny_distilbert import tiny_distilbert
from tests.support.tiny_dlrm import tiny_dlrm
from tests.support.tiny_mobilenet import tiny_mobilenet, tiny_overrides
from tests.support.tiny_run import tiny_config
from tests.support.tiny_se3 import tiny_se3

SHORT = "fit.final_evaluation=false", "fit.eval_every_n_epochs=null", "fit.max_steps=3"
PUBLISHED = "width_multiplier", "network.strides"  # keys that are left out for timm's widths and strides


def mobilenet_of_timm(home: Path, *overrides: str) -> DictConfig:
    kept = [text for text in tiny_overrides(home) if not any(key in text for key in PUBLISHED)]
    return composed("train", *kept, "hp.lr=1e-3", *overrides)


def mirrored_se3(home: Path, *overrides: str) -> DictConfig:
    return tiny_se3(home, "model.task.mirror=true", *overrides)


CONFIGS: dict[str, Callable[..., DictConfig]] = {
    "moflow": tiny_config,
    "se3_transformer": mirrored_se3,
    "dlrm": tiny_dlrm,
    "mobilenet_v1": tiny_mobilenet,
    "mobilenet_v1 as timm's": mobilenet_of_timm,
    "distilbert": tiny_distilbert,
}


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def made(model: str) -> Path:
        home = tmp_path_factory.mktemp("trained")
        train(CONFIGS[model](home, *SHORT, f"output_dir={home / 'run'}"))
        return home / "run" / "checkpoints" / "last.ckpt"

    return made

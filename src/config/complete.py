"""The only place where a config is checked, completed and frozen, before anything is built from it."""

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from src.config.schema import Hardware, PredictConfig, TrainConfig, structured, typed
from src.config.secrets import watch
from src.config.settings import CONF, check_loggers
from src.config.trained import as_trained
from src.config.values import check_training, check_values
from src.errors import UserError
from src.measure.roofline import datasheet

HARDWARE = CONF / "hardware"


def complete(config: DictConfig) -> TrainConfig:
    """Returns a training config checked, with hardware found and interpolations resolved.

    `datamodule.batch_size` is the batch of a device. Raises UserError, or OmegaConf's own error, for a config that
    cannot be run.
    """
    check_training(config)
    resolve(config)
    if config.hp.batch_per == "global":
        config.datamodule.batch_size = config.hp.batch_size // (config.trainer.num_nodes * config.trainer.devices)
    return typed(config)


def complete_prediction(config: DictConfig, trained: Any = None, overrides: Sequence[str] = ()) -> PredictConfig:
    """Returns a prediction's config, likewise.

    Args:
        trained, overrides: as for `as_trained`.
    """
    config.hardware = resolve_hardware(config.hardware)
    as_trained(config, trained, overrides)
    check_loggers(config)
    check_values("", config, PredictConfig)
    resolve(config)
    check_values("", config, PredictConfig)
    return typed(config)


def resolve(config: DictConfig) -> None:
    """Finds the hardware and resolves interpolations, in place. Registers the secrets among them for masking."""
    config.hardware = resolve_hardware(config.hardware)
    watch(config)
    OmegaConf.resolve(config)


def resolve_hardware(hardware: DictConfig) -> DictConfig:
    """Returns the hardware config; for `auto` the file of conf/hardware that matches the device.

    Raises UserError where a GPU is named and none is visible.
    """
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    if hardware.name != "auto":
        if hardware.accelerator == "cuda" and name is None:
            raise UserError(f"hardware={hardware.name}: no GPU is visible here; use hardware=auto or hardware=cpu")
        return hardware
    if name is None:
        return load_hardware("cpu")
    unknown = structured(Hardware(name=name, accelerator="cuda", peak_flops={}))  # no share of a peak
    return hardware_of_gpu(name) or unknown


def hardware_of_gpu(name: str) -> DictConfig | None:
    """Returns the file of conf/hardware that matches a GPU's product name, such as 'NVIDIA H200'; None for others."""
    file = datasheet(name)
    return None if file is None else load_hardware(file.stem)


def load_hardware(name: str) -> DictConfig:
    """Returns one file of conf/hardware, checked against the schema."""
    hardware = OmegaConf.merge(structured(Hardware), OmegaConf.load(HARDWARE / f"{name}.yaml"))
    assert isinstance(hardware, DictConfig)
    return hardware

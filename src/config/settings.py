"""Checks of a config that need neither torch nor the hardware."""

from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from src.errors import UserError
from src.system.home import CONF

OURS = ("train", "predict", "prepare", "export")  # configs of entry points


def given_overrides() -> list[str]:
    """Returns the command line's overrides, not resolved; none where other code composed the config."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []  # type: ignore[return-value]


def config_options(hydra: DictConfig | None = None) -> list[str]:
    """Returns the options that gave this command a folder or a name of configs, for another command that it starts.

    Args:
        hydra: Hydra's own config; that of this job if not given.
    """
    if hydra is None and not HydraConfig.initialized():
        return []
    of_hydra: Any = HydraConfig.get() if hydra is None else hydra
    folder = next(
        (source.path for source in of_hydra.runtime.config_sources if source.provider == "command-line"), None
    )
    options = {
        "--config-dir": folder,
        "--config-name": None if of_hydra.job.config_name in OURS else of_hydra.job.config_name,
    }
    return [word for option, value in options.items() if value is not None for word in (option, value)]


def check_fix_hp(config: DictConfig) -> None:
    """Raises UserError unless `fix_hp` sets `hp.*` alone."""
    if config.fix_hp is None:
        return
    file = CONF / "fix_hp" / f"{config.fix_hp.name}.yaml"
    others = set(OmegaConf.load(file)) - {"fix_hp", "hp"}
    if others:
        raise UserError(f"{file.name}: fix_hp may set hp.* only, it also sets {', '.join(map(str, sorted(others)))}")


def check_loggers(config: DictConfig) -> None:
    """Raises UserError for a key of W&B's, which would be written to files."""
    for name, logger in (config.logger or {}).items():
        if isinstance(logger, DictConfig) and "api_key" in logger:
            raise UserError(
                f"logger.{name}.api_key is no setting; give the key by the environment variable WANDB_API_KEY, "
                "or run `wandb login` once"
            )


def check_complete(config: DictConfig) -> None:
    """Raises UserError naming the first key that has no value yet."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} has no value; give it as {missing[0]}=VALUE")

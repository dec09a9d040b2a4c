"""Checks of a config that need neither torch nor the hardware."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from src.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"

EXECUTION = {
    "graph": ("auto", "on", "off"),
    "compile": ("auto", "on", "off"),
    "gradient_dtype": (None, "bf16", "fp16"),
    "exchange": ("auto", "nccl"),
    "graph_gaps": ("auto", "off"),
}

POSITIVE = "fit.max_time_s", "fit.clip_norm"
LEAST = {  # the least whole number of a key, and others that it may be
    "fit.max_epochs": (1, (-1,)), "fit.max_steps": (1, (-1,)), "fit.eval_every_n_epochs": (1, ()),
    "fit.eval_every_n_steps": (1, ()), "fit.checkpoint_every_n_epochs": (1, ()),
    "fit.checkpoint_every_n_steps": (1, ()), "fit.stop_after_plateau": (1, ()), "measure.window": (1, ()),
    "measure.warmup_steps": (0, ()), "seed": (0, ()), "hp.lr": (0, ()),
}  # fmt: skip


def given_overrides() -> list[str]:
    """Returns the command line's overrides, not resolved; none where other code composed the config."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []  # type: ignore[return-value]


def check_training(config: DictConfig) -> None:
    """Raises UserError, or OmegaConf's own error, for a training config that cannot be run. Changes nothing."""
    check_fix_hp(config)
    check_complete(config)
    config = config.copy()
    OmegaConf.resolve(config)
    for name in ("batch_size", "accumulate"):
        if config.hp[name] < 1:
            raise UserError(f"hp.{name}={config.hp[name]} trains nothing; give 1 or more")
    check_numbers(config)
    check_execution(config)
    if config.ckpt_path and not Path(config.ckpt_path).exists():
        raise UserError(f"{config.ckpt_path}: there is no such checkpoint; give the path of a last.ckpt or best.ckpt")
    world = config.trainer.num_nodes * config.trainer.devices
    if config.hp.batch_per == "global" and config.hp.batch_size % world:
        raise UserError(f"hp.batch_size={config.hp.batch_size} is global and does not divide by {world} ranks")


def check_numbers(config: DictConfig) -> None:
    """Raises UserError for a number outside of its range; null and -1 mean no limit where they are allowed."""
    for key in POSITIVE:
        value = OmegaConf.select(config, key)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{key}={value} cannot be; give a number above 0")
    for key, (least, others) in LEAST.items():
        value = OmegaConf.select(config, key)
        if value is not None and value < least and value not in others:
            instead = "".join(f", or {other} for no limit" for other in others)
            raise UserError(f"{key}={value} cannot be; give {least} or more{instead}")
    if config.fit.stop_after_plateau and not (config.fit.eval_every_n_epochs or config.fit.eval_every_n_steps):
        raise UserError("fit.stop_after_plateau needs evaluations; give fit.eval_every_n_epochs=1")
    if config.seed >= 2**32:
        raise UserError(f"seed={config.seed} cannot be; give less than {2**32}")


def check_execution(config: DictConfig) -> None:
    """Raises UserError for a value of `execution` that is not one of its choices."""
    for name, choices in EXECUTION.items():
        if (value := config.execution[name]) not in choices:
            raise UserError(
                f"execution.{name}={value} is unknown; give " + ", ".join("null" if c is None else c for c in choices)
            )


def check_fix_hp(config: DictConfig) -> None:
    """Raises UserError unless `fix_hp` sets `hp.*` alone."""
    if config.fix_hp is None:
        return
    file = CONF / "fix_hp" / f"{config.fix_hp.name}.yaml"
    others = set(OmegaConf.load(file)) - {"fix_hp", "hp"}
    if others:
        raise UserError(f"{file.name}: fix_hp may set hp.* only, it also sets {', '.join(map(str, sorted(others)))}")


def check_complete(config: DictConfig) -> None:
    """Raises UserError naming the first key that has no value yet."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} has no value; give it as {missing[0]}=VALUE")

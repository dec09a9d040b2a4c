"""One line for each mistake in a command that Hydra or OmegaConf finds: the key, what was expected, what to do."""

import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationKeyError, OmegaConfBaseException

from src.config.settings import CONF
from src.errors import UserError

# What other projects call a key of ours, by the last part of its name.
SYNONYMS = {
    "learning_rate": "hp.lr", "learningrate": "hp.lr", "batch": "hp.batch_size", "bs": "hp.batch_size",
    "batchsize": "hp.batch_size", "train_batch_size": "hp.batch_size", "per_device_train_batch_size": "hp.batch_size",
    "grad_accum": "hp.accumulate", "gradient_accumulation_steps": "hp.accumulate",
    "accumulate_grad_batches": "hp.accumulate", "epochs": "fit.max_epochs", "num_epochs": "fit.max_epochs",
    "epoch": "fit.max_epochs", "steps": "fit.max_steps", "num_steps": "fit.max_steps", "max_time": "fit.max_time_s",
    "gradient_clip_val": "fit.clip_norm", "clip": "fit.clip_norm", "ema": "fit.ema_decay",
    "early_stopping": "fit.stop_after_plateau", "patience": "fit.stop_after_plateau",
    "gpus": "trainer=1xN", "num_gpus": "trainer=1xN", "devices": "trainer=1xN", "nproc": "trainer=1xN",
    "nodes": "trainer=NxM", "num_nodes": "trainer=NxM", "device": "hardware", "accelerator": "hardware",
    "data": "datamodule", "dataset": "datamodule", "data_dir": "datamodule.data_dir", "network": "model",
    "checkpoint": "ckpt_path", "ckpt": "ckpt_path", "load": "ckpt_path", "resume_from": "ckpt_path",
    "output": "output_root", "out": "output_root", "dtype": "precision", "amp": "precision", "random_seed": "seed",
    "n": "num_samples", "num": "num_samples", "samples": "num_samples",
}  # fmt: skip
NO_GROUP = re.compile(r"Could not override '(\w+)'.*No match in the defaults list")
NO_ROW = re.compile(r"Interpolation key '\.?table\.([^']+)'")  # OmegaConf 2.4 has the dot of a relative key


def explain(error: BaseException) -> str:
    """Returns one line for an error of ours, of Hydra's or of OmegaConf's."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name}: {wrong_choice(group, name, list(error.options))}"
    if isinstance(error, OverrideParseException):
        return unreadable(error)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        where = error.filename or "the output folder"
        return f"{where}: {error.strerror}; give another folder or file, or free some space"
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        key = str(cause.full_key or cause.key or "")
        if isinstance(cause, ConfigKeyError | ConfigAttributeError):
            return f"unknown key {key!r}{nearest_key(key, known_keys(cause))}; see `--cfg job` for every key there is"
        return f"{key}: {first_line(cause)}"
    if isinstance(error, InterpolationKeyError) and (match := NO_ROW.search(str(error))):
        return missing_row(match[1].replace(".", " "))
    if match := NO_GROUP.match(str(error)):
        added = match[1] == "fix_hp"
        return f"{match[1]} " + ("is added: write +fix_hp=..." if added else "is no group of this command; see --help")
    if "Ambiguous value" in str(error):
        key, _, value = first_line(error).partition("'")[2].rstrip("'").partition("=")
        return f"{key}={value} has several values: add -m for a sweep over them, or write '{key}=[{value}]' for a list"
    return first_line(error)


def unknown_option(arguments: Sequence[str]) -> str | None:
    """Returns the message for an option that neither Hydra nor we have, or for a group's number without a name."""
    _, unknown = get_args_parser().parse_known_intermixed_args(list(arguments))
    for text in unknown:
        key = text.lstrip("-").partition("=")[0]
        return f"there is no option {text}; give keys as KEY=VALUE without dashes, for example {key}=VALUE; see --help"
    for text in arguments:
        group, _, name = text.partition("=")
        if group and (CONF / group).is_dir() and is_no_name(text):  # Hydra fails without naming it
            return f"{text}: {wrong_choice(group, name, [file.stem for file in (CONF / group).glob('*.yaml')])}"
    return None


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the options last: Hydra takes overrides on one side of its options only."""
    overrides = get_args_parser().parse_known_intermixed_args(list(arguments))[0].overrides
    options = list(arguments)
    for override in overrides:
        options.remove(override)
    return [*overrides, *options]


def is_no_name(override: str) -> bool:
    """Returns whether a readable override gives a number, null, a mapping or nothing: no name of a group's option."""
    with suppress(HydraException):
        parsed = OverridesParser.create().parse_override(override)
        return not parsed.is_sweep_override() and (parsed.value() == "" or not isinstance(parsed.value(), str | list))
    return False


def wrong_choice(group: str, name: str, options: Sequence[str]) -> str:
    there = ", ".join(sorted(options))
    same = [option for option in sorted(options) if name.isdecimal() and option.endswith(name)]  # 8: 1x8
    near = f", did you mean {guess!r}?" if (guess := same[0] if same else nearest(name, options)) else ""
    return f"there is no such {group}{near}; choose from {there}"


def unreadable(error: OverrideParseException) -> str:
    """Returns the message for an override that is no KEY=VALUE, or whose value is not Hydra's grammar."""
    if "=" not in error.override:
        return f"{error.override!r} has no value: write KEY=VALUE without spaces, for example hp.lr=0.1; see --help"
    return f"{error.override!r} cannot be read ({first_line(error)}); quote special characters, or correct it"


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def nearest(wrong: str, names: Sequence[str]) -> str | None:
    """Returns the closest known name, or one that begins with the wrong one."""
    close = get_close_matches(wrong, names, n=1, cutoff=0.5)
    return close[0] if close else next((name for name in names if name.startswith(wrong)), None)


def nearest_key(wrong: str, keys: Sequence[str]) -> str:
    """Returns ", did you mean ...?" with what a synonym stands for, a key of that last name, or the closest; or ''."""
    last = wrong.rpartition(".")[2]
    same = sorted((key for key in keys if key.rpartition(".")[2] == last), key=lambda key: (key.count("."), key))
    same = [key for key in same if key.startswith(("hp.", "fit."))] or same
    meant = SYNONYMS.get(last.lower(), "")
    if meant.partition("=")[0] in keys and meant != wrong:
        guess: str | None = meant
    else:
        guess = same[0] if same else nearest(wrong, keys)
    return f", did you mean {guess!r}?" if guess else ""


def known_keys(error: OmegaConfBaseException) -> list[str]:
    """Returns all dotted keys of the config that an override's key was not found in."""
    root = error.parent_node
    while root is not None and root._get_parent() is not None:
        root = root._get_parent()
    keys: list[str] = []

    def walk(node: object, prefix: str) -> None:
        if not isinstance(node, DictConfig) or node._is_none() or node._is_missing() or node._is_interpolation():
            return
        for key in node:
            keys.append(f"{prefix}{key}")
            walk(node._get_node(key), f"{prefix}{key}.")

    walk(root, "")
    return keys


def missing_row(case: str) -> str:
    """Returns the message for a case, as `MODEL TRAINER`, that the max_bs table lacks."""
    table = OmegaConf.load(CONF / "fix_hp" / "max_bs.yaml").fix_hp.table
    there = "; ".join(f"{model}: {', '.join(map(str, rows))}" for model, rows in table.items())
    return f"fix_hp=max_bs: no published row for {case}; there are {there}; leave +fix_hp away or set hp.batch_size"

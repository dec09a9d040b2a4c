"""A prediction configured as its checkpoint was trained; what the command line gives comes first."""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeGuard

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from src.config.from_file import PARTIAL, TARGET, is_withheld, values_for
from src.config.schema import Precision, PredictConfig, TrainConfig, structured
from src.config.settings import CONF
from src.config.values import parameters_of, target_of
from src.config.versions import BASE
from src.errors import UserError
from src.system.masking import MASK, masked
from src.system.reading import load_pickled

RUN = "run_config"  # a checkpoint's key: the data and the precision of the training
DATA = f"{RUN}.datamodule"
NAME = re.compile(r"\w{1,64}")  # of a file in conf, without its ending
OF_PREDICTIONS = ("batch_size", "test_batch_size", "predict")  # keys of a datamodule that training does not decide
OF_THE_SAMPLES = (  # those that say which samples there are, in which splits
    *("source", "raw", "data_dir", "seed", "train", "val", "split", "held_out_share", "split_seed"),
)
OF_THE_MODEL = (
    "vocabulary",
    "max_length",
    "background",
    "value_range",
)  # those that the weights depend on, whatever the data
OWN_FOLDERS = ("image_folder",)  # data whose data_dir a person filled: there is no other place to look for them
FOLDER_KEYS = ("datamodule.data_dir", "data_root")
CPU_INSTEAD = {"tf32": "fp32"}  # precisions that only a GPU has


def training_choices(config: TrainConfig) -> dict[str, Any]:
    """Returns what a checkpoint says of its run beside the model: data and their group, precision, seed, batch."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    usual = config.datamodule["name"]
    group = next((name for key, name in choices.items() if key.split("@")[0] == "datamodule"), usual)
    data = masked(config.datamodule, "datamodule")
    run = {"seed": config.seed, "hp.batch_size": config.hp.batch_size, "hp.batch_per": config.hp.batch_per}
    root = masked(config.data_root, "data_root")
    return {"group": str(group), "datamodule": data, "precision": config.precision.name, "data_root": root, **run}


def name_model(arguments: Sequence[str]) -> list[str]:
    """Returns predict.py's arguments, with the checkpoint's model=... and datamodule=... before it where not given.

    The other arguments can then name these groups' keys. Options such as -m stay in front: argparse wants it so.

    Raises UserError for a checkpoint that is missing or cannot be read: else such a key would be called unknown.
    """
    paths = [text for text in arguments if text.startswith("ckpt_path=")]
    if len(paths) != 1:
        return list(arguments)
    at, path = list(arguments).index(paths[0]), paths[0].partition("=")[2].strip("'\"")
    if "$" in path or "," in path:  # an interpolation, or several for a sweep
        return list(arguments)
    try:
        choices = named_choices(load_pickled(Path(path), mapped=True), arguments)
    except Exception:
        from src.training.checkpoints import read_checkpoint  # slow to import

        read_checkpoint(Path(path))
        return list(arguments)
    return [*arguments[:at], *choices, *arguments[at:]]


def named_choices(checkpoint: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Returns the checkpoint's model=... and datamodule=..., where the arguments have none and conf has them."""
    run = checkpoint.get(RUN)
    group = run.get("group") if isinstance(run, dict) else None
    named = {"model": checkpoint["model_config"]["name"], "datamodule": group}
    return [f"{group}={name}" for group, name in named.items() if not is_given(group, arguments) and is_in(name, group)]


def as_trained(config: DictConfig, trained: Any, overrides: Sequence[str]) -> None:
    """Sets the precision and the datamodule of a prediction to those of the training; says where they differ.

    Args:
        trained: what `training_choices` returned, from a file that may not be trusted: values of known keys are
            taken, by their types; classes and functions are those of conf.
        overrides: those of the command line. A precision or another datamodule that it names stays, but for the keys of
            OF_THE_MODEL, which the weights depend on; of the same datamodule the keys that it names.
    """
    if not isinstance(trained, dict) or not isinstance(trained.get("datamodule"), dict):
        return
    set_data_as_trained(config, trained, overrides)
    name = trained.get("precision")
    if not is_in(name, "precision"):
        return
    if is_given("precision", overrides):
        if config.precision.name != name:
            print(f"note: precision={config.precision.name} as given; the checkpoint was trained with {name}")
        return
    on_cpu = config.hardware.accelerator == "cpu"
    here = group_of("precision", CPU_INSTEAD.get(name, name) if on_cpu else name)
    config.precision = OmegaConf.merge(structured(Precision), here)
    if config.precision.name != name:
        print(f"note: precision={config.precision.name}; the checkpoint was trained with {name}, which a CPU has not")


def set_data_as_trained(config: DictConfig, trained: dict[str, Any], overrides: Sequence[str]) -> None:
    path, theirs, group = Path(config.ckpt_path or "the checkpoint"), trained["datamodule"], trained.get("group")
    if is_given("datamodule", overrides) and f"datamodule={group}" not in overrides:
        datamodule = config.datamodule
        shared = {key: theirs[key] for key in OF_THE_MODEL if key in theirs and key in datamodule}
        values = values_for(plain(datamodule), shared, path, DATA)
        put(datamodule, {key: value for key, value in values.items() if not is_given(f"datamodule.{key}", overrides)})
    elif is_in(group, "datamodule"):
        data = group_of("datamodule", group)
        values = values_for(plain(data), theirs, path, DATA)
        leave_out_newer(data, values)
        has_data = is_here(values.get("data_dir"), overrides)
        if not has_data and group in OWN_FOLDERS and not any(is_given(key, overrides) for key in FOLDER_KEYS):
            raise UserError(
                f"{path} was trained with the files in {values.get('data_dir')}, which is not here: give "
                "datamodule.data_dir=FOLDER"
            )
        not_here = [*OF_PREDICTIONS, *([] if has_data else ["data_dir"])]
        put(data, {key: value for key, value in values.items() if key not in not_here})
        for text in overrides:
            key = text.partition("=")[0].lstrip("+")
            if key.startswith("datamodule."):
                OmegaConf.update(data, key.partition(".")[2], OmegaConf.select(config, key), force_add=True)
        config.datamodule = data


def leave_out_newer(data: DictConfig, values: dict[str, Any]) -> None:
    """Removes the keys of `source` that are newer than a checkpoint: it means the class's default, not conf's."""
    source, theirs = data.get("source"), values.get("source")
    if not isinstance(source, DictConfig) or TARGET not in source or not isinstance(theirs, dict):
        return
    needed = parameters_of(target_of("", source[TARGET]))
    for key in [key for key in source if key not in theirs and key in needed and not needed[key].is_needed]:
        del source[key]


def plain(section: DictConfig) -> Any:
    """Returns a section as plain dicts and lists, not resolved."""
    return OmegaConf.to_container(section)


def put(section: DictConfig, values: dict[str, Any]) -> None:
    """Sets the keys of a section to what `values_for` returned for it, but for what a file leaves out."""
    here = plain(section)
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(here.get(key), dict) and TARGET in value:
            put(section[key], value)
        elif key not in (TARGET, PARTIAL) and not is_withheld(value):
            section[key] = value


def has_trained_data(config: PredictConfig, trained: Any) -> bool:
    """Returns whether a prediction's samples and splits are those of the training, as `training_choices` told them."""
    if not isinstance(trained, dict) or not isinstance(trained.get("datamodule"), dict):
        return False
    here, there = (
        {key: value for key, value in plain_values(settings) if key.split(".")[0] in OF_THE_SAMPLES}
        for settings in (config.datamodule, trained["datamodule"])
    )
    return here == there


def plain_values(config: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields numbers, texts and lists of them by dotted key; no names of classes, and nothing that was a secret."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from plain_values(value, f"{prefix}{key}.")
        elif key not in ("_target_", "_partial_") and MASK not in str(value) and "${" not in str(value):
            yield f"{prefix}{key}", value


def is_here(folder: Any, overrides: Sequence[str]) -> bool:
    return isinstance(folder, str) and not is_given("data_root", overrides) and Path(folder).is_dir()


def is_given(key: str, overrides: Sequence[str]) -> bool:
    """Returns whether an override sets the key or the config group."""
    return any(text.lstrip("+").startswith((f"{key}=", f"{key}@")) for text in overrides)


def is_in(name: Any, group: str) -> TypeGuard[str]:
    """Returns whether this names a choice of a config group."""
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and (CONF / group / f"{name}.yaml").exists()


def group_of(group: str, name: str) -> DictConfig:
    """Returns a choice of a config group, not resolved."""
    running = GlobalHydra.instance().is_initialized()  # by an entry point
    with nullcontext() if running else initialize_config_dir(str(CONF), **BASE):
        choice = compose(f"{group}/{name}")[group]
    OmegaConf.set_struct(choice, False)
    return choice

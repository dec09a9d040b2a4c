"""Whether a training goes on as it began: with the same data, seed and batch."""

from pathlib import Path
from typing import Any

from src.config.trained import OF_THE_MODEL, OF_THE_SAMPLES, plain_values
from src.errors import UserError

OF_THE_RUN = "seed", "hp.batch_size", "hp.batch_per"
OF_THE_DATA = (*OF_THE_SAMPLES, *OF_THE_MODEL, "task")
OF_THE_MACHINE = ("source.workers", "source.mirror")  # these do not change the samples


def check_same_run(trained: Any, here: dict[str, Any], path: Path, way_out: str) -> None:
    """Raises UserError where a checkpoint is of other data, another seed or another batch, naming what differs.

    Args:
        trained, here: what `training_choices` says of the checkpoint's run and of this one. Old ones say less.
        path: of the checkpoint.
        way_out: what else than giving the same values is possible.
    """
    found = differences(trained, here) if isinstance(trained, dict) else {}
    if found:
        before, now = (" ".join(f"{key}={each[i]}" for key, each in found.items()) for i in (0, 1))
        raise UserError(f"{path} was trained with {before}, this run has {now}; give {before}, or {way_out}")


def differences(trained: dict[str, Any], here: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns what the checkpoint's run had and what this one has, by key."""
    both = {key: (trained[key], here[key]) for key in OF_THE_RUN if key in trained}
    if trained.get("group") != here["group"]:
        both["datamodule"] = (trained.get("group"), here["group"])
    elif isinstance(trained.get("datamodule"), dict):
        theirs, ours = data_of(trained), data_of(here)
        both |= {f"datamodule.{key}": (theirs[key], ours[key]) for key in theirs if key in ours}
        if "seed" in both:
            both.pop("datamodule.seed", None)  # it follows from that
    return {key: each for key, each in both.items() if each[0] != each[1]}


def data_of(choices: dict[str, Any]) -> dict[str, Any]:
    """Returns what says which samples there are; paths in the folder of all data are relative to that."""
    root = choices.get("data_root")
    return {
        key: below(value, root)
        for key, value in plain_values(choices["datamodule"])
        if key.split(".")[0] in OF_THE_DATA and key not in OF_THE_MACHINE and (root is not None or key != "data_dir")
    }


def below(value: Any, root: Any) -> Any:
    """Returns a path below `root` relative to it, and anything else as it is."""
    if isinstance(value, str) and isinstance(root, str) and Path(value).is_relative_to(root):
        return str(Path(value).relative_to(root))
    return value

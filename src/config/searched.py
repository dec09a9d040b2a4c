"""A search that goes on: `python train.py -m sweep.resume=FOLDER hydra.sweeper.trials=40` needs no other key."""

from collections.abc import Sequence
from pathlib import Path

from src.errors import UserError
from src.system.masking import MASK
from src.system.reading import read_yaml

OF_THE_START = {"hydra.mode", "hydra.sweep.dir", "sweep.resume"}
OF_THE_SEARCH = ("hydra/sweeper=", "hydra.sweeper.")


def as_searched(arguments: Sequence[str]) -> list[str]:
    """Returns train.py's arguments; of a search that goes on, after its overrides of before whose keys are not given.

    Raises UserError where these cannot be read, or where one held a secret, which is not kept.
    """
    resumed = next((text for text in reversed(arguments) if text.startswith("sweep.resume=")), "")
    folder = Path(resumed.partition("=")[2].strip("'\""))
    file = folder / "multirun.yaml"
    if not resumed or not (folder / "search.db").is_file() or not file.is_file():
        return list(arguments)
    advice = "give all overrides of the search in a new folder"
    content = read_yaml(file, advice)
    try:
        kept = content["hydra"]["overrides"]
        before = [str(text) for text in kept["hydra"] if str(text).startswith(OF_THE_SEARCH)] + [
            *map(str, kept["task"])
        ]
    except (KeyError, TypeError):
        raise UserError(f"{file} does not say what the search was started with: {advice}") from None
    taken = {key_of(text) for text in arguments} | OF_THE_START
    again = [text for text in before if key_of(text) not in taken]
    if secret := next((text for text in again if MASK in text), None):
        raise UserError(f"{key_of(secret)} was given a secret to {folder}, which is not kept; give it again")
    return [*again, *arguments]


def key_of(override: str) -> str:
    """Returns the key of KEY=VALUE, +KEY=VALUE or ~KEY."""
    return override.partition("=")[0].lstrip("+~")

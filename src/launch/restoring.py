"""What a checkpoint that does not fit the run raises while Lightning restores it, as one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.errors import UserError
from src.launch.failures import is_out_of_memory

CONNECTOR = "checkpoint_connector.py"  # Lightning's


@contextmanager
def restoring(path: Path | None, here: bool = False) -> Iterator[None]:
    """Turns what Lightning's restoring of a checkpoint raises within the block into a UserError that names the file.

    Args:
        here: the block itself restores.
    """
    try:
        yield
    except Exception as error:
        is_other = isinstance(error, UserError) or is_out_of_memory(error) or not (here or is_of_restoring(error))
        if path is None or is_other:
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"{path}: its state does not fit this run ({type(error).__name__}: {reason:.200}); "
            "give the options it was trained with, or another checkpoint"
        ) from error


def is_of_restoring(error: BaseException) -> bool:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(CONNECTOR)]
    return any(f.name.startswith(("resume_", "restore", "_restore")) for f in frames)

"""How this project starts Python, so that nothing is imported from the current folder.

A file there may have the name of a module of ours or of Python's, by chance or by intent: people start runs in folders
of data that others gave them. Python looks there first for `-c` and `-m`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from src.system.home import ROOT

COMMANDS = ("train.py", "predict.py", "prepare.py", "export.py")
WATCHING = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")  # NVIDIA's profilers write what they saw at the interpreter's end


def python(*words: str) -> list[str]:
    """Returns the command line of this interpreter with these words; `safe_path` lets it find this project."""
    return [sys.executable, "-P", *words]


def safe_path(folders: Sequence[str] | None = None) -> dict[str, str]:
    """Returns environment variables with which Python finds modules of this project, and none in the current folder.

    Libraries that start Python pass them on, as torchrun does to its ranks.

    Args:
        folders: where else to look for modules; those of PYTHONPATH if not given.
    """
    if folders is None:
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [folder for folder in folders if folder and folder != str(ROOT)]  # an empty one is the current folder
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *others])}


def is_command(names: Sequence[str] = COMMANDS) -> bool:
    """Returns whether this process runs one of these files, and is no notebook or test that uses the library."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "").name in names


def is_watched() -> bool:
    """Returns whether a debugger, a profiler or `python -i` follows this process to the interpreter's end."""
    is_traced = sys.gettrace() is not None or sys.getprofile() is not None or bool(sys.flags.inspect)
    return is_traced or any(os.environ.get(name) for name in WATCHING)

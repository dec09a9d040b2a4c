"""Imports that are quick: of what stays until the process ends."""

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from src.system.openmp import BeforeTorch

# torch loads the first before it is imported, for all to see; the second needs its other libraries.
LIBRARIES = ("libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL), ("libtorch.so", os.RTLD_NOW)


@contextmanager
def loading() -> Iterator[None]:
    """Imports that never are garbage: looking for it among them, then and ever after, takes a fifth of a start."""
    gc.disable()
    try:
        yield
    finally:
        keep_loaded()


def keep_loaded() -> None:
    """Begins to look for garbage, never among what there is by now."""
    gc.freeze()
    gc.enable()


def load_torch_ahead() -> threading.Thread | None:
    """Loads torch's libraries in a thread, without Python's lock, while the config is composed; returns the thread.

    Returns None where REPRISE_PLAIN_START is set, and where OpenMP, which they load, is settled by torch's import.
    The process does not end before the thread: the libraries' destructors would run beside their constructors.
    """
    is_settled_later = any(isinstance(finder, BeforeTorch) for finder in sys.meta_path)
    if os.environ.get("REPRISE_PLAIN_START") or sys.platform != "linux" or is_settled_later or has_other_cuda():
        return None
    thread = threading.Thread(target=load_libraries, name="torch's libraries")
    thread.start()
    return thread


def import_ahead(name: str) -> threading.Thread | None:
    """Imports a module in a thread, for a time in which others compute without Python's lock; returns the thread.

    Who imports the module meanwhile waits for it, and has its errors again. None where REPRISE_PLAIN_START is set.
    """

    def load() -> None:
        with suppress(Exception):
            import_module(name)

    if os.environ.get("REPRISE_PLAIN_START"):
        return None
    thread = threading.Thread(target=load, name=name, daemon=True)
    thread.start()
    return thread


def has_other_cuda() -> bool:
    """Returns whether LD_LIBRARY_PATH would win over CUDA's libraries that torch loads by path when it is imported."""
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return any(True for folder in folders for _ in Path(folder).glob("libnvJitLink.so*"))


def load_libraries() -> None:
    """Loads torch's libraries, where it is installed; what cannot be loaded is told by torch's import."""
    spec = find_spec("torch")
    dlopen = ctypes.CDLL(None).dlopen  # a call of ctypes lets other threads run, while CDLL and imports do not
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for folder in (spec and spec.submodule_search_locations) or ():
        for name, mode in LIBRARIES:
            dlopen(os.fsencode(Path(folder, "lib", name)), mode)

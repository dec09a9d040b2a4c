"""The clone of NVIDIA's DeepLearningExamples that the user names, of which nothing is copied here."""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.beside.assignment import Assignment

COMMIT = "729963d"
FOLDERS = {
    "moflow": "PyTorch/DrugDiscovery/MoFlow",
    "se3_transformer": "DGLPyTorch/DrugDiscovery/SE3Transformer",
    "dlrm": "PyTorch/Recommendation/DLRM",
}
# Of the code in these folders at COMMIT, as `identity` computes it.
DIGESTS = {"MoFlow": "37e751153a5cdbf4", "SE3Transformer": "e702c67a948671c9", "DLRM": "268c16c5ba07a12e"}
KINDS = ("py", "cpp", "cu", "cuh", "h")


def folder_of(assignment: Assignment) -> Path:
    """Returns the folder of the model in the clone, which is importable from then on."""
    assert assignment.reference is not None
    folder = Path(assignment.reference) / FOLDERS[assignment.case.model]
    if not folder.is_dir():
        raise FileNotFoundError(f"--reference {assignment.reference} has no {FOLDERS[assignment.case.model]}")
    sys.path.insert(0, str(folder))
    return folder


def identity(folder: Path) -> dict[str, Any]:
    """Returns a digest of the folder's code, and the commit; None for code that differs from that of the commit."""
    hashed = hashlib.sha256()
    for path in sorted(path for kind in KINDS for path in folder.rglob(f"*.{kind}")):
        hashed.update(f"{path.relative_to(folder).as_posix()} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest = hashed.hexdigest()[:16]
    commit = COMMIT if DIGESTS.get(folder.name) == digest else None
    return {"repository": "NVIDIA/DeepLearningExamples", "folder": folder.name, "commit": commit, "digest": digest}


class Anything(ModuleType):
    """A module that has every attribute, each a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = type(name, (), {"__init__": lambda self, *_, **__: None, "__call__": lambda self, *_, **__: None})
        setattr(self, name, member)
        return member


def stand_in(names: Iterable[str]) -> None:
    """Puts an empty module in the place of each that is imported for logging or for what is not run here."""
    for name in names:
        module = Anything(name)
        module.__path__ = []  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)

"""Folders of prepared arrays: written atomically, and verified by their checksums when they are read."""

import glob
import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Int

from src.datamodules.download import sha256_of
from src.errors import UserError
from src.system.files import folder_in_use, is_in_use, is_made, sole_maker
from src.system.reading import read_json

META = "meta.json"
LEAVE_OUT = "leave such molecules out: datamodule.source.skip_bad=true"  # where one is refused


@dataclass(frozen=True)
class Selection:
    """The molecules to prepare: at most `limit`, drawn with `seed`; invalid ones are refused, or left out."""

    limit: int | None = None
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit} leaves no molecule: give 1 or more, or null for all")

    @property
    def name(self) -> str:
        """Part of the name of the folder with these molecules."""
        parts = ["all" if self.limit is None else f"{self.limit}_seed{self.seed}"] + ["skip_bad"] * self.skip_bad
        return "_".join(parts)

    def rows(self, total: int) -> Int[np.ndarray, " molecules"]:
        """Returns the chosen rows out of `total`, ascending."""
        if self.limit is None or self.limit >= total:
            return np.arange(total)
        return np.sort(np.random.default_rng(self.seed).choice(total, self.limit, replace=False))


def prepare(prepared: Path, origin: Mapping[str, Any], write: Callable[[Path], dict[str, Any]]) -> Path:
    """Fills the folder `prepared` with `write` unless it exists; returns it.

    `write` gets an empty folder and returns metadata of its contents. `origin` describes inputs and settings. One of
    several processes calls `write`, the others wait. Raises UserError if the folder has another origin.
    """
    with sole_maker(prepared):
        if not prepared.exists():
            with atomic_folder(prepared) as part:
                metadata = write(part)
                sums = {path.name: sha256_of(path) for path in sorted(part.iterdir())}
                meta = {**origin, **metadata, "sha256": sums}
                (part / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    meta = _read_meta(prepared)
    if {key: meta.get(key) for key in origin} != origin:
        raise UserError(f"{prepared} was prepared from other files or settings: delete it to prepare it again")
    return prepared


def verified_meta(prepared: Path) -> dict[str, Any]:
    """Returns the metadata of a prepared folder. Raises UserError for a file that is missing or was changed."""
    meta = _read_meta(prepared)
    for name, sha256 in meta["sha256"].items():
        # A third of a second for all of ZINC-250k; its files are read next in any case.
        if not (prepared / name).exists() or sha256_of(prepared / name) != sha256:
            raise UserError(
                f"{prepared / name} is missing, truncated or altered: delete {prepared} to prepare it again"
            )
    return meta


def sums_of(prepared: Path) -> dict[str, Any]:
    """Returns the SHA-256 of a prepared folder's files by name, as they were when it was written."""
    return _read_meta(prepared)["sha256"]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _read_meta(prepared: Path) -> dict[str, Any]:
    path = prepared / META
    meta = read_json(path, f"delete {prepared} to prepare it again")
    sums = meta.get("sha256") if isinstance(meta, dict) else None
    if not isinstance(sums, dict) or not all(is_plain(name) for name in sums):
        raise UserError(f"{path} is not what was written: delete {prepared} to prepare it again")
    return meta


def is_plain(name: str) -> bool:
    """Returns whether this can be the name of a file in the folder, and of nothing elsewhere."""
    return name.isprintable() and len(name) < 200 and Path(name).name == name


@contextmanager
def reading(prepared: Path) -> Iterator[None]:
    """Raises UserError where values of a folder's metadata are missing or of another kind than was written."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # at any damage: missing keys, other types, sizes without bounds
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{prepared / META} is not what was written ({reason}): delete {prepared}") from error


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `folder` at the end, and removed on any failure.

    Temporary folders that killed processes of this machine have left are removed too. If another machine, which shares
    no locks with this one, has created `folder` meanwhile, that one stays: the caller checks its contents.
    """
    prefix = f".{folder.name}.{platform.node()}."
    part = folder.with_name(f"{prefix}{uuid4().hex}.tmp")
    try:
        part.mkdir(parents=True)
        with folder_in_use(part):
            for other in folder.parent.glob(f"{glob.escape(prefix)}*.tmp"):
                if not is_in_use(other):
                    shutil.rmtree(other, ignore_errors=True)
            yield part
            try:
                part.rename(folder)
            except OSError:
                if not is_made(folder):
                    raise
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}): give another data_dir, or make room") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)

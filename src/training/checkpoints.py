"""Writing, finding, verifying and reading checkpoints.

A checkpoint is the zip archive that `torch.save` writes. The archive's comment holds the SHA-256 of the archive as it
was before the comment was added, so any changed bit of the file is found before its content is used. Reading makes
tensors and plain Python values only: nothing that a file names is called.
"""

import hashlib
import io
import lzma
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import torch
from torch import Tensor, nn

from src.errors import UserError
from src.measure.sources import sources
from src.system.files import remove_left_over, written_atomically
from src.system.home import PACKAGE, VERSION
from src.system.plain import check_plain
from src.system.reading import load_pickled

if TYPE_CHECKING:  # the models' library code needs no Hydra
    from src.config.schema import TrainConfig

DIGEST = re.compile(rb"sha256:([0-9a-f]{64})")
DIGEST_BYTES = 71
VOCABULARY = "vocabulary"  # a checkpoint's key: word pieces, a line each
WRITTEN_BY = "written_by"  # likewise: version and commit
CONFIGS = "model_config", "run_config"  # keys of a checkpoint
CHUNK_BYTES = 4 * 2**20
# Of an archive whose headers or compressed members are damaged; a flipped bit makes a stored member a compressed one.
BAD_ARCHIVE = zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, RuntimeError, ValueError
MOVED = {
    f"{'reprise' if PACKAGE == 'src' else 'src'}.": f"{PACKAGE}.",  # of the installed library, or of a checkout
    f"{PACKAGE}.models.schedule.": f"{PACKAGE}.training.schedule.",  # in checkpoints from before 2026-11-22
}


def checkpoint_to_resume(config: "TrainConfig") -> Path | None:
    """Returns the checkpoint that a training goes on from; None for a fresh start, which is said if resume=true."""
    if config.ckpt_path:
        return Path(config.ckpt_path)
    if not config.resume:
        return None
    root, here = Path(config.output_root) / config.model["name"], Path(config.output_dir)
    path = newest_checkpoint(root, here)
    if path is not None:
        remove_left_over(path.parent)  # of the run that was killed
    else:
        print(f"resume=true: no checkpoint in {here} nor under {root}, starting fresh")
    return path


def newest_checkpoint(root: Path, here: Path) -> Path | None:
    """Returns the run folder's own `last.ckpt`, where a command is given again; else the newest one under `root`."""
    name = "checkpoints/last.ckpt"
    paths = [here / name] if (here / name).exists() else list(root.glob(f"**/{name}"))
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Writes the checkpoint with its digest, atomically. Raises UserError where it cannot be written."""
    try:
        with written_atomically(path) as temporary, temporary.open("w+b") as file:
            with HashingWriter(file) as writer:
                torch.save(checkpoint, cast(BinaryIO, writer))
            comment = b"sha256:" + writer.digest.hexdigest().encode()
            file.seek(-2, os.SEEK_END)  # the length of the archive's comment, 0 so far
            file.write(struct.pack("<H", len(comment)) + comment)
    except RuntimeError as error:  # what torch makes of a write that fails half-way
        failure = error.__context__
        reason = failure.strerror if isinstance(failure, OSError) else first_line(error)
        raise UserError(f"cannot write {path} ({reason}): free space, or choose another output folder") from error


class HashingWriter(io.RawIOBase):
    """Writes to an open file and computes the SHA-256 of what it writes in a second thread."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._thread = ThreadPoolExecutor(1)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(data) < 2**16:  # handing it over would take longer
            self.digest.update(data)
            return self._file.write(data)
        hashed = self._thread.submit(self.digest.update, data)
        try:
            return self._file.write(data)
        finally:
            hashed.result()  # the memory is torch's and may change after this call

    def close(self) -> None:
        self._thread.shutdown()
        super().close()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Returns the verified checkpoint on the CPU. Raises UserError if it is missing, damaged, or holds code."""
    try:
        verify(path)
        checkpoint = load_pickled(path, mapped=True)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such checkpoint; give the path of a last.ckpt or best.ckpt") from None
    except pickle.UnpicklingError as error:
        raise UserError(f"{path}: {refusal(error)}") from None
    except Exception as error:  # torch raises nearly anything for damaged bytes
        raise UserError(f"{path}: not a readable checkpoint ({first_line(error)}); give another") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path}: holds no state_dict; give a checkpoint that train.py wrote")
    for name, value in checkpoint["state_dict"].items():
        if not isinstance(name, str):
            raise UserError(f"{path}: its state_dict has the key {name!r}, which is no name; give another checkpoint")
        if not isinstance(value, Tensor):
            raise UserError(f"{path}: {name} is no tensor but {type(value).__name__}; give another checkpoint")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise UserError(f"{path}: {name} is no dense tensor; give another checkpoint")
    others = {key: value for key, value in checkpoint.items() if not (key == VOCABULARY and isinstance(value, str))}
    check_plain(others, str(path), (Tensor,), longest=20_000)  # a run's command may be long
    for key in CONFIGS:
        check_plain(checkpoint.get(key), f"{path}: {key}")
    return checkpoint


def verify(path: Path) -> None:
    """Raises UserError where the file is not as it was written; OSError where it cannot be read.

    An archive without a digest, which `torch.save` alone wrote, is held to the checksums of its members. A file that is
    no archive has none.
    """
    if is_whole(path) is False:
        other = next((p for p in checkpoints_before(path) if is_whole(p)), None)
        way_out = f"go on from the one before it, {other}" if other else "there is no earlier one in its folder"
        raise UserError(f"{path}: damaged, it is not what was written (its checksum differs); {way_out}")


def is_whole(path: Path) -> bool | None:
    """Returns whether the file is as it was written; None without a checksum.

    Raises OSError if it cannot be read, and UserError for what is no regular file.
    """
    size = path.stat().st_size
    if not path.is_file():  # opening a FIFO would wait for ever
        raise UserError(f"{path}: not a readable checkpoint (it is no regular file); give another")
    with path.open("rb") as file:
        file.seek(max(0, size - DIGEST_BYTES - 2))
        end = file.read()
        if match := DIGEST.fullmatch(end[2:]):
            file.seek(0)
            digest = hashlib.sha256()
            for chunk in chunks(file, size - len(end)):
                digest.update(chunk)
            digest.update(b"\0\0")
            return end[:2] == struct.pack("<H", DIGEST_BYTES) and digest.hexdigest().encode() == match[1]
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            return end.endswith(b"\0\0") and archive.testzip() is None  # of an archive without a comment
    except BAD_ARCHIVE:
        return False


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields the next `size` bytes of the file in parts."""
    while size > 0 and (part := file.read(min(size, CHUNK_BYTES))):
        size -= len(part)
        yield part


def checkpoints_before(path: Path) -> list[Path]:
    """Returns the other checkpoints in the same folder, the newest first."""
    others = [p for p in path.parent.glob("*.ckpt") if p.name != path.name and p.is_file()]
    return sorted(others, key=lambda p: p.stat().st_mtime, reverse=True)


def refusal(error: pickle.UnpicklingError) -> str:
    """Returns what is wrong with a file that torch refuses to unpickle, and what to do."""
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return (
            f"it names {named[1]}, which a checkpoint of numbers does not need and which was not run; "
            "give a checkpoint that train.py wrote, or weights as safetensors"
        )
    return f"not a readable checkpoint ({first_line(error)}); give another"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:80]


@cache
def this_version() -> tuple[str, str | None]:
    """Returns version and commit of the code that runs."""
    return VERSION, sources()["commit"]


@contextmanager
def naming_version(checkpoint: Mapping[str, Any] | None) -> Iterator[None]:
    """Has a UserError of the block say by which version the checkpoint was written, where that is another one."""
    try:
        yield
    except UserError as error:
        writer = (checkpoint or {}).get(WRITTEN_BY)
        if not isinstance(writer, list | tuple) or len(writer) != 2 or tuple(writer) == this_version():
            raise
        there, here = (f"reprise {version} ({str(commit)[:8]})" for version, commit in (writer, this_version()))
        raise UserError(f"{error} (it was written by {there:.60}, this is {here})") from error


def trained_config(checkpoint: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Returns the config of the model that the checkpoint holds, its classes by today's names; None if it holds none.

    Which classes it may name, `src.config.from_file.values_for` decides. Raises UserError where it is no config.
    """
    config = checkpoint.get("model_config")
    if config is None:
        return None
    if not isinstance(config, dict) or not {"name", "task"} <= config.keys() or not isinstance(config["task"], dict):
        raise UserError(f"{path}: its model_config is no config of a model; give a checkpoint that train.py wrote")
    return renamed(config)


def renamed(config: Any) -> Any:
    """Returns the config with today's names of the modules in MOVED."""
    if isinstance(config, dict):
        return {key: renamed(value) for key, value in config.items()}
    if isinstance(config, list):
        return [renamed(value) for value in config]
    for old, new in MOVED.items():
        if isinstance(config, str) and config.startswith(old):
            config = new + config.removeprefix(old)
    return config


def compare(checkpoint: dict[str, Any], path: Path, task: nn.Module) -> None:
    """Raises UserError naming the first parameter whose name, shape or kind of numbers differs from the task's."""
    theirs, ours = checkpoint["state_dict"], task.state_dict()
    for key in sorted(theirs.keys() | ours.keys()):
        there, here = (described(tensors.get(key)) for tensors in (theirs, ours))
        if there != here:
            raise UserError(
                f"{path}: a checkpoint of another architecture: {key.removeprefix('network.')} is {there} there and "
                f"{here} here; use the model config it was trained with"
            )


def load_weights(task: nn.Module, checkpoint: dict[str, Any], path: Path) -> None:
    """Puts the checkpoint's weights into the task; raises UserError where the networks differ."""
    compare(checkpoint, path, task)
    task.load_state_dict(checkpoint["state_dict"])


def described(tensor: Tensor | None) -> str:
    """Returns a tensor's shape, and the kind of its numbers where a copy would not be the same."""
    if tensor is None:
        return "absent"
    kind = (
        " of complex numbers" if tensor.dtype.is_complex else "" if tensor.dtype.is_floating_point else " of integers"
    )
    return f"{shown(tensor.shape)}{kind}"


def shown(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))

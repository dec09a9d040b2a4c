"""Reads files that others may have written: every reader of foreign bytes begins here (tests/fuzz/test_sites.py).

What is read is a regular file: opening a FIFO or a device could wait for ever. Sizes that a file claims are compared
with those that it has before memory is taken, and nothing that it names is called. What is wrong is a UserError of one
line, which ends with the caller's advice.
"""

import io
import json
import math
import os
import pickle
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.errors import UserError

if TYPE_CHECKING:  # both are imported where they are used: a command that shows a config must not take their seconds
    import numpy as np
    from torch import Tensor

ADVICE = "give another file"
MOST_BYTES = 2**32  # of a file that is read whole
MOST_JSON = 2**26  # whose values take many times as much memory
MOST_YAML = 2**20  # which take seconds
MOST_DEPTH, MOST_VALUES = 50, 10**7  # of values in each other, and of values once aliases are written out
BAD_ZIP = zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, KeyError, OverflowError
MOST_PICKLED = 2**24  # bytes of the pickles in a file of torch's, beside the tensors' own; each takes a microsecond
PICKLES = 5  # before the tensors in a file of torch's that is no archive
LONGEST = 21_000, 1_000  # characters of a text in a pickle, above what `check_plain` takes, and of a name
MOST_INFLATED = 1100  # times its compressed size: deflate makes 1,032 of one byte at most


def open_file(path: Path, advice: str = ADVICE) -> io.BufferedReader:
    """Opens a regular file for reading. Raises UserError for what cannot be read, and for a folder, FIFO or device."""
    return os.fdopen(open_descriptor(path, advice), "rb")


def open_descriptor(path: Path, advice: str = ADVICE) -> int:
    """Does what `open_file` does; returns the descriptor, which the caller closes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {advice}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"cannot read {path} (it is no regular file): {advice}")
    return descriptor


def read_bytes(path: Path, advice: str = ADVICE, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a regular file. Raises UserError for more than `most` bytes, before they are read."""
    with open_file(path, advice) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, more than the {most:,} that are read: {advice}")
        try:
            return file.read()
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror}): {advice}") from error


def read_text(path: Path, advice: str = ADVICE, most: int = MOST_BYTES) -> str:
    """Returns the text of a file in UTF-8. Raises UserError that names the line of any other byte."""
    return decoded(read_bytes(path, advice, most), str(path), advice)


def decoded(data: bytes, where: str, advice: str = ADVICE) -> str:
    """Returns a text in UTF-8; `where` names it in messages. Raises UserError that names the line of any other byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise UserError(f"{where} line {line} is not UTF-8 (byte 0x{byte:02x}): {advice}") from error


def read_json(path: Path, advice: str = ADVICE) -> Any:
    """Returns the value in a JSON file. Raises UserError for any other, and for a deep or large one."""
    return parsed_json(read_text(path, advice, MOST_JSON), str(path), advice)


def parsed_json(text: str, where: str, advice: str = ADVICE, **options: Any) -> Any:
    """Returns the value of a text of JSON; `where` names it in messages. Raises UserError as `read_json`.

    Args:
        options: of `json.loads`.
    """
    try:
        value = json.loads(text, **options)
        _check_extent(value)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({_reason(error)}): {advice}") from error
    return value


def read_yaml(path: Path, advice: str = ADVICE) -> Any:
    """Returns the value of a YAML file of plain values. Raises UserError as `read_json`."""
    import yaml

    text = read_text(path, advice, MOST_YAML)
    try:
        value = yaml.safe_load(text)
        _check_extent(value)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not YAML ({_reason(error)}): {advice}") from error
    return value


def _check_extent(value: Any) -> None:
    """Raises ValueError for values too deep in each other, and for aliases that stand for too many values."""
    extents: dict[int, tuple[int, int] | None] = {}  # of each list and dict: its values and its depth

    def extent(part: Any) -> tuple[int, int]:
        if not isinstance(part, dict | list):
            return 1, 0
        if id(part) in extents:
            earlier = extents[id(part)]
            if earlier is None:
                raise ValueError("a value holds itself")
            return earlier
        extents[id(part)] = None
        parts = [extent(child) for child in (part.values() if isinstance(part, dict) else part)]
        count, depth = 1 + sum(n for n, _ in parts), 1 + max((d for _, d in parts), default=0)
        if depth > MOST_DEPTH or count > MOST_VALUES:
            raise ValueError(f"more than {MOST_DEPTH} values in each other, or {MOST_VALUES:,} in all")
        extents[id(part)] = count, depth
        return count, depth

    extent(value)


def read_npy(path: Path, advice: str = ADVICE, *, mapped: bool = False) -> "np.ndarray":
    """Returns the array of a .npy file, or if `mapped` a read-only view of the file.

    Raises UserError for a file that has not exactly the bytes that its header says.
    """
    import numpy as np

    with open_file(path, advice) as file:
        try:
            array = _array(file, os.fstat(file.fileno()).st_size)
            return np.load(path, mmap_mode="r", allow_pickle=False) if mapped else array()
        except Exception as error:  # numpy parses a header as Python, and raises nearly anything
            raise UserError(f"{path} is no array as numpy writes it ({_reason(error)}): {advice}") from error


def read_npz(path: Path, names: tuple[str, ...], advice: str = ADVICE) -> "dict[str, np.ndarray]":
    """Returns the arrays `names` of a .npz file. Raises UserError for a missing or damaged one."""
    arrays = {}
    with open_zip(path, advice) as archive:
        for name in names:
            if f"{name}.npy" not in archive.namelist():
                raise UserError(f"{path} has no array {name}: {advice}")
            with archive.open(f"{name}.npy") as member:
                try:
                    arrays[name] = _array(member, archive.getinfo(f"{name}.npy").file_size)()
                except Exception as error:
                    raise UserError(f"{path}: {name} is no array ({_reason(error)}): {advice}") from error
    return arrays


def _array(file: Any, size: int) -> "Callable[[], np.ndarray]":
    """Returns a function that reads the array of an open file of `size` bytes, whose header agrees with them."""
    import numpy as np

    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"a header of version {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = header(file)
    needed = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.itemsize == 0 or any(side < 0 for side in shape):
        raise ValueError(f"{shape} of {dtype}")
    if needed != size - file.tell():
        raise ValueError(f"{shape} of {dtype} are {needed:,} bytes, it has {size - file.tell():,}")

    def read() -> "np.ndarray":
        data = bytearray(needed)  # so that the array can be written to
        done, view = 0, memoryview(data)
        while done < needed:
            count = file.readinto(view[done:])
            if not count:
                raise EOFError("it ends within the array")
            done += count
        return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")

    return read


@contextmanager
def open_zip(path: Path, advice: str = ADVICE) -> Iterator[zipfile.ZipFile]:
    """Yields an archive whose members are stored or deflated, unencrypted, and not larger than they can be.

    Raises UserError for any other archive, and for damage that is found while its members are read.
    """
    with open_file(path, advice) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    name = f"{path}: its member {member.filename}"
                    if member.flag_bits & 1:
                        raise UserError(f"{name} is encrypted: {advice}")
                    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise UserError(f"{name} is compressed in a way that is not read: {advice}")
                    if member.compress_size > size or member.file_size > MOST_INFLATED * (member.compress_size + 1):
                        raise UserError(f"{name} cannot have the {member.file_size:,} bytes that it claims: {advice}")
                yield archive
        except BAD_ZIP as error:
            raise UserError(f"{path} is truncated or altered ({_reason(error)}): {advice}") from error


def load_pickled(path: Path, *, mapped: bool = False) -> Any:
    """Returns what `torch.save` wrote, on the CPU. Nothing that it names is called.

    Raises UserError for what is no regular file, and nearly anything for damaged bytes. Names and texts longer than any
    that we write are refused first: torch searches its message about one for minutes.
    """
    import torch

    with open_file(path) as file:
        if file.read(4) == b"PK\3\4":
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    if member.filename.endswith("data.pkl"):
                        with archive.open(member) as pickled:
                            _check_pickle(io.BytesIO(pickled.read(MOST_PICKLED)))
        else:
            file.seek(0)
            pickles = io.BytesIO(file.read(MOST_PICKLED))
            for _ in range(PICKLES):
                if pickles.tell() < len(pickles.getbuffer()):
                    _check_pickle(pickles)
        file.seek(0)
        return torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)


def _check_pickle(pickled: io.BytesIO) -> None:
    """Raises UnpicklingError where the next pickle is none, or has a longer name or text."""
    import pickletools

    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, str | bytes) and len(argument) > LONGEST[operation.name == "GLOBAL"]:
                raise pickle.UnpicklingError(f"it has a text of {len(argument):,} characters")
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # what decodes the arguments raises nearly anything
        raise pickle.UnpicklingError(f"it is no pickle: {error}") from None


def read_weights(path: Path, advice: str = ADVICE) -> "dict[str, Tensor]":
    """Returns the tensors by name, on the CPU, of a safetensors file or of what `torch.save` wrote.

    Nothing that a pickle names is called. Raises UserError for any other file, and for values that are no tensors.
    """
    import torch
    from safetensors.torch import load_file

    with open_file(path, advice) as file:
        is_archive = file.read(4) == b"PK\3\4"
    try:
        if path.suffix == ".safetensors":
            values: Any = load_file(path)
        else:
            if is_archive:
                with open_zip(path, advice):
                    """Its members have the sizes that they claim."""
            values = load_pickled(path)
    except UserError:
        raise
    except Exception as error:  # safetensors, pickle and torch raise nearly anything for damaged bytes
        raise UserError(f"{path} is truncated or not a weight file ({_reason(error)}): {advice}") from None
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UserError(f"{path} holds no tensors by name: {advice}")
    for name, value in values.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or not _is_dense(value):
            raise UserError(f"{path}: {name} is no dense tensor of real numbers but {type(value).__name__}: {advice}")
    return dict(values)


def _is_dense(tensor: "Tensor") -> bool:
    """Returns whether a tensor has its numbers in memory, each of its own: not sparse, quantised or expanded."""
    import torch

    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_complex():
        return False
    is_in_memory = tensor.device.type == "cpu"
    return is_in_memory and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _reason(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:120]

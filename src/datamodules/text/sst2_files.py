"""Downloads and reads GLUE's SST-2 files."""

import shutil
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from src.batches.tokens import UNLABELLED
from src.datamodules.download import from_url, sha256_of
from src.errors import UserError
from src.system.files import sole_maker, written_atomically
from src.system.reading import open_zip, read_text

URL = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"  # 7 MB; GLUE publishes no checksum
SHA256 = {
    "train": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
    "dev": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
    "test": "69a938605609b3e6663b4487918fe1565eb293734e6e520d0366d1d412fd2a13",
}
SPLITS = tuple(SHA256)
LABELLED = ("train", "dev")
FIRST_LINE = 2  # of the sentences; the header is line 1


def glue_files(folder: Path) -> dict[str, Path]:
    """GLUE's files in `folder` by split; downloads missing ones. Raises UserError for a file with another checksum."""
    paths = {split: folder / f"{split}.tsv" for split in SPLITS}
    with sole_maker(*paths.values()):
        missing = {f"SST-2/{split}.tsv": path for split, path in paths.items() if not path.exists()}
        if missing:
            _unpack(missing, folder)
    for split, path in paths.items():
        if sha256_of(path) != SHA256[split]:
            raise UserError(f"{path} is not GLUE's file: delete it, or give your own files as datamodule.raw=FOLDER")
    return paths


def _unpack(targets: dict[str, Path], folder: Path) -> None:
    """Writes members of GLUE's archive to their targets; downloads it first if `folder` has none."""
    try:
        archive = from_url(URL, None, folder / Path(URL).name)
    except UserError as error:
        raise UserError(f"{error}, or give train.tsv and dev.tsv as datamodule.raw=FOLDER") from error
    with open_zip(archive, "delete it to download it again") as members:
        for name, path in targets.items():
            with written_atomically(path) as part, members.open(name) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)


def own_files(folder: Path) -> dict[str, Path]:
    """Returns the files in a folder by split; `test` is optional. Raises UserError if another is missing."""
    paths = {split: folder / f"{split}.tsv" for split in SPLITS}
    for split in LABELLED:
        if not paths[split].is_file():
            raise UserError(f"datamodule.raw={folder} has no {split}.tsv: give a folder with train.tsv and dev.tsv")
    return {split: path for split, path in paths.items() if path.is_file()}


def read_tsv(path: Path, *, labelled: bool) -> tuple[list[str], Int64[np.ndarray, " sentences"]]:
    """Returns the sentences of a file and their labels: 0 or 1, or UNLABELLED for all if not `labelled`.

    The header names the columns, in any order. There is no quoting: a quotation mark is part of its sentence. Raises
    UserError that names file and line for other text.
    """
    text = read_text(path, "save the file as UTF-8")
    header, *rows = (line.removesuffix("\r").split("\t") for line in text.removesuffix("\n").split("\n"))
    for column in ("sentence", "label")[: 1 + labelled]:
        if column not in header:
            raise UserError(f"{path} line 1: there is no column '{column}', only {', '.join(map(repr, header))}")
    for line, row in enumerate(rows, FIRST_LINE):
        if len(row) != len(header):
            raise UserError(f"{path} line {line} has {len(row)} columns, the header {len(header)}: correct the line")
    sentences = [row[header.index("sentence")] for row in rows]
    if not labelled:
        return sentences, np.full(len(rows), UNLABELLED)
    column = header.index("label")
    for line, row in enumerate(rows, FIRST_LINE):
        if row[column] not in ("0", "1"):
            raise UserError(f"{path} line {line}: the label is {row[column]!r}; it must be 0 or 1")
    return sentences, np.array([int(row[column]) for row in rows], np.int64)

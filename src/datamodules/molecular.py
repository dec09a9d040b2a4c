"""Molecules as arrays: prepared once from SMILES files, kept in a folder that is whole or not there, and split."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rdkit
from jaxtyping import Int, UInt8

from src.datamodules.download import sha256_of
from src.errors import UserError
from src.molecules.encode import encode_all
from src.molecules.vocabulary import Vocabulary

LAYOUT = 1
ARRAYS = ("nodes.npy", "edges.npy", "rows.npy")
TEXTS = ("smiles.txt", "published.txt", "canonical.txt")
META = "meta.json"


class Row(NamedTuple):
    """One molecule of the published order, and where it stands."""

    smiles: str
    file: Path
    line: int


@dataclass(frozen=True)
class MolecularData:
    """Prepared molecules and their split; `nodes` and `edges` are memory-mapped.

    Of each molecule, `smiles` is as in the raw file, `published` and `canonical` as in `src.molecules.encode.Encoded`.
    The indices are positions in these, ascending.
    """

    vocabulary: Vocabulary
    nodes: UInt8[np.ndarray, "molecules max_atoms"]
    edges: UInt8[np.ndarray, "molecules max_atoms max_atoms"]
    smiles: list[str]
    published: list[str]
    canonical: list[str]
    train_index: Int[np.ndarray, " train"]
    valid_index: Int[np.ndarray, " valid"]
    folder: Path

    @cached_property
    def train_published(self) -> frozenset[str]:
        """The training molecules as the published code writes them."""
        return frozenset(self.published[i] for i in self.train_index)

    @cached_property
    def train_canonical(self) -> frozenset[str]:
        """The training molecules in canonical SMILES."""
        return frozenset(self.canonical[i] for i in self.train_index) - {""}


@dataclass(frozen=True)
class Selection:
    """Which molecules are prepared: at most `limit` of them, drawn with `seed`; bad ones are refused or left out."""

    limit: int | None = None
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit} leaves no molecule: give 1 or more, or null for all")

    @property
    def name(self) -> str:
        """The name of the folder that holds these molecules."""
        parts = ["all" if self.limit is None else f"{self.limit}_seed{self.seed}"] + ["skip_bad"] * self.skip_bad
        return "prepared_" + "_".join(parts)

    def rows(self, total: int) -> Int[np.ndarray, " molecules"]:
        """The chosen rows out of `total`, ascending."""
        if self.limit is None or self.limit >= total:
            return np.arange(total)
        return np.sort(np.random.default_rng(self.seed).choice(total, self.limit, replace=False))


def prepare(
    files: list[Path],
    read: Callable[[], list[Row]],
    vocabulary: Vocabulary,
    folder: Path,
    selection: Selection,
    workers: int | None = None,
) -> Path:
    """The folder inside `folder` with the arrays of the chosen molecules, made where it is not there yet.

    Raises UserError for a molecule that cannot be encoded (unless `skip_bad`: then `bad.txt` lists them), and for a
    prepared folder that belongs to other files or settings.
    """
    prepared = folder / selection.name
    origin = {
        "layout": LAYOUT,
        "inputs": {path.name: sha256_of(path) for path in files},
        "vocabulary": asdict(vocabulary) | {"atomic_numbers": list(vocabulary.atomic_numbers)},
        "selection": asdict(selection),
    }
    if prepared.exists():
        if {key: _read_meta(prepared).get(key) for key in origin} != origin:
            raise UserError(f"{prepared} was prepared from other files or settings: delete it to prepare it again")
        return prepared
    with _made_whole(prepared) as part:
        _write(part, read(), vocabulary, selection, origin, workers)
    return prepared


def _write(
    part: Path,
    all_rows: list[Row],
    vocabulary: Vocabulary,
    selection: Selection,
    origin: dict[str, Any],
    workers: int | None,
) -> None:
    chosen = selection.rows(len(all_rows))
    rows = [all_rows[i] for i in chosen]
    good = np.ones(len(rows), bool)
    bad: list[str] = []

    def on_bad(position: int, reason: str) -> None:
        smiles, file, line = rows[position]
        problem = f"{file} line {line}: {smiles!r} {reason}"
        if not selection.skip_bad:
            raise UserError(f"{problem}; correct the file, or set skip_bad=true to leave such molecules out")
        good[position] = False
        bad.append(problem)

    encoded = encode_all([row.smiles for row in rows], vocabulary, on_bad=on_bad, workers=workers)
    if not good.any():
        raise UserError(
            f"no molecule of {rows[0].file if rows else 'an empty file'} can be encoded: check its contents"
        )
    for name, array in zip(ARRAYS, (encoded.nodes, encoded.edges, chosen[good]), strict=True):
        np.save(part / name, array)
    smiles = [row.smiles for row, kept in zip(rows, good, strict=True) if kept]
    for name, lines in zip(TEXTS, (smiles, encoded.published, encoded.canonical), strict=True):
        _write_lines(part / name, lines)
    if bad:
        _write_lines(part / "bad.txt", bad)
    meta = origin | {
        "total": len(all_rows),
        "molecules": len(smiles),
        "bad": len(bad),
        "rdkit": rdkit.__version__,
        "sha256": {name: sha256_of(part / name) for name in ARRAYS + TEXTS},
    }
    (part / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def load(
    prepared: Path, vocabulary: Vocabulary, hold_out: Callable[[int], Int[np.ndarray, " held_out"]]
) -> MolecularData:
    """The molecules of a prepared folder; those whose row is in `hold_out(number of rows)` are the validation split.

    Raises UserError for a truncated or altered file and for a split with an empty half.
    """
    meta = _read_meta(prepared)
    for name, sha256 in meta["sha256"].items():
        # A third of a second for all of ZINC-250k, which is about to be read anyway.
        if not (prepared / name).exists() or sha256_of(prepared / name) != sha256:
            raise UserError(
                f"{prepared / name} is missing, truncated or altered: delete {prepared} to prepare it again"
            )
    nodes, edges, rows = (np.load(prepared / name, mmap_mode="r") for name in ARRAYS)
    smiles, published, canonical = ((prepared / name).read_text("utf-8").splitlines() for name in TEXTS)
    is_held_out = np.isin(rows, hold_out(meta["total"]))
    if is_held_out.all() or not is_held_out.any():
        raise UserError(f"the split of {len(rows)} molecules in {prepared} has an empty half: raise limit")
    return MolecularData(
        vocabulary=vocabulary,
        nodes=nodes,
        edges=edges,
        smiles=smiles,
        published=published,
        canonical=canonical,
        train_index=np.flatnonzero(~is_held_out),
        valid_index=np.flatnonzero(is_held_out),
        folder=prepared,
    )


def _read_meta(prepared: Path) -> dict[str, Any]:
    path = prepared / META
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete {prepared} to prepare it again") from error


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that gets its name at the end, and is removed on any failure."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}): give another data_dir, or make room") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)

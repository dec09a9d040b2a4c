"""Your own molecules: a file with one SMILES a line, or a table with a column of them, of any elements."""

from collections.abc import Sequence
from pathlib import Path

from src.config.ranges import Count, OpenShare, Seed
from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.molecules.own import Settings, SplitBy, load_own, prepare_own
from src.datamodules.molecules.smiles_rows import read_rows
from src.datamodules.prepared import Selection
from src.errors import UserError
from src.molecules.standardise import Allowed
from src.molecules.vocabulary import ZINC250K, number_of


def load(
    data_dir: str | Path,
    *,
    file: str | Path,
    column: str = "smiles",
    held_out_share: OpenShare = 0.1,
    split: SplitBy = "grouped",
    split_column: str | None = None,
    split_values: Sequence[str] = ("train", "val", "valid", "test"),
    elements: Sequence[str] | None = None,
    rare_below: Count = 5,
    max_atoms: Count = ZINC250K.max_atoms,
    keep_largest_fragment: bool = False,
    drop_stereo: bool = True,
    neutralise: bool = False,
    drop_isotopes: bool = False,
    saturate_radicals: bool = False,
    drop_duplicates: bool = False,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = True,
    workers: Count | None = None,
) -> MolecularData:
    """Returns the molecules of `file`; prepares them in a subfolder of `data_dir` first if necessary.

    Args:
        data_dir: folder of the prepared arrays.
        file: one SMILES a line (text after a blank is its name; empty lines are ignored), or a .csv or .tsv table.
        column: of the SMILES in a table.
        held_out_share: share of the molecules to hold out, drawn with `seed`.
        split: "grouped": a molecule that stands in several rows is on one side; "scaffold": so is each Bemis-Murcko
            scaffold; "random": rows; "column": as the column `split_column` of the table says.
        split_values: of that column: first that of training, then those of held-out rows.
        elements: symbols of the atoms' classes; None: all elements of the file. Molecules with others are dropped.
        rare_below: drop molecules with an element that fewer different molecules have, unless `elements` is given.
        max_atoms: of the largest molecule, without hydrogen; the network's is the same.
        keep_largest_fragment: of a salt or mixture, instead of dropping it.
        drop_stereo: from molecules that have it, instead of dropping them.
        neutralise: move protons to remove charges, instead of dropping molecules whose charges cannot be encoded.
        drop_isotopes: labels, instead of dropping molecules that have them.
        saturate_radicals: with hydrogen, instead of dropping them.
        drop_duplicates: keep the first row of each molecule only.
        skip_bad: drop molecules that cannot be encoded, count them and list them in bad.txt; false refuses them.
        limit, seed, workers: as for ZINC-250k.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"datamodule.source.file={path} does not exist; give a file with one SMILES a line")
    if (split == "column") != (split_column is not None):
        raise UserError("datamodule.source: split=column and split_column=NAME belong together; give both or neither")
    if len(set(split_values)) < max(2, len(split_values)):
        raise UserError("datamodule.source.split_values: give different values, that of training first")
    symbols = None if elements is None else tuple(map(str, elements))
    for symbol in symbols or ():
        number_of(symbol)
    allowed = Allowed(keep_largest_fragment, drop_stereo, neutralise, drop_isotopes, saturate_radicals)
    settings = Settings(
        max_atoms, symbols, rare_below if symbols is None else 1, allowed, drop_duplicates, column, split, split_column
    )
    selection = Selection(limit, seed, skip_bad)
    folder = prepare_own(
        path, lambda: read_rows(path, column, split_column), settings, Path(data_dir), selection, workers
    )
    return load_own(folder, settings, held_out_share, seed, split_values)

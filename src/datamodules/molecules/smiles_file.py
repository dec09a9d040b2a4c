"""Your own molecules: a text file with one SMILES a line, of any elements."""

from collections.abc import Sequence
from pathlib import Path

from src.config.ranges import Count, OpenShare, Seed
from src.datamodules.molecules.encoded import MolecularData, Row, prepare
from src.datamodules.molecules.encoded import load as load_prepared
from src.datamodules.prepared import Selection
from src.datamodules.splits import seeded_split
from src.datamodules.text_files import lines_of
from src.errors import UserError
from src.molecules.vocabulary import ZINC250K, of_elements


def load(
    data_dir: str | Path,
    *,
    file: str | Path,
    held_out_share: OpenShare = 0.1,
    elements: Sequence[str] | None = None,
    max_atoms: Count = ZINC250K.max_atoms,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = True,
    workers: Count | None = None,
) -> MolecularData:
    """Returns the molecules of `file`; prepares them in `data_dir` first if necessary.

    Args:
        data_dir: folder of the prepared arrays.
        file: one SMILES a line; text after a blank is ignored, and so are empty lines.
        held_out_share: share of the molecules to hold out, drawn with `seed`.
        elements: symbols of the atoms' classes; None: all elements of the file. Molecules with others are bad.
        max_atoms: of the largest molecule, without hydrogen; the network's is the same.
        skip_bad: drop molecules that cannot be encoded, count them and list them in bad.txt; false refuses them.
        limit, seed, workers: as for ZINC-250k.
    """
    path = Path(file)

    if not path.is_file():
        raise UserError(f"datamodule.source.file={path} does not exist; give a file with one SMILES a line")
    vocabulary = max_atoms if elements is None else of_elements(path.name, elements, max_atoms)
    kind = f"_up_to_{max_atoms}_of_{'all' if elements is None else ''.join(elements)}"
    selection = Selection(limit, seed, skip_bad)
    prepared = prepare([path], lambda: rows_of(path), vocabulary, Path(data_dir), selection, workers, kind)
    return load_prepared(prepared, vocabulary, lambda total: seeded_split(total, held_out_share, seed))


def rows_of(path: Path) -> list[Row]:
    """Returns the SMILES of a file. Raises UserError where it is not text in UTF-8."""
    return [Row(line.split()[0], path, number) for number, line in enumerate(lines_of(path), 1) if line.strip()]

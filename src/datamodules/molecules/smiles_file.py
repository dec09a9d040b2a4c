"""Your own molecules: a text file with one SMILES a line, encoded with ZINC-250k's vocabulary."""

from pathlib import Path

from src.datamodules.molecules.encoded import MolecularData, Row, prepare
from src.datamodules.molecules.encoded import load as load_prepared
from src.datamodules.prepared import Selection
from src.datamodules.splits import seeded_split
from src.errors import UserError
from src.molecules.vocabulary import ZINC250K


def load(
    data_dir: str | Path,
    *,
    file: str | Path,
    held_out_share: float = 0.1,
    max_atoms: int = ZINC250K.max_atoms,
    limit: int | None = None,
    seed: int = 0,
    skip_bad: bool = True,
    workers: int | None = None,
) -> MolecularData:
    """Returns the molecules of `file`; prepares them in `data_dir` first if necessary.

    Args:
        data_dir: folder of the prepared arrays.
        file: one SMILES a line; text after a blank is ignored, and so are empty lines.
        held_out_share: share of the molecules to hold out, drawn with `seed`.
        max_atoms: of the largest molecule, without hydrogen; the network's is the same.
        skip_bad: drop molecules that cannot be encoded, count them and list them in bad.txt; false refuses them.
        limit, seed, workers: as for ZINC-250k.
    """
    path = Path(file)

    def read() -> list[Row]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Row(line.split()[0], path, number + 1) for number, line in enumerate(lines) if line.strip()]

    if not path.is_file():
        raise UserError(f"datamodule.source.file={path} does not exist; give a file with one SMILES a line")
    vocabulary, folder = ZINC250K.up_to(max_atoms), Path(data_dir)
    folder = folder if vocabulary == ZINC250K else folder / f"up_to_{max_atoms}_atoms"
    prepared = prepare([path], read, vocabulary, folder, Selection(limit, seed, skip_bad), workers)
    return load_prepared(prepared, vocabulary, lambda total: seeded_split(total, held_out_share, seed))

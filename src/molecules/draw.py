"""Pictures of molecules."""

from collections.abc import Sequence
from pathlib import Path

from rdkit import Chem
from rdkit.Chem import rdDepictor

from src.errors import UserError
from src.system.files import written_atomically

COLUMNS = 5
CELL = (260, 220)


def draw_grid(smiles: Sequence[str], path: Path, legends: Sequence[str] | None = None) -> None:
    """Writes a PNG of the molecules, row by row, each with its legend. Raises UserError if it cannot be written."""
    _draw([Chem.MolFromSmiles(text) for text in smiles], path, legends or [""] * len(smiles))


def draw_rows(rows: Sequence[Sequence[str | None]], legends: Sequence[Sequence[str]], path: Path) -> None:
    """Writes a PNG with these rows of molecules, all of one length; None is drawn as `none`. Raises UserError."""
    molecules = [_placeholder("none") if text is None else Chem.MolFromSmiles(text) for row in rows for text in row]
    _draw(molecules, path, [legend for row in legends for legend in row], len(rows[0]))


def draw_interpolation(smiles: Sequence[str | None], path: Path) -> None:
    """Writes a PNG of an interpolation from the first molecule to the last; None is a point without a valid molecule.

    A run of equal molecules is drawn once, its range in the legend. Raises UserError if the file cannot be written.
    """
    molecules, legends = [], []
    start = 0
    while start < len(smiles):
        end = start
        while end + 1 < len(smiles) and smiles[end + 1] == smiles[start]:
            end += 1
        text = smiles[start]
        molecules.append(_placeholder("invalid") if text is None else Chem.MolFromSmiles(text))
        legends.append(_position(start, end, len(smiles) - 1))
        start = end + 1
    _draw(molecules, path, legends)


def _position(start: int, end: int, last: int) -> str:
    """Returns the position between the two ends in percent: `40%`, or `40-60%` for a run."""
    percents = [round(100 * index / max(last, 1)) for index in (start, end)]
    return f"{percents[0]}%" if start == end else f"{percents[0]}-{percents[1]}%"


def _placeholder(label: str) -> Chem.Mol:
    """Returns a molecule drawn as a word, because RDKit writes no legend below an empty molecule."""
    molecule = Chem.MolFromSmiles("*")
    molecule.GetAtomWithIdx(0).SetProp("_displayLabel", label)
    return molecule


def _draw(molecules: list[Chem.Mol], path: Path, legends: Sequence[str], columns: int = COLUMNS) -> None:
    try:
        from rdkit.Chem.Draw import rdMolDraw2D  # needs X libraries, which a server may lack
    except ImportError as error:
        raise UserError(f"{path} cannot be drawn ({error}): install it (Debian: libxrender1 libxext6)") from None
    columns = min(columns, max(len(molecules), 1))
    rows = max(-(-len(molecules) // columns), 1)
    canvas = rdMolDraw2D.MolDraw2DCairo(columns * CELL[0], rows * CELL[1], *CELL)
    options = canvas.drawOptions()
    options.padding, options.legendFontSize, options.bondLineWidth = 0.08, 16, 2
    options.drawMolsSameScale = False
    if any("\n" in legend for legend in legends):
        options.legendFraction, options.padding = 0.18, 0.12  # of the cell: room for two lines
    options.fixedBondLength = 32
    for molecule in molecules:
        rdDepictor.Compute2DCoords(molecule)
    canvas.DrawMolecules(molecules, legends=list(legends))
    canvas.FinishDrawing()
    with written_atomically(path) as temporary:
        temporary.write_bytes(canvas.GetDrawingText())

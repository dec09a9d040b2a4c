"""Pictures of molecules, each as PNG and as SVG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdDepictor

from src.errors import UserError
from src.system.files import written_atomically

COLUMNS = 5
CELL, LARGEST = (260, 220), (640, 440)  # pixels; a cell grows with its largest molecule
LEAST_SCALE = 12  # pixels of an angstrom, 18 of a bond
PADDING = 0.1  # of a cell, at each side
CHARACTER = 8  # pixels of a legend's character


def draw_grid(smiles: Sequence[str], path: Path, legends: Sequence[str] | None = None) -> None:
    """Writes a picture of the molecules, row by row, each with its legend and its SMILES.

    Raises UserError if it cannot be written.
    """
    captions = [
        f"{legend}: {text}".removeprefix(": ")
        for legend, text in zip(legends or [""] * len(smiles), smiles, strict=True)
    ]
    _draw([Chem.MolFromSmiles(text) for text in smiles], path, captions)


def draw_rows(rows: Sequence[Sequence[str | None]], legends: Sequence[Sequence[str]], path: Path) -> None:
    """Writes a picture with these rows of molecules of one length; None is drawn as `none`. Raises UserError."""
    molecules = [_placeholder("none") if text is None else Chem.MolFromSmiles(text) for row in rows for text in row]
    _draw(molecules, path, [legend for row in legends for legend in row], len(rows[0]))


def draw_interpolation(smiles: Sequence[str | None], path: Path) -> None:
    """Writes a picture of an interpolation from the first molecule to the last; None is a point without a valid one.

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
        legends.append(": ".join(filter(None, (_position(start, end, len(smiles) - 1), text))))
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


def _draw(molecules: list[Chem.Mol], path: Path, legends: Sequence[str], columns: int | None = None) -> None:
    """Writes `path` as PNG, and an SVG beside it; `columns`: as many as have room if not given."""
    try:
        from rdkit.Chem.Draw import rdMolDraw2D  # needs X libraries, which a server may lack
    except ImportError as error:
        raise UserError(f"{path} cannot be drawn ({error}): install it (Debian: libxrender1 libxext6)") from None
    for molecule in molecules:
        rdDepictor.Compute2DCoords(molecule)
    cell = _cell(molecules)
    columns = columns or min(COLUMNS * CELL[0] // cell[0], max(len(molecules), 1))
    rows = max(-(-len(molecules) // columns), 1)
    for file, draw in ((path, rdMolDraw2D.MolDraw2DCairo), (path.with_suffix(".svg"), rdMolDraw2D.MolDraw2DSVG)):
        canvas = draw(columns * cell[0], rows * cell[1], *cell)
        options = canvas.drawOptions()
        options.padding, options.legendFontSize, options.bondLineWidth = PADDING, 14, 2
        options.legendFraction = 48 / cell[1]  # room for two lines
        options.drawMolsSameScale = False
        options.fixedBondLength = 32
        canvas.DrawMolecules(molecules, legends=[_fitting(legend, cell[0]) for legend in legends])
        canvas.FinishDrawing()
        drawn = canvas.GetDrawingText()
        with written_atomically(file) as temporary:
            temporary.write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)


def _cell(molecules: Sequence[Chem.Mol]) -> tuple[int, int]:
    """Returns the width and height in pixels in which the bonds of the largest molecule can still be seen."""
    extents = np.array([np.ptp(molecule.GetConformer().GetPositions(), axis=0)[:2] for molecule in molecules])
    needed = LEAST_SCALE * extents.max(axis=0, initial=0, where=np.isfinite(extents)) / (1 - 2 * PADDING)
    width, height = np.clip(needed, CELL, LARGEST).astype(int).tolist()
    return width, height


def _fitting(legend: str, width: int) -> str:
    """Returns the legend with lines that are wider than the cell cut."""
    most = width // CHARACTER
    return "\n".join(line if len(line) <= most else f"{line[: most - 3]}..." for line in legend.split("\n"))

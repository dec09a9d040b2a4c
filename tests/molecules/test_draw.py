import math
import struct

import pytest

from src.errors import UserError
from src.molecules import draw
from src.molecules.draw import _fitting, draw_grid, draw_interpolation, draw_rows


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def test_a_grid_has_a_cell_for_each_molecule(tmp_path, neutral):
    draw_grid(neutral[:7], tmp_path / "new" / "grid.png", [f"QED {i}" for i in range(7)])
    assert size_of((tmp_path / "new" / "grid.png").read_bytes()) == (5 * 260, 2 * 220)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"grid.png", "grid.svg"}
    assert (tmp_path / "new" / "grid.svg").read_text().rstrip().endswith("</svg>")


def test_cells_grow_with_the_largest_molecule(tmp_path):
    draw_grid(["CCO", "C" * 30, "CCN"], tmp_path / "grid.png")
    width, height = size_of((tmp_path / "grid.png").read_bytes())
    assert (width, height) == (2 * fitting_cell(30), 2 * 220)


def fitting_cell(atoms):
    """Returns the width in pixels of a cell in which each bond of a zigzag chain has 18 pixels, 10% free at a side."""
    return int((atoms - 1) * 18 * math.sin(math.radians(60)) / 0.8)


def test_legends_have_the_smiles_and_are_cut_at_the_width_of_the_cell(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(draw, "_draw", lambda molecules, path, legends: seen.extend(legends))
    draw_grid(["CCO"], tmp_path / "grid.png", ["QED 0.4"])
    draw_interpolation(["CCO", None, "CCN"], tmp_path / "way.png")
    assert seen == ["QED 0.4: CCO", "0%: CCO", "50%", "100%: CCN"]
    assert _fitting("short\n" + 40 * "C", 260) == "short\n" + 29 * "C" + "..."


def test_an_interpolation_shows_equal_neighbours_once(tmp_path):
    draw_interpolation(["CCO", "CCO", None, "CCN", "CCN", "CCN"], tmp_path / "interpolation.png")
    assert size_of((tmp_path / "interpolation.png").read_bytes()) == (3 * 260, 220)


def test_rows_have_a_cell_for_each_molecule_and_for_none(tmp_path):
    draw_rows([["CCO", "CCN", None], ["CCO", None, "CC"]], [["a\nb"] * 3] * 2, tmp_path / "rows.png")
    assert size_of((tmp_path / "rows.png").read_bytes()) == (3 * 260, 2 * 220)


def test_no_molecules_make_an_empty_picture(tmp_path):
    draw_grid([], tmp_path / "grid.png")
    assert size_of((tmp_path / "grid.png").read_bytes()) == (260, 220)


def test_a_picture_that_cannot_be_written_raises_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="grid"):
        draw_grid(["CC"], tmp_path / "file" / "grid.png")

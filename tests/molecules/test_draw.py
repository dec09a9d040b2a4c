import struct

import pytest

from src.errors import UserError
from src.molecules.draw import draw_grid, draw_interpolation, draw_rows


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def test_a_grid_has_a_cell_for_each_molecule(tmp_path, neutral):
    draw_grid(neutral[:7], tmp_path / "new" / "grid.png", [f"QED {i}" for i in range(7)])
    assert size_of((tmp_path / "new" / "grid.png").read_bytes()) == (5 * 260, 2 * 220)
    assert len(list((tmp_path / "new").iterdir())) == 1


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

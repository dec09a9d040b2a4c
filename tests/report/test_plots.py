"""Pictures show the values of the records; a picture without values, or that cannot be written, leaves no file."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from src.errors import UserError
from src.measure.phases import PHASES
from src.report import plots
from src.report.record import Record
from src.report.scaling import Point
from src.report.stability import Spread


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collects every saved figure."""
    figures: list[Figure] = []
    save = Figure.savefig

    def spy(self: Figure, path: Path, **kwargs: Any) -> None:
        figures.extend([] if self in figures else [self])
        save(self, path, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)
    return figures


def texts_of(path: Path) -> set[str | None]:
    return {element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


def test_phases_picture_shows_seconds_and_percent(tmp_path: Path, trained: Record, drawn: list[Figure]) -> None:
    plots.phases_picture(trained, tmp_path / "new" / "phases.png")
    assert imread(tmp_path / "new" / "phases.png").shape[1] == 960
    bar, legend = drawn[0].axes
    assert [round(patch.get_window_extent().width / bar.bbox.width, 3) for patch in bar.patches] == [
        0.06,
        0.04,
        0.8,
        0.09,
        0.01,
    ]
    assert {"compute", "160.0 s", "80.0%"} <= {text.get_text() for text in legend.texts}
    starts = [round((patch.get_window_extent().x0 - bar.bbox.x0) / bar.bbox.width, 3) for patch in bar.patches]
    assert starts == [0.0, 0.06, 0.1, 0.9, 0.99]
    titles = [text.get_text() for text in drawn[0].texts]
    assert titles == ["Where 200.0 s went", "moflow · zinc250k · H200 1x1 · amp · batch 512"]


def test_every_phase_has_its_own_colour() -> None:
    colours = [plots.COLOURS[name] for name in (*PHASES, "unaccounted")]
    assert len(set(colours)) == len(colours)


def test_history_picture_has_a_panel_for_each_metric(tmp_path: Path, trained: Record, drawn: list[Figure]) -> None:
    second = replace(trained, history=[{"step": 20, "loss": 3.0}])
    plots.history_picture([trained, second], tmp_path / "history.png", ["loss", "nuv"])
    loss, nuv = drawn[0].axes
    assert [np.asarray(line.get_xydata()).tolist() for line in loss.lines] == [[[20, 1.5], [40, 1.25]], [[20, 3.0]]]
    assert np.asarray(nuv.lines[0].get_xydata()).tolist() == [[40, 61.0]]
    assert [axes.get_title(loc="left") for axes in (loss, nuv)] == ["loss", "nuv, %"]
    assert imread(tmp_path / "history.png").ndim == 3
    assert {"loss", "nuv, %"} <= texts_of(tmp_path / "history.svg")


def test_a_history_whose_first_points_hide_the_rest_is_logarithmic_and_has_its_units(
    tmp_path: Path, trained: Record, drawn: list[Figure]
) -> None:
    rows = [{"step": i, "bits_atom": 40.0 / i**2, "nuv": 50.0 + i, "lr": 0.0} for i in range(1, 9)]
    plots.history_picture([replace(trained, history=rows)], tmp_path / "history.png", ["bits_atom", "nuv", "lr"])
    assert [axes.get_yscale() for axes in drawn[0].axes] == ["log", "linear", "linear"]
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes]
    assert titles == ["bits_atom, bits per dimension", "nuv, %", "lr"]
    assert {"1", "2", "5", "10", "20"} <= {label.get_text() for label in drawn[0].axes[0].get_yticklabels()}


def test_a_picture_of_missing_values_raises_and_leaves_no_file(
    tmp_path: Path, trained: Record, predicted: Record
) -> None:
    with pytest.raises(ValueError, match="no phases"):
        plots.phases_picture(predicted, tmp_path / "a.png")
    with pytest.raises(ValueError, match="no record has 'auc'"):
        plots.history_picture([trained], tmp_path / "a.png", ["loss", "auc"])
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, trained: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Figure, path: Path, **kwargs: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(UserError, match="No space left"):
        plots.phases_picture(trained, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_scaling_picture_has_a_panel_for_each_kind_and_a_line_for_each_hardware(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    point = Point("moflow", "H200 1x2", "amp", "weak", 2, 262144, 53e3, 1.9, "own")
    same = replace(point, config="A100-80G 1x8", devices=8, speed_up=7.6, source="theirs", is_published=True)
    near = replace(point, precision="fp32", devices=3, speed_up=2.86)  # its line ends where the label of `point` is
    points = [point, near, same, replace(same, config="V100-16G 1x8", speed_up=7.58)]
    plots.scaling_picture(points, tmp_path / "scaling.png")
    (axes,) = drawn[0].axes
    assert sorted(np.asarray(line.get_xydata()).tolist() for line in axes.lines) == [
        [[1, 1], [2, 0.95]], [[1, 1], [3, 2.86 / 3]], [[1, 1], [8, 7.58 / 8]], [[1, 1], [8, 0.95]]
    ]  # fmt: skip
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the leader lines
    assert len(boxes) == 4 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    plots.scaling_picture([*points, replace(point, kind="strong")], tmp_path / "both.png")
    assert [a.get_title(loc="left").split()[0] for a in drawn[1].axes] == ["weak", "strong"]


def test_a_scaling_picture_holds_and_marks_what_is_more_than_linear(tmp_path: Path, drawn: list[Figure]) -> None:
    point = Point("moflow", "H200 1x2", "amp", "weak", 2, 512, 17e3, 17.0, "own", single="alone")
    plots.scaling_picture([point, replace(point, devices=4, speed_up=3.8)], tmp_path / "scaling.png")
    plots.scaling_picture([replace(point, speed_up=1.9)], tmp_path / "plain.png")
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[1] > 8.5
    assert [np.asarray(line.get_xydata()).tolist() for line in axes.lines if line.get_marker() == "x"] == [[[2, 8.5]]]
    note = " ".join(drawn[0].get_supxlabel().split())
    assert "(!) H200 1x2" in note and "a speed-up of 17.00 on 2 devices" in note and "(alone) was slowed" in note
    assert drawn[1].get_supxlabel() == "" and drawn[1].axes[0].get_ylim()[1] == plots.TOP


def test_stability_picture_has_every_seed_over_epochs_and_what_was_published(
    tmp_path: Path, trained: Record, drawn: list[Figure]
) -> None:
    rows = [{"step": 0, "epoch": 0, "nuv": 1.0}, {"step": 27, "epoch": 0, "nuv": 40.0},
            {"step": 108, "epoch": 1, "nuv": 60.0}, {"step": 108, "epoch": 2, "nuv": 62.0, "validity": 63.0},
            {"step": 100, "epoch": 1, "nuv": 5.0, "loss": 1.0}]  # fmt: skip
    runs = [replace(trained, history=rows, config={"seed": seed}) for seed in (1, 2)]
    curve = [Spread(metric="validity", at=f"epoch {i}", n=20, mean=60.0 + i, sd=4.0) for i in (1, 2)]
    curve.append(Spread(metric="uniqueness of 100", at="epoch 1", n=20, mean=99.0))  # the runs have none
    spreads = [Spread(metric=name, at="step 108", n=2, mean=62.0) for name in ("nuv", "validity")]
    plots.stability_picture(runs, [*spreads, *curve], tmp_path / "curve.png")
    nuv, validity = drawn[0].axes

    def lines(axes: Axes) -> list[list[list[float]]]:
        return [np.asarray(line.get_xydata()).tolist() for line in axes.lines if line.get_linestyle() == "-"]

    assert lines(nuv) == [[[0, 1], [0.5, 40], [2, 62]]] * 2
    assert [line.get_ydata() for line in nuv.lines if line.get_linestyle() == "--"] == [[87.9, 87.9]]
    assert lines(validity) == [[[1, 61], [2, 62]], *[[[2, 63]]] * 2]
    (bars,) = (collection for collection in validity.collections if isinstance(collection, LineCollection))
    assert [segment.tolist() for segment in bars.get_segments()] == [[[1, 57], [1, 65]], [[2, 58], [2, 66]]]
    assert [axes.get_title(loc="left") for axes in (nuv, validity)] == ["nuv, %", "validity, %"]
    legend = {"target 87.9", "seed 1", "seed 2", "published: mean and standard deviation of 20"}
    assert legend <= texts_of(tmp_path / "curve.svg")


def test_labels_keep_their_distance_and_stay_inside() -> None:
    assert plots.spread_labels([0.9, 0.85, 0.5], 0.1, 0) == pytest.approx([0.9, 0.8, 0.5])
    assert plots.spread_labels([0.2, 0.1, 0.1], 0.1, 0.05) == pytest.approx([0.25, 0.15, 0.05])

"""Pictures of generated molecules' properties, and of their quality by temperature."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from src.molecules.score import Properties
from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes

TITLES = {
    "qed": "QED, drug-likeness (0 to 1)",
    "logp": "logP, lipophilicity (Crippen)",
    "sas": "SAS, synthetic accessibility (1 easy)",
}
LINES = {
    "validity": "valid, of generated",
    "uniqueness": "distinct, of valid",
    "valid_unique": "valid and distinct, of generated",
}
BINS = 40


def properties_picture(sets: dict[str, Sequence[Properties]], path: Path) -> None:
    """Writes a panel for each property with a histogram of each set of molecules, by the set's name.

    Histograms are densities: sets of different sizes can be compared. Raises UserError if the files cannot be written.
    """
    picture = new_picture(9.6, 3.2)
    for axes, (name, title) in zip(picture.subplots(1, len(TITLES)), TITLES.items(), strict=True):
        columns = {label: np.array([getattr(row, name) for row in rows]) for label, rows in sets.items()}
        low, high = np.percentile(np.concatenate(list(columns.values())), [0.5, 99.5])
        edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
        for colour, (label, values) in zip(CURVES, columns.items(), strict=False):
            is_shown = bool(((values >= edges[0]) & (values <= edges[-1])).any())  # nothing has no density
            axes.hist(
                values, edges, density=is_shown, histtype="stepfilled", color=colour, alpha=0.35, edgecolor=colour,
                label=f"{label}: median {np.median(values):.2f}",
            )  # fmt: skip
        axes.set_title(title, loc="left", size=10, weight="bold", color=INK)
        axes.set_yticks([])
        axes.margins(y=0.3)
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left")
        style_axes(axes)
    counts = ", ".join(f"{len(rows):,} {label}" for label, rows in sets.items())
    picture.suptitle(f"Properties of molecules: {counts}", x=0.02, ha="left", size=10, color=FAINT)
    save_picture(picture, path)


def temperatures_picture(rows: Sequence[dict[str, float]], path: Path) -> None:
    """Writes validity, uniqueness and their product by temperature, and FCD if it is there, in a second panel.

    Temperatures that differ between atoms and bonds stand side by side, as they were given. Raises UserError if the
    picture cannot be written.
    """
    judged = any(row.get("fcd", np.nan) == row.get("fcd") for row in rows)
    picture = new_picture(9.6 if judged else 5.6, 3.6)
    axes, *further = np.atleast_1d(picture.subplots(1, 1 + judged))
    pairs = [(row["temperature"], row["bond_temperature"]) for row in rows]
    names = [f"{atoms:g}" if atoms == bonds else f"{atoms:g}, {bonds:g}" for atoms, bonds in pairs]
    is_line = all(atoms == bonds for atoms, bonds in pairs)
    places = [atoms for atoms, _ in pairs] if is_line else range(len(rows))
    look: Any = {"linewidth": 1.6 if is_line else 0, "marker": "o", "markersize": 4}
    for colour, (name, label) in zip(CURVES, LINES.items(), strict=False):
        axes.plot(places, [row[name] for row in rows], color=colour, label=label, **look)
    for panel in further:
        panel.plot(places, [row["fcd"] for row in rows], color=CURVES[0], **look)
        panel.set_ylim(0, 1.08 * max(row["fcd"] for row in rows if row["fcd"] == row["fcd"]))
        panel.set_title("FCD from held-out molecules", loc="left", size=11, weight="bold", color=INK)
    for panel in (axes, *further):
        if not is_line:
            panel.set_xticks(places, names)
        what = "temperature" if is_line else "temperature of atoms, of bonds"
        panel.set_xlabel(what, size=8, color=FAINT, loc="right", labelpad=1)
        style_axes(panel)
    axes.set(ylim=(-2, 104))
    axes.set_yticks(range(0, 101, 20), [f"{share}%" for share in range(0, 101, 20)])
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower left")
    share, best = max((row["valid_unique"], name) for row, name in zip(rows, names, strict=True))
    title = f"best at {best}: {share:.1f}% valid and unique"
    axes.set_title(title, loc="left", size=11, weight="bold", color=INK)
    save_picture(picture, path)

"""What property optimisation reports: a table of pairs, a picture, figures of the record."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from src.errors import UserError
from src.models.moflow.optimise import PROPERTIES, Found, Optimised, Plan, Start
from src.molecules.draw import draw_rows
from src.system.tables import write_csv
from src.training.prediction import Quality

ROWS = 4  # of the picture, for each group of starts
BEST = 3  # as the paper lists
HEADER = ["group", "start", "start_value", "found", "found_value", "similarity", "delta"]
Pairs = dict[tuple[Start, float], Found | None]


def best_pairs(optimised: Optimised, deltas: Sequence[float]) -> Pairs:
    """Returns the best molecule found from each start at each least similarity; None where none improves on it."""
    pairs: Pairs = {(start, delta): None for start in optimised.starts for delta in deltas}
    for molecule in optimised.found:
        for delta in deltas:
            best = pairs[molecule.start, delta]
            if molecule.similarity >= delta and molecule.value > (best or molecule.start).value:
                pairs[molecule.start, delta] = molecule
    return pairs


def best_new(optimised: Optimised) -> list[Found]:
    """Returns the three found molecules with the highest values that are not in the training set."""
    new = {molecule.smiles: molecule for molecule in optimised.found if molecule.smiles not in optimised.train}
    return sorted(new.values(), key=lambda molecule: molecule.value, reverse=True)[:BEST]


def figures_of(pairs: Pairs, optimised: Optimised, goal: str) -> list[Quality]:
    """Returns R2, the best values, and for each group and delta the success rate in percent and means of successes."""
    title = PROPERTIES[goal]
    figures = [Quality("R2", optimised.r2, "", f"of the regressor of {title} on held-out latents")]
    best = enumerate(best_new(optimised), 1)
    figures += [
        Quality(f"best {i}", molecule.value, title, f"{molecule.smiles}, not in the training set")
        for i, molecule in best
    ]
    for group, delta in dict.fromkeys((start.group, delta) for start, delta in pairs):
        chosen = [molecule for (start, limit), molecule in pairs.items() if (start.group, limit) == (group, delta)]
        successes = [molecule for molecule in chosen if molecule is not None]
        gain = mean([molecule.value - molecule.start.value for molecule in successes])
        words, title_at = f"with a better molecule, of {len(chosen)} starts", f"similarity >= {delta:g}"
        figures += [
            Quality(f"{title_at}: improved", 100 * len(successes) / len(chosen), "%", words, group),
            Quality(f"{title_at}: mean improvement", gain, title, words, group),
            Quality(
                f"{title_at}: mean similarity", mean([molecule.similarity for molecule in successes]), "", words, group
            ),
        ]
    return figures


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def write_optimised(optimised: Optimised, plan: Plan, output: Path) -> tuple[dict[str, Path], list[Quality]]:
    """Writes OUTPUT_optimised.csv and .png next to `output`; returns the files and the figures.

    If the picture cannot be drawn, prints why and returns the csv alone.
    """
    pairs = best_pairs(optimised, plan.deltas)
    figures = figures_of(pairs, optimised, plan.goal)
    table, picture = (output.with_name(f"{output.stem}_optimised{ending}") for ending in (".csv", ".png"))
    write_csv(table, HEADER, [row_of(*key, molecule) for key, molecule in pairs.items()])
    files = {"optimised": table}
    try:
        draw_pairs(pairs, plan, picture)
    except UserError as error:
        print(f"note: {error}")
        return files, figures
    return files | {"optimised drawn": picture}, figures


def row_of(start: Start, delta: float, molecule: Found | None) -> list[str]:
    end = [molecule.smiles, f"{molecule.value:.4f}", f"{molecule.similarity:.4f}"] if molecule else [""] * 3
    return [start.group, start.smiles, f"{start.value:.4f}", *end, f"{delta:g}"]


def draw_pairs(pairs: Pairs, plan: Plan, path: Path) -> None:
    """Draws a row for each of the starts that improved most: the start, then the best found at each similarity.

    Raises UserError where nothing improved, and where the picture cannot be written.
    """
    title, by_start = PROPERTIES[plan.goal], dict[Start, list[Found | None]]()
    for (start, _), molecule in pairs.items():
        by_start.setdefault(start, []).append(molecule)

    def gain(start: Start) -> tuple[int, float]:
        successes = [molecule for molecule in by_start[start] if molecule]
        return len(successes), successes[-1].value - start.value if successes else 0.0

    rows, legends = [], []
    for group in dict.fromkeys(start.group for start in by_start):
        starts = [start for start in by_start if start.group == group and gain(start)[0]]
        for start in sorted(starts, key=gain, reverse=True)[:ROWS]:
            rows.append([start.smiles, *(molecule.smiles if molecule else None for molecule in by_start[start])])
            ends = [
                f"{title} {molecule.value:.2f}\nsimilarity {molecule.similarity:.2f} (at least {delta:g})"
                if molecule
                else ""
                for molecule, delta in zip(by_start[start], plan.deltas, strict=True)
            ]
            legends.append([f"{title} {start.value:.2f}\nstart ({group})", *ends])
    if not rows:
        raise UserError(f"no molecule with a higher {title} was found, so there is no picture of any")
    draw_rows(rows, legends, path)

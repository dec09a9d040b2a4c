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
    for found in optimised.found:
        for delta in deltas:
            best = pairs[found.start, delta]
            if found.similarity >= delta and found.value > (best or found.start).value:
                pairs[found.start, delta] = found
    return pairs


def best_new(optimised: Optimised) -> list[Found]:
    """Returns the three found molecules with the highest values that are not in the training set."""
    new = {found.smiles: found for found in optimised.found if found.smiles not in optimised.train}
    return sorted(new.values(), key=lambda found: found.value, reverse=True)[:BEST]


def figures_of(pairs: Pairs, optimised: Optimised, goal: str) -> list[Quality]:
    """Returns R2, the best values, and for each group and delta the success rate in percent and means of successes."""
    title = PROPERTIES[goal]
    figures = [Quality("R2", optimised.r2, "", f"of the regressor of {title} on held-out latents")]
    best = enumerate(best_new(optimised), 1)
    figures += [
        Quality(f"best {i}", found.value, title, f"{found.smiles}, not in the training set") for i, found in best
    ]
    for group, delta in dict.fromkeys((start.group, delta) for start, delta in pairs):
        chosen = [found for (start, limit), found in pairs.items() if (start.group, limit) == (group, delta)]
        successes = [found for found in chosen if found is not None]
        gain = mean([found.value - found.start.value for found in successes])
        words, title_at = f"with a better molecule, of {len(chosen)} starts", f"similarity >= {delta:g}"
        figures += [
            Quality(f"{title_at}: improved", 100 * len(successes) / len(chosen), "%", words, group),
            Quality(f"{title_at}: mean improvement", gain, title, words, group),
            Quality(f"{title_at}: mean similarity", mean([found.similarity for found in successes]), "", words, group),
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
    write_csv(table, HEADER, [row_of(*key, found) for key, found in pairs.items()])
    files = {"optimised": table}
    try:
        draw_pairs(pairs, plan, picture)
    except UserError as error:
        print(f"note: {error}")
        return files, figures
    return files | {"optimised drawn": picture}, figures


def row_of(start: Start, delta: float, found: Found | None) -> list[str]:
    end = [found.smiles, f"{found.value:.4f}", f"{found.similarity:.4f}"] if found else [""] * 3
    return [start.group, start.smiles, f"{start.value:.4f}", *end, f"{delta:g}"]


def draw_pairs(pairs: Pairs, plan: Plan, path: Path) -> None:
    """Draws a row for each of the starts that improved most: the start, then the best found at each similarity.

    Raises UserError where nothing improved, and where the picture cannot be written.
    """
    title, by_start = PROPERTIES[plan.goal], dict[Start, list[Found | None]]()
    for (start, _), found in pairs.items():
        by_start.setdefault(start, []).append(found)

    def gain(start: Start) -> tuple[int, float]:
        successes = [found for found in by_start[start] if found]
        return len(successes), successes[-1].value - start.value if successes else 0.0

    rows, legends = [], []
    for group in dict.fromkeys(start.group for start in by_start):
        starts = [start for start in by_start if start.group == group and gain(start)[0]]
        for start in sorted(starts, key=gain, reverse=True)[:ROWS]:
            rows.append([start.smiles, *(found.smiles if found else None for found in by_start[start])])
            ends = [
                f"{title} {found.value:.2f}\nsimilarity {found.similarity:.2f} (at least {delta:g})" if found else ""
                for found, delta in zip(by_start[start], plan.deltas, strict=True)
            ]
            legends.append([f"{title} {start.value:.2f}\nstart ({group})", *ends])
    if not rows:
        raise UserError(f"no molecule with a higher {title} was found, so there is no picture of any")
    draw_rows(rows, legends, path)

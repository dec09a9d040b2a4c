"""The phases of a run's wall time, for pictures and text."""

from dataclasses import dataclass

from src.measure.phases import PHASES
from src.report.record import Record

TITLES = {
    "startup": "start-up",
    "fetch": "fetch (waiting for data)",
    "decode": "decode (waiting for images)",
    "transfer": "transfer to device",
    "compute": "compute",
    "communication": "communication (exposed)",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "other": "other",
    "unaccounted": "unaccounted",
}


@dataclass(frozen=True)
class Share:
    """One phase: its seconds and its share of the wall time (0 to 1)."""

    name: str
    seconds: float
    share: float

    @property
    def title(self) -> str:
        """The phase's name for display."""
        return TITLES[self.name]


def shares(record: Record) -> list[Share]:
    """Returns the phases of a record that took time, in the order of PHASES; empty if none was measured.

    'unaccounted' is the wall time minus all phases, if that is more than 0.1% of the wall time; it may be negative.
    """
    seconds = {name: float(record.phases_s.get(name) or 0.0) for name in PHASES}
    total = sum(seconds.values())
    wall = float(record.phases_s.get("wall") or total)
    if wall <= 0:
        return []
    if abs(wall - total) > 1e-3 * wall:
        seconds["unaccounted"] = wall - total
    return [Share(name, value, value / wall) for name, value in seconds.items() if value]


def of_one_rank(record: Record) -> str:
    """Returns what stands beside a figure that is measured on the first of several ranks alone."""
    return " of rank 0" if record.ranks > 1 else ""

"""Where the wall time of a run went, ready to be drawn or printed."""

from dataclasses import dataclass

from src.report.record import PHASES, Record

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
    """One phase: seconds, and its part of the wall time (0 to 1)."""

    name: str
    seconds: float
    share: float

    @property
    def title(self) -> str:
        """The phase in words."""
        return TITLES[self.name]


def shares(record: Record) -> list[Share]:
    """Returns the phases of a record that took time, in the order of PHASES; an empty list where none was measured.

    What the phases leave of the wall time is 'unaccounted', where it is more than a thousandth of the wall time;
    it is negative where they exceed it.
    """
    seconds = {name: float(record.phases_s.get(name) or 0.0) for name in PHASES}
    total = sum(seconds.values())
    wall = float(record.phases_s.get("wall") or total)
    if wall <= 0:
        return []
    if abs(wall - total) > 1e-3 * wall:
        seconds["unaccounted"] = wall - total
    return [Share(name, value, value / wall) for name, value in seconds.items() if value]

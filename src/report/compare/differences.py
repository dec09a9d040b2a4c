"""Which keys of their configs and environments groups of runs differ in."""

from collections.abc import Mapping, Sequence

from src.report.compare.structure import Difference
from src.report.keys import NAMED

SHORT = ("hp.", "fit.", "execution.", "measure.")  # where a value is given that other keys repeat


def differing(every: Sequence[Mapping[str, str]]) -> tuple[list[Difference], list[str]]:
    """Returns the keys that all have with differing values, and the keys that only some have.

    Args:
        every: the values of each group by key. A key that repeats one of the same last name (`hp.lr` and
            `model.task.optimizer.lr`) is left out.
    """
    keys = list(dict.fromkeys(key for values in every for key in values))
    partial = [key for key in keys if any(key not in values for values in every)]
    common = [key for key in keys if key not in partial and len({values[key] for values in every}) > 1]
    renamed = [name for name in NAMED if f"{name}.name" in common]
    common = [key for key in common if not any(key.startswith(f"{n}.") and key != f"{n}.name" for n in renamed)]
    common.sort(key=lambda key: (not key.endswith(".name"), not key.startswith(SHORT)))  # stable
    kept: dict[tuple[str, ...], Difference] = {}
    for key in common:
        values = tuple(group[key] for group in every)
        last = key if key.endswith(".name") else key.rpartition(".")[2]
        kept.setdefault((last, *values), Difference(key=key.removesuffix(".name"), values=values))
    return list(kept.values()), [key for key in partial if not any(key.startswith(f"{name}.") for name in renamed)]


def joined(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the values of a group's runs by key, several joined by a comma."""
    keys = dict.fromkeys(key for values in every for key in values)
    return {key: ", ".join(dict.fromkeys(values.get(key, "unknown") for values in every)) for key in keys}

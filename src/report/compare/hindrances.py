"""What hinders a fair comparison of groups, and the line that says whether they are comparable."""

from collections.abc import Sequence

from src.report.compare.differences import differing
from src.report.compare.structure import Comparison, Difference, Group
from src.report.keys import environment
from src.report.record import Record

DECIDING = ("gpus", "driver", "cuda", "cudnn", "torch", "triton", "cpu", "commit")  # of a speed
FEW = 3  # keys that the verdict names
Runs = Sequence[tuple[str, Record]]


def hindered(
    members: Sequence[Runs], groups: Sequence[Group], config: Sequence[Difference], machine: Sequence[Difference],
    partial: Sequence[str],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Returns why the groups are not comparable, some words each, and all notes on them, a sentence each.

    Args:
        config, machine: the keys of config and environment that the groups differ in.
        partial: the keys of the config that only some groups have.
    """
    hindrances, notes = [], []
    keys = {difference.key for difference in config}
    deciding = [difference.key for difference in machine if difference.key in DECIDING]
    if deciding:
        notes.append(f"The groups ran with different {', '.join(deciding)}: a difference in speed may be of these.")
        # Runs on two kinds of hardware, or on one device and on two, differ in their GPUs as they are meant to.
        if others := [key for key in deciding if key != "gpus" or not keys & {"hardware", "trainer"}]:
            hindrances.append(f"in speed: different {', '.join(others)}")
    for group, runs in zip(groups, members, strict=True):
        inside, _ = differing([environment(record) for _, record in runs])
        mixed = [difference.key for difference in inside if difference.key in DECIDING]
        if mixed:
            notes.append(f"The runs of '{group.name}' differ in {', '.join(mixed)}.")
            hindrances.append(f"in speed: the runs of '{group.name}' differ in {', '.join(mixed)}")
    if "datamodule" in keys:
        notes.append("The groups were trained on different data sets: their metrics cannot be compared.")
        hindrances.append("in the metric: different data sets")
    judged = [{sum(part.count for part in run.classes) for run in group.runs if run.classes} for group in groups]
    if len({frozenset(counts) for counts in judged if counts}) > 1:
        sizes = sorted(set().union(*judged))
        numbers = f"{sizes[0]:,} to {sizes[-1]:,} samples"
        notes.append(f"The groups were evaluated on {numbers}: a difference of the metric may be of these.")
        hindrances.append(f"in the metric: evaluated on {numbers}")
    several = [
        group.name for group in groups[1:] if sum(_varies(difference, group, groups[0]) for difference in config) > 1
    ]
    if several:
        differ = "differs" if len(several) == 1 else "differ"
        which = f"{len(several)} of the {len(groups) - 1} other groups {differ}"
        notes.append(
            f"{which if len(groups) > 2 else 'The second group differs'} from the first in more than one key of the "
            f"config ({', '.join(difference.key for difference in config)}): the difference cannot be put "
            "down to one of them."
        )
    single = [group for group in groups if group.done == 1]
    if single:
        who = "Each group is" if len(single) == len(groups) else f"{count(len(single), 'group')} {_be(len(single))}"
        notes.append(f"{who} a single run: without a spread, a difference may be chance.")
    if any((record.environment.get("git") or {}).get("dirty") for runs in members for _, record in runs):
        notes.append("Some runs were made of code with uncommitted changes.")
    unknown = sum((record.environment.get("git") or {}).get("dirty") is None for runs in members for _, record in runs)
    if unknown:
        notes.append(f"{count(unknown, 'run')} cannot tell whether the code had uncommitted changes.")
    for group, runs in zip(groups, members, strict=True):
        used = [record.utilisation for _, record in runs if record.utilisation]
        for name in dict.fromkeys(name for utilisation in used for name in utilisation.impossible):
            notes.append(f"Runs of '{group.name}' are above the {name}: an error of measurement, no share.")
            hindrances.append(f"in speed: '{group.name}' is above the {name}")
    if partial:
        some = ", ".join(partial[:6]) + (f" and {len(partial) - 6} more" if len(partial) > 6 else "")
        notes.append(f"Only some runs have the config keys {some}: they are of different versions of the code.")
    return list(dict.fromkeys(hindrances)), notes


def verdict(comparison: Comparison) -> str:
    """Returns the line that says whether the groups are comparable, and why not; '' for a single group."""
    if len(comparison.groups) < 2 and not comparison.hindrances:
        return ""
    if comparison.hindrances:
        return f"Not comparable {'; '.join(comparison.hindrances)}."
    keys = [difference.key for difference in comparison.config]
    named = ", ".join(keys[:FEW]) + (f" and {len(keys) - FEW} more keys" if len(keys) > FEW else "")
    if len(keys) == 1:
        told = f"{named} alone differs"
    else:
        told = f"{named} differ{' together' if len(comparison.groups) == 2 else ''}" if keys else "no key differs"
    same = "; data, machine and code are the same" if not comparison.environment else ""
    return f"Comparable: {told}{same}."


def count(number: int, what: str) -> str:
    """Returns '1 run' or '2 runs'."""
    return f"{number} {what}{'s' * (number != 1)}"


def _varies(difference: Difference, group: Group, base: Group) -> bool:
    return group.varied[difference.key] != base.varied[difference.key]


def _be(number: int) -> str:
    return "is" if number == 1 else "are each"

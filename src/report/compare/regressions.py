"""Which figures of new runs fall behind those of old runs of the same case, for continuous integration."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from src.errors import UserError
from src.report.compare.quantities import against, estimates, figures, header, quantities, spread
from src.report.compare.structure import Estimate, Quantity
from src.report.compare.text import change
from src.report.keys import compared_config
from src.report.load import Loaded
from src.report.record import Record
from src.report.table import aligned

GUARDED = ("metric", "p_steady", "throughput", "first_step_s")  # what a regression is of
LEAST_S = 1.0  # by which a first step is later: imports and file caches take that sometimes


@dataclass(frozen=True, kw_only=True)
class Check:
    """A figure of a case before and after: `ratio` is 1 for equal ones and below 1 for a worse one.

    `new` is None, and the ratio 0, where no new run of the case ended normally.
    """

    case: str
    quantity: Quantity
    old: Estimate
    new: Estimate | None
    ratio: float
    regressed: bool


def check(new: Loaded, old: Loaded, fail_below: float) -> list[Check]:
    """Returns the checks of every case of the old runs. Raises UserError where no case is in both.

    A case is a config: a key that only one of two runs has (another version of the code) is not compared.
    """
    before, after = _by_case(old), _by_case(new)
    checks = []
    matched = False
    for name, config, runs in before:
        same = [record for _, other, records in after if _agree(config, other) for record in records]
        matched = matched or bool(same)
        checks += _checks(name, runs, same, fail_below)
    if not matched:
        raise UserError("--against: none of its runs has the config of one of the runs: give runs of the same cases")
    return checks


def table(checks: Sequence[Check]) -> str:
    """Returns the checks as Markdown, the regressed ones first."""
    lines = [["case", "figure", "before", "after", "difference", "ratio", ""]]
    for figure in sorted(checks, key=lambda figure: not figure.regressed):
        after = spread(figure.new, figure.quantity) if figure.new else "not done"
        lines.append([
            figure.case, header(figure.quantity), spread(figure.old, figure.quantity), after,
            change(figure.new, figure.old), f"{figure.ratio:.3f}", "**regressed**" if figure.regressed else "ok",
        ])  # fmt: skip
    worse = sum(figure.regressed for figure in checks)
    verdict = f"{worse} of {len(checks)} figures regressed." if worse else f"No regression in {len(checks)} figures."
    return "\n".join([verdict, "", *aligned(lines, [True, True, False, False, False, False, True])]) + "\n"


def as_json(checks: Sequence[Check]) -> str:
    return json.dumps([asdict(figure) for figure in checks], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _by_case(loaded: Loaded) -> list[tuple[str, dict[str, str], list[Record]]]:
    """Returns name, config and records of each case, whatever their seeds."""
    cases: dict[str, tuple[dict[str, str], list[Record]]] = {}
    for _, record in loaded.runs:
        config = compared_config(record) | {"kind": record.kind}
        cases.setdefault(str(sorted(config.items())), (config, []))[1].append(record)
    return [(_name(records[0]), config, records) for config, records in cases.values()]


def _name(record: Record) -> str:
    case = record.case
    return f"{case.model} {record.kind} {case.trainer} {case.precision} batch {case.batch_size}"


def _agree(one: dict[str, str], other: dict[str, str]) -> bool:
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _checks(name: str, old: Sequence[Record], new: Sequence[Record], fail_below: float) -> list[Check]:
    before, after = (estimates([figures(record) for record in runs if record.status == "done"]) for runs in (old, new))
    checks = []
    for quantity in quantities(old[0]):
        base = before.get(quantity.name)
        if quantity.name not in GUARDED or base is None or not base.mean:
            continue
        estimate = against(after[quantity.name], base) if quantity.name in after else None
        ratio = 0.0 if estimate is None else _ratio(estimate.mean, base.mean, quantity.better)
        is_late = quantity.name != "first_step_s" or estimate is None or estimate.mean - base.mean >= LEAST_S
        regressed = ratio < fail_below and is_late
        checks.append(Check(case=name, quantity=quantity, old=base, new=estimate, ratio=ratio, regressed=regressed))
    return checks


def _ratio(new: float, old: float, better: str | None) -> float:
    """Returns new over old, or old over new where less is better: 1 for no change, a greater number for a better one.

    A quantity that became 0 is the best where less is better; its ratio is that of an error a million times as small.
    """
    return new / old if better == "max" else old / max(new, old * 1e-6)

"""Comparisons with other code in one run, as text; `benchmarks.beside` measures them: docs/guides/beside.md."""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.errors import UserError, shortened

KEYS = {"case", "sides", "rounds", "tiny", "measured_at", "command", "git", "gpus", "libraries"}
HEADER = """\
| case | side | per second | ours / it | over rounds | GiB | SM MHz | degrees C |
|---|---|--:|--:|--:|--:|--:|--:|
"""
SUMMARY = """\
| batch | Reprise | fastest other code | its rate | ours / it | over rounds |
|---|--:|---|--:|--:|--:|
"""
ORDER = ("train", "generate", "predict", "convolution")
PRECISIONS = {"amp": "AMP", "tf32": "TF32"}  # how a precision is printed, where not as it is
EXPLANATION = (
    "A rate is the median of the turns. A ratio is formed within each round; the table has the median of the rounds, "
    "and their least and greatest. GiB is the peak of memory that torch reserved; clock and temperature are the least "
    "and greatest during the turns."
)


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Returns the median, the least and the greatest of the rounds' ratios.

    A ratio is formed within a round, so a drift of the GPU that both sides see cancels. A disturbed turn moves the
    median little and widens the range.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}


def summarise_turns(sides: Sequence[dict[str, Any]]) -> None:
    """Sets `throughput` and `ours_over_it` of each side from the `throughputs` of its turns; ours is the first side."""
    ours = sides[0]["throughputs"]
    for side in sides:
        turns = side["throughputs"]
        side["throughput"] = statistics.median(turns) if turns else None
        comparable = side is not sides[0] and turns and len(turns) == len(ours)
        side["ours_over_it"] = ratio_of(ours, turns) if comparable else None


def read_comparison(file: Path) -> dict[str, Any]:
    """Returns the content of a beside.json, rates and ratios from its turns. Raises UserError for another file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: no JSON ({error}); copy a beside.json again") from None
    if not isinstance(content, dict) or not content.keys() >= KEYS:
        raise UserError(f"{file}: not a beside.json of `python -m benchmarks.beside`; take it out of the folder")
    summarise_turns(content["sides"])
    return content


def in_order(path: Path) -> list[str | int]:
    """Returns a key by which names are in the order of the numbers in them: batch 64 before batch 512."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def comparison(contents: Sequence[dict[str, Any]]) -> str:
    """Returns table, commands and what each side includes, of cases of one model."""
    lines = [table(contents), EXPLANATION, ""]
    if any(content["tiny"] for content in contents):
        lines += ["A rehearsal with tiny networks: the figures mean nothing.", ""]
    commands: dict[str, list[str]] = {}
    for content in contents:
        commands.setdefault(origin(content), []).append(content["command"])
    for where, of_cases in commands.items():
        lines += [f"{where}:", "", *(f"    {command}" for command in dict.fromkeys(of_cases)), ""]
    lines += dict.fromkeys(
        included(row, verb_of(content)) for content in contents for row in content["sides"] if row["includes"]
    )
    rates = [
        f"{c['case']['name']} {rate:,.0f} {c['case']['unit']}"
        for c in contents
        if (rate := c["sides"][0].get("own_rate"))
    ]
    if rates:
        lines += [
            "",
            f"{contents[0]['sides'][0]['side']} per second, by the median step of its own record: {', '.join(rates)}.",
        ]
    return "\n".join(lines) + "\n"


def table(contents: Sequence[dict[str, Any]]) -> str:
    """Returns a Markdown table of cases, a line for each side."""
    found = HEADER
    for content in contents:
        for row in content["sides"]:
            ratio, mem, gpu = row["ours_over_it"] or {}, row["mem"] or {}, row["gpu"] or {}
            rate = f"{row['status']}: {shortened(str(row['error']), 120)}"
            if row["throughput"]:
                rate = f"{row['throughput']:,.0f} {content['case']['unit']}"
            cells = [
                content["case"]["name"],
                row["side"],
                rate,
                f"{ratio['median']:.3f}" if ratio else "",
                f"{ratio['least']:.3f} to {ratio['greatest']:.3f}" if ratio else "",
                f"{mem['peak_reserved_gib']:.1f}" if mem else "",
                _range(gpu.get("sm_mhz")),
                _range(gpu.get("celsius")),
            ]
            found += f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
    return found


def fastest(content: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the side with the greatest rate of those that are not ours and have a ratio; None where none has."""
    measured = [peer for peer in content["sides"][1:] if peer["ours_over_it"]]
    return max(measured, key=lambda peer: peer["throughput"], default=None)


def summary(contents: Sequence[dict[str, Any]]) -> str:
    """Returns Markdown tables of cases, each with the fastest side that is not ours: one for each kind of case."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for content in sorted(contents, key=lambda content: ORDER.index(verb_of(content))):
        best = fastest(content)
        if best is None:
            continue
        ours = content["sides"][0]
        case, ratio = content["case"], best["ours_over_it"]
        name = f"{case['batch_size']:,}, {PRECISIONS.get(case['precision'], case['precision'])}"
        rates = [f"{side['throughput']:,.0f}" for side in (ours, best)]
        over_rounds = f"{ratio['least']:.2f} to {ratio['greatest']:.2f}"
        cells = [name, rates[0], best["side"], rates[1], f"{ratio['median']:.2f}", over_rounds]
        groups.setdefault((verb_of(content), case["unit"], case["note"]), []).append(f"| {' | '.join(cells)} |")
    tables = []
    for (verb, unit, note), rows in groups.items():
        words = "; ".join(filter(None, (f"**{verb.capitalize()}**, {unit} per second", note)))
        tables += [f"{words}:", "", SUMMARY + "\n".join(rows), ""]
    return "\n".join(tables).rstrip()


def origin(content: dict[str, Any]) -> str:
    """Returns when, where and at which commit a case was measured."""
    git, machine = content["git"], ", ".join(content["gpus"]) or "a CPU"
    changed = ", with changes" if git["dirty"] else ""
    return f"Measured {content['measured_at'][:10]} on {machine}, commit {git['commit'][:7]}{changed}"


def commit_link(content: dict[str, Any], address: str) -> str:
    """Returns a link to a comparison, by its commit."""
    return f"[{content['git']['commit'][:7]}]({address})"


def included(row: dict[str, Any], verb: str) -> str:
    """Returns what a turn of a side includes and how it differs from what its authors run."""
    words = [f"- {row['side']} ({verb}): a turn includes {row['includes']}", *row["differs"]]
    words += ["ITS LOSS WAS NOT FINITE"] if row["final_loss"] == "not finite" else []
    return "; ".join(words) + "."


def verb_of(content: dict[str, Any]) -> str:
    """Returns what the sides of a case do, which its name begins with: train, generate, predict or convolution."""
    return str(content["case"]["name"]).split("_", 1)[0]


def _range(found: dict[str, float] | None) -> str:
    return f"{found['min']:.0f} to {found['max']:.0f}" if found else ""

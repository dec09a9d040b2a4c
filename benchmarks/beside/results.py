"""What a case found: a record for each side, the ratios of the rounds, and the table."""

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.beside.cases import Case, Peer
from benchmarks.beside.sides import OURS, Side, Wanted
from src.measure.environment import environment
from src.measure.sources import MEASURING, sources
from src.report.beside import page
from src.report.in_turn import Comparison, from_turns, typed
from src.report.record import digest
from src.system.files import write_text


def throughput_of(side: Side) -> float:
    """Returns the median of the turns' samples per second."""
    return statistics.median(turn["throughput"] for turn in side.rounds)


def state_of(side: Side) -> dict[str, Any]:
    """Returns min and max of the GPU's figures over the rounds, and all reasons of throttling."""
    figures: dict[str, Any] = {}
    for name in ("sm_mhz", "power_w", "celsius"):
        ranges = [turn["gpu"][name] for turn in side.rounds if turn["gpu"].get(name)]
        if ranges:
            figures[name] = {"min": min(span["min"] for span in ranges), "max": max(span["max"] for span in ranges)}
    reasons = {reason for turn in side.rounds for reason in turn["gpu"].get("throttled", ())}
    return figures | {"throttled": sorted(reasons)} if figures else figures


def record_of(side: Side, case: Case, wanted: Wanted, when: str) -> dict[str, Any]:
    """Returns the record of a side: the keys of a run's record where both have them."""
    about = dict(side.about)
    machine = about.pop("environment", None) or environment([])
    machine["command"] = shlex.join(["python", *side.command[1:]])
    status = "done" if side.error is None and side.rounds else "failed"
    return {
        "side": side.name,
        "kind": case.kind,
        "case": {"model": case.model, "batch_size": case.batch(wanted.tiny), "batch_per": "device", "trainer": "1x1",
                 "precision": case.precision},
        "status": status,
        "error": side.error,
        "unit": case.unit,
        "throughput": throughput_of(side) if side.rounds else None,
        "step_time_s": statistics.median(turn["step_s"] for turn in side.rounds) if side.rounds else None,
        "rounds": side.rounds,
        "gpu": state_of(side),
        "measured_at": when,
        "environment": machine,
        **about,
        **side.ended,
    }  # fmt: skip


def write_case(case: Case, sides: list[Side], wanted: Wanted) -> Comparison:
    """Writes DIR/CASE/NUMBER.json for each side and DIR/CASE/beside.json; returns what the latter holds."""
    folder = wanted.out / case.name
    when = datetime.now(UTC).isoformat(timespec="seconds")
    records = [record_of(side, case, wanted, when) for side in sides]
    for number, record in enumerate(records):
        write_text(folder / f"side_{number}.json", json.dumps(record, indent=1) + "\n")
    ours = next((side for side in sides if side.name == OURS and side.rounds), None)
    rows = []
    for side, record in zip(sides, records, strict=True):
        row = {name: record.get(name) for name in ("side", "status", "error", "mem", "gpu", "final_loss")}
        row["throughputs"] = [turn["throughput"] for turn in side.rounds]
        row["turns"] = [{name: turn[name] for name in ("steps", "samples", "seconds")} for turn in side.rounds]
        kept = {name: record.get(name) for name in ("includes", "reference", "versions")}
        rows.append(row | kept | {"differs": record.get("differs", []), "command": record["environment"]["command"]})
    rows += [row_left_out(peer) for peer in case.peers if peer.reference and wanted.reference is None]
    if ours is not None:
        rows[0]["own_rate"] = own_rate(folder / "ours/result.json")
    machine = environment([])
    content = {
        "case": records[0]["case"] | {"name": case.name, "kind": case.kind, "unit": case.unit, "note": case.note},
        "sides": rows,
        "rounds": wanted.rounds,
        "seconds_a_turn": wanted.seconds if wanted.steps is None else None,
        "tiny": wanted.tiny,
        "measured_at": when,
        "command": shlex.join(["python", "-m", "benchmarks.beside", *sys.argv[1:]]),
        "git": sources(further=MEASURING),
        **{name: machine[name] for name in ("gpus", "driver", "cuda", "cudnn", "cpu", "cpu_cores", "libraries")},
    }
    comparison = from_turns(typed(json.loads(json.dumps(content))))
    plain = asdict(comparison)
    write_text(folder / "beside.json", json.dumps(plain | {"digest": digest(plain)}, indent=1) + "\n")
    return comparison


def row_left_out(peer: Peer) -> dict[str, Any]:
    """Returns the row of a peer that was not started."""
    why = "it needs --reference PATH, a clone of NVIDIA's DeepLearningExamples"
    nothing = ("mem", "gpu", "final_loss", "includes", "reference", "versions", "command")
    row = {"side": peer.name, "status": "left out", "error": why, "throughputs": [], "differs": []}
    return row | dict.fromkeys(nothing)


def own_rate(file: Path) -> float | None:
    """Returns the samples per second by the median step of the run's own record, which has no time of waiting.

    None without a record, which a prediction in turns does not write.
    """
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    step_s = ((record.get("steady") or {}).get("step_time_s") or {}).get("p50")
    return step_s and record["case"]["batch_size"] / step_s


def write_page(out: Path, model: str, comparisons: Sequence[Comparison]) -> Path:
    """Writes OUT/beside.md; returns its path."""
    path = out / "beside.md"
    write_text(path, f"# {model}: ours and peers in one run\n\n{page(comparisons)}")
    return path

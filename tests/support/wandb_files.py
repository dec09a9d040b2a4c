"""What an offline run of W&B wrote, read back from its file."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2


def logged_by(folder: Path) -> dict[str, Any]:
    """Returns what the newest W&B run in a folder has."""
    wandb.teardown()  # its service writes on for a moment
    return wandb_run(max((folder / "wandb").glob("offline-run-*/run-*.wandb")))


def wandb_entries(file: Path) -> Iterator[Any]:
    """Yields what a file of W&B holds: LevelDB's log format after 7 bytes, which count to the first block."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, part = struct.unpack_from("<IHB", data, at)
        whole = (b"" if part in (1, 2) else whole) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (1, 4):  # whole, or the last part
            yield getattr(wandb_internal_pb2, "Record").FromString(whole)  # noqa: B009  # made at run time


def wandb_run(file: Path) -> dict[str, Any]:
    """What an offline run of W&B has: its id, config, summary, rows, axes, artifacts, files and exit code."""
    content: dict[str, Any] = {"config": {}, "summary": {}, "rows": [], "axes": {}, "artifacts": [], "files": []}
    for entry in wandb_entries(file):
        kind = entry.WhichOneof("record_type")
        if kind in ("run", "config", "summary"):
            changes = entry.run.config if kind == "run" else getattr(entry, kind)
            target = content["summary" if kind == "summary" else "config"]
            target |= {u.key or u.nested_key[0]: json.loads(u.value_json) for u in changes.update}
        if kind == "run":
            run = entry.run
            content |= {"id": run.run_id, "resume": run.resume, "name": run.display_name, "group": run.run_group}
            content |= {"job_type": run.job_type, "tags": list(run.tags), "project": run.project}
        elif kind == "history":
            content["rows"].append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in entry.history.item})
        elif kind == "metric" and entry.metric.step_metric:
            content["axes"][entry.metric.glob_name or entry.metric.name] = entry.metric.step_metric
        elif kind == "artifact":
            content["artifacts"].append((entry.artifact.type, [c.path for c in entry.artifact.manifest.contents]))
        elif kind == "files":
            content["files"] += [item.path for item in entry.files.files]
        elif kind == "exit":
            content["exit_code"] = entry.exit.exit_code
    return content

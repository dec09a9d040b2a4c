"""The file beside exported weights: what they were trained on, what is needed to use them, how close they are."""

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from src.datamodules.download import sha256_of
from src.errors import UserError
from src.measure.sources import sources
from src.pretrained.reading import KEYS, MODEL, NAME, OF_THE_TASK
from src.report.record import Record, read_record
from src.system.files import write_text
from src.trained import Trained
from src.training.export import Export


def write_record(
    folder: Path, checkpoint: Path, trained: Trained, exported: Export, kind: str, parity: dict[str, Any]
) -> dict[str, Any]:
    """Writes the file to the folder; returns its content. Of a folder of this machine it has the last part alone."""
    run, graph, there = run_record(checkpoint), exported.graph, trained.checkpoint
    content = {
        "model": trained.config.model["name"],
        "format": kind,
        "read_again": parity,
        "preprocessing": exported.preprocessing,
        "checkpoint": {
            "file": checkpoint.name,
            "sha256": sha256_of(checkpoint),
            "epoch": there.get("epoch"),
            "step": there.get("global_step"),
        },
        **{name: without_folders(there.get(key), key != MODEL) for key, name in KEYS.items()},
        "final_metric": asdict(run.final_metric) if run and run.final_metric else None,
        "commit": commit_of(run),
        "versions": {"reprise": installed("reprise"), "torch": torch.__version__},
    }
    if is_ours(kind, exported):
        content[OF_THE_TASK] = {key: there[key] for key in trained.task.checkpoint_keys if key in there}
    if graph is not None and kind in ("torch_export", "aoti", "onnx"):
        inputs, outputs = graph.example(2)
        content["inputs"] = {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": sizes(tensor, graph.free[name])}
            for name, tensor in inputs.items()
        }
        content["outputs"] = dict(zip(graph.outputs, (list(tensor.shape) for tensor in outputs), strict=True))
    write_text(folder / NAME, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content


def is_ours(kind: str, exported: Export) -> bool:
    """Returns whether the format's weights have the names of the network's state_dict, so that `load` reads them."""
    return kind == "safetensors" or (kind == "hf" and exported.hub is not None and exported.hub.has_our_names)


def sizes(tensor: torch.Tensor, free: Any) -> list[int | str]:
    return [free.get(at, size) for at, size in enumerate(tensor.shape)]


def without_folders(value: Any, in_lists: bool = True) -> Any:
    """Returns plain data with the last part of each absolute path alone; texts of lists may be names of labels."""
    if isinstance(value, dict):
        return {str(key): without_folders(part, in_lists) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(part, in_lists) if in_lists or not isinstance(part, str) else part for part in value]
    if isinstance(value, str) and value.startswith(("/", "~/")) and len(value) > 1:
        return Path(value).name
    return value


def run_record(checkpoint: Path) -> Record | None:
    """Returns the record of the run that the checkpoint lies in; None where there is none that can be read."""
    try:
        return read_record(checkpoint.absolute().parent.parent)
    except (UserError, OSError):
        return None


def commit_of(run: Record | None) -> str | None:
    git = (run.environment or {}).get("git") if run else None
    return git.get("commit") if isinstance(git, dict) else None


def with_version(message: str, checkpoint: Path) -> str:
    """Returns the message, with the commit that wrote the checkpoint where that is known and another one."""
    there, here = commit_of(run_record(checkpoint)), sources()["commit"]
    if there is None or there == here:
        return message
    return f"{message}; it was written at commit {there[:8]}, this is {here[:8] if here else 'another'}"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

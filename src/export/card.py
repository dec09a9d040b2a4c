"""The model card of an export, README.md: made of the run's record, with the front matter that the Hub reads."""

from pathlib import Path
from typing import Any

from src.export.record import run_record
from src.pretrained.reading import NAME, OF_THE_TASK
from src.report.digits import number
from src.report.record import Record
from src.training.export import Export

FILE = "README.md"
ON_THE_HUB = {"sst2": "stanfordnlp/sst2", "cifar10": "uoft-cs/cifar10", "imagenet": "ILSVRC/imagenet-1k"}


def write_card(folder: Path, checkpoint: Path, content: dict[str, Any], exported: Export, name: str) -> None:
    """Writes the card.

    Args:
        content: of the export's reprise.json.
        name: of the repository, or the folder where it is not uploaded.
    """
    from huggingface_hub import ModelCardData  # torch-free, but slow to import

    run, model, kind = run_record(checkpoint), content["model"], content["format"]
    data = (content["trained_with"] or {}).get("group")
    metric = content["final_metric"] or {}
    front = ModelCardData(
        library_name=exported.hub.needs if kind == "hf" and exported.hub is not None else "reprise",
        pipeline_tag=exported.pipeline,
        tags=["reprise", model, kind],
        datasets=[ON_THE_HUB[data]] if data in ON_THE_HUB else None,
        metrics=[metric["name"]] if metric else None,
        model_name=f"{model} on {data}",
        eval_results=evaluated(exported.pipeline, data, metric),
    )
    facts = "\n".join(f"| {key} | {value} |" for key, value in facts_of(run, content).items())
    text = f"""---
{front.to_yaml()}
---

# {model} on {data}

Weights of `{model}`, trained on `{data}` with Reprise and exported to {kind}.

| | |
|---|---|
{facts}

## Use

{usage(content, exported, name)}

`{NAME}` has the training's config and what is needed to use the weights (`preprocessing`).
"""
    (folder / FILE).write_text(text, encoding="utf-8")


def evaluated(pipeline: str | None, data: str | None, metric: dict[str, Any]) -> Any:
    """Returns the final metric as the Hub's model index has it; None for a run without a value."""
    from huggingface_hub import EvalResult

    if metric.get("value") is None:
        return None
    name, place = metric["name"], ON_THE_HUB.get(str(data), str(data))
    result = EvalResult(pipeline or "other", place, str(data), name, metric["value"], metric_name=name)
    return [result]


def facts_of(run: Record | None, content: dict[str, Any]) -> dict[str, str]:
    """Returns the lines of the card's table."""
    there = content["checkpoint"]
    facts = {"weights": f"`{there['file']}`, step {there['step']}, sha256 `{there['sha256'][:16]}`"}
    if run is None:
        return facts | {"record": "none was found beside the checkpoint, so there are no figures"}
    case = run.case
    batch = f"batch {case.batch_size} {'of all devices' if case.batch_per == 'global' else 'per device'}"
    changes = "" if case.fix_hp == "/" else f", {case.fix_hp}"
    facts["training case"] = f"{case.hardware} {case.trainer}, {case.precision}, {batch}{changes}"
    facts["run"] = f"{run.status}, {run.samples or 0:,} {run.unit}"
    facts["final metric of the run"] = reached(run)
    dirty = (run.environment.get("git") or {}).get("dirty")
    facts["commit"] = f"`{content['commit']}`{' with changes' if dirty else ''}" if content["commit"] else "not known"
    return facts | {"versions": ", ".join(f"{key} {value}" for key, value in content["versions"].items() if value)}


def reached(run: Record) -> str:
    """Returns the final metric with its target, and when it was measured."""
    metric = run.final_metric
    if metric is None or metric.value is None:
        return "not measured"
    text = f"{metric.name} {number(metric.value)}"
    if metric.target is not None:
        text += f" (target {number(metric.target)}: {'reached' if metric.reached else 'not reached'})"
    row = next((row for row in reversed(run.history) if metric.name in row), {})
    if row.get("step") is not None and row.get("time_s") is not None:
        text += f" at step {row['step']:.0f}, {number(row['time_s'])} s after the start (the host's monotonic clock)"
    return text


def usage(content: dict[str, Any], exported: Export, name: str) -> str:
    """Returns how the weights are loaded."""
    parts = []
    if OF_THE_TASK in content:
        parts.append(f'```python\nimport reprise\n\npredict = reprise.from_pretrained("{name}")\n```')
    if content["format"] == "hf" and exported.hub is not None:
        command = exported.hub.command.replace("FOLDER", name)
        if "/" in name:
            command = command.replace("local-dir:", "hf-hub:")
        parts.append(f"```python\nimport {exported.hub.needs}\n\nmodel = {command}\n```")
    if not parts:
        reader = content["read_again"]["reader"]
        parts.append(f"`{reader}` reads it; `{NAME}` names inputs and outputs with their shapes.")
    return "\n\n".join(parts)

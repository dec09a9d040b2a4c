"""The keys of a record's config and environment that reports read, with their types.

Both hold what the version of the code that wrote them had: other keys are of any type, and any key may be absent.
"""

from typing import Any

OBJECT = dict[str, Any]
NAMED: dict[str, dict[str, Any]] = {
    group: {"name": str} for group in ("datamodule", "precision", "trainer", "hardware")
}
MODEL = {"name": str, "hp": {"default": OBJECT}, "task": {"engine": str, "network": OBJECT}}
NAMED["hardware"]["peak_bandwidth"] = float | int
CONFIG = {**NAMED, "model": MODEL, "seed": int, "hp": {"accumulate": int}, "fit": OBJECT}
ENVIRONMENT = {
    **{"gpus": list[str], "overrides": list[str], "command": str, "machine": str},
    "git": {"commit": str, "dirty": bool},
}

"""Trains and predicts with `execution.deterministic=true`, small runs of each model, for two processes to compare.

    python -m tests.reliability.deterministic HOME MODEL [MODEL ...] [plain] [key=value ...]

leaves HOME/MODEL/trained and HOME/MODEL/predicted. `plain`: without the Triton kernels.
"""

import tests.support.patched_start  # noqa: F401, I001

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.predict import predict
from src.run import train
from tests.reliability.kills import MODELS
from tests.support import ROOT
from tests.support.composing import composed
from tests.support.same import assert_same_bits, lasting_state
from tests.support.tiny_dlrm import ON_DISK

FLAG = "execution.deterministic=true"
TRAINED = "fit.max_epochs=2", "fit.eval_every_n_epochs=1", "fit.checkpoint_every_n_epochs=1", "measure.window=1"


def run(model: str, home: Path, overrides: Sequence[str]) -> None:
    """Trains a model of a tiny size, and predicts with it where its data can be predicted."""
    home.mkdir(parents=True)
    mine = [*MODELS[model](home), *TRAINED, FLAG, *overrides, f"output_dir={home / 'trained'}"]
    if any(override.startswith("trainer=") for override in overrides):
        subprocess.run([sys.executable, "train.py", *mine], cwd=ROOT, check=True)
    else:
        train(composed("train", *mine))
    checkpoint, output = home / "trained" / "checkpoints" / "last.ckpt", home / "predicted"
    data = [*ON_DISK] if model == "dlrm" else []
    same = "precision=", "hardware=", "execution.kernels="
    device = [override for override in overrides if override.startswith(same)]
    command = [
        f"model={model}", *data, f"ckpt_path={checkpoint}", FLAG, *device, "batch_size=8", "num_samples=24",
        f"data_root={home / 'data'}", f"output_dir={output}",
    ]  # fmt: skip
    predict(composed("predict", *command), command)


def assert_twice_the_same(home: Path, models: Sequence[str], *overrides: str) -> None:
    """Fails unless two processes that differ in Python's hashes leave the same bits for each model."""
    for seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.reliability.deterministic", str(home / seed), *models, *overrides],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    for model in models:
        first, second = (home / seed / model for seed in ("1", "2"))
        assert_same_bits(figures(second), figures(first), model)
        files = sorted(path.relative_to(first) for path in first.glob("predicted/*.csv"))
        assert files, model
        for file in files:
            assert (second / file).read_bytes() == (first / file).read_bytes(), f"{model}: {file}"


def figures(home: Path) -> dict[str, Any]:
    """Returns the last weights and states of a run, the loss of each step, and its metrics."""
    record = json.loads((home / "trained" / "result.json").read_text())
    assert record["config"]["execution"]["deterministic"] is True
    losses = [row["loss"] for row in record["history"] if "loss" in row]
    assert losses
    return {
        "state": lasting_state(home / "trained" / "checkpoints" / "last.ckpt"),
        "losses": losses,
        "metric": record["final_metric"],
    }


def main() -> None:
    home, *arguments = sys.argv[1:]
    overrides = [argument for argument in arguments if "=" in argument]
    models = [argument for argument in arguments if argument in MODELS]
    for model in models:
        if "plain" in arguments:
            sys.modules[f"src.models.{model}.kernels.fused"] = None  # type: ignore[assignment] # as without Triton
        run(model, Path(home) / model, overrides)


if __name__ == "__main__":
    main()

"""Losses of the first 50 steps of a tiny run of each model, on a CPU: what a commit must not change unawares.

python -m tests.reliability.golden        # writes golden.json anew, after a change that is meant
"""

import tests.support.patched_start  # noqa: F401, I001

import hashlib
import json
import tempfile
from pathlib import Path

import torch

from src.run import train
from tests.reliability.kills import MODELS
from tests.support.composing import composed

FILE = Path(__file__).with_name("golden.json")
STEPS = 50


def losses(model: str, home: Path) -> list[float]:
    """Returns the loss of each step of a tiny run with its files in `home`."""
    home.mkdir(exist_ok=True)
    steps = "fit.max_epochs=13", f"fit.max_steps={STEPS}", "measure.window=1", "fit.checkpoint_every_n_epochs=13"
    alone = "fit.eval_every_n_epochs=null", "fit.final_evaluation=false"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more add up in another order
    record = train(composed("train", *MODELS[model](home), f"output_dir={home / 'golden'}", *steps, *alone, "seed=7"))
    torch.set_num_threads(threads)
    return [row["loss"] for row in record.history if "loss" in row]


def rounding() -> dict[str, str]:
    """Returns what decides how products are rounded: torch's version and the processor's instructions."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    about = sorted({line for line in lines if line.startswith(("flags", "model", "cache size"))})
    return {"torch": torch.__version__, "processor": hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]}


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        by_model = {model: losses(model, Path(home) / model) for model in MODELS}
    FILE.write_text(json.dumps({"rounding": rounding(), "losses": by_model}, indent=1) + "\n", encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()

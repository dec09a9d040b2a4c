"""Writes `src/models/*/fast/kernels.json`: the Triton kernels that the published cases compile on this GPU.

`python -m benchmarks.kernel_lists FOLDER [MODEL ...]` runs the cases for some steps, with molecules of
FOLDER/mols.xyz and FOLDER/zinc.smiles and other data that are made up. Each list begins with what takes longest to
compile. MobileNetV1 compiles itself those of other sizes (`fast/precompile.py`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytorch_lightning as pl
import torch

from src.gpu.precompile import LIST, PRECISIONS, compile_kernel, entry_of
from src.system.files import write_text
from src.system.interpreter import ROOT, python, safe_path

STEPS = ("fit.max_steps=12", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", "~callbacks.checkpoint")


def cases(folder: Path) -> dict[str, list[str]]:
    """Returns the overrides of each model's published case."""
    molecules = (f"datamodule.source.file={folder}/mols.xyz", "datamodule.source.skip_bad=true")
    smiles = f"datamodule.source.file={folder}/zinc.smiles"
    return {
        "moflow": ["datamodule=smiles_file", smiles, "hp.batch_size=512", "hp.lr=5e-4"],
        "mobilenet_v1": ["datamodule=image_synthetic"],
        "se3_transformer": ["datamodule=molecule_file", *molecules, "datamodule.task=energy", "hp.batch_size=240"],
        "distilbert": ["+fix_hp=max_bs", "datamodule=token_synthetic", "model.task.weights=random", "hp.accumulate=1"],
        "dlrm": ["datamodule=criteo_resident", "datamodule.steps_per_epoch=20", "datamodule.pool_batches=4"],
    }


class Recorder(pl.Callback):
    """Writes to `file` the kernels of ours that a training compiles."""

    def __init__(self, file: str) -> None:
        self.file, self.entries = Path(file), list[dict[str, Any]]()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        from triton import knobs

        knobs.runtime.jit_post_compile_hook = self.note  # pyright: ignore[reportAttributeAccessIssue]

    def note(self, *, fn: Any, compile: dict[str, Any], **_: object) -> None:
        """Notes one kernel; Triton calls it for those from its cache too."""
        if fn.module.startswith("src."):
            major, minor = torch.cuda.get_device_capability()
            self.entries.append(entry_of(fn, compile["specialization_data"], 10 * major + minor))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.file.write_text(json.dumps(self.entries))


def recorded(model: str, overrides: list[str], precision: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the kernels that a case compiled, in that order."""
    file = folder / f"{model}_{precision}.json"
    recorder = f"+callbacks.recorder={{_target_:benchmarks.kernel_lists.Recorder,file:{file}}}"
    words = [f"model={model}", *overrides, f"precision={precision}", *STEPS, recorder, "logger=none", "pictures=false"]
    places = [f"output_dir={folder}/{file.stem}", f"data_root={folder}/data_{model}"]
    command, environment = python("train.py", *words, *places), os.environ | safe_path()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


def slowest_first(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the kernels in order of the CPU time that each took to compile."""
    from triton import knobs

    with TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder  # pyright: ignore[reportAttributeAccessIssue]
        seconds = [compiled_s(entry) for entry in entries]
    return [entries[i] for i in sorted(range(len(entries)), key=lambda i: -seconds[i])]


def compiled_s(entry: dict[str, Any]) -> float:
    begin = os.times()
    compile_kernel(entry)
    end = os.times()
    return sum(end[:4]) - sum(begin[:4])


def main(folder: Path, models: Sequence[str] = ()) -> None:
    """Writes the lists of these models, all if none is given."""
    for model, overrides in cases(folder).items():
        if models and model not in models:
            continue
        precisions: dict[str, list[str]] = {}
        for precision in PRECISIONS:
            for entry in recorded(model, overrides, precision, folder):
                precisions.setdefault(json.dumps(entry), []).append(precision)
        entries = [json.loads(entry) | {"precisions": names} for entry, names in precisions.items()]
        lines = [json.dumps(entry) for entry in slowest_first(entries)]
        file = ROOT / "src" / "models" / model / "fast" / LIST
        write_text(file, "[\n" + ",\n".join(lines) + "\n]\n")
        print(f"{file.relative_to(ROOT)}: {len(lines)} kernels")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])

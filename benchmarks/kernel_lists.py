"""Writes `src/models/*/fast/kernels.json`: the Triton kernels that published cases and recipes compile on this GPU.

`python -m benchmarks.kernel_lists FOLDER [MODEL ...]` runs the cases for some steps, with molecules of
FOLDER/mols.xyz and FOLDER/zinc.smiles (5,000 or more; for models that read them) and other data that are made up.
Each list begins with what takes longest to compile. MobileNetV1 compiles itself those of other sizes
(`fast/precompile.py`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch

from src.gpu.precompile import LIST, compile_kernel, entry_of, import_kernels, side_by_side
from src.system.files import write_text
from src.system.interpreter import ROOT, python, safe_path
from src.system.workers import cpu_count

STEPS = ("fit.max_steps=12", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", "~callbacks.checkpoint")


class Case(NamedTuple):
    """The overrides of a run, the values of its config that kernels are only listed for, and its precisions."""

    overrides: list[str]
    when: Mapping[str, Any] = MappingProxyType({})
    precisions: tuple[str, ...] = ("amp", "tf32")


def cases(folder: Path) -> dict[str, list[Case]]:
    """Returns each model's published case, and recipes whose kernels are others."""
    molecules = (f"datamodule.source.file={folder}/mols.xyz", "datamodule.source.skip_bad=true")
    smiles = "datamodule=smiles_file", f"datamodule.source.file={folder}/zinc.smiles"
    logdet, size, padding = "model.task.network.logdet", "hp.batch_size", "datamodule.padding"
    tokens = "+fix_hp=max_bs", "datamodule=token_synthetic", "model.task.weights=random", "hp.accumulate=1"
    return {
        "moflow": [
            Case([*smiles, "hp.batch_size=512", "hp.lr=5e-4"], {logdet: "published"}),
            Case(["experiment=moflow_quality", *smiles], {logdet: "exact"}),
        ],
        "mobilenet_v1": [
            Case(["datamodule=image_synthetic", f"{size}={images}"], {size: images}) for images in (64, 256)
        ],
        "se3_transformer": [
            Case(["datamodule=molecule_file", *molecules, "datamodule.task=energy", "hp.batch_size=240"])
        ],
        "distilbert": [
            Case([*tokens, f"{padding}={kind}"], {padding: kind}, ("amp", "tf32", "bf16"))
            for kind in ("max_length", "packed")
        ],
        "dlrm": [Case(["datamodule=criteo_resident", "datamodule.steps_per_epoch=20", "datamodule.pool_batches=4"])],
    }


def listed(runs: Sequence[tuple[Case, str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Returns the list's entries from the kernels that cases compiled in a precision.

    A kernel of cases that differ in `when` is listed for all values of it, in each precision by itself.
    """
    whens = dict[str, dict[str, list[dict[str, Any]]]]()  # of each kernel in each precision
    for case, precision, entries in runs:
        for text in dict.fromkeys(map(json.dumps, entries)):
            whens.setdefault(text, {}).setdefault(precision, []).append(dict(case.when))
    result = []
    for text, of_kernel in whens.items():
        shared = {name: values[0] if all(map(values[0].__eq__, values)) else {} for name, values in of_kernel.items()}
        for when in {json.dumps(when): when for when in shared.values()}.values():
            precisions = [name for name in shared if shared[name] == when]
            result.append(json.loads(text) | {"precisions": precisions} | ({"when": when} if when else {}))
    return result


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


def recorded(name: str, model: str, overrides: list[str], precision: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the kernels that a case compiled, in that order. `name` is of its files."""
    file = folder / f"{name}_{precision}.json"
    recorder = f"+callbacks.recorder={{_target_:benchmarks.kernel_lists.Recorder,file:{file}}}"
    words = [f"model={model}", *overrides, f"precision={precision}", *STEPS, recorder, "logger=none", "pictures=false"]
    places = [f"output_dir={folder}/{file.stem}", f"data_root={folder}/data_{model}"]
    command, environment = python("train.py", *words, *places), os.environ | safe_path()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


def slowest_first(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the kernels in order of the CPU time that each took to compile, side by side on all cores.

    Raises RuntimeError where one cannot be compiled.
    """
    from triton import knobs

    import_kernels(entries)
    with TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder  # pyright: ignore[reportAttributeAccessIssue]
        files = [Path(folder, f"{number}.seconds") for number in range(len(entries))]
        jobs = [partial(write_compiled_s, *job) for job in zip(entries, files, strict=True)]
        if not side_by_side(jobs, cpu_count()):
            missing = [entry["kernel"] for entry, file in zip(entries, files, strict=True) if not file.exists()]
            raise RuntimeError(f"could not be compiled: {', '.join(missing)}")
        seconds = [float(file.read_text()) for file in files]
    return [entries[i] for i in sorted(range(len(entries)), key=lambda i: -seconds[i])]


def write_compiled_s(entry: dict[str, Any], file: Path) -> None:
    """Compiles a kernel and writes the CPU time of this process and of those that it began."""
    begin = os.times()
    compile_kernel(entry)
    end = os.times()
    file.write_text(str(sum(end[:4]) - sum(begin[:4])))


def main(folder: Path, models: Sequence[str] = ()) -> None:
    """Writes the lists of these models, all if none is given."""
    for model, of_model in cases(folder).items():
        if models and model not in models:
            continue
        runs = [
            (case, precision, recorded(f"{model}{number}", model, case.overrides, precision, folder))
            for number, case in enumerate(of_model)
            for precision in case.precisions
        ]
        entries = listed(runs)
        lines = [json.dumps(entry) for entry in slowest_first(entries)]
        file = ROOT / "src" / "models" / model / "fast" / LIST
        write_text(file, "[\n" + ",\n".join(lines) + "\n]\n")
        print(f"{file.relative_to(ROOT)}: {len(lines)} kernels")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])

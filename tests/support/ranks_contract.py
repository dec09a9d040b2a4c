"""Runs of the five models whose result must not depend on the number of ranks, and what a rank sees of one.

Dropout, augmentation and noise are off; the optimiser is plain SGD, which does not amplify rounding as Adam does.
"""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from omegaconf import DictConfig
from torch import Tensor, distributed
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from src.config.complete import complete
from src.datamodules.images.cifar10_files import CLASSES
from src.measure.clock import Clock
from src.models.moflow.network import MoFlow
from src.models.moflow.task import MoFlowTask
from src.run import Job, build, fit, quieten, train
from src.system.files import locked
from tests.support import tiny_distilbert, tiny_dlrm, tiny_mobilenet, tiny_run, tiny_se3
from tests.support.composing import composed

BATCH = 2  # of a rank
ALWAYS = (
    "fit.eval_every_n_epochs=null", "fit.checkpoint_every_n_epochs=9", "fit.max_epochs=1", "measure.window=1",
)  # fmt: skip
NO_AUGMENTATION = tuple(
    f"model.task.augment.{key}" for key in ("flip=false", "jitter=0", "lighting=0", "pad=0", "cutout=0")
)
SGD = "model.task.optimizer._target_=torch.optim.SGD", "~model.task.optimizer.betas"


class Seen(NamedTuple):
    """What one rank saw of a run."""

    start: dict[str, Tensor]  # whole weights and buffers before the first step, on rank 0
    losses: list[float]  # of each step, over this rank's samples
    counts: list[int]  # this rank's samples of each step
    gradients: list[list[Tensor]]  # of each step, as the optimiser gets them
    buffers: dict[str, Tensor]  # buffers of this rank after the last step
    end: dict[str, Tensor]  # weights and buffers after the last evaluation, the tables on rank 0
    metrics: dict[str, float]


def moflow(home: Path, samples: int, held_out: int) -> list[str]:
    """Molecules whose noise does not depend on the rank; see `fixed`."""
    file = home / f"{samples}_{held_out}.smiles"
    file.write_text("".join(f"{text}\n" for text in tiny_run.SMILES[: samples + held_out]), encoding="utf-8")
    share = f"datamodule.source.held_out_share={held_out / (samples + held_out)}"
    sizes = "model.task.final_molecules=4", "model.task.eval_batch=4", "model.task.reconstructed=0"
    overrides = [
        override for override in tiny_run.tiny_overrides(home) if not override.startswith("datamodule.source.file=")
    ]
    where = f"datamodule.source.file={file}", share, f"data_root={home / file.stem}"
    return [*overrides, *where, *sizes, *SGD, f"model.task.network.norm_batch={BATCH}"]


def se3_transformer(home: Path, samples: int, held_out: int) -> list[str]:
    file = home / f"{samples}_{held_out}.csv"
    tiny_se3.write_molecules(file)
    rows = file.read_text(encoding="utf-8").splitlines()[: 1 + samples + 2 * held_out]
    file.write_text("\n".join([*rows, ""]), encoding="utf-8")
    shares = [f"datamodule.source.{split}_share={held_out / (samples + 2 * held_out)}" for split in ("val", "test")]
    overrides = [
        override for override in tiny_se3.tiny_overrides(home) if not override.startswith("datamodule.source.file=")
    ]
    return [*overrides, f"datamodule.source.file={file}", *shares, *SGD, "model.task.optimizer.weight_decay=0"]


def distilbert(home: Path, samples: int, held_out: int) -> list[str]:
    folder = home / f"{samples}_{held_out}"
    overrides = tiny_distilbert.tiny_overrides(folder, padding="longest")
    tiny_distilbert.write_sentences(folder / "raw", samples, held_out)
    off = [f"model.task.network.{name}=0" for name in ("dropout", "attention_dropout", "head_dropout")]
    return [*overrides, *off, SGD[0], "hp.lr=0.1", f"data_root={folder}"]


def dlrm(home: Path, samples: int, held_out: int) -> list[str]:
    rows = f"datamodule.generate.train_rows={samples}", f"datamodule.generate.test_rows={held_out}"
    overrides = tiny_dlrm.tiny_overrides(home / f"{samples}_{held_out}", tiny_dlrm.ON_DISK)
    return [*overrides, *rows, "model.task.tables=null", "datamodule.test_batch_size=4"]


def mobilenet_v1(home: Path, samples: int, held_out: int) -> list[str]:
    folder = home / f"{samples}_{held_out}"
    for split, count in (("train", samples), ("test", held_out)):
        for number in range(count):
            file = folder / split / CLASSES[number % len(CLASSES)] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            tiny_mobilenet.picture(32, 32, number + 1000 * (split == "test")).save(file)
    data = "datamodule=cifar10", f"datamodule.source={folder}", f"datamodule.data_dir={home / f'cifar10_{folder.name}'}"
    return [*tiny_mobilenet.tiny_overrides(home, data), *NO_AUGMENTATION, "datamodule.test_batch_size=2"]


def image_folder(home: Path, samples: int, held_out: int) -> list[str]:
    """As many images of each of three classes; a class needs one to be evaluated with."""
    folder = home / f"{samples}_{held_out}"
    data = tiny_mobilenet.overrides_of(folder)
    tiny_mobilenet.write_folders(folder, samples // 3, held_out // 3)
    return [*tiny_mobilenet.tiny_overrides(home, data), *NO_AUGMENTATION, "datamodule.test_batch_size=2"]


def own_clicks(home: Path, samples: int, held_out: int) -> list[str]:
    file = home / f"{samples}_{held_out}.csv"
    rows = [f"{number % 2},{number / 3:.2f},user{number % 7}" for number in range(samples + held_out)]
    file.write_text("\n".join(["label,price,user", *rows, ""]), encoding="utf-8")
    data = (
        "datamodule=click_file", f"datamodule.source.file={file}", "datamodule.source.numerical=[price]",
        "datamodule.source.categorical=[user]", "datamodule.source.buckets=20",
        f"datamodule.source.held_out_share={held_out / (samples + held_out)}",
    )  # fmt: skip
    return [*tiny_dlrm.tiny_overrides(home, data), "model.task.tables=null", "datamodule.test_batch_size=4"]


RUNS: dict[str, Callable[[Path, int, int], list[str]]] = {
    "moflow": moflow,
    "se3_transformer": se3_transformer,
    "distilbert": distilbert,
    "dlrm": dlrm,
    "mobilenet_v1": mobilenet_v1,
}
OTHER_DATA = {"image_folder": image_folder, "own_clicks": own_clicks}


def as_rank(rank: int, world: int, nodes: int = 1) -> dict[str, str]:
    """Returns the environment of a rank of torchrun."""
    node, local = divmod(rank, world // nodes)
    numbers = {"RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node, "WORLD_SIZE": world, "MASTER_PORT": 1}
    numbers["LOCAL_WORLD_SIZE"] = world // nodes
    return {"TORCHELASTIC_RUN_ID": "tests", "MASTER_ADDR": "localhost"} | {k: str(v) for k, v in numbers.items()}


def as_one_of_many(function: Callable[..., Any], *arguments: Any, nodes: int = 1) -> Any:
    """Calls a function with the config of a run on all ranks of this process's gloo group; returns what it returns."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    with mock.patch.dict(os.environ, as_rank(rank, world, nodes)):
        return function(*arguments, f"trainer={nodes}x{world // nodes}")


def train_with(*overrides: str) -> None:
    """Trains with these overrides and leaves a record."""
    train(composed("train", *overrides))


def config_of(name: str, home: Path, samples: int, held_out: int, *overrides: str) -> DictConfig:
    home.mkdir(exist_ok=True)
    made = home / f"{name}_{samples}_{held_out}.json"
    with locked(home / "made.lock"):  # each rank comes here, and one writes the data
        if not made.exists():
            made.write_text(json.dumps((RUNS | OTHER_DATA)[name](home, samples, held_out)), encoding="utf-8")
    data = json.loads(made.read_text(encoding="utf-8"))
    return composed("train", *data, *ALWAYS, "hp.batch_per=device", f"hp.batch_size={BATCH}", *overrides)


def seen(name: str, home: Path, samples: int, held_out: int, *overrides: str) -> Seen:
    """Trains a run of RUNS or OTHER_DATA without leaving a record; returns what this process saw."""
    quieten()
    job = build(complete(config_of(name, home, samples, held_out, *overrides)), Clock())
    if name == "mobilenet_v1":  # BatchNorm of a few values amplifies rounding
        job.task.network.double()
    start: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    losses, counts, gradients = [], [], []
    task = job.task
    follow, prepare, after = task.training_step, task.prepare_first_step, task.on_train_end

    def prepared(batches: Any) -> None:
        prepare(batches)
        start.update(copied(task.network.state_dict()))

    def noted(batch: Any, batch_idx: int) -> None:
        step = task.global_step
        follow(batch, batch_idx)
        if task.global_step > step:
            losses.append(float(task.last["loss"]))
            counts.append(task.step_samples)

    def trained() -> None:
        after()
        buffers.update(copied(dict(task.network.named_buffers())))

    def before_update(optimizer: Optimizer, *_: Any) -> None:
        parts = [p.grad for group in optimizer.param_groups for p in group["params"]]
        gradients.append([torch.zeros(0) if part is None else part.clone() for part in parts])

    replaced = {"training_step": noted, "prepare_first_step": prepared, "on_train_end": trained}
    hook = register_optimizer_step_pre_hook(before_update)
    with fixed(), mock.patch.multiple(task, **replaced):
        try:
            fit(job)
        finally:
            hook.remove()
            leave(job)
    end = copied(task.network.state_dict())
    return Seen(start, losses, counts, gradients, buffers, end, dict(task.metrics))


def leave(job: Job) -> None:
    """Ends what a run leaves open."""
    job.trainer.strategy.checkpoint_io.teardown()
    job.task.teardown("fit")


def evaluated(name: str, home: Path, samples: int, held_out: int, weights: dict[str, Tensor]) -> dict[str, float]:
    """Returns the metrics of these weights, evaluated after training in this process alone."""
    quieten()
    job = build(complete(config_of(name, home, samples, held_out, f"output_dir={home / 'alone'}")), Clock())
    job.datamodule.prepare_data()
    job.task.trainer = job.trainer
    job.trainer._data_connector.attach_datamodule(job.task, job.datamodule)  # as `fit` does before it trains
    job.datamodule.setup("fit")
    job.task.setup("fit")
    if name == "mobilenet_v1":
        job.task.network.double()
    job.task.network.load_state_dict(weights)
    with fixed():
        job.task.evaluate_last(job.datamodule)
    leave(job)
    return dict(job.task.metrics)


def fixed() -> ExitStack:
    """Gives every molecule of MoFlow the same noise, and generates none."""

    def same_noise(self: MoFlow, x: Tensor, adj: Tensor, noise: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shares = (torch.rand(values.shape[1:], generator=generator) for values in (x, adj))
        return tuple(v + noise * self.noise_scale * share for v, share in zip((x, adj), shares, strict=True))  # type: ignore[return-value]

    def no_molecule(self: MoFlowTask, count: int) -> list[str | None]:
        return [None] * count

    stack = ExitStack()
    stack.enter_context(mock.patch.object(MoFlow, "dequantise", same_noise))
    stack.enter_context(mock.patch.object(MoFlowTask, "_drawn", no_molecule))
    return stack


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to("cpu", copy=True) for name, value in state.items()}

"""The config as frozen dataclasses: the schema of what Hydra composes, and, once checked, what the code reads.

Unknown keys and wrong types fail at composition.

Models and datamodules stay plain yaml with `_target_`: there the class's own signature is the schema. Ranges and
choices are in the types of both (src/config/ranges.py); src/config/values.py checks them before anything starts.
"""

import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import II, MISSING, DictConfig, OmegaConf, SCMode

from src.config.ranges import Count, Limit, NotNegative, Number, OpenShare, Positive, Seconds, Seed
from src.config.settings import CONF
from src.config.versions import ignore_unlisted, register_resolver, store_config
from src.system.files import claimed
from src.system.group import begun_s, restarts, started_by

SHOWING = "--cfg", "--help", "--hydra-help", "--info", "--shell-completion", "--version"  # Hydra's, that run nothing
SHOWING_SHORT = "-c", "-h", "-i", "-sc"
NO_CLASSES = "__MACOSX", "@eaDir"  # folders that archives and file servers add to those of the classes
NEEDS_RUN_FOLDER = "${run_dir:", "${hydra:", "${claim:"  # an output_dir with these cannot say what that folder is

# OmegaConf knows no Literal, but leaves it alone here.
Switch = Annotated[str, Literal["auto", "on", "off"]]
AutoOff = Annotated[str, Literal["auto", "off"]]
BatchPer = Annotated[str, Literal["device", "global"]]
Storage = Annotated[str, Literal["32-true", "16-true", "16-mixed", "bf16-mixed"]]
Matmul = Annotated[str, Literal["highest", "high", "medium"]]
Accelerator = Annotated[str, Literal["auto", "cuda", "cpu"]]
Format = Annotated[str, Literal["safetensors", "hf", "onnx", "torch_export", "aoti"]]
HalfDtype = Annotated[str, Literal["bf16", "fp16"]]
Exchange = Annotated[str, Literal["auto", "nccl"]]
Kernels = Annotated[Any, Literal["auto", "off"] | list[str]]


@dataclass(frozen=True)
class HyperParameters:
    """What `fix_hp` may change, and nothing else."""

    batch_size: Count = MISSING  # samples in one batch
    batch_per: BatchPer = MISSING  # whose batch `batch_size` counts
    lr: NotNegative = MISSING  # learning rate, before the schedule's factor
    accumulate: Count = 1  # batches of each rank in one optimiser step, whose samples weigh alike


@dataclass(frozen=True)
class Topology:
    name: str = "${trainer.num_nodes}x${trainer.devices}"  # nodes x devices, e.g. "2x8"
    num_nodes: Count = MISSING  # machines
    devices: Count = MISSING  # on each node
    crowded: bool = False  # more than 4 processes on each core, where there is no GPU
    patience_s: Seconds = 60.0  # with ranks that do not meet, or one of this machine that is stopped


@dataclass(frozen=True)
class Precision:
    name: str = MISSING  # fp32, tf32, amp, bf16 or fp16
    lightning: Storage = MISSING  # Lightning's name for storage and autocast dtype
    matmul: Matmul = MISSING  # torch.set_float32_matmul_precision
    cudnn_tf32: bool = MISSING  # whether cuDNN's convolutions may use TF32
    loss_scale: Positive = 65536.0  # of float16 gradients, where they have one
    loss_scale_growth_steps: Count = 2000  # steps without an overflow before it doubles

    @property
    def activation_bytes(self) -> int:
        """The bytes of a number that passes between products."""
        return 4 if self.lightning == "32-true" else 2


@dataclass(frozen=True)
class Hardware:
    name: str = MISSING  # as in records and tables
    accelerator: Accelerator = "auto"  # auto: a GPU where one is visible
    match: str | None = None  # regular expression on the device's name
    peak_flops: dict[str, Positive | None] = field(default_factory=dict)  # FLOP/s by dtype: fp32, tf32, fp16, bf16
    peak_bandwidth: Positive | None = None  # bytes/s of device memory
    memory_gib: Positive | None = None  # device memory


@dataclass(frozen=True)
class Fit:
    """How long to train and how often to look. Published recipes live in the model; these are what a run changes."""

    max_epochs: Limit = II("model.recipe.max_epochs")  # passes over the training split
    max_steps: Limit = -1  # optimiser steps
    max_time_s: Seconds | None = None  # wall seconds of training, then a normal end
    clip_norm: Positive | None = II("model.recipe.clip_norm")  # largest norm of all gradients; null: no clipping
    ema_decay: OpenShare | None = None  # of averaged weights, evaluated and saved in place of the last ones; null: none
    eval_every_n_epochs: Count | None = II("model.recipe.eval_every_n_epochs")  # null: no evaluation during training
    eval_every_n_steps: Count | None = II("oc.select:model.recipe.eval_every_n_steps,null")  # in the place of epochs
    evaluate_first: bool = II("oc.select:model.recipe.evaluate_first,false")  # once before training, as some recipes do
    checkpoint_every_n_epochs: Count = II("model.recipe.checkpoint_every_n_epochs")  # `last.ckpt`
    checkpoint_every_n_steps: Count | None = None  # in addition to epochs
    stop_at_target: bool = False  # end training when an evaluation reaches `model.task.target`
    stop_after_plateau: Count | None = None  # end after so many evaluations without a better final metric; null: never
    final_evaluation: bool = True  # evaluate after training


@dataclass(frozen=True)
class Execution:
    """How the same mathematics is run: never changes the function (`gradient_dtype` rounds) or the state_dict."""

    graph: Switch = "auto"  # the whole training step in one CUDA graph; auto: on a GPU
    compile: Switch = "auto"  # torch.compile where the task claims it; auto: on a GPU
    kernels: Kernels = "auto"  # names of fast modules; auto: every one
    graph_warmup_steps: Count = 3  # eager steps before the capture
    gradient_dtype: HalfDtype | None = None  # of the all-reduce; null: the gradients' own
    exchange: Exchange = "auto"  # between ranks; auto: shared GPU memory on one machine, else NCCL
    graph_gaps: AutoOff = "auto"  # reset the hardware queues after a graph's capture, for shorter launch gaps
    products: AutoOff = "auto"  # in half precision by the fastest of cuBLAS's algorithms that give the same bits
    deterministic: bool = False  # the same command gives the same bits twice: docs/reference/reliability.md


@dataclass(frozen=True)
class Measure:
    window: Count = 20  # steps between reads of the device's clocks and losses
    warmup_steps: Number = 20  # left out of `steady`: compilation, autotuning, graph capture


@dataclass(frozen=True)
class Sweep:
    """Of `-m`: how the jobs of a sweep are run. Never part of a job."""

    parallel: Count | None = None  # jobs at once; null: as many as the GPUs carry, one on a machine without
    timeout_s: Seconds | None = None  # wall seconds after which a job is ended
    resume: str | None = None  # the folder of a sweep to go on with


@dataclass(frozen=True)
class TrainConfig:
    model: Any = MISSING  # a group
    datamodule: Any = MISSING  # a group
    trainer: Topology = field(default_factory=Topology)
    precision: Precision = field(default_factory=Precision)
    hardware: Hardware = field(default_factory=Hardware)
    callbacks: Any = MISSING  # a group
    logger: Any = MISSING  # a group
    hp: HyperParameters = field(default_factory=HyperParameters)
    fix_hp: Any = None  # appended: +fix_hp=max_bs or +fix_hp=auto
    fit: Fit = field(default_factory=Fit)
    execution: Execution = field(default_factory=Execution)
    measure: Measure = field(default_factory=Measure)
    sweep: Sweep = field(default_factory=Sweep)
    seed: Seed = 1  # of weights, noise and the order of the data
    pictures: bool = True  # of where the time went and of the curves, beside the record
    note: str | None = None  # what a person should know of this run; printed above its figures
    ckpt_path: str | None = None  # resume from this checkpoint
    resume: bool = False  # resume from the newest checkpoint of this model under output_root
    accept_changes: bool = False  # resume although the data, batch, ranks or model differ from the checkpoint's
    data_root: str = "data"  # folder of the data sets
    output_root: str = "outputs"  # folder of the run folders
    output_dir: str = "${run_dir:}"  # this run's folder, with Hydra's files

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.trainer.num_nodes * self.trainer.devices


def no_training() -> dict[str, Any]:
    """Hyper-parameters that models and datamodules refer to, where nothing is trained."""
    return {"batch_size": 1, "batch_per": "device", "lr": 0.0}


@dataclass(frozen=True)
class PredictConfig:
    model: Any = MISSING  # a group
    datamodule: Any = MISSING  # a group
    logger: Any = MISSING  # a group
    precision: Precision = field(default_factory=Precision)
    hardware: Hardware = field(default_factory=Hardware)
    execution: Execution = field(default_factory=Execution)
    ckpt_path: str | None = None  # trained weights; null: random ones, good for timing alone
    num_samples: Count | None = 10000  # null: as many as the data has
    batch_size: Count = 512  # samples predicted at once
    benchmark: bool = False  # time batches: rates and latencies after warm-up, compilation and graph capture
    warmup_batches: Number = 5  # of a benchmark, run first and left out
    evaluate: bool = False  # predict train, validation and test split, each up to num_samples, and compare them
    output: str | None = None  # file of the predictions; in the run's folder if not given
    sweep: Sweep = field(default_factory=Sweep)
    hp: dict[str, Any] = field(default_factory=no_training)  # models and datamodules refer to it; unused
    seed: Seed = 1
    data_root: str = "data"  # folder of the data sets
    output_root: str = "outputs"  # folder of the run folders
    output_dir: str = "${run_dir:}"


@dataclass(frozen=True)
class PrepareConfig:
    datamodule: Any = MISSING  # a group
    sweep: Sweep = field(default_factory=Sweep)
    hp: dict[str, Any] = field(default_factory=no_training)  # models and datamodules refer to it; unused
    seed: Seed = 1
    data_root: str = "data"  # folder of the data sets
    output_root: str = "outputs"  # folder of the run folders


@dataclass(frozen=True)
class ExportConfig:
    ckpt_path: str = MISSING  # trained weights
    to: Format = MISSING  # also as --to FORMAT
    output: str | None = None  # the new folder; null: beside the checkpoint, named after it and the format
    overwrite: bool = False  # take the place of an earlier export
    shard_gib: Positive = 5.0  # the most of one file of safetensors
    push: str | None = None  # USER/NAME on the Hugging Face Hub, where the folder is uploaded
    model: dict[str, Any] = field(default_factory=dict)  # keys that the checkpoint leaves out: secrets


def run_dir() -> str:
    """Returns the folder of the run; for `--cfg job`, where there is none yet, the one a run would get."""
    hydra = HydraConfig.get()
    return hydra.run.dir if OmegaConf.is_missing(hydra.runtime, "output_dir") else hydra.runtime.output_dir


@cache
def claim(folder: str) -> str:
    """Returns a folder that no other run has: with a number behind its name where one of the same second has that.

    Ranks that torchrun or SLURM started take the name as it is, because they share it; so does a command that shows
    something and runs nothing. Those that torchrun started again take a new one.
    """
    if started_by() is not None or any(text.startswith(SHOWING) or text in SHOWING_SHORT for text in sys.argv[1:]):
        return f"{folder}_{restarts() + 1}" if restarts() else folder
    try:
        return str(claimed(Path(folder)))
    except OSError:  # Hydra meets it too, where it is said in one line
        return folder


def run_folder(folder: str, *, _root_: DictConfig) -> str:
    """Returns the `output_dir` that was given, so that Hydra's files lie there too; else a folder of the run's own."""
    output_dir = str(OmegaConf.to_container(_root_, resolve=False).get("output_dir") or "")  # type: ignore[union-attr]
    if not output_dir or output_dir == MISSING or any(name in output_dir for name in NEEDS_RUN_FOLDER):
        return claim(folder)
    return str(_root_.output_dir)


def begun(pattern: str) -> str:
    """Returns when the run began, the same on all ranks of a machine, in the format of `time.strftime`."""
    return time.strftime(pattern, time.localtime(begun_s()))


def class_folders(folder: str) -> int:
    """Returns the number of folders in a folder of images; 1 where there is none, of which the datamodule tells."""
    try:
        names = [entry.name for entry in Path(folder).iterdir() if entry.is_dir()]
        return max(1, sum(not name.startswith(".") and name not in NO_CLASSES for name in names))
    except OSError:
        return 1


def first(*values: Any) -> Any:
    """Returns the first one that is not null."""
    return next((value for value in values if value is not None), None)


def choices(*groups: str) -> str:
    """Returns the options of each config group, for --help."""
    names = {group: sorted(file.stem for file in (CONF / group).glob("*.yaml")) for group in groups}
    return "\n".join(
        fill(f"{group}: {', '.join(options)}", 118, subsequent_indent="  ") for group, options in names.items()
    )


def unlocked(node: DictConfig) -> DictConfig:
    """Returns a section whose values can be set: OmegaConf locks those of frozen dataclasses."""
    node._set_flag("readonly", None)
    for name in node:
        child = node._get_node(name)
        if isinstance(child, DictConfig) and not (child._is_none() or child._is_missing()):
            unlocked(child)
    return node


def structured(schema: Any) -> DictConfig:
    """Returns a dataclass, or an instance of one, as a section whose values can be set."""
    return unlocked(OmegaConf.structured(schema))


def typed(config: DictConfig) -> Any:
    """Returns a checked config as its dataclass; groups become plain dicts, where a value may be missing."""

    def plain(value: Any) -> Any:
        if not OmegaConf.is_config(value):
            return value
        return OmegaConf.to_container(value, resolve=True, structured_config_mode=SCMode.INSTANTIATE)

    schema: Any = OmegaConf.get_type(config)
    return schema(**{str(name): plain(config[name]) for name in config})


def register() -> None:
    """Makes the schemas and resolvers known; every entry point calls it before composing."""
    ignore_unlisted()
    register_resolver("run_dir", run_dir)
    register_resolver("begun", begun)
    register_resolver("first", first)
    register_resolver("class_folders", class_folders)
    register_resolver("claim", run_folder)
    register_resolver("choices", choices)
    store_config(name="train_schema", node=structured(TrainConfig))
    store_config(name="predict_schema", node=structured(PredictConfig))
    store_config(name="prepare_schema", node=structured(PrepareConfig))
    store_config(name="export_schema", node=structured(ExportConfig))

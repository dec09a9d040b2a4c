"""Task: the base class of every model's LightningModule.

A model provides `network` (an nn.Module that works alone), `unit`, `final_metric`, `loss`, `count`, `cost`,
`example_batch` and its validation and test steps. Training itself, eager or in one CUDA graph, is `TrainStep`, the
same for all of them.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from src.batches.step import StepBatches
from src.config.schema import Execution, TrainConfig
from src.config.trained import RUN, training_choices
from src.errors import UserError
from src.gpu import deferred_rows
from src.gpu.cuda_graphs import Graphed
from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.gpu.waiting import Waiting
from src.measure.clock import Clock
from src.measure.judged import ClassFigures
from src.measure.roofline import Cost
from src.system.masking import masked
from src.training import adam
from src.training.checkpoints import WRITTEN_BY, this_version
from src.training.export import Export
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import Inference, Predictor
from src.training.schedule import Schedule, ScheduledRate
from src.training.state import check_optimizer
from src.training.step import TrainStep
from src.training.tables import with_kernels
from src.training.update_kernels import REPLACEMENTS, use_kernels

T = TypeVar("T")
OURS = "src.", "pytorch_lightning.callbacks.timer"  # modules of callbacks that share no memory with the weights


@dataclass(frozen=True)
class FinalMetric:
    """The figure a run is judged by, and the value that counts as reached."""

    name: str
    direction: Literal["max", "min"]
    target: float | None

    def reached(self, value: float | None) -> bool | None:
        """Returns whether the value reaches the target; None where there is no value or no target."""
        if value is None or self.target is None:
            return None
        return value >= self.target if self.direction == "max" else value <= self.target

    def record(self, value: float | None) -> dict[str, Any]:
        """Returns the `final_metric` of a record."""
        judged = {"value": value, "target": self.target, "reached": self.reached(value)}
        return {"name": self.name, "direction": self.direction, **judged}

    def better(self, value: float, than: float | None) -> bool:
        """Returns whether the value is better than another one, or than none at all."""
        return than is None or (value > than if self.direction == "max" else value < than)


class Task(pl.LightningModule):
    """Base of every model's task.

    Args:
        network: the model, usable alone.
        optimizer: makes the optimiser from the parameters (`_partial_: true` in the config).
        schedule: of the learning rate, which is logged as `lr`; None keeps it as it is.
    """

    unit: str
    final_metric: FinalMetric
    curves: tuple[str, ...] = ("loss",)  # what the picture of a run's history shows
    data_kind: type[pl.LightningDataModule] = pl.LightningDataModule  # class of the datamodules that it reads
    expected_data = ""  # the error message for a datamodule of another kind
    replacements: ClassVar[Replacements] = {}  # the fast modules of its network, by name
    imported_on_ranks: ClassVar[tuple[str, ...]] = ()  # modules that it imports where it trains on several devices
    checkpoint_keys: ClassVar[tuple[str, ...]] = ()  # texts of a checkpoint that its predictor needs, for an export
    predictions_name = "predictions.csv"  # where predict.py writes if no output is given
    is_trained = False  # whether it began with weights that predict

    def __init__(
        self, network: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], schedule: Schedule | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.make_optimizer, self.schedule = optimizer, schedule
        self.automatic_optimization = False  # TrainStep does it, so that one graph can hold the whole step
        self.clock = Clock()
        self.execution = Execution()
        self.kernels: Kernels = "off"  # the names of `accelerate`
        self.clip_norm: float | None = None
        self.steps_are_plain = False  # whether each is of one batch, and its weights are not averaged
        self.batch_size = 1.0  # samples of a batch of one rank, mean over this run: cost() spreads its traffic over it
        self.updates = 1.0  # optimiser steps a batch, likewise
        self.activation_bytes = 4  # of a number that passes between products, for cost()
        self.samples_trained = 0  # by all ranks, in this run
        self.step_samples = 0  # of this rank, in the newest step
        self._batches_trained = self._steps_trained = 0  # by this rank, in this run
        self.last: dict[str, Tensor] = {}  # what the newest step returned; a graph overwrites these tensors in place
        self.losses = torch.zeros(())  # on the device: 0 while every loss was finite, NaN from then on
        self.diverged: str | None = None  # the error message once the host has seen that
        self.metrics: dict[str, float] = {}  # what the newest evaluation found
        self.class_figures: Sequence[ClassFigures] = ()  # likewise, of each class
        self.output_dir: Path | None = None  # where evaluations may write files
        self.artifacts: dict[str, Path] = {}  # files that an evaluation wrote, by what they are
        self.model_config: Any = None  # saved with every checkpoint, so that predict.py can rebuild the task
        self.run_config: Any = None  # likewise: the data and the precision
        self.waiting = Waiting(torch.device("cpu"))  # for other ranks, in this training
        self.after_step: Callable[[pl.Trainer], None] | None = None  # called when a batch's callbacks are done
        self._step: TrainStep | None = None
        self._evaluation: Graphed[Any] | None = None
        self._rate: ScheduledRate | None = None

    @abstractmethod
    def loss(self, batch: Any) -> dict[str, Tensor]:
        """Returns the scalar to minimise as `loss`, with any parts of it worth logging. No host synchronisation."""

    @abstractmethod
    def count(self, batch: Any) -> int:
        """Samples in this batch of this rank, read from shapes."""

    @abstractmethod
    def cost(self) -> Cost:
        """Returns useful FLOPs and least bytes per sample."""

    @abstractmethod
    def example_batch(self, size: int) -> Any:
        """Returns a random valid batch on the task's device."""

    @abstractmethod
    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Predicts or generates, times each batch, and writes the results."""

    def predictor(self, inference: Inference) -> Predictor[Any, Any]:
        """Returns the network with its preprocessing, ready to call. Raises UserError where there is none."""
        raise UserError(f"{type(self).__name__} has no `predictor`; use predict.py")

    def configure(self, config: TrainConfig, clock: Clock) -> None:
        """Takes what a training's config says of its steps, kernels and files, and what checkpoints keep of it."""
        self.clock, self.execution, self.clip_norm = clock, config.execution, config.fit.clip_norm
        self.steps_are_plain = config.hp.accumulate == 1 and config.fit.ema_decay is None
        self.accelerate(config.execution.kernels)
        self.model_config, self.run_config = deepcopy(config.model), training_choices(config)
        self.output_dir, self.activation_bytes = Path(config.output_dir), config.precision.activation_bytes

    def accelerate(self, kernels: Kernels) -> None:
        """Puts the network's fast modules of these names in the place of plain ones. Raises UserError for others."""
        self.kernels = kernels
        replace_submodules(self.network, {**self.replacements, **REPLACEMENTS}, kernels)

    def take_network(self, network: nn.Module) -> None:
        """Puts another network in the place of this one, with the fast modules that `accelerate` named."""
        self.network = network
        self.accelerate(self.kernels)

    def exported(self) -> Export:
        """Returns what export.py makes of the network beside its weights; nothing unless the model says so."""
        return Export()

    def compile_network(self) -> None:
        """Compiles what is worth compiling; nothing unless the model says so."""

    def prepare_first_step(self, batches: Sequence[Any]) -> None:
        """Initialises from data: runs once, before the first optimiser step of a run, with its batches."""

    def check_datamodule(self, datamodule: Any) -> Any:
        """Returns the datamodule. Raises UserError, before any data is read, if it is of another kind."""
        if not isinstance(datamodule, self.data_kind):
            raise UserError(self.expected_data)
        return datamodule

    def bind_data(self, datamodule: pl.LightningDataModule) -> None:
        """Sets what depends on the data, such as table sizes. Raises UserError where network and data differ."""

    def can_be_captured(self) -> bool:
        """Returns whether a CUDA graph can hold a training step: whether the host reads nothing of the device in it."""
        return True

    def _optimizer_can_be_captured(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether the host reads nothing of the device in the optimiser's step, loss scaling included."""
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        capturable = all(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
        return capturable and (not scaled or getattr(optimizer, "_step_supports_amp_scaling", False))

    def trained_parameters(self) -> list[nn.Parameter]:
        """Returns what the optimiser gets. A model that updates others itself does so in `update_rest`."""
        return list(self.parameters())

    def overflowed(self) -> Tensor | None:
        """Returns a scalar, not 0 if a gradient outside the optimiser is not finite; None if there are none."""
        return None

    def update_rest(self, lr: Tensor | float, loss_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Updates the parameters outside the optimiser, unless `found_inf` is not 0. No host synchronisation."""

    def evaluate_last(self, datamodule: pl.LightningDataModule) -> None:
        """Sets `self.metrics` to what the finished run is judged by, with its last weights."""
        self.trainer.test(self, datamodule=datamodule, verbose=False)

    def evaluate_best(self, datamodule: pl.LightningDataModule, checkpoint: Path) -> None:
        """Adds to `self.metrics` what the best evaluation's checkpoint is worth, and may leave its weights in place.

        Nothing unless the model says so.
        """

    def is_decayed(self, name: str, parameter: nn.Parameter) -> bool:
        """Returns whether the optimiser's weight decay is for this parameter; the others become their own group."""
        return True

    def rate_share(self, name: str) -> float:
        """Returns the share of the learning rate that this parameter is trained with."""
        return 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # The largest first: a fused update takes a few dozen tensors a launch, which lasts as its largest one.
        parameters = sorted(self.trained_parameters(), key=torch.numel, reverse=True)
        names = {parameter: name for name, parameter in self.named_parameters()}
        kinds = {p: (self.rate_share(names[p]), self.is_decayed(names[p], p)) for p in parameters}
        groups: list[dict[str, Any]] = []
        for share, decays in sorted({*kinds.values(), (1.0, True)}, reverse=True):  # the full rate is the first one's
            group: dict[str, Any] = {"params": [p for p in parameters if kinds[p] == (share, decays)]}
            if share != 1:
                group["lr"] = share * cast(Any, self.make_optimizer).keywords["lr"]
            if not decays:
                group["weight_decay"] = 0.0
            groups.append(group)
        flags = self.fast_optimizer_flags()
        optimizer = self.make_optimizer(groups, **flags)
        if flags and isinstance(optimizer, torch.optim.SGD):
            begin_momentum(optimizer)
        if flags:
            use_kernels(optimizer, self.kernels)
        return optimizer

    def defers_rows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether embedding rows that a step does not read may take that step later: see `deferred_rows`.

        Not where anything else needs an embedding's dense gradient: other ranks and batches, loss scaling, clipping.
        Nor where something may hold tensors that share the weights' memory: their average, or a user's callback.
        """
        name = deferred_rows.NAME
        return (
            name in self.replacements
            and (self.kernels == "auto" or name in self.kernels)
            and self.steps_are_plain
            and self.clip_norm is None
            and type(optimizer) in adam.KINDS
            and optimizer in with_kernels
            and all(map(adam.has_kernels, optimizer.param_groups))
            and self.trainer.world_size == 1
            and getattr(self.trainer.precision_plugin, "scaler", None) is None
            and all(type(callback).__module__.startswith(OURS) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        )

    def in_evaluation(self, function: Callable[..., T], possible: bool = True) -> Graphed[T]:
        """Returns a function of an evaluation's batch, in CUDA graphs if these are wanted and `possible`.

        There is one of them until `teardown`. What it returns on a GPU is overwritten at the next call.
        """
        if self._evaluation is None:
            graph = wanted(self.execution.graph, self.device.type == "cuda") and possible
            self._evaluation = Graphed(function, graph, self.execution.graph_warmup_steps)
        return self._evaluation

    def fast_optimizer_flags(self) -> dict[str, bool]:
        """Returns, on a GPU, the options for one fused kernel that a CUDA graph can hold; the rule is the same."""
        if self.device.type != "cuda":
            return {}
        function = getattr(self.make_optimizer, "func", self.make_optimizer)
        if function is torch.optim.Adagrad:  # its fused kernel is for CPUs alone
            return {}
        parameters = inspect.signature(function).parameters
        return {name: True for name in ("fused", "capturable") if name in parameters}

    @property
    def final_figure(self) -> dict[str, Any]:
        """Returns the record's `final_metric`, with the value of the last evaluation."""
        return self.final_metric.record(self.metrics.get(self.final_metric.name))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["model_config"] = masked(self.model_config, "model")
        checkpoint[RUN] = self.run_config
        checkpoint[WRITTEN_BY] = this_version()
        for key in (self.CHECKPOINT_HYPER_PARAMS_KEY, self.CHECKPOINT_HYPER_PARAMS_NAME):  # for loggers alone
            checkpoint.pop(key, None)
        for state in checkpoint.get("optimizer_states", ()):
            for group in state["param_groups"]:
                group["lr"] = float(group["lr"])  # on a GPU it may be a tensor there

    def on_train_start(self) -> None:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        if self.trainer.ckpt_path:
            check_optimizer(optimizer, Path(self.trainer.ckpt_path))
        for group in optimizer.param_groups:
            group.update(self.fast_optimizer_flags())  # a checkpoint from another device carries that device's flags
        self._rate = self._scheduled_rate(optimizer)
        if wanted(self.execution.compile, self.device.type == "cuda"):
            self.compile_network()
        graph = wanted(self.execution.graph, self.device.type == "cuda" and self.can_be_captured())
        if graph and not self.can_be_captured():
            raise UserError(
                "execution.graph=on: a CUDA graph cannot hold the step of this model with these options (of DLRM: "
                "TorchRec's exchange reads the host's memory); give execution.graph=auto"
            )
        if graph and not self._optimizer_can_be_captured(optimizer):
            if self.execution.graph == "on":
                raise UserError(
                    f"execution.graph=on: a CUDA graph cannot hold a step of {type(optimizer).__name__} in "
                    f"{self.trainer.precision}; give execution.graph=auto, or an optimizer such as AdamW or SGD"
                )
            graph = False
        self.losses, self.diverged = torch.zeros((), device=self.device), None
        self.waiting = Waiting(self.device)
        self.clock.waited_s = self.waiting.seconds
        self._step = TrainStep(self, graph, self.execution.graph_warmup_steps, self.defers_rows(optimizer))

    def on_train_end(self) -> None:
        deferred_rows.settle()  # before Lightning moves the optimiser's state

    def teardown(self, stage: str) -> None:
        if self._step is not None:
            self._step.close()
            self._step = None
        self._evaluation = None  # Lightning may move the weights away, and a graph would read where they were

    def training_step(self, batch: StepBatches, batch_idx: int) -> None:
        self.clock.mark("other")
        assert self._step is not None
        lr = self._follow_schedule()
        self.last = self._step(batch) | lr
        self.samples_trained += batch.samples
        self._batches_trained += len(batch.batches)
        self._steps_trained += 1
        self.batch_size = self.samples_trained / (self._batches_trained * self.trainer.world_size)
        self.updates = self._steps_trained / self._batches_trained
        self.step_samples = sum(map(self.count, batch.batches))
        self.clock.mark("compute", samples=self.step_samples)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.after_step is not None:
            self.after_step(self.trainer)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if all(leaf.device == device for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)):
            return batch
        self.clock.mark("other")
        batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        self.clock.mark("transfer")
        return batch

    def _scheduled_rate(self, optimizer: torch.optim.Optimizer) -> ScheduledRate | None:
        """Returns the learning rate's schedule with its length in epochs or steps. Raises UserError if endless."""
        if self.schedule is None:
            return None
        epochs = self.schedule.interval == "epoch"
        length = self.schedule.total or (self.trainer.max_epochs if epochs else self.trainer.estimated_stepping_batches)
        if length is None or not 1 <= length < math.inf:
            raise UserError("a learning rate schedule needs an end; give fit.max_epochs, or model.task.schedule.total")
        return ScheduledRate(self.schedule, int(length), optimizer, self.device)

    def _follow_schedule(self) -> dict[str, Tensor]:
        """Sets the learning rates of the next step; returns the first one as `lr`, nothing without a schedule."""
        if self._rate is None:
            return {}
        done = self.current_epoch if self._rate.schedule.interval == "epoch" else self.global_step
        return {"lr": torch.tensor(self._rate.follow(done), dtype=torch.float64)}


def begin_momentum(optimizer: torch.optim.SGD) -> None:
    """Sets the momentum of a fused SGD to 0, which makes its first step the usual one.

    torch (2.11 to 2.13) takes uninitialised memory for it, writes it in the first step and reads it from the second
    on. Where the first step is skipped for an overflow it is never written: the weights become arbitrary, often NaN.
    Raises UserError for dampening, which torch leaves out of a first step without momentum.
    """
    for group in optimizer.param_groups:
        if group["momentum"] and group["dampening"]:
            raise UserError(f"the optimizer's dampening={group['dampening']} is not for a GPU; leave it 0")
        for parameter in group["params"] if group["momentum"] else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def wanted(choice: str, auto: bool) -> bool:
    """Returns an execution choice `auto`, `on` or `off` as a truth value."""
    return auto if choice == "auto" else choice == "on"

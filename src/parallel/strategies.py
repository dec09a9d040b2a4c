"""Where weights are: on one device to stay, or data parallel with embedding tables spread over the ranks."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.data import sized_len
from lightning_fabric.utilities.distributed import _init_dist_connection
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, distributed, nn

from src.system.group import check_rendezvous

GIB = 2**30
OF_RANKS = "statistics_of_ranks"  # a checkpoint's key: by rank, by key of the checkpoint, by name


class OneDevice(SingleDeviceStrategy):
    """Leaves the weights on the device when training or an evaluation ends: the next one needs them there.

    Lightning would move them to the host, gigabytes of tables each time.
    """

    def teardown(self) -> None:
        assert self.accelerator is not None
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()


@runtime_checkable
class Spread(Protocol):
    """A module whose weights lie on several ranks, unseen by DistributedDataParallel, as `ShardedEmbeddings`."""

    plan: Any  # None until it is placed

    def held_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and values of the parts that this rank holds."""
        ...

    def place(self, device: torch.device, batch_size: int, memory_bytes: float | None = None) -> None: ...


class HybridStrategy(DDPStrategy):
    """Data parallel training of tasks whose `TrainStep` averages the gradients, with tables spread over the ranks.

    Unlike DDPStrategy it wraps nothing. It begins with rank 0's weights everywhere; statistics that ranks keep for
    themselves (of BatchNorm) are averaged before each evaluation. Modules that spread themselves are placed first.
    What such a module saves is whole, so a checkpoint loads at any number of ranks. All ranks have to take part in
    saving, as they do in Lightning. A checkpoint has the mean of the ranks' statistics in its weights, and those of
    each rank beside them, so that as many ranks go on with their own.

    Args:
        batch_size: samples of one rank in a training step.
        memory_gib: of one rank's device; what the device says if not given.
        patience_s: in which rank 0's host must be found and answer, in seconds.
    """

    def __init__(
        self, batch_size: int, memory_gib: float | None = None, patience_s: float = 60.0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.patience_s = patience_s
        self.batch_size = batch_size
        self.memory_bytes = memory_gib * GIB if memory_gib else None
        self._meeting: Future[None] | None = None

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True  # before it, a module has no memory that it could load into

    def setup_environment(self) -> None:
        assert self.cluster_environment is not None
        if self._meeting is not None:
            self._meeting.result()
        self._find_ranks(self.cluster_environment)
        # Lightning seeds anew here, with several ranks alone: what is drawn later would differ from a run on one.
        with isolate_rng(include_cuda=False):
            super().setup_environment()

    def meet_ahead(self, device: torch.device) -> None:
        """Begins to meet the other ranks in a thread, with torchrun's variables, as `setup_environment` would.

        That waits for it, and raises what went wrong. To be called where the process does not end as an interpreter
        does, which would not wait for the thread: in a fork.
        """
        meeting = self._meeting = Future[None]()

        def meet() -> None:
            try:
                ranks = TorchElasticEnvironment()
                self._find_ranks(ranks)
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                options = {"timeout": self._timeout, "device_id": device if device.type == "cuda" else None}
                _init_dist_connection(ranks, "nccl" if device.type == "cuda" else "gloo", **options)
                meeting.set_result(None)
            except BaseException as error:
                meeting.set_exception(error)

        threading.Thread(target=meet, name="meeting", daemon=True).start()

    def _find_ranks(self, ranks: ClusterEnvironment) -> None:
        if not distributed.is_initialized():  # else they have met
            check_rendezvous(ranks.main_address, ranks.main_port, self.patience_s, ranks.global_rank() == 0)
        # NCCL would let ranks agree on memory while they capture graphs, which not all of them do at the same step.
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")

    def setup(self, trainer: pl.Trainer) -> None:
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(self.num_processes))  # TorchRec asks; SLURM does not say
        assert self.lightning_module is not None
        for module in self.lightning_module.modules():
            if isinstance(module, Spread) and module.plan is None:
                module.place(self.root_device, self.batch_size, self.memory_bytes)
        before = {name: buffer.clone() for name, buffer in statistics_of(self.lightning_module)}
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:  # Lightning has copied rank 0's to all, whose mean is wanted
            for name, buffer in statistics_of(self.lightning_module):
                buffer.copy_(before[name])

    def configure_ddp(self) -> None:
        assert self.lightning_module is not None
        for tensor in (*self.lightning_module.parameters(), *self.lightning_module.buffers()):
            distributed.broadcast(tensor.detach(), 0)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Lets a rank without samples take part in an evaluation: Lightning refuses its empty loader."""
        return NoBatches() if sized_len(dataloader) == 0 else dataloader

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint | gathered_statistics(checkpoint), filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        ranks = checkpoint.pop(OF_RANKS, ())
        if len(ranks) == self.world_size:
            for key, statistics in ranks[self.global_rank].items():
                others = checkpoint[key]
                others |= {name: part for name, part in statistics.items() if is_statistic(name) and name in others}
        return checkpoint

    def on_validation_start(self) -> None:
        assert self.lightning_module is not None
        average_statistics(self.lightning_module)

    def on_test_start(self) -> None:
        self.on_validation_start()


class NoBatches:
    """The loader of a rank without samples. Its length of 1 has Lightning begin the evaluation, which then ends."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def is_statistic(name: Any) -> bool:
    """Returns whether a buffer with that name is a running mean or variance."""
    return str(name).rpartition(".")[2] in ("running_mean", "running_var")


def statistics_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the running means and variances of a module by name."""
    return ((name, buffer) for name, buffer in module.named_buffers() if is_statistic(name))


def gathered_statistics(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a checkpoint whose statistics differ between ranks, with their means, and all ranks' own.

    Nothing where they are the same. All ranks call it.
    """
    of_this_rank: dict[str, dict[str, Tensor]] = {}
    for key, part in checkpoint.items():
        statistics = {name: part[name].cpu() for name in part if is_statistic(name)} if isinstance(part, dict) else {}
        of_this_rank |= {key: statistics} if statistics else {}
    if not of_this_rank:
        return {}
    ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(ranks, of_this_rank)
    changed: dict[str, Any] = {}
    for key, statistics in of_this_rank.items():
        parts = {name: torch.stack([rank[key][name] for rank in ranks]) for name in statistics}
        if any((part != part[0]).any() for part in parts.values()):
            changed[key] = checkpoint[key] | {name: part.mean(0) for name, part in parts.items()}
    return changed | {OF_RANKS: ranks} if changed else {}


@torch.no_grad()
def average_statistics(module: nn.Module) -> None:
    """Makes running means and variances their means over all ranks."""
    for _, buffer in statistics_of(module):
        distributed.all_reduce(buffer)
        buffer /= distributed.get_world_size()

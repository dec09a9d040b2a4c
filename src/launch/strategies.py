"""Where weights are: on one device to stay, or data parallel with embedding tables spread over the ranks."""

import os
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

GIB = 2**30


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

    def place(self, device: torch.device, batch_size: int, memory_bytes: float | None = None) -> None: ...


class HybridStrategy(DDPStrategy):
    """DDPStrategy that places the modules which spread themselves before it wraps the rest.

    What such a module saves is whole, so a checkpoint loads at any number of ranks. All ranks have to take part in
    saving, as they do in Lightning.

    Args:
        batch_size: samples of one rank in a training step.
        memory_gib: of one rank's device; what the device says if not given.
    """

    def __init__(self, batch_size: int, memory_gib: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.batch_size = batch_size
        self.memory_bytes = memory_gib * GIB if memory_gib else None

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True  # before it, a module has no memory that it could load into

    def setup(self, trainer: pl.Trainer) -> None:
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(self.num_processes))  # TorchRec asks; SLURM does not say
        assert self.lightning_module is not None
        for module in self.lightning_module.modules():
            if isinstance(module, Spread) and module.plan is None:
                module.place(self.root_device, self.batch_size, self.memory_bytes)
        super().setup(trainer)

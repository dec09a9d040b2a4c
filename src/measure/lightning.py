"""A callback that measures the training of any LightningModule."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from src.errors import UserError
from src.measure.loop import Meter, Work

if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:  # of the package that the program uses
    Callback = import_module(
        "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    ).Callback


class LightningMeter(Callback):
    """Measures a `Trainer.fit` as `Meter` does; `figures` has the result after it.

    `fetch` is the time from the end of a step to the next batch, other callbacks and loggers in between included. With
    accumulated gradients a step is an optimiser step. Each logger gets the rates at the end as `measure/p_train` and so
    on.

    Args:
        warmup_steps, work: as for Meter.
        count: samples of a batch; the first dimension of its first tensor if not given.
    """

    def __init__(
        self, warmup_steps: int = 10, work: Work | None = None, count: Callable[[Any], int] | None = None
    ) -> None:
        self.warmup_steps, self.work, self.count = warmup_steps, work, count or first_dimension
        self.figures: dict[str, Any] = {}
        self._meter: Meter | None = None
        self._blocks: list[Any] = []
        self._samples, self._step = 0, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._meter = Meter(pl_module.device, self.warmup_steps, self.work)
        self._step, self._samples = trainer.global_step, 0
        self._blocks = [put(trainer.strategy, "batch_to_device", self._transferring)]
        self._blocks.append(put(trainer.strategy, "save_checkpoint", self._saving))
        for block in self._blocks:
            block.__enter__()
        self._meter.begin()

    def _transferring(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def transfer(*args: Any, **kwargs: Any) -> Any:
            assert self._meter is not None
            self._meter.mark("fetch")
            batch = function(*args, **kwargs)
            self._meter.mark("transfer")
            return batch

        return transfer

    def _saving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            assert self._meter is not None
            with self._meter.within("checkpoint"):
                return function(*args, **kwargs)

        return save

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self._meter is not None
        self._samples += self.count(batch)
        if trainer.global_step == self._step:
            self._meter.mark("compute")
            return
        self._meter.step(self._samples)
        self._step, self._samples = trainer.global_step, 0

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None:
            self._blocks.append(self._meter.within("evaluation"))
            self._blocks[-1].__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None:
            self._blocks.pop().__exit__(None, None, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is None:
            return
        while self._blocks:
            self._blocks.pop().__exit__(None, None, None)
        meter, self._meter = self._meter, None
        meter.end()
        self.figures = meter.figures()
        rates = {f"measure/{name}": self.figures[name] for name in ("p_whole", "p_train", "p_core")}
        for logger in trainer.loggers:
            logger.log_metrics({name: rate for name, rate in rates.items() if rate is not None}, trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        while self._blocks:
            self._blocks.pop().__exit__(None, None, None)
        self._meter = None


@contextmanager
def put(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Has an object call `around` its method of this name."""
    setattr(owner, name, around(getattr(owner, name)))
    try:
        yield
    finally:
        delattr(owner, name)


def first_dimension(batch: Any) -> int:
    """Returns the samples of a batch by its first tensor. Raises UserError where it has none."""
    sizes = [len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim]
    if not sizes:
        raise UserError("the batch has no tensor to count samples by; give LightningMeter(count=...)")
    return sizes[0]

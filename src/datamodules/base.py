"""Bases of all datamodules: the training loader is timed, and its position is part of every checkpoint."""

from abc import abstractmethod
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytorch_lightning as pl
import torch

from src.batches.step import StepBatches
from src.config.ranges import Count, Seed
from src.datamodules.resident import OrderedLoader
from src.errors import UserError
from src.measure.clock import Clock
from src.measure.reading import Reading
from src.printable import printable
from src.system import group

PUBLISHED = ("zinc250k", "qm9", "qm9_dgl", "criteo", "criteo_multihot", "sst2", "imagenet", "cifar10")


class DataModule(pl.LightningDataModule):
    """Base of every datamodule; a subclass wraps its training loader in `self.metered(loader)`.

    The loader then yields optimiser steps of `accumulate` batches, and the clock sees how long training waits for them.
    The loader's position is part of every checkpoint, also between epochs, where Lightning's own state would lose it.
    """

    accumulate = 1  # batches of each rank in an optimiser step

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.device: torch.device | None = None  # for use without a trainer
        self.clock = Clock()
        self.reading: Reading | None = None
        self._training: Metered | None = None
        self._resumed: dict[str, Any] = {}

    @property
    def target_device(self) -> torch.device:
        """The trainer's device; without a trainer `self.device`, or the CPU."""
        return self.trainer.strategy.root_device if self.trainer else self.device or torch.device("cpu")

    @property
    def rank_and_world(self) -> tuple[int, int]:
        """This process's global rank and the number of ranks; (0, 1) without a trainer."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def metered(self, loader: OrderedLoader[Any]) -> "Metered":
        """Returns the loader's optimiser steps, timed, from the position of the checkpoint on if one was loaded."""
        self._training = Metered(loader, self.clock, self.accumulate, *self.rank_and_world)
        self._training.load_state_dict(self._resumed)
        return self._training

    def read_ahead(self) -> None:
        """Begins to read, in a thread beside the making of the network, what `prepare_data` and `setup` need.

        Nothing unless a subclass says so.
        """

    def tell(self, reading: Reading) -> None:
        """Keeps the report of a reading for the record; rank 0 prints it the first time."""
        if self.reading is None and group.rank() == 0:  # a run that is resumed has no trainer yet
            print(printable("\n".join(reading.lines())), flush=True)
        self.reading = reading

    def fingerprint(self) -> dict[str, Any]:
        """Returns the number of samples of each split, and as `content` a hash of them, once `prepare_data` is done.

        Empty where the config alone decides on the samples, as of synthetic ones.
        """
        return {}

    def tokens(self, steps: slice) -> tuple[int, int] | None:
        """Returns real and processed tokens of this rank's optimiser steps `steps`, counted from the start of the run.

        None if the data has no tokens.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict() if self._training else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict


class SplitDataModule(DataModule):
    """Base of datamodules with named splits; a subclass fills `splits` in `setup` and implements `loader`.

    Args:
        name: of the data set, in records.
        batch_size: samples of each rank in a training batch.
        seed: of the order of the training samples.
        predict: the split of `predict_dataloader`.
        test_batch_size: samples of each rank in an evaluation batch; `batch_size` if not given.
    """

    val_split = test_split = "val"

    def __init__(
        self, name: str, batch_size: Count, seed: Seed, predict: str, test_batch_size: Count | None = None
    ) -> None:
        super().__init__(name)
        self.batch_size, self.seed, self.predict = batch_size, seed, predict
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        self.splits: dict[str, Any] = {}

    @abstractmethod
    def loader(self, split: Any, /, *, train: bool = False, batch_size: int | None = None) -> OrderedLoader[Any]:
        """Batches of a split for this rank, on its device; `test_batch_size` samples each if not given.

        `train` selects the order and the last batch as for training. Raises UserError for an unknown split.
        """

    @property
    def order(self) -> dict[str, int]:
        """The seed, rank and world size that an OrderedLoader takes."""
        rank, world_size = self.rank_and_world
        return {"seed": self.seed, "rank": rank, "world_size": world_size}

    def check_split(self, split: str) -> None:
        """Raises UserError if there is no such split."""
        if split not in self.splits:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.splits)}")

    def train_dataloader(self) -> "Metered":
        self.batch_size = self.fitting_batch_size()
        return self.metered(self.loader("train", train=True, batch_size=self.batch_size))

    def fitting_batch_size(self) -> int:
        """Returns `batch_size`, or of your own smaller training split as much as each rank has, which is printed.

        Published data sets keep their batch: a smaller one would be another case.
        """
        rank, world_size = self.rank_and_world
        split = self.splits["train"]
        share = (split if isinstance(split, int) else len(split)) // world_size
        if self.name in PUBLISHED or not 0 < share < self.batch_size:
            return self.batch_size
        if rank == 0:
            print(
                f"note: hp.batch_size={self.batch_size} is more than the training split has for each rank; "
                f"training with batches of {share}"
            )
        return share

    def val_dataloader(self) -> OrderedLoader[Any]:
        return self.loader(self.val_split)

    def test_dataloader(self) -> OrderedLoader[Any]:
        return self.loader(self.test_split)

    def predict_dataloader(self) -> OrderedLoader[Any]:
        return self.loader(self.predict)


class Metered:
    """The optimiser steps of a loader of batches; each `next` is timed as the phase `fetch`.

    The last step of an epoch has the batches that are left. Its state is the wrapped loader's, whose position counts
    batches.
    """

    def __init__(
        self, loader: OrderedLoader[Any], clock: Clock, accumulate: int = 1, rank: int = 0, world_size: int = 1
    ) -> None:
        self.loader, self.clock, self.accumulate = loader, clock, accumulate
        self.rank, self.world_size = rank, world_size
        self._batches = array("q")  # up to the end of each step so far

    def __len__(self) -> int:
        return -(-len(self.loader) // self.accumulate)

    def __iter__(self) -> Iterator[StepBatches]:
        self.clock.note("other")
        loader = iter(self.loader)
        while batches := list(islice(loader, self.accumulate)):
            first = self.loader.position - len(batches)
            counts = [self.loader.samples_of_ranks(first + i, self.world_size) for i in range(len(batches))]
            self._batches.append((self._batches[-1] if self._batches else 0) + len(batches))
            step = StepBatches.of(batches, counts, self.rank)
            self.clock.note("fetch")
            yield step
            self.clock.note("other")

    def batches_of(self, steps: slice) -> slice:
        """Returns the batches of these steps, counted from the start of the run."""
        begin, end, _ = steps.indices(len(self._batches))
        return slice(self._batches[begin - 1] if begin else 0, self._batches[end - 1] if end else 0)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.loader.load_state_dict(state)

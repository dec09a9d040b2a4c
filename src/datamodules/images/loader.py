"""A loader whose threads decode images ahead of training.

Decoders release the GIL, so that threads use all cores and no processes are needed. For a GPU each batch is copied from
pinned memory on a side stream, while training uses the batch before it.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from src.batches.images import UNKNOWN, ImageBatch
from src.datamodules.copy_ahead import copy_ahead
from src.datamodules.images.decode import NUM_DRAWS, Pixels, load
from src.datamodules.images.rendering import DEFAULT, Rendering
from src.datamodules.resident import OrderedLoader
from src.errors import UserError
from src.measure.clock import Clock
from src.printable import printable

CHUNK = 8  # images that a thread decodes at a time
REPLACED = "another image of its class takes its place in training"
LEFT_OUT = "it is left out of the evaluation"
PHASE = "decode"  # of the clock: waiting for decoders


@dataclass(frozen=True)
class ImageFiles:
    """Image files below a folder, and their labels."""

    folder: Path
    files: Sequence[str]
    labels: Int[np.ndarray, " images"]

    def part(self, rows: Sequence[int]) -> "ImageFiles":
        """Returns the images of these rows, in their order."""
        return ImageFiles(self.folder, [self.files[row] for row in rows], self.labels[list(rows)])


class Unreadable:
    """Files that could not be decoded while batches were loaded.

    Attributes:
        reasons: of this rank, by file: what was done instead.
        told: files that the reading tells of.
    """

    def __init__(self) -> None:
        self.reasons: dict[Path, str] = {}
        self.told: set[Path] = set()
        self._lock = threading.Lock()

    def note(self, path: Path, error: UserError, instead: str) -> None:
        """Keeps the reason and prints it the first time."""
        with self._lock:
            if path in self.reasons:
                return
            self.reasons[path] = instead
        print(printable(f"note: {str(error).removesuffix(': replace or remove it')}: {instead}"), flush=True)


class DecodingLoader(OrderedLoader[ImageBatch]):
    """Batches of images that are cropped and resized to size x size.

    Args:
        images: the files and their labels.
        batch_size: images of this rank in each batch.
        size: height and width.
        train: shuffle, crop at random and drop an incomplete batch; otherwise the centre of each image in order.
        threads: decoding threads.
        prefetch: batches decoded ahead.
        device: of the batches; copies to a GPU run ahead.
        clock: measures how long training waits for decoders.
        rendering: how images of all kinds become RGB.
        unreadable: takes files that cannot be decoded. In training the next image of the same class that can be
            decoded takes the place of such a file; otherwise it is black, with the label UNKNOWN. Without it the
            first such file is a UserError.
    """

    def __init__(
        self,
        images: ImageFiles,
        batch_size: int,
        *,
        size: int,
        train: bool,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        threads: int = 4,
        prefetch: int = 4,
        device: torch.device | None = None,
        clock: Clock | None = None,
        rendering: Rendering = DEFAULT,
        unreadable: Unreadable | None = None,
    ) -> None:
        """Raises UserError if `train` leaves no full global batch."""
        index = torch.arange(len(images.files))
        options: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
        super().__init__(index, batch_size, shuffle=train, drop_last=train, **options)
        self.images, self.size, self.train = images, size, train
        self.threads, self.prefetch = threads, prefetch
        self.device, self.clock = device or torch.device("cpu"), clock
        self.rendering, self.unreadable = rendering, unreadable
        self._ahead: Generator[ImageBatch] | None = None

    def __iter__(self) -> Iterator[ImageBatch]:
        try:
            yield from super().__iter__()
        finally:
            if self._ahead is not None:
                self._ahead.close()

    def begin(self, order: Int[Tensor, " images"]) -> None:
        batches = self._decoded(order.numpy(), range(self.position, len(self)))
        self._ahead = copy_ahead(batches, self.device) if self.device.type == "cuda" else batches

    def batch(self, step: int) -> ImageBatch:
        assert self._ahead is not None
        return next(self._ahead)

    def _decoded(self, order: Int[np.ndarray, " images"], steps: range) -> Generator[ImageBatch]:
        """Yields the batches `steps` of the epoch, decoded `prefetch` batches ahead."""
        decoding: deque[tuple[ImageBatch, list[Future[None]]]] = deque()
        executor = ThreadPoolExecutor(self.threads, "image-decoder")

        def finished() -> ImageBatch:
            batch, parts = decoding.popleft()
            for part in parts:
                part.result()
            if self.clock is not None:
                self.clock.note(PHASE)
            return batch

        try:
            for step in steps:
                rows = order[step * self.batch_size : (step + 1) * self.batch_size]
                decoding.append(self._submit(executor, rows, step))
                if len(decoding) > self.prefetch:
                    yield finished()
            while decoding:
                yield finished()
        finally:
            executor.shutdown(cancel_futures=True)

    def _submit(
        self, executor: ThreadPoolExecutor, rows: Int[np.ndarray, " batch"], step: int
    ) -> tuple[ImageBatch, list[Future[None]]]:
        """Returns a batch without its pixels yet, and the futures that decode them into it."""
        pinned = self.device.type == "cuda"  # torch reuses pinned memory once its copy has finished
        pixels = torch.empty(len(rows), self.size, self.size, 3, dtype=torch.uint8, pin_memory=pinned)
        labels = torch.from_numpy(self.images.labels[rows])  # a copy, in which labels may become UNKNOWN
        batch = ImageBatch(pixels, labels.pin_memory() if pinned else labels)
        draws = np.random.default_rng([self.seed, self.epoch, self.rank, step]).random((len(rows), NUM_DRAWS))
        parts = (slice(begin, begin + CHUNK) for begin in range(0, len(rows), CHUNK))
        arrays = pixels.numpy(), batch.labels.numpy()
        return batch, [
            executor.submit(self._decode, rows[part], draws[part], *(array[part] for array in arrays)) for part in parts
        ]

    def _decode(
        self,
        rows: Int[np.ndarray, " images"],
        draws: Float[np.ndarray, "images draws"],
        out: UInt8[np.ndarray, "images height width 3"],
        labels: Int[np.ndarray, " images"],
    ) -> None:
        for i, row in enumerate(map(int, rows)):
            draw = draws[i]
            try:
                out[i] = self._load(row, draw)
            except UserError as error:
                if self.unreadable is None:
                    raise
                path = self.images.folder / self.images.files[row]
                if self.train:
                    out[i] = self._instead_of(row, draw)
                    self.unreadable.note(path, error, REPLACED)
                else:
                    out[i], labels[i] = 0, UNKNOWN
                    self.unreadable.note(path, error, LEFT_OUT)

    def _load(self, row: int, draw: Float[np.ndarray, " draws"]) -> Pixels:
        path = self.images.folder / self.images.files[row]
        return load(path, self.size, draw if self.train else None, self.rendering)

    def _instead_of(self, row: int, draw: Float[np.ndarray, " draws"]) -> Pixels:
        """Returns the next image of the same class that can be decoded, the same one in every epoch, rank and run.

        Raises UserError if there is none.
        """
        same_class = np.flatnonzero(self.images.labels == self.images.labels[row])
        after = np.roll(same_class, -1 - int(np.searchsorted(same_class, row)))[:-1]
        for other in after.tolist():
            try:
                return self._load(other, draw)
            except UserError:
                continue
        raise UserError(
            f"{self.images.folder / self.images.files[row]} and all other images of its class cannot be read any more"
        )

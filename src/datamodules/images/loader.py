"""Images decoded by many threads ahead of the training that takes them.

Decoders give way to other threads, so that the work is spread over all cores without processes. On a GPU a batch is
copied there from pinned memory, on a stream of its own, while the one before it trains.
"""

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

from src.batches.images import ImageBatch
from src.datamodules.images.decode import NUM_DRAWS, load
from src.datamodules.resident import OrderedLoader
from src.measure.clock import Clock

CHUNK = 8  # images that a thread decodes at a time
PHASE = "decode"  # of waiting for decoders


@dataclass(frozen=True)
class ImageFiles:
    """Image files below a folder, and their labels."""

    folder: Path
    files: Sequence[str]
    labels: Int[np.ndarray, " images"]


class DecodingLoader(OrderedLoader[ImageBatch]):
    """Batches of images that are cut and resized to size x size.

    Args:
        images: where they are.
        batch_size: images of this rank in each batch.
        size: height and width.
        train: shuffle, cut at random, and leave an incomplete batch out; otherwise the centre of each image in order.
        threads: that decode.
        prefetch: batches that are decoded ahead.
        device: where the batches are wanted; on a GPU they come there ahead of time, else they stay on the host.
        clock: sees how long the training waits for decoders.
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
    ) -> None:
        """Raises UserError if the images are fewer than one full global batch where the last one is dropped."""
        index = torch.arange(len(images.files))
        options: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
        super().__init__(index, batch_size, shuffle=train, drop_last=train, **options)
        self.images, self.size, self.train = images, size, train
        self.threads, self.prefetch = threads, prefetch
        self.device, self.clock = device or torch.device("cpu"), clock
        self._ahead: Generator[ImageBatch] | None = None

    def __iter__(self) -> Iterator[ImageBatch]:
        try:
            yield from super().__iter__()
        finally:
            if self._ahead is not None:
                self._ahead.close()

    def begin(self, order: Int[Tensor, " images"]) -> None:
        batches = self._decoded(order.numpy(), range(self.position, len(self)))
        self._ahead = on_device(batches, self.device) if self.device.type == "cuda" else batches

    def batch(self, step: int) -> ImageBatch:
        assert self._ahead is not None
        return next(self._ahead)

    def _decoded(self, order: Int[np.ndarray, " images"], steps: range) -> Generator[ImageBatch]:
        """The batches of the numbers `steps`, `prefetch` of them ahead."""
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
                decoding.append(self._begun(executor, rows, step))
                if len(decoding) > self.prefetch:
                    yield finished()
            while decoding:
                yield finished()
        finally:
            executor.shutdown(cancel_futures=True)

    def _begun(
        self, executor: ThreadPoolExecutor, rows: Int[np.ndarray, " batch"], step: int
    ) -> tuple[ImageBatch, list[Future[None]]]:
        """A batch whose pixels are on their way, and the work that brings them."""
        pinned = self.device.type == "cuda"  # memory that torch gives out again once it has been copied
        pixels = torch.empty(len(rows), self.size, self.size, 3, dtype=torch.uint8, pin_memory=pinned)
        labels = torch.from_numpy(self.images.labels[rows])
        batch = ImageBatch(pixels, labels.pin_memory() if pinned else labels)
        draws = np.random.default_rng([self.seed, self.epoch, self.rank, step]).random((len(rows), NUM_DRAWS))
        parts = (slice(begin, begin + CHUNK) for begin in range(0, len(rows), CHUNK))
        out = pixels.numpy()
        return batch, [executor.submit(self._decode, rows[part], draws[part], out[part]) for part in parts]

    def _decode(
        self,
        rows: Int[np.ndarray, " images"],
        draws: Float[np.ndarray, "images draws"],
        out: UInt8[np.ndarray, "images height width 3"],
    ) -> None:
        for row, mine, target in zip(rows, draws, out, strict=True):
            target[:] = load(self.images.folder / self.images.files[int(row)], self.size, mine if self.train else None)


def on_device(batches: Iterator[ImageBatch], device: torch.device) -> Generator[ImageBatch]:
    """The batches on the device, the copy of each one running beside the training on the one before it.

    A copy waits for the training before the last one, which bounds what lies on the device and how far the host runs
    ahead.
    """
    stream = torch.cuda.Stream(device)
    copying: deque[tuple[ImageBatch, torch.cuda.Event]] = deque()

    def arrived() -> ImageBatch:
        batch, copied = copying.popleft()
        torch.cuda.current_stream(device).wait_event(copied)
        return batch

    for batch in batches:
        target = ImageBatch(*(torch.empty_like(tensor, device=device) for tensor in batch))
        stream.wait_stream(torch.cuda.current_stream(device))  # what was freed there and is used again here
        copied = torch.cuda.Event()
        with torch.cuda.stream(stream):
            for there, here in zip(target, batch, strict=True):
                there.copy_(here, non_blocking=True)
            copied.record()
        copying.append((target, copied))
        if len(copying) > 1:
            yield arrived()
    while copying:
        yield arrived()

"""Times sums by id and Adam's deferred rows with several tiles, on an NVIDIA GPU.

`python -m benchmarks.distilbert_tiles` takes 96 packed sentences of SST-2's lengths, each of which begins with [CLS]
and ends with [SEP]; a tenth of the other tokens is one word. It times the sum of rows by position, the step of a
batch's rows (`update_rows`), and the missed steps (`catch_up`) of a batch's rows, 1 to 31 each, and of all rows, 64
each. `many` is the sum by word of 96 padded sentences of 512 random tokens. The last line of each is the tile in use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.distilbert_kernels import DIM, LENGTH, SIZES, batches
from src.gpu import deferred_rows
from src.gpu.deferred_rows import RING, Rows
from src.measure.replay import device_ms
from src.models.distilbert.fast import rows

CLS, SEP, THE = 101, 102, 1996
SETTINGS = 0.9, 0.1, 0.999, 0.001, 0.0, 1e-8
TILES: list[dict[str, int]] = [
    {"WIDTH": width, "BLOCK": block, "WINDOW": window, "num_warps": warps, "maxnreg": registers}
    for width, block, window, warps, registers in (
        (256, 16, 128, 2, 64), (256, 16, 32, 2, 128), (256, 32, 128, 2, 255), (256, 16, 128, 4, 128),
        (256, 32, 128, 4, 128), (256, 64, 128, 4, 255), (256, 32, 128, 8, 128), (128, 32, 128, 4, 128),
        (128, 16, 128, 1, 128), (512, 16, 128, 4, 128),
    )
]  # fmt: skip
MANY = [rows.SUM_MANY_BY_ID | {"WINDOW": window} for window in (32, 128)] + [
    rows.SUM_MANY_BY_ID | {"maxnreg": 128},
    rows.SUM_MANY_BY_ID | {"WINDOW": 32, "BLOCK": 8, "maxnreg": 128},
]
OPTIONS = [{"num_warps": 1}, {"num_warps": 4}, {"num_warps": 8}, {"num_warps": 1, "maxnreg": 168},
           {"num_warps": 2, "maxnreg": 128}, {"num_warps": 4, "maxnreg": 128}]  # fmt: skip


def main() -> None:
    """Prints a line for each kernel and tile: microseconds."""
    (packed,) = batches(["packed"])
    positions, ids = packed.positions, words_of(packed.ids, packed.positions)  # type: ignore[union-attr]
    grad = torch.randn(len(ids), DIM, device="cuda")
    out = grad.new_empty(LENGTH, DIM)
    in_order, order = rows.sorted_ids(ids)
    behind = rows_behind()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(ids)} tokens\n")
    print("| kernel | tile | us |\n|---|---|---:|")

    def sum_positions() -> None:
        rows.sum_by_id(grad, positions, out, -1)

    def sorted_and_zeroed() -> None:
        rows.sorted_ids(positions)
        out.zero_()

    def update() -> None:
        behind.give(grad, in_order, order, 0, rows.SUM_BY_ID)
        behind.take_step()

    def set_back() -> None:
        behind.last.copy_(lasts)

    def catch_up(of: Tensor | None) -> Callable[[], None]:
        def call() -> None:
            set_back()
            behind.catch_up(of)

        return call

    rest = device_ms(sorted_and_zeroed)
    compare("sum_by_id", sum_positions, rows, "SUM_BY_ID", TILES, rest)
    compare("update_rows", update, rows, "SUM_BY_ID", TILES)
    now = int(behind.state["step"])
    # Frequent ids are a step behind, others a random number of steps.
    generator = torch.Generator("cuda").manual_seed(0)
    lasts = now - torch.randint(1, RING // 2, behind.last.shape, generator=generator, device="cuda").int()
    lasts[[CLS, SEP, THE]] = now - 1
    rest = device_ms(set_back)
    compare("catch_up", catch_up(in_order), deferred_rows, "CATCH_UP", OPTIONS, rest)
    lasts.fill_(now - RING)
    compare("catch_up of all", catch_up(None), deferred_rows, "CATCH_UP", OPTIONS, rest)
    compare("catch_up of all", catch_up(None), deferred_rows, "WIDEST", [256], rest)
    behind.powers = None
    compare("catch_up of all, a root a step", catch_up(None), deferred_rows, "CATCH_UP", [], rest)

    padded, _ = batches(["padded"])
    words = padded.ids.flatten()
    grad, out = torch.randn(len(words), DIM, device="cuda"), torch.empty(SIZES.vocab_size, DIM, device="cuda")
    in_order, order = rows.sorted_ids(words)

    def sum_many() -> None:
        with replaced(rows, "sorted_ids", lambda _: (in_order, order)):
            rows.sum_by_id(grad, words, out, 0)

    compare("sum_by_id, many", sum_many, rows, "SUM_MANY_BY_ID", MANY, device_ms(out.zero_))


def words_of(ids: Tensor, positions: Tensor) -> Tensor:
    """Returns ids whose sentences begin with CLS and end with SEP; a tenth of the others is THE, 0 stays 0."""
    generator = torch.Generator().manual_seed(0)
    is_the = (torch.rand(len(ids), generator=generator) < 0.1).to(ids.device)
    is_last = torch.cat([positions[1:] == 0, positions[:1] == 0])
    words = torch.where(is_the, THE, ids)
    words = torch.where(is_last, SEP, words)
    return torch.where(positions == 0, CLS, words) * (ids != 0)


def rows_behind() -> Rows:
    """Returns the rows of a vocabulary after 1,000 steps."""
    words = nn.Parameter(torch.randn(SIZES.vocab_size, DIM, device="cuda"))
    state = {"step": torch.tensor(1000.0, device="cuda"), "exp_avg": torch.randn_like(words),
             "exp_avg_sq": torch.rand_like(words)}  # fmt: skip
    behind = Rows(words, state, {}, SETTINGS)
    behind.history.fill_(1e-5)
    behind.factors.fill_(1e-5)
    return behind


def compare(
    name: str, call: Callable[[], object], module: Any, option: str, values: list[Any], rest_ms: float = 0.0
) -> None:
    """Prints the time of a call with each value of a module's option, then the present one, without `rest_ms`."""
    for value in (*values, getattr(module, option)):
        with replaced(module, option, value):
            print(f"| {name} | {value} | {1000 * (device_ms(call) - rest_ms):.1f} |", flush=True)


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


if __name__ == "__main__":
    main()

"""Attention with the kernels of `attention_triton`, forward and backward."""

from math import e as euler
from math import inf, log2
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2, precision
from src.models.distilbert.fast import attention_triton as kernels
from src.models.distilbert.fast import dense
from src.models.distilbert.fast.dense import scale_of
from src.models.distilbert.fast.rows import Drop
from src.models.distilbert.layout import Sentences

MAX_HEAD = 128
PRODUCTS = {"BLOCK": 32, "num_warps": 4}
NUMBER = {"BLOCK": 256, "num_warps": 4}


class Tiles(NamedTuple):
    """Tile sizes and launch options of one kernel."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    registers: int | None = None  # most of a thread, so that more programs run side by side; of heads of 64 elements


# By precision of the products: rows of (longest sentence up to which a row applies, forward, backward).
# The fastest of those tried on an H200 with heads of 64 elements.
TILES = {
    "half": (
        (128, Tiles(16, 16, 1, 2, 152), Tiles(16, 16, 2, 2, 128)),
        (inf, Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 3)),
    ),
    "tf32": ((128, Tiles(16, 16, 2, 2), Tiles(16, 16, 2, 2)), (inf, Tiles(128, 32, 4, 2), Tiles(64, 32, 4, 2))),
    "ieee": ((inf, Tiles(16, 32, 2, 2), Tiles(32, 16, 2, 2)),),
}
DENSE = {"ieee": 128}  # by precision: padded sentences longer than this use `dense`


class AttentionOptions(NamedTuple):
    """Options of attention besides its tensors."""

    sentences: Sentences
    num_heads: int
    drop: Drop  # of the attention weights
    first_only: bool = False  # whether only first tokens are queries; row s of q then is that of sentence s

    def grid(self, tiles: int) -> tuple[int, int, int]:
        """Returns the grid: tiles of a sentence or of all packed sentences, heads, and padded sentences."""
        return tiles, self.num_heads, self.sentences.count if self.sentences.padded else 1

    def tiles(self, tokens: int, size: int, first_only: bool = False) -> int:
        """Returns a head's number of programs of `size` rows each: of a padded sentence, or of all packed ones."""
        if self.sentences.padded:
            return 1 if first_only else -(-self.sentences.longest // size)
        return self.sentences.count + 1 + (0 if first_only else tokens // size)

    def seed(self, numbers: Tensor | None) -> Tensor | None:
        """Returns the seed for kernels without `numbers`."""
        return self.drop.seed if numbers is None else None

    def constants(self, q: Tensor, tiles: Tiles) -> dict[str, Any]:
        _, _, longest, padded = self.sentences
        # Triton's interpreter multiplies bfloat16 incorrectly.
        upcast = q.dtype == torch.bfloat16 and not q.is_cuda
        shape = shape_of(q, self.num_heads)
        limit = {"maxnreg": tiles.registers} if tiles.registers and shape["WIDTH"] <= 64 else {}
        return {
            "PADDED": padded, "FIRST": self.first_only, "LONGEST": longest if padded else 0,
            **shape, **self.drop.constants, "TILE": tiles.queries, "KEYS": tiles.keys,
            "PRECISION": precision(q.dtype), "UPCAST": upcast,
            "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **limit,
        }  # fmt: skip


def shape_of(q: Tensor, num_heads: int) -> dict[str, int]:
    head = q.shape[1] // num_heads
    return {"HEADS": num_heads, "HEAD": head, "WIDTH": max(16, power_of_2(head))}


def supported(head: int) -> bool:
    """Returns whether the kernels support heads of this width."""
    return head <= MAX_HEAD


def is_dense(options: AttentionOptions, dtype: torch.dtype) -> bool:
    """Returns whether `dense` computes it, with all scores in memory."""
    least = DENSE.get(precision(dtype), inf) if dtype == torch.float32 else inf
    return options.sentences.padded and not options.first_only and options.sentences.longest > least


def tiles_of(options: AttentionOptions, dtype: torch.dtype) -> tuple[Tiles, Tiles]:
    """Returns the tiles of the forward and of the backward kernel."""
    rows = TILES[precision(dtype) if dtype == torch.float32 else "half"]
    forward, backward = next(row[1:] for row in rows if options.sentences.longest <= row[0])
    if options.first_only:
        forward, backward = forward._replace(queries=16), backward._replace(queries=16)
    return forward, backward


def numbers_of(options: AttentionOptions, k: Float[Tensor, "tokens dim"]) -> Int[Tensor, "2 heads tokens"] | None:
    """Returns the hashes of rows and columns for the kernels' dropout masks; None where they hash, or have no masks."""
    count, longest, padded = options.sentences.count, options.sentences.longest, options.sentences.padded
    are_small = max(tiles.queries for tiles in tiles_of(options, k.dtype)) < 32  # hashing takes less than a launch
    if not options.drop.p or is_dense(options, k.dtype) or are_small:
        return None
    numbers = k.new_empty(2, options.num_heads, len(k), dtype=torch.int32)
    launch(
        kernels.number, (-(-longest // NUMBER["BLOCK"]), options.num_heads, count),
        numbers, options.sentences.bounds, options.drop.seed, count, len(k),
        PADDED=padded, LONGEST=longest if padded else 0, HEADS=options.num_heads, **NUMBER,
    )  # fmt: skip
    return numbers


def attend(
    q: Float[Tensor, "queries dim"],
    k: Float[Tensor, "tokens dim"],
    v: Float[Tensor, "tokens dim"],
    options: AttentionOptions,
    numbers: Int[Tensor, "2 heads tokens"] | None,
) -> tuple[Float[Tensor, "queries dim"], Tensor]:
    """Returns softmax(q k^T / sqrt(head)) v within each sentence, heads concatenated, and a tensor for the backward.

    k and v must have the same strides; `numbers` are `numbers_of(options, k)`, also for the backward.
    """
    if is_dense(options, q.dtype):
        return dense.attend(q, k, v, options.sentences, options.num_heads, options.drop)
    tiles = tiles_of(options, q.dtype)[0]
    out = q.new_empty(q.shape)
    logs = q.new_empty(options.num_heads, len(q), dtype=torch.float32)
    launch(
        kernels.attend, options.grid(options.tiles(len(k), tiles.queries, options.first_only)),
        q, k, v, out, logs, options.sentences.bounds, numbers, options.seed(numbers),
        options.sentences.count, len(k), len(q), q.stride(0), k.stride(0),
        log2(euler) * scale_of(q, options.num_heads), **options.constants(q, tiles),
    )  # fmt: skip
    return out, logs


def attend_backward(
    grad: Float[Tensor, "queries dim"],
    q: Float[Tensor, "queries dim"],
    k: Float[Tensor, "tokens dim"],
    v: Float[Tensor, "tokens dim"],
    out: Float[Tensor, "queries dim"],
    saved: Tensor,
    grads: tuple[Float[Tensor, "queries dim"], Float[Tensor, "tokens dim"], Float[Tensor, "tokens dim"]],
    options: AttentionOptions,
    numbers: Int[Tensor, "2 heads tokens"] | None,
) -> Float[Tensor, "programs 3*dim"]:
    """Writes the gradients of q, k and v to `grads`, which have the same strides; `saved` is from `attend`.

    Returns partial sums of these gradients over rows, side by side; `.sum(0)` is the gradient of a bias in q, k and v.
    """
    if is_dense(options, q.dtype):
        dense.attend_backward(grad, q, k, v, saved, grads, options.sentences, options.num_heads, options.drop)
        return torch.cat([grad.sum(0, keepdim=True) for grad in grads], 1)
    tiles, scale = tiles_of(options, q.dtype)[1], scale_of(q, options.num_heads)
    assert [grad.stride() for grad in grads] == [x.stride() for x in (q, k, v)]
    delta = None
    if tiles.queries >= 32:  # programs of smaller tiles compute it
        delta = torch.empty_like(saved)
        launch(
            kernels.products, (-(-len(q) // PRODUCTS["BLOCK"]), options.num_heads), out, grad, delta, len(q),
            **shape_of(q, options.num_heads), SCALE=options.drop.constants["SCALE"], **PRODUCTS,
        )  # fmt: skip
    key_tiles, query_tiles = options.tiles(len(k), tiles.keys), options.tiles(len(k), tiles.queries, options.first_only)
    grid = options.grid(key_tiles + query_tiles)
    partials = q.new_empty(grid[2] * max(key_tiles, query_tiles), 3 * q.shape[1], dtype=torch.float32)
    launch(
        kernels.attend_backward, grid,
        q, k, v, grad, out, saved, delta, *grads, partials, options.sentences.bounds, numbers, options.seed(numbers),
        options.sentences.count, len(k), len(q), q.stride(0), k.stride(0), log2(euler) * scale, scale,
        KEY_TILES=key_tiles if options.sentences.padded else 0, **options.constants(q, tiles),
    )  # fmt: skip
    return partials

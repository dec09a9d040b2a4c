"""The kernels of `attention_triton` as functions, forward and backward."""

from math import e as euler
from math import inf, log2
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2, precision
from src.models.distilbert.kernels.fused import attention_triton as kernels
from src.models.distilbert.kernels.fused import dense
from src.models.distilbert.kernels.fused.dense import scale_of
from src.models.distilbert.kernels.fused.rows import Drop
from src.models.distilbert.layout import Sentences

MAX_HEAD = 128
PRODUCTS = {"BLOCK": 32, "num_warps": 4}


class Tiles(NamedTuple):
    """Of one kernel: queries and keys of a tile, and how a program runs."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


# By how products are computed, then by the longest sentence, which is not above the first number: (forward, backward).
# Of those tried on an H200 at 64 numbers a head the fastest.
TILES = {
    "half": ((128, Tiles(16, 16, 1, 2), Tiles(16, 16, 2, 2)), (inf, Tiles(128, 32, 4, 3), Tiles(64, 64, 4, 3))),
    "tf32": ((128, Tiles(16, 16, 2, 2), Tiles(16, 16, 2, 2)), (inf, Tiles(128, 32, 4, 2), Tiles(64, 32, 4, 2))),
    "ieee": ((inf, Tiles(16, 32, 2, 2), Tiles(32, 16, 2, 2)),),
}
DENSE = {"ieee": 128}  # by how products are computed: padded sentences above that length are attended to by `dense`


class Attention(NamedTuple):
    """What is asked of attention beside its tensors."""

    sentences: Sentences
    num_heads: int
    drop: Drop  # of its weights
    first_alone: bool = False  # whether a sentence's first token alone is a query, which is then the row of its number

    def grid(self, tiles: int) -> tuple[int, int, int]:
        """Programs of each sentence, and of what no packed sentence owns."""
        return tiles, self.num_heads, self.sentences.count + (not self.sentences.padded)

    def query_tiles(self, tiles: Tiles) -> int:
        return 1 if self.first_alone else -(-self.sentences.longest // tiles.queries)

    def key_tiles(self, tiles: Tiles) -> int:
        return -(-self.sentences.longest // tiles.keys)

    def constants(self, q: Tensor, tiles: Tiles) -> dict[str, Any]:
        _, _, longest, padded = self.sentences
        # Triton's interpreter multiplies bfloat16 wrongly.
        upcast = q.dtype == torch.bfloat16 and not q.is_cuda
        return {
            "PADDED": padded, "FIRST": self.first_alone, "LONGEST": longest if padded else 0,
            **shape_of(q, self.num_heads), **self.drop.constants, "TILE": tiles.queries, "KEYS": tiles.keys,
            "PRECISION": precision(q.dtype), "UPCAST": upcast,
            "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
        }  # fmt: skip


def shape_of(q: Tensor, num_heads: int) -> dict[str, int]:
    head = q.shape[1] // num_heads
    return {"HEADS": num_heads, "HEAD": head, "WIDTH": max(16, power_of_2(head))}


def supported(head: int) -> bool:
    return head <= MAX_HEAD


def is_dense(job: Attention, dtype: torch.dtype) -> bool:
    """Whether the scores go through memory."""
    least = DENSE.get(precision(dtype), inf) if dtype == torch.float32 else inf
    return job.sentences.padded and not job.first_alone and job.sentences.longest > least


def tiles_of(job: Attention, dtype: torch.dtype) -> tuple[Tiles, Tiles]:
    """Of the forward and of the backward kernel."""
    rows = TILES[precision(dtype) if dtype == torch.float32 else "half"]
    forward, backward = next(row[1:] for row in rows if job.sentences.longest <= row[0])
    if job.first_alone:
        forward, backward = forward._replace(queries=16), backward._replace(queries=16)
    return forward, backward


def attend(
    q: Float[Tensor, "queries dim"], k: Float[Tensor, "tokens dim"], v: Float[Tensor, "tokens dim"], job: Attention
) -> tuple[Float[Tensor, "queries dim"], Tensor]:
    """softmax(q k / sqrt(head)) v within each sentence, the heads side by side, and what backward needs beside it.

    k and v have one stride.
    """
    if is_dense(job, q.dtype):
        return dense.attend(q, k, v, job.sentences, job.num_heads, job.drop)
    tiles = tiles_of(job, q.dtype)[0]
    out = q.new_empty(q.shape)
    logs = q.new_empty(job.num_heads, len(q), dtype=torch.float32)
    launch(
        kernels.attend, job.grid(job.query_tiles(tiles)),
        q, k, v, out, logs, job.sentences.bounds, job.drop.seed, job.sentences.count, len(k), len(q),
        q.stride(0), k.stride(0), log2(euler) * scale_of(q, job.num_heads), **job.constants(q, tiles),
    )  # fmt: skip
    return out, logs


def attend_backward(
    grad: Float[Tensor, "queries dim"],
    q: Float[Tensor, "queries dim"],
    k: Float[Tensor, "tokens dim"],
    v: Float[Tensor, "tokens dim"],
    out: Float[Tensor, "queries dim"],
    noted: Tensor,
    grads: tuple[Float[Tensor, "queries dim"], Float[Tensor, "tokens dim"], Float[Tensor, "tokens dim"]],
    job: Attention,
) -> None:
    """Writes the gradients of q, k and v to `grads`, which have their strides; `noted` as `attend` gave it."""
    if is_dense(job, q.dtype):
        dense.attend_backward(grad, q, k, v, noted, grads, job.sentences, job.num_heads, job.drop)
        return
    tiles, scale = tiles_of(job, q.dtype)[1], scale_of(q, job.num_heads)
    assert [grad.stride() for grad in grads] == [x.stride() for x in (q, k, v)]
    along = torch.empty_like(noted)
    launch(
        kernels.products, (-(-len(q) // PRODUCTS["BLOCK"]), job.num_heads), out, grad, along, len(q),
        **shape_of(q, job.num_heads), **PRODUCTS,
    )  # fmt: skip
    key_tiles = job.key_tiles(tiles)
    launch(
        kernels.attend_backward, job.grid(key_tiles + job.query_tiles(tiles)),
        q, k, v, grad, noted, along, *grads, job.sentences.bounds, job.drop.seed,
        job.sentences.count, len(k), len(q), q.stride(0), k.stride(0), log2(euler) * scale, scale,
        KEY_TILES=key_tiles, **job.constants(q, tiles),
    )  # fmt: skip

"""The kernels of `rows_triton` as functions, forward and backward."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2
from src.models.distilbert.kernels.fused import rows_triton as kernels

MAX_DIM = 2048  # numbers of a row that one program holds
FORWARD = {"BLOCK": 1, "num_warps": 1}  # rows of one program at a time
BACKWARD = {"BLOCK": 2, "num_warps": 4}
GELU = {"BLOCK": 1024, "num_warps": 4}
GELU_BACKWARD = {"BLOCK": 2, "WIDTH": 512, "num_warps": 4}
TRANSPOSE = {"BLOCK": 64, "num_warps": 8}
SUM_BY_ID = {"WIDTH": 256, "BLOCK": 8, "num_warps": 2}
PROGRAMS, LEAST_ROWS = 768, 8  # programs that a sum over rows is spread over, where they get so many rows each


class Drop(NamedTuple):
    """Which share of numbers dropout drops, and the seed that says which; no seed where none is dropped."""

    share: float = 0.0
    seed: Int64[Tensor, ""] | None = None

    @classmethod
    def drawn(cls, shares: Sequence[float], like: Tensor) -> "list[Drop]":
        """One for each share, with seeds from the default generator, which a CUDA graph follows."""
        if not any(shares):
            return [cls()] * len(shares)
        seeds = torch.randint(2**62, (len(shares),), device=like.device)
        return [cls(share, seed) if share else cls() for share, seed in zip(shares, seeds, strict=True)]

    @property
    def constants(self) -> dict[str, int | float]:
        """How many of 2^32 numbers are dropped, and what the others are multiplied by."""
        return {"THRESHOLD": round(self.share * 2**32), "SCALE": 1 / (1 - self.share)}


def supported(dim: int) -> bool:
    return dim <= MAX_DIM


def rows_of_a_program(rows: int) -> int:
    """Of a backward kernel: what the numbers of shares depend on."""
    return max(LEAST_ROWS, power_of_2(max(1, rows // PROGRAMS)))


def new_shares(rows: int, width: int, like: Tensor) -> Float[Tensor, "programs {width}"]:
    """Where programs leave their parts of sums over rows; `.sum(0)` is the sum."""
    return like.new_empty(-(-rows // rows_of_a_program(rows)), width, dtype=torch.float32)


def add_norm(
    x: Float[Tensor, "rows dim"],
    residual: Float[Tensor, "rows dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    drop: Drop,
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 2"]]:
    """The layer norm of residual + dropout(x), in their dtype, and each row's mean and 1 / deviation."""
    rows, columns = x.shape
    out, statistics = torch.empty_like(x), x.new_empty(rows, 2, dtype=torch.float32)
    launch(
        kernels.add_norm, (-(-rows // FORWARD["BLOCK"]),),
        x, residual, weight, bias, out, statistics, drop.seed, rows, eps,
        **drop.constants, COLUMNS=columns, WIDTH=power_of_2(columns), **FORWARD,
    )  # fmt: skip
    return out, statistics


def add_norm_backward(
    grad: Float[Tensor, "rows dim"],
    x: Float[Tensor, "rows dim"],
    residual: Float[Tensor, "rows dim"],
    weight: Float[Tensor, " dim"],
    statistics: Float[Tensor, "rows 2"],
    drop: Drop,
    shares: Float[Tensor, "programs 3*dim"],
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
    """Gradients of x and the residual. `shares` gets those of weight, of bias, and of a bias in x."""
    rows, columns = x.shape
    grad_residual = torch.empty_like(x)
    grad_x = torch.empty_like(x) if drop.share else grad_residual
    launch(
        kernels.add_norm_backward, (len(shares),),
        grad, x, residual, weight, statistics, grad_x, grad_residual, shares, drop.seed, rows, shares.stride(0),
        **drop.constants, COLUMNS=columns, WIDTH=power_of_2(columns), ROWS=rows_of_a_program(rows), **BACKWARD,
    )  # fmt: skip
    return grad_x, grad_residual


def gelu(x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """The exact one."""
    out = torch.empty_like(x)
    launch(kernels.gelu, (-(-x.numel() // GELU["BLOCK"]),), x, out, x.numel(), **GELU)
    return out


def gelu_backward(
    grad: Float[Tensor, "rows width"], x: Float[Tensor, "rows width"], shares: Float[Tensor, "programs width"]
) -> Float[Tensor, "rows width"]:
    """The gradient of x; `shares` gets that of a bias in it."""
    out, (rows, columns) = torch.empty_like(x), x.shape
    launch(
        kernels.gelu_backward, (len(shares), -(-columns // GELU_BACKWARD["WIDTH"])),
        grad, x, out, shares, rows, shares.stride(0),
        COLUMNS=columns, ROWS=rows_of_a_program(rows), **GELU_BACKWARD,
    )  # fmt: skip
    return out


def transposed(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "columns rows"]:
    """A copy whose memory is in the other order; numbers of a row of x are side by side."""
    (rows, columns), block = x.shape, TRANSPOSE["BLOCK"]
    out = x.new_empty(columns, rows)
    launch(
        kernels.transpose, (-(-rows // block), -(-columns // block)), x, out, rows, columns, x.stride(0), **TRANSPOSE
    )
    return out


class Words(NamedTuple):
    """What an embedding reads: ids of all tokens, and their positions unless each sentence has `length` tokens."""

    ids: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"] | None
    length: int


def embed(
    words: Words,
    word_vectors: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    drop: Drop,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "tokens dim"], Float[Tensor, "tokens 2"]]:
    """dropout(layer norm(word vector + position's)) of each token, and its mean and 1 / deviation."""
    rows, columns = len(words.ids), word_vectors.shape[1]
    out = word_vectors.new_empty(rows, columns, dtype=dtype)
    statistics = word_vectors.new_empty(rows, 2, dtype=torch.float32)
    launch(
        kernels.embed, (-(-rows // FORWARD["BLOCK"]),),
        words.ids, words.positions, word_vectors, position_vectors, weight, bias, out, statistics, drop.seed, rows, eps,
        LENGTH=words.length, **drop.constants, COLUMNS=columns, WIDTH=power_of_2(columns), **FORWARD,
    )  # fmt: skip
    return out, statistics


def embed_backward(
    grad: Float[Tensor, "tokens dim"],
    words: Words,
    word_vectors: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Float[Tensor, " dim"],
    statistics: Float[Tensor, "tokens 2"],
    drop: Drop,
    shares: Float[Tensor, "programs 2*dim"],
) -> Float[Tensor, "tokens dim"]:
    """The gradient of the sum of each token's two vectors, in float32. `shares` gets those of weight and bias."""
    rows, columns = grad.shape
    out = grad.new_empty(rows, columns, dtype=torch.float32)
    launch(
        kernels.embed_backward, (len(shares),),
        grad, words.ids, words.positions, word_vectors, position_vectors, weight, statistics, out, shares, drop.seed,
        rows, shares.stride(0),
        LENGTH=words.length, **drop.constants, COLUMNS=columns, WIDTH=power_of_2(columns),
        ROWS=rows_of_a_program(rows), **BACKWARD,
    )  # fmt: skip
    return out


def sum_by_id(
    grad: Float[Tensor, "tokens dim"], ids: Int[Tensor, " tokens"], out: Float[Tensor, "ids dim"], padding: int
) -> Float[Tensor, "ids dim"]:
    """`out`: the sum of the rows of each id, in one order and so the same bits every time; 0 for `padding`.

    A row is read once and a sum written once, where torch's embedding_dense_backward fills what it adds to with zeros
    first and makes its sums in parts.
    """
    count, columns = out.shape
    in_order, order = torch.sort(ids, stable=True)
    begins = torch.searchsorted(in_order, torch.arange(count + 1, dtype=ids.dtype, device=ids.device), out_int32=True)
    launch(
        kernels.sum_by_id, (count, -(-columns // SUM_BY_ID["WIDTH"])),
        grad, order, begins, out, padding, COLUMNS=columns, **SUM_BY_ID,
    )  # fmt: skip
    return out

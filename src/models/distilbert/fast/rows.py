"""Layer norms, GELU, embeddings and sums over rows with the kernels of `rows_triton`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from src.gpu.triton_helpers import DTYPES, can_take, launch, power_of_2, working_dtype
from src.models.distilbert.fast import rows_triton as kernels

MAX_DIM = 2048  # elements of a row that one program holds
FORWARD = {"BLOCK": 1, "num_warps": 1}  # rows that a program handles at a time
# Fastest of those timed on an H200. STAGES are the blocks of rows that a program loads or computes at a time.
ADD_NORM_BACKWARD = {"BLOCK": 2, "STAGES": 3, "maxnreg": 128}
GELU = {"BLOCK": 2048, "num_warps": 4}
GELU_BACKWARD = {"BLOCK": 1, "WIDTH": 512, "STAGES": 3, "num_warps": 2}
SUM_PARTIALS = {"WIDTH": 32, "BLOCK": 256, "num_warps": 8}
# Of few ids, where some have most of the rows. A warp sums rows of its own columns. Without `maxnreg` ptxas saves
# registers by adding a row before it loads the next.
SUM_BY_ID = {"WIDTH": 256, "BLOCK": 16, "WINDOW": 128, "num_warps": 2, "maxnreg": 128}
# A program for each token, most of which sum nothing.
SUM_MANY_BY_ID = {"WIDTH": 1024, "BLOCK": 4, "WINDOW": 4, "num_warps": 4}
SORT_IDS = {"BLOCK": 8, "WIDTH": 1024, "num_warps": 4}
MOST_COMPARED = 8192  # ids that are sorted by comparing each with all
PROGRAMS, LEAST_ROWS = 528, 8  # most programs of a sum over rows (4 on each of an H200's 132 SMs), and fewest rows


class Drop(NamedTuple):
    """Dropout probability and the seed of the mask; no seed if p is 0."""

    p: float = 0.0
    seed: Int64[Tensor, ""] | None = None

    @classmethod
    def seeded(cls, probabilities: Sequence[float], like: Tensor) -> "list[Drop]":
        """Returns one for each probability, with seeds from the default generator, which works in CUDA graphs."""
        if not any(probabilities):
            return [cls()] * len(probabilities)
        seeds = torch.randint(2**62, (len(probabilities),), device=like.device)
        return [cls(p, seed) if p else cls() for p, seed in zip(probabilities, seeds, strict=True)]

    @property
    def constants(self) -> dict[str, int | float]:
        """Returns the kernels' constants: how many of 2^32 elements are dropped, and the factor of the others."""
        return {"THRESHOLD": round(self.p * 2**32), "SCALE": 1 / (1 - self.p)}


def takes(name: str, weight: Float[Tensor, "rows dim"], supported: bool = True, **shapes: object) -> bool:
    """Returns whether the kernels support these parameters in autocast's dtype, or their own: see `can_take`."""
    dim, dtype = weight.shape[1], working_dtype(weight)
    supported = supported and dim <= MAX_DIM and dtype in DTYPES
    return can_take(name, weight, supported, dim=dim, dtype=dtype, **shapes)


def backward_options(columns: int) -> dict[str, int]:
    """Returns the width and warps of a backward kernel of whole rows.

    A warp has 256 columns, where they are enough: then each thread sums its columns without the others.
    """
    width = power_of_2(columns)
    return {"WIDTH": width, "num_warps": max(1, min(8, width // 256))}


def embed_backward_block(rows: int, programs: int) -> int:
    """Returns how many rows a program takes at a time: few programs all run side by side, more do so with less."""
    return 4 if rows <= LEAST_ROWS * programs else 2


def new_partials(rows: int, width: int, like: Tensor) -> Float[Tensor, "programs {width}"]:
    """Returns a buffer for the programs' partial sums over rows; `.sum(0)` is the sum."""
    return like.new_empty(min(PROGRAMS, -(-rows // LEAST_ROWS)), width, dtype=torch.float32)


def sum_partials(
    first: Float[Tensor, "programs width"], second: Float[Tensor, "others rest"]
) -> Float[Tensor, "width+rest"]:
    """Returns the sums over rows of `first` and those of `second`, in one launch."""
    widths = first.shape[1], second.shape[1]
    out = first.new_empty(sum(widths))
    launch(
        kernels.sum_partials, (sum(-(-width // SUM_PARTIALS["WIDTH"]) for width in widths),),
        first, second, out, len(first), len(second), FIRST=widths[0], SECOND=widths[1], **SUM_PARTIALS,
    )  # fmt: skip
    return out


def add_norm(
    x: Float[Tensor, "rows dim"],
    residual: Float[Tensor, "rows dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    drop: Drop,
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows 2"]]:
    """Returns layer norm(residual + dropout(x)), in their dtype, and each row's mean and 1 / deviation."""
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
    partials: Float[Tensor, "programs 3*dim"],
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
    """Returns the gradients of x and the residual. `partials` gets those of weight, bias, and of a bias in x."""
    rows, columns = x.shape
    grad_residual = torch.empty_like(x)
    grad_x = torch.empty_like(x) if drop.p else grad_residual
    launch(
        kernels.add_norm_backward, (len(partials),),
        grad, x, residual, weight, statistics, grad_x, grad_residual, partials, drop.seed, rows, partials.stride(0),
        **drop.constants, COLUMNS=columns, **backward_options(columns), **ADD_NORM_BACKWARD,
    )  # fmt: skip
    return grad_x, grad_residual


def gelu(x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """Returns the exact GELU."""
    out = torch.empty_like(x)
    launch(kernels.gelu, (-(-x.numel() // GELU["BLOCK"]),), x, out, x.numel(), **GELU)
    return out


def gelu_backward(
    grad: Float[Tensor, "rows width"], x: Float[Tensor, "rows width"], partials: Float[Tensor, "programs width"]
) -> Float[Tensor, "rows width"]:
    """Returns the gradient of x; `partials` gets that of a bias in it."""
    out, (rows, columns) = torch.empty_like(x), x.shape
    launch(
        kernels.gelu_backward, (-(-columns // GELU_BACKWARD["WIDTH"]), len(partials)),
        grad, x, out, partials, rows, partials.stride(0), COLUMNS=columns, **GELU_BACKWARD,
    )  # fmt: skip
    return out


class TokenIds(NamedTuple):
    """Ids of all tokens, and their positions unless each sentence has `length` tokens."""

    ids: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"] | None
    length: int


def embed(
    words: TokenIds,
    word_vectors: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"],
    eps: float,
    drop: Drop,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "tokens dim"], Float[Tensor, "tokens 2"]]:
    """Returns dropout(layer norm(word vector + position vector)) of each token, its mean and 1 / deviation."""
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
    words: TokenIds,
    word_vectors: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Float[Tensor, " dim"],
    statistics: Float[Tensor, "tokens 2"],
    drop: Drop,
    partials: Float[Tensor, "programs 2*dim"],
) -> Float[Tensor, "tokens dim"]:
    """Returns the float32 gradient of each token's vector sum. `partials` gets those of weight and bias."""
    rows, columns = grad.shape
    out = grad.new_empty(rows, columns, dtype=torch.float32)
    launch(
        kernels.embed_backward, (len(partials),),
        grad, words.ids, words.positions, word_vectors, position_vectors, weight, statistics, out, partials, drop.seed,
        rows, partials.stride(0),
        LENGTH=words.length, **drop.constants, COLUMNS=columns, **backward_options(columns),
        BLOCK=embed_backward_block(rows, len(partials)),
    )  # fmt: skip
    return out


def sum_by_id(
    grad: Float[Tensor, "tokens dim"], ids: Int[Tensor, " tokens"], out: Float[Tensor, "ids dim"], padding: int
) -> Float[Tensor, "ids dim"]:
    """Writes and returns `out`: the sum of each id's rows, deterministic; 0 for `padding`."""
    columns, (in_order, order) = out.shape[1], sorted_ids(ids)
    out.zero_()  # at full bandwidth: most ids of a vocabulary have no rows
    shape = sum_shape(len(ids))
    launch(
        kernels.sum_by_id, (len(ids) * -(-columns // shape["WIDTH"]),),
        grad, in_order, order, out, len(ids), padding, COLUMNS=columns, **shape,
    )  # fmt: skip
    return out


def sum_shape(count: int) -> dict[str, int]:
    """Returns the tile of a sum of so many rows by id."""
    return SUM_BY_ID if count <= MOST_COMPARED else SUM_MANY_BY_ID


def sorted_ids(ids: Int[Tensor, " tokens"]) -> tuple[Int[Tensor, " tokens"], Int64[Tensor, " tokens"]]:
    """Returns what `torch.sort(ids, stable=True)` does. Few ids take one launch, torch's radix sort several."""
    if len(ids) > MOST_COMPARED:
        return torch.sort(ids, stable=True)
    in_order, order = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.int64)
    launch(kernels.sort_ids, (-(-len(ids) // SORT_IDS["BLOCK"]),), ids, in_order, order, len(ids), **SORT_IDS)
    return in_order, order

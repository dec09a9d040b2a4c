"""The Wigner matrices of edges' frames as one kernel."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch, power_of_2
from src.models.se3_transformer.basis import wigner_3j
from src.models.se3_transformer.fast import rotations_triton as kernels
from src.models.se3_transformer.fast.frames import packed_size

EDGES = 32  # of a tile: 64 take more registers than there are
MAX_DEGREE = 4


@cache
@torch.inference_mode(False)
def table(degree: int, device: torch.device) -> Float[Tensor, "9 outer inner"]:
    """Returns the matrices from products of rotation and D_(degree - 1) to D_degree, padded to powers of 2.

    Cached, because a CUDA graph cannot capture the copy.
    """
    couple = (2 * degree + 1) ** 0.5 * wigner_3j(degree - 1, degree, 1).permute(2, 1, 0)
    matrices = torch.einsum("iam,jbn->ijmnab", couple, couple).flatten(4).flatten(2, 3).flatten(0, 1)
    _, outer, inner = matrices.shape
    padded = matrices.new_zeros(9, power_of_2(outer), max(16, power_of_2(inner)))
    padded[:, :outer, :inner] = matrices
    return padded.to(device, torch.float32)


def edge_matrices(
    rel_pos: Float[Tensor, "edges 3"], max_degree: int, dtype: torch.dtype
) -> Float[Tensor, "edges packed"]:
    """Computes `frames.wigner` of `frames.edge_rotations` in float32; returns it in `dtype`. Has no gradient."""
    rel_pos, device = rel_pos.detach().contiguous(), rel_pos.device
    out = rel_pos.new_empty(len(rel_pos), packed_size(max_degree), dtype=dtype)
    tables = [table(degree, device) if degree <= max_degree else rel_pos for degree in range(2, MAX_DEGREE + 1)]
    # With 2 warps the products are synchronous: no `settle` is needed.
    launch(kernels.edge_matrices, (-(-len(rel_pos) // EDGES),), 
        rel_pos, *tables, out, len(rel_pos), torch.finfo(torch.float32).tiny, MAX_DEGREE=max_degree,
        PACKED=out.shape[1], BE=EDGES, num_warps=2,
    )  # fmt: skip
    return out

"""The angular basis of a tensor-field convolution: the equivariant linear maps between degrees, for each edge.

For an edge of direction r, every equivariant map from degree `d_in` to degree `d_out` is a sum over
J = |d_in - d_out| .. d_in + d_out of a weight times K_J(r) = sum_m Q_J[:, :, m] Y_J(r)[m]. Q_J are e3nn's Wigner 3j
symbols, Y_J its spherical harmonics ("integral" normalisation). Equation 8 of arXiv:2006.10503, which writes k for
`d_in`, l for `d_out` and W_J for K_J.

If r is e3nn's polar axis y, K_J couples component m of the input only with components m and -m of the output: with
a = K_J[m, m] and b = K_J[m, -m], [out_m, out_-m] = [[a, b], [-b, a]] [in_m, in_-m]. Convolutions of `fast` use this, as
arXiv:2302.03655 does; `polar_coefficients` returns a and b.
"""

from collections.abc import Iterable
from functools import cache

import torch
from e3nn import o3
from jaxtyping import Float
from torch import Tensor

from src.gpu.hooks import uncompiled

Pair = tuple[int, int]  # degree in, degree out


def num_frequencies(pair: Pair) -> int:
    """Returns the number of frequencies J of a pair of degrees."""
    return 2 * min(pair) + 1


@cache
@torch.inference_mode(False)  # what a prediction caches is part of a later gradient
def wigner_3j(d_in: int, d_out: int, j: int) -> Float[Tensor, "d_out d_in j"]:
    """Returns e3nn's Wigner 3j symbols in float64, of unit norm."""
    return o3.wigner_3j(j, d_in, d_out, dtype=torch.float64).permute(2, 1, 0).contiguous()


_on_device: dict[tuple[int, int, int, torch.device, torch.dtype], Tensor] = {}


def wigner_3j_on(d_in: int, d_out: int, j: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns `wigner_3j` on a device; kept, because a CUDA graph cannot capture the copy.

    In a dict, whose values torch.compile reads; of a function with `cache` it would trace e3nn's code.
    """
    key = d_in, d_out, j, device, dtype
    if key not in _on_device:
        _on_device[key] = to_device(*key)
    return _on_device[key]


@uncompiled
@torch.inference_mode(False)
def to_device(d_in: int, d_out: int, j: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns `wigner_3j` on a device, computed outside the graphs of torch.compile, which fails in e3nn's code."""
    return wigner_3j(d_in, d_out, j).to(device, dtype)


def pair_basis(rel_pos: Float[Tensor, "edges 3"], pairs: Iterable[Pair]) -> dict[Pair, Float[Tensor, "edges _ _ _"]]:
    """Returns K_J(r) of each pair as [edges, component in, J, component out], differentiable in `rel_pos`.

    For an edge of length 0 only J = 0 is not zero, as with e3nn's normalised spherical harmonics.
    """
    pairs = list(pairs)
    highest = max(d_in + d_out for d_in, d_out in pairs)
    harmonics = o3.spherical_harmonics(
        list(range(highest + 1)), rel_pos, normalize=True, normalization="integral"
    ).split([2 * j + 1 for j in range(highest + 1)], dim=1)
    basis = {}
    for d_in, d_out in pairs:
        maps = [
            torch.einsum("lkm,em->ekl", wigner_3j_on(d_in, d_out, j, rel_pos.device, rel_pos.dtype), harmonics[j])
            for j in range(abs(d_in - d_out), d_in + d_out + 1)
        ]
        basis[d_in, d_out] = torch.stack(maps, 2)
    return basis


@cache
@torch.inference_mode(False)
def polar_coefficients(pair: Pair) -> Float[Tensor, "terms frequencies"]:
    """Returns K_J at the polar axis, in float64: row 0 is m = 0, rows 2m - 1 and 2m are a and b of m > 0."""
    d_in, d_out = pair
    polar = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    columns = []
    for j in range(abs(d_in - d_out), d_in + d_out + 1):
        harmonics = o3.spherical_harmonics(j, polar, normalize=True, normalization="integral")
        k = wigner_3j(d_in, d_out, j) @ harmonics
        rows = [k[d_out, d_in]]
        for m in range(1, min(pair) + 1):
            rows += [k[d_out + m, d_in + m], k[d_out + m, d_in - m]]
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)

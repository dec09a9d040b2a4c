"""The angular part of a tensor-field convolution: which linear maps between degrees rotate along with an edge.

For an edge of direction r every equivariant map from degree `d_in` to degree `d_out` is a sum over
J = |d_in - d_out| .. d_in + d_out of a weight times K_J(r) = sum_m Q_J[:, :, m] Y_J(r)[m], with Wigner 3j symbols Q_J
and spherical harmonics Y_J, both e3nn's ("integral" normalisation). Equation 8 of arXiv:2006.10503.

Where the direction is e3nn's polar axis y, K_J couples a component m of the input with the components m and -m of the
output alone: with a = K_J[m, m] and b = K_J[m, -m], [out_m, out_-m] = [[a, b], [-b, a]] [in_m, in_-m]. That is what the
fast execution makes use of, as arXiv:2302.03655 does; `polar_coefficients` holds those a and b.
"""

from collections.abc import Iterable
from functools import cache

import torch
from e3nn import o3
from jaxtyping import Float
from torch import Tensor

Pair = tuple[int, int]  # degree in, degree out


def num_frequencies(pair: Pair) -> int:
    """How many J a pair of degrees has."""
    return 2 * min(pair) + 1


@cache
def wigner_3j(d_in: int, d_out: int, j: int) -> Float[Tensor, "d_out d_in j"]:
    """e3nn's Wigner 3j symbols in float64, of unit norm."""
    return o3.wigner_3j(j, d_in, d_out, dtype=torch.float64).permute(2, 1, 0).contiguous()


@cache
def wigner_3j_on(d_in: int, d_out: int, j: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The same where it is needed; brought there once, because nothing may be while a CUDA graph is captured."""
    return wigner_3j(d_in, d_out, j).to(device, dtype)


def pair_basis(rel_pos: Float[Tensor, "edges 3"], pairs: Iterable[Pair]) -> dict[Pair, Float[Tensor, "edges _ _ _"]]:
    """For each pair K_J(r) as [edges, component in, J, component out], differentiable in `rel_pos`.

    Of an edge of length 0 only J = 0 is left, as with e3nn's normalised spherical harmonics.
    """
    pairs = list(pairs)
    highest = max(d_in + d_out for d_in, d_out in pairs)
    harmonics = o3.spherical_harmonics(
        list(range(highest + 1)), rel_pos, normalize=True, normalization="integral"
    ).split([2 * j + 1 for j in range(highest + 1)], dim=1)
    basis = {}
    for d_in, d_out in pairs:
        maps = [
            torch.einsum("olm,em->elo", wigner_3j_on(d_in, d_out, j, rel_pos.device, rel_pos.dtype), harmonics[j])
            for j in range(abs(d_in - d_out), d_in + d_out + 1)
        ]
        basis[d_in, d_out] = torch.stack(maps, 2)
    return basis


@cache
def polar_coefficients(pair: Pair) -> Float[Tensor, "terms frequencies"]:
    """K_J in the direction of the polar axis, in float64: row 0 is m = 0, rows 2m - 1 and 2m are a and b of m > 0."""
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

"""`get_basis`: tables of the angular basis, as NVIDIA's package makes them for its data loader."""

import torch
from torch import Tensor
from torch.nn import functional as F

from src.models.se3_transformer.basis import pair_basis
from src.models.se3_transformer.signs import NVIDIA_E3NN, negated_symbols, symbol_signs


def get_basis(
    relative_pos: Tensor,
    max_degree: int = 4,
    compute_gradients: bool = False,
    use_pad_trick: bool = False,
    amp: bool = False,
    e3nn: str = NVIDIA_E3NN,
) -> dict[str, Tensor]:
    """Returns {"d_in,d_out": [edges, 2 d_in + 1, frequencies, 2 d_out + 1]}, in the dtype of the positions.

    Networks compute the basis themselves, faster: this is for those who want its gradient or keep it.

    Args:
        relative_pos: positions of the destinations, relative to the sources, [edges, 3].
        compute_gradients: whether the tables have gradients.
        use_pad_trick: append a zero to the last dimension. amp: return float16.
        e3nn: the version whose signs the tables have.
    """
    negated, degrees = negated_symbols(e3nn, max_degree), range(max_degree + 1)
    with torch.set_grad_enabled(compute_gradients and torch.is_grad_enabled()):
        tables = {}
        for pair, table in pair_basis(relative_pos, [(d_in, d_out) for d_in in degrees for d_out in degrees]).items():
            table = table * table.new_tensor(symbol_signs(pair, negated))[:, None]
            table = table.half() if amp else table
            tables[f"{pair[0]},{pair[1]}"] = F.pad(table, (0, 1)) if use_pad_trick else table
    return tables

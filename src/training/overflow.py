"""The search for gradients that are not finite, in one launch that reads each once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.gpu.triton_helpers import launch
from src.training.tables import Row, Tables, blocks, can_take

BLOCK, WARPS = 4096, 4


class Overflow:
    """The search in the gradients of one training."""

    def __init__(self) -> None:
        self.tables = Tables()

    def __call__(self, gradients: Sequence[Tensor], elsewhere: Tensor | None = None) -> Tensor:
        """Returns a scalar: 1 if a number of these float32 gradients is infinite or NaN, else `elsewhere`, or 0."""
        found_inf = torch.zeros((), device=gradients[0].device) if elsewhere is None else elsewhere.clone()
        rows: list[Row] = [(gradient,) for gradient in gradients if can_take([gradient])]
        table = self.tables.of("gradients", rows, BLOCK) if rows else None
        rest = list(gradients) if table is None else [gradient for gradient in gradients if not can_take([gradient])]
        if table is not None:
            from src.gpu import sgd_triton

            constants = {"ROWS": table.shape[1], "BLOCK": BLOCK, "num_warps": WARPS}
            launch(sgd_triton.find_overflow, (blocks(rows, BLOCK),), table, found_inf, **constants)
        if rest:  # multiplied by 1
            torch._amp_foreach_non_finite_check_and_unscale_(rest, found_inf, torch.ones_like(found_inf))  # pyright: ignore[reportPrivateImportUsage]
        return found_inf


def supported(gradients: Sequence[Tensor]) -> bool:
    """Returns whether the search takes these gradients: some, dense, float32, on one device of the kernels'."""
    kinds = {(gradient.device, gradient.dtype, gradient.layout) for gradient in gradients}
    device, dtype, layout = next(iter(kinds), (None, None, None))
    is_here = device is not None and device.type in triton_helpers.devices
    return len(kinds) == 1 and is_here and dtype == torch.float32 and layout == torch.strided

"""Full float32 products for a moment, where rounding would change the answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """No autocast and no TF32 inside: inverting a flow must lead back to the very molecule."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn

"""Computes products in full float32 where rounding would change the result."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from src.system.later_dynamo import eagerly


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Switches autocast and TF32 off inside: inverting a flow must return the same molecule.

    Compiled functions run uncompiled: compiling them for these products would take longer than the products.
    """
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False), eagerly():
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn

"""The fused kernels: Triton kernels in the `*_triton` modules, their callers in the modules of the shorter name.

The model calls `embedding.embed` and `layer.layer`.
"""

from src.models.distilbert.kernels.fused import attention, embedding, layer, rows

__all__ = ["attention", "embedding", "layer", "rows"]

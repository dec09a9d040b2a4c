"""The fused kernels: in each `*_triton` module the kernels, in the module of the shorter name what calls them.

The model calls `embedding.embed` and `layer.layer`.
"""

from src.models.distilbert.kernels.fused import attention, embedding, layer, rows

__all__ = ["attention", "embedding", "layer", "rows"]

"""The fused kernels: in each `*_triton` module the kernels, in the module of the shorter name what the model calls."""

from src.models.mobilenet_v1.kernels.fused import ahead, body, depthwise, norm, pointwise, stem, tiles

__all__ = ["ahead", "body", "depthwise", "norm", "pointwise", "stem", "tiles"]

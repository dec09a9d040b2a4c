"""The fused kernels: Triton kernels in the `*_triton` modules, their callers in the modules of the shorter name."""

from src.models.mobilenet_v1.kernels.fused import body, depthwise, norm, pointwise, precompile, stem, tiles

__all__ = ["body", "depthwise", "norm", "pointwise", "precompile", "stem", "tiles"]

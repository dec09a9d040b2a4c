"""The fused kernels: Triton kernels in the `*_triton` modules, their autograd functions in the others."""

from src.models.se3_transformer.kernels.fused import contraction, edges, linear, norm, radial

__all__ = ["contraction", "edges", "linear", "norm", "radial"]

"""The fused kernels: in each `*_triton` module the kernels, in the module of the shorter name what autograd sees."""

from src.models.se3_transformer.kernels.fused import contraction, edges, linear, norm, radial

__all__ = ["contraction", "edges", "linear", "norm", "radial"]

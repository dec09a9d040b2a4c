"""The fused kernels: in each `*_triton` module the kernels, in the module of the shorter name what the model calls."""

from src.models.dlrm.kernels.fused import interaction, mlp, tables

__all__ = ["interaction", "mlp", "tables"]

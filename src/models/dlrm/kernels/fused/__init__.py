"""The fused kernels: Triton kernels in the `*_triton` modules, their callers in the modules of the shorter name."""

from src.models.dlrm.kernels.fused import interaction, mlp, tables

__all__ = ["interaction", "mlp", "tables"]

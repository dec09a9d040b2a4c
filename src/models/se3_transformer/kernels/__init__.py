"""The network's inner functions in two versions: `reference` in plain torch, and fused Triton kernels."""

"""The inner work of the network twice: `reference` in plain torch, and fused kernels written in Triton."""

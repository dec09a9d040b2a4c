"""MobileNetV1's fused training kernels; `dispatch` chooses between plain torch and the Triton kernels in `fused`."""

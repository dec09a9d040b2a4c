"""MobileNetV1's fast training: `dispatch` chooses between plain torch and Triton's kernels in `fused`."""

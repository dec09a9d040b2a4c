"""DistilBERT's fused kernels; `dispatch` chooses between plain torch and the Triton kernels in `fused`."""

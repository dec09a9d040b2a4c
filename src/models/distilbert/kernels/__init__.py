"""DistilBERT's fast execution: `dispatch` chooses between plain torch and Triton's kernels in `fused`."""

"""What every GPU path shares: Triton launches, CUDA graphs, streams and timers."""

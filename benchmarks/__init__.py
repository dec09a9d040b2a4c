"""Benchmarks of single parts, such as kernels and loaders: `python -m benchmarks.<name>` prints a table."""

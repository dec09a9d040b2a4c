"""Parts of the fast paths timed alone; `python -m benchmarks.<name>` prints a table. Whole runs have records."""

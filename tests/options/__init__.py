"""Every option, run where it is claimed: `make test-gpu-all`; docs/reference/options.md holds the last result."""

"""Clocks, rates, statistics and rooflines, without Lightning. docs/reference/metrics.md defines the figures."""

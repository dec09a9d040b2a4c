"""Clocks, rates, statistics and rooflines, without Lightning. docs/metrics.md defines the figures."""

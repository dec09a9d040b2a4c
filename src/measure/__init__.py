"""Pure functions: clocks, rates, statistics, rooflines; no Lightning. Definitions: docs/reference/metrics.md."""

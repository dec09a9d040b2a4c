"""Pure measuring: clocks, rates, statistics, rooflines. Nothing here knows Lightning. Definitions: docs/metrics.md."""

"""Compares runs: groups of seeds with their spread, published rows, and what differs between them."""

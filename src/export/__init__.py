"""Trained networks in the formats of other libraries."""

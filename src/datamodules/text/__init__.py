"""Sentences with labels: SST-2 and synthetic tokens."""

"""Molecules from SMILES: ZINC-250k, QM9 and your own files."""

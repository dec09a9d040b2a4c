"""Molecules as SMILES: ZINC-250k, QM9 and files of one's own."""

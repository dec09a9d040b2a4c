"""Molecules in space as graphs: QM9 and files of one's own."""

"""Molecules as graphs of atom classes: encoding, building, scoring and drawing with RDKit."""

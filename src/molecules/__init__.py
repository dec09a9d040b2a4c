"""Molecules as graphs of classes: SMILES to arrays, arrays to molecules, scores and pictures. All of RDKit is here."""

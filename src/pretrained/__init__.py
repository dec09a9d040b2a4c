"""Folders of weights: files, a checkpoint made of them, and the Hugging Face Hub."""

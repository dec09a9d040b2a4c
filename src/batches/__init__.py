"""Batch types shared by models and datamodules."""

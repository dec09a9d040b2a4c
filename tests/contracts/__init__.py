"""Base classes whose tests every model and every datamodule inherits."""

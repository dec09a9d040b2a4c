"""Types of batches that models and datamodules share."""

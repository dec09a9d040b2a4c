"""Lightning datamodules, a folder for each kind of data."""

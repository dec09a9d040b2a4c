"""The config of a run: its schema, its checks, and the objects that it describes."""

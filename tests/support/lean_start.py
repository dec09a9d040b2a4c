"""Imported before anything that needs Lightning: it then loads in a third of the time, as in the entry points."""

import gc

from src.system import lean

lean.install()
gc.set_threshold(200_000, 20, 100)  # modules are no garbage: to look at them again and again takes time

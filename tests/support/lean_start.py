"""Imported before anything that needs Lightning: it then loads in a third of the time, as in the doors."""

import gc
import sys

from src.system.lean import LeanImport

sys.meta_path.insert(0, LeanImport())
gc.set_threshold(200_000, 20, 100)  # modules are no garbage: to look at them again and again takes time

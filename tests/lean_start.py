"""Imported before anything that needs Lightning: it then loads in half the time, as in the doors."""

import sys

from src.lean import LeanImport

sys.meta_path.insert(0, LeanImport())

"""Imported before anything that needs Lightning: it then loads in half of the time, as in the entry points."""

import gc

from src import patches

patches.install(patches.TORCHMETRICS)
gc.set_threshold(200_000, 20, 100)  # modules are no garbage: to look at them again and again takes time

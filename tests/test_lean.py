"""What a start does not load."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import sys
from src.lean import OPTIONAL, LeanImport
sys.meta_path.insert(0, LeanImport())
import torchmetrics
print(torchmetrics.MeanMetric()(1.0).item(), *(name for name in OPTIONAL if name in sys.modules))
import scipy.signal, matplotlib.pyplot
from lightning_utilities.core.imports import RequirementCache
print(bool(RequirementCache("scipy")))
"""


def test_torchmetrics_loads_nothing_that_nobody_uses_and_others_still_can() -> None:
    ended = subprocess.run([sys.executable, "-W", "error", "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["1.0", "True"], ended.stderr

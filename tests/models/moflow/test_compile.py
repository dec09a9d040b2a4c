"""The flow steps compile without graph breaks, and one graph serves all atom steps."""

import json
import subprocess
import sys

import pytest

from tests.support import ROOT


@pytest.mark.slow
def test_one_graph_serves_all_atom_steps() -> None:
    script = ROOT / "tests" / "support" / "compiled_steps.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    published, exact, sizes, graphs, deviation_of_uses = json.loads(done.stdout.splitlines()[-1])
    assert published["graphs"] == 2 * (1 + 2)  # forward, reverse: 1 for atom steps, 2 for bond steps (swap)
    assert exact["graphs"] == 2 * (1 + 1)
    assert published["deviation"] < 1e-10 and exact["deviation"] < 1e-10
    assert deviation_of_uses < 1e-10
    assert sizes == 5
    assert graphs[0] == 0, "an evaluation was compiled"
    assert graphs[1] == graphs[2] > 0, "the final evaluation compiled anew"

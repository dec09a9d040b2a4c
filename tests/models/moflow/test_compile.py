"""The flow steps compile whole, and one graph serves all atom steps."""

import json
import subprocess
import sys

from tests.support import ROOT


def test_one_graph_for_all_atom_steps() -> None:
    script = ROOT / "tests" / "support" / "compiled_steps.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    published, exact, sizes = json.loads(done.stdout.splitlines()[-1])
    assert published["graphs"] == 2 * (1 + 2)  # both ways: 5 atom steps, 4 bond steps of which 2 exchange halves
    assert exact["graphs"] == 2 * (1 + 1)
    assert published["deviation"] < 1e-10 and exact["deviation"] < 1e-10
    assert sizes == 5

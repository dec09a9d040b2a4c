"""Every case of docs/reference/readings.csv names a test that exists."""

import ast
import csv
from collections import Counter

import pytest

from tests.support import ROOT

with (ROOT / "docs/reference/readings.csv").open(encoding="utf-8", newline="") as _file:
    CASES = list(csv.DictReader(_file))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["in the file"][:30])
def test_the_test_of_a_case_exists(case: dict[str, str]) -> None:
    file, name = case["test"].split("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_case_is_there_once_and_says_what_it_becomes() -> None:
    assert len(CASES) >= 60 and all(case["what it becomes"] for case in CASES)
    assert max(Counter((case["data"], case["in the file"]) for case in CASES).values()) == 1

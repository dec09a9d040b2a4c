"""The list of mutations fits the code, and a mutation that survives is not taken for one that is found."""

from pathlib import Path

import pytest

from tests.mutations import LIST, PASSED, Copy, Mutation, mutations
from tests.support import ROOT

ALL = mutations(LIST.read_text(encoding="utf-8"))


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: f"{mutation.file}: {mutation.broken}")
def test_each_line_is_once_in_its_file_and_the_broken_one_compiles(mutation: Mutation) -> None:
    lines = [line.strip() for line in (ROOT / mutation.file).read_text(encoding="utf-8").splitlines()]
    assert lines.count(mutation.line) == 1
    compile(mutation.applied((ROOT / mutation.file).read_text(encoding="utf-8")), mutation.file, "exec")
    assert mutation.line != mutation.broken and mutation.file.startswith("src/")
    assert mutation.tests and all((ROOT / test).is_file() for test in mutation.tests)


@pytest.mark.slow
def test_a_mutation_is_found_or_survives_or_breaks_the_import(tmp_path: Path) -> None:
    (tmp_path / "code_under_test.py").write_text("def double(x):\n    y = 2 * x\n    return y\n")
    test = "from code_under_test import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
    (tmp_path / "test_code.py").write_text(test)
    copy = Copy(tmp_path, ["code_under_test.py", "test_code.py"], tmp_path / "copy")
    verdicts = [
        copy.verdict_on(Mutation("code_under_test.py", ("test_code.py",), line, broken))
        for line, broken in (
            ("y = 2 * x", "y = 3 * x"),
            ("y = 2 * x", "y = x * 2"),
            ("def double(x):", "def other(x):"),
        )
    ]
    assert verdicts[:2] == ["found by test_code.py::test_double", PASSED]
    assert verdicts[2].startswith("NOT FOUND: pytest ends with")
    assert copy.verdict(["test_code.py"]) == PASSED

"""The results pages of this repository: they can be made anew from their records, and are as their records say."""

import shutil
from pathlib import Path

from src.report.docs import write_docs

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_pages_are_what_their_records_say(tmp_path: Path) -> None:
    """After a change here: `python report.py --docs`. Records of every age must be readable."""
    copy = shutil.copytree(RESULTS, tmp_path / "results")
    write_docs(copy)
    pages = sorted(page.name for page in RESULTS.glob("*.md"))
    assert pages and [name for name in pages if (copy / name).read_text() != (RESULTS / name).read_text()] == []

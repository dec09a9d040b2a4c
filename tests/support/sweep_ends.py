"""The last lines of a sweep, whichever launcher ran its jobs."""

from pathlib import Path


def assert_ends_in_best_and_page(printed: str, sweep: Path) -> None:
    """Of two jobs that are done."""
    states, best, page = printed.splitlines()[-3:]
    assert states == f"2 jobs: 2 done; {sweep / 'results.csv'}"
    is_tie = best.startswith("best: an exact tie of jobs 0, 1, ")
    assert is_tie or (best.startswith("best: job ") and best.endswith(tuple(f"; {sweep / name}" for name in "01")))
    assert page == f"comparison: {sweep / 'comparison.html'}" and (sweep / "comparison.html").exists()

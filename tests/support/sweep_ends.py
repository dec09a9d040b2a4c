"""The last lines of a sweep, whichever launcher ran its jobs."""

from pathlib import Path


def assert_ends_in_best_and_page(printed: str, sweep: Path) -> None:
    """Of two jobs that are done."""
    states, best, page = printed.splitlines()[-3:]
    assert states == f"2 jobs: 2 done; {sweep / 'results.csv'}"
    assert best.startswith("best: job ") and best.endswith(tuple(f"; {sweep / str(number)}" for number in (0, 1)))
    assert page == f"comparison: {sweep / 'comparison.html'}" and (sweep / "comparison.html").exists()

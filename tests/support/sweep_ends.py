"""The last lines of a sweep, whichever launcher ran its jobs, and what happens when it is resumed."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess


def assert_ends_in_best_and_page(printed: str, sweep: Path) -> None:
    """Of two jobs that are done."""
    states, best, page = printed.splitlines()[-3:]
    assert states == f"2 jobs: 2 done; {sweep / 'results.csv'}"
    is_tie = best.startswith("best: an exact tie of jobs 0, 1, ")
    assert is_tie or (best.startswith("best: job ") and best.endswith(tuple(f"; {sweep / name}" for name in "01")))
    assert page == f"comparison: {sweep / 'comparison.html'}" and (sweep / "comparison.html").exists()


def assert_goes_on(swept: Callable[..., CompletedProcess[str]], sweep: Path) -> None:
    """Of a sweep of seeds 1 and 2 that is done: with a third seed only that one runs, and nothing when asked again.

    Args:
        swept: runs a sweep with these overrides.
    """
    written = [(sweep / name / "result.json").stat().st_mtime_ns for name in "01"]
    for _ in range(2):
        done = swept("seed=1,2,3", f"sweep.resume={sweep}")
        assert done.returncode == 0, done.stderr
        assert f"3 jobs: 3 done; {sweep / 'results.csv'}" in done.stdout.splitlines()
    assert written == [(sweep / name / "result.json").stat().st_mtime_ns for name in "01"]

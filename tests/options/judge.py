"""What the runs of a case must be, as pure functions of how they ended and of their losses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

PASSED, REFUSED, FAILED, NOT_TRIED, NOT_RUN = "passed", "refused", "failed", "not tried", "not run"
# Largest difference of two losses of a step, as a share of the loss: of the first steps, and of the later ones, where
# differences of rounding have grown. By the precision of products.
EARLY_STEPS = 8
TOLERANCES = {
    "fp32": (1e-4, 5e-3),
    "tf32": (2e-3, 3e-2),
    "amp": (1e-2, 5e-2),
    "bf16": (2e-2, 1e-1),
    "fp16": (2e-2, 1e-1),
}

Losses = Sequence[tuple[int, float]]  # the loss of each step


@dataclass(frozen=True)
class Refusal:
    """An option that does not work and is refused: the cases, what the line says, and why it is so.

    device: "cuda", "cpu" or "" for both.
    always: False where some of the cases run, which then must pass as others do.
    """

    case: str
    line: str
    reason: str
    device: str = ""
    always: bool = True


@dataclass
class Verdict:
    """The result of a case.

    difference: the largest difference of two losses that must be equal, as a share of the loss.
    """

    name: str
    status: str
    why: str = ""
    seconds: float = 0.0
    difference: float | None = None
    log: str = field(default="", repr=False)  # the end of what a failed command printed

    def plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}


def difference(one: Losses, other: Losses) -> tuple[float, float] | None:
    """Returns the largest difference of two runs' losses in their first steps and later, as shares of the loss.

    Losses near zero are compared with a tenth of the largest one. None where the runs have no step in common.
    """
    pairs = [(step, loss, dict(other)[step]) for step, loss in one if step in dict(other)]
    if not pairs:
        return None
    largest = max(abs(loss) for _, loss, _ in pairs)
    shares = [(step, share(a, b, largest / 10)) for step, a, b in pairs]
    early = max((value for step, value in shares if step <= EARLY_STEPS), default=0.0)
    return early, max((value for step, value in shares if step > EARLY_STEPS), default=0.0)


def share(one: float, other: float, least: float) -> float:
    """Returns the difference of two losses over the larger one, or over `least`; infinity where one is not finite."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), least, 1e-12)


def disagreement(what: str, one: Losses, other: Losses, precision: str) -> tuple[str, float]:
    """Returns what is wrong with losses that must be equal, "" if nothing, and their largest difference."""
    shares = difference(one, other)
    if shares is None:
        return f"{what}: the runs have no loss of the same step", math.inf
    early, late = TOLERANCES[precision]
    worst = max(shares)
    if shares[0] <= early and shares[1] <= late:
        return "", worst
    steps = [
        step
        for (step, a), (_, b) in zip(one, other, strict=False)
        if share(a, b, max(abs(loss) for _, loss in one) / 10) > (early if step <= EARLY_STEPS else late)
    ]
    at = f" from step {steps[0]} on" if steps else ""
    return f"{what}: losses differ by {shares[0]:.1e} early and {shares[1]:.1e} later{at}", worst


def wrong_losses(steps: Losses, expected: int) -> str:
    """Returns what is wrong with the losses of one run, "" if nothing."""
    if len(steps) < expected:
        return f"{len(steps)} losses of {expected} steps"
    if any(not math.isfinite(loss) for _, loss in steps):
        return "a loss is not finite"
    return ""


def refusal_of(name: str, device: str, table: Sequence[Refusal]) -> Refusal | None:
    """Returns the first row of the table that names the case on this device."""
    rows = (row for row in table if fnmatchcase(name, row.case) and row.device in ("", device))
    return next(rows, None)


def judged_refusal(row: Refusal, ends: Mapping[str, tuple[int, str]]) -> str:
    """Returns what is wrong with the ends (exit code, error line) of commands that must be refused, "" if nothing."""
    for what, (code, line) in ends.items():
        if code == 0:
            return f"{what} was to be refused ({row.reason}) and ran"
        if code != 2 or row.line not in line:
            return f"{what} was to be refused with {row.line!r}; it ended with {code}: {line[:200]}"
    return ""


def how_it_failed(what: str, code: int, line: str, printed: str) -> str:
    """Returns in one line how a command ended that was to succeed."""
    last = next((text for text in reversed(printed.splitlines()) if text.strip()), "")
    said = line or last
    ended = {124: "ran out of time", -9: "was killed", -11: "crashed"}.get(code, f"ended with {code}")
    return f"{what} {ended}: {said[:300]}"

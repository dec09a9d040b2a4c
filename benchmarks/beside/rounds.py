"""Runs a case: its sides in turn, in rounds whose order rotates."""

import math
import time
from collections.abc import Callable
from typing import Any

from benchmarks.beside.cases import Case
from benchmarks.beside.gpu_state import watched
from benchmarks.beside.results import row_left_out
from benchmarks.beside.sides import OURS, Side, SideFailedError, Wanted, our_command, peer_command, start

WARM_UP_STEPS, PROBE_STEPS = 30, 10  # a graph is captured within the warm-up
FEWEST_STEPS = 5


def order(count: int, number: int) -> list[int]:
    """Returns the order of sides in a round: 0 1 2, then 1 2 0, then 2 0 1, so that none is always after the same."""
    return [(number + i) % count for i in range(count)]


def run_case(case: Case, wanted: Wanted, say: Callable[[str], None]) -> list[Side]:
    """Runs the sides of a case, ours first; returns them with what they measured. One that fails is left out.

    Processes start together. When all are ready, each warms up alone.
    """
    folder = wanted.out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    sides = [start(OURS, our_command(case, wanted, folder), folder / "ours.log")]
    try:
        for number, peer in enumerate(case.peers, 1):
            log = folder / f"peer_{number}.log"
            if peer.reference and wanted.reference is None:
                say(f"{peer.name}: left out, {row_left_out(peer)['error']}")
                continue
            sides.append(start(peer.name, peer_command(case, peer, wanted), log))
        begin_s = time.monotonic()
        for side in sides:
            attempt(side, say, lambda side=side: side.about.update(side.ask(None, "ready", wanted.limit_s)))
            if side.error is None:
                say(f"  {side.name}: ready {time.monotonic() - begin_s:.0f} s after the start")
        running = [side for side in sides if side.error is None]
        steps = {id(side): attempt(side, say, lambda side=side: warm_up(side, wanted)) for side in running}
        for number in range(wanted.rounds):
            running = [side for side in sides if side.error is None]
            for index in order(len(running), number):
                side = running[index]
                attempt(side, say, lambda side=side: side.rounds.append(turn(side, steps[id(side)], wanted)))
            say(f"  round {number + 1} of {wanted.rounds} done")
    finally:
        for side in sides:
            side.end()
    return sides


def attempt(side: Side, say: Callable[[str], None], act: Callable[[], Any]) -> Any:
    """Returns what `act` returns; a side that fails in it is said to, and marked."""
    try:
        return act()
    except SideFailedError as error:
        side.error = str(error)
        say(f"{side.name}: failed, {error} (log: {side.log})")
        side.end()
        return None


def warm_up(side: Side, wanted: Wanted) -> int:
    """Warms a side up, by a whole turn too, and returns the steps of its turns.

    Within that turn the batch shapes that are not the first get their CUDA graphs.
    """
    side.ask({"steps": wanted.steps or WARM_UP_STEPS}, None, wanted.limit_s)
    if wanted.steps:
        return wanted.steps
    probe = side.ask({"steps": PROBE_STEPS}, None, wanted.limit_s)
    steps = max(FEWEST_STEPS, math.ceil(wanted.seconds * PROBE_STEPS / probe["seconds"]))
    side.ask({"steps": steps}, None, wanted.limit_s)
    return steps


def turn(side: Side, steps: int, wanted: Wanted) -> dict[str, Any]:
    """Returns what a turn measured: steps, samples, seconds, samples per second, and the GPU's state meanwhile."""
    with watched(side.about.get("gpu_uuid")) as state:
        answer = side.ask({"steps": steps}, None, wanted.limit_s)
    return answer | {"throughput": answer["samples"] / answer["seconds"], "gpu": state}

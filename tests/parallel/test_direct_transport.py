"""Gradient averaging through memory that ranks share, with threads as ranks: they share a process's memory."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

import pytest
import torch
from torch import Tensor

from src.parallel import direct_transport as direct_messages
from src.parallel.direct_transport import DirectTransport, needed

pytestmark = pytest.mark.slow

LONG = 200_000  # a message that somebody is still fetching when another one does not wait
STEPS = 8


def contents(rank: int, step: int, numbers: Sequence[int]) -> list[Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(count, generator=random) for count in numbers]


@pytest.fixture
def one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter knows one thread."""
    lock, launch = Lock(), direct_messages.launch

    def in_turn(*arguments: Any, **constants: Any) -> None:
        with lock:
            launch(*arguments, **constants)

    monkeypatch.setattr(direct_messages, "launch", in_turn)


@pytest.mark.usefixtures("one_kernel_at_a_time")
@pytest.mark.parametrize("last", [0, 1, 4])
@pytest.mark.parametrize(("ranks", "numbers"), [(2, (LONG,)), (3, (LONG, 5, 100, 64))])
def test_every_rank_has_the_same_mean(ranks: int, numbers: tuple[int, ...], last: int) -> None:
    last = min(last, len(numbers))
    memory = [torch.zeros(needed(numbers, ranks)) for _ in range(ranks)]
    meetings = [Barrier(ranks, timeout=20) for _ in range(2)]
    inputs = [[contents(rank, step, numbers) for step in range(STEPS)] for rank in range(ranks)]

    met: list[int] = []

    def meet(which: int) -> None:
        met.append(meetings[which].wait())

    def run(rank: int) -> list[list[Tensor]]:
        messages, means = DirectTransport(memory, rank, meet, numbers), []
        for step in range(STEPS):
            sent = []
            for number, content in enumerate(inputs[rank][step]):
                message = messages.empty(number, len(content), torch.float32, content.device)
                message.copy_(content)
                is_last = number >= len(numbers) - last
                sent.append((message, messages.average(number, message, is_last)))
            for _, wait in sent:
                wait()
            messages.finish()
            means.append([message.clone() for message, _ in sent])
        return means

    with ThreadPoolExecutor(ranks) as threads:
        first, *rest = threads.map(run, range(ranks))
    # Of a message's two barriers a last one leaves the second to the step's end: there all are done with all memories.
    assert len(met) == STEPS * ranks * (2 * len(numbers) - last + 1)
    for step in range(STEPS):
        for number, result in enumerate(first[step]):
            mean = torch.stack([inputs[rank][step][number].double() for rank in range(ranks)]).mean(0)
            torch.testing.assert_close(result.double(), mean, rtol=1e-6, atol=1e-6)
            assert all(torch.equal(result, other[step][number]) for other in rest)

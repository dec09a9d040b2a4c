"""Gloo processes that stay and run what tests give them: TorchRec takes seconds to import."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

LONGEST_S = 60


class Ranks:
    """Processes of one gloo group. Call it with a function of a module and its arguments to run it on all of them."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        # Once for all ranks.
        context.set_forkserver_preload(
            ["tests.support.lean_start", "src.models.dlrm.sharded_tables", "src.parallel.strategies"]
        )
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, count, str(folder), theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function returned on each rank. A rank that says nothing in a minute fails the test."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [pipe.recv() if pipe.poll(LONGEST_S) else (None, "no answer in a minute") for pipe in self.pipes]
        failures = [f"rank {rank}: {failure}" for rank, (_, failure) in enumerate(answers) if failure]
        if failures:
            self.close()  # the others may wait for the one that failed
        assert not failures, "\n".join(failures)
        return [result for result, _ in answers]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(rank: int, count: int, folder: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=count)
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send((function(*arguments), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))

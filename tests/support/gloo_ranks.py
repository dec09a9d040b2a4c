"""Long-lived gloo ranks that run functions for tests: importing TorchRec takes seconds."""

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

TIMEOUT_S = 300


class Ranks:
    """Processes of one gloo group. Calling it runs a module-level function with its arguments on all ranks."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        # Imported once for all ranks.
        context.set_forkserver_preload(
            ["tests.support.patched_start", "src.models.dlrm.torchrec_tables", "src.parallel.strategies"]
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
        """Returns the function's result on each rank. A rank that does not answer in five minutes fails the test."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [
            pickle.loads(pipe.recv_bytes()) if pipe.poll(TIMEOUT_S) else (None, "no answer in five minutes")
            for pipe in self.pipes
        ]
        failures = [f"rank {rank}: {failure}" for rank, (_, failure) in enumerate(answers) if failure]
        if failures:
            self.close()  # other ranks may wait for the failed one
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
            answer = function(*arguments), None
        except BaseException:
            answer = None, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))  # `send` would open a file for each tensor: thousands in a module's tests

"""Run by TaskContract in a process without shape checks, whose wrappers would be compiled too.

Arguments: the file and class of a contract's test, and a folder. Prints the number of graphs, and how far the compiled
loss, gradients and buffers are from the eager ones at most.
"""

import functools
import importlib.util
import sys
from pathlib import Path

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_map_only

sys.path.insert(0, str(Path(__file__).parents[2]))
import tests.support.patched_start  # noqa: F401


def main(file: str, name: str, home: Path) -> None:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("contract_of_a_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    contract = getattr(module, name)()
    counter = CompileCounterWithBackend("aot_eager")
    torch.compile = functools.partial(torch.compile, backend=counter)  # instead of a compiler that takes minutes
    results = []
    for compiled in (False, True):
        task = contract.task(home).double()
        if compiled:
            task.compile_network()
        batch = tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, task.example_batch(4))
        task.prepare_first_step([batch])
        torch.manual_seed(0)
        loss = task.loss(batch)["loss"]
        loss.backward()
        gradients = [p.grad for p in task.parameters() if p.grad is not None]
        results.append([loss, *gradients, *(b.double() for b in task.buffers())])
    deviation = max((a - b).abs().max().item() for a, b in zip(*results, strict=True) if a.numel())
    print(counter.frame_count, deviation)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

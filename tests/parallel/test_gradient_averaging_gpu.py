"""Gradients averaged through memory that GPUs share, and through NCCL: the mean, in graphs, whoever comes late.

`python -m torch.distributed.run --nproc-per-node=RANKS` runs this file's checks on so many GPUs.
"""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import distributed, nn

from tests.support import ROOT

BUCKET_BYTES, REPLAYS = 2**20, 60  # bytes of a message: some of many parameters, one of a single large one
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("ranks", [n for n in (1, 2, 4, 8) if n <= torch.cuda.device_count()])
def test_replayed_steps_average_fresh_gradients(ranks: int) -> None:
    """Of one stream, and, on a single GPU too, of two that share a bucket."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(paths)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]


class Products(torch.autograd.Function):
    """The sum of products, with the gradients of every other factor where they travel from."""

    @staticmethod
    def forward(ctx: Any, inputs: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.inputs, ctx.parameters = inputs, parameters
        return torch.stack([(p * x).sum() for p, x in zip(parameters, inputs, strict=True)]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from src.gpu.gradient_slots import slot_of

        pairs = enumerate(zip(ctx.parameters, ctx.inputs, strict=True))
        return None, *((slot_of(p).copy_(grads[0] * x) if k % 2 else grads[0] * x) for k, (p, x) in pairs)


def replays(direct: bool, dtype: torch.dtype | None, tolerance: float, device: torch.device) -> None:
    """Replays a captured step over fresh gradients; every rank's have to be the mean, and the same bits."""
    from src.gpu.waiting import Waiting
    from src.parallel.direct_transport import DirectTransport
    from src.parallel.gradient_averaging import GradientAverage
    from src.parallel.transports import Transport

    rank, world = distributed.get_rank(), distributed.get_world_size()
    sizes = [(7,), (2000, 300), (64, 3, 3, 3), (1000, 1000), (5,), (300, 400)]
    parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in sizes]
    inputs = [torch.zeros_like(parameter) for parameter in parameters]
    average = GradientAverage(parameters, Waiting(device), dtype, BUCKET_BYTES)

    def step() -> list[torch.Tensor]:
        Products.apply(inputs, *parameters).backward()
        if average.slots and direct:
            there = [p.grad is not None and p.grad.data_ptr() == average.slots[p].data_ptr() for p in parameters]
            assert there == [k % 2 == 1 for k in range(len(parameters))]
        assert {p for part in average.averaged() for p in part} == set(parameters)
        copies = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            parameter.grad = None
        return copies

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        step()
        assert isinstance(average.transport, DirectTransport)
        assert 2 < len(average.buckets) < len(average.transport.shares)  # some are so large that they travel in pieces
        memory = average.transport  # which gradients are written to either way
        if not direct:
            average.transport = Transport()
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        gradients = step()
    late = torch.Generator().manual_seed(1)
    for replay in range(REPLAYS):
        for x in inputs:
            x.normal_()
        means = [x.double() for x in inputs]
        if torch.randint(world, (), generator=late) == rank:
            torch.cuda._sleep(200_000 * (replay % 4))  # cycles: up to a third of a millisecond behind the others
        graph.replay()
        for mine, mean in zip(gradients, means, strict=True):
            distributed.all_reduce(mean, distributed.ReduceOp.AVG)
            torch.testing.assert_close(mine.double(), mean, rtol=tolerance, atol=4 * tolerance)
            others = [torch.empty_like(mine) for _ in range(world)]
            distributed.all_gather(others, mine)
            assert all(torch.equal(mine, other) for other in others)
    average.close()
    del memory


class Slow(torch.autograd.Function):
    """The sum of products, whose gradient comes some milliseconds after its kernels have been launched."""

    @staticmethod
    def forward(ctx: Any, factor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return (parameter * factor).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        torch.cuda._sleep(10_000_000)
        return None, grads[0] * ctx.factor


def overlaps(captured: bool, device: torch.device) -> None:
    """Takes a slow gradient from one stream and a quick one, launched later, from another; both have to be fresh."""
    from src.gpu.waiting import Waiting
    from src.parallel.gradient_averaging import GradientAverage

    slow, quick = (nn.Parameter(torch.zeros(1000, device=device)) for _ in range(2))
    factors = [torch.zeros_like(slow) for _ in range(2)]
    average = GradientAverage([slow, quick], Waiting(device))
    side = torch.cuda.Stream()
    means = [torch.zeros_like(slow) for _ in range(2)]

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            quickly = (quick * factors[1]).sum()
        slowly = Slow.apply(factors[0], slow)
        torch.cuda.current_stream().wait_stream(side)
        (slowly + quickly).backward()
        for _ in average.averaged():
            pass
        for mean, parameter in zip(means, (slow, quick), strict=True):
            assert parameter.grad is not None
            mean.copy_(parameter.grad)
            parameter.grad = None

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step()
        step()
    (bucket,) = average.buckets
    assert bucket.parameters[0] is slow  # in the order in which the backward pass launches them
    torch.cuda.synchronize()
    if captured:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    for _ in range(5):
        for factor in factors:
            factor.normal_()
        expected = [factor.clone() for factor in factors]
        for tensor in expected:
            distributed.all_reduce(tensor, distributed.ReduceOp.AVG)
        torch.cuda.synchronize()
        if captured:
            graph.replay()
        else:
            with torch.cuda.stream(stream):
                step()
        torch.cuda.synchronize()
        for mean, right in zip(means, expected, strict=True):
            torch.testing.assert_close(mean, right)
    average.close()


def averages_moflow(device: torch.device) -> None:
    """Replays MoFlow's backward pass, of two streams, on fresh molecules; has to give the mean over all ranks'."""
    from src.gpu.waiting import Waiting
    from src.models.moflow.fast import accelerate
    from src.models.moflow.network import MoFlow
    from src.parallel.gradient_averaging import GradientAverage

    torch.manual_seed(0)
    network = accelerate(MoFlow()).to(device)
    network.dequantise = lambda x, adj, noise: (x + 0.3, adj + 0.3)  # type: ignore[method-assign]
    parameters = list(network.parameters())
    average = GradientAverage(parameters, Waiting(device))

    def molecules() -> tuple[torch.Tensor, torch.Tensor]:
        shapes = ((10, 64, 38), (4, 64, 38, 38))
        nodes, edges = (torch.randint(most, size, dtype=torch.uint8, device=device) for most, *size in shapes)
        return nodes, edges

    def gradients(batch: tuple[torch.Tensor, torch.Tensor], averaged: bool) -> list[torch.Tensor]:
        average.is_last = averaged
        network.loss(network(*batch)).backward()
        for _ in average.averaged() if averaged else ():
            pass
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        network.zero_grad()
        return grads

    mine = molecules()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):
            gradients(mine, averaged=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        captured = [gradient.clone() for gradient in gradients(mine, averaged=True)]
    for _ in range(3):
        means = [torch.zeros_like(parameter) for parameter in parameters]
        for rank in range(distributed.get_world_size()):
            batch = molecules()  # the same ones on every rank
            for mean, gradient in zip(means, gradients(batch, averaged=False), strict=True):
                mean += gradient / distributed.get_world_size()
            if rank == distributed.get_rank():
                for target, drawn in zip(mine, batch, strict=True):
                    target.copy_(drawn)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        for (name, _), gradient, mean in zip(network.named_parameters(), captured, means, strict=True):
            error = float((gradient - mean).norm() / mean.norm().clamp(min=1e-6))
            assert error < 1e-3, f"{name}: {error}"
    average.close()


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    for captured in (True, False):
        overlaps(captured, device)
    averages_moflow(device)
    for direct in (True, False) if distributed.get_world_size() > 1 else ():
        for dtype, tolerance in ((None, 1e-6), (torch.bfloat16, 2e-2)):
            replays(direct, dtype, tolerance, device)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

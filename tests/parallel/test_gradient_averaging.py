"""Gradients averaged over gloo ranks: the mean of all, in messages that end early, and only when they are asked to."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn

from src.gpu.waiting import Waiting
from src.parallel.gradient_averaging import Bucket, GradientAverage, bucket_dtype, buckets, last_of
from tests.support.gloo_ranks import Ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()


def network() -> nn.Module:
    """Three layers, one of them with its weights' dimensions in another order in memory, one without a gradient."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Flatten(), nn.Linear(5 * 4, 7), nn.Linear(7, 1))
    weight: Any = layers[0].weight
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    layers.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return layers


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(10 * step + rank)
    return model(torch.randn(2, 3, 4, 4, generator=random)).square().mean()


def averaged(dtype: torch.dtype | None) -> dict[str, Any]:
    """Returns this rank's gradients after two passes each, and how many buckets were sent before a pass was over."""
    rank, model, waiting = distributed.get_rank(), network(), Waiting(CPU)
    names = {parameter: name for name, parameter in model.named_parameters()}
    average = GradientAverage(list(model.parameters()), waiting, dtype, max_bytes=100)
    result: dict[str, Any] = {"early": [], "parts": [], "gradients": []}
    for step in range(3):
        model.zero_grad(set_to_none=True)
        loss_of(model, rank, step).backward()
        result["early"].append(len(average.sent))
        result["parts"].append([[names[parameter] for parameter in part] for part in average.averaged()])
        result["gradients"].append({name: p.grad for name, p in model.named_parameters()})
        result["strides"] = model[0].weight.grad.stride() == model[0].weight.stride()  # type: ignore[union-attr, index]
    result["messages"], result["waited"] = len(average.buckets), waiting.seconds()
    average.close()
    model.zero_grad(set_to_none=True)
    loss_of(model, rank, 0).backward()
    result["alone"] = model[2].weight.grad  # type: ignore[index]
    return result


def expected(step: int) -> dict[str, torch.Tensor | None]:
    model = network()
    (sum(loss_of(model, rank, step) for rank in (0, 1)) / 2).backward()  # type: ignore[union-attr]
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-6), (torch.bfloat16, 2e-2)])
def test_every_rank_gets_the_mean(dtype: torch.dtype | None, tolerance: float, ranks: Ranks) -> None:
    first, second = ranks(averaged, dtype)
    for step in range(3):
        for name, mean in expected(step).items():
            mine, other = first["gradients"][step][name], second["gradients"][step][name]
            if mean is None:
                assert name == "unused" and mine is None and other is None
                continue
            assert torch.equal(mine, other) and mine.dtype == torch.float32
            torch.testing.assert_close(mine, mean, rtol=tolerance, atol=tolerance * mean.abs().max().item())
    assert first["strides"]
    assert first["waited"] > 0
    assert first["messages"] == 4
    assert first["early"] == [0, 3, 3]  # all but that of the parameter without a gradient, once their order is known
    assert first["parts"] == 3 * [[["3.bias", "3.weight", "2.bias", "2.weight"], ["0.weight"]]]


def test_once_closed_gradients_are_a_ranks_own(ranks: Ranks) -> None:
    for rank, result in enumerate(ranks(averaged, None)):
        model = network()
        loss_of(model, rank, 0).backward()
        assert torch.equal(result["alone"], model[2].weight.grad)  # type: ignore[index]


def accumulated() -> tuple[list[int], torch.Tensor]:
    """Buckets after each of two backward passes of which only the second one sends, and the gradient."""
    rank, model = distributed.get_rank(), network()
    average = GradientAverage(list(model.parameters()), Waiting(CPU))
    sent = []
    for step in range(2):
        average.is_last = step == 1
        loss_of(model, rank, step).backward()
        sent.append(len(average.sent) + average.next)
    list(average.averaged())
    gradient = model[3].weight.grad  # type: ignore[index]
    assert isinstance(gradient, torch.Tensor)
    return sent, gradient


def test_summed_up_passes_travel_once(ranks: Ranks) -> None:
    (sent, first), (_, second) = ranks(accumulated)
    assert sent[0] == 0
    mean = sum(expected(step)["3.weight"] for step in range(2))  # type: ignore[misc]
    torch.testing.assert_close(first, mean)
    assert torch.equal(first, second)


def backwards(turned: bool) -> list[list[int]]:
    """Sizes of the gradients of each message of a network that rank 1 goes through the other way round."""
    parameters = [nn.Parameter(torch.ones(n)) for n in (300, 5, 10, 10, 100)]
    average = GradientAverage(parameters, Waiting(CPU), max_bytes=80)
    order = parameters[::-1] if turned and distributed.get_rank() else parameters
    x = torch.ones(())
    for parameter in order:
        x = x * parameter.sum()
    x.backward()
    list(average.averaged())
    return [[len(p) for p in bucket.parameters] for bucket in average.buckets]


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_travel_in_the_order_in_which_they_come_on_the_first_rank(turned: bool, ranks: Ranks) -> None:
    first, second = ranks(backwards, turned)
    assert first == second == [[100], [10, 10], [5], [300]]


def test_messages_hold_one_dtype_and_no_more_than_enough() -> None:
    parameters = [nn.Parameter(torch.zeros(n)) for n in (300, 5, 10, 10, 100)]
    half = nn.Parameter(torch.zeros(8, dtype=torch.float16))
    sizes = [[len(p) for p in bucket] for bucket in buckets([*parameters, half], 80)]
    assert sizes == [[300], [5, 10], [10], [100], [8]]
    sizes = [[len(p) for p in bucket] for bucket in buckets([*parameters[:2], half, *parameters[2:]], 80)]
    assert sizes == [[300], [5], [8], [10, 10], [100]]  # where bytes alone would let it in


def test_the_last_of_several_messages_is_short() -> None:
    parameters = [nn.Parameter(torch.zeros(n)) for n in (90, 50, 20, 3, 2, 1)]
    assert [[len(p) for p in bucket] for bucket in buckets(parameters, 400)] == [[90], [50, 20], [3, 2, 1]]
    assert [[len(p) for p in bucket] for bucket in buckets(parameters, 360)] == [[90], [50, 20, 3], [2, 1]]
    assert [[len(p) for p in bucket] for bucket in buckets(parameters[1:], 400)] == [[50, 20, 3, 2, 1]]
    assert buckets([]) == []


def test_the_last_buckets_have_next_to_nothing_behind_them() -> None:
    sizes = [200, 900, 20, 30]  # numbers; a message holds 100
    filled = [Bucket([nn.Parameter(torch.zeros(size))], 0, 100) for size in sizes]
    assert [bucket.begins[-1] for bucket in last_of(filled, 1600)] == [32, 20, 900]  # in wholes of 16 bytes
    assert last_of(filled, 400) == filled[3:]
    assert last_of([]) == []


def test_a_large_gradient_travels_in_pieces() -> None:
    parameter = nn.Parameter(torch.zeros(15, 10))
    bucket = Bucket([parameter], 3, 64)
    assert bucket.pieces == [slice(0, 64), slice(64, 128), slice(128, 152)]
    for gradient in (torch.arange(150.0).view(15, 10), torch.arange(150.0).view(10, 15).T):
        parameter.grad, memory = gradient, torch.full((152,), -1.0)
        for piece in bucket.pieces:
            bucket.fill(memory, piece)
            if gradient.is_contiguous():
                assert torch.equal(memory[: piece.stop][:150], gradient.flatten()[: piece.stop])
                assert (memory[piece.stop :] == -1).all()
        assert torch.equal(bucket.parts(memory)[0], gradient)
    assert Bucket([parameter, nn.Parameter(torch.zeros(3))], 0, 64).pieces == [slice(0, 156)]
    assert Bucket([nn.Parameter(torch.zeros(0))], 0, 64).pieces == [slice(0, 0)]


def test_bucket_dtypes() -> None:
    assert [bucket_dtype(name) for name in (None, "bf16", "fp16")] == [None, torch.bfloat16, torch.float16]

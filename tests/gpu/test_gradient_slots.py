"""Gradients are written where they are wanted: autograd takes the memory as it is, once in a step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu.gradient_slots import offer, slot_of, withdraw
from src.models.distilbert import Sizes
from src.models.distilbert.fast import embedding, layer
from src.models.distilbert.layout import Layout
from src.models.distilbert.network import Block, Dropout
from src.models.moflow.fast import conv
from src.parallel.gradient_averaging import Bucket
from tests.support.distilbert_kernels import sentences


class Product(torch.autograd.Function):
    """The sum of a parameter times x, whose gradient is written where it is wanted."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, x)
        return (parameter * x).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        parameter, x = ctx.saved_tensors
        return slot_of(parameter).copy_(grads[0] * x), None


@pytest.fixture
def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))


def test_autograd_takes_the_memory_as_it_is(parameter: nn.Parameter) -> None:
    place, x = torch.full_like(parameter, 7.0), torch.randn(2, 3, 4, 4)
    offer({parameter: place})
    Product.apply(parameter, x).backward()  # type: ignore[union-attr]
    assert parameter.grad is not None and parameter.grad.data_ptr() == place.data_ptr()
    assert parameter.grad.stride() == parameter.stride()
    assert torch.equal(place, x)
    # A second pass of the same step adds to it.
    Product.apply(parameter, x).backward()  # type: ignore[union-attr]
    assert parameter.grad.data_ptr() == place.data_ptr()
    assert torch.equal(place, 2 * x)


def test_parts_of_a_gradient_do_not_share_memory(parameter: nn.Parameter) -> None:
    x, y, place = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.zeros_like(parameter)
    offer({parameter: place})
    (Product.apply(parameter, x) + Product.apply(parameter, y)).backward()  # type: ignore[operator]
    torch.testing.assert_close(parameter.grad, x + y)


@pytest.mark.parametrize("moved", [False, True])
def test_what_is_withdrawn_is_not_given(moved: bool, parameter: nn.Parameter) -> None:
    """Lightning moves a network to the CPU first, and another parameter may come to its address."""
    place, newcomer = torch.zeros_like(parameter), parameter.detach()
    offer({parameter: place})
    if moved:
        parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
    withdraw([place])
    slot = slot_of(newcomer)
    assert slot.data_ptr() != place.data_ptr()
    assert slot.shape == parameter.shape and slot.stride() == parameter.stride()


def test_what_nobody_owns_any_more_is_not_given(parameter: nn.Parameter) -> None:
    place = torch.zeros_like(parameter)
    address = place.data_ptr()
    keeper = place.detach()  # the memory stays, so that no new tensor can be there
    offer({parameter: place})
    del place
    assert keeper.data_ptr() == address != slot_of(parameter).data_ptr()


@pytest.mark.parametrize("size", [(7,), (40, 5)])
def test_a_gradient_in_its_place_is_not_copied(size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of several that travel together nor of one that travels in pieces."""
    parameters = [nn.Parameter(torch.zeros(size)) for _ in range(2 if size == (7,) else 1)]
    bucket = Bucket(parameters, 0, 64)
    memory = torch.randn(bucket.begins[-1])
    for parameter, part in zip(parameters, bucket.parts(memory), strict=True):
        parameter.grad = part
    before = memory.clone()
    monkeypatch.setattr(torch, "_foreach_copy_", None)
    memory.requires_grad_()  # so that a copy into it would fail
    for piece in bucket.pieces:
        bucket.fill(memory, piece)
    assert torch.equal(memory, before)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kernel", [False, True])
def test_a_convolution_on_small_maps(
    kernel: bool, memory_format: torch.memory_format, dtype: torch.dtype, tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its weight's gradient, folded into its place by plain torch and by a kernel, is a convolution's in float64."""
    monkeypatch.setattr(conv, "can_take", lambda *_: kernel)
    weight = nn.Parameter(torch.randn(5, 300, 3, 3).contiguous(memory_format=memory_format))
    place, maps = torch.full_like(weight, torch.nan), torch.randn(8, 4, 300)
    offer({weight: place})
    direction = torch.randn(8, 4, 5)
    matrix = conv.DenseMatrix.apply(weight, dtype)
    (maps.flatten(1).to(dtype) @ matrix.T).unflatten(1, (4, 5)).backward(direction.to(dtype))  # type: ignore[union-attr]
    assert weight.grad is not None and weight.grad.data_ptr() == place.data_ptr()

    exact = weight.detach().double().requires_grad_()
    images = maps.double().transpose(1, 2).unflatten(2, (2, 2))
    expected = torch.nn.functional.conv2d(images, exact, padding=1).flatten(2).transpose(1, 2)
    expected.backward(direction.double())
    assert exact.grad is not None
    scale = exact.grad.abs().max()
    torch.testing.assert_close(place.double() / scale, exact.grad / scale, rtol=0, atol=tolerance)


def test_word_vectors() -> None:
    words, positions = tables = nn.Parameter(torch.randn(40, 24)), nn.Parameter(torch.randn(70, 24))
    norm = nn.Parameter(torch.ones(24)), nn.Parameter(torch.zeros(24))
    places = {table: torch.full_like(table, torch.nan) for table in tables}
    grads = []
    for offered in ({}, places):
        offer(offered)
        out = embedding.embed(sentences([5, 3, 7], None, 4), words, positions, *norm, 1e-12, 0.0, torch.float32)
        out.square().mul(torch.arange(24)).sum().backward()
        grads.append([table.grad for table in tables])
        for parameter in (*tables, *norm):
            parameter.grad = None
    for table, plain, placed in zip(tables, *grads, strict=True):
        assert torch.equal(plain, placed) and placed.data_ptr() == places[table].data_ptr()


def test_weights_of_a_layer() -> None:
    """But those of queries, keys and values, which are one product."""
    torch.manual_seed(0)
    block = Block(Sizes(dim=16, n_heads=2, hidden_dim=40), Dropout(0.0, 0.0, 0.0))
    parameters = dict(block.named_parameters())
    places = {parameter: torch.full_like(parameter, torch.nan) for parameter in parameters.values()}
    layout, x = Layout.of(sentences([5, 3, 7], None, 1)), torch.randn(16, 16)
    grads = []
    for offered in ({}, places):
        offer(offered)
        out = layer.layer(x, layout, False, 2, 1e-12, (0.0, 0.0), tuple(parameters.values()))
        out.square().mul(torch.arange(16)).sum().backward()
        grads.append({name: parameter.grad for name, parameter in parameters.items()})
        for parameter in parameters.values():
            parameter.grad = None
    withdraw(places.values())
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in parameters)
    there = {
        name for name, parameter in parameters.items() if grads[1][name].data_ptr() == places[parameter].data_ptr()
    }
    assert there == {"attention.out_lin.weight", "ffn.lin1.weight", "ffn.lin2.weight"}

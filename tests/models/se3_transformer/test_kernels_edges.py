"""Gathering, summing and attention kernels, interpreted on the CPU, against plain torch in float64."""

from typing import Any

import pytest
import torch

from src.models.se3_transformer import Fiber, fast
from src.models.se3_transformer.fast import edges  # noqa: F401  # imports the kernels
from src.models.se3_transformer.fast.frames import EdgeLayout
from tests.support.kernel_differences import difference, random
from tests.support.se3_kernels import attention, gathering, packed, ragged, summing

fused: Any = fast
SINGLE, HALF = 3e-6, 3e-3  # relative to the largest number; float16 rounds at 5e-4
PADDED = ragged((5, 1, 4), pad=(3, 6))
LAYOUTS = [
    EdgeLayout(Fiber({0: 5}), 0),
    EdgeLayout(Fiber.create(2, 3), 1),
    EdgeLayout(Fiber.create(3, 16), 2),
    EdgeLayout(Fiber.create(4, 8), 3),
    EdgeLayout(Fiber.create(5, 20), 4),  # a tile of 32 by 32
    EdgeLayout(Fiber.create(4, 4), 1),  # components of high |m| are not kept
    EdgeLayout(Fiber.create(3, 4), 0),
]


def layout(degrees: int, channels: int, max_m: int | None = None) -> EdgeLayout:
    return EdgeLayout(Fiber.create(degrees, channels), degrees - 1 if max_m is None else max_m)


@pytest.mark.parametrize("shape", LAYOUTS)
def test_gathering_equals_plain_torch(shape: EdgeLayout) -> None:
    assert gathering(fused, shape, PADDED, torch.float32).largest < SINGLE


def test_the_gradient_of_gathered_features_adds_that_of_their_other_uses() -> None:
    shape = layout(3, 4)
    features = random(len(PADDED.positions), shape.fiber.num_features, seed=1).float()
    turns, real = packed(PADDED, 2), int(PADDED.dst_ptr[-1])

    def both(columns: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([columns[:real].flatten(), 2 * features.flatten()])

    def fast(x: torch.Tensor) -> torch.Tensor:
        return both(*fused.edges.gather_to_edges(x, turns.float(), PADDED, shape))

    assert difference(fast, lambda x: both(shape.to_edge(x[PADDED.src], turns), x), [features]).largest < SINGLE
    _, other = fused.edges.gather_to_edges(features.requires_grad_(), turns.float(), PADDED, shape)
    assert (torch.autograd.grad(2 * other.sum(), features)[0] == 2).all()


@pytest.mark.parametrize("shape", LAYOUTS)
def test_summing_equals_plain_torch(shape: EdgeLayout) -> None:
    assert summing(fused, shape, PADDED, torch.float32).largest < SINGLE


@pytest.mark.parametrize(
    ("value", "key", "heads"),
    [
        (layout(4, 8), layout(4, 8), 1),
        (layout(3, 8), layout(3, 8), 8),  # one channel per head
        (layout(3, 16), layout(1, 16), 4),  # the first block's keys: one degree
        (layout(2, 12), layout(2, 12), 3),  # channels that are no power of two, but each head's are
        (layout(1, 6), layout(1, 6), 3),
        (layout(4, 4, max_m=1), layout(2, 4), 2),  # messages of an input with two degrees
        (layout(2, 24), layout(2, 24, max_m=0), 6),
        (layout(5, 4), layout(5, 4), 2),
    ],
)
def test_attention_equals_the_reference(value: EdgeLayout, key: EdgeLayout, heads: int) -> None:
    assert attention(fused, value, key, heads, PADDED, torch.float32).largest < SINGLE


def test_edge_kernels_support_float16() -> None:
    shape = layout(3, 8)
    assert gathering(fused, shape, PADDED, torch.float16).largest < HALF
    assert summing(fused, shape, PADDED, torch.float16).largest < HALF
    assert attention(fused, shape, shape, 2, PADDED, torch.float16).largest < HALF


def test_attention_of_large_logits_is_finite() -> None:
    """With logits of +-1000, whose exponentials overflow float32."""
    graph, shape = ragged((6,)), layout(2, 4)
    turns = packed(graph, 1).float()
    messages = 60 * random(len(graph.src), 2 * shape.num_features, seed=0).float().requires_grad_()
    query = 60 * random(len(graph.positions), shape.fiber.num_features, seed=1).float()
    result = fused.edges.attend(messages, query, turns, graph, shape, shape, 2)
    (gradient,) = torch.autograd.grad(result.sum(), messages)
    assert result.isfinite().all() and gradient.isfinite().all()
    assert result[0].eq(0).all() and result[1:].ne(0).all()


def test_padding_has_no_effect_and_no_gradient() -> None:
    """Even if it contains NaN."""
    shape, real = layout(3, 4), int(PADDED.dst_ptr[-1])
    turns = packed(PADDED, 2).float()
    turns[real:] = torch.nan
    features = random(len(PADDED.positions), shape.fiber.num_features, seed=0).float()
    features[PADDED.graph_ptr[-1] :] = torch.nan
    columns, messages = (random(len(PADDED.src), n * shape.num_features, seed=n).float() for n in (1, 2))
    columns[real:], messages[real:] = torch.nan, torch.nan
    leaves = [x.requires_grad_() for x in (features, columns, messages)]
    gathered, _ = fused.edges.gather_to_edges(features, turns, PADDED, shape)
    sums = fused.edges.sum_from_edges(columns, turns, PADDED, shape)
    query = features.detach().nan_to_num().requires_grad_()
    attended = fused.edges.attend(messages, query, turns, PADDED, shape, shape, 2)
    assert not gathered[real:].any() and all(x.isfinite().all() for x in (gathered, sums, attended))
    gradients = torch.autograd.grad(
        [gathered, sums, attended], [*leaves, query], [torch.ones_like(x) for x in (gathered, sums, attended)]
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    nodes = int(PADDED.graph_ptr[-1])
    for gradient, first in zip(gradients, (nodes, real, real, nodes), strict=True):
        assert gradient[:first].any() and not gradient[first:].any()
    isolated = PADDED.dst_ptr.diff() == 0
    assert 5 < isolated.sum() < len(isolated) and not sums[isolated].any() and not attended[isolated].any()


def test_a_graph_of_padded_edges_gives_no_error() -> None:
    graph, shape = ragged((1, 1), pad=(2, 5)), layout(2, 4)
    assert not int(graph.dst_ptr[-1])
    for result in (
        gathering(fused, shape, graph, torch.float32),
        summing(fused, shape, graph, torch.float32),
        attention(fused, shape, shape, 2, graph, torch.float32),
    ):
        assert result.largest == 0


def test_only_rectangles_that_fit_a_tile_are_supported() -> None:
    assert fused.edges.supported(layout(5, 128))
    assert not fused.edges.supported(layout(6, 4)) and not fused.edges.supported(layout(2, 129))
    for fiber in (Fiber({0: 4, 1: 8}), Fiber({0: 4, 2: 4}), Fiber({1: 4})):
        assert not fused.edges.supported(EdgeLayout(fiber, fiber.max_degree))


@pytest.mark.parametrize(
    ("channels", "heads", "supported"), [(8, 2, True), (12, 3, True), (12, 2, False), (8, 3, False), (8, 16, False)]
)
def test_heads_must_have_a_power_of_two_channels(channels: int, heads: int, supported: bool) -> None:
    shape = layout(3, channels)
    assert fused.edges.attention_supported(shape, shape, heads) is supported


def test_values_and_keys_must_have_equal_channels() -> None:
    assert not fused.edges.attention_supported(layout(2, 8), layout(2, 16), 2)
    assert not fused.edges.attention_supported(layout(2, 8), EdgeLayout(Fiber({1: 8}), 1), 2)

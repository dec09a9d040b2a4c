"""The contraction kernels, interpreted on the CPU, against plain torch in float64: values and all gradients."""

from typing import Any

import pytest
import torch

from src.models.se3_transformer import ConvSE3, Fiber, fast
from src.models.se3_transformer.fast.contraction import SINGLE as SINGLE_TILES
from src.models.se3_transformer.fast.contraction import Tiles, aligned, chunks, even, inner_widths, outputs_of
from src.models.se3_transformer.fast.conv import plans_of
from src.models.se3_transformer.fast.frames import EdgeLayout
from src.models.se3_transformer.fast.plan import Plan
from src.models.se3_transformer.radial import Group
from tests.support import kernel_differences
from tests.support.kernel_differences import random
from tests.support.se3_kernels import contraction, plan_of

fused: Any = fast
SINGLE, HALF = 3e-6, 2e-3  # relative to the largest number; float16 inputs, results and gradients round at 5e-4
FOUR = Fiber.create(4, 4)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (Fiber.create(3, 4), (Fiber.create(3, 4),)),
        (FOUR, (FOUR, FOUR)),  # value and key
        (Fiber({0: 6}), (FOUR, Fiber({0: 4}))),  # the first block, whose keys have one degree
        (Fiber.create(2, 3), (Fiber.create(2, 5),)),  # no size is a power of two or fills its tile
        (Fiber.create(2, 4), (Fiber.create(4, 4),)),  # degrees that only the output has
        (Fiber.create(4, 4), (Fiber.create(2, 4),)),  # and those that only the input has
        (Fiber({0: 4, 1: 3, 3: 5}), (Fiber({0: 6, 3: 2}),)),  # one pair of several: other columns get no gradient
        (Fiber.create(3, 4), (Fiber({1: 6}),)),
        (Fiber({1: 6}), (Fiber.create(3, 4),)),
        (Fiber({0: 5}), (Fiber({0: 7}),)),  # scalars to scalars, which have no basis
    ],
)
def test_contraction_equals_the_reference(inputs: Fiber, outputs: tuple[Fiber, ...]) -> None:
    assert contraction(fused, plan_of(inputs, *outputs), 37, 16, torch.float32).largest < SINGLE


@pytest.mark.parametrize("inputs", [FOUR, Fiber({0: 4, 2: 4}), Fiber({0: 4, 1: 3, 3: 5})])
def test_the_gradient_of_radial_weights_sums_the_splits(inputs: Fiber) -> None:
    """Without a sum of its own where all pairs of degrees have equally many weights."""
    plan = Plan(Group(inputs, FOUR), EdgeLayout(inputs, 3), (EdgeLayout(FOUR, inputs.max_degree),))
    hidden, columns = random(90, 16, seed=1).float(), random(90, plan.source.num_features, seed=2).float()
    difference = kernel_differences.difference(
        lambda w: fused.contraction.contract(hidden, columns, fused.contraction.mix(w, plan), plan),
        lambda w: plan.contract(hidden.double(), columns.double(), plan.mix(w)),
        [0.2 * random(plan.group.num_weights, 16, seed=3).float()],
    )
    assert plan.mixes_at_once == (inputs.equal_channels is not None) and difference.largest < SINGLE


@pytest.mark.parametrize(
    "width", [16, 112, *(pytest.param(width, marks=pytest.mark.slow) for width in (48, 80, 96, 128))]
)
def test_outputs_wider_than_a_tile_are_split(width: int) -> None:
    assert contraction(fused, plan_of(Fiber({0: 3}), Fiber({0: width})), 20, 16, torch.float32).largest < SINGLE
    assert contraction(fused, plan_of(Fiber({1: 3}), Fiber({1: width})), 20, 16, torch.float32).largest < SINGLE


@pytest.mark.parametrize("inputs", [4, 8])
def test_a_forward_step_takes_any_power_of_two_inputs(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINGLE_TILES, "forward", Tiles(32, inputs, 4, 2))
    for channels in (inputs, 5):  # as many as a step has, and a remainder
        plan = plan_of(Fiber.create(2, channels), Fiber.create(2, 4))
        assert contraction(fused, plan, 40, 16, torch.float32).largest < SINGLE


@pytest.mark.parametrize("edges", [1, 32, 64, 128, 131, 290])
def test_edges_need_not_fill_a_tile(edges: int) -> None:
    plan = plan_of(Fiber.create(2, 3), Fiber.create(2, 4))
    assert contraction(fused, plan, edges, 16, torch.float32).largest < SINGLE


@pytest.mark.parametrize("mid", [16, 32, 64])
def test_three_widths_of_radial_networks_are_supported(mid: int) -> None:
    plan = plan_of(Fiber.create(2, 4), Fiber.create(2, 4))
    assert contraction(fused, plan, 9, mid, torch.float32).largest < SINGLE


@pytest.mark.parametrize(("channels", "is_aligned"), [(16, True), (8, False)])
def test_columns_in_runs_of_sixteen_are_aligned(channels: int, is_aligned: bool) -> None:
    plan = plan_of(Fiber.create(2, channels), Fiber.create(2, channels), Fiber.create(2, channels))
    assert aligned(plan) is is_aligned and even(plan, 4)
    assert contraction(fused, plan, 10, 16, torch.float32).largest < SINGLE


def test_a_plan_is_not_aligned_if_the_inner_width_is_rounded_up() -> None:
    """112 = 64 + 32 + 16 has three chunks and is padded to 128."""
    plan = plan_of(Fiber({1: 4}), Fiber({1: 112}))
    assert inner_widths(112) == (128, 0) and not aligned(plan)


@pytest.mark.parametrize("inputs", [Fiber.create(3, 4), Fiber({0: 6})])
def test_float16_contraction_sums_in_float32(inputs: Fiber) -> None:
    difference = contraction(fused, plan_of(inputs, FOUR, Fiber({0: 4})), 70, 16, torch.float16)
    assert difference.largest < HALF
    assert difference.gradients[0] < SINGLE  # the hidden layer's, which is never rounded to float16


def test_columns_outside_the_group_are_zero() -> None:
    """In the result and in the gradient."""
    plan = Plan(Group(Fiber({1: 4}), Fiber({1: 4})), EdgeLayout(Fiber.create(3, 4), 2), (EdgeLayout(FOUR, 2),))
    hidden, columns = random(5, 16, seed=0).float(), random(5, plan.source.num_features, seed=1).float()
    columns.requires_grad_()
    weights = sum(plan.group.size((d_in, d_out)) for _, _, d_out, d_in in plan.terms()) * 16
    result = fused.contraction.contract(hidden, columns, random(weights, seed=2).float(), plan)
    result.sum().backward()
    reached = {block.plus for block in plan.blocks} | {block.minus for block in plan.blocks}
    assert columns.grad is not None
    for values, layout in ((result, plan.outputs[0]), (columns.grad, plan.source)):
        for (degree, m), begin in layout.offsets.items():
            assert bool(values[:, begin : begin + 4].any()) == (degree == 1), (degree, m)
    assert len(reached) == 3


def test_columns_of_other_groups_have_no_effect() -> None:
    """Not even if they are NaN and in the same tile as this group's."""
    plan = plan_of(Fiber({0: 3, 1: 5}), Fiber.create(2, 4))
    assert plan.group.inputs == Fiber({0: 3})
    weights = sum(plan.group.size((d_in, d_out)) for _, _, d_out, d_in in plan.terms()) * 16
    hidden, mixed = random(5, 16, seed=0).float().requires_grad_(), random(weights, seed=2).float().requires_grad_()
    columns = torch.full((5, plan.source.num_features), torch.nan)
    columns[:, :3] = 1
    columns.requires_grad_()
    result = fused.contraction.contract(hidden, columns, mixed, plan)
    gradients = torch.autograd.grad(result.sum(), [hidden, columns, mixed])
    assert all(tensor.isfinite().all() for tensor in (result, *gradients))
    assert gradients[1][:, :3].all() and not gradients[1][:, 3:].any()


def test_plans_that_do_not_fit_a_tile_are_not_supported() -> None:
    narrow = plan_of(Fiber.create(2, 4), Fiber.create(2, 64))
    wide = plan_of(Fiber.create(2, 4), Fiber.create(2, 65))
    assert [mid for mid in range(1, 130) if fused.contraction.supported(narrow, mid)] == [16, 32, 64]
    assert not fused.contraction.supported(wide, 32)


def test_outputs_of_unequal_channels_are_not_supported() -> None:
    """Blocks of one m would become several jobs that overwrite each other's gradients of the same columns."""
    inputs, outputs = Fiber.create(2, 4), Fiber({0: 4, 1: 8})
    plan = Plan(Group(inputs, outputs), EdgeLayout(inputs, 1), (EdgeLayout(outputs, 1),))
    assert len(outputs_of(plan)) == 3 and not fused.contraction.supported(plan, 32)


@pytest.mark.parametrize("sharing", ["full", "pairwise"])
def test_every_group_of_the_published_network_is_supported(sharing: str) -> None:
    hidden, attended = Fiber.create(4, 32), Fiber.create(4, 16)
    convolutions = [
        ConvSE3(Fiber({0: 6}), attended + Fiber({0: 16}), 4, 3, split=(attended, Fiber({0: 16})), sharing=sharing),  # type: ignore[arg-type]
        ConvSE3(hidden, attended + attended, 4, 3, split=(attended, attended), sharing=sharing),  # type: ignore[arg-type]
        ConvSE3(hidden, Fiber({0: 128}), 4, 3, sharing=sharing),  # type: ignore[arg-type]
    ]
    assert all(fused.contraction.supported(plan, 32) for conv in convolutions for plan in plans_of(conv))


@pytest.mark.parametrize("width", [1, 16, 17, 80, 96, 100, 128, 200])
def test_chunks_cover_a_width_with_powers_of_two(width: int) -> None:
    end = 0
    for begin, size in chunks(width):
        assert begin == end and size in (16, 32, 64, 128)
        end = begin + size
    assert width <= end < width + 16
    if width <= 128:
        assert width <= sum(inner_widths(width)) and all(size & (size - 1) == 0 for size in inner_widths(width))

"""DLRM's fused kernels in Triton's interpreter; test_gpu.py runs them at full size."""

from typing import Any, cast

import pytest
import torch

from src.batches.clicks import Clicks, EmbeddingTable
from src.gpu import triton_helpers, weight_copies
from src.gpu.weight_copies import WeightCopies
from src.models.dlrm import DLRM, fast
from src.models.dlrm.embeddings import GradientSlots, Rule
from src.models.dlrm.fast.cross import FastCrossNet  # noqa: F401  # imports its kernels
from src.models.dlrm.fast.embeddings import FastEmbeddings
from src.models.dlrm.fast.interaction import FastDot  # noqa: F401
from src.models.dlrm.fast.mlp import FastMLP  # noqa: F401
from tests.support.dlrm_kernels import (
    cross_layers,
    dot,
    dot_of_rows,
    layers,
    narrow_look_up,
    overflow_flags,
    update_of_parts,
    updated,
)
from tests.support.kernel_differences import random

fused: Any = fast
DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]
ONE_HOT = [
    EmbeddingTable("cat_0.bin", 200),
    EmbeddingTable("cat_1.bin", 3),
    EmbeddingTable("cat_2.bin", 1),
    EmbeddingTable("cat_3.bin", 5000),
]
MULTI_HOT = [EmbeddingTable("cat_0.bin", 200, 3), EmbeddingTable("cat_1.bin", 3), EmbeddingTable("cat_2.bin", 40, 20)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("samples", "tables", "dim"), [(5, 26, 32), (3, 2, 8), (3, 15, 8), (4, 17, 12), (2, 40, 16)])
def test_dot_agrees_with_float64(samples: int, tables: int, dim: int, dtype: torch.dtype, tolerance: float) -> None:
    difference = dot(fused, samples, tables, dim, dtype)
    assert difference.largest < tolerance, difference


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies with numpy
@pytest.mark.parametrize(("samples", "dim", "apart"), [(5, 32, False), (3, 12, True)])
@pytest.mark.parametrize(
    ("rows", "dtype"), [(torch.float32,) * 2, (torch.float32, torch.float16), (torch.float16,) * 2]
)
def test_dot_of_the_tables_rows_is_that_of_a_lookup(
    samples: int, dim: int, apart: bool, rows: torch.dtype, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit; tables are adjacent or apart, and the samples more or fewer than their rows."""
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    actual, expected = dot_of_rows(fused, ONE_HOT, samples, dim, rows, dtype, apart)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("gathered", [True, False])
def test_a_network_reads_rows_where_it_can(gathered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    monkeypatch.setattr(fused.interaction, "GATHERED", gathered)
    calls = []
    look_up = fused.tables.look_up
    monkeypatch.setattr(fused.tables, "look_up", lambda *arguments: calls.append(1) or look_up(*arguments))
    for tables, expected in (ONE_HOT, not gathered), (MULTI_HOT, True):
        torch.manual_seed(0)
        network = fast.accelerate(DLRM(tables, 3, 8, [8], [8]))
        ids = torch.cat([torch.zeros(5 * table.hotness, dtype=torch.int32) for table in tables])
        calls.clear()
        network(Clicks(torch.zeros(5), torch.ones(5, 3), ids)).sum().backward()
        assert bool(calls) == expected
        (part,) = cast(FastEmbeddings, network.embeddings).pending
        assert part.order is not None and part.ids is ids and part.gradient.any()


def test_frozen_tables_get_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    embeddings = FastEmbeddings(ONE_HOT, 8).requires_grad_(False)
    dense, ids = torch.ones(5, 8, requires_grad=True), torch.zeros(20, dtype=torch.int32)
    fused.interaction.gathered_features(dense, embeddings, ids).sum().backward()
    assert dense.grad is not None and not embeddings.pending


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies with numpy
@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 65504.0])
def test_dot_sets_the_overflow_flag(wrong: float) -> None:
    """Also for a gradient that overflows only as it is stored: 65504 is the largest number in half precision."""
    assert overflow_flags(fused, wrong) == (0, 1)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("samples", "tables", "dim", "layers", "rank"), [(5, 3, 8, 3, 8), (300, 2, 12, 1, 4), (17, 26, 16, 2, 24)]
)
def test_cross_layers_agree_with_float64(
    samples: int, tables: int, dim: int, layers: int, rank: int, dtype: torch.dtype, tolerance: float
) -> None:
    difference = cross_layers(fused, samples, tables, dim, layers, rank, dtype)
    assert difference.output < tolerance and max(difference.gradients) < 4 * tolerance, difference


@pytest.mark.parametrize("kind", ["dot", "cross"])
def test_gradients_of_vectors_go_to_their_slots(kind: str) -> None:
    """As where they lie on other GPUs: in another order than the tables', and with room between them."""
    parameters = [] if kind == "dot" else [random(*shape, seed=7).float() for shape in ((4, 32), (32, 4), (32,))]
    dense, vectors = random(5, 8, seed=1).float(), random(5, 3, 8, seed=2).float()
    slots = GradientSlots(torch.zeros(3 * 64), torch.tensor([128, 0, 64]))
    gradients = []
    for given in (None, slots):
        sparse = vectors.clone().requires_grad_()
        if kind == "dot":
            features = fused.interaction.dot_features(dense, sparse, torch.zeros(()), given)
        else:
            features = fused.cross.cross_net(dense, sparse, torch.zeros(()), given, *parameters)
        features.square().sum().backward()
        gradients.append(sparse.grad)
    direct, through_slots = gradients
    assert direct is not None and through_slots is not None and not through_slots.any()
    for table, offset in enumerate((128, 0, 64)):
        assert torch.equal(slots.origin[offset : offset + 40].view(5, 8), direct[:, table])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies with numpy
@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 65504.0])
def test_cross_layers_set_the_overflow_flag(wrong: float) -> None:
    """Also for a gradient that overflows only as it is stored: 65504 is the largest number in half precision."""
    dense, sparse = torch.ones(3, 8).half(), torch.ones(3, 2, 8).half().requires_grad_()
    parameters = [torch.ones(4, 24), torch.ones(24, 4), torch.zeros(24)]
    overflow = torch.zeros(())
    features = fused.cross.cross_net(dense, sparse, overflow, None, *parameters)
    gradient = torch.zeros_like(features)
    features.backward(gradient, retain_graph=True)
    assert float(overflow) == 0
    gradient[2, 8 + 2] = wrong
    features.backward(gradient)
    assert float(overflow) == 1


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("widths", "logit"), [((13, 24, 8), False), ((480, 32, 16), True), ((8, 8), False)])
def test_mlp_agrees_with_float64(widths: tuple[int, ...], logit: bool, dtype: torch.dtype, tolerance: float) -> None:
    """Most errors of gradients come from values near 0 that pass a ReLU in one dtype and not in the other."""
    difference = layers(fused, widths, logit, 300, dtype)
    assert difference.output < tolerance and max(difference.gradients) < 10 * tolerance, difference


@pytest.mark.parametrize("slots", [2, 528])
@pytest.mark.parametrize(
    ("widths", "dtype", "is_data", "is_fused"),
    [
        ((13, 24, 8), torch.float16, True, True),
        ((16, 136, 8), torch.float16, True, True),
        ((31, 8, 8), torch.float16, True, True),
        ((32, 24, 8), torch.float16, True, False),
        ((13, 24, 8), torch.float16, False, False),
        ((13, 24, 8), torch.float32, True, False),
    ],
)
def test_gradients_of_a_first_layer_agree_with_float64(
    widths: tuple[int, ...],
    dtype: torch.dtype,
    is_data: bool,
    is_fused: bool,
    slots: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In programs of one block of rows or of several; from one kernel where the inputs are few and data."""
    launched: list[Any] = []
    monkeypatch.setattr(fused.mlp, "SLOTS", slots)
    launch = fused.mlp.launch
    monkeypatch.setattr(fused.mlp, "launch", lambda kernel, *a, **b: launched.append(kernel) or launch(kernel, *a, **b))
    difference = layers(fused, widths, False, 300, dtype, is_data=is_data)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    assert difference.output < tolerance and max(difference.gradients) < 10 * tolerance, difference
    assert (fused.mlp.kernels.first_layer_backward in launched) == is_fused


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter multiplies with numpy
def test_gradients_of_a_first_layer_overflow_where_its_relu_is_positive() -> None:
    grad, activation, x = torch.zeros(40, 8).half(), torch.zeros(40, 8).half(), torch.ones(40, 8).half()
    grad[35, 3] = torch.inf
    for is_positive in (False, True):
        activation[35, 3] = is_positive
        of_bias, of_weight = fused.mlp.first_layer_gradients(grad, activation, x, 5)
        assert (of_bias.shape, of_weight.shape) == ((8,), (8, 5))
        for gradient in (of_bias, of_weight):
            overflowed = (~gradient.isfinite()).view(8, -1)
            assert overflowed[3].all() == is_positive and overflowed.any() == is_positive


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
def test_several_lookups_are_updated_as_one(
    tables: list[EmbeddingTable], optimizer: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    whole, parts, rest = update_of_parts(tables, optimizer)
    for table, one, several, unfused in zip(tables, whole, parts, rest, strict=True):
        torch.testing.assert_close(several, one, rtol=1e-6, atol=1e-7, msg=table.name)
        torch.testing.assert_close(unfused, one, rtol=1e-5, atol=1e-6, msg=table.name)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
@pytest.mark.parametrize(("batch", "dim", "apart"), [(70, 8, False), (70, 8, True), (3, 20, False)])
def test_row_updates_agree_with_float64(
    tables: list[EmbeddingTable], batch: int, dim: int, apart: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Sums are exact to float32 in every dtype; only the vectors are rounded."""
    update = updated(fused, tables, batch, dim, dtype, apart=apart)
    assert update.vectors < tolerance, update
    assert update.weights < 2e-6 and update.unchanged, update


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
@pytest.mark.parametrize(("dim", "apart"), [(12, False), (144, True)])
def test_row_updates_of_half_precision(tables: list[EmbeddingTable], dim: int, apart: bool, optimizer: Rule) -> None:
    """With runs of several chunks."""
    first, second = (updated(fused, tables, 75, dim, torch.float16, optimizer=optimizer, apart=apart) for _ in range(2))
    assert first.weights < (2e-6 if optimizer == "sgd" else 1e-5) and first.unchanged, first
    for one, other in zip(first.embeddings.state_dict().values(), second.embeddings.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
def test_rows_of_narrow_tables_are_summed_in_float32(
    tables: list[EmbeddingTable], dtype: torch.dtype, tolerance: float
) -> None:
    assert narrow_look_up(fused, tables, 70, 8, dtype) <= (0 if tables == ONE_HOT else tolerance)


@pytest.mark.slow
def test_a_row_that_all_samples_use_is_updated_in_several_rounds() -> None:
    """2,100 equal ids are 44 chunks; their 88 partial sums are 6 chunks, then one."""
    update = updated(fused, [EmbeddingTable("cat_0.bin", 1), EmbeddingTable("cat_1.bin", 2)], 2100, 8, torch.float32)
    assert update.weights < 2e-6, update


@pytest.mark.parametrize(("loss_scale", "apart"), [(None, False), (1024.0, False), (None, True)])
def test_adagrad_updates_agree_with_float64(loss_scale: float | None, apart: bool) -> None:
    update = updated(fused, ONE_HOT, 70, 8, torch.float32, optimizer="adagrad", loss_scale=loss_scale, apart=apart)
    assert update.weights < 1e-5 and update.unchanged, update


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_an_overflow_skips_the_update(optimizer: str) -> None:
    tables = ONE_HOT[:2]
    update = updated(fused, tables, 70, 8, torch.float32, optimizer=optimizer, found_inf=1.0)  # type: ignore[arg-type]
    assert update.weights == 0
    assert all(bool((squares == 0).all()) for squares in update.embeddings.accumulators.buffers())


def test_row_order_is_stable() -> None:
    """Equal ids keep the order of the samples, so that sums are deterministic."""
    ids = torch.tensor([5, 1, 5, 0, 2, 0, 2, 2], dtype=torch.int32)
    order = fused.tables.row_order((EmbeddingTable("a", 6), EmbeddingTable("b", 3)), ids, 4)
    assert order.keys.tolist() == [0, 1, 5, 5, 6, 8, 8, 8]
    assert order.gradients.tolist() == [3, 1, 0, 2, 5, 4, 6, 7]


def test_kernels_do_not_support_sizes_beyond_their_limits() -> None:
    assert not fused.interaction.supported(200, 128)
    assert not fused.tables.supported(1024)
    assert not fused.mlp.supported((13, 10), False)
    assert not fused.mlp.supported((13, 2048, 1), True)


def test_an_mlp_reads_kept_copies_of_its_weights() -> None:
    x, *parameters = (random(*shape, seed=1).float() for shape in ((3, 8), (16, 8), (16,), (8, 16), (8,)))
    with WeightCopies().active():
        before = fused.mlp.mlp(x.half(), False, *parameters)
        kept = weight_copies.kept()
        assert kept.keys() == {parameter.data_ptr() for parameter in parameters}
        for copy in kept.values():
            copy.zero_()
        assert before.any() and not fused.mlp.mlp(x.half(), False, *parameters).any()

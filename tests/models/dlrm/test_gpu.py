"""DLRM's kernels on a GPU against plain torch in float64, and whole training steps in a CUDA graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from src.batches.clicks import EmbeddingTable
from src.models.dlrm import fast
from src.models.dlrm.embeddings import Rule
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
from tests.support.kernel_differences import error, random
from tests.support.tiny_dlrm import tiny_dlrm
from tests.support.trained import Trained, trained

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = "cuda"
ADAGRAD_LR = "hp.lr=5e-3"  # at 0.05 the loss jumps, on a CPU too
PRECISIONS = [
    ("single", torch.float32, "highest", 1e-5),
    ("TF32", torch.float32, "high", 3e-3),
    ("half", torch.float16, "highest", 3e-3),
    ("bfloat16", torch.bfloat16, "highest", 2e-2),
]
ONE_HOT = [
    EmbeddingTable("cat_0.bin", 50_000),
    EmbeddingTable("cat_1.bin", 3),
    EmbeddingTable("cat_2.bin", 1),
    EmbeddingTable("cat_3.bin", 5000),
]
MULTI_HOT = [EmbeddingTable("cat_0.bin", 200, 3), EmbeddingTable("cat_1.bin", 3), EmbeddingTable("cat_2.bin", 4000, 20)]


@pytest.fixture(params=PRECISIONS, ids=lambda precision: precision[0])
def precision(request: pytest.FixtureRequest) -> Iterator[tuple[torch.dtype, float]]:
    _, dtype, matmul, tolerance = request.param
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    yield dtype, tolerance
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def fused() -> Any:
    return fast


@pytest.mark.parametrize(
    ("samples", "tables", "dim"), [(5001, 26, 128), (300, 2, 8), (300, 15, 8), (301, 17, 12), (70, 40, 64)]
)
def test_dot_agrees_with_float64(
    samples: int, tables: int, dim: int, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    difference = dot(fused, samples, tables, dim, dtype, CUDA)
    assert difference.largest < tolerance, difference


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 65504.0])
def test_dot_sets_the_overflow_flag(wrong: float, fused: Any) -> None:
    assert overflow_flags(fused, wrong, CUDA) == (0, 1)


@pytest.mark.parametrize(("samples", "dim", "apart"), [(5001, 128, False), (301, 12, True)])
@pytest.mark.parametrize(
    ("rows", "dtype"), [(torch.float32,) * 2, (torch.float32, torch.float16), (torch.float16,) * 2]
)
def test_dot_of_the_tables_rows_is_that_of_a_lookup(
    samples: int, dim: int, apart: bool, rows: torch.dtype, dtype: torch.dtype, fused: Any
) -> None:
    for one, other in zip(*dot_of_rows(fused, ONE_HOT, samples, dim, rows, dtype, apart, CUDA), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("samples", "tables", "dim", "rank"), [(5001, 26, 128, 512), (300, 2, 8, 16), (301, 17, 12, 24)]
)
def test_cross_layers_agree_with_float64(
    samples: int, tables: int, dim: int, rank: int, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    difference = cross_layers(fused, samples, tables, dim, 3, rank, dtype, CUDA)
    assert difference.output < 4 * tolerance and max(difference.gradients) < 16 * tolerance, difference


@pytest.mark.parametrize(
    ("widths", "logit"), [((13, 512, 256, 128), False), ((480, 1024, 1024, 512, 256), True), ((8, 8), False)]
)
def test_mlp_agrees_with_float64(
    widths: tuple[int, ...], logit: bool, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    """Most errors of gradients come from values near 0 that pass a ReLU in one dtype and not in the other."""
    dtype, tolerance = precision
    difference = layers(fused, widths, logit, 5000, dtype, CUDA)
    assert difference.output < 2 * tolerance, difference
    assert max(difference.gradients[1:]) < (100 if dtype == torch.float32 else 20) * tolerance, difference


@pytest.mark.parametrize("widths", [(13, 512, 256, 128), (31, 520, 8), (32, 64, 8)])
def test_gradients_of_a_first_layer_of_data_agree_with_float64(
    widths: tuple[int, ...], precision: tuple[torch.dtype, float], fused: Any
) -> None:
    """In half precision those of up to 31 inputs come from one kernel."""
    dtype, tolerance = precision
    difference = layers(fused, widths, False, 5000, dtype, CUDA, is_data=True)
    assert difference.output < 2 * tolerance, difference
    assert max(difference.gradients) < (100 if dtype == torch.float32 else 20) * tolerance, difference


@pytest.mark.parametrize("rows", [1, 100, 65_536, 262_147])
@pytest.mark.parametrize(("columns", "inputs"), [(512, 13), (520, 31), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_first_layers_kernel_agrees_with_its_other_way(
    dtype: torch.dtype, columns: int, inputs: int, rows: int, fused: Any
) -> None:
    """Products are exact in float32 either way; sums differ by the rounding of tensor cores."""
    mlp = fused.mlp
    grad, activation = (random(rows, columns, seed=seed, device=CUDA).to(dtype) for seed in (1, 2))
    x = F.pad(random(rows, inputs, seed=3, device=CUDA).to(dtype), (0, -inputs % mlp.ALIGNED))
    actual = mlp.first_layer_gradients(grad, activation, x, inputs)
    assert all(map(torch.equal, actual, mlp.first_layer_gradients(grad, activation, x, inputs)))
    masked, of_bias = mlp.relu_backward(grad, activation)
    assert error(actual[0], of_bias) < 5e-5
    assert error(actual[1], masked.double().T @ x[:, :inputs].double()) < 5e-5
    assert error(actual[1], mlp.product(masked.t(), x)[:, :inputs]) < 5e-5


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
@pytest.mark.parametrize(("batch", "dim"), [(20_000, 128), (999, 20), (999, 8)])
def test_row_updates_agree_with_float64(
    tables: list[EmbeddingTable], batch: int, dim: int, optimizer: Any, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    update = updated(fused, tables, batch, dim, dtype, CUDA, optimizer, loss_scale=4.0, apart=dim == 20)
    assert update.vectors < tolerance, update
    assert update.unchanged, update
    # Adagrad divides by the size of the sum, also where its terms cancel.
    assert update.weights < (1e-5 if optimizer == "sgd" else 1e-3), update.weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
def test_rows_of_narrow_tables_are_summed_in_float32(
    tables: list[EmbeddingTable], dtype: torch.dtype, tolerance: float, fused: Any
) -> None:
    assert narrow_look_up(fused, tables, 5000, 128, dtype, CUDA) <= (0 if tables == ONE_HOT else tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tables_of_a_prediction_in_half_precision_take_the_kernel_too(dtype: torch.dtype) -> None:
    embeddings = FastEmbeddings(ONE_HOT, 128).to(CUDA, dtype)
    assert embeddings.takes_tables()
    ids = torch.zeros(len(ONE_HOT) * 8, dtype=torch.int32, device=CUDA)
    assert (embeddings.row_order(ids, 8) is not None) == (dtype == torch.float32)  # the update is of float32


@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
def test_row_updates_are_deterministic(tables: list[EmbeddingTable], fused: Any) -> None:
    first, second = (updated(fused, tables, 20_000, 128, torch.float16, CUDA).embeddings for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.weights, second.weights, strict=True))


def test_lookup_takes_more_blocks_than_a_grids_second_axis(fused: Any) -> None:
    batch, table = 65_536 * 16 + 5, EmbeddingTable("cat_0.bin", 7)
    weight, ids = torch.randn(7, 4, device=CUDA), torch.randint(7, (batch,), dtype=torch.int32, device=CUDA)
    assert torch.equal(fused.tables.look_up([weight], (table,), ids, batch, torch.float32)[:, 0], weight[ids])


def run(home: Path, *overrides: str, model: str = "dlrm") -> Trained:
    """Trains 12 steps."""
    return trained(tiny_dlrm(home, "hardware=auto", "fit.max_steps=12", "measure.window=1", *overrides, model=model))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("tables", [ONE_HOT, MULTI_HOT])
def test_several_lookups_are_updated_as_one(tables: list[EmbeddingTable], optimizer: Rule) -> None:
    for one, several, unfused in zip(*update_of_parts(tables, optimizer, CUDA), strict=True):
        torch.testing.assert_close(several, one, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(unfused, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["dlrm", "dlrm_dcnv2"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision_name", ["amp", "tf32", "bf16"])
def test_a_cuda_graph_gives_the_losses_and_weights_of_eager_steps(
    tmp_path: Path, precision_name: str, accumulate: int, model: str
) -> None:
    """The learning rate rises meanwhile; a captured step must follow it."""
    options = f"precision={precision_name}", f"hp.accumulate={accumulate}", *((ADAGRAD_LR,) * (model != "dlrm"))
    runs = [run(tmp_path / g, f"execution.graph={g}", *options, model=model) for g in ("on", "off")]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-4)
    assert runs[0].losses[-1] < runs[0].losses[0]
    for name, weight in runs[0].after.items():
        torch.testing.assert_close(weight, runs[1].after[name], rtol=1e-3, atol=1e-5)


def test_training_with_kernels_agrees_with_plain_torch(tmp_path: Path) -> None:
    kernels = run(tmp_path / "kernels", "precision=fp32").losses
    plain = run(tmp_path / "plain", "precision=fp32", "execution.kernels=off", "execution.graph=off").losses
    assert kernels == pytest.approx(plain, rel=1e-5)

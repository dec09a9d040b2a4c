"""DistilBERT's kernels on a GPU against plain torch in float64, and whole training steps in CUDA graphs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from src.gpu import deferred_rows
from src.models.distilbert import Sizes, fast
from src.models.distilbert.fast.embedding import FastEmbeddings  # noqa: F401  # imports the kernels
from src.models.distilbert.fast.layer import Layer  # noqa: F401  # these too
from tests.support.distilbert_kernels import (
    attention,
    embedding,
    gelu,
    head,
    layer,
    norm,
    sentences,
    sum_by_id,
    sum_partials,
)
from tests.support.tiny_distilbert import tiny_distilbert
from tests.support.trained import Trained, trained

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = "cuda"
PRECISIONS = [
    ("single", torch.float32, "highest", 2e-5),
    ("TF32", torch.float32, "high", 3e-3),
    ("half", torch.float16, "highest", 5e-3),
    ("bfloat16", torch.bfloat16, "highest", 3e-2),
]
SHORT, LONG = [13, 66, 3, 128, 5, 17, 64], [512, 130, 3, 257]
BASE, MINI = Sizes(), Sizes(dim=384, n_heads=12, hidden_dim=1536)


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


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "dim"), [(5001, 768), (96, 384), (1000, 24)])
def test_norm_agrees_with_float64(
    rows: int, dim: int, dropout: float, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    difference, of_bias = norm(fused, rows, dim, dtype, CUDA, dropout)
    assert difference.largest < tolerance and of_bias < tolerance, (difference, of_bias)


@pytest.mark.parametrize(("rows", "width"), [(5001, 3072), (96, 1536), (1000, 40)])
def test_gelu_agrees_with_float64(rows: int, width: int, precision: tuple[torch.dtype, float], fused: Any) -> None:
    dtype, tolerance = precision
    difference, of_bias = gelu(fused, rows, width, dtype, CUDA)
    assert difference.largest < tolerance and of_bias < tolerance, (difference, of_bias)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("padded_to", [70, None])
def test_embedding_agrees_with_float64(
    padded_to: int | None, dropout: float, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    difference = embedding(fused, sentences([13, 66, 3, 5] * 20, padded_to, 30, CUDA), 768, dtype, CUDA, dropout)
    assert difference.largest < tolerance, difference


@pytest.mark.parametrize(("tokens", "count", "padding"), [(49152, 30522, 0), (1500, 30522, 0), (1500, 512, -1)])
def test_sum_by_id_agrees_with_float64(tokens: int, count: int, padding: int, fused: Any) -> None:
    assert sum_by_id(fused, tokens, count, 768, padding, CUDA) < 1e-5


@pytest.mark.parametrize("shapes", [[(528, 7680), (768, 2304)], [(1, 100), (5000, 33)]])
def test_sums_of_partials_agree_with_float64(shapes: list[tuple[int, int]], fused: Any) -> None:
    assert sum_partials(fused, shapes, CUDA) < 1e-5


@pytest.mark.parametrize(("dropout", "first_only"), [(0.0, False), (0.1, False), (0.1, True)])
@pytest.mark.parametrize("head", [64, 32])
@pytest.mark.parametrize(
    ("lengths", "padded_to", "padding"), [(SHORT, None, 70), (LONG, None, 1000), (SHORT, 512, 0), (LONG, 512, 0)]
)
def test_attention_agrees_with_float64(
    lengths: list[int], padded_to: int | None, padding: int, head: int, dropout: float, first_only: bool,
    precision: tuple[torch.dtype, float], fused: Any,
) -> None:  # fmt: skip
    dtype, tolerance = precision
    batch = sentences(lengths, padded_to, padding, CUDA)
    difference = attention(fused, batch, 12, head, dtype, CUDA, dropout, first_only)
    assert difference.largest < tolerance, difference


@pytest.mark.parametrize("sizes", [BASE, MINI], ids=["base", "mini"])
@pytest.mark.parametrize(("padded_to", "first_only"), [(200, False), (None, False), (None, True)])
def test_layer_is_as_accurate_as_plain_torch(
    sizes: Sizes, padded_to: int | None, first_only: bool, precision: tuple[torch.dtype, float], fused: Any
) -> None:  # fmt: skip
    """Compared with float64, in the same precision.

    The random weights are so large that attention is nearly one-hot, which amplifies rounding errors.
    """
    dtype, tolerance = precision
    batch = sentences(SHORT * 3, padded_to, 30, CUDA)
    errors = layer(fused, batch, sizes, dtype, CUDA, first_only)
    plain = layer(None, batch, sizes, dtype, CUDA, first_only)
    assert all(errors[name] < 3 * plain[name] + tolerance for name in errors), (errors, plain)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("rows", "dim", "labels"), [(96, 768, 2), (1, 768, 16), (1000, 384, 5), (97, 24, 1)])
def test_head_agrees_with_float64(
    rows: int, dim: int, labels: int, dropout: float, precision: tuple[torch.dtype, float], fused: Any
) -> None:
    dtype, tolerance = precision
    difference = head(fused, rows, dim, labels, dtype, CUDA, dropout)
    assert difference.largest < tolerance, difference


def run(home: Path, padding: str, *overrides: str) -> Trained:
    """Trains 32 steps."""
    common = ("hardware=auto", "fit.max_epochs=8", "measure.window=1")
    return trained(tiny_distilbert(home, *common, *overrides, padding=padding))


@pytest.mark.parametrize("padding", ["packed", "max_length"])
@pytest.mark.parametrize("precision_name", ["amp", "tf32", "bf16"])
def test_a_cuda_graph_gives_the_losses_of_eager_steps(tmp_path: Path, precision_name: str, padding: str) -> None:
    """With dropout: graph and eager steps draw seeds from one generator. The last weights are equal as well."""
    runs = [
        run(tmp_path / graph, padding, f"precision={precision_name}", f"execution.graph={graph}")
        for graph in ("on", "off")
    ]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-3)
    for name, weight in runs[0].after.items():
        if not name.endswith("k_lin.bias"):  # its gradient is only rounding, which Adam normalises
            torch.testing.assert_close(weight, runs[1].after[name], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("padding", ["packed", "max_length"])
def test_training_with_kernels_agrees_with_plain_torch(tmp_path: Path, padding: str) -> None:
    overrides = "precision=fp32", "model.task.network.dropout=0", "model.task.network.attention_dropout=0"
    head = "model.task.network.head_dropout=0"
    kernels = run(tmp_path / "kernels", padding, *overrides, head).losses
    plain = run(tmp_path / "plain", padding, *overrides, head, "execution.kernels=off", "execution.graph=off").losses
    assert kernels == pytest.approx(plain, rel=1e-4)
    assert kernels[-1] < kernels[0]


@pytest.mark.parametrize("padding", ["packed", "max_length"])
@pytest.mark.parametrize("precision_name", ["tf32", "bf16"])
def test_deferred_rows_change_no_run(
    tmp_path: Path, precision_name: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows catch up for evaluations every 4 steps, and once in between."""
    monkeypatch.setattr(deferred_rows, "RING", 3)
    runs = [
        run(tmp_path / kernels[-4:], padding, f"precision={precision_name}", f"execution.kernels=[{kernels}]")
        for kernels in ("embedding,layer,adam,deferred_rows", "embedding,layer,adam")
    ]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-4)
    name = "distilbert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(runs[0].after[name], runs[1].after[name], rtol=1e-3, atol=1e-4)

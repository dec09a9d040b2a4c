"""The kernels of DistilBERT's classification head in Triton's interpreter; test_gpu.py runs them at full size."""

from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.models.distilbert import DistilBert, Sizes, fast
from tests.support.distilbert_kernels import head, mask_of_head, seeded
from tests.support.hugging_face import SIZES

fused: Any = fast


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float16, 3e-3)])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(("rows", "dim", "labels"), [(1, 24, 2), (97, 40, 5), (9, 200, 1)])
def test_head_agrees_with_float64(
    rows: int, dim: int, labels: int, dropout: float, dtype: torch.dtype, tolerance: float
) -> None:
    difference = head(fused, rows, dim, labels, dtype, dropout=dropout)
    assert difference.largest < tolerance, difference


def test_gradients_of_the_heads_parameters_are_float32_sums() -> None:
    """Of half-precision products: those of 40 rows exceed float16's largest number."""
    parameters = [torch.eye(24), torch.ones(24), torch.ones(2, 24), torch.ones(2)]
    parameters = [tensor.requires_grad_() for tensor in parameters]
    logits = fused.head.head(torch.ones(40, 24).half(), fused.rows.Drop(), *parameters)
    gradients = torch.autograd.grad(logits, parameters, torch.full_like(logits, 4000))
    for gradient, value in zip(gradients, (40 * 8000, 40 * 8000, 40 * 4000 * 2, 40 * 4000), strict=True):
        assert torch.equal(gradient, torch.full_like(gradient, value))


def test_the_head_drops_its_share() -> None:
    """Within 5 standard deviations; the others are larger by as much."""
    mask, dropout = mask_of_head(fused, 30, 48, seeded(fused, 0.25, "cpu"), "cpu"), 0.25
    deviation = (dropout * (1 - dropout) / mask.numel()) ** 0.5
    assert float((mask == 0).double().mean()) == pytest.approx(dropout, abs=5 * deviation)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - dropout)])


@pytest.mark.parametrize("num_labels", [16, 17])
def test_a_head_of_more_labels_than_the_kernels_unroll_is_plain(
    num_labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    calls: list[Tensor] = []
    by_kernels = fused.head.logits
    monkeypatch.setattr(fused.head, "logits", lambda *inputs: calls.append(by_kernels(*inputs)) or calls[-1])
    network, pooled = DistilBert(Sizes(**{**vars(SIZES), "num_labels": num_labels})).eval(), torch.ones(3, SIZES.dim)
    plain = network.head(pooled)
    torch.testing.assert_close(fast.accelerate(network).head(pooled), plain)
    assert len(calls) == (num_labels == 16)

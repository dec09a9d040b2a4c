"""Products by other algorithms of cuBLAS have the bits of torch's, eager and in CUDA graphs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import cublaslt, tuned_products
from src.gpu.cuda_graphs import Graphed
from src.gpu.tuned_products import by_torch, mm

pytestmark = pytest.mark.gpu
FORMS = ["bias", "relu", "input gradient", "added", "weight gradient"]


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuned_products, "_chosen", {})
    monkeypatch.setattr(tuned_products, "_on_file", {})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def arguments(form: str, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Returns a product's factors, bias, whether with ReLU, where to, whether to add, and the dtype."""
    generator = torch.Generator("cuda").manual_seed(rows)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    x, grad, weight, bias = drawn(rows, inputs), drawn(rows, outputs), drawn(outputs, inputs), drawn(outputs)
    return {
        "bias": (x, weight.t(), bias, False, None, False, None),
        "relu": (x, weight.t(), bias, True, None, False, None),
        "input gradient": (grad, weight, None, False, None, False, None),
        "added": (grad, weight, None, False, drawn(rows, inputs), True, None),
        "weight gradient": (grad.t(), x, None, False, None, False, torch.float32),
    }[form]


def product(a: Tensor, b: Tensor, bias: Any, relu: bool, out: Any, adds: bool, dtype: Any) -> Tensor:
    return mm(a, b, bias=bias, relu=relu, out=out, adds=adds, dtype=dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1312, 3072, 768), (16384, 512, 256)])
def test_a_searched_product_is_torchs_in_each_bit(form: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    results = []
    for searches in (True, False):  # the first call searches, the second one takes what was chosen
        a, b, bias, relu, out, adds, wide = arguments(form, *shape, dtype)
        expected = by_torch(a, b, bias, relu, None if out is None else out.clone(), adds, wide)
        with tuned_products.searching(searches):
            results.append(product(a, b, bias, relu, out, adds, wide))
        assert torch.equal(results[-1], expected)
    (kind,) = tuned_products._chosen
    file = json.loads(tuned_products.file().read_text())
    assert list(file) == [tuned_products.name_of(kind)]


@pytest.mark.parametrize("form", FORMS)
def test_all_algorithms_that_are_taken_are_right(form: str) -> None:
    """Within rounding of float64's, of each algorithm whose bits are torch's; one is at least."""
    a, b, bias, relu, out, adds, wide = arguments(form, 2048, 1024, 768, torch.bfloat16)
    exact = a.double() @ b.double() + (0 if bias is None else bias.double()) + (out.double() if adds else 0)
    exact = exact.relu() if relu else exact
    expected = by_torch(a, b, bias, relu, None if out is None else out.clone(), adds, wide)
    kind = tuned_products.kind_of(a, b, bias, relu, out, adds, wide)
    assert kind is not None
    same = 0
    for algorithm in cublaslt.algorithms(kind, bias):
        trial = torch.zeros_like(expected) if out is None else out.clone()
        algorithm.run(a, b, trial, bias)
        same += torch.equal(trial, expected)
    assert same > 0
    error = (expected.double() - exact).abs().max() / exact.abs().max()
    assert error < (1e-5 if wide is not None else 2**-7)  # torch's own sums in two parts, each in half precision


@pytest.mark.parametrize("recorded", ["torch's", "one that is not there", "nothing"])
def test_what_a_file_says_is_checked(recorded: str) -> None:
    a, b, *rest = arguments("bias", 2048, 1024, 768, torch.float16)
    kind = tuned_products.kind_of(a, b, *rest)
    assert kind is not None
    index = {"torch's": tuned_products.TORCHS, "one that is not there": 99}.get(recorded)
    if index is not None:
        tuned_products.file().parent.mkdir(parents=True)
        tuned_products.file().write_text(json.dumps({tuned_products.name_of(kind): index}))
    with tuned_products.searching():
        assert torch.equal(product(a, b, *rest), by_torch(a, b, *rest))
    if recorded == "torch's":
        assert tuned_products._chosen[kind] is None


def test_a_graph_searches_in_the_last_step_before_its_capture() -> None:
    a, b, *rest = arguments("bias", 2048, 1024, 768, torch.float16)
    run, counts = Graphed(lambda x: product(x, b, *rest), graph=True, warmup=2), list[int]()
    for _ in range(4):
        assert torch.equal(run(a), by_torch(a, b, *rest))
        counts.append(len(tuned_products._chosen))
    assert counts == [0, 1, 1, 1]


def test_what_autograd_records_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, *rest = arguments("bias", 2048, 1024, 768, torch.float16)
    with tuned_products.searching():
        product(a.requires_grad_(), b, *rest).sum().backward()
    assert a.grad is not None and not tuned_products._chosen

"""cuBLAS is loaded while the network is made, and leaves nothing behind."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from src.config.complete import complete
from src.launch import devices
from src.launch.devices import begin_products, multiply
from tests.support.tiny_run import tiny_config


@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [("fp32", [torch.float32]), ("amp", [torch.float32, torch.float16]), ("bf16", [torch.float32, torch.bfloat16])],
)
def test_a_gpu_multiplies_in_the_types_of_the_precision(
    precision: str, dtypes: list[torch.dtype], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied: list[Any] = []
    monkeypatch.setenv("REPRISE_PLAIN_START", "")
    monkeypatch.setattr(devices, "multiply", lambda *arguments: multiplied.append(arguments))
    config = complete(tiny_config(tmp_path, f"precision={precision}"))
    assert begin_products(config) is None  # no GPU is used
    on_gpu = replace(config, hardware=replace(config.hardware, accelerator="cuda"))
    assert begin_products(replace(on_gpu, trainer=replace(config.trainer, devices=2))) is None
    thread = begin_products(on_gpu)
    assert thread is not None
    thread.join()
    assert multiplied == [(torch.device("cuda", 0), dtypes)]
    monkeypatch.setenv("REPRISE_PLAIN_START", "1")
    assert begin_products(on_gpu) is None


def test_products_draw_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[torch.Tensor] = []
    mm = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: products.append(mm(a, b)))
    state = torch.get_rng_state()
    multiply(torch.device("cpu"), [torch.float32, torch.float16])
    assert [product.dtype for product in products] == [torch.float32, torch.float16]
    assert torch.equal(torch.get_rng_state(), state)


def test_products_that_fail_are_left_to_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "mm", failing)
    multiply(torch.device("cpu"), [torch.float32])


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
def test_a_thread_s_products_keep_no_memory_of_the_gpu() -> None:
    state, before = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    thread = threading.Thread(target=multiply, args=(torch.device("cuda", 0), [torch.float32, torch.bfloat16]))
    thread.start()
    thread.join()
    assert torch.cuda.memory_allocated() <= before  # workspaces of before are given back too
    assert torch.equal(torch.cuda.get_rng_state(), state)

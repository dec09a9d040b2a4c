"""Runs these tests on one thread (tensors this small are slower on several); skips those of missing packages."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [
    pattern
    for package, pattern in (("dgl", "test_against_dgl.py"), ("triton", "test_kernels_*.py"))
    if not find_spec(package)
]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

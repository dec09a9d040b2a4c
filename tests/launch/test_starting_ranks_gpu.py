"""A process that began CUDA, which then works in no fork of it, is told from one that asked whether there are GPUs."""

import subprocess

import pytest

from src.system.interpreter import python, safe_path
from tests.support import ROOT

pytestmark = pytest.mark.gpu
CODE = """
import torch
from src.launch.ranks import uses_cuda
from src.train import nvml_asked
with nvml_asked():
    assert torch.cuda.is_available() and torch.cuda.device_count() and not uses_cuda()
torch.zeros(1, device="cuda")
assert uses_cuda()
"""

EARLY = """
import ctypes
from src.launch.ranks import make_context, uses_cuda
make_context(0)
assert uses_cuda()
flags, is_active = ctypes.c_uint(), ctypes.c_int()
assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(is_active)) == 0
assert is_active.value == 1
import torch
assert torch.ones(2, device="cuda").sum().item() == 2
"""


def test_a_context_that_was_made_early_is_torchs() -> None:
    subprocess.run(python("-c", EARLY), cwd=ROOT, env=safe_path(), check=True)


def test_cuda_is_noticed_once_it_was_begun() -> None:
    subprocess.run(python("-c", CODE), cwd=ROOT, env=safe_path(), check=True)

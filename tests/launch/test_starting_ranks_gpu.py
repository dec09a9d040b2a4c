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


def test_cuda_is_noticed_once_it_was_begun() -> None:
    subprocess.run(python("-c", CODE), cwd=ROOT, env=safe_path(), check=True)

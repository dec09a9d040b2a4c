"""`execution.deterministic=true` on GPUs: two processes give the same bits, in CUDA graphs, fast kernels and plain."""

from pathlib import Path

import pytest
import torch

from tests.reliability.deterministic import assert_twice_the_same

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

NETWORK = "model.task.network."
WIDE = {  # sizes that the fast kernels support, and batches of several blocks
    "moflow": [
        "hp.batch_size=32", f"{NETWORK}bond_hidden=[128,128]", f"{NETWORK}gnn_channels=64",
        f"{NETWORK}atom_hidden=[128,64]",
    ],
    "se3_transformer": [
        "hp.batch_size=16", f"{NETWORK}num_degrees=4", f"{NETWORK}num_channels=32", f"{NETWORK}num_heads=8",
    ],
    "distilbert": [
        "model.task.sizes={vocab_size:40,max_position_embeddings:16,dim:128,n_layers:2,n_heads:2,hidden_dim:256}",
    ],
    "dlrm": [
        "hp.batch_size=2048", f"{NETWORK}embedding_dim=64", f"{NETWORK}bottom=[128,64]", f"{NETWORK}top=[256,128]",
    ],
    "mobilenet_v1": ["hp.batch_size=32", f"{NETWORK}width_multiplier=0.5"],
}  # fmt: skip
LONGER = "hardware=auto", "fit.max_epochs=6", "execution.graph=on"


@pytest.mark.parametrize("precision", ["amp", "bf16", "fp32"])
@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize("model", WIDE)
def test_two_processes_give_the_same_bits(model: str, kernels: str, precision: str, tmp_path: Path) -> None:
    """Plain: without the Triton kernels."""
    if (kernels, precision) == ("plain", "bf16"):
        pytest.skip("its operations are those of amp")
    plain = ["plain", "execution.kernels=off"] if kernels == "plain" else []
    assert_twice_the_same(tmp_path, [model], *WIDE[model], *LONGER, f"precision={precision}", *plain)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("exchange", ["auto", "nccl"])
@pytest.mark.parametrize("model", WIDE)
def test_two_gpus_give_the_same_bits(model: str, exchange: str, tmp_path: Path) -> None:
    several = "trainer=1x2", f"execution.exchange={exchange}", "precision=amp"
    assert_twice_the_same(tmp_path, [model], *WIDE[model], *LONGER, *several)

"""Ranks that meet in a thread while their network is made."""

import socket
from collections.abc import Iterator

import pytest
import torch
from torch import distributed

from src.errors import UserError
from src.parallel.strategies import HybridStrategy

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Iterator[HybridStrategy]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in (RANK | {"MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    yield HybridStrategy(1, patience_s=0.0, parallel_devices=[torch.device("cpu")])
    if distributed.is_initialized():
        distributed.destroy_process_group()


def set_up(strategy: HybridStrategy) -> None:
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from pytorch_lightning.accelerators.cpu import CPUAccelerator

    strategy.accelerator, strategy.cluster_environment = CPUAccelerator(), TorchElasticEnvironment()
    strategy.setup_environment()


def test_a_rank_waits_for_the_meeting_that_has_begun(strategy: HybridStrategy) -> None:
    state = torch.get_rng_state()
    strategy.meet_ahead(torch.device("cpu"))
    set_up(strategy)
    assert distributed.get_backend() == "gloo" and distributed.get_world_size() == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_what_went_wrong_is_raised_where_the_rank_needs_the_others(
    strategy: HybridStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "no host")  # with a space, so that no server is asked for it
    strategy.meet_ahead(torch.device("cpu"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(UserError, match="the name of rank 0's host, no host, does not resolve here"):
        set_up(strategy)

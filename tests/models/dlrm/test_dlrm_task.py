"""DLRM as a task: the contract of all models, and what is its own."""

from pathlib import Path

from contracts.task import TaskContract
from omegaconf import DictConfig
from tiny_dlrm import tiny_dlrm


class TestDLRM(TaskContract):
    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_dlrm(home, *overrides)

"""The bag of words: the contract of all models."""

from pathlib import Path

from omegaconf import DictConfig

from tests.support.composing import composed
from tests.support.task_contract import TaskContract

WORDS = "bad", "fine", "good"
SMALL = (
    "model=bag_of_words", "datamodule.padding=max_length", "datamodule.max_length=16",
    "datamodule.source.held_out_share=0.2", "hardware=cpu", "logger=none", "~callbacks.progress", "pictures=false",
    "hp.batch_size=8", "fit.max_epochs=1", "measure.window=2", "measure.warmup_steps=2",
)  # fmt: skip


class TestBagOfWords(TaskContract):
    def config(self, home: Path, *overrides: str) -> DictConfig:
        rows = [f"{WORDS[i % 3]} word{i % 7},{WORDS[i % 3]}" for i in range(40)]
        (home / "sentences.csv").write_text("\n".join(["text,label", *rows, ""]))
        folders = f"data_root={home / 'data'}", f"output_root={home / 'outputs'}", f"output_dir={home / 'run'}"
        return composed("train", *SMALL, f"datamodule.source.file={home / 'sentences.csv'}", *folders, *overrides)

"""Configs of DistilBERT runs that take a second: a few dozen sentences of two kinds and a small network."""

import random
from pathlib import Path

from omegaconf import DictConfig

from tests.support.composing import composed

SIZES = {"vocab_size": 40, "max_position_embeddings": 16, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
OWN_SIZES = ",".join(f"{name}:{size}" for name, size in SIZES.items())
MODEL = "model.task.weights=random", f"model.task.sizes={{{OWN_SIZES}}}", "datamodule.max_length=16"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "dull", "awful", "poor"]
OTHERS = [f"word{number}" for number in range(SIZES["vocab_size"] - len(SPECIAL) - len(GOOD) - len(BAD))]
NUM_TRAIN, NUM_DEV = 32, 21


def sentence(rng: random.Random, label: int) -> str:
    """Returns a sentence of 1 to 12 words, one of which tells the label."""
    words = rng.choices(OTHERS, k=rng.randrange(12))
    words.insert(rng.randrange(len(words) + 1), rng.choice((BAD, GOOD)[label]))
    return " ".join(words)


def write_sentences(folder: Path, num_train: int = NUM_TRAIN, num_dev: int = NUM_DEV) -> None:
    """Writes train.tsv, dev.tsv and vocab.txt in the formats of GLUE and BERT."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", num_train), ("dev", num_dev)):
        rows = [f"{sentence(rng, number % 2)}\t{number % 2}" for number in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *GOOD, *BAD, *OTHERS, ""]))


def tiny_overrides(home: Path, padding: str = "packed") -> list[str]:
    """Returns the overrides of a run with 4 steps of 8 sentences an epoch, which writes to `home`/run."""
    write_sentences(home / "raw")
    return [
        "model=distilbert", *MODEL, f"datamodule.padding={padding}", f"datamodule.raw={home / 'raw'}",
        f"datamodule.vocabulary={home / 'raw'}", "precision=fp32", "hardware=cpu", "logger=none", "~callbacks.progress",
        "hp.batch_size=8", "hp.accumulate=1", "hp.lr=3e-3", "model.task.schedule.total=40", "fit.evaluate_first=false",
        "fit.max_epochs=1", "measure.window=2", "measure.warmup_steps=2",
        "pictures=false", f"data_root={home / 'data'}",
        f"output_root={home / 'outputs'}", f"output_dir={home / 'run'}",
    ]  # fmt: skip


def tiny_distilbert(home: Path, *overrides: str, padding: str = "packed") -> DictConfig:
    """Composes the config of `tiny_overrides`, then `overrides`."""
    return composed("train", *tiny_overrides(home, padding), *overrides)


def tiny_prediction(home: Path, *overrides: str, padding: str = "packed") -> list[str]:
    """Returns the overrides of a prediction in batches of 8 that writes to `home`/predicted."""
    return [
        "model=distilbert", f"datamodule.padding={padding}", "datamodule.max_length=16",
        f"datamodule.raw={home / 'raw'}", f"datamodule.vocabulary={home / 'raw'}", "precision=fp32", "hardware=cpu",
        "batch_size=8", f"data_root={home / 'data'}", f"output_root={home / 'outputs'}",
        f"output_dir={home / 'predicted'}", *overrides,
    ]  # fmt: skip

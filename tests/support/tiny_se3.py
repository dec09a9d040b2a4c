"""Configs of tiny SE(3)-Transformer runs: 64 small molecules and a network of the smallest sizes."""

from pathlib import Path

from omegaconf import DictConfig

from tests.support.composing import composed

TAILS = ("C", "O", "N", "F", "C#N", "C=O", "C(=O)O", "OC")
NETWORK = "num_layers=2", "num_degrees=2", "num_channels=8", "num_heads=2"


def write_molecules(path: Path) -> Path:
    """Writes a csv of chains with different tails and a number that depends on length and tail; returns the path."""
    rows = [f"{'C' * length}{tail},{0.3 * length - i:.2f}" for length in range(1, 9) for i, tail in enumerate(TAILS)]
    path.write_text("\n".join(["smiles,energy", *rows, ""]), encoding="utf-8")
    return path


def molecules_in(home: Path) -> list[str]:
    """Returns overrides that select the molecules of `write_molecules`, prepared in `home`."""
    file = home / "chains.csv"
    return [
        "model=se3_transformer", "datamodule=molecule_file", "datamodule.task=energy",
        f"datamodule.source.file={file if file.exists() else write_molecules(file)}", "+datamodule.source.workers=1",
        f"data_root={home / 'data'}", f"output_root={home / 'outputs'}",
        *(f"model.task.network.{size}" for size in NETWORK),
    ]  # fmt: skip


def tiny_overrides(home: Path) -> list[str]:
    """Returns the overrides of a run of 7 steps per epoch of 8 molecules (the last of 4) that writes to `home`/run."""
    return [
        *molecules_in(home), "precision=fp32", "hardware=cpu", "logger=none", "~callbacks.progress",
        "hp.batch_size=8", "hp.lr=1e-2", "fit.max_epochs=1", "fit.eval_every_n_epochs=1",
        "fit.checkpoint_every_n_epochs=1", "measure.window=2", "measure.warmup_steps=2",
        "pictures=false", f"output_dir={home / 'run'}",
    ]  # fmt: skip


def tiny_se3(home: Path, *overrides: str) -> DictConfig:
    """Composes the config of `tiny_overrides`, then `overrides`."""
    return composed("train", *tiny_overrides(home), *overrides)


def tiny_prediction(home: Path, *overrides: str) -> list[str]:
    """Returns the overrides of a prediction of the same molecules that writes to `home`/predicted."""
    overridden = [*molecules_in(home), "precision=fp32", "hardware=cpu", f"output_dir={home / 'predicted'}"]
    return [*overridden, *overrides]

"""The datamodule of split binary clicks: attributes, batches, resuming, and errors of data and settings."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.demos.boring_classes import BoringModel

from src.batches.clicks import ClickBatch
from src.batches.step import StepBatches
from src.datamodules.clicks.check import STAMP, SUMS
from src.datamodules.clicks.criteo import CriteoDataModule
from src.datamodules.download import sha256_of
from src.errors import UserError
from src.measure.clock import Clock
from tests.support.batches import batches_of
from tests.support.click_rows import ClickRows, click_rows

TRAIN, TEST = 50, 23


@pytest.fixture
def rows() -> dict[str, ClickRows]:
    return {"train": click_rows(TRAIN, seed=1), "test": click_rows(TEST, seed=2)}


@pytest.fixture
def folder(rows: dict[str, ClickRows], tmp_path: Path) -> Path:
    for split, clicks in rows.items():
        clicks.write(tmp_path / "clicks", split)
    return tmp_path / "clicks"


def datamodule(folder: Path, **options: Any) -> CriteoDataModule:
    return CriteoDataModule(**{"name": "criteo", "data_dir": str(folder), "batch_size": 8, "seed": 1, **options})


def ready(folder: Path, **options: Any) -> CriteoDataModule:
    data = datamodule(folder, **options)
    data.prepare_data()
    data.setup("fit")
    return data


# Attributes and batches.


def test_setup_sets_tables_layout_and_splits(folder: Path, rows: dict[str, ClickRows]) -> None:
    data = ready(folder)
    assert (data.tables, data.num_numerical, data.layout) == (rows["train"].spec.tables, 2, rows["train"].spec.layout)
    assert data.splits == {"train": range(TRAIN), "test": range(TEST)}
    assert data.bayes_auc is None


def test_bayes_auc_is_read_from_the_metadata(folder: Path, rows: dict[str, ClickRows]) -> None:
    replace(rows["train"].spec, metadata={"bayes_auc": 0.8}).write(folder)
    assert ready(folder).bayes_auc == 0.8


def test_training_drops_an_incomplete_batch_and_evaluation_keeps_it(folder: Path, rows: dict[str, ClickRows]) -> None:
    data = ready(folder, test_batch_size=10)
    for number, batch in enumerate(batches_of(data.train_dataloader())):
        rows["train"].assert_equal(batch.clicks(), 8 * number, 8 * number + 8)
    assert len(data.train_dataloader()) == 6
    for loader in (data.test_dataloader(), data.val_dataloader(), data.predict_dataloader()):
        begin = 0
        for batch in loader:
            rows["test"].assert_equal(batch.clicks(), begin, begin + batch.count)
            begin += batch.count
        assert (begin, len(loader)) == (TEST, 3)


def test_test_batch_size_defaults_to_batch_size(folder: Path) -> None:
    assert [batch.count for batch in ready(folder).test_dataloader()] == [8, 8, 7]


def test_prediction_uses_any_split(folder: Path) -> None:
    assert sum(batch.count for batch in ready(folder, predict="train").predict_dataloader()) == TRAIN
    with pytest.raises(UserError, match=r"datamodule\.predict=val: there is no such split; choose from train, test"):
        ready(folder, predict="val").predict_dataloader()


def test_shuffle_batches_shuffles_with_the_seed(folder: Path) -> None:
    def order(seed: int, **options: Any) -> list[bytes]:
        return [
            batch.data.numpy().tobytes() for batch in batches_of(ready(folder, seed=seed, **options).train_dataloader())
        ]

    plain = order(1)
    shuffled = order(1, shuffle_batches=True)
    assert shuffled == order(1, shuffle_batches=True) != order(2, shuffle_batches=True)
    assert sorted(shuffled) == sorted(plain) and shuffled != plain == order(2)


class Trained(BoringModel):
    """Records its training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[ClickBatch] = []

    def training_step(self, batch: StepBatches, batch_idx: int) -> torch.Tensor:
        self.seen += batch.batches
        return self.layer(torch.ones(1, 32)).sum()


def trained_on(data: CriteoDataModule, home: Path, checkpoint: Path | None = None) -> list[ClickBatch]:
    """Returns the batches of two epochs, from a checkpoint on if given; saves one in `home` every second step."""
    model = Trained()
    saving = ModelCheckpoint(home, "{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=2, limit_val_batches=0, logger=False, callbacks=[saving],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    return model.seen


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*exists and is not empty.*")
def test_a_lightning_checkpoint_resumes_with_the_remaining_batches(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "checkpoints"
    uninterrupted = trained_on(datamodule(folder, shuffle_batches=True), home)
    assert [batch.count for batch in uninterrupted] == [8] * 12
    for step in (2, 4, 8):
        rest = trained_on(datamodule(folder, shuffle_batches=True), home, home / f"step={step}.ckpt")
        expected = [batch.data.tolist() for batch in uninterrupted[step:]]
        assert [batch.data.tolist() for batch in rest] == expected


def test_the_clock_measures_waiting_for_data(folder: Path) -> None:
    data = ready(folder)
    ticks = iter(range(1000))
    data.clock = Clock(0.0, now=lambda: float(next(ticks)))
    assert len(list(batches_of(data.train_dataloader()))) == 6
    assert data.clock.totals_s["fetch"] == 6


# Preparation.


def test_the_error_of_a_missing_folder_says_how_to_prepare_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none has no feature_spec\.yaml: .*datamodule=criteo datamodule\.raw=FOLD"):
        datamodule(tmp_path / "none").prepare_data()


def test_a_raw_log_is_prepared(rows: dict[str, ClickRows], tmp_path: Path) -> None:
    calls = []

    def prepare(raw: Path, folder: Path) -> None:
        calls.append((raw, folder))
        for split, clicks in rows.items():
            clicks.write(folder, split)

    data = ready(tmp_path / "new", raw=str(tmp_path / "raw"), prepare=prepare)
    assert calls == [(tmp_path / "raw", tmp_path / "new")]
    assert data.splits["train"] == range(TRAIN)


# Bad data and settings.


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows.ids[0].__setitem__((30, 0), 40_000), r"train/cat_0\.bin row 30 .*has 40000 as an id"),
        (lambda rows: rows.ids[2].__setitem__((31, 1), 300), r"train/cat_2\.bin row 31 .*has 300 .*cardinality 300"),
        (lambda rows: rows.ids[3].__setitem__((7, 0), -1), r"train/cat_3\.bin row 7 .*has -1 as an id of cat_3"),
        (lambda rows: rows.labels.__setitem__(49, 2), r"train/label\.bin row 49 .*has 2 as a label, which is 0 or 1"),
    ],
)  # fmt: skip
def test_an_id_or_label_out_of_range_is_named(
    folder: Path, rows: dict[str, ClickRows], damage: Callable[[ClickRows], None], words: str
) -> None:
    damage(rows["train"])
    rows["train"].write(folder)
    with pytest.raises(UserError, match=words) as raised:
        datamodule(folder).prepare_data()
    assert "\n" not in str(raised.value)
    assert not (folder / STAMP).exists()
    datamodule(folder, check=False).prepare_data()


def test_a_value_in_a_later_chunk_is_found(
    folder: Path, rows: dict[str, ClickRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "check.CHUNK", "check.BLOCK", "split_binary.BLOCK":
        monkeypatch.setattr(f"src.datamodules.clicks.{name}", 7)
    datamodule(folder).prepare_data()
    rows["test"].ids[1][22, 2] = 5
    rows["test"].write(folder, "test")
    with pytest.raises(UserError, match=r"test/cat_1\.bin row 22 "):
        datamodule(folder).prepare_data()


def test_a_changed_number_is_found_where_checksums_are_known(folder: Path, rows: dict[str, ClickRows]) -> None:
    sums = {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*.bin")}
    replace(rows["train"].spec, metadata={"sha256": sums}).write(folder)
    datamodule(folder).prepare_data()
    rows["train"].numerical[3, 1] += 1
    rows["train"].write(folder)
    replace(rows["train"].spec, metadata={"sha256": sums}).write(folder)
    with pytest.raises(UserError, match=r"train/numerical\.bin is not what was written .*prepare the data again"):
        datamodule(folder).prepare_data()


def test_ids_are_checked_once_and_again_after_a_file_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def checks() -> bool:
        datamodule(folder).prepare_data()
        return "checking ids" in capsys.readouterr().err

    assert [checks(), checks()] == [True, False]
    file = folder / "train" / "cat_0.bin"
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    assert [checks(), checks()] == [True, False]


@pytest.mark.parametrize("file", ["train/cat_0.bin", "train/label.bin", "train/numerical.bin", "test/cat_2.bin"])
def test_a_changed_bit_is_found_though_size_and_time_stay(
    folder: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "check.CHUNK", "check.BLOCK", "split_binary.BLOCK":
        monkeypatch.setattr(f"src.datamodules.clicks.{name}", 7)
    datamodule(folder).prepare_data()
    path, state = folder / file, (folder / file).stat()
    content, row = bytearray(path.read_bytes()), 15
    content[row * (len(content) // (TRAIN if file.startswith("train") else TEST))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    other_rank = datamodule(folder)
    other_rank.setup("fit")
    for data in ready(folder), other_rank:
        list(data.loader("train" if file.startswith("test") else "test"))
        with pytest.raises(UserError, match=rf"{file} is not as it was checked \(rows 14 to 20, .*prepare or copy"):
            list(data.loader(file.partition("/")[0]))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-2], lambda data: data[:-8], lambda data: b"", lambda data: data[::-1]]
)
@pytest.mark.parametrize("file", [STAMP, SUMS])
def test_a_damaged_note_of_a_check_counts_as_none(
    folder: Path, file: str, damage: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    datamodule(folder).prepare_data()
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(damage(whole))
    capsys.readouterr()
    datamodule(folder).prepare_data()
    assert "checking ids" in capsys.readouterr().err
    assert (folder / file).read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_checked_every_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / STAMP).mkdir()
    datamodule(folder).prepare_data()
    assert "checked.json cannot be written, so the ids are checked at every start" in capsys.readouterr().out


def test_a_truncated_file_is_named(folder: Path) -> None:
    os.truncate(folder / "train" / "numerical.bin", 4 * 49)
    with pytest.raises(UserError, match=r"train/numerical\.bin has 49 rows, train/label\.bin has 50"):
        datamodule(folder).prepare_data()


def test_a_batch_larger_than_the_training_rows_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"hp\.batch_size=51 on 1 rank\(s\) is larger than the training split of 50"):
        ready(folder, batch_size=51).train_dataloader()


def test_negative_ids_of_every_type_are_found(folder: Path, rows: dict[str, ClickRows]) -> None:
    """Both bounds are checked: -1 is large as an unsigned number and small as a signed one."""
    rows["test"].ids[0][0, 0] = np.int32(-(2**31))
    rows["test"].write(folder, "test")
    with pytest.raises(UserError, match=r"test/cat_0\.bin row 0 .*has -2147483648"):
        datamodule(folder).prepare_data()

"""DLRM's error messages for user mistakes: one line, also in the run's record."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from src.errors import UserError
from src.prepare import prepare
from src.report.record import read_record
from src.run import train
from tests.support.composing import composed
from tests.support.tiny_dlrm import CARDINALITIES, ON_DISK, TABLES, tiny_dlrm

RAW = "datamodule=criteo", "datamodule.prepare.frequency_limit=2"
TABLES_FROM_DATA = "model.task.tables=null"


def error_of(config: DictConfig) -> str:
    """Runs the config; returns the error message, which its record holds as well."""
    with pytest.raises(UserError) as raised:
        train(config)
    line, record = str(raised.value), read_record(Path(config.output_dir))
    assert "\n" not in line
    assert record.status == "failed"
    assert record.error is not None and record.error.message == line
    return line


def with_tables(sizes: Sequence[int]) -> str:
    return f"datamodule.cardinalities={list(sizes)}"


# Divergence.


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_a_nan_loss_ends_the_run(precision: str, tmp_path: Path) -> None:
    line = error_of(tiny_dlrm(tmp_path, "hp.lr=1e30", f"precision={precision}"))
    assert line.startswith("the loss is infinite or NaN at step 2 or before, the run has diverged; lower hp.lr")
    record = read_record(tmp_path / "run")
    assert record.history[-1]["step"] == 2


def test_nan_weights_are_not_evaluated(tmp_path: Path) -> None:
    """The evaluation comes before the next check of the losses."""
    line = error_of(tiny_dlrm(tmp_path, "hp.lr=1e30", "measure.window=100"))
    assert line.startswith("the loss is infinite or NaN at step ")
    assert not any("auc" in row for row in read_record(tmp_path / "run").history)


# Network and data that do not fit each other.


def test_data_without_clicks_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "my.smiles"
    file.write_text("CCO\nCCN\n" * 8)
    molecules = "datamodule=smiles_file", f"datamodule.source.file={file}", "+datamodule.source.workers=1"
    line = error_of(tiny_dlrm(tmp_path, data=molecules))
    assert line == "DLRM needs clicks; give datamodule=criteo, criteo_synthetic or criteo_resident"
    assert not (tmp_path / "data").exists()  # nothing was prepared or downloaded


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            with_tables([51, *CARDINALITIES[1:]]),
            "cat_0.bin has 51 ids, 1 a row, but table 0 of the network is made for ",
        ),
        (with_tables(CARDINALITIES[1:]), "cat_0.bin has 3 ids, 1 a row, but table 0 of the network is made for 50 "),
        (with_tables(CARDINALITIES[:-1]), "the data has 3 categorical and 13 numerical features, the network is made "),
        ("datamodule.num_numerical=12", "the data has 4 categorical and 12 numerical features, the network is made "),
        ("model.task.network.bottom=[16,9]", "bottom=[16, 9] must end with embedding_dim=8; change either of them"),
        ("model.task.schedule.decay_start_step=10", "model.task.schedule.decay_start_step=10 lies within the "),
        ("datamodule.hotness=[1,1]", "hotness has 2 numbers for 4 cardinalities: give one for each table"),
    ],
)
def test_inconsistent_sizes_are_errors(override: str, words: str, tmp_path: Path) -> None:
    assert error_of(tiny_dlrm(tmp_path, override)).startswith(words)


@pytest.mark.slow
def test_resuming_with_other_tables_is_an_error(tmp_path: Path) -> None:
    """Before training, whether the tables come from the data or from the checkpoint; also where that is accepted."""
    train(tiny_dlrm(tmp_path / "first", TABLES_FROM_DATA))
    checkpoint = tmp_path / "first" / "run" / "checkpoints" / "last.ckpt"
    others = with_tables([50, 3, 1200, 8]), "fit.max_epochs=2", f"ckpt_path={checkpoint}"
    line = error_of(tiny_dlrm(tmp_path / "of_data", TABLES_FROM_DATA, *others))
    assert line.startswith(f"{checkpoint} was trained with datamodule.cardinalities=[50,3,1200,7], this run has ")
    others = *others, "accept_changes=true"
    line = error_of(tiny_dlrm(tmp_path / "of_data", TABLES_FROM_DATA, *others))
    assert line == (
        f"{checkpoint}: a checkpoint of another architecture: embeddings.weights.3 is (7, 8) there and (8, 8) here; "
        f"use the model config it was trained with"
    )
    line = error_of(tiny_dlrm(tmp_path / "of_checkpoint", TABLES, *others))
    assert line.startswith("cat_3.bin has 8 ids, 1 a row, but table 3 of the network is made for 7 and 1; use the data")
    assert all(not (tmp_path / name / "run" / "checkpoints").exists() for name in ("of_data", "of_checkpoint"))


# Data.


def test_missing_data_is_an_error(tmp_path: Path) -> None:
    line = error_of(tiny_dlrm(tmp_path, data=("datamodule=criteo",)))
    assert line.startswith(f"{tmp_path / 'data' / 'criteo'} has no feature_spec.yaml: prepare it with `prepare.py")


def test_a_malformed_line_of_a_raw_log_is_named(tmp_path: Path) -> None:
    whole = "\t".join(["1", *["5"] * 13, *["68fd1e64"] * 26])
    raw = tmp_path / "log.txt"
    raw.write_text("\n".join([*[whole] * 150, whole.replace("\t", " ", 1), *[whole] * 50, ""]))
    line = error_of(tiny_dlrm(tmp_path, TABLES_FROM_DATA, f"datamodule.raw={raw}", data=RAW))
    assert line.startswith(f"{raw} line 151 has 39 columns, not 40")
    assert sorted(path.name for path in tmp_path.glob("data/*")) == []


def test_an_id_beyond_its_table_is_named(tmp_path: Path) -> None:
    train(tiny_dlrm(tmp_path, "fit.max_steps=1", data=ON_DISK))
    folder = tmp_path / "data" / "criteo_synthetic"
    ids = bytearray((folder / "train" / "cat_3.bin").read_bytes())
    ids[5] = 7
    (folder / "train" / "cat_3.bin").write_bytes(ids)
    (folder / "checked.json").unlink()
    line = error_of(tiny_dlrm(tmp_path, f"output_dir={tmp_path / 'again'}", data=ON_DISK))
    assert str(folder / "train" / "cat_3.bin") in line and "row 5" in line and "7" in line


def test_a_bit_that_changed_since_the_check_is_found_before_its_batch_is_used(tmp_path: Path) -> None:
    train(tiny_dlrm(tmp_path, "fit.max_steps=1", data=ON_DISK))
    path = tmp_path / "data" / "criteo_synthetic" / "train" / "cat_3.bin"
    state, ids = path.stat(), bytearray(path.read_bytes())
    ids[5] ^= 64  # far outside its table
    path.write_bytes(ids)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    line = error_of(tiny_dlrm(tmp_path, f"output_dir={tmp_path / 'again'}", data=ON_DISK))
    assert line.startswith(f"{path} is not as it was checked (rows 0 to 511, counting from 0, differ)")


def test_prepare_has_nothing_to_do_for_data_without_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(composed("prepare", "datamodule=criteo_resident", f"output_root={tmp_path}"))
    assert capsys.readouterr().out == "criteo_resident has no files: there is nothing to prepare\n"

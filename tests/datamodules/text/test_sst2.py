"""SST-2 as a datamodule: splits, prepared folders, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.batches.tokens import UNLABELLED, PackedTokens, PaddedTokens
from src.datamodules.text.sst2 import SST2DataModule
from src.errors import UserError
from tests.support.batches import batches_of
from tests.support.sst2_rows import CLS, PIECES, SEP, labels, write_files, write_lines, write_vocabulary


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """The arguments of a datamodule of tiny files."""
    return {
        "name": "sst2",
        "data_dir": str(tmp_path / "data"),
        "batch_size": 8,
        "seed": 0,
        "vocabulary": str(write_vocabulary(tmp_path / "words")),
        "raw": str(write_files(tmp_path / "raw")),
    }


def ready(**options: Any) -> SST2DataModule:
    datamodule = SST2DataModule(**options)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def caches(options: dict[str, Any]) -> set[Path]:
    return set(Path(options["data_dir"]).iterdir())


@pytest.mark.parametrize(("padding", "kind"), [("max_length", PaddedTokens), ("packed", PackedTokens)])
def test_every_split_has_its_sentences(padding: str, kind: type, options: dict[str, Any]) -> None:
    datamodule = ready(**options, padding=padding, test_batch_size=4)
    training = list(batches_of(datamodule.train_dataloader()))
    assert [len(batch.labels) for batch in training] == [8] * 5
    assert all(isinstance(batch, kind) for batch in training)
    for loader in (datamodule.val_dataloader(), datamodule.test_dataloader(), datamodule.predict_dataloader()):
        assert torch.cat([batch.labels for batch in loader]).tolist() == labels(11)
        assert len(loader) == 3
    unlabelled = torch.cat([batch.labels for batch in datamodule.loader("test")])
    assert unlabelled.tolist() == [UNLABELLED] * 5


def test_training_tokens_are_counted_by_step(options: dict[str, Any]) -> None:
    datamodule = ready(**options, padding="max_length", max_length=32)
    assert datamodule.tokens(slice(3)) == (0, 0)
    batches = list(batches_of(datamodule.train_dataloader()))
    real = [int(batch.lengths.sum()) for batch in batches]
    assert datamodule.tokens(slice(1, 3)) == (sum(real[1:3]), 2 * 8 * 32)
    assert datamodule.tokens(slice(100)) == (sum(real), 5 * 8 * 32)


def test_other_sentences_need_only_the_vocabulary(options: dict[str, Any]) -> None:
    datamodule = SST2DataModule(**{**options, "raw": "nowhere"}, padding="packed", max_length=4)
    data = datamodule.encode(["good film", "a very long story"], "here")
    (batch,) = datamodule.loader(data, batch_size=3)
    assert isinstance(batch, PackedTokens)
    assert batch.starts.tolist() == [0, 4, 8]
    assert batch.ids[[0, 3, 4, 7]].tolist() == [CLS, SEP, CLS, SEP]
    assert datamodule.vocabulary.size == len(PIECES)
    with pytest.raises(UserError, match=r"^reviews.txt line 2: the sentence is empty"):
        datamodule.encode(["good", ""], "reviews.txt")


def test_tokens_are_prepared_once_for_each_vocabulary_and_set_of_files(options: dict[str, Any], tmp_path: Path) -> None:
    ready(**options)
    (first,) = caches(options)
    written = (first / "train.npz").stat().st_mtime_ns
    ready(**options)
    assert caches(options) == {first}
    assert (first / "train.npz").stat().st_mtime_ns == written
    other = str(write_vocabulary(tmp_path / "others", (*PIECES, "more")))
    ready(**{**options, "vocabulary": other})
    assert len(caches(options)) == 2
    write_lines(Path(options["raw"]) / "test.tsv", "index\tsentence", "0\tgood")
    assert len(ready(**options).loader("test")) == 1
    assert len(caches(options)) == 3


def test_an_altered_prepared_folder_is_refused(options: dict[str, Any]) -> None:
    ready(**options)
    (cache,) = caches(options)
    np.savez(cache / "dev.npz", ids=np.arange(3))
    with pytest.raises(UserError, match=f"{cache / 'dev.npz'} is missing, truncated or altered: delete {cache}"):
        ready(**options)


def test_a_bad_sentence_is_refused_and_leaves_no_file(options: dict[str, Any]) -> None:
    path = Path(options["raw"]) / "dev.tsv"
    write_lines(path, "sentence\tlabel", "good\t1", " \t0")
    with pytest.raises(UserError, match=f"^{path} line 3: the sentence is empty"):
        ready(**options)
    assert caches(options) == set()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"predict": "tests"}, "datamodule.predict=tests: there is no such split; choose from train, dev, test"),
        ({"batch_size": 41}, "hp.batch_size=41 on 1 rank"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any], words: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError) as raised:
        datamodule = ready(**{**options, **wrong})
        datamodule.predict_dataloader()
        datamodule.train_dataloader()
    assert str(raised.value).startswith(words)

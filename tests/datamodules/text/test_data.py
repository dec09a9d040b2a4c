"""Flat arrays of tokens: truncation and files."""

from pathlib import Path

import numpy as np
import pytest

from src.datamodules.text.data import TokenData
from src.datamodules.text.vocabulary import Vocabulary
from tests.support.sst2_rows import sentences, write_vocabulary


@pytest.mark.parametrize("max_length", [3, 8, 21, 22, 512])
def test_truncation_equals_the_tokenizer_s(max_length: int, tmp_path: Path) -> None:
    vocabulary, texts = Vocabulary(str(write_vocabulary(tmp_path))), sentences(30)
    data = vocabulary.encode(texts, "here", labels=np.arange(30)).truncated(max_length)
    vocabulary.tokenizer.enable_truncation(max_length)
    expected = [part.ids for part in vocabulary.tokenizer.encode_batch(texts)]
    assert [part.tolist() for part in np.split(data.ids, data.starts[1:-1])] == expected
    assert data.lengths.max() <= max_length
    assert data.labels.tolist() == list(range(30))


def test_a_saved_file_loads_the_same_arrays(tmp_path: Path) -> None:
    data = TokenData(np.arange(5, dtype=np.int32), np.array([0, 3, 5]), np.array([1, -1]))
    data.save(tmp_path / "some.npz")
    for loaded, expected in zip(TokenData.load(tmp_path / "some.npz"), data, strict=True):
        assert loaded.dtype == expected.dtype
        assert loaded.tolist() == expected.tolist()

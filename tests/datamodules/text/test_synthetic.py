"""Synthetic sentences: lengths, seeds, and labels that can be learnt."""

from typing import Any

import pytest
import torch

from src.batches.tokens import PackedTokens, PaddedTokens
from src.datamodules.text.synthetic import CLS, FIRST_WORD, SEP, SyntheticTokensDataModule
from src.errors import UserError


def ready(is_ahead: bool = False, **options: Any) -> SyntheticTokensDataModule:
    arguments = {"name": "synthetic", "sentences": {"train": 4000, "dev": 50}, "batch_size": 8, "seed": 1, **options}
    datamodule = SyntheticTokensDataModule(**arguments)
    if is_ahead:
        datamodule.read_ahead()
        datamodule._drawn = lambda: pytest.fail("drawn twice")  # type: ignore[method-assign]
    datamodule.setup("fit")
    return datamodule


def test_lengths_are_like_those_of_sst2() -> None:
    loader = ready(padding="packed").loader("train")
    assert float(loader.tokens.lengths.float().mean()) == pytest.approx(13.3, rel=0.03)
    assert (int(loader.tokens.lengths.min()), loader.tokens.longest) == (3, 66)
    batch = next(iter(loader))
    assert isinstance(batch, PackedTokens)
    starts = batch.starts.long()
    assert (batch.ids[starts[:-1]] == CLS).all() and (batch.ids[starts[1:] - 1] == SEP).all()


def test_batches_without_padding_are_possible() -> None:
    batch = next(iter(ready(length=32, max_length=32).loader("dev")))
    assert isinstance(batch, PaddedTokens)
    assert batch.ids.shape == (8, 32) and (batch.ids > 0).all() and (batch.lengths == 32).all()


def test_sentences_depend_on_the_seed_and_the_split() -> None:
    options = {"sentences": {"train": 50, "dev": 50}, "length": 20}
    first, again, other = (ready(data_seed=seed, **options) for seed in (0, 0, 1))
    ids = [data.loader("dev").tokens.ids for data in (first, again, other)]
    assert torch.equal(ids[0], ids[1]) and not torch.equal(ids[0], ids[2])
    assert not torch.equal(ids[0], first.loader("train").tokens.ids)


def test_most_words_of_a_sentence_show_its_label() -> None:
    tokens = ready(length=40, vocabulary_size=2001).loader("train").tokens
    words = tokens.ids.view(-1, 40)[:, 1:-1]
    assert int(words.min()) >= FIRST_WORD and int(words.max()) < 2001
    is_upper = (words >= FIRST_WORD + 501).float().mean(1)
    assert float(is_upper[tokens.labels == 1].mean()) == pytest.approx(0.75, abs=0.01)
    assert float(is_upper[tokens.labels == 0].mean()) == pytest.approx(0.25, abs=0.01)
    assert 0.45 < float(tokens.labels.float().mean()) < 0.55


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": {"train": 5}}, "datamodule.sentences=.*: give a number for each of train and dev"),
        ({"length": 513}, "datamodule.length=513 exceeds datamodule.max_length=512; lower it"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ready(**options)


def test_sentences_drawn_in_a_thread_are_the_same() -> None:
    plain, ahead = (ready(is_ahead=is_ahead).loader("train").tokens for is_ahead in (False, True))
    assert torch.equal(plain.ids, ahead.ids)

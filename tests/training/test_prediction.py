"""How the samples of a prediction are named."""

import pytest

from src.training.prediction import split_in_words


@pytest.mark.parametrize(
    ("split", "trained_on", "words"),
    [
        ("test", 0, "20 sentences of the test split"),
        ("train", 20, "20 sentences of the train split, all trained on"),
        ("all", 7, "20 sentences of the whole data, 7 trained on"),
        ("folder/new.csv", 0, "20 sentences of new.csv"),
        ("-", 0, "20 sentences of standard input"),
    ],
)
def test_samples_are_of_a_split_or_a_file(split: str, trained_on: int, words: str) -> None:
    assert split_in_words(20, "sentences", split, trained_on) == words

"""What two ranks print while they train each model: every line once. test_ranks.py has a whole `train.py`."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed

from tests.reliability.kills import MODELS
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, train_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()


def printed(home: Path, *overrides: str) -> str:
    """Returns what this rank prints while it trains."""
    file, streams = home / f"{distributed.get_rank()}.txt", [os.dup(1), os.dup(2)]
    with file.open("w") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
        try:
            train_with(*overrides)
        finally:
            sys.stdout.flush()
            for stream, before in zip((1, 2), streams, strict=True):
                os.dup2(before, stream)
    return file.read_text()


@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_print_every_line_once(model: str, ranks: Ranks, tmp_path: Path) -> None:
    overrides = *MODELS[model](tmp_path), f"output_dir={tmp_path / 'run'}"
    lines = [line for text in ranks(as_one_of_many, printed, tmp_path, *overrides) for line in text.splitlines()]
    assert any(line.startswith(f"train done: {model} ") for line in lines)
    assert not [line for line, times in Counter(filter(str.strip, lines)).items() if times > 1]
    assert not [line for line in lines if "[INFO]" in line or "Warning" in line]

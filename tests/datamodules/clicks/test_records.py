"""Every training row goes to every bucket equally often; held-out rows keep their order."""

from pathlib import Path

import numpy as np
import pytest

from src.datamodules.clicks.raw import Span
from src.datamodules.clicks.records import Files, Scattering, scatter
from src.datamodules.clicks.text import RECORD
from tests.support import criteo_rows

ROWS, TRAINED, BUCKETS, SEEDS = 40, 30, 4, 300


@pytest.mark.slow
def test_rows_go_to_uniformly_random_buckets(tmp_path: Path) -> None:
    path = criteo_rows.write(tmp_path / "log", criteo_rows.lines(ROWS, 0))
    span = Span(path, 0, path.stat().st_size)
    # The first number of a line is its line number.
    line_of = {float(np.float16(np.log(i + 3))): i for i in range(ROWS)}
    counts = np.zeros((TRAINED, BUCKETS))
    files = Files.of(tmp_path, 0)
    for seed in range(SEEDS):
        scatter(span, 0, Scattering(TRAINED, BUCKETS, 16, seed, False), files)
        rows = [line_of[first] for first in np.fromfile(files.records, RECORD)["numerical"][:, 0].tolist()]
        index = np.load(files.index).tolist()
        assert [(begins[0], begins[-1]) for begins in index] == [(0, 16), (16, 32), (32, 40)]
        for begins in index:
            for bucket in range(BUCKETS):
                counts[rows[begins[bucket] : begins[bucket + 1]], bucket] += 1
        held_out = [row for begins in index for row in rows[begins[-2] : begins[-1]]]
        assert held_out == list(range(TRAINED, ROWS))
    assert (counts.sum(axis=1) == SEEDS).all()
    mean, deviation = SEEDS / BUCKETS, (SEEDS / BUCKETS * (1 - 1 / BUCKETS)) ** 0.5
    assert abs(counts - mean).max() < 4.5 * deviation

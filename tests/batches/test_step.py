"""The weights of a step's batches: those of its samples, whatever the counts of batches and ranks."""

import pytest
import torch

from src.batches.step import StepBatches


@pytest.mark.parametrize("counts", [[(2, 2)], [(4, 4), (4, 4)]])
def test_equal_batches_need_no_weights(counts: list[tuple[int, int]]) -> None:
    step = StepBatches.of([object()] * len(counts), counts, rank=1)
    assert step.weights is None and step.samples == sum(map(sum, counts))


@pytest.mark.parametrize("counts", [[(2, 1)], [(2, 2), (1, 0)], [(3,), (3,), (1,)], [(2, 0, 0)]])
def test_the_mean_over_ranks_of_weighted_batches_weighs_samples_alike(counts: list[tuple[int, ...]]) -> None:
    losses = torch.rand(len(counts), len(counts[0]))  # mean loss of each batch of each rank
    steps = [StepBatches.of([object()] * len(counts), counts, rank) for rank in range(len(counts[0]))]
    samples = torch.tensor(counts, dtype=torch.float32)
    expected = (losses * samples).sum() / samples.sum()
    of_ranks = []
    for rank, step in enumerate(steps):
        assert step.weights is not None and step.samples == samples.sum()
        of_ranks.append((losses[:, rank] * step.weights).sum())
    assert torch.stack(of_ranks).mean() == pytest.approx(expected.item(), rel=1e-6)

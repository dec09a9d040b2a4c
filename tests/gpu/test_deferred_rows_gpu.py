"""Deferred steps of embedding rows on a GPU, eager and in CUDA graphs, are those of steps taken at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from src.batches.step import StepBatches
from src.batches.tokens import PackedTokens
from src.gpu import deferred_rows
from src.gpu.deferred_rows import RING
from src.models.distilbert.fast import embedding
from src.models.distilbert.network import Sizes
from src.training.step import TrainStep
from tests.gpu.test_deferred_rows import EmbeddingTask, compare_roots

pytestmark = pytest.mark.gpu

SIZES = Sizes(vocab_size=3000)
STEPS = 2 * RING + 9
TOKENS = 512, 640  # of two shapes of batches
EPS = 1e-3  # with Adam's own, a gradient that is zero but for rounding moves its weight by the whole rate
NORM_EPS = 1e6  # the layer norm is linear then, and no gradient depends on the rounding of weights


def batch_of(generator: torch.Generator, tokens: int) -> StepBatches:
    """Returns sentences of 32 tokens, of frequent and of rare ids."""
    ids = (torch.rand(tokens, generator=generator) ** 4 * SIZES.vocab_size).int().cuda()
    starts, labels = torch.arange(0, tokens + 1, 32, dtype=torch.int32).cuda(), torch.zeros(tokens // 32).long().cuda()
    positions = torch.arange(32, dtype=torch.int32).repeat(tokens // 32).cuda()
    return StepBatches.of([PackedTokens(ids, positions, starts, labels, 32)], [[len(labels)]], rank=0)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("graph", [False, True])
def test_deferred_steps_are_those_taken_at_once(kind: Any, graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With evaluations in between, and a rate that changes in each step."""
    settled = list[int]()
    catch_up = deferred_rows.Rows.catch_up

    def noted(rows: deferred_rows.Rows, in_order: Tensor | None = None) -> None:
        settled.append(in_order is None)
        catch_up(rows, in_order)

    monkeypatch.setattr(deferred_rows.Rows, "catch_up", noted)
    monkeypatch.setattr(embedding, "EPS", NORM_EPS)
    results = []
    for defers in (True, False):
        rate = torch.tensor(0.01, device="cuda")
        task = EmbeddingTask(kind, sizes=SIZES, device="cuda", lr=rate, eps=EPS, capturable=True)
        run, generator, values = TrainStep(task, graph, 2, defers), torch.Generator().manual_seed(0), list[Tensor]()
        memory = task.words.detach()
        for number in range(STEPS):
            for group in task.adam.param_groups:
                group["lr"] *= 0.99
            run(batch_of(generator, TOKENS[number % 3 == 0]))
            if number in (7, 50):
                task.network.eval()
                values.append(memory.clone())
                task.network.train()
        run.close()
        results.append([*values, *task.arrays()])
    for deferred, direct in zip(*results, strict=True):
        assert (deferred - direct).norm() <= 1e-5 * direct.norm()
    # Of all rows: at both evaluations, RING steps after the last one, and at the end.
    assert settled.count(True) == 2 + (STEPS - 51) // RING + 1
    assert settled.count(False) == (STEPS - 1 if not graph else len(settled) - settled.count(True)) > 0


@pytest.mark.parametrize("lr", [0.1, 5e-5])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_one_root_for_all_steps_is_no_less_exact_than_one_for_each(lr: float, betas: tuple[float, float]) -> None:
    compare_roots("cuda", lr, betas, largest=1e-5)

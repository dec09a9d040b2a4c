"""The contract of ranks: one, two and four ranks train alike, whatever number of samples an epoch leaves over.

Several ranks with batches of `BATCH` are compared with one rank that takes as many samples a step.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import BATCH, OTHER_DATA, RUNS, Seen, as_one_of_many, evaluated, seen

pytestmark = pytest.mark.slow
STEPS, HELD_OUT = 2, 5
OWN_STATISTICS = ("mobilenet_v1",)  # of each batch on a device, which running statistics follow one after the other
# With each model nothing is left over, one rank has fewer samples, others have none. How samples are dealt out is not
# the model's part: a sample for each rank, and whole batches for some, are tried with the quickest one.
REMAINDERS = [(model, *case) for model in RUNS for case in ((2, 0), (2, 3), (4, 1))]
REMAINDERS += [("distilbert", 4, 4), ("distilbert", 4, 6)]
Groups = dict[int, Ranks]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Groups of gloo ranks by their size."""
    started = {count: Ranks(count, tmp_path_factory.mktemp("ranks")) for count in (2, 4)}
    yield started
    for group in started.values():
        group.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def alone(model: str, home: Path, samples: int, world: int, epochs: int) -> Seen:
    """Trains on one rank with as many samples a step as `world` ranks take."""
    if model in OWN_STATISTICS:
        whole_steps = epochs * (samples // (BATCH * world))  # of batches that are left over there is a shorter step
        step = f"hp.accumulate={world}", f"fit.max_steps={whole_steps}"
    else:
        step = (f"hp.batch_size={BATCH * world}",)
    return seen(model, home, samples, HELD_OUT, *step, f"fit.max_epochs={epochs}", f"output_dir={home / 'one'}")


@pytest.mark.parametrize(("model", "world", "rest"), REMAINDERS)
def test_ranks_train_like_one_rank(model: str, world: int, rest: int, ranks: Groups, home: Path) -> None:
    home, samples = home / model, STEPS * world * BATCH + rest
    epochs = 1 if rest else 2
    one = alone(model, home, samples, world, epochs)
    run = model, home, samples, HELD_OUT, f"fit.max_epochs={epochs}", f"output_dir={home / 'many'}"
    many: list[Seen] = ranks[world](as_one_of_many, seen, *run)
    first = many[0]
    differing = [name for name, value in one.start.items() if not torch.equal(first.start[name], value)]
    assert [name for name in differing if "actnorm" not in name] == []  # which begins with sums over the first batch
    assert_close(first.start, one.start, rtol=1e-5, atol=1e-6)
    counts = [sum(of_ranks) for of_ranks in zip(*(rank.counts for rank in many), strict=True)]
    assert counts == one.counts and len(counts) >= STEPS
    sums = [[loss * count for loss, count in zip(rank.losses, rank.counts, strict=True)] for rank in many]
    losses = [sum(of_ranks) / count for of_ranks, count in zip(zip(*sums, strict=True), counts, strict=True)]
    assert losses == pytest.approx(one.losses, rel=1e-4)
    for rank in many:
        assert_close(rank.gradients, first.gradients, rtol=0, atol=0)
    assert_close(first.gradients, one.gradients, rtol=1e-3, atol=1e-5)
    left_out = ("running_mean", "running_var", "num_batches_tracked") if model in OWN_STATISTICS else ()
    ends = [{name: value for name, value in run.end.items() if not name.endswith(left_out)} for run in (first, one)]
    assert_close(*ends, rtol=1e-3, atol=1e-4)
    assert all(rank.metrics == first.metrics for rank in many)
    if model not in OWN_STATISTICS:
        assert first.metrics == pytest.approx(one.metrics, rel=1e-3, abs=1e-5)


def test_two_nodes_train_like_one(ranks: Groups, home: Path) -> None:
    run = "mobilenet_v1", home / "mobilenet_v1", STEPS * 4 * BATCH, HELD_OUT, f"output_dir={home / 'nodes'}"
    one, two = (ranks[4](partial(as_one_of_many, nodes=nodes), seen, *run) for nodes in (1, 2))
    assert_close([rank._asdict() for rank in two], [rank._asdict() for rank in one], rtol=0, atol=0)


@pytest.mark.parametrize("model", ["mobilenet_v1", "moflow"])
def test_an_evaluation_has_the_mean_of_the_ranks_statistics(model: str, ranks: Groups, home: Path) -> None:
    many: list[Seen] = ranks[2](as_one_of_many, seen, model, home / model, 8, HELD_OUT, f"output_dir={home / 'mean'}")
    names = [name for name in many[0].buffers if "running" in name]
    assert names and any(not torch.equal(many[0].buffers[name], many[1].buffers[name]) for name in names)
    for name in names:
        mean = torch.stack([rank.buffers[name] for rank in many]).mean(0)
        for rank in many:
            assert_close(rank.end[name], mean)


@pytest.mark.parametrize("data", [*(model for model in RUNS if model != "moflow"), *OTHER_DATA])
def test_ranks_evaluate_any_number_of_samples(data: str, ranks: Groups, home: Path) -> None:
    """Ranks without a sample take part: all have the metrics of one process with the same weights."""
    held_out = 3 if data == "image_folder" else 1  # one of each class
    arguments = home / data, 12 * BATCH, held_out
    many: list[Seen] = ranks[4](as_one_of_many, seen, data, *arguments, f"output_dir={home / 'few'}")
    metrics = evaluated(data, *arguments, many[0].end)
    assert metrics
    for rank in many:
        assert {name: rank.metrics[name] for name in metrics} == pytest.approx(metrics, rel=1e-4)


def refusal(model: str, home: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        seen(model, home, 8, HELD_OUT, *overrides)
    return str(caught.value)


def test_every_rank_refuses_to_train_without_held_out_samples(ranks: Groups, home: Path) -> None:
    data = home / "se3_transformer", "datamodule.source.val_share=0", f"output_dir={home / 'refused'}"
    first, second = ranks[2](as_one_of_many, refusal, "se3_transformer", *data)
    assert first == second and "has 0 molecules in its split val" in first and "\n" not in first

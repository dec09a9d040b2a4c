"""The exact AUC agrees with a count over all pairs, in one process and in two."""

from math import isnan

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn

from src.errors import UserError
from src.measure.auc import ExactAUC, Tally, exchange_by_key

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def naive(scores: Tensor, labels: Tensor) -> float:
    """Returns the AUC counted over all pairs of a positive and a negative."""
    positives, negatives = scores[labels == 1].double(), scores[labels == 0].double()
    difference = positives[:, None] - negatives
    return ((difference > 0).sum().item() + 0.5 * (positives[:, None] == negatives).sum().item()) / difference.numel()


def clicks(n: int = 600, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns scores of both signs that correlate with the labels, and labels; a third of the scores is rounded."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.3).float()
    scores = torch.randn(n, generator=generator) + labels
    return torch.where(torch.rand(n, generator=generator) < 0.3, scores.round(), scores).to(dtype), labels


def auc(scores: Tensor, labels: Tensor) -> float:
    metric = ExactAUC()
    metric.update(scores, labels)
    return metric.compute()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_auc_equals_the_count_over_all_pairs(dtype: torch.dtype) -> None:
    scores, labels = clicks(dtype=dtype)
    assert len(scores.unique()) < len(scores)
    assert auc(scores, labels) == pytest.approx(naive(scores, labels), abs=1e-15)
    assert 0.6 < auc(scores, labels) < 0.9
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels), abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32], ids=str)
def test_labels_of_any_type_give_the_same_auc(dtype: torch.dtype) -> None:
    scores, labels = clicks()
    assert auc(scores, labels.to(dtype)) == auc(scores, labels)


def test_updates_in_parts_give_the_same_auc() -> None:
    scores, labels = clicks()
    metric = ExactAUC()
    for begin in range(0, 600, 128):
        metric.update(scores[begin : begin + 128], labels[begin : begin + 128])
    assert metric.compute() == auc(scores, labels)
    assert metric.num_positives == labels.sum() and metric.num_negatives == 600 - metric.num_positives


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([1.0, 2.0, 3.0], [0, 0, 1], 1.0),
        ([1.0, 2.0, 3.0], [1, 0, 0], 0.0),
        ([5.0, 5.0, 5.0], [1, 0, 0], 0.5),
        ([0.0, -0.0], [1, 0], 0.5),
        ([-0.0, 0.0], [1, 0], 0.5),
        ([float("-inf"), -1e-45, 1e-45, float("inf")], [0, 0, 1, 1], 1.0),
        ([float("inf"), -1e-45, 1e-45, float("-inf")], [0, 0, 1, 1], 0.25),
    ],
)
def test_auc_of_small_known_cases(scores: list[float], labels: list[int], expected: float) -> None:
    assert auc(torch.tensor(scores), torch.tensor(labels)) == expected


@pytest.mark.slow
def test_counts_above_24_bits_are_exact() -> None:
    """2^24 + 3 equal negatives, more than float32 can count, two higher ones, and a positive between these."""
    many = 2**24 + 3
    scores = torch.zeros(many + 3, dtype=torch.float16)
    scores[-3:] = torch.tensor([1.0, 3.0, 2.0])
    labels = torch.zeros(many + 3, dtype=torch.bool)
    labels[-1] = True
    metric = ExactAUC()
    metric.update(scores, labels)
    assert metric.compute() == (many + 1) / (many + 2)
    assert metric.num_negatives == many + 2


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_one_class_is_nan(label: int) -> None:
    assert isnan(auc(torch.randn(3), torch.full((3,), label)))
    assert isnan(ExactAUC().compute())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_nan_score_raises(sign: float) -> None:
    scores, labels = clicks(50)
    scores[7] = torch.copysign(torch.tensor(float("nan")), torch.tensor(sign))
    with pytest.raises(UserError, match=r"^1 of 50 scores are NaN[^\n]*$"):
        auc(scores, labels)


def test_float64_is_refused_rather_than_rounded() -> None:
    with pytest.raises(TypeError, match="float64 would be rounded"):
        auc(torch.rand(3, dtype=torch.float64), torch.ones(3))


# Two processes.

CASES = {
    "float32": (clicks(), 250),
    "float16": (clicks(dtype=torch.float16), 599),
    "bfloat16": (clicks(dtype=torch.bfloat16), 250),
    "nothing on one rank": (clicks(), 0),
    "equal scores": ((torch.ones(600), clicks()[1]), 250),
    "one class on each rank": ((clicks()[0], torch.arange(600) < 250), 250),
    "one class": ((clicks()[0], torch.ones(600)), 250),
}


def compute_one_rank(rank: int, folder: str) -> None:
    """Runs one rank: the first has the samples before a case's cut, the second the others."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name, ((scores, labels), cut) in CASES.items():
        mine = slice(0, cut) if rank == 0 else slice(cut, None)
        metric = ExactAUC()
        metric.update(scores[mine], labels[mine])
        results[name] = (metric.compute(), metric.num_positives, metric.num_negatives)
    metric = ExactAUC()
    metric.update(torch.tensor([1.0, float("nan") if rank else 2.0]), torch.tensor([0, 1]))
    try:
        metric.compute()
    except UserError as error:
        results["nan"] = str(error)
    torch.save((results, share_of_scores(rank)), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def share_of_scores(rank: int) -> int:
    """Returns how many of 20,000 distinct scores, half of them on each rank, this rank gets by the exchange."""
    scores = torch.randn(20_000, generator=torch.Generator().manual_seed(3)).view(torch.int32).unique()
    keys = scores[rank::2].clone()
    ones = torch.ones(len(keys), dtype=torch.int64)
    return len(exchange_by_key(Tally(keys, ones, ones)).keys) * 20_000 // len(scores)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, tuple[float, int, int]], int]]:
    folder = tmp_path_factory.mktemp("auc")
    spawn(compute_one_rank, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


Ranks = list[tuple[dict[str, tuple[float, int, int]], int]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_auc_of_one(name: str, ranks: Ranks) -> None:
    (scores, labels), _ = CASES[name]
    alone = ExactAUC()
    alone.update(scores, labels)
    expected = (alone.compute(), alone.num_positives, alone.num_negatives)
    for results, _ in ranks:
        assert results[name] == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.slow
def test_a_nan_on_one_rank_raises_on_every_rank(ranks: Ranks) -> None:
    assert all("1 of 4 scores are NaN" in str(results["nan"]) for results, _ in ranks)


@pytest.mark.slow
def test_each_rank_gets_about_half_of_the_scores(ranks: Ranks) -> None:
    shares = [share for _, share in ranks]
    assert all(9_000 < share < 11_000 for share in shares), shares

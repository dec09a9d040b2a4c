"""Synthetic clicks: the distribution of ids and labels, expected metrics, the folder, and the pool on the device."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from src.batches.clicks import ClickLayout
from src.datamodules.clicks.criteo import SyntheticClicksDataModule
from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.split_binary import SplitBinary, SplitLoader
from src.datamodules.clicks.synthetic import BIAS, PUBLISHED, BayesMetrics, ClickDistribution, Sample, tables_of
from src.datamodules.clicks.synthetic_files import BLOCK, generate
from src.datamodules.clicks.synthetic_resident import ResidentClicksDataModule
from src.errors import UserError
from tests.support.batches import batches_of

SIZES = (40_000, 5, 300)
SMALL: dict[str, Any] = {"train_rows": 2 * BLOCK + 1000, "test_rows": 700, "cardinalities": SIZES, "num_numerical": 2}


def distribution(
    cardinalities: tuple[int, ...] = SIZES, hotness: tuple[int, ...] | None = None, seed: int = 0
) -> ClickDistribution:
    return ClickDistribution(ClickLayout.of(tables_of(cardinalities, hotness), 2), seed)


def exact_auc(scores: torch.Tensor, clicked: torch.Tensor, passed: torch.Tensor) -> float:
    """Returns the AUC over all pairs of rows, weighted by `clicked` of one and `passed` of the other."""
    better = (scores[:, None] > scores).double() + 0.5 * (scores[:, None] == scores).double()
    return float(clicked.double() @ better @ passed.double() / (clicked.sum() * passed.sum()))


@pytest.fixture(scope="module")
def many() -> Sample:
    return distribution().sample(200_000, 0)


# The distribution.


def test_ids_are_distributed_as_stated(many: Sample) -> None:
    for ids, size in zip(many.ids.numpy(), SIZES, strict=True):
        assert ids.min() == 0 and ids.max() < size
        k = np.arange(size)
        chances = np.log((k + 2) / (k + 1)) / math.log(size + 1)
        assert chances.sum() == pytest.approx(1)
        counts = np.bincount(ids, minlength=size)[:5] / len(ids)
        np.testing.assert_allclose(counts, chances[:5], atol=4 * np.sqrt(0.25 / len(ids)))
        tail = chances[size // 2 :].sum()
        assert (ids >= size // 2).mean() == pytest.approx(tail, abs=4 * math.sqrt(tail / len(ids)))


def test_rare_ids_of_a_large_table_are_drawn() -> None:
    ids = distribution((40_000_000,)).sample(400_000, 0).ids[0]
    rare = ids[ids > 20_000_000]
    assert len(rare) > 10_000 and len(rare.unique()) > 0.98 * len(rare)
    assert {int(digit) for digit in rare.unique() % 8} == set(range(8))


def test_numericals_are_logarithms_of_counts_or_missing(many: Sample) -> None:
    values = many.numerical.float()
    missing = values == 0
    assert missing.float().mean().item() == pytest.approx(1 / 16, abs=0.003)
    counts = values[~missing].exp() - 3
    assert counts.min().item() == pytest.approx(0, abs=0.01) and 9_000 < counts.max().item() < 10_100
    assert (counts < 0.5).float().mean().item() == pytest.approx(math.log(2) / math.log(10_000), abs=0.004)


def test_effects_are_the_stated_hash() -> None:
    """Compared with unsigned 32-bit arithmetic in numpy."""
    ids = np.array([0, 1, 2, 255, 256, 39_999], np.uint32)
    effects = distribution(seed=7).effects(torch.from_numpy(ids.astype(np.int32)).expand(3, -1)).numpy()
    for table in range(3):
        bits = ids + np.uint32((7 * 64 + table + 1) * 0x9E3779B1 % 2**32)
        for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
            bits = bits * np.uint32(factor)
            bits ^= bits >> np.uint32(shift)
        expected = bits.view(np.int32) / 2.0**31 * math.sqrt(3) / (1 + ids / 256)
        np.testing.assert_allclose(effects[table], expected, rtol=1e-5)


def test_effects_of_frequent_ids_have_mean_0_and_variance_1() -> None:
    ids = torch.arange(20_000, dtype=torch.int32).expand(3, -1)
    effects = distribution().effects(ids) * (1 + ids / 256)
    assert effects.mean(1).abs().max().item() < 0.03
    assert (effects.var(1) - 1).abs().max().item() < 0.03
    assert torch.corrcoef(effects).fill_diagonal_(0).abs().max().item() < 0.03


def test_logits_are_the_stated_sum() -> None:
    hot = distribution((40_000, 5, 300, 9, 7), (1, 2, 1, 3, 1))
    sample = hot.sample(50, 3)
    effects, values = hot.effects(sample.ids).double(), sample.numerical.double()
    a, b, c, d, e = effects.split([1, 2, 1, 3, 1])
    ids = a.sum(0) + b.sum(0) / math.sqrt(2) + c.sum(0) + d.sum(0) / math.sqrt(3) + e.sum(0)
    pairs = a[0] * b[0] + c[0] * d[0]
    numericals = 0.055 * ((values[:, 0] - 4) - (values[:, 1] - 4))
    torch.testing.assert_close(sample.logits.double(), BIAS + 0.25 * ids + 0.25 * pairs + numericals)


def test_labels_have_the_probabilities_of_their_logits(many: Sample) -> None:
    chances = many.logits.sigmoid()
    order = chances.argsort()
    for part in order.chunk(10):
        rate = many.labels[part].float().mean().item()
        assert rate == pytest.approx(chances[part].mean().item(), abs=4 * 0.5 / math.sqrt(len(part)))


def test_rows_depend_on_seed_number_and_split_alone() -> None:
    same = [distribution().sample(100, 5, test=True) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*same, strict=True))
    others = [
        distribution().sample(100, 5),
        distribution().sample(100, 6, test=True),
        distribution(seed=1).sample(100, 5, test=True),
    ]
    assert all(not torch.equal(same[0].ids, other.ids) for other in others)


def test_published_tables_give_a_learnable_distribution() -> None:
    published = ClickDistribution(ClickLayout.of(tables_of()))
    expected = BayesMetrics()
    for number in range(4):
        expected.add(published.sample(BLOCK, number, test=True).logits)
    figures = expected.compute()
    assert [table.cardinality for table in published.layout.tables] == list(PUBLISHED)
    assert 0.78 < figures["bayes_auc"] < 0.82 and 0.03 < figures["click_rate"] < 0.25


# Expected metrics.


def test_the_expected_auc_equals_that_of_all_pairs() -> None:
    logits = torch.randn(400, generator=torch.Generator().manual_seed(1)).mul(1.5).sub(1)
    logits[::7] = logits[0]  # ties
    expected = BayesMetrics()
    expected.add(logits[:150])
    expected.add(logits[150:])
    p = logits.double().sigmoid()
    figures = expected.compute()
    assert figures["bayes_auc"] == pytest.approx(exact_auc(logits, p, 1 - p), abs=2e-5)
    assert figures["click_rate"] == pytest.approx(p.mean().item(), abs=1e-6)
    entropy = -(p * p.log() + (1 - p) * (1 - p).log()).mean().item()
    assert figures["bayes_log_loss"] == pytest.approx(entropy, abs=1e-6)


def test_random_labels_have_the_expected_auc_on_average() -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(2)).mul(1.5)
    expected = BayesMetrics()
    expected.add(logits)
    generator = torch.Generator().manual_seed(3)
    aucs = []
    for _ in range(200):
        labels = torch.rand(300, generator=generator) < logits.sigmoid()
        aucs.append(exact_auc(logits, labels, ~labels))
    error = float(np.std(aucs)) / math.sqrt(len(aucs))
    assert np.mean(aucs) == pytest.approx(expected.compute()["bayes_auc"], abs=3 * error)


def test_logits_outside_the_bins_are_counted() -> None:
    expected = BayesMetrics()
    expected.add(torch.tensor([-20.0, 20.0]))
    assert expected.compute() == {"bayes_auc": 1.0, "bayes_log_loss": 0.0, "click_rate": 0.5}


# The folder.


def test_a_folder_has_the_samples_of_the_distribution(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "clicks"
    generate(folder, **SMALL, hotness=(1, 3, 2), seed=3)
    spec = FeatureSpec.load(folder)
    drawn = ClickDistribution(spec.layout, 3)
    assert [table[1:] for table in spec.tables] == [(40_000, 1), (5, 3), (300, 2)]
    for split, rows in (("train", SMALL["train_rows"]), ("test", SMALL["test_rows"])):
        batches = list(SplitLoader(SplitBinary(folder, spec, split), BLOCK, drop_last=False))
        assert sum(batch.count for batch in batches) == rows
        for number, batch in enumerate(batches):
            sample, clicks = drawn.sample(batch.count, number, test=split == "test"), batch.clicks()
            assert torch.equal(clicks.labels, sample.labels.float())
            assert torch.equal(clicks.numerical, sample.numerical)
            assert torch.equal(clicks.ids, drawn.table_major(sample.ids))
    expected = BayesMetrics()
    expected.add(drawn.sample(SMALL["test_rows"], 0, test=True).logits)
    assert {name: spec.metadata[name] for name in expected.compute()} == expected.compute()


def test_ids_of_one_row_are_adjacent() -> None:
    hot = distribution((40_000, 5), (1, 3))
    ids = hot.sample(4, 0).ids
    expected = [*ids[0].tolist(), *(int(ids[1 + slot, row]) for row in range(4) for slot in range(3))]
    assert hot.table_major(ids).tolist() == expected


def test_a_folder_is_generated_once_and_refused_for_other_settings(tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    generate(folder, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    generate(folder, **SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(UserError, match=r"clicks was generated with other settings: delete it"):
        generate(folder, **SMALL, seed=1)


def test_an_interrupted_generation_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        pass

    def stop(self: ClickDistribution, rows: int, number: int, *, test: bool) -> Sample:
        if number:
            raise Interrupted
        return sample(self, rows, number, test=test)

    sample = ClickDistribution.sample
    monkeypatch.setattr(ClickDistribution, "sample", stop)
    threads = torch.get_num_threads()
    with pytest.raises(Interrupted):
        generate(tmp_path / "clicks", **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == threads


def test_cardinalities_may_be_an_omegaconf_list(tmp_path: Path) -> None:
    sizes = OmegaConf.create({"cardinalities": list(SIZES)}).cardinalities
    generate(tmp_path / "clicks", train_rows=10, test_rows=10, cardinalities=sizes)
    assert [table.cardinality for table in FeatureSpec.load(tmp_path / "clicks").tables] == list(SIZES)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"cardinalities": (3, 0)}, "cardinalities, hotness and max_rows are counts"),
        ({"max_rows": 0}, "cardinalities, hotness and max_rows are counts"),
        ({"cardinalities": (3, 4), "hotness": (1,)}, "hotness has 1 numbers for 2 cardinalities"),
    ],
)
def test_invalid_sizes_are_refused(tmp_path: Path, sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate(tmp_path / "clicks", **(SMALL | sizes))
    assert list(tmp_path.iterdir()) == []


def test_max_rows_limits_the_tables() -> None:
    assert max(table.cardinality for table in tables_of(max_rows=1000)) == 1000
    assert [table.cardinality for table in tables_of((7, 5), max_rows=6)] == [6, 5]


# The datamodules.


def test_the_datamodule_generates_its_folder(tmp_path: Path) -> None:
    data = SyntheticClicksDataModule(
        name="criteo_synthetic", data_dir=str(tmp_path / "clicks"), batch_size=100, seed=1,
        generate=lambda folder: generate(folder, **SMALL),
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    assert data.splits == {"train": range(SMALL["train_rows"]), "test": range(700)}
    assert data.bayes_auc == FeatureSpec.load(tmp_path / "clicks").metadata["bayes_auc"]
    assert sum(batch.count for batch in data.test_dataloader()) == 700


def resident(**options: Any) -> ResidentClicksDataModule:
    sizes: dict[str, Any] = {"steps_per_epoch": 5, "pool_batches": 2, "test_batches": 3, "cardinalities": SIZES}
    return ResidentClicksDataModule(name="criteo_resident", batch_size=8, seed=1, **(sizes | options))


def test_an_epoch_repeats_the_pool() -> None:
    data = resident(test_batch_size=16)
    data.prepare_data()
    data.setup("fit")
    batches = list(batches_of(data.train_dataloader()))
    assert [batch.count for batch in batches] == [8] * 5
    assert all(torch.equal(batches[i].data, batches[i + 2].data) for i in range(3))
    assert not torch.equal(batches[0].data, batches[1].data)
    tests = list(data.test_dataloader())
    assert [batch.count for batch in tests] == [16] * 3
    assert data.splits == {"train": range(40), "test": range(48)}
    drawn = data.distribution.sample(16, 1, test=True)
    assert torch.equal(tests[1].clicks().ids, data.distribution.table_major(drawn.ids))
    expected = BayesMetrics()
    for number in range(3):
        expected.add(data.distribution.sample(16, number, test=True).logits)
    assert data.bayes_auc == expected.compute()["bayes_auc"]


def test_a_resumed_pool_gives_the_remaining_batches() -> None:
    data = resident(pool_batches=5)
    data.setup("fit")
    uninterrupted = [batch.data for batch in batches_of(data.train_dataloader())]
    loader = data.train_dataloader()
    loader.load_state_dict({"epoch": 0, "position": 2})
    rest = [batch.data for batch in batches_of(loader)]
    assert len(rest) == 3 and all(torch.equal(one, other) for one, other in zip(rest, uninterrupted[2:], strict=True))

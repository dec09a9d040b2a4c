"""Clicks on a GPU: asynchronous copies are complete; the synthetic distribution is the same."""

import pytest
import torch

from src.batches.clicks import ClickBatch, ClickLayout
from src.datamodules.clicks.criteo import SyntheticClicksDataModule
from src.datamodules.clicks.synthetic import ClickDistribution, tables_of
from src.datamodules.clicks.synthetic_files import BLOCK, generate
from src.datamodules.clicks.synthetic_resident import ResidentClicksDataModule
from src.gpu.cuda_graphs import Graphed
from tests.support.batches import batches_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
BATCHES, ROWS = 24, 4096


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SyntheticClicksDataModule:
    data = SyntheticClicksDataModule(
        name="criteo_synthetic", data_dir=str(tmp_path_factory.mktemp("data") / "clicks"), batch_size=ROWS, seed=1,
        prefetch=2, generate=lambda folder: generate(folder, train_rows=BATCHES * ROWS, test_rows=ROWS + 1),
    )  # fmt: skip
    data.device = CUDA
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def expected(data: SyntheticClicksDataModule) -> list[torch.Tensor]:
    """The batches on the host."""
    data.device = torch.device("cpu")
    batches = [batch.data for batch in batches_of(data.train_dataloader())]
    data.device = CUDA
    return batches


def busy() -> None:
    """Keeps the stream busy for a while, so that the host and the copies run ahead of it."""
    torch.cuda._sleep(20_000_000)


def test_batches_are_complete_if_training_is_slower_than_loading(
    data: SyntheticClicksDataModule, expected: list[torch.Tensor]
) -> None:
    seen = []
    for batch in batches_of(data.train_dataloader()):
        assert batch.data.device.type == "cuda"
        busy()
        seen.append(batch.data.clone())
    assert len(seen) == BATCHES
    assert all(torch.equal(one.cpu(), other) for one, other in zip(seen, expected, strict=True))


def test_kept_batches_are_not_overwritten(data: SyntheticClicksDataModule, expected: list[torch.Tensor]) -> None:
    kept = list(batches_of(data.train_dataloader()))
    assert all(torch.equal(one.data.cpu(), other) for one, other in zip(kept, expected, strict=True))


def test_at_most_four_batches_are_on_the_device(data: SyntheticClicksDataModule) -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in batches_of(data.train_dataloader()):
        busy()
    assert torch.cuda.max_memory_allocated() - before <= 4 * data.layout.num_bytes(ROWS)


def test_an_incomplete_last_batch_is_loaded(data: SyntheticClicksDataModule) -> None:
    assert [batch.count for batch in data.test_dataloader()] == [ROWS, 1]


def test_a_graph_is_captured_while_batches_are_read(
    data: SyntheticClicksDataModule, expected: list[torch.Tensor]
) -> None:
    def decoded(batch: ClickBatch) -> torch.Tensor:
        clicks = batch.clicks()
        return clicks.labels.sum() + clicks.numerical.float().sum() + clicks.ids.sum()

    run = Graphed(decoded, graph=True)
    sums = [run(batch).clone() for batch in batches_of(data.train_dataloader())]
    assert len(run.captures) == 1
    for total, buffer in zip(sums, expected, strict=True):
        torch.testing.assert_close(total.cpu(), decoded(ClickBatch(buffer, data.layout, ROWS)), rtol=1e-4, atol=1.0)


def test_the_distribution_is_the_same_on_the_device() -> None:
    distribution = ClickDistribution(ClickLayout.of(tables_of()))
    sample = distribution.sample(BLOCK, 0)
    logits = distribution.logits(sample.ids.cuda(), sample.numerical.cuda())
    torch.testing.assert_close(logits.cpu(), sample.logits, rtol=1e-4, atol=1e-4)
    on_device = distribution.sample(BLOCK, 0, device=CUDA)
    assert abs(on_device.logits.mean().item() - sample.logits.mean().item()) < 0.1
    rows = torch.tensor([table.cardinality for table in distribution.layout.tables], device=CUDA)[:, None]
    assert bool(((on_device.ids >= 0) & (on_device.ids < rows)).all())


def test_a_pool_is_on_the_device() -> None:
    pool = ResidentClicksDataModule(
        name="criteo_resident", batch_size=ROWS, seed=1, steps_per_epoch=5, pool_batches=2, test_batches=2
    )
    pool.device = CUDA
    pool.setup("fit")
    assert [batch.data.device.type for batch in batches_of(pool.train_dataloader())] == ["cuda"] * 5
    assert pool.bayes_auc is not None and 0.75 < pool.bayes_auc < 0.85

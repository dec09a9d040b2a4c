"""DLRM's cost formulas against torch's flop counter, at full width on fake tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from src.batches.clicks import ClickLayout, EmbeddingTable
from src.models.dlrm.cost import bytes_per_sample, cost
from src.models.dlrm.network import DLRM
from src.models.dlrm.task import DLRMTask
from tests.support.random_clicks import PUBLISHED, random_clicks

ONE_HOT = [EmbeddingTable(f"cat_{i}.bin", rows) for i, rows in enumerate(PUBLISHED)]


@pytest.mark.parametrize(
    "sizes",
    [{}, {"interaction": "cat"}, {"interaction": "dcnv2"}, {"embedding_dim": 32, "bottom": (32,), "num_numerical": 3}],
    ids=str,
)
def test_formula_equals_torchs_flop_count(sizes: dict[str, Any]) -> None:
    batch = 4
    clicks = random_clicks(ONE_HOT, batch, sizes.get("num_numerical", 13))
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = DLRM(ONE_HOT, **sizes)
        with FlopCounterMode(display=False) as forward:
            network(clicks)
        with FlopCounterMode(display=False) as training:
            network(clicks).sum().backward()
    costs = cost(network, batch, 2)
    assert forward.get_total_flops() == batch * costs.flops_forward
    assert training.get_total_flops() == batch * costs.flops_training


def test_published_model_costs_the_baseline_figures() -> None:
    with torch.device("meta"):
        network = DLRM(ONE_HOT)
    costs = cost(network, 65_536, activation_bytes=2)
    assert costs.flops_training == pytest.approx(14.8e6, rel=0.005)
    assert costs.bytes_training == pytest.approx(107e3, rel=0.1)


def test_bytes_count_rows_activations_and_parameters() -> None:
    tables = [EmbeddingTable("cat_0.bin", 10), EmbeddingTable("cat_1.bin", 10, hotness=3)]
    with torch.device("meta"):
        network = DLRM(tables, embedding_dim=16, bottom=(32, 16), top=(24,), num_numerical=5)
    parameters = 5 * 32 + 32 + 32 * 16 + 16 + 24 * 24 + 24 + 24 + 1
    activations = 32 + 16 + 2 * 16 + 24 + 24 + 1
    batch, rows = 2 * 5 + 4 * 4, 4 * 16 * 4
    forward, training = bytes_per_sample(network, 64, 2)
    assert forward == pytest.approx(batch + rows + 2 * 2 * activations + 4 * parameters / 64)
    assert training == pytest.approx(batch + 3 * rows + 5 * 2 * activations + 24 * parameters / 64)
    wide = bytes_per_sample(network, 64, 2, number_bytes=4)  # a person's own numbers are float32
    assert [float32 - float16 for float32, float16 in zip(wide, (forward, training), strict=True)] == [10, 10]


def test_bytes_of_one_id_a_table_are_rows_and_gradients() -> None:
    """The dot interaction reads rows, in training twice; others take vectors."""
    tables, vectors = [EmbeddingTable("cat_0.bin", 10), EmbeddingTable("cat_1.bin", 10)], 2 * 16
    sizes: dict[str, Any] = {"embedding_dim": 16, "bottom": (32, 16), "top": (24,), "num_numerical": 5}
    for interaction, forward_bytes, training_bytes in [("dot", 4, 4 * 4 + 2 * 2), ("cat", 4 + 2 * 2, 3 * 4 + 5 * 2)]:
        with torch.device("meta"):
            network = DLRM(tables, interaction=interaction, **sizes)  # type: ignore[arg-type]
        features = network.interaction.num_features
        parameters = 5 * 32 + 32 + 32 * 16 + 16 + features * 24 + 24 + 24 + 1
        activations, batch = 32 + 16 + features + 24 + 1, 2 * 5 + 4 * 2
        forward, training = bytes_per_sample(network, 64, 2)
        assert forward == pytest.approx(batch + forward_bytes * vectors + 2 * 2 * activations + 4 * parameters / 64)
        rest = batch + 5 * 2 * activations + 24 * parameters / 64
        assert training == pytest.approx(rest + training_bytes * vectors)


@pytest.mark.parametrize(("number_dtype", "more"), [("float16", 0), ("float32", 26)])
def test_a_task_counts_the_bytes_of_its_own_clicks(number_dtype: str, more: int) -> None:
    layout = ClickLayout(13, (EmbeddingTable("cat_0.bin", 10),), ("int8",), number_dtype)
    with torch.device("meta"):
        network = DLRM(layout.tables)
    task: Any = SimpleNamespace(network=network, layout=layout, batch_size=64, activation_bytes=2, updates=1)
    assert DLRMTask.cost(task).bytes_forward == cost(network, 64, 2).bytes_forward + more

"""DLRM's shapes, initialisation, parameter names, and that a step never reads from the device."""

from functools import partial
from inspect import unwrap
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from src.batches.clicks import EmbeddingTable
from src.errors import UserError
from src.models.dlrm.embeddings import Lookup, PlainEmbeddings, Rule
from src.models.dlrm.network import DLRM, Interaction
from tests.support.random_clicks import TABLES, random_clicks

SMALL: dict[str, Any] = {"embedding_dim": 8, "bottom": (16, 8), "top": (12, 10), "cross_layers": 2, "cross_rank": 3}
BATCH = 5
KINDS = ["dot", "cat", "dcnv2"]


def make(kind: Interaction = "dot", **sizes: Any) -> DLRM:
    torch.manual_seed(0)
    return DLRM(**{"tables": TABLES, "interaction": kind, **SMALL, **sizes})


def shapes(network: DLRM) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def test_default_sizes_are_the_published_ones() -> None:
    with torch.device("meta"):
        network = DLRM([EmbeddingTable(f"cat_{i}.bin", 10) for i in range(26)])
    sizes = shapes(network)
    assert sizes["bottom.layers.0.weight"] == (512, 13) and sizes["bottom.layers.2.weight"] == (128, 256)
    assert sizes["embeddings.weights.25"] == (10, 128)
    assert sizes["top.layers.0.weight"] == (1024, 480) and sizes["top.layers.4.weight"] == (1, 256)
    assert sum(p.numel() for p in network.bottom.parameters()) == 171_392
    assert sum(p.numel() for p in network.top.parameters()) == 2_198_529


def test_state_dict_names_are_fixed() -> None:
    layers = [f"{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
    bottom, top = [f"bottom.layers.{name}" for name in layers[:4]], [f"top.layers.{name}" for name in layers]
    tables = [f"embeddings.weights.{i}" for i in range(3)]
    assert list(make().state_dict()) == [*bottom, *tables, *top]
    crossing = [f"interaction.{name}" for name in
                ("down.0.weight", "down.1.weight", "up.0.weight", "up.0.bias", "up.1.weight", "up.1.bias")]  # fmt: skip
    assert list(make("dcnv2").state_dict()) == [*bottom, *tables, *crossing, *top]
    dense = {id(p) for p in make_and_split("dcnv2")}
    assert len(dense) == len(bottom) + len(crossing) + len(top)


def make_and_split(kind: Interaction) -> list[Tensor]:
    """Returns the dense parameters, after a check that all other parameters are tables."""
    network = make(kind)
    dense, tables = list(network.dense_parameters()), list(network.embeddings.parameters())
    assert {id(p) for p in dense} | {id(p) for p in tables} == {id(p) for p in network.parameters()}
    assert not {id(p) for p in dense} & {id(p) for p in tables}
    return [*dense]


def test_initialisation_is_the_published_one() -> None:
    torch.manual_seed(0)
    network = DLRM([EmbeddingTable(f"cat_{i}.bin", 10) for i in range(26)])
    for mlp in (network.bottom, network.top):
        for number in range(mlp.num_hidden):
            weight, bias = (mlp.get_parameter(f"layers.{number}.{name}").detach() for name in ("weight", "bias"))
            fan_out, fan_in = weight.shape
            assert float(weight.std()) == pytest.approx((2 / (fan_in + fan_out)) ** 0.5, rel=0.05)
            assert float(bias.std()) == pytest.approx(fan_out**-0.5, rel=0.2)
    last = network.top.get_parameter("layers.4.weight").detach()
    assert float(last.abs().max()) <= 256**-0.5  # torch's own: uniform
    assert not network.top.get_parameter("layers.0.weight")[:, 479:].any()


def test_weights_of_the_padding_stay_zero() -> None:
    network = make()
    first = network.top.get_parameter("layers.0.weight")
    optimizer = torch.optim.SGD(network.dense_parameters(), lr=0.1)
    clicks = random_clicks(TABLES, BATCH)
    before = first.detach().clone()
    for _ in range(3):
        F.binary_cross_entropy_with_logits(network(clicks), clicks.labels).backward()
        optimizer.step()
        network.embeddings.update(torch.tensor(0.1))
    assert first.shape[1] == 16 and not first[:, 8 + 6 :].any()
    assert not torch.equal(first[:, : 8 + 6], before[:, : 8 + 6])


def test_an_unfinished_lookup_can_be_hashed() -> None:
    """As torch.compile of torch 2.11 does."""
    assert len({object.__new__(Lookup), object.__new__(Lookup)}) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_tables", "dim", "hotness"), [(1, 8, 1), (2, 5, 3), (40, 4, 1)])
def test_any_number_and_width_of_tables_works(kind: Interaction, num_tables: int, dim: int, hotness: int) -> None:
    tables = [EmbeddingTable(f"cat_{i}.bin", 7, hotness) for i in range(num_tables)]
    network = make(kind, tables=tables, embedding_dim=dim, bottom=(6, dim), num_numerical=2)
    logits = network(random_clicks(tables, BATCH, num_numerical=2))
    assert logits.shape == (BATCH,) and logits.dtype == torch.float32 and logits.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_applies_to_the_whole_network(kind: Interaction) -> None:
    network = make(kind)
    clicks = random_clicks(TABLES, BATCH)
    seen: list[torch.dtype] = []
    for module in (network.bottom, network.embeddings, network.interaction, network.top):
        module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    exact = network(clicks)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(clicks)
    assert seen == [torch.bfloat16] * 4
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_nothing_from_the_device(kind: Interaction, rule: Rule) -> None:
    """Fake tensors, like a CUDA graph, allow neither reads by the host nor shapes that depend on values."""
    clicks = random_clicks(TABLES, BATCH)
    with FakeTensorMode(allow_non_fake_inputs=True):
        network = make(kind, embeddings=partial(PlainEmbeddings, optimizer=rule))
        F.binary_cross_entropy_with_logits(network(clicks), clicks.labels).backward()
        found_inf = network.embeddings.overflowed()
        network.embeddings.update(torch.full((), 0.1), found_inf, torch.full((), 8.0))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bottom": (16, 9)}, r"bottom=\[16, 9\] must end with embedding_dim=8"),
        ({"bottom": ()}, r"bottom=\[\] must end with embedding_dim=8"),
        ({"tables": ()}, "DLRM needs numerical and categorical features, not 13 and 0"),
        ({"num_numerical": 0}, "DLRM needs numerical and categorical features, not 0 and 3"),
        ({"interaction": "sum"}, "interaction=sum is unknown; give dot, cat or dcnv2"),
    ],
)
def test_inconsistent_sizes_are_errors(sizes: dict[str, Any], message: str) -> None:
    network = DLRM.__new__(DLRM)
    with pytest.raises(UserError, match=message):
        unwrap(DLRM.__init__)(network, **{"tables": TABLES, **SMALL, **sizes})

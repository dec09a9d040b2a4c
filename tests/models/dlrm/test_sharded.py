"""Sharded embedding tables on 1, 2 and 4 gloo ranks against `PlainEmbeddings`: losses, updates and weights."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from src.batches.clicks import Clicks, EmbeddingTable
from src.errors import UserError
from src.models.dlrm.embeddings import PlainEmbeddings, Rule
from src.models.dlrm.network import DLRM
from src.models.dlrm.pieces import BLOCK_ROWS
from src.models.dlrm.sharded import ShardedEmbeddings
from src.models.dlrm.sharded_pieces import gathered
from tests.support.gloo_ranks import Ranks

pytestmark = pytest.mark.slow

TABLES = tuple(
    EmbeddingTable(f"cat_{i}.bin", *sizes) for i, sizes in enumerate([(3,), (37, 3), (50,), (64, 2), (5,), (41,)])
)
KINDS = ["data_parallel", "table_wise", "row_wise", "column_wise"]
WHOLE = {table.name: KINDS[i % 2] for i, table in enumerate(TABLES)}
MIXED = {table.name: (KINDS * 2)[i] for i, table in enumerate(TABLES)}
DIM, NUMERICAL, BATCH, STEPS = 64, 4, 32, 50
LOSS_SCALE = 128.0
TABLE_LR = {"sgd": 50.0, "adagrad": 0.3}  # the tables' learning rate over that of the layers


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    """Groups of gloo ranks by their size."""
    started = {count: Ranks(count, tmp_path_factory.mktemp("ranks")) for count in (1, 2, 4)}
    yield started
    for group in started.values():
        group.close()


def make_network(embeddings: Any) -> DLRM:
    torch.manual_seed(0)
    return DLRM(TABLES, NUMERICAL, DIM, bottom=(16, DIM), top=(16,), embeddings=embeddings)


def batch_of(step: int, begin: int, end: int) -> Clicks:
    """Returns rows begin to end of a step's global batch. Small ids are frequent; labels depend on ids only."""
    random = torch.Generator().manual_seed(step)
    numerical = torch.randn(BATCH, NUMERICAL, generator=random).half()
    ids = [(torch.rand(BATCH, t.hotness, generator=random) ** 2 * t.cardinality).int() for t in TABLES]
    labels = ((ids[0] + ids[2] + ids[5])[:, 0] % 3 == 0).float()
    return Clicks(labels[begin:end], numerical[begin:end], torch.cat([column[begin:end].flatten() for column in ids]))


def trained(network: DLRM, model: nn.Module, rank: int, world: int, steps: int = STEPS) -> list[float]:
    """Trains on this rank's share of the global batches with a varying learning rate; returns the losses."""
    share = BATCH // world
    losses = []
    for step in range(steps):
        lr, scale = 0.1 * (1 + step % 5), torch.tensor(LOSS_SCALE)
        clicks = batch_of(step, rank * share, (rank + 1) * share)
        loss = binary_cross_entropy_with_logits(model(clicks), clicks.labels)
        (loss * scale).backward()
        for parameter in network.dense_parameters():
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=lr / LOSS_SCALE)
            parameter.grad = None
        network.embeddings.update(lr * TABLE_LR[network.embeddings.optimizer] / scale, None, scale)  # type: ignore[operator]
        losses.append(loss.item())
    return losses


def train_sharded(optimizer: Rule, sharding: dict[str, str], engine: str, state: Path) -> dict[str, Any]:
    """Trains on each rank; returns losses, plan, and the state_dict, which is whole on rank 0."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    network = make_network(partial(ShardedEmbeddings, optimizer=optimizer, sharding=sharding, engine=engine))
    assert isinstance(network.embeddings, ShardedEmbeddings)
    network.embeddings.place(torch.device("cpu"), BATCH // world)
    network.load_state_dict(torch.load(state, mmap=True))
    with torch.inference_mode():  # TorchRec's buffers of a first call here must be usable in training
        before = network(batch_of(0, rank * BATCH // world, (rank + 1) * BATCH // world)).clone()
    losses = trained(network, DistributedDataParallel(network), rank, world)
    held, plan = type(network.embeddings.held).__name__, network.embeddings.plan
    return {"before": before, "losses": losses, "plan": plan, "held": held, "state": dict(network.state_dict())}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The plain network's first state, losses and last state, by optimizer."""
    results = {}
    for optimizer in ("sgd", "adagrad"):
        network = make_network(partial(PlainEmbeddings, optimizer=optimizer))
        first = tmp_path_factory.mktemp("twin") / f"{optimizer}.pt"
        torch.save(network.state_dict(), first)
        before = network(batch_of(0, 0, BATCH)).detach()
        losses = trained(network, network, 0, 1)
        results[optimizer] = {"first": first, "before": before, "losses": losses, "state": network.state_dict()}
    return results


CASES = [
    (2, "sgd", MIXED, "torchrec"),
    (4, "adagrad", MIXED, "torchrec"),
    (2, "sgd", MIXED, "auto"),
    *((world, optimizer, WHOLE, "auto") for world in (1, 4) for optimizer in ("sgd", "adagrad")),
]
OTHERS = [
    *((2, "sgd", dict.fromkeys(MIXED, kind), "torchrec") for kind in KINDS),
    *((world, "sgd", MIXED, "torchrec") for world in (1, 4)),
    (2, "adagrad", MIXED, "torchrec"),
    *((2, "sgd", dict.fromkeys(WHOLE, kind), "auto") for kind in KINDS[:2]),
    *((2, optimizer, WHOLE, "auto") for optimizer in ("sgd", "adagrad")),
]


@pytest.mark.parametrize(
    ("world", "optimizer", "sharding", "engine"),
    CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS],
)
def test_losses_over_50_steps_equal_those_of_plain_embeddings(
    world: int, optimizer: str, sharding: dict[str, str], engine: str, ranks: dict[int, Ranks], twins: dict[str, Any]
) -> None:
    twin = twins[optimizer]
    results = ranks[world](train_sharded, optimizer, sharding, engine, twin["first"])
    assert_close(torch.cat([result["before"] for result in results]), twin["before"])
    losses = torch.tensor([result["losses"] for result in results], dtype=torch.float64).mean(0)
    assert_close(losses, torch.tensor(twin["losses"], dtype=torch.float64), rtol=1e-5, atol=1e-5)
    saved = results[0]["state"]
    assert saved.keys() == twin["state"].keys()
    first = torch.load(twin["first"])
    for name, value in twin["state"].items():
        largest = value.abs().max().item()
        assert_close(saved[name], value, rtol=0, atol=1e-4 * largest, msg=name)
        assert (value - first[name]).abs().max() > 0.1 * largest or "embeddings" not in name
    ours = engine == "auto" and sharding != MIXED
    assert {result["held"] for result in results} == {"TableWiseTables" if ours else "TorchRecTables"}
    kinds = {p.table.name: p.sharding for p in results[0]["plan"]}
    assert kinds.keys() == sharding.keys() and (kinds == sharding or world == 1), kinds
    assert not ours or {*kinds.values()} <= {"table_wise", "data_parallel"}, kinds


def saved_again(optimizer: Rule, state: Path | None) -> dict[str, Tensor]:
    """Returns this rank's state_dict of tables in mixed shardings, initialised or loaded from `state`."""
    torch.manual_seed(7 + distributed.get_rank())
    embeddings = ShardedEmbeddings(TABLES, DIM, optimizer=optimizer, sharding=MIXED)
    embeddings.place(torch.device("cpu"), BATCH)
    if state is not None:
        embeddings.load_state_dict(part_of(torch.load(state)))
    return dict(embeddings.state_dict())


def part_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("embeddings."): value for name, value in state.items() if name.startswith("embeddings.")}


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_plain_checkpoint_is_loaded_and_saved_bit_by_bit(
    world: int, optimizer: str, ranks: dict[int, Ranks], twins: dict[str, Any], tmp_path: Path
) -> None:
    state = twins[optimizer]["state"]
    torch.save(state, tmp_path / "state.pt")
    saved, *others = ranks[world](saved_again, optimizer, tmp_path / "state.pt")
    expected = part_of(state)
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], value) for name, value in expected.items())
    assert all(other == {} for other in others)


def test_initial_weights_are_uniform_and_independent_of_the_number_of_ranks(ranks: dict[int, Ranks]) -> None:
    one, two, four = (ranks[world](saved_again, "adagrad", None)[0] for world in (1, 2, 4))
    for name, value in one.items():
        assert torch.equal(two[name], value) and torch.equal(four[name], value)
        kind, number = name.split(".")
        if kind == "accumulators":
            assert not value.any()
            continue
        bound = TABLES[int(number)].cardinality ** -0.5
        assert value.abs().max() <= bound
        assert value.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert abs(value.mean().item()) < bound / 4
    assert not torch.equal(one["weights.0"][0], one["weights.0"][1])


LARGE = tuple(
    EmbeddingTable(f"cat_{i}.bin", rows) for i, rows in enumerate([7, 2 * BLOCK_ROWS + 4321, BLOCK_ROWS + 1, 50])
)


def started(sharding: dict[str, str], engine: str) -> dict[str, Tensor]:
    """Returns this rank's state_dict of a new DLRM with tables of several blocks of rows."""
    torch.manual_seed(7 + distributed.get_rank())
    embeddings = partial(ShardedEmbeddings, sharding=sharding, engine=engine)
    network = DLRM(LARGE, NUMERICAL, 4, bottom=(8, 4), top=(8,), embeddings=embeddings)
    assert isinstance(network.embeddings, ShardedEmbeddings)
    network.embeddings.place(torch.device("cpu"), BATCH)
    return dict(network.state_dict())


@pytest.mark.parametrize(
    ("world", "kind", "engine"),
    [(1, None, "auto"), (4, None, "auto"), (2, "data_parallel", "auto"), (4, "row_wise", "auto"),
     (2, "column_wise", "auto"), (4, "table_wise", "torchrec"), (2, "data_parallel", "torchrec")],
)  # fmt: skip
def test_a_network_begins_alike_with_whole_and_with_cut_tables(
    world: int, kind: str | None, engine: str, ranks: dict[int, Ranks]
) -> None:
    """The layers after the tables too: drawing tables must take as many random numbers wherever they are."""
    torch.manual_seed(7)
    plain = DLRM(LARGE, NUMERICAL, 4, bottom=(8, 4), top=(8,)).state_dict()
    state, *_ = ranks[world](started, {} if kind is None else {table.name: kind for table in LARGE}, engine)
    assert state.keys() == plain.keys()
    assert [name for name, value in plain.items() if not torch.equal(state[name], value)] == []


class Largest(TorchDispatchMode):
    """Records the sizes of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.sizes += [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


def sizes_while_saving(rows: int, dim: int, kind: str) -> list[int]:
    embeddings = ShardedEmbeddings([EmbeddingTable("large", rows)], dim, sharding={"large": kind})
    embeddings.place(torch.device("cpu"), BATCH)
    shards = embeddings.plan[0].shards(dim)  # type: ignore[index]
    local = embeddings.held.weights(0)  # type: ignore[union-attr]
    with Largest() as largest:
        whole = gathered(shards, local, (rows, dim), torch.device("cpu"))
    assert (whole is not None) == (distributed.get_rank() == 0)
    return largest.sizes


@pytest.mark.parametrize("kind", ["row_wise", "column_wise", "table_wise"])
def test_a_table_is_gathered_in_blocks(kind: str, ranks: dict[int, Ranks]) -> None:
    """Except for the whole table on rank 0's CPU, no tensor is larger than a block."""
    rows, dim = 5 * BLOCK_ROWS // 2, 64
    first, second = ranks[2](sizes_while_saving, rows, dim, kind)
    assert [size for size in first if size > BLOCK_ROWS * dim] == [rows * dim]
    assert all(size <= BLOCK_ROWS * dim for size in second)


def error_of(memory_bytes: float | None, sharding: dict[str, str]) -> str:
    embeddings = ShardedEmbeddings(TABLES, DIM, sharding=sharding)
    with pytest.raises(UserError) as caught:
        embeddings.place(torch.device("cpu"), BATCH, memory_bytes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("memory_bytes", "sharding", "words"),
    [
        (20e3, {}, ["tables do not fit", "6 tables take 4.77e-05 GiB with sgd", "cat_3.bin", "2 rank(s) of"]),
        (None, {"cat_9.bin": "row_wise"}, ["sharding.cat_9.bin", "cat_0.bin to cat_5.bin"]),
        (None, {"cat_0.bin": "diagonal"}, ["sharding.cat_0.bin=diagonal", "row_wise"]),
    ],
)
def test_every_rank_reports_why_there_is_no_plan(
    memory_bytes: float | None, sharding: dict[str, str], words: list[str], ranks: dict[int, Ranks]
) -> None:
    messages = ranks[2](error_of, memory_bytes, sharding)
    assert messages[0] == messages[1] and "\n" not in messages[0]
    assert all(word in messages[0] for word in words), messages[0]


def overflow_on_one_rank(optimizer: Rule) -> dict[str, Any]:
    """Takes two steps in bfloat16: with an infinite gradient on rank 0, then with finite ones."""
    embeddings = ShardedEmbeddings(TABLES, DIM, optimizer=optimizer, sharding=MIXED)
    embeddings.place(torch.device("cpu"), BATCH)
    before, overflows, changed = dict(embeddings.state_dict()), [], []
    for factor in (float("inf") if distributed.get_rank() == 0 else 1.0, 1.0):
        with torch.autocast("cpu", torch.bfloat16):
            vectors = embeddings(batch_of(0, 0, 16).ids, 16)
        gradient = torch.ones_like(vectors)
        gradient[0, 1, 0] *= factor
        vectors.backward(gradient)
        overflows.append(embeddings.overflowed())
        embeddings.update(torch.tensor(1.0), overflows[-1])
        after = dict(embeddings.state_dict())
        changed.append([not torch.equal(after[name], value) for name, value in before.items()])
        assert all(value.isfinite().all() for value in after.values())
    return {"dtype": vectors.dtype, "found": [overflow.item() for overflow in overflows], "changed": changed}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_an_overflow_on_one_rank_skips_the_update_on_all(optimizer: str, ranks: dict[int, Ranks]) -> None:
    results = ranks[2](overflow_on_one_rank, optimizer)
    assert [result["found"] for result in results] == [[1.0, 0.0]] * 2
    assert [result["dtype"] for result in results] == [torch.bfloat16] * 2
    assert not any(results[0]["changed"][0]) and all(results[0]["changed"][1])


def test_before_place_only_names_and_shapes_exist() -> None:
    embeddings = ShardedEmbeddings(TABLES, DIM, optimizer="adagrad")
    plain = PlainEmbeddings(TABLES, DIM, optimizer="adagrad").state_dict()
    shapes = {name: value.shape for name, value in embeddings.state_dict().items()}
    assert shapes == {name: value.shape for name, value in plain.items()}
    assert not list(embeddings.parameters())
    with pytest.raises(RuntimeError, match="before `place`"):
        embeddings(batch_of(0, 0, 1).ids, 1)

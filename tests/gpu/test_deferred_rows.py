"""Steps of embedding rows that are taken later are those that Adam's kernels take at once, in Triton's interpreter."""

import copy
import gc
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.batches.step import StepBatches
from src.batches.tokens import PackedTokens
from src.gpu import deferred_rows, triton_helpers
from src.models.distilbert.fast import rows
from src.models.distilbert.fast.embedding import FastEmbeddings
from src.models.distilbert.network import Sizes
from src.training import adam
from src.training.step import TrainStep
from tests.training.test_small_steps import MeanTask, nothing

SIZES = Sizes(vocab_size=24, max_position_embeddings=8, dim=12, n_heads=1)
RING = 4
UNSEEN = 23  # an id that no batch has
# Repeated ids, padding (0), an id at both ends of a ring (7), one that comes once (9), and steps that lack most.
IDS = [[1, 2, 7, 7, 0], [1, 7, 3], [1, 2, 2, 9], [1, 4], [1, 4, 0], [1, 7], [5], [5, 1, 7], [6], [6], [6], [1, 2, 3]]

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    monkeypatch.setattr(deferred_rows, "RING", RING)
    monkeypatch.setattr(deferred_rows, "WIDEST", 8)  # of 12 columns
    monkeypatch.setattr(rows, "SUM_BY_ID", {"WIDTH": 8, "BLOCK": 2, "WINDOW": 2, "num_warps": 1})
    monkeypatch.setattr(adam, "LARGE", 100)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that fills with the rows' kernels."""
    names: list[str] = []
    launch = triton_helpers.launch

    def noted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        names.append(kernel.fn.__name__ + (" of all" if arguments[0] is None else ""))
        launch(kernel, grid, *arguments, **constants)

    monkeypatch.setattr(deferred_rows, "launch", noted)
    return names


class EmbeddingTask(MeanTask):
    """Its loss is of the embedded tokens, read `reads` times."""

    def __init__(
        self, kind: Any = torch.optim.AdamW, reads: int = 1, sizes: Sizes = SIZES, device: str = "cpu", **options: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.device, self.losses = torch.device(device), self.losses.to(device)
        self.network, self.reads = FastEmbeddings(sizes, dropout=0.0).to(device), reads
        self.words = self.network.word_embeddings.weight
        groups = [{"params": [self.words]}, {"params": list(self.network.parameters())[1:], "weight_decay": 0.0}]
        inner = kind(groups, **{"lr": 0.1, "weight_decay": 0.1, "fused": True, **options})
        adam.use_kernels(inner)
        self.optimizer = SimpleNamespace(optimizer=inner, _on_before_step=nothing, _on_after_step=nothing)

    @property
    def adam(self) -> torch.optim.Adam:
        return self.optimizer.optimizer  # type: ignore[return-value]

    def trained_parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def loss(self, batch: PackedTokens) -> dict[str, Tensor]:
        weights = torch.arange(1.0, self.words.shape[1] + 1, device=self.device).cos()
        return {"loss": sum((self.network(batch).sin() @ weights).sum() for _ in range(self.reads))}  # type: ignore[dict-item]

    def arrays(self) -> list[Tensor]:
        """Returns copies of the weights and the state, read as anybody may, after the optimiser was asked for its."""
        states = self.adam.state_dict()["state"]
        return [
            tensor.clone() for tensor in (*self.trained_parameters(), *(v for s in states.values() for v in s.values()))
        ]


def batch_of(ids: Sequence[int]) -> StepBatches:
    tokens, count = torch.tensor(ids, dtype=torch.int32), len(ids)
    starts = torch.tensor([0, count], dtype=torch.int32)
    packed = PackedTokens(tokens, torch.arange(count, dtype=torch.int32), starts, torch.zeros(1, dtype=torch.int64), 8)
    return StepBatches.of([packed], [[1]], rank=0)


def train(
    task: EmbeddingTask,
    defers: bool,
    steps: Sequence[int] = range(len(IDS)),
    between: Callable[[int], None] = lambda _: None,
) -> TrainStep:
    """Takes these steps; calls `between` after each."""
    run = TrainStep(task, graph=False, warmup_steps=1, defers=defers)
    for number in steps:
        run(batch_of(IDS[number]))
        between(number)
    return run


def assert_same(ours: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Raises AssertionError unless tensors are equal to rounding that twelve steps have enlarged.

    A square's root after n steps is computed as the one before times the root of beta2^n. It differs in its last bits,
    by which so do the step, weights, and further gradients: 2^-20 of small ones. With one root for each step the bits
    were equal. `test_one_root_for_all_steps_...` compares both with float64.
    """
    for mine, other in zip(ours, others, strict=True):
        torch.testing.assert_close(mine, other, rtol=2**-19, atol=2**-21 * float(other.detach().abs().max()))


def caught_up(
    device: str, lr: float, betas: tuple[float, float], count: int, root_once: bool
) -> tuple[list[Tensor], float]:
    """Returns weights and averages after `count` steps that all rows have missed, and the weights' error.

    The error is that against the same steps in float64, of the norm. Each step has another learning rate.

    Args:
        root_once: compute an element's root once; otherwise in each step, as with a penalty.
    """
    generator = torch.Generator().manual_seed(0)
    words, average, square = (torch.randn(4, 768, generator=generator).to(device) for _ in range(3))
    state = {"step": torch.tensor(1000.0, device=device), "exp_avg": average / 64, "exp_avg_sq": (square / 64) ** 2}
    (beta1, beta2), eps = betas, 1e-8
    rows_behind = deferred_rows.Rows(nn.Parameter(words), state, {}, (beta1, 1 - beta1, beta2, 1 - beta2, 0.0, eps))
    assert rows_behind.powers is not None
    rows_behind.powers = rows_behind.powers if root_once else None
    ring = len(rows_behind.history)
    steps = torch.arange(1001, 1001 + count, dtype=torch.float64)
    size, root = 0.9 ** (steps - 1000) * lr / (1 - beta1**steps), (1 - beta2**steps) ** -0.5
    factors = torch.stack([size, root, 0.01 * size], 1).float().to(device)
    rows_behind.history[steps.long() % ring] = factors
    exact, first, second = words.double(), state["exp_avg"].double(), state["exp_avg_sq"].double()
    beta1, beta2, eps = torch.tensor([beta1, beta2, eps]).tolist()  # in float32, as the kernel reads them
    for size, root, decay in factors.double():
        exact, first, second = exact * (1 - decay), first * beta1, second * beta2
        exact = exact - size * first / (second.sqrt() * root + eps)
    state["step"] += count
    rows_behind.catch_up()
    return [words, state["exp_avg"], state["exp_avg_sq"]], float((words.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("lr", [0.1, 5e-5])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_one_root_for_all_steps_is_no_less_exact_than_one_for_each(
    lr: float, betas: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred_rows, "WIDEST", 1024)  # fewer programs
    compare_roots("cpu", lr, betas, largest=1e-6)


def compare_roots(device: str, lr: float, betas: tuple[float, float], largest: float) -> None:
    """Checks one root for all missed steps against one for each: averages are equal, weights as near to float64's."""
    for count in (1, RING):
        ours, error = caught_up(device, lr, betas, count, root_once=True)
        others, other_error = caught_up(device, lr, betas, count, root_once=False)
        assert torch.equal(ours[1], others[1]) and torch.equal(ours[2], others[2])
        assert other_error < largest
        assert error < max(1.1 * other_error, 2**-23)  # half an ulp of all weights is already 2**-24


def test_a_penalty_or_a_tiny_eps_takes_a_root_in_each_step() -> None:
    for kind, eps, is_once in ((torch.optim.AdamW, 1e-8, True), (torch.optim.Adam, 1e-8, False),
                               (torch.optim.AdamW, 1e-30, False)):  # fmt: skip
        task = EmbeddingTask(kind, eps=eps)
        run = train(task, True, range(2))
        assert run.deferred is not None
        (rows_behind,) = run.deferred.rows.values()
        assert (rows_behind.powers is not None) == is_once


OTHERS: Options = {"betas": (0.5, 0.9), "eps": 1e-3}


@pytest.mark.parametrize(
    ("kind", "tensor_rate", "options"),
    [
        (torch.optim.Adam, False, {}),
        (torch.optim.AdamW, True, {}),
        (torch.optim.Adam, True, OTHERS),
        (torch.optim.AdamW, False, OTHERS),
    ],
)
def test_deferred_steps_are_those_taken_at_once(
    kind: Any, tensor_rate: bool, options: Options, launched: list[str]
) -> None:
    """With a learning rate that changes in each step. Rows are behind only until all catch up after RING steps."""
    results = []
    for defers in (True, False):
        task = EmbeddingTask(kind, lr=torch.tensor(0.1) if tensor_rate else 0.1, **options)

        def slow_down(_: int, task: EmbeddingTask = task) -> None:
            for group in task.adam.param_groups:
                group["lr"] *= 0.8

        before = task.words.detach().clone()
        train(task, defers, between=slow_down).close()
        assert type(task.words) is nn.Parameter
        assert not torch.equal(task.words[UNSEEN], before[UNSEEN])
        results.append(task.arrays())
    assert_same(*results)
    of_step, of_ring = ["catch_up", "update_rows"], ["catch_up of all"]
    assert launched == [
        *of_step * RING,
        *of_ring,
        *of_step * RING,
        *of_ring,
        *of_step * (len(IDS) - 1 - 2 * RING),
        *of_ring,
    ]


READERS: dict[str, Callable[[EmbeddingTask], Tensor]] = {
    "use": lambda task: task.words + 0,
    "detach": lambda task: task.words.detach(),
    "data": lambda task: task.words.data,
    "foreach": lambda task: torch._foreach_mul([task.words], 1.0)[0],  # type: ignore[attr-defined]
    "numpy": lambda task: torch.from_numpy(task.words.detach().numpy()),
    "state_dict": lambda task: task.network.state_dict()["word_embeddings.weight"],
    "parameters": lambda task: next(iter(task.network.parameters())).clone(),
    "deepcopy": lambda task: copy.deepcopy(task.network).word_embeddings.weight.detach(),
    "optimizer": lambda task: task.adam.state_dict()["state"][0]["exp_avg"],
    "settle": lambda task: deferred_rows.settle() or task.adam.state[task.words]["exp_avg_sq"],  # type: ignore[func-returns-value]
    "forward": lambda task: task.network(batch_of([UNSEEN, 7, 9]).batches[0]),
    "plain forward": lambda task: super(FastEmbeddings, task.network).forward(batch_of([UNSEEN, 7, 9]).batches[0]),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_sees_a_row_that_is_behind(name: str) -> None:
    """Reads in mid-training change nothing later."""
    ours, others = read_while_training((name,), True), read_while_training(tuple(READERS), False)
    assert_same([*ours[0][name], *ours[1]], [*others[0][name], *others[1]])


@cache
def read_while_training(names: tuple[str, ...], defers: bool) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """Returns what readers saw after some steps, and the arrays after all."""
    task, values = EmbeddingTask(), {name: list[Tensor]() for name in names}

    def read(number: int) -> None:
        if number in (2, 5, 6):
            for name in names:
                values[name].append(READERS[name](task).detach().clone())

    train(task, defers, between=read)
    return values, task.arrays()


def test_memory_that_is_read_without_torch_is_up_to_date_in_an_evaluation() -> None:
    """As by an evaluation's CUDA graph."""
    results = []
    for defers in (True, False):
        task, values = EmbeddingTask(), list[Tensor]()
        memory = task.words.detach()

        def evaluate(
            number: int, task: EmbeddingTask = task, values: list[Tensor] = values, memory: Tensor = memory
        ) -> None:
            if number % 3 == 2:
                task.network.eval()
                values.append(memory.clone())
                task.network.train()

        train(task, defers, between=evaluate)
        results.append(values)
    assert_same(*results)


def test_a_state_saved_in_mid_training_goes_on_either_way() -> None:
    whole = EmbeddingTask()
    train(whole, False)
    for order in ((True, True), (True, False), (False, True)):
        task = EmbeddingTask()
        train(task, order[0], range(6))
        saved = copy.deepcopy((task.network.state_dict(), task.adam.state_dict()))
        resumed = EmbeddingTask()
        resumed.network.load_state_dict(saved[0])
        resumed.adam.load_state_dict(saved[1])
        train(resumed, order[1], range(6, len(IDS)))
        assert_same(resumed.arrays(), whole.arrays())


def test_weights_and_a_state_loaded_in_mid_training_are_taken() -> None:
    first = EmbeddingTask()
    train(first, False, range(3))
    saved = copy.deepcopy((first.network.state_dict(), first.adam.state_dict()))
    results = []
    for defers in (True, False):
        task = EmbeddingTask()

        def load(number: int, task: EmbeddingTask = task) -> None:
            if number == 5:
                task.network.load_state_dict(saved[0])
            if number == 7:
                task.adam.load_state_dict(copy.deepcopy(saved[1]))
            if number == 8:
                with torch.no_grad():
                    task.words.mul_(2)

        train(task, defers, between=load)
        results.append(task.arrays())
    assert_same(*results)


def test_an_embedding_that_is_read_twice_a_step_is_updated_at_once(launched: list[str]) -> None:
    results = []
    for defers in (True, False):
        task = EmbeddingTask(reads=2)
        train(task, defers)
        results.append(task.arrays())
    assert_same(*results)
    assert not launched


def test_a_second_read_or_gradient_in_a_later_step_is_an_error() -> None:
    task = EmbeddingTask()
    run = train(task, True, range(2))
    task.reads = 2
    with pytest.raises(RuntimeError, match="read twice"):
        run(batch_of([1]))
    task = EmbeddingTask()
    run, plain = train(task, True, range(2)), task.loss
    task.loss = lambda batch: {"loss": plain(batch)["loss"] + task.words.sum()}  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="second gradient"):
        run(batch_of([1]))


def test_rows_outlive_their_training_step() -> None:
    """The network may be read when nobody holds what trained it, after an exception say."""
    task, other = EmbeddingTask(), EmbeddingTask()
    train(task, True, range(4))
    train(other, False, range(4))
    words = task.words
    del task
    gc.collect()
    assert_same([words.detach()], [other.words.detach()])

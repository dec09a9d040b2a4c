"""Adam's steps of embedding rows that a batch does not read, taken when they are next read: equal to rounding.

Without a gradient, a row's step needs nothing but the row, its averages and the step's factors. So a row is read, and
written, once for all steps that it has missed. Rows that are behind are never seen: `DeferredRows` has all of them
catch up before an evaluation, a state_dict, the end of a training, and any other use of the parameter by torch.
Tensors that share its memory (`parameter.detach()`), made before training, are not watched: see `Task.defers_rows`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from src.gpu import triton_helpers
from src.gpu.triton_helpers import launch, power_of_2

NAME = "deferred_rows"  # in execution.kernels
RING = 64  # steps whose factors are kept, after which all rows catch up
CATCH_UP = {"num_warps": 2}  # a row a program: 12 of 768 numbers a thread, for which a step's factors are read once
WIDEST = 1024  # numbers of a row that a program has at once
LEAST_EPS = 2.0**-60  # whose square is a normal float32

Settings = tuple[float, ...]  # beta1, 1 - beta1, beta2, 1 - beta2, penalty, eps


@dataclass
class Rows:
    """The rows of one parameter [rows, dim] with what their steps read and write."""

    parameter: nn.Parameter
    state: dict[str, Tensor]  # the optimiser's
    group: dict[str, Any]  # likewise
    settings: Settings
    gradient: tuple[Any, ...] | None = None  # arguments of the newest `give`
    last: Int[Tensor, " rows"] = field(init=False)  # the step that a row is at
    history: Float[Tensor, "ring 3"] = field(init=False)
    factors: Float[Tensor, "3 1"] = field(init=False)
    powers: Float[Tensor, " ring"] | None = field(init=False)  # of `deferred_rows_triton.catch_up`
    table: Int64[Tensor, "8 1"] = field(init=False)  # of `adam_triton.advance`

    def __post_init__(self) -> None:
        self.weights, step = self.parameter.detach(), self.state["step"]
        self.last = step.to(torch.int32).reshape(1).repeat(len(self.weights))
        self.history, self.factors = self.weights.new_zeros(RING, 3), self.weights.new_zeros(3, 1)
        _, _, beta2, _, penalty, eps = self.settings
        exponents = torch.arange(1, RING + 1, dtype=torch.float64) / 2
        powers = torch.tensor(beta2, dtype=torch.float32).double() ** exponents  # of the beta2 that kernels read
        self.powers = powers.to(self.weights) if penalty == 0 and eps >= LEAST_EPS else None
        self.table = torch.tensor([[0]] * 4 + [[step.data_ptr()]] + [[0]] * 3, device=step.device)

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        return (
            self.weights,
            self.state["exp_avg"],
            self.state["exp_avg_sq"],
            self.last,
            self.state["step"],
            self.history,
        )

    def catch_up(self, in_order: Int[Tensor, " tokens"] | None = None) -> None:
        """Takes the steps that rows have missed: of the sorted ids, or of all."""
        from src.gpu import deferred_rows_triton

        count, columns = self.weights.shape
        launch(
            deferred_rows_triton.catch_up, (count if in_order is None else len(in_order),),
            in_order, self.powers, *self.arrays, *self.settings,
            COLUMNS=columns, WIDTH=min(WIDEST, power_of_2(columns)), RING=RING, **CATCH_UP,
        )  # fmt: skip

    def give(
        self, grad: Float[Tensor, "tokens dim"], in_order: Int[Tensor, " tokens"], order: Int64[Tensor, " tokens"],
        padding: int, shape: dict[str, int],
    ) -> None:  # fmt: skip
        """Takes the gradient of this step: `grad[order]` are gradients of the rows `in_order`, but of `padding` none.

        Args:
            shape: tile of `update_rows`, that of a sum by id.

        Raises RuntimeError where the step has given one already.
        """
        if self.gradient is not None:
            raise RuntimeError(f"an embedding was read twice in one step; leave {NAME} out of execution.kernels")
        self.gradient = grad, in_order, order, padding, shape

    def take_step(self) -> None:
        """Launches the step of the rows with a gradient, whose `factors` are of it; forgets the gradient."""
        from src.gpu import deferred_rows_triton

        assert self.gradient is not None
        (grad, in_order, order, padding, shape), self.gradient = self.gradient, None
        if self.parameter.grad is not None:
            raise RuntimeError(f"an embedding has a second gradient; leave {NAME} out of execution.kernels")
        columns = self.weights.shape[1]
        launch(
            deferred_rows_triton.update_rows, (len(in_order) * -(-columns // shape["WIDTH"]),),
            grad, in_order, order, len(in_order), padding, *self.arrays, self.factors, *self.settings,
            COLUMNS=columns, RING=RING, **shape,
        )  # fmt: skip


class DeferredRows:
    """The embeddings of one training whose rows' steps are deferred, from its second step on.

    The first one makes the optimiser's state, and says which embeddings are read once a step.

    Args:
        settings: returns those of a parameter group.
    """

    def __init__(self, optimizer: Optimizer, settings: Callable[[dict[str, Any]], Settings]) -> None:
        self.optimizer, self.settings = optimizer, settings
        self.rows: dict[int, Rows] = {}  # by the parameter's id
        self.uses: Counter[Tensor] = Counter()  # in the first step
        self.is_possible = True
        self.steps = 0  # since all rows were up to date
        self.hooks = [
            optimizer.register_state_dict_pre_hook(lambda _: self.settle()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.close()),
        ]
        _all.add(self)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Has `of` give rows within, where one training step is taken, or captured, or replayed."""
        global _active
        if self.uses and self.is_possible and not self.rows:
            self._begin()
        if self.steps == RING:
            self.settle()
        for rows in self.rows.values():
            rows.gradient = None  # of a step that failed
        self.steps += bool(self.rows)
        before, _active = _active, self
        try:
            yield
        finally:
            _active = before

    def _begin(self) -> None:
        self.is_possible = False
        groups = {parameter: group for group in self.optimizer.param_groups for parameter in group["params"]}
        for parameter, count in self.uses.items():
            state = self.optimizer.state.get(parameter)
            if count == 1 and state and parameter in groups and all(map(is_plain, (parameter, *state.values()))):
                assert isinstance(parameter, nn.Parameter)
                group = groups[parameter]
                self.rows[id(parameter)] = Rows(parameter, state, group, self.settings(group))
                parameter.__class__ = Watched
                parameter.deferred = self  # type: ignore[attr-defined] # for as long as its rows may be behind

    def rows_of(self, parameter: Tensor) -> Rows | None:
        if not self.rows and self.is_possible:
            # A graph that updates all rows would not know that some are behind.
            self.is_possible = not (parameter.is_cuda and torch.cuda.is_current_stream_capturing())
            self.uses[parameter] += 1
        return self.rows.get(id(parameter))

    def given(self) -> list[Rows]:
        """Returns the rows with a gradient."""
        return [rows for rows in self.rows.values() if rows.gradient is not None]

    def settle(self) -> None:
        """Takes the steps that rows have missed."""
        if self.steps:
            self.steps = 0
            for rows in self.rows.values():
                rows.catch_up()

    def close(self) -> None:
        """Settles; further steps update all rows, except in graphs that were captured before."""
        self.settle()
        for rows in self.rows.values():
            rows.parameter.__class__ = nn.Parameter
            del rows.parameter.deferred  # type: ignore[attr-defined]
        for hook in self.hooks:
            hook.remove()
        self.rows, self.is_possible = {}, False
        _all.discard(self)


class Watched(nn.Parameter):
    """A parameter whose rows catch up before torch uses it, unless a training step does."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settle()
        return nn.Parameter.__torch_function__(func, types, args, kwargs or {})


def is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.device.type in triton_helpers.devices


_all: WeakSet[DeferredRows] = WeakSet()
_active: DeferredRows | None = None


def settle() -> None:
    """Takes the steps that rows have missed, unless within a training step."""
    if _active is None:
        for deferred in list(_all):
            deferred.settle()


def of(parameter: Tensor) -> Rows | None:
    """Returns the rows of a parameter that must catch up, and be given the gradient, in this training step."""
    return _active.rows_of(parameter) if _active is not None else None


def given() -> list[Rows]:
    """Returns the rows that this training step has given a gradient."""
    return _active.given() if _active is not None else []

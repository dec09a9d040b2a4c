"""The last operator of a call that reads the memory of a tensor, after which a graph of the call needs it no more.

Python's variables keep tensors until their function returns: of RFdiffusion's 12 largest at the peak of a block, 4 are
read no more. `Lifetimes` watches a call, `Releases` frees such memory while a graph of the call is captured, so that
the graph's later tensors get it. Both count the memory that operators make in the same order.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

LEAST = 1 << 20  # bytes of memory that is freed: smaller tensors decide no peak
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Plan(NamedTuple):
    """What a graph may free: bytes by number of memory, and the numbers to free once so many were made."""

    sizes: list[int]
    freed: dict[int, list[int]]


def memory(tensor: Tensor) -> int:
    """Returns the address of the memory that views of a tensor share; 0 of one without, such as a sparse tensor."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Operations(ABC):
    """Numbers the memory that operators make."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, operator: Any, used: Iterable[Tensor], results: Iterable[Tensor], changed: Iterable[Tensor]) -> None:
        """Takes the tensors that an operator was given, returned and changed in place."""
        addresses = {memory(x) for x in used}
        made = {memory(x): x for x in reversed([*results]) if memory(x) not in {*addresses, 0}}
        if operator.is_view:
            return
        self.use(addresses, {memory(x) for x in changed})
        for address, tensor in reversed(made.items()):
            self.make(address, tensor, operator._schema.name.partition("::")[2] in EMPTY)
            self.count += 1

    @abstractmethod
    def use(self, addresses: Collection[int], changed: Collection[int]) -> None:
        """Takes the memory that an operator reads or changes."""

    @abstractmethod
    def make(self, address: int, tensor: Tensor, is_empty: bool) -> None:
        """Takes memory that an operator made."""


class Lifetimes(Operations):
    """Finds the last use of memory in an observed call.

    Kernels that are no operators are not seen. They get addresses by `data_ptr` (Triton), and such memory is kept; or
    they are called from C++, and then what they fill is read without having been written: nothing is freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_sure = True  # all uses were seen
        self.sizes: list[int] = []
        self.last: dict[int, int] = {}  # by number: how many will have been made after the next operator that makes one
        self.kept: set[int] = set()
        self.numbers: dict[int, int] = {}  # by address
        self.unwritten: set[int] = set()  # addresses

    def use(self, addresses: Collection[int], changed: Collection[int]) -> None:
        self.unwritten.difference_update(changed)
        self.is_sure &= self.unwritten.isdisjoint(addresses)
        self.last |= {self.numbers[x]: self.count + 1 for x in addresses if x in self.numbers}

    def make(self, address: int, tensor: Tensor, is_empty: bool) -> None:
        self.numbers[address] = self.count
        self.sizes.append(bytes_of(tensor))
        (self.unwritten.add if is_empty else self.unwritten.discard)(address)

    def keep(self, tensor: Tensor) -> None:
        """Excludes a tensor that something else than operators uses."""
        self.unwritten.discard(memory(tensor))
        if memory(tensor) in self.numbers:
            self.kept.add(self.numbers[memory(tensor)])

    def plan(self, outputs: Iterable[Tensor]) -> Plan:
        self.use([memory(x) for x in outputs], ())
        freed = defaultdict[int, list[int]](list)
        for number, count in self.last.items():
            if self.is_sure and count <= self.count and number not in self.kept and self.sizes[number] >= LEAST:
                freed[count].append(number)
        return Plan(self.sizes, dict(freed))


class Releases(Operations):
    """Frees the memory of a plan while its call is repeated."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.sizes, self.freed = plan
        self.made: list[StorageWeakRef] = []

    def note(self, operator: Any, used: Iterable[Tensor], results: Iterable[Tensor], changed: Iterable[Tensor]) -> None:
        before = self.count
        super().note(operator, used, results, changed)
        for number in [x for count in range(before, self.count) for x in self.freed.get(count + 1, ())]:
            storage = torch.UntypedStorage._new_with_weak_ptr(self.made[number].cdata)
            if storage is not None and storage.resizable():
                storage.resize_(0)

    def use(self, addresses: Collection[int], changed: Collection[int]) -> None:
        pass

    def check(self, used: Iterable[Tensor]) -> None:
        """Raises RuntimeError for a tensor whose memory was freed."""
        if any(x.layout == torch.strided and memory(x) == 0 for x in used):
            raise RuntimeError("its second call reads tensors that its first did not")

    def make(self, address: int, tensor: Tensor, is_empty: bool) -> None:
        self.made.append(StorageWeakRef(tensor.untyped_storage()))
        if self.sizes[self.count : self.count + 1] != [bytes_of(tensor)]:
            self.freed = {}  # other operators than in the observed call


def is_opaque(tensor: Tensor) -> bool:
    """Returns whether a tensor has memory beside its own."""
    return type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_nested

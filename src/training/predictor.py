"""A trained network with its preprocessing, ready to call; `Task.predictor` returns a model's own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float

I = TypeVar("I")  # noqa: E741 # the inputs
P = TypeVar("P")  # the predictions

AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(frozen=True)
class Inference:
    """How a predictor computes.

    Attributes:
        datamodule: instantiates the configured one; arguments override the config's.
        batch_size: inputs that the network takes at once.
        precision: Lightning's name of the precision, such as 32-true or bf16-mixed.
    """

    datamodule: Callable[..., Any]
    batch_size: int
    precision: str


class Classes(NamedTuple):
    """The probability of every class for each input."""

    label_names: Sequence[str]
    probabilities: Float[np.ndarray, "inputs classes"]

    @property
    def labels(self) -> list[str]:
        """The name of each input's likeliest class."""
        return [str(self.label_names[number]) for number in self.probabilities.argmax(1)]


class Values(NamedTuple):
    """One quantity of each input, in its natural unit."""

    name: str
    unit: str
    values: Float[np.ndarray, " inputs"]


class Predictor(ABC, Generic[I, P]):
    """A network in evaluation mode with the preprocessing of its training: call it with inputs.

    `network` is the model's nn.Module, `device` where it computes.
    """

    network: Any

    def __init__(self, device: torch.device, inference: Inference) -> None:
        self.device, self.inference = device, inference

    def __call__(self, inputs: I) -> P:
        """Returns the predictions of the inputs, in their order. Raises UserError for an input that cannot be one."""
        with in_precision(self.device, self.inference.precision):
            return self.predicted(inputs)

    @abstractmethod
    def predicted(self, inputs: I) -> P:
        """Does what a call does, within inference mode and the configured precision."""


@contextmanager
def in_precision(device: torch.device, precision: str, gradients: bool = False) -> Iterator[None]:
    """Computes in a precision of Lightning's name, without gradients unless they are asked for."""
    dtype = AUTOCAST.get(precision)
    mode = torch.enable_grad() if gradients else torch.inference_mode()
    with mode, torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        yield

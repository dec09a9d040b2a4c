"""Equality to the last bit of nested states, and the lasting parts of a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Not compared: versions, hyper-parameters, and Lightning's counters of how often a loop was entered.
LASTING = ("state_dict", "optimizer_states", "lr_schedulers", "MixedPrecision", "rng_of_ranks", "statistics_of_ranks",
           "callbacks", "epoch", "global_step")  # fmt: skip


def lasting_state(path: Path) -> dict[str, Any]:
    """Returns the state that must not depend on interruptions: weights, optimiser, scaler, schedulers, generators."""
    checkpoint = torch.load(path, weights_only=False)
    state = {key: checkpoint[key] for key in LASTING if key in checkpoint}
    for generators in state.get("rng_of_ranks", ()):
        del generators["python"]  # the shape checks of these tests draw from it to choose what they look at
    return state | {"position": checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]}


def assert_same_bits(actual: Any, expected: Any, where: str = "state") -> None:
    """Fails naming the first entry of two nested states that differs in type, shape or any bit."""
    assert type(actual) is type(expected), where
    if isinstance(expected, Tensor):
        assert actual.dtype == expected.dtype and torch.equal(actual, expected), where
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            assert_same_bits(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(actual) == len(expected), where
        for i, value in enumerate(expected):
            assert_same_bits(actual[i], value, f"{where}[{i}]")
    else:
        assert actual == expected, where

"""The description of a machine is made in a thread, and is that of the main thread."""

import threading
from typing import Any

import pytest

from src.measure import environment as module
from src.measure.environment import environment, environment_ahead


def test_it_is_the_same_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_PLAIN_START", "")
    assert environment_ahead(["hp.lr=1"])() == environment(["hp.lr=1"])


@pytest.mark.parametrize(
    ("switch", "fails", "main"), [("", False, [False]), ("", True, [False, True]), ("1", False, [True])]
)
def test_a_thread_describes_the_machine_unless_it_cannot(
    switch: str, fails: bool, main: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_main: list[bool] = []

    def described(overrides: list[str]) -> dict[str, Any]:
        in_main.append(threading.current_thread() is threading.main_thread())
        if fails and not in_main[-1]:
            raise OSError
        return {"overrides": overrides}

    monkeypatch.setenv("REPRISE_PLAIN_START", switch)
    monkeypatch.setattr(module, "environment", described)
    assert environment_ahead(["seed=1"])() == {"overrides": ["seed=1"]}
    assert in_main == main

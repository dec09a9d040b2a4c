"""Without DGL, the error message of a conversion says what to install."""

import sys

import pytest

from src.errors import UserError
from src.models.se3_transformer import to_dgl
from tests.support.se3_small import random_graph


def test_a_conversion_without_dgl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(UserError, match=r"DGL cannot be imported .*: pip install dgl==1\.1\.3") as raised:
        to_dgl(random_graph(), {})
    assert "\n" not in str(raised.value)

"""Types and shapes of hints are checked while tests run; `tests.support.shapes` says how."""

from typing import Any

import pytest
from jaxtyping import Float
from torch import Tensor, zeros

pytest.importorskip("beartype")
from tests.support.shapes import check, jaxtyped, with_shapes


def counted(count: int, rate: float = 1) -> str:
    return "" if count else None  # type: ignore[return-value]


def added(one: Float[Tensor, "rows 2"], other: Float[Tensor, "rows 2"]) -> Float[Tensor, " rows"]:
    return (one + other)[0]


@pytest.mark.parametrize("decorator", [jaxtyped, with_shapes])
def test_arguments_and_results_are_checked(decorator: Any) -> None:
    plain, shaped = (decorator(typechecker=check)(function) for function in (counted, added))
    assert plain(1) == "" and plain.__name__ == "counted"
    assert shaped(zeros(2, 2), zeros(2, 2)).shape == (2,)
    wrong = [(plain, ("1",)), (plain, (0,)), (shaped, (zeros(2, 2), zeros(3, 2))), (shaped, (zeros(3, 2), zeros(3, 2)))]
    for function, arguments in wrong:
        with pytest.raises(Exception, match=r"count|return|added"):
            function(*arguments)

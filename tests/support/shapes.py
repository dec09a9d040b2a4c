"""The type checker behind the shape hints: beartype, with an int allowed where a float is asked for (PEP 484).

jaxtyping checks the arguments of each call twice and binds them to their names, for hints that share a dimension. Most
functions have no such hint: to them beartype alone is applied, which takes a third off the tests of a run.
"""

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_shapes = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """Returns the decorator that jaxtyping's import hook applies to each function and class."""

    def decorated(function: Any) -> Any:
        if not isinstance(function, FunctionType) or any(map(may_have_shape, function.__annotations__.values())):
            return with_shapes(typechecker=typechecker)(function)
        checked = typechecker(function)

        @wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            return (function if jaxtyping.config.jaxtyping_disable else checked)(*arguments, **options)

        return function if checked is function else called

    return decorated


def may_have_shape(hint: object) -> bool:
    """Returns whether a hint has a shape, or a part that only jaxtyping looks up."""
    return isinstance(hint, str) or any(text in repr(hint) for text in ("jaxtyping", "ForwardRef"))


jaxtyping.jaxtyped = jaxtyped  # where the hook looks it up

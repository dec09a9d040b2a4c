"""Triton's interpreter without what it does again and again: kernels take two thirds of the time in it.

For each call of a function of a kernel it looks for what to replace in `triton.language`, which has been replaced since
the kernel was launched; it makes a table of dtypes for each that it looks up; and it finds out whether integers
overflow, which nothing reads unless it debugs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterError

of_scalar = cache(interpreter._get_np_dtype)


def call(self: InterpretedFunction, *arguments: Any, **options: Any) -> Any:
    """Returns a function of a kernel that was launched."""
    if any(tl.core.is_builtin(language.load) for language in languages(self.fn)):
        interpreter._patch_lang(self.fn)
    try:
        return self.rewrite()(*arguments, **options)
    except Exception as error:
        raise InterpreterError(repr(error)) from error


@cache
def languages(function: Callable[..., Any]) -> list[ModuleType]:
    """Under which names the function may know the language."""
    return [module for module in (tl, tl.core) if any(value is module for value in function.__globals__.values())]


def numpy_dtype(dtype: tl.dtype) -> np.dtype:
    """Of a number or of a block of them."""
    return np.dtype(np.uint64) if isinstance(dtype.scalar, tl.pointer_type) else of_scalar(dtype.scalar)


InterpretedFunction.__call__ = call
interpreter._get_np_dtype = numpy_dtype
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)

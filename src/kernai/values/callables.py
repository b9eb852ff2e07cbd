"""What can be told of a callable without importing `inspect`, which is slow."""

from __future__ import annotations

from typing import Any

_COROUTINE = 0x80  # inspect.CO_COROUTINE


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, also behind `functools.partial` and `__call__`."""
    while hasattr(function, "func"):
        function = function.func
    called = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
    return code is not None and bool(code.co_flags & _COROUTINE)

"""Facts about a callable, without `inspect`, which is slow to import; only the docstring needs it."""

from __future__ import annotations

from functools import partial
from typing import Any

_COROUTINE = 0x80  # inspect.CO_COROUTINE
_GENERATOR = 0x20 | 0x200  # inspect.CO_GENERATOR and CO_ASYNC_GENERATOR
#: what inspect.markcoroutinefunction and asyncio set on what only looks like a plain function
_MARKS = frozenset({"_is_coroutine_marker", "_is_coroutine"})


def is_async(function: Any) -> bool:
    """Whether a call returns a coroutine: a function, a method, a partial of one, an object with `__call__`."""
    function = _inside_partials(function)
    return bool(_flags(function) & _COROUTINE) or not _MARKS.isdisjoint(getattr(function, "__dict__", ()))


def is_generator(function: Any) -> bool:
    """Whether a call returns a generator, sync or async."""
    return bool(_flags(_inside_partials(function)) & _GENERATOR)


def _inside_partials(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _flags(function: Any) -> int:
    """The flags of the code that a call runs; 0 if it is not Python code."""
    code = getattr(function, "__code__", None)
    if code is None:
        called = getattr(type(function), "__call__", None)  # noqa: B004 - of an object that is callable, the method
        code = getattr(called, "__code__", None)
    return 0 if code is None else int(code.co_flags)


def first_paragraph(function: Any) -> str:
    """The first paragraph of a docstring, on one line; empty if there is none."""
    import inspect

    text = inspect.getdoc(_inside_partials(function)) or ""
    return " ".join(text.strip().split("\n\n")[0].split())

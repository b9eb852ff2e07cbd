"""What a call of a callable returns, found out without calling it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from kernai._util.api import is_async, is_generator


def plain(*_: Any) -> int:
    return 1


async def coroutine(*_: Any) -> int:
    return 1


def generator(*_: Any) -> Iterator[int]:
    yield 1


async def async_generator(*_: Any) -> AsyncIterator[int]:
    yield 1


@wraps(coroutine)
def wrapper(*given: Any) -> Any:
    return coroutine(*given)


class Plain:
    def __call__(self, *_: Any) -> int:
        return 1

    async def method(self, *_: Any) -> int:
        return 1

    @staticmethod
    async def static(*_: Any) -> int:
        return 1

    @classmethod
    async def of_class(cls, *_: Any) -> int:
        return 1


class Awaited(Plain):
    async def __call__(self, *_: Any) -> int:  # type: ignore[override]  # that is the subject
        return 1


class Inherited(Awaited):
    """Its `__call__` is its parent's."""


class Yielding:
    __call__ = generator


class Holder:
    """Has a `func`, as partials have, which says nothing about calling it."""

    func = staticmethod(coroutine)
    __call__ = plain


#: marked as async, which came with Python 3.12
MARKED: Any = getattr(inspect, "markcoroutinefunction", lambda _: coroutine)(lambda *_: coroutine())
YIELDING: list[Callable[..., Any]] = [async_generator, partial(async_generator, 1)]
ASYNC: list[Callable[..., Any]] = [
    coroutine, partial(coroutine, 1), partial(partial(coroutine, 1), 2), Plain().method, partial(Plain().method, 1),
    Plain.method, Plain.static, Plain.of_class, Awaited(), partial(Awaited(), 1), Inherited(), Inherited().__call__,
    AsyncMock(), AsyncMock().method, MARKED, partial(MARKED, 1), *YIELDING,
]  # fmt: skip
SYNC: list[Callable[..., Any]] = [
    plain, partial(plain, 1), wrapper, Plain(), Plain, Awaited, len, print, int, str.upper, "a".upper, dict, Holder(),
    lambda: coroutine(), MagicMock(), MagicMock().method, partial(MagicMock(), 1),
]  # fmt: skip
GENERATORS: list[Callable[..., Any]] = [
    generator, partial(generator, 1), Yielding(), Yielding().__call__, *YIELDING,
]  # fmt: skip


@pytest.mark.parametrize("function", [*ASYNC, *SYNC, *GENERATORS])
def test_what_a_call_returns_is_known(function: Callable[..., Any]) -> None:
    assert (is_async(function), is_generator(function)) == (function in ASYNC, function in GENERATORS)

"""`Checks`: what a suite found out, told at once. `at_once`: its work in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernai.errors import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class Checks:
    """Goes through named checks, whatever fails in between; `done` raises an `AssertionError` with all that failed."""

    def __init__(self, kind: str, make: object) -> None:
        """`make` gives what is checked, a `kind` of thing, fresh each time; `TypeError` where it cannot be called."""
        if not callable(make):
            raise TypeError(f"check_{kind} takes a function that makes a fresh {kind}, got {type(make).__name__}")
        self._what = f"the {kind} of {getattr(make, '__name__', make)}"
        self._failed: list[str] = []

    @contextmanager
    def that(self, name: str) -> Iterator[Callable[[object, str], None]]:
        """Around one check: gives ``holds(condition, else_told)``; an exception fails the check too."""

        def holds(condition: object, otherwise: str) -> None:
            if not condition:
                self._failed.append(f"{name}: {otherwise}")

        try:
            yield holds
        except Exception as error:  # noqa: BLE001 - what is checked is somebody else's
            self._failed.append(f"{name}: raised {type(error).__name__}: {error_text(error)}")

    def done(self) -> None:
        if self._failed:
            raise AssertionError("\n- ".join([f"{self._what} does not keep the contract:", *self._failed]))


def at_once(work: Callable[[int], object], workers: int) -> list[BaseException]:
    """Lets workers begin at the same time, each with its number; gives what they raised."""
    barrier = threading.Barrier(workers)
    failures: list[BaseException] = []

    def begin(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - it belongs to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures

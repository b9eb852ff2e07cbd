"""Standard output: whether it can be drawn on; and making the output of skills printable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from kernai._util.redaction import printable


def can_be_drawn_on() -> bool:
    """Whether standard output is a terminal that supports more than lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def made_printable() -> Iterator[None]:
    """Removes control characters, except newline and tab, from everything that is printed in its ``with`` block."""
    stdout, stderr = (cast("TextIO", _Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield


class _Printable:
    """Wraps a stream; all other operations are the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

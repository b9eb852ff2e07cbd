"""Standard output: what may be drawn on it, and what skills print, made printable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from kernai.terminal_text import printable


def can_be_drawn_on() -> bool:
    """Whether it is a terminal that knows more than lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def made_printable() -> Iterator[None]:
    """While in it, what anybody prints arrives without control characters, newline and tab aside."""
    stdout, stderr = (cast("TextIO", _Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield


class _Printable:
    """Wraps a stream, which does everything else."""

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

"""Standard output as a command may find it: closed, full, short of letters, or read by someone who leaves; and fit for
what skills print.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from kernai.terminal_text import printable


def prepare() -> None:
    """Let standard output take any text, and a closed one take it to nowhere. To be called before anything is opened:
    the next file would get the closed one's number, and what is printed would go into it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - lasts as the process does
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack what a product is called


def abandon() -> None:
    """After it has failed: what is left to be written goes nowhere, or the interpreter would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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

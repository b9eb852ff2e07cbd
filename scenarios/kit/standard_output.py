"""A program's output: its exit status and errors, whether it can be drawn on, and making what skills print harmless."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from typing import Any, TextIO, cast

from kernai._util.redaction import printable
from kernai.command_line import output
from kit.definition import UsageError

PASSED, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


def exit_status(name: str, work: Callable[[], int]) -> int:
    """Do the work of the program `name`, and return its exit status. An error is one line."""
    output.prepare()
    try:
        status = work()
        sys.stdout.flush()
        return status
    except UsageError as error:
        message, status = str(error), WRONG_USAGE
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        output.discard(sys.stdout)
        return FAILED
    except OSError as error:
        output.discard(sys.stdout)
        message, status = f"cannot write the output: {error.strerror}", FAILED
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    print(f"{name}: error: {printable(message)}", file=sys.stderr)
    return status


def is_drawn_on(*, plain: bool) -> bool:
    """Whether to draw: standard output is a terminal that supports more than lines, and `rich` is installed."""
    is_able = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return is_able and not plain and find_spec("rich") is not None


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

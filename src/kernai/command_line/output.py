"""Writing to stdout and stderr: never a crash over an encoding, never a control character of a model in a terminal.

What a command was asked for goes to stdout, what happens meanwhile to stderr.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from kernai.command_line.errors import DEBUG_HINT, CommandError
from kernai.jsonio.json_data import jsonable
from kernai.terminal_text import printable

STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
A_TEXT = "name a text file, or - for stdin"
_LEAST_COLUMNS, _MOST_COLUMNS = 40, 160


def prepare() -> None:
    """Makes the standard streams safe to write to: what their encoding lacks is escaped, one that is closed is null."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the program was started with `>&-`
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, open(null, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(*streams: TextIO) -> None:
    """After the reader of a pipe has left: what is still buffered goes nowhere, so that the exit is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(null, stream.fileno())
    finally:
        os.close(null)


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """What the user's code prints in this block goes to stderr, also from programs that it starts."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            out, err = _descriptor(sys.__stdout__), _descriptor(sys.__stderr__)
        except (OSError, ValueError):  # closed, or nothing the system knows: a program inherits neither
            yield
            return
        kept = os.dup(out)
        try:
            os.dup2(err, out)
            yield
        finally:
            os.dup2(kept, out)
            os.close(kept)


def _descriptor(stream: TextIO | None) -> int:
    if stream is None:
        raise ValueError("the stream was closed before the start")
    return stream.fileno()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks at this stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def columns() -> int:
    """How long a line on the terminal may be; on a very narrow one lines are broken rather than cut to nothing."""
    return max(_LEAST_COLUMNS, min(shutil.get_terminal_size((100, 24)).columns, _MOST_COLUMNS))


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in one of `STYLES`, where the stream (stdout) is a terminal with colour and `NO_COLOR` is not set."""
    stream = sys.stdout if stream is None else stream
    if not text or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(stream):
        return text
    return f"\033[{STYLES[style]}m{text}\033[0m"


def write(text: str = "", style: str | None = None) -> None:
    """A line or several to stdout, made printable."""
    text = printable(text)
    sys.stdout.write((text if style is None else styled(text, style)) + "\n")


def write_answer(text: str) -> None:
    """Text of a model to stdout: to the letter into a file or a pipe, printable on a terminal."""
    sys.stdout.write((printable(text) if is_terminal(sys.stdout) else text) + "\n")


def write_json(value: object) -> None:
    """Data as JSON in ASCII to stdout."""
    import json

    sys.stdout.write(json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def note(text: str, style: str | None = "dim") -> None:
    """A line about what happens, to stderr, made printable."""
    text = printable(text)
    _to_stderr(text if style is None else styled(text, style, sys.stderr))


def report(message: str, hint: str | None = None, trace: BaseException | None = None) -> None:
    """An error as the program tells it: one line, and perhaps a hint; before them the traceback of `trace`, if any."""
    if trace is not None:
        from traceback import format_exception

        note("".join(format_exception(trace)).rstrip(), None)
    _to_stderr(styled("kernai: error: ", "red", sys.stderr) + _line(message))
    if hint and (trace is None or hint != DEBUG_HINT):
        _to_stderr(f"hint: {_line(hint)}")


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()  # a terminal shows both: keep their order
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or the disk is full: that is no reason to lose the answer
        discard(sys.stderr)


def _line(text: str) -> str:
    return " ".join(printable(text).split())


def read_text(source: str) -> str:
    """The text of a file, or of stdin for ``-``. `CommandError` says why it cannot be read."""
    name = "stdin" if source == "-" else source
    try:
        raw = _stdin_bytes() if source == "-" else _file_bytes(source)
        return raw.decode("utf-8")
    except OSError as error:
        told = f"cannot read {name}: {error.strerror or error}"
        raise CommandError(told, A_TEXT) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"cannot read {name}: byte {error.start} is not UTF-8 text", "save it as UTF-8") from error


def _stdin_bytes() -> bytes:
    if sys.stdin is None:
        return b""
    buffer: Any = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode("utf-8") if buffer is None else buffer.read()


def _file_bytes(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - text in, text out
        found = os.fstat(file.fileno())
        has_an_end = stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
        if not has_an_end and not os.path.samestat(found, os.fstat(0)):  # which may be a terminal
            raise CommandError(f"cannot read {path}: it is neither a file nor a pipe", A_TEXT)
        return file.read()

"""The standard streams, exit statuses and errors of commands.

Results go to stdout, everything else to stderr. Writing never fails because of an encoding, and a model's control
characters never reach the terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from kernai._util.redaction import one_line, printable
from kernai.errors import error_text
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import jsonable
from kernai.recording.recorder import read_whole

OK, NO, USAGE, PROVIDER, UNDECIDED = range(5)
#: 128 + SIGINT, SIGPIPE, SIGTERM, as a shell reports them for any program
INTERRUPTED, PIPE_CLOSED, TERMINATED = 130, 141, 143

#: `kernai --help` and docs/command-line.md list these
STATUSES = {
    OK: "done",
    NO: "there is no answer, runs differ, or something is invalid",
    USAGE: "wrong usage, or a file that cannot be read",
    PROVIDER: "the model's vendor failed",
    UNDECIDED: "the run is waiting for a person's decision",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "the reader of the output has closed it",
    TERMINATED: "terminated by SIGTERM, or because the terminal was closed",
}

DEBUG_HINT = "--debug shows the traceback"


class CommandError(Exception):
    """Ends the program with `status`, after printing ``kernai: error: MESSAGE`` and, if given, ``hint: HINT``.

    The message says what was wrong, the hint what to do about it. Raise it ``from`` the exception that caused it, for
    ``--debug``. Both may contain untrusted text: `report` makes each printable and puts it on one line.
    """

    def __init__(self, message: str, hint: str | None = None, status: int = USAGE) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


class Terminated(BaseException):
    """Raised for SIGTERM and SIGHUP, as `KeyboardInterrupt` is for Ctrl-C."""


@contextlib.contextmanager
def failing(message: str, hint: str, kinds: type[Exception] | tuple[type[Exception], ...] = OSError) -> Iterator[None]:
    """Turns an exception of these kinds in the block into a `CommandError` with the text ``MESSAGE: REASON``."""
    try:
        yield
    except kinds as error:
        reason = getattr(error, "strerror", None) or error_text(error)
        raise CommandError(f"{message}: {reason}" if message else reason, hint) from error


# ---------------------------------------------------------------------------------------------------------- streams

STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ADDRESS = r"(?i:postgres(?:ql)?(?:\+\w+)?)://"
#: up to the last @ before the options or, since libpq takes a question mark in a password, before the first slash. If
#: neither is there, up to the last @, unless a port comes first
_PASSWORD = re.compile(r"(://[^/@:]*:)(?:[^?]*|[^/]*|(?!\d+[/?]).*)(?=@)|([?&](?:ssl)?password=)[^&]*")

#: raised by a stream whose reader has left, and by one that a skill has closed or replaced by None
_UNUSABLE = AttributeError, OSError, ValueError


def prepare() -> None:
    """Makes stdout and stderr escape characters that their encoding lacks, and discard output if they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the program was started with `>&-`
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, open(null, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(*streams: TextIO) -> None:
    """Redirects these streams to the null device, so that flushing them at exit raises no `BrokenPipeError`."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with contextlib.suppress(*_UNUSABLE):
            os.dup2(null, stream.fileno())
    os.close(null)


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[TextIO]:
    """Redirects stdout to stderr, for the user's code and for the programs that it starts. Yields the real stdout."""
    real = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            out, err = [stream.fileno() for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]
        except (OSError, ValueError):  # closed, or no real file, so there is nothing that programs could inherit
            yield real
            return
        kept = os.dup(out)
        shown, replaced = real, real is sys.__stdout__
        if replaced:
            shown = open(kept, "w", encoding=real.encoding, errors=real.errors, closefd=False)  # noqa: SIM115 - closed below
        try:
            os.dup2(err, out)
            yield shown
        finally:
            if replaced:
                with contextlib.suppress(OSError):  # the code that wrote to it has seen the error already
                    shown.close()
            os.dup2(kept, out)
            os.close(kept)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def columns(unknown: int = 100) -> int:
    """The terminal's width in columns, from 40 to 160."""
    return max(40, min(shutil.get_terminal_size((unknown, 24)).columns, 160))


def styled(text: str, style: str | None, stream: TextIO) -> str:
    """The text in one of `STYLES`, if the stream is a terminal with colour and `NO_COLOR` is not set."""
    if style is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not is_terminal(stream):
        return text
    return f"\033[{STYLES[style]}m{text}\033[0m"


def write(text: str = "", style: str | None = None) -> None:
    """Writes one or more lines to stdout, made printable."""
    sys.stdout.write(styled(printable(text), style, sys.stdout) + "\n")


def write_json(value: object) -> None:
    """Writes data to stdout, as JSON in ASCII."""
    sys.stdout.write(json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def note(text: str, style: str | None = "dim", *, quiet: bool = False) -> None:
    """Writes a message to stderr, made printable, unless the user wants none."""
    if not quiet:
        _to_stderr(styled(printable(text), style, sys.stderr))


def is_address(path: str) -> bool:
    """Whether `path` is the address of a PostgreSQL database, perhaps in a form that other programs use."""
    return re.match(_ADDRESS, path) is not None


def without_password(path: str) -> str:
    """A store's path; if it is an address, without the password."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", path) if is_address(path) else path


def report(error: CommandError, trace: BaseException | None = None) -> None:
    """Writes an error and its hint to stderr, each on one line, after the traceback of `trace` if given."""
    if trace is not None:
        from traceback import format_exception  # only with --debug

        note(_without_passwords("".join(format_exception(trace)).rstrip()), None)
    message = _without_passwords(one_line(str(error), sys.maxsize))
    _to_stderr(styled("kernai: error: ", "red", sys.stderr) + message)
    if error.hint and (trace is None or error.hint != DEBUG_HINT):
        _to_stderr(f"hint: {one_line(error.hint, sys.maxsize)}")


def _without_passwords(text: str) -> str:
    """Hides passwords in a text that may repeat an address given in the wrong place."""
    return re.sub(rf"{_ADDRESS}\S+", lambda found: without_password(found[0]), text)


def _to_stderr(text: str) -> None:
    with contextlib.suppress(*_UNUSABLE):
        sys.stdout.flush()  # a terminal shows both: keep their order
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except _UNUSABLE:  # or the disk is full; that must not lose the answer
        discard(sys.stderr)


def read_text(source: str) -> str:
    """The text of a file, or of stdin for ``-``, without a byte order mark. Raises `CommandError` if that fails."""
    with failing(f"cannot read {source}", "name a file of UTF-8 text, or - for stdin", (OSError, UnicodeDecodeError)):
        raw = (b"" if sys.stdin is None else sys.stdin.buffer.read()) if source == "-" else read_whole(source)
        return raw.decode("utf-8-sig")


_PROMPT = "> "
#: seconds after which a signal that did not interrupt a blocking call is handled
_PATIENCE = 0.1


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets a signal's handler end a blocking call in the block by raising. For the main thread.

    If a signal arrives while `input` handles a key or is about to wait, Python only sets a flag and runs the handler
    when the next system call is interrupted. So a thread interrupts that call regularly with SIGURG, which has no other
    effect.
    """
    if not hasattr(signal, "pthread_kill"):  # on Windows
        yield
        return
    main, ended = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while not ended.wait(_PATIENCE):
            signal.pthread_kill(main, signal.SIGURG)

    handler = signal.signal(signal.SIGURG, lambda *_: None)
    thread = threading.Thread(target=interrupt, name="kernai-signal-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGURG, handler)


class LineReader:
    """Reads lines from stdin. Ctrl-C while waiting for a line raises `KeyboardInterrupt`, SIGTERM `Terminated`."""

    def __init__(self) -> None:
        #: whether stdin is a terminal
        self.interactive = is_terminal(sys.stdin)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # an invalid byte must not end the conversation
        self._edits = self.interactive and is_terminal(sys.stdout)
        if self._edits:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - `input` now edits lines and keeps their history

    def read(self) -> str | None:
        """The next line, without its end; None when there are no more."""
        try:
            with interruptible():
                return self._wait()
        except (KeyboardInterrupt, Terminated):
            if self.interactive:
                sys.stderr.write("\n")
            raise

    @calls_out
    def _wait(self) -> str | None:
        return self._line()  # in a frame of its own: only there may Ctrl-C be raised

    def _line(self) -> str | None:
        if self._edits:
            try:
                return input(_PROMPT)
            except EOFError:
                sys.stderr.write("\n")
                return None
        if self.interactive:
            sys.stderr.write(_PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.rstrip("\r\n") if line else None

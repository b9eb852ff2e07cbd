"""How a command ends: its exit status, and the error that says what went wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernai.errors import error_text

OK = 0
NO = 1
USAGE = 2
PROVIDER = 3
WAITING = 4
INTERRUPTED = 130
#: as a shell reports it of any program
PIPE_CLOSED = 141
TERMINATED = 143

#: `kernai --help` and docs/command-line.md list these
STATUSES = {
    OK: "done",
    NO: "the run ended without an answer, the runs differ, or something is invalid",
    USAGE: "wrong usage, or a file that cannot be read",
    PROVIDER: "the model's vendor failed",
    WAITING: "the run is waiting for a person's decision",
    INTERRUPTED: "interrupted with Ctrl-C",
    PIPE_CLOSED: "the reader of the output has closed it",
    TERMINATED: "terminated by SIGTERM",
}

DEBUG_HINT = "--debug shows the traceback"


class CommandError(Exception):
    """Ends the program with `status`, after ``kernai: error: MESSAGE`` and, where there is one, ``hint: HINT``.

    The message says what was wrong, the hint what to do. Raise it ``from`` the exception that caused it, for
    ``--debug``. Both may hold hostile text: they are made printable, and one line, when they are written.
    """

    def __init__(self, message: str, hint: str | None = None, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status


@contextmanager
def failing(message: str, hint: str) -> Iterator[None]:
    """Around what the system may refuse: an `OSError` becomes a `CommandError`, ``MESSAGE: REASON``."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{message}: {error.strerror or error}", hint) from error


def described(error: BaseException) -> str:
    """``ValueError: text``, or the class alone where there is no text."""
    name, text = type(error).__name__, error_text(error)
    return text if text == name or text.startswith(f"{name}: ") else f"{name}: {text}"

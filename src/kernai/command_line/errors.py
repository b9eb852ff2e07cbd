"""`CommandError`: what a command tells its user in one line and a hint."""

from __future__ import annotations

from kernai.command_line.exit_codes import USAGE
from kernai.errors import error_text

DEBUG_HINT = "--debug shows the traceback"


class CommandError(Exception):
    """Ends the program with `status`, after ``kernai: error: MESSAGE`` and, where there is one, ``hint: HINT``.

    The message names what was wrong, the hint what to do. Raise it ``from`` the exception that caused it, for
    ``--debug``. Both may hold hostile text: they are made printable, and one line, when they are written.
    """

    def __init__(self, message: str, hint: str | None = None, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status


def described(error: BaseException) -> str:
    """``ValueError: text``, or the class alone where there is no text."""
    name, text = type(error).__name__, error_text(error)
    return text if text == name or text.startswith(f"{name}: ") else f"{name}: {text}"

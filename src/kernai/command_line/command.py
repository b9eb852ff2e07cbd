"""The shape of a command: a module of this package with these four names, and a line in `program.COMMANDS`.

The module of `run` is `run_command`. Nothing else knows of it, and it is imported only when the command is asked for;
so it may import what it needs at the top, and `kernai parse` never loads a vendor's adapter.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Protocol


class Command(Protocol):
    """What `program` needs of a command's module."""

    #: what it does, for its ``--help``: a sentence or a few
    DESCRIPTION: str
    #: command lines that work, one a line, for the end of its ``--help``
    EXAMPLES: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares its arguments; ``--help`` and ``--debug`` are there already.

        Positional arguments and options may be mixed on the command line, so no subparsers and no `REMAINDER`.
        """

    def run(self, options: Namespace) -> int:
        """Does it and gives the exit status, one of `exit_codes`.

        Writes with `output`. Raises `CommandError` for what the user should mend; a `KernaiError`, an `OSError`, Ctrl-C
        and a closed pipe are told by `program`.
        """

"""The parser of a command line, for scenarios and the matrix alike."""

from __future__ import annotations

import argparse
from typing import NoReturn

from kit.outcome import UsageError


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, by a `UsageError`. Help keeps the line breaks of its texts."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog, None, description, epilog, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")

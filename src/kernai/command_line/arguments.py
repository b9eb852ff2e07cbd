"""Reading a command line: parsers whose complaints are `CommandError`, and the kinds of values options take."""

from __future__ import annotations

import argparse
import math
import textwrap
from typing import NoReturn

from kernai.command_line import output
from kernai.command_line.errors import CommandError


class Parser(argparse.ArgumentParser):
    """Complains by raising; takes no abbreviated options, for what they mean changes with each new one."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        shown = "\n".join(f"  {line}" for line in examples.strip().splitlines())
        super().__init__(
            prog=prog,
            description="\n\n".join(textwrap.fill(part, output.columns()) for part in description.split("\n\n")),
            epilog=f"examples:\n{shown}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """`CommandError`, in place of usage and exit."""
        raise CommandError(message, f"`{self.prog} --help` shows what there is")


def whole_number(text: str) -> int:
    """An int of at least 0, as an argparse type."""
    return _at_least(text, 0)


def positive_number(text: str) -> int:
    """An int of at least 1, as an argparse type."""
    return _at_least(text, 1)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return number


def amount(text: str) -> float:
    """A finite number of at least 0, as an argparse type."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number >= 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return number


def price(text: str) -> tuple[float, float]:
    """``INPUT,OUTPUT``: dollars per million tokens, as an argparse type."""
    parts = text.split(",")
    if len(parts) != 2:  # noqa: PLR2004 - a pair
        raise argparse.ArgumentTypeError(f"must be two prices such as 3,15, got {text!r}")
    return amount(parts[0]), amount(parts[1])


def capabilities(text: str) -> tuple[str, ...]:
    """``text,vision``: what a model can do, as an argparse type."""
    from kernai.values.model import CAPABILITIES

    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = [word for word in words if word not in CAPABILITIES]
    if unknown or not words:
        told = f"no capability {unknown[0]!r}" if unknown else "no capability at all"
        raise argparse.ArgumentTypeError(f"{told}; there are {', '.join(CAPABILITIES)}")
    return words

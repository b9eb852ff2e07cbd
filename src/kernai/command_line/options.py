"""What a command is, its parser, and the options that several commands have."""

from __future__ import annotations

import argparse
import math
import textwrap
from argparse import ArgumentParser, Namespace
from typing import NoReturn, Protocol

from kernai.command_line import output
from kernai.command_line.errors import CommandError


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
        """Does it and gives the exit status, one of `STATUSES`.

        Writes with `output`. Raises `CommandError` for what the user should mend; a `KernaiError`, an `OSError`, Ctrl-C
        and a closed pipe are told by `program`.
        """


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


def add_limit_arguments(parser: ArgumentParser) -> None:
    """``--max-steps`` and those of `Limits`."""
    group = parser.add_argument_group("limits", "of one run and all its sub-runs")
    group.add_argument("--max-steps", type=positive_number, metavar="N", help="model calls, in place of the agent's")
    group.add_argument("--max-tokens", type=whole_number, metavar="N", help="prompt and completion tokens together")
    group.add_argument("--max-cost", type=amount, metavar="DOLLARS", help="needs the model's price")
    group.add_argument("--max-calls", type=whole_number, metavar="N", help="model, skill and protocol calls together")
    group.add_argument("--timeout", type=amount, metavar="SECONDS", help="from the start of the run")


def add_model_arguments(parser: ArgumentParser) -> None:
    """``--model`` and what belongs to it."""
    parser.add_argument("--model", metavar="VENDOR/NAME", help="the model, in place of the agent's provider and model")
    parser.add_argument("--base-url", metavar="URL", help="where the --model is served, if not at its vendor")
    parser.add_argument(
        "--model-capabilities", type=capabilities, metavar="LIST",
        help="what the --model can do, such as text,vision, where kernai does not know its family",
    )
    parser.add_argument(
        "--price", type=price, metavar="IN,OUT", help="dollars per million tokens of the --model, for --max-cost"
    )


def add_made_agent_arguments(parser: ArgumentParser) -> None:
    """``--system`` and ``--skills``."""
    parser.add_argument("--system", metavar="TEXT", help="instructions of an agent without a file, in place of AGENT")
    parser.add_argument(
        "--skills", metavar="FILE", action="append", default=[],
        help="a Python file of skills for it, or a pattern; its code is run; repeatable",
    )


def add_store_arguments(parser: ArgumentParser) -> None:
    """``--store`` and ``--run-id``, for a run that is to survive."""
    parser.add_argument(
        "--store", metavar="FILE", help="keep the run in this store, so that it survives; made where there is none"
    )
    parser.add_argument("--run-id", metavar="ID", help="the run's name, by default a random one")

"""What a command is, its parser, and the options that several commands share."""

from __future__ import annotations

import argparse
import math
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from kernai._util.api import closest
from kernai.command_line import output
from kernai.command_line.output import CommandError, failing
from kernai.values.media import Media
from kernai.values.model import CAPABILITIES

AGENT_FORMS = "FILE.py, FILE.py:NAME or MODULE:NAME"


class Command(NamedTuple):
    """A command. Its module has it in `COMMANDS`, by its name."""

    #: Declares its arguments, besides ``--help`` and ``--debug``. Positional arguments and options may be mixed on the
    #: command line, so no subparsers and no `REMAINDER`.
    add_arguments: Callable[[ArgumentParser], None]
    #: Runs it and returns the exit status, one of `STATUSES`. Writes with `output`. Raises `CommandError` for what the
    #: user should fix; `program` also reports a `KernaiError`, an `OSError`, Ctrl-C and a closed pipe.
    run: Callable[[Namespace], int]
    #: what it does, for its ``--help``: a sentence or a few
    description: str
    #: command lines that work, one a line, for the end of its ``--help``
    examples: str


class Parser(argparse.ArgumentParser):
    """Raises `CommandError`. Options cannot be abbreviated: a new option could change what an abbreviation means."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description="\n\n".join(textwrap.fill(part, output.columns()) for part in description.split("\n\n")),
            epilog="examples:\n" + textwrap.indent(examples.strip(), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: list[str]) -> Namespace:
        """The options; misspelled ones are reported first, with a suggestion."""
        known = {option.lstrip("-").replace("-", "_"): option for option in self._option_string_actions}
        for word in arguments[: arguments.index("--") if "--" in arguments else None]:
            option = word.partition("=")[0]
            if option.startswith("--") and " " not in word and option not in self._option_string_actions:
                close = closest(option.lstrip("-").replace("-", "_"), known)
                hint = f"did you mean {known[close]}? " if close else ""
                raise CommandError(f"unknown option {option}", f"{hint}`{self.prog} --help` lists the options")
        return self.parse_intermixed_args(arguments)

    def error(self, message: str) -> NoReturn:
        """`CommandError`, instead of usage and exit."""
        raise CommandError(message, f"`{self.prog} --help` lists the arguments")


def number(kind: Callable[[str], float], least: float, most: float = math.inf) -> Callable[[str], float]:
    """An argparse type: an `int` or a `float` from `least` to `most`."""
    wanted = ("a whole number" if kind is int else "a number") + (
        f" of at least {least}" if most == math.inf else f" from {least} to {most}"
    )

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or value == math.inf:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")
        return value

    return read


def _price(text: str) -> tuple[float, ...]:
    parts = text.split(",")
    if len(parts) != 2:  # noqa: PLR2004 - a pair
        raise argparse.ArgumentTypeError(f"must be two prices such as 3,15, got {text!r}")
    return tuple(map(number(float, 0), parts))


def _capabilities(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = [word for word in words if word not in CAPABILITIES]
    if unknown or not words:
        wrong = f"no capability {unknown[0]!r}" if unknown else "no capability at all"
        raise argparse.ArgumentTypeError(f"{wrong}; there are {', '.join(CAPABILITIES)}")
    return words


def media(given: str) -> Media:
    """An argparse type: a file, or a URL."""
    if given.lower().startswith(("https://", "http://", "data:")):
        return Media.from_url(given)
    hint = "give a file, or a URL that begins with https://"
    try:
        found = Media.from_file(given)
    except ValueError as error:
        raise CommandError(str(error), hint) from error
    with failing(f"cannot read {given}", hint), open(given, "rb"):
        return found


def add_capabilities_argument(parser: ArgumentParser, help: str) -> None:
    """``--model-capabilities``."""
    parser.add_argument("--model-capabilities", type=_capabilities, metavar="LIST", help=help)


def add_agent_arguments(parser: ArgumentParser) -> None:
    """AGENT, or ``--system`` and ``--skills``, which make one."""
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"{AGENT_FORMS}; the code is executed")
    parser.add_argument("--system", metavar="TEXT", help="instructions for an ad-hoc agent, instead of AGENT")
    parser.add_argument(
        "--skills", metavar="FILE", action="append", default=[],
        help="a Python file of skills for an ad-hoc agent, or a pattern; the code is executed; repeatable",
    )


def add_model_arguments(parser: ArgumentParser) -> None:
    """``--model`` and its details."""
    parser.add_argument("--model", metavar="VENDOR/NAME", help="use this model instead of the agent's own")
    parser.add_argument(
        "--base-url", metavar="URL", help="address of the --model's server, if it is not the vendor's own"
    )
    add_capabilities_argument(parser, "capabilities of the --model, such as text,vision, if kernai does not know them")
    parser.add_argument(
        "--price", type=_price, metavar="IN,OUT",
        help="prices of the --model in dollars per million tokens, for --max-cost",
    )


def add_run_arguments(parser: ArgumentParser) -> None:
    """STORE and RUN, for a run in a store."""
    add_store_argument(parser)
    parser.add_argument("run", metavar="RUN", help="the run's id; `kernai runs STORE` lists them")


def add_store_argument(parser: ArgumentParser) -> None:
    """STORE."""
    parser.add_argument("store", metavar="STORE", help="a file created by --store, or postgresql://...")


def add_by_argument(parser: argparse._ActionsContainer) -> None:
    """``--by``."""
    parser.add_argument(
        "--by", metavar="NAME", help="who made the decision, for the recording (default: your login name)"
    )


def add_limit_arguments(parser: ArgumentParser) -> None:
    """``--max-steps`` and the limits of `Limits`."""
    group = parser.add_argument_group("limits", "for the whole run, including sub-runs")
    group.add_argument("--max-steps", type=number(int, 1), metavar="N", help="model calls (default: the agent's limit)")
    group.add_argument("--max-tokens", type=number(int, 0), metavar="N", help="prompt and completion tokens together")
    group.add_argument(
        "--max-cost", type=number(float, 0), metavar="DOLLARS", help="total cost; needs the model's price"
    )
    group.add_argument("--max-calls", type=number(int, 0), metavar="N", help="model, skill and protocol calls together")
    group.add_argument("--timeout", type=number(float, 0), metavar="SECONDS", help="total duration of the run")


def add_store_arguments(parser: ArgumentParser) -> None:
    """``--store`` and ``--run-id``, for a run that is kept."""
    parser.add_argument(
        "--store", metavar="STORE", help="save the run in this file, to resume it later; created if it does not exist"
    )
    parser.add_argument("--run-id", metavar="RUN", help="the run's id (default: a random one)")


def add_loudness_arguments(parser: ArgumentParser) -> None:
    """``--quiet`` and ``--verbose``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quiet", "-q", action="store_true", help="show only answers and errors")
    group.add_argument("--verbose", "-v", action="store_true", help="show more detail")


_AGENT_OPTIONS = ("system", "skills", "model", "base_url", "model_capabilities", "price")


def same_agent(options: Namespace, names: Sequence[str] = _AGENT_OPTIONS) -> tuple[str, ...]:
    """The words of a command line that describe the same agent, with the options `names`."""
    words = [] if options.agent is None else [options.agent]
    for name in names:
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else ",".join(map(str, value))]
    return tuple(words)

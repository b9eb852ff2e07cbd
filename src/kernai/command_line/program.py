"""The program: its list of commands, the parsing of their arguments, and the reporting of errors.

Commands raise, and exceptions are caught only here. So every error looks the same: one line and a hint, after the
traceback if ``--debug`` is given.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from kernai._util.api import closest
from kernai.command_line import output
from kernai.command_line.output import DEBUG_HINT, NO, OK, USAGE, CommandError, Terminated
from kernai.errors import KernaiError, RunDamagedError, StoreNeededError, described, error_text
from kernai.interrupts import INTERRUPTS
from kernai.recording.log import NAME

#: each command: the module of this package that has it in its `COMMANDS`, and a summary
_LISTED = {
    "run": ("run_command", "run an agent once and print its answer"),
    "chat": ("chat_command", "have a conversation with an agent"),
    "runs": ("runs_command", "list the runs in a store"),
    "resume": ("run_command", "continue a stored run after a crash, a pause or a failure"),
    "approve": ("runs_command", "approve or refuse a call that is waiting for a decision"),
    "cancel": ("runs_command", "cancel a run, even one that another process is working on"),
    "worker": ("runs_command", "process runs that were submitted to a PostgreSQL store"),
    "store": ("runs_command", "create or upgrade the tables of a PostgreSQL store"),
    "replay": ("run_command", "compare an agent's decisions with a recording, offline"),
    "skills": ("agents", "load and check skills, and list them as a model would see them"),
    "parse": ("parse_command", "show how a response is parsed and what kernai would do with it"),
    "view": ("recording", "write a recorded run as an HTML page, or follow it live"),
    "diff": ("diff_command", "show where two recorded runs differ"),
    "doctor": ("setup_command", "check Python, extras, keys and local servers"),
    "completion": ("setup_command", "print a completion script for your shell"),
}
SUMMARIES = {name: summary for name, (_, summary) in _LISTED.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program with these arguments (by default the process's own) and returns its exit status."""
    output.prepare()
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--", 1) if "--" in given[1:] else len(given)  # not before the command
    # found before the command line is parsed, so that errors in it can show a traceback, too
    debug = "--debug" in given[:end]
    given = [*(one for one in given[:end] if one != "--debug"), *map(_Word, given[end + 1 :])]
    try:
        with _termination_raises(), _Warnings(logging.WARNING):
            status = _run(given, debug=debug)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        output.discard(sys.stdout, sys.stderr)
        return output.PIPE_CLOSED
    except (Exception, KeyboardInterrupt, SystemExit, Terminated) as error:  # noqa: BLE001 - the user gets one line for any of them
        shown, trace = explained(error), error if debug else None
    try:
        output.report(shown, trace)
        sys.stdout.flush()
    except OSError:  # the reader has left, or the disk is full: nobody can be informed
        output.discard(sys.stdout, sys.stderr)
    return shown.status


@contextmanager
def _termination_raises() -> Iterator[None]:
    """In this block, SIGTERM and a closed terminal end a run as Ctrl-C does, so that its recording is complete."""

    def terminate(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)  # a shell repeats it, which must not break off the recording
        if signal.getsignal(signal.SIGTERM) in (terminate, signal.SIG_IGN):
            INTERRUPTS.arrived(signal.SIGTERM, frame, Terminated())
        else:  # a worker's, which waits for its calls
            signal.raise_signal(signal.SIGTERM)

    signals = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    before = {one: old for one in signals if (old := signal.getsignal(one)) != signal.SIG_IGN}  # `nohup` ignores SIGHUP
    for one in before:
        signal.signal(one, terminate)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        INTERRUPTS.look()


class _Warnings(logging.Handler):
    """In this block, shows warnings that belong to no run, such as what a damaged recording lacks."""

    def __enter__(self) -> None:
        logging.getLogger(NAME).addHandler(self)

    def __exit__(self, *error: object) -> None:
        logging.getLogger(NAME).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "run_id" not in getattr(record, "kernai", ()) and not logging.root.handlers:  # the agents' file may set some
            output.note(f"warning: {record.getMessage()}", "yellow")


def _run(arguments: list[str], *, debug: bool) -> int:
    first, *rest = arguments or ["--help"]
    if first == "help" and rest:
        first, rest = rest[0], ["--help"]
    if first in ("--help", "-h", "help"):
        output.write(_help())
    elif first in ("--version", "-V"):
        from kernai import __version__

        output.write(f"kernai {__version__}")
    elif first in SUMMARIES:
        command, parser = command_of(first)
        try:
            options = parser.parse(rest)
        except SystemExit:  # after --help
            return OK
        options.debug = debug
        return command.run(options)
    elif first.startswith("-"):
        raise CommandError(f"unknown option {first}", "options of a command come after it: kernai COMMAND --help")
    else:
        close = closest(first, SUMMARIES)
        hint = f"did you mean `kernai {close}`?" if close else f"there are {', '.join(SUMMARIES)}"
        raise CommandError(f"unknown command {first!r}", hint)
    return OK


def command_of(name: str) -> tuple[Command, Parser]:
    """Returns a command and the parser of its arguments."""
    command: Command = import_module(f"kernai.command_line.{_LISTED[name][0]}").COMMANDS[name]
    return command, Parser(name, command)


def explained(error: BaseException) -> CommandError:
    """The error that the user sees for an exception."""
    cause: BaseException | None = error  # code that a signal interrupts may raise something else, as argparse does
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return CommandError("interrupted", status=output.INTERRUPTED)
        if isinstance(cause, Terminated):
            return CommandError("terminated", status=output.TERMINATED)
        cause = cause.__context__
    if isinstance(error, CommandError):
        return error
    if isinstance(error, StoreNeededError):
        how = "with --store STORE the run waits for your decision"
        return CommandError(f"{error.why}, and a run can only wait in a store", how, NO)
    if isinstance(error, RunDamagedError):
        return CommandError(error_text(error), "docs/durable.md says how to save what is whole", USAGE)
    if isinstance(error, FileNotFoundError) and error.errno and error.filename is None:  # from `os.getcwd`
        return CommandError("the working directory has been removed", "change to one that exists")
    if isinstance(error, OSError) and error.filename is not None:
        return CommandError(f"{error.filename}: {error.strerror or error_text(error)}", DEBUG_HINT)
    return CommandError(error_text(error) if isinstance(error, KernaiError) else described(error), DEBUG_HINT, NO)


def _help() -> str:
    commands = "\n".join(f"  {name:<12}{what}" for name, what in SUMMARIES.items())
    statuses = "\n".join(f"  {status:<12}{meaning}" for status, meaning in output.STATUSES.items())
    return f"""\
usage: kernai COMMAND ... [--debug]

Run kernai agents and inspect what they did.

commands:
{commands}

`kernai COMMAND --help` lists a command's options, with examples.

options:
  --version   show the version
  --debug     show the traceback of an error

exit status:
{statuses}

examples:
  kernai run agent.py "How many lamps?" --model anthropic/claude-sonnet-5
  kernai chat --model ollama/llama3.1
  kernai run agent.py "Take stock." --record run.jsonl
  kernai view run.jsonl --open
  kernai run agent.py "Refund order 42" --store runs.db --run-id refund-42
  echo '<final>42</final>' | kernai parse -"""


# --------------------------------------------------------------------------------------- a command and its arguments


#: adds arguments to a parser, or to one of its groups
AddTo = Callable[[Any], object]


def argument(form: str, help: str, type: Callable[[str], Any] = str, *, name: str | None = None, **more: Any) -> AddTo:
    """An argument of a command.

    `form` is how ``--help`` shows it: ``FILE``, ``--by NAME``, ``-o --output FILE``, or ``--json`` for a switch; with
    ``...``, an option may be repeated. `more` are other options of `add_argument`. `name` is for an argument without
    flags whose placeholder does not name it well.
    """
    words = form.removesuffix("...").split()
    flags = [word for word in words if word.startswith("-")]
    placeholder = " ".join(words[len(flags):])
    is_switch = not placeholder and "choices" not in more
    options = {"help": help, **({"action": "store_true"} if is_switch else {"type": type}), **more}
    if form.endswith("..."):
        options |= {"action": "append", "default": []}
    if placeholder and not placeholder.islower():  # otherwise argparse shows the choices
        options["metavar"] = placeholder
    return lambda parser: parser.add_argument(*(flags or [name or placeholder.lower()]), **options)


def group(*arguments: AddTo, title: str = "", note: str = "") -> AddTo:
    """Arguments under a title of their own in ``--help``. Without a title, they exclude each other."""

    def add_all(parser: Parser) -> None:
        group = parser.add_argument_group(title, note) if title else parser.add_mutually_exclusive_group()
        for add_to in arguments:
            add_to(group)

    return add_all


class Command(NamedTuple):
    """A command. Each module lists its commands by name in `COMMANDS`."""

    #: Runs it and returns the exit status, one of `STATUSES`. Writes with `output`. Raises `CommandError` for problems
    #: that the user should fix; `program` reports all other exceptions, Ctrl-C and a closed pipe, too.
    run: Callable[[Namespace], int]
    #: Its arguments, except ``--help`` and ``--debug``. Positional arguments and options may be mixed on the command
    #: line, so subparsers and `REMAINDER` cannot be used.
    arguments: Sequence[AddTo]
    #: what it does, in a few sentences, for its ``--help``
    description: str
    #: example command lines, one per line, for the end of its ``--help``
    examples: str


class _Word(str):
    """An argument that follows ``--``, so it is not an option, even if it begins with ``-``. argparse would drop a
    ``--`` before all positional arguments, and then read them as options.
    """

    __slots__ = ()


class Parser(argparse.ArgumentParser):
    """Reports errors as `CommandError`. Options cannot be abbreviated: a new option could make that ambiguous."""

    def __init__(self, name: str, command: Command) -> None:
        width = output.columns(80)  # as argparse does if the width is unknown
        super().__init__(
            prog=f"kernai {name}",
            description="\n\n".join(textwrap.fill(one, width) for one in command.description.split("\n\n")),
            epilog="examples:\n" + textwrap.indent(command.examples.strip(), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for add_to in (*command.arguments, argument("--debug", "show the traceback of an error")):
            add_to(self)
        #: for completion scripts
        self.arguments = [one for one in self._actions if one.help != argparse.SUPPRESS]

    def parse(self, arguments: list[str]) -> Namespace:
        """Parses the arguments. A misspelled option is the first error reported, with a suggestion."""
        known = {option.lstrip("-").replace("-", "_"): option for option in self._option_string_actions}
        for word in arguments:
            option = "" if isinstance(word, _Word) else word.partition("=")[0]
            if option.startswith("--") and " " not in word and option not in self._option_string_actions:
                close = closest(option.lstrip("-").replace("-", "_"), known)
                hint = f"did you mean {known[close]}? " if close else ""
                raise CommandError(f"unknown option {option}", f"{hint}`{self.prog} --help` lists the options")
        options, more = self.parse_known_intermixed_args(arguments)
        if more:
            hint = f"`{self.prog} --help` lists the arguments; a text with spaces needs quotes"
            raise CommandError(f"unrecognized arguments: {' '.join(more)}", hint)
        return options

    def _parse_optional(self, arg_string: str) -> Any:
        return None if isinstance(arg_string, _Word) else super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        raise CommandError(message, f"`{self.prog} --help` lists the arguments")


def valid_text(given: str) -> str:
    """An argparse type for what a model or a person will read. A file's name may be any bytes."""
    try:
        given.encode("utf-8")
    except UnicodeEncodeError as error:  # Python decodes invalid bytes as lone surrogates
        wrong = f"character {error.start} is not valid in the terminal's encoding"
        raise argparse.ArgumentTypeError(wrong) from error
    return given


def number(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    """An argparse type: an `int` or a finite `float` of at least `least`."""
    wanted = "a whole number" if kind is int else "a number"

    def read(given: str) -> float:
        try:
            value = kind(given)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be {wanted} of at least {least}, got {given!r}")
        return value

    return read

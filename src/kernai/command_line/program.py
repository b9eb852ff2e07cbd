"""The program itself: which command is meant, what came of it, and what to tell about what went wrong.

A command raises; only here is anything caught. So every error reads the same: one line and a hint, with ``--debug`` the
traceback before them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from kernai.command_line import output
from kernai.command_line.errors import (
    DEBUG_HINT,
    INTERRUPTED,
    NO,
    OK,
    PIPE_CLOSED,
    STATUSES,
    TERMINATED,
    USAGE,
    CommandError,
    described,
)
from kernai.command_line.termination import Terminated
from kernai.errors import KernaiError, RunDamagedError, StoreNeededError, error_text

if TYPE_CHECKING:
    from kernai.command_line.options import Command

#: each has a module of its name in this package, `run_command` for `run`
COMMANDS = {
    "run": "run an agent once and print its answer",
    "chat": "talk to an agent, turn by turn",
    "runs": "list the runs that a store keeps",
    "resume": "go on with a run: after a crash, a pause, a failure, or with another input",
    "replay": "run an agent on a recording, offline, and show where it decides otherwise",
    "skills": "load, check and list skills as a model would see them",
    "parse": "show how a model's response is parsed, and what it would lead to",
    "view": "write a recorded run as one HTML file, or follow it while it goes on",
    "diff": "show where two recorded runs part",
    "doctor": "check Python, extras, keys and local servers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program with these arguments (by default the process's own) and gives its exit status."""
    output.prepare()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # before anything is parsed: what is wrong with the command line can be looked into as well
    debug = "--debug" in given[: given.index("--") if "--" in given else None]
    try:
        status = _run(given, debug=debug)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        output.discard(sys.stdout, sys.stderr)
        return PIPE_CLOSED
    except KeyboardInterrupt as error:
        return _tell(error, CommandError("interrupted", status=INTERRUPTED), debug=debug)
    except Terminated as error:
        return _tell(error, CommandError("terminated", status=TERMINATED), debug=debug)
    except Exception as error:  # noqa: BLE001 - a user gets one line, whatever it was
        return _tell(error, _told(error), debug=debug)


def _run(arguments: list[str], *, debug: bool) -> int:
    while arguments and arguments[0] == "--debug":
        arguments = arguments[1:]
    first = arguments[0] if arguments else "--help"
    if first == "help" and len(arguments) > 1:
        first, arguments = arguments[1], ["help", "--help"]
    if first in ("--help", "-h", "help"):
        output.write(_help())
        return OK
    if first in ("--version", "-V"):
        from kernai import __version__

        output.write(f"kernai {__version__}")
        return OK
    if first not in COMMANDS:
        raise _unknown(first)
    return _run_command(first, arguments[1:], debug=debug)


def _run_command(name: str, arguments: list[str], *, debug: bool) -> int:
    from kernai.command_line.options import Parser

    command: Command = import_module(f"kernai.command_line.{name}_command")
    parser = Parser(f"kernai {name}", command.DESCRIPTION, command.EXAMPLES)
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", default=debug, help="show the traceback of an error")
    try:
        options = parser.parse_intermixed_args(arguments)
    except SystemExit:  # after --help
        return OK
    return command.run(options)


def _unknown(word: str) -> CommandError:
    from difflib import get_close_matches

    if word.startswith("-"):
        return CommandError(f"unknown option {word}", "options of a command stand behind it: kernai COMMAND --help")
    close = get_close_matches(word.lower(), COMMANDS, 1)
    hint = f"did you mean `kernai {close[0]}`?" if close else f"there are {', '.join(COMMANDS)}"
    return CommandError(f"unknown command {word!r}", hint)


def _told(error: Exception) -> CommandError:
    """What the user reads of an exception."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, StoreNeededError):
        how = "with --store FILE the run waits, and `kernai resume` takes the decision"
        return CommandError(f"{error.why}, and a run that waits needs a store", how, NO)
    if isinstance(error, RunDamagedError):
        return CommandError(error_text(error), "docs/durable.md says how to save what is whole", USAGE)
    if isinstance(error, KernaiError):
        return CommandError(error_text(error), DEBUG_HINT, NO)
    if isinstance(error, FileNotFoundError) and not _in_a_folder():
        return CommandError("the working directory has been removed", "change to one that is there")
    if isinstance(error, OSError) and error.filename is not None:
        return CommandError(f"{error.filename}: {error.strerror or error_text(error)}", DEBUG_HINT)
    return CommandError(described(error), DEBUG_HINT, NO)


def _in_a_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - whether there is one
    except FileNotFoundError:
        return False
    return True


def _tell(error: BaseException, told: CommandError, *, debug: bool) -> int:
    """Writes it to stderr and gives the exit status."""
    try:
        output.report(told.message, told.hint, error if debug else None)
        sys.stdout.flush()
    except OSError:  # the reader has left, or the disk is full: there is nobody to tell
        output.discard(sys.stdout, sys.stderr)
    return told.status


def _help() -> str:
    commands = "\n".join(f"  {name:<9}{what}" for name, what in COMMANDS.items())
    statuses = "\n".join(f"  {status:<9}{meaning}" for status, meaning in STATUSES.items())
    return f"""\
usage: kernai COMMAND ... [--debug]

Run agents of kernai, and look at what they did.

commands:
{commands}

`kernai COMMAND --help` shows a command's options, with examples.

options:
  --version  say which kernai this is
  --debug    show the traceback of an error

exit status:
{statuses}

examples:
  kernai run agent.py "How many lamps do we have?" --model anthropic/claude-sonnet-5
  kernai chat --model ollama/llama3.1
  kernai run agent.py "Take stock." --record run.jsonl && kernai view run.jsonl --open
  kernai run agent.py "Refund order 42" --store runs.db --run-id refund-42
  echo '<final>42</final>' | kernai parse -"""

"""The command line of a scenario, with a parser that the matrix uses too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kernai.command_line.agents import capabilities
from kit.definition import Definition, UsageError, shown


class Parser(argparse.ArgumentParser):
    """Raises a `UsageError` that says what is wrong in one line. Options cannot be abbreviated, as with `kernai`."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        formatter = argparse.RawDescriptionHelpFormatter  # keeps line breaks
        super().__init__(prog, None, description, epilog, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")


# -------------------------------------------------------------------------------------------- the options of a scenario


EPILOG = """\
The provider is the argument, else PROVIDER in the environment, else the first vendor whose key is set, else an Ollama
that runs on this machine, else the bundled tape. The model is the argument, else MODEL in the environment, else the
provider's default.

examples:
  python {file} --offline                      replay the tape: no key, no network
  python {file} gpt-6-luna openai              a model and its provider
  python {file} gguf//PATH/TO.gguf             a model in this process
  PROVIDER=ollama MODEL=llama3.2 python {file}
  python {file} --save-tape                    write the tape from this run
  python {file} --save-tape {logs}/…   write it from an earlier run's log

exit status: 0 if every expectation is met, 1 if not, 2 for wrong usage, 130 after Ctrl-C
"""


class Options(argparse.Namespace):
    """The options on the command line."""

    model: str | None
    provider: str | None
    offline: bool
    list_providers: bool
    tape: Path | None
    record: Path | None
    save_tape: str | None
    logs: Path
    no_log: bool
    plain: bool
    capabilities: tuple[str, ...] | None
    debug: bool

    @property
    def replays(self) -> bool:
        """Whether to replay a tape; with a model and `--save-tape`, `--tape` is the tape to be made."""
        return self.offline or (self.tape is not None and not self.model and not self.provider)


#: for `--save-tape` without a log: from this run
THIS_RUN = ""


def parse(definition: Definition, arguments: Sequence[str] | None) -> Options:
    """The options. Raises `UsageError` if they are wrong or exclude each other."""
    logs, file = definition.folder / "logs", shown(definition.file)
    parser = Parser(f"python {file}", definition.description, EPILOG.format(file=file, logs=shown(logs)))
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="the model's id, or VENDOR/MODEL")
    add("provider", nargs="?", metavar="PROVIDER", help="the provider of the model; see --list-providers")
    add("--offline", action="store_true", help="replay the tape, even if a provider is configured")
    add("--list-providers", action="store_true", help="show the providers, their default models, and which have a key")
    add("--tape", type=Path, metavar="FILE", help=f"the tape to use or write (default: {_help_path(definition.tape)})")
    add("--save-tape", nargs="?", const=THIS_RUN, metavar="LOG", help="write the tape, from a log or from this run")
    add("--record", type=Path, metavar="FILE", help="write the recording to FILE, .json or .jsonl")
    add("--logs", type=Path, metavar="DIR", default=logs, help=f"the folder for the log (default: {_help_path(logs)})")
    add("--no-log", action="store_true", help="write no log")
    add("--plain", action="store_true", help="plain text, even on a terminal")
    add("--capabilities", type=capabilities, metavar="WORDS", help="of the model, if its name does not show them")
    add("--debug", action="store_true", help="show the traceback of an error in the scenario")
    options = parser.parse_args(arguments, namespace=Options())
    _check(options)
    return options


def _help_path(path: Path) -> str:
    """A path for a help text, escaped since argparse replaces percent signs there."""
    return shown(path).replace("%", "%%")


def _check(options: Options) -> None:
    saves = options.save_tape is not None
    tape = "--offline" if options.offline else "--tape" if options.tape is not None and not saves else None
    if tape is not None and (options.model or options.provider):
        raise UsageError(f"{tape} replays a tape: leave {options.model or options.provider!r} out")

"""`kernai completion`: a script that completes commands, options and their values in a shell.

The script is written from the parsers of all commands. Whatever it does not know is completed as a file name.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import NamedTuple

from kernai.command_line import output
from kernai.command_line.options import Command
from kernai.command_line.output import OK
from kernai.command_line.program import SUMMARIES, command_of

DESCRIPTION = """\
Print a script with which bash, zsh or fish completes the commands of kernai, their options, and the vendors of --model.
Add the line below to your shell's start-up file and open a new shell."""
EXAMPLES = """\
kernai completion bash  # ~/.bashrc: eval "$(kernai completion bash)"
kernai completion zsh   # ~/.zshrc, after compinit: eval "$(kernai completion zsh)"
kernai completion fish  # ~/.config/fish/config.fish: kernai completion fish | source"""


class _Argument(NamedTuple):
    """An option (`flags`) or a positional argument of a command, and the values it can have, where they are known."""

    command: str
    flags: tuple[str, ...]
    help: str
    has_value: bool
    values: tuple[str, ...]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SHELLS), help="your shell")


def run(options: Namespace) -> int:
    arguments = list(_arguments())
    output.write("\n".join(_SHELLS[options.shell](arguments)))
    return OK


def _arguments() -> Iterator[_Argument]:
    from kernai_providers.vendors import VENDORS

    vendors = tuple(f"{vendor.name}/" for vendor in VENDORS)
    for command in SUMMARIES:
        for action in command_of(command)[1]._actions:  # noqa: SLF001 - argparse lists them nowhere else
            if action.help != SUPPRESS:
                values = vendors if action.metavar == "VENDOR/NAME" else tuple(action.choices or ())
                flags = tuple(action.option_strings)
                yield _Argument(command, flags, action.help or "", action.nargs != 0, values)


def _bash(arguments: list[_Argument]) -> Iterator[str]:
    yield "_kernai() {"
    yield "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words="
    yield "  case $COMP_CWORD:${COMP_WORDS[1]}:$before in"
    yield f'    1:*) words="{" ".join(SUMMARIES)} help --help --version" ;;'
    for command in SUMMARIES:
        own = [one for one in arguments if one.command == command]
        for one in own:
            if one.flags and one.has_value:
                patterns = "|".join(f"*:{command}:{flag}" for flag in one.flags)
                yield f'    {patterns}) words="{" ".join(one.values)}" ;;'
        flags = [flag for one in own for flag in one.flags]
        yield f'    *:{command}:*) words="{_positional(own)}"; [[ $current == -* ]] && words="{" ".join(flags)}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "  [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace"
    yield "}"
    yield "complete -o default -F _kernai kernai"


def _zsh(arguments: list[_Argument]) -> Iterator[str]:
    yield "#compdef kernai"
    yield "_kernai() {"
    yield "  local -a commands=("
    yield from (f"    {_quoted(f'{name}:{what}')}" for name, what in SUMMARIES.items())
    yield "  )"
    yield "  if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "  local command=$words[2]"
    yield "  shift words; (( CURRENT-- ))"
    yield "  case $command in"
    for command in SUMMARIES:
        own = [one for one in arguments if one.command == command]
        yield f"    {command}) _arguments '*:argument:{_zsh_values(_positional(own))}' \\"
        for one in own:
            help = one.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
            value = f":value:{_zsh_values(' '.join(one.values))}" if one.has_value else ""
            yield from (f"      {_quoted(f'{flag}[{help}]{value}')} \\" for flag in one.flags)
        yield "      ;;"
    yield "  esac"
    yield "}"
    yield '[[ $funcstack[1] == _kernai ]] && _kernai "$@" || compdef _kernai kernai'


def _zsh_values(values: str) -> str:
    if values.endswith("/"):  # no space after it: more must be typed
        return f'compadd -S "" - {values}'
    return f"({values})" if values else "_files"


def _fish(arguments: list[_Argument]) -> Iterator[str]:
    for name, what in SUMMARIES.items():
        yield f"complete -c kernai -n __fish_use_subcommand -f -a {name} -d {_quoted(what)}"
    for one in arguments:
        flags = "".join(f" -{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}" for flag in one.flags)
        value = " -r" if one.has_value and one.flags else ""
        values = f" -f -a {_quoted(' '.join(one.values))}" if one.values else ""
        if flags or values:
            condition = _quoted(f"__fish_seen_subcommand_from {one.command}")
            yield f"complete -c kernai -n {condition}{flags}{value}{values} -d {_quoted(one.help)}"


def _positional(arguments: list[_Argument]) -> str:
    """The values of a command's positional arguments, where they are known."""
    return " ".join(value for one in arguments if not one.flags for value in one.values)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}


COMMANDS = {"completion": Command(add_arguments, run, DESCRIPTION, EXAMPLES)}

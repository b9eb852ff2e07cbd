"""`--system` and `--skills`: an agent made on the command line, in place of one in a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from kernai.agents.agent import Agent
from kernai.command_line.agents import FORMS, find_agent
from kernai.command_line.errors import DEBUG_HINT, CommandError
from kernai.command_line.exit_codes import NO
from kernai.command_line.skills_command import found_in
from kernai.registry.skill_files import forget

NAME_ONE = f"name one as {FORMS}, or make one: --system TEXT, --skills FILE"
INSTRUCTIONS = "You are a helpful assistant. You talk with a person in a terminal: answer in plain text, and briefly."


def add_made_agent_arguments(parser: ArgumentParser) -> None:
    """``--system`` and ``--skills``."""
    parser.add_argument("--system", metavar="TEXT", help="instructions of an agent without a file, in place of AGENT")
    parser.add_argument(
        "--skills", metavar="FILE", action="append", default=[],
        help="a Python file of skills for it, or a pattern; its code is run; repeatable",
    )


def is_made(options: Namespace) -> bool:
    """Whether the command line describes an agent of its own."""
    return options.system is not None or bool(options.skills)


def agent_words(options: Namespace) -> tuple[str, ...]:
    """The words of a command line that name the same agent again."""
    words = [] if options.agent is None else [options.agent]
    words += [] if options.system is None else ["--system", options.system]
    for file in options.skills:
        words += ["--skills", file]
    return tuple(words)


@contextmanager
def agent_of(options: Namespace, name: str) -> Iterator[Agent]:
    """The agent in a file, or the one that `--system` and `--skills` describe; what they load stays for the block."""
    if options.agent is not None:
        if is_made(options):
            option = "--skills" if options.skills else "--system"
            told = f"{option} makes an agent, and AGENT names another: {options.agent}"
            raise CommandError(told, "leave one of them out")
        yield find_agent(options.agent)
        return
    found = found_in(options.skills)
    try:
        for fault in found.faults:
            place = fault.file if fault.line is None else f"{fault.file}:{fault.line}"
            raise CommandError(f"--skills: {place}: {fault.reason}", DEBUG_HINT, NO) from fault.error
        if options.skills and not found.skills:
            raise CommandError(f"--skills: there is no skill in {', '.join(options.skills)}", "make one with @skill")
        yield Agent(
            instructions=INSTRUCTIONS if options.system is None else options.system,
            skills=list(found.skills.values()) or None, protocols=[], list_skills=True, name=name,
        )
    finally:
        forget(found.loaded)

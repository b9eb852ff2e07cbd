"""`kernai doctor`: what is there to run agents with, and what stands in the way."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import groupby

from kernai.command_line import exit_codes, output
from kernai.command_line.environment_checks import (
    check_extras,
    check_keys,
    check_programs,
    check_python,
    vendors_without_key,
)
from kernai.command_line.finding import Finding
from kernai.command_line.server_checks import check_servers, shown_url
from kernai.terminal_text import one_line

DESCRIPTION = """\
Look at what kernai needs: Python, the extras that are installed, keys in the environment (their names, never their
values), model servers on this machine that answer, and the programs MCP servers are started with. Exit status 1 where
something has to be mended, or no model can be reached."""
EXAMPLES = """\
kernai doctor
kernai doctor --json
OLLAMA_HOST=gpu-box:11434 kernai doctor"""

_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    findings = [*check_python(), *check_extras(), *check_keys(), *check_servers(), *_proxies(), *check_programs()]
    problems = [one.problem for one in findings if one.problem is not None]
    if not any(one.good for one in findings if one.group in ("keys", "servers")):
        problems.append(
            "no model can be reached: set a vendor's key, such as "
            f"{vendors_without_key()[0].variables[0]}, or start a local server such as Ollama"
        )
    if options.json:
        output.write_json({"findings": [one.to_dict() for one in findings], "problems": problems})
    else:
        _show(findings, problems)
    return exit_codes.NO if problems else exit_codes.OK


def _proxies() -> Iterator[Finding]:
    """Which proxy the vendors are reached through, without the password that may stand in it."""
    for name in _PROXIES:
        for variable in (name.lower(), name):
            value = os.environ.get(variable, "").strip()
            if value:
                yield _proxy(variable, value)
                break


def _proxy(variable: str, value: str) -> Finding:
    try:
        return Finding("network", variable, shown_url(value if "://" in value else f"http://{value}"), good=True)
    except ValueError:  # without its words, which may hold the password
        problem = f"{variable} must be an address such as http://proxy:8080"
        return Finding("network", variable, "is no address", good=False, problem=problem)


def _show(findings: list[Finding], problems: list[str]) -> None:
    for group, members in groupby(findings, lambda one: one.group):
        output.write(group, "bold")
        for one in members:
            sign = "ok" if one.good else ("!!" if one.problem else "--")
            style = "green" if one.good else ("red" if one.problem else "dim")
            output.write(f"  {sign}  {one.name:<14} {one_line(one.text, 200)}", style)
    output.write()
    if not problems:
        output.write("nothing to mend", "green")
    for problem in problems:
        output.write(f"to mend: {one_line(problem, 400)}", "red")

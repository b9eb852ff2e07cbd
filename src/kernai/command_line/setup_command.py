"""Setting up a machine: `kernai doctor` checks what kernai needs; `kernai completion` prints a shell's script."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from argparse import Action, Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from shlex import quote
from typing import Any, NamedTuple

from kernai import __version__
from kernai._util.redaction import one_line, shown_url
from kernai.command_line import output
from kernai.command_line.program import SUMMARIES, Command, argument, command_of
from kernai.errors import KernaiError, error_text
from kernai_providers.http_transport import HttpTransport
from kernai_providers.request_checks import Endpoint, MissingSettingError, proxy_for
from kernai_providers.transport import Request, Timeouts, TransportError
from kernai_providers.vendors import IN_PROCESS, VENDORS, resolve

#: the packages of each extra in pyproject.toml; a test compares the two
EXTRAS = {
    "httpx": ("httpx", "httpcore"),
    "mcp": ("mcp", "PyYAML", "jsonschema"),
    "otel": ("opentelemetry-sdk",),
    "prices": ("genai-prices",),
    "postgres": ("psycopg", "psycopg-pool", "procrastinate"),
    "local": ("xllamacpp",),
}
#: programs that start many MCP servers
PROGRAMS = {
    "node": "runs MCP servers written for Node", "npx": "fetches and runs those servers",
    "uvx": "fetches and runs MCP servers written for Python",
}
#: the default addresses of local servers, with their names in `resolve`
USUAL = (
    ("vllm", "http://127.0.0.1:8000/v1"),
    ("llamacpp", "http://127.0.0.1:8080/v1"),
    ("lmstudio", "http://127.0.0.1:1234/v1"),
)
_SERVER_TIMEOUT = 1.0
_MOST_MODELS = 5


class Finding(NamedTuple):
    """One line of the report. `group` is its heading, `good` means found and working, `problem` says what to fix."""

    group: str
    name: str
    text: str
    good: bool
    problem: str | None = None


def _doctor(options: Namespace) -> int:
    findings = [
        Finding("python", "Python", f"{platform.python_version()} at {sys.executable}", good=True),
        Finding("python", "kernai", __version__, good=True),
        *check_extras(), *check_keys(), *check_servers(), *check_proxies(), *check_programs(),
    ]
    problems = list(dict.fromkeys(one.problem for one in findings if one.problem is not None))
    if not any(one.good for one in findings if one.group in ("keys", "servers") or one.name == "local"):
        ways = "set a vendor's key, such as OPENAI_API_KEY, start a server such as Ollama, or install the extra local"
        problems.append(f"no model can be reached: {ways}")
    if options.json:
        output.write_json({"findings": [one._asdict() for one in findings], "problems": problems})
    else:
        _show(findings, problems)
    return output.NO if problems else output.OK


def _show(findings: list[Finding], problems: list[str]) -> None:
    for group, members in groupby(findings, lambda one: one.group):
        output.write(group, "bold")
        for one in members:
            sign, style = ("ok", "green") if one.good else ("!!", "red") if one.problem else ("--", "dim")
            output.write(f"  {sign}  {one.name:<14} {one_line(one.text, 200)}", style)
    output.write()
    for problem in problems:
        output.write(f"to fix: {one_line(problem, 400)}", "red")
    if not problems:
        output.write("nothing to fix", "green")


def check_extras() -> Iterator[Finding]:
    """Checks whether each extra is installed. Only one that is partly installed is a problem: it will not work."""
    for extra, packages in EXTRAS.items():
        found = {}
        for package in packages:
            with suppress(PackageNotFoundError):
                found[package] = f"{package} {version(package)}"
        text = ", ".join(found.values()) or "not installed"
        missing = [package for package in packages if package not in found]
        command = f'pip install "kernai[{extra}]"'
        is_partial = missing and packages[0] in found
        problem = f"the extra {extra} lacks {', '.join(missing)}: {command}" if is_partial else None
        yield Finding("extras", extra, f"{text}; {command}" if missing else text, good=not missing, problem=problem)


def check_keys() -> Iterator[Finding]:
    """Reports the variables that hold vendors' keys, and what else keeps `resolve` from using the vendor."""
    for vendor in VENDORS:
        variables = [name for name in vendor.variables if name in os.environ]
        held = [name for name in variables if os.environ[name].strip()]
        if held:
            problem, wrong = None, ""
            try:
                resolve(f"{vendor.name}/any")[0].close()
            except (KernaiError, ValueError) as error:
                wrong = f", but {error_text(error)}"
                if not isinstance(error, MissingSettingError):  # a region, for example, may be given in Python
                    problem = error_text(error)
            yield Finding("keys", vendor.name, f"{held[0]} is set{wrong}", good=not wrong, problem=problem)
        elif variables:
            problem = f"{variables[0]} is blank: give it a value or unset it"
            yield Finding("keys", vendor.name, f"{variables[0]} is set, but blank", good=False, problem=problem)


def check_proxies() -> Iterator[Finding]:
    """Reports the proxies that requests to vendors go through, without their passwords."""
    for scheme in ("https", "http"):
        try:
            if proxy := proxy_for(Endpoint(scheme, "vendor.example", 443)):
                yield Finding("network", f"{scheme} proxy", f"{proxy.scheme}://{proxy.peer}", good=True)
        except TransportError as error:
            yield Finding("network", f"{scheme} proxy", "is not a valid address", good=False, problem=str(error))


def check_programs() -> Iterator[Finding]:
    """Checks programs that MCP servers need; kernai itself needs none of them."""
    for name, what in PROGRAMS.items():
        said, good = f"not found ({what})", False
        if (path := shutil.which(name)) is not None:
            try:
                asked = subprocess.run(  # noqa: S603 - a program that the user has installed; only its version is requested
                    [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False,
                ).stdout.decode("utf-8", "replace").split("\n")[0].strip()
                said, good = f"{asked or 'reports no version'} at {path}", True
            except (OSError, subprocess.SubprocessError):
                said = f"does not run at {path}"
        yield Finding("programs", name, said, good=good)


# ----------------------------------------------------------------------------------------------------------- servers


class Server(NamedTuple):
    """A model server. `variable` is the environment variable that has its address, if there is one."""

    name: str
    url: str
    variable: str | None = None


def check_servers() -> Iterator[Finding]:
    """Reports each server that answers, Ollama, and servers that a variable names even if they do not answer."""
    servers: list[Server] = []
    for name, variable in (("ollama", "OLLAMA_HOST"), ("local", "LOCAL_BASE_URL")):
        is_set = bool(os.environ.get(variable, "").strip())
        try:
            if is_set or name == "ollama":
                with resolve(f"{name}/any", api_key="none is sent")[0] as provider:  # it reads the variable
                    servers.append(Server(name, provider.base_url, variable if is_set else None))
        except (KernaiError, ValueError) as error:  # its text does not show the value, which may contain a password
            problem = error_text(error)
            yield Finding("servers", name, f"{variable} is not a valid address", good=False, problem=problem)
    named = {server.url for server in servers}
    servers += [Server(name, url) for name, url in USUAL if url not in named]
    with ThreadPoolExecutor() as pool:
        yield from filter(None, pool.map(_check_server, servers))


def _check_server(server: Server) -> Finding | None:
    shown = shown_url(server.url)
    try:
        models = models_of(server)
    except (TransportError, ValueError, RecursionError) as error:
        if server.variable is None and server.name != "ollama":
            return None
        silent = isinstance(error, TransportError) and (error.retryable or error.kind in ("tls", "unwanted"))
        does = "does not answer" if silent else "answers, but not as a model server does"
        problem = None if server.variable is None else f"{server.variable} names a server that {does}"
        return Finding("servers", server.name, f"{shown} {does}", good=False, problem=problem)
    more = f" and {len(models) - _MOST_MODELS} more" if len(models) > _MOST_MODELS else ""
    listed = ", ".join(models[:_MOST_MODELS]) or "no models"
    return Finding("servers", server.name, f"{shown} answers: {listed}{more}", good=True)


def models_of(server: Server) -> list[str]:
    """The ids of the server's models, or a note that it requires a key.

    Raises `TransportError` if it does not answer, `ValueError` or `RecursionError` for an unexpected answer.
    """
    # https://github.com/ollama/ollama/blob/main/docs/api.md; the others list their models as OpenAI does
    path, models, id = ("/api/tags", "models", "name") if server.name == "ollama" else ("/models", "data", "id")
    until = time.monotonic() + _SERVER_TIMEOUT
    request = Request(
        "GET", server.url + path, {"Accept": "application/json"}, max_bytes=1_000_000,
        timeouts=Timeouts(_SERVER_TIMEOUT, _SERVER_TIMEOUT), unwanted=lambda: time.monotonic() >= until,
    )
    with closing(HttpTransport()) as transport, closing(transport.send(request)) as response:
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ["(it wants a key)"]
        if response.status != HTTPStatus.OK:
            raise ValueError(f"status {response.status}")
        data: Any = json.loads(b"".join(response))
    listed = data.get(models) if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no list of models")  # noqa: TRY004 - the same error as for text that is not JSON
    names = [one.get(id) for one in listed if isinstance(one, dict)]
    return [name for name in names if isinstance(name, str) and name.strip()]


# ------------------------------------------------------------------------------------------------------- completion
# Generated from the arguments of all commands. Everything that a script does not know is completed as a file name.


#: the arguments of each command
_Arguments = Mapping[str, list[Action]]


def _complete(options: Namespace) -> int:
    arguments = {name: command_of(name)[1].arguments for name in SUMMARIES}
    output.write("\n".join(_SHELLS[options.shell](arguments)))
    return output.OK


def _values(one: Action) -> str:
    vendors = [f"{vendor.name}/" for vendor in (*VENDORS, *IN_PROCESS.values())]
    return " ".join(vendors if one.metavar == "VENDOR/NAME" else one.choices or [])


def _positional(arguments: list[Action]) -> str:
    return " ".join(values for one in arguments if not one.option_strings and (values := _values(one)))


def _bash(arguments: _Arguments) -> Iterator[str]:
    yield "_kernai() {"
    yield "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words="
    yield "  case $COMP_CWORD:${COMP_WORDS[1]}:$before in"
    yield f'    1:*) words="{" ".join(SUMMARIES)} help --help --version" ;;'
    for command, own in arguments.items():
        for one in own:
            if one.option_strings and one.nargs != 0:
                patterns = "|".join(f"*:{command}:{flag}" for flag in one.option_strings)
                yield f'    {patterns}) words="{_values(one)}" ;;'
        flags = [flag for one in own for flag in one.option_strings]
        yield f'    *:{command}:*) words="{_positional(own)}"; [[ $current == -* ]] && words="{" ".join(flags)}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "  [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace"
    yield "}"
    yield "complete -o default -F _kernai kernai"


def _zsh(arguments: _Arguments) -> Iterator[str]:
    yield "#compdef kernai"
    yield "_kernai() {"
    yield "  local -a commands=("
    yield from (f"    {quote(f'{name}:{what}')}" for name, what in SUMMARIES.items())
    yield "  )"
    yield "  if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "  local command=$words[2]"
    yield "  shift words; (( CURRENT-- ))"
    yield "  case $command in"
    for command, own in arguments.items():
        yield f"    {command}) _arguments '*:argument:{_zsh_values(_positional(own))}' \\"
        for one in own:
            help = str(one.help).replace("[", "(").replace("]", ")").replace(":", "\\:")
            value = "" if one.nargs == 0 else f":value:{_zsh_values(_values(one))}"
            yield from (f"      {quote(f'{flag}[{help}]{value}')} \\" for flag in one.option_strings)
        yield "      ;;"
    yield "  esac"
    yield "}"
    yield '[[ $funcstack[1] == _kernai ]] && _kernai "$@" || compdef _kernai kernai'


def _zsh_values(values: str) -> str:
    if values.endswith("/"):  # add no space: the model's name must follow
        return f'compadd -S "" - {values}'
    return f"({values})" if values else "_files"


def _fish(arguments: _Arguments) -> Iterator[str]:
    for name, what in SUMMARIES.items():
        yield f"complete -c kernai -n __fish_use_subcommand -f -a {name} -d {quote(what)}"
    for command, own in arguments.items():
        condition = quote(f"__fish_seen_subcommand_from {command}")
        for one in own:
            flags = "".join(f" -{'l' if flag[:2] == '--' else 's'} {flag.lstrip('-')}" for flag in one.option_strings)
            value = " -r" if flags and one.nargs != 0 else ""
            values = f" -f -a {quote(_values(one))}" if _values(one) else ""
            if flags or values:
                yield f"complete -c kernai -n {condition}{flags}{value}{values} -d {quote(str(one.help))}"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}


COMMANDS = {
    "doctor": Command(_doctor, [argument("--json", "everything as JSON on stdout")], """\
Check what kernai needs: Python, installed extras, keys in the environment (their names, never their
values), model servers running on this machine, and the programs that start MCP servers. The exit status is 1 if
something must be fixed or no model can be reached.""", """\
kernai doctor
kernai doctor --json
OLLAMA_HOST=gpu-box:11434 kernai doctor"""),
    "completion": Command(_complete, [argument("shell", "your shell", choices=sorted(_SHELLS))], """\
Print a script with which bash, zsh or fish completes the commands of kernai, their options, and the vendors of --model.
Add the line below to your shell's start-up file and open a new shell.""", """\
kernai completion bash  # ~/.bashrc: eval "$(kernai completion bash)"
kernai completion zsh   # ~/.zshrc, after compinit: eval "$(kernai completion zsh)"
kernai completion fish  # ~/.config/fish/config.fish: kernai completion fish | source"""),
}

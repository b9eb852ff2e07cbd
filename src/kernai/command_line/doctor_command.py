"""`kernai doctor`: what this machine, its settings and its model servers can do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kernai import __version__
from kernai.command_line import output
from kernai.command_line.errors import NO, OK
from kernai.errors import KernaiError
from kernai.terminal_text import one_line
from kernai_providers.http_transport import HttpTransport
from kernai_providers.ollama import OllamaProvider
from kernai_providers.openai import OpenAIProvider
from kernai_providers.request_checks import checked_base_url
from kernai_providers.transport import Request, Timeouts, TransportError
from kernai_providers.vendors import VENDORS, Vendor


class Finding(NamedTuple):
    """`group` is the heading it stands under, `good` whether it is there. `problem` says what to mend, if anything."""

    group: str
    name: str
    text: str
    good: bool
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self._asdict()


OLDEST = (3, 11)
#: the packages behind each extra of pyproject.toml; a test holds the two together
EXTRAS = {
    "httpx": ("httpx",),
    "mcp": ("mcp", "PyYAML", "jsonschema"),
    "otel": ("opentelemetry-sdk",),
    "local": ("xllamacpp",),
}
#: what many MCP servers are started with
PROGRAMS = {"node": "MCP servers written for Node", "npx": "the same, fetched when needed", "uvx": "those for Python"}
_PATIENCE = 5.0  # seconds


def check_python() -> Iterator[Finding]:
    """Python and kernai."""
    good = sys.version_info >= OLDEST
    needed = ".".join(map(str, OLDEST))
    yield Finding(
        "python", "Python", f"{platform.python_version()} at {sys.executable}", good=good,
        problem=None if good else f"kernai needs Python {needed} or later",
    )
    yield Finding("python", "kernai", __version__, good=True)


def check_extras() -> Iterator[Finding]:
    """Each extra, whole, in part or not installed. Only a part is a problem: it looks installed and is not."""
    for extra, packages in EXTRAS.items():
        found = {package: _version(package) for package in packages}
        missing = [package for package, known in found.items() if known is None]
        told = ", ".join(f"{package} {known}" for package, known in found.items() if known is not None)
        command = f'pip install "kernai[{extra}]"'
        broken = found[packages[0]] is not None and bool(missing)
        yield Finding(
            "extras", extra, told if not missing else f"{told or 'not installed'}; {command}", good=not missing,
            problem=f"the extra {extra} lacks {', '.join(missing)}: {command}" if broken else None,
        )


def check_keys() -> Iterator[Finding]:
    """For each vendor with a key the variables that hold one; those that are set but blank are a problem."""
    for vendor in VENDORS:
        variables = [name for name in vendor.variables if name in os.environ]
        held = [name for name in variables if os.environ[name].strip()]
        if held:
            yield Finding("keys", vendor.name, f"{held[0]} is set", good=True)
        elif variables:
            yield Finding(
                "keys", vendor.name, f"{variables[0]} is set, but blank", good=False,
                problem=f"{variables[0]} is blank: give it a value or unset it",
            )


def vendors_without_key() -> list[Vendor]:
    """Those that could be used with a key."""
    held = {name for name, value in os.environ.items() if value.strip()}
    return [one for one in VENDORS if one.needs_key and not held & set(one.variables)]


def check_programs() -> Iterator[Finding]:
    """Programs that MCP servers need; none is needed by kernai itself."""
    for name, what in PROGRAMS.items():
        path = shutil.which(name)
        said = None if path is None else _asked_version(path)
        if path is None:
            yield Finding("programs", name, f"not found ({what})", good=False)
        else:
            yield Finding("programs", name, f"{said or 'does not run'} at {path}", good=said is not None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _asked_version(path: str) -> str | None:
    """The first line that it says; None where it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 - a program the user has installed, asked for its version
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = asked.stdout.decode("utf-8", "replace").split("\n")[0].strip()
    return said or "says no version"


PATIENCE = 1.0  # seconds
MAX_BYTES = 1_000_000
#: where servers listen unless they are told otherwise, with what `resolve` calls them
USUAL = (
    ("vllm", "http://127.0.0.1:8000/v1"),
    ("llamacpp", "http://127.0.0.1:8080/v1"),
    ("lmstudio", "http://127.0.0.1:1234/v1"),
)
_MOST_MODELS = 5


class Server(NamedTuple):
    """Where one is looked for: its base URL, the path that lists models, and the variable that named it, if any."""

    name: str
    url: str
    path: str
    list_key: str
    id_key: str
    variable: str | None = None


def check_servers() -> list[Finding]:
    """Each server that answers, and each that was named and does not."""
    findings: list[Finding] = []
    servers: list[Server] = []
    for name, variable in (("ollama", "OLLAMA_HOST"), ("local", "LOCAL_BASE_URL")):
        try:
            servers += _named(name, variable)
        except (KernaiError, ValueError):
            # in words that cannot hold any of the value: it may carry a password
            problem = f"{variable} must be an address such as http://127.0.0.1:8000, without user, password and query"
            findings.append(Finding("servers", name, f"{variable} is no address", good=False, problem=problem))
    named = {server.url for server in servers}
    servers += [Server(name, url, "/models", "data", "id") for name, url in USUAL if url not in named]
    with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
        for found in pool.map(_check, servers):
            findings += found
    return findings


def _named(name: str, variable: str) -> Iterator[Server]:
    given = os.environ.get(variable, "").strip()
    if name == "ollama":
        provider = OllamaProvider(api_key="none is sent")
        provider.close()
        yield Server(name, provider.base_url, "/api/tags", "models", "name", variable if given else None)
    elif given:
        url = checked_base_url(given, variable).removesuffix(OpenAIProvider.endpoint)
        yield Server(name, url, "/models", "data", "id", variable)


def _check(server: Server) -> list[Finding]:
    shown = shown_url(server.url)
    try:
        models = _models(server)
    except (TransportError, ValueError, RecursionError) as error:
        if server.variable is None and server.name != "ollama":
            return []
        silent = isinstance(error, TransportError) and (error.retryable or error.kind in ("tls", "unwanted"))
        told = "does not answer" if silent else f"answers, but not as {server.name} does"
        problem = None if server.variable is None else f"{server.variable} names a server that {told}"
        return [Finding("servers", server.name, f"{shown} {told}", good=False, problem=problem)]
    more = f" and {len(models) - _MOST_MODELS} more" if len(models) > _MOST_MODELS else ""
    told = ", ".join(models[:_MOST_MODELS]) or "no models"
    return [Finding("servers", server.name, f"{shown} answers: {told}{more}", good=True)]


def _models(server: Server) -> list[str]:
    """The ids of its models; raises where it does not answer, or with something else."""
    until = time.monotonic() + PATIENCE
    request = Request(
        "GET", server.url + server.path, {"Accept": "application/json"}, timeouts=Timeouts(PATIENCE, PATIENCE),
        max_bytes=MAX_BYTES, unwanted=lambda: time.monotonic() >= until,
    )
    with closing(HttpTransport()) as transport, closing(transport.send(request)) as response:
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ["(it wants a key)"]
        data: Any = json.loads(b"".join(response))
    listed = data.get(server.list_key) if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no list of models")  # noqa: TRY004 - as for text that is no JSON at all
    return [str(one.get(server.id_key)) for one in listed if isinstance(one, dict)]


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


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
    return NO if problems else OK


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

"""What `kernai doctor` finds out without reaching anything: versions, extras, programs, and which keys are set.

Of an environment variable only the name is ever told, never the value.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from kernai import __version__
from kernai.command_line.finding import Finding
from kernai_providers.vendors import VENDORS, Vendor

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

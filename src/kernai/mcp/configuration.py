"""Server configurations: read from a file, expanded from the environment, checked.

Files are YAML, JSON or TOML, depending on their ending. ``${VAR}`` and ``${VAR:-default}`` are expanded in each text
that is used, after parsing, so values from the environment cannot add keys, servers or arguments. ``$${`` is a literal
``${``. Other texts are left alone: they may belong to another program, or to a server that is disabled.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from kernai._util.api import likely
from kernai._util.network import HEADER_NAME
from kernai._util.redaction import Redactor, shown_url
from kernai.jsonio.json_data import loads
from kernai.mcp.errors import McpConfigError

Transport = Literal["stdio", "sse", "streamable_http"]
Item = TypeVar("Item")

#: shorter values are not hidden, because they occur in any text
SHORTEST_SECRET = 4
_OF_STDIO = ("command", "args", "env", "cwd")
_OF_HTTP = ("url", "headers")
_TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio", "sse": "sse", "streamable_http": "streamable_http", "streamablehttp": "streamable_http",
    "http": "streamable_http",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names are shown to the model in JSON, and in events
_REFERENCE = re.compile(r"\$?\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server. `transport` is None for a server in `client=`; `timeout` is in seconds.

    `env`, `headers`, `args` and `url` may contain secrets, so neither `repr` nor any error shows them.
    """

    name: str
    transport: Transport | None = None
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 60.0
    tools: frozenset[str] | None = None
    roots: tuple[Mapping[str, str | None], ...] = ()

    def allows(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


def read_servers(mapping: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, ServerConfig]:
    """Reads the servers of a configuration, and those in `given`, which come from `client=` and need no entry."""
    if not isinstance(mapping, Mapping):
        hint = "; kernai.mcp.load reads a file" if isinstance(mapping, str) else ""
        got = type(mapping).__name__
        raise McpConfigError(f"the configuration must be a mapping with the key 'servers', got {got}{hint}")
    foreign = "mcpServers" in mapping and "servers" not in mapping  # the file of a desktop client
    layout = "mcpServers" if foreign else "servers"
    for key in mapping:
        if key != layout and not foreign:
            raise McpConfigError(f"unknown key {key!r}: write only {{'servers': {{'NAME': {{'command': ...}}}}}}")
    listed = {} if mapping.get(layout) is None else mapping[layout]
    if not isinstance(listed, Mapping):
        raise McpConfigError(f"{layout} must be a mapping from names to servers, got {type(listed).__name__}")
    servers = {
        name: _server(name, entry, foreign=foreign, given=name in given) for name, entry in listed.items()
        if not (foreign and isinstance(entry, Mapping) and entry.get("disabled") is True)
    }
    return servers | {name: _server(name, None, foreign=False, given=True) for name in given if name not in servers}


class _FaultError(Exception):
    """A key, and what is wrong with its value. Shows no value that may be secret."""


def _server(name: Any, entry: Any, *, foreign: bool, given: bool) -> ServerConfig:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise McpConfigError(
            f"a server's name must be letters, digits, '.', '_' and '-', beginning with one of the first two, "
            f"got {name!r}"
        )
    if entry is not None and not isinstance(entry, Mapping):
        got = type(entry).__name__
        raise McpConfigError(f"server {name!r}: must be a mapping such as {{'command': ...}}, got {got}")
    # YAML allows a key without a value: it counts as missing
    found = {key: value for key, value in (entry or {}).items() if value is not None}
    if "type" in found and "transport" not in found:
        found["transport"] = found.pop("type")  # several other clients call it "type"
    try:
        for key in found:
            if key not in _READERS and not foreign:  # files of other clients have further keys
                hint = likely(str(key), _READERS, "remove it; there are")
                raise _FaultError(str(key), f"there is no such key{hint}")
        read = {key: _READERS[key](key, value) for key, value in found.items() if key in _READERS}
        return ServerConfig(name, **{**read, "transport": _transport(read, given=given)})
    except _FaultError as fault:
        key, complaint = fault.args
        raise McpConfigError(f"server {name!r}, key {key!r}: {complaint}") from None


def _transport(read: Mapping[str, Any], *, given: bool) -> Transport | None:
    has = [key for key in (*_OF_STDIO, *_OF_HTTP) if key in read]
    named = read.get("transport")
    if given:
        if has or named:
            raise _FaultError(min([*has, "transport"]), "this server is handed in by client=; remove the key")
        return None
    path = urlsplit(read.get("url", "")).path
    detected = "stdio" if "url" not in has else "sse" if path.rstrip("/").endswith("/sse") else "http"
    transport = _TRANSPORTS.get((named or detected).lower().replace("-", "_"))
    if transport is None:
        raise _FaultError("transport", f"must be stdio, sse or streamable_http, got {named!r}")
    needed, foreign = ("command", _OF_HTTP) if transport == "stdio" else ("url", _OF_STDIO)
    if not read.get(needed, "").strip():
        hint = f"transport {transport} needs it" if named else "give a command to start, or a url to connect to"
        raise _FaultError(needed, f"is missing: {hint}")
    for key in foreign:
        if key in has:
            raise _FaultError(key, f"does not belong to transport {transport}; remove it")
    return transport


def _expanded(key: str, text: str) -> str:
    """Replaces the references in a text. As in a shell, a default also replaces an empty variable."""
    def replaced(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        name, default = found["name"], found["default"]
        if name is None:
            raise _FaultError(key, "'${' must begin ${NAME} or ${NAME:-default}; a literal '${' is '$${'")
        value = os.environ.get(name) or (os.environ.get(name) if default is None else default)
        if value is None:
            raise _FaultError(
                key, f"the environment variable {name} is not set: set it, or write a default, ${{{name}:-default}}"
            )
        return value

    return _REFERENCE.sub(replaced, text)


def _text(key: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # YAML and TOML read `PORT: 8080` as a number
    if not isinstance(value, str):
        raise _FaultError(key, f"must be text, got {type(value).__name__}: put it in quotes")
    return _expanded(key, value)


def _each(key: str, value: Any, read: Callable[[str, Any], Item]) -> tuple[Item, ...]:
    if not isinstance(value, (list, tuple)):
        raise _FaultError(key, f"must be a list, got {type(value).__name__}")
    return tuple(read(f"{key}[{at}]", one) for at, one in enumerate(value))


def _pairs(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _FaultError(key, f"must be a mapping from names to texts, got {type(value).__name__}")
    for name in value:
        if not isinstance(name, str):
            raise _FaultError(key, f"the name {name!r} must be text: put it in quotes")
    return {name: _text(f"{key}.{name}", one) for name, one in value.items()}


def _url(key: str, value: Any) -> str:
    with suppress(ValueError):  # for an unpaired bracket, and a port that cannot be one
        url = _text(key, value).strip()
        if re.match(r"https?://[^/?#\s]+[^\s]*\Z", url, re.IGNORECASE) and urlsplit(url).port != 0:
            return url
    raise _FaultError(key, "must begin with http:// or https:// and name a host; a port must be from 1 to 65535")


def _headers(key: str, value: Any) -> dict[str, str]:
    headers = {name: one.strip() for name, one in _pairs(key, value).items()}  # variables may end in a line break
    for name, one in headers.items():
        if not HEADER_NAME.fullmatch(name):
            raise _FaultError(key, f"{name!r} is not a valid name for an HTTP header")
        if not one.isascii() or not one.isprintable():
            raise _FaultError(f"{key}.{name}", "must be printable ASCII on one line")
    return headers


def _timeout(key: str, value: Any) -> float:
    with suppress(ValueError):
        value = float(_expanded(key, value)) if isinstance(value, str) else value
    if not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        shown = value if isinstance(value, (int, float)) else type(value).__name__
        raise _FaultError(key, f"must be a number of seconds, more than 0 and finite, got {shown}")
    return float(value)


def _root(key: str, value: Any) -> dict[str, str | None]:
    given = value if isinstance(value, Mapping) else {"uri": value}
    root = {one: _text(key, text) for one, text in given.items() if text is not None}
    uri = root.get("uri", "")
    with suppress(RuntimeError, ValueError):  # for the home of an unknown user, and a NUL character
        if uri.strip() and root.keys() <= {"uri", "name"} and ("://" not in uri or uri.startswith("file://")):
            uri = uri if "://" in uri else Path(uri).expanduser().resolve().as_uri()
            return {"uri": uri, "name": root.get("name")}
    raise _FaultError(key, "must be a folder, a file:// URI, or {'uri': ..., 'name': ...}")


#: for each key that there is, the function that checks and converts its value
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "transport": _text, "command": _text, "args": partial(_each, read=_text), "env": _pairs, "cwd": _text,
    "url": _url, "headers": _headers, "timeout": _timeout,
    "tools": lambda key, value: frozenset(_each(key, value, _text)),
    "roots": partial(_each, read=_root),
}


# ----------------------------------------------------------------------------------------------------------- secrets


def redactor_of(config: ServerConfig) -> Redactor:
    """Returns a redactor that hides the values of `env` and `headers`, and the secret parts of the URL."""
    secrets = [(value, f"[env {name}]") for name, value in config.env.items()]
    for name, value in config.headers.items():
        scheme, _, token = value.partition(" ")  # in "Bearer KEY", the key alone must be hidden, too
        secrets += [(value, f"[header {name}]"), (token if scheme.isalpha() else "", f"[header {name}]")]
    if config.url is not None:
        parts = urlsplit(config.url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        secrets += [
            (config.url if shown_url(config.url) != config.url else "", shown_url(config.url)),
            *((value, f"[url {name}]") for name, value in parse_qsl(parts.query)),
            # a key without a password is in the place of the user's name
            (unquote(password), "[url password]") if password else (unquote(user), "[url user]"),
        ]
    return Redactor({secret: mark for secret, mark in secrets if len(secret) >= SHORTEST_SECRET})


# ---------------------------------------------------------------------------------------------------------------- files


def read_file(path: str | os.PathLike[str]) -> Any:
    """Reads the value in a file, without expanding it. Raises `McpConfigError` with the faulty line."""
    file = Path(path)
    readers: dict[str, Callable[[str], Any]] = {
        ".yml": _yaml, ".yaml": _yaml, ".json": partial(loads, unique_keys=True), ".toml": tomllib.loads,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise McpConfigError("the file's name must end in .yml, .yaml, .json or .toml")
    try:
        return reader(file.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (OSError, ValueError, RecursionError) as error:
        raise McpConfigError(str(error)) from None


def _yaml(text: str) -> Any:
    """Parses YAML with a safe loader that also refuses duplicate keys."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if (key.tag, str(key.value)) in seen and isinstance(key, yaml.ScalarNode):
                    problem = f"the key {key.value!r} is given twice in one mapping; remove one"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                seen.add((key.tag, str(key.value)))
            return node

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a `SafeLoader`
    except yaml.YAMLError as error:
        # the error's own text quotes the line, which may contain a secret
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise ValueError(f"{place}not valid YAML: {problem}") from None

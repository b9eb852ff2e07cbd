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

from kernai._util.api import check_type, likely
from kernai._util.network import HEADER_NAME
from kernai._util.redaction import Redactor, shown_url
from kernai.jsonio.json_data import loads
from kernai.mcp.errors import McpConfigError

Transport = Literal["stdio", "sse", "streamable_http"]
Item = TypeVar("Item")

#: shorter values are not hidden, because they occur in any text
SHORTEST_SECRET = 4
#: kernai's own key for the servers, and the key that desktop clients use
_LAYOUTS = ("servers", "mcpServers")
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
        raise McpConfigError(f"the configuration must be a mapping with the key 'servers', got {_kind(mapping)}{hint}")
    unknown = [key for key in mapping if key not in _LAYOUTS]
    if unknown and not any(layout in mapping for layout in _LAYOUTS):
        raise McpConfigError(
            f"the configuration has no key 'servers' (or 'mcpServers'), but {unknown[0]!r}: write "
            "{'servers': {'NAME': {'command': ...}}}"
        )
    if unknown and "servers" in mapping:
        raise McpConfigError(f"unknown key {unknown[0]!r} beside 'servers': remove it")
    servers: dict[str, ServerConfig] = {}
    for layout in _LAYOUTS:
        listed = {} if mapping.get(layout) is None else mapping[layout]
        if not isinstance(listed, Mapping):
            raise McpConfigError(f"{layout} must be a mapping from names to servers, got {_kind(listed)}")
        for name, entry in listed.items():
            if name in servers:
                raise McpConfigError(f"server {name!r} is configured twice, in 'servers' and in 'mcpServers'")
            foreign = layout == "mcpServers"
            if not (foreign and isinstance(entry, Mapping) and entry.get("disabled") is True):
                servers[name] = _server(name, entry, foreign=foreign, given=name in given)
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
        raise McpConfigError(f"server {name!r}: must be a mapping such as {{'command': ...}}, got {_kind(entry)}")
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
    if not named and "command" not in has and "url" not in has:
        raise _FaultError("command", "is missing: give a command to start, or a url to connect to")
    path = urlsplit(read.get("url", "")).path
    detected = "stdio" if "command" in has else "sse" if path.rstrip("/").endswith("/sse") else "http"
    transport = _TRANSPORTS.get((named or detected).lower().replace("-", "_"))
    if transport is None:
        raise _FaultError("transport", f"must be stdio, sse or streamable_http, got {named!r}")
    needed, foreign = ("command", _OF_HTTP) if transport == "stdio" else ("url", _OF_STDIO)
    if needed not in has:
        raise _FaultError(needed, f"is missing: transport {transport} needs it")
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
    if not isinstance(value, str) or not (text := _expanded(key, value)).strip():
        raise _FaultError(key, f"must be text that is not blank, got {_kind(value)}")
    return text


def _plain(key: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # YAML and TOML read `PORT: 8080` as a number
    if not isinstance(value, str):
        raise _FaultError(key, f"must be text, got {_kind(value)}: put it in quotes")
    if "\0" in (text := _expanded(key, value)):
        raise _FaultError(key, "contains a NUL character; remove it")
    return text


def _each(key: str, value: Any, read: Callable[[str, Any], Item], what: str = "texts") -> tuple[Item, ...]:
    if not isinstance(value, (list, tuple)):
        raise _FaultError(key, f"must be a list of {what}, got {_kind(value)}")
    return tuple(read(f"{key}[{at}]", one) for at, one in enumerate(value))


def _pairs(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _FaultError(key, f"must be a mapping from names to texts, got {_kind(value)}")
    for name in value:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise _FaultError(key, f"{name!r} cannot be a name there")
    return {name: _plain(f"{key}.{name}", one) for name, one in value.items()}


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
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _FaultError(key, f"must be a number of seconds, got {_kind(value)}")
    if not 0 < value <= sys.float_info.max:
        raise _FaultError(key, f"must be more than 0 seconds and finite, got {value}")
    return float(value)


def _root(key: str, value: Any) -> dict[str, str | None]:
    name = None
    if isinstance(value, Mapping) and set(value) <= {"uri", "name"}:
        name, value = value.get("name"), value.get("uri")
    name, value = (_expanded(key, one) if isinstance(one, str) else one for one in (name, value))
    if not isinstance(value, str) or not value.strip() or not isinstance(name, str | None):
        raise _FaultError(key, "must be a folder, a file:// URI, or {'uri': ..., 'name': ...}")
    if "://" in value and not value.startswith("file://"):
        raise _FaultError(key, "only folders and file:// URIs can be roots")
    with suppress(RuntimeError, ValueError):  # for the home of an unknown user, and a NUL character
        return {"uri": value if "://" in value else Path(value).expanduser().resolve().as_uri(), "name": name}
    raise _FaultError(key, f"there can be no folder {value!r}")


#: for each key that there is, the function that checks and converts its value
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "transport": _text, "command": _text, "args": partial(_each, read=_plain), "env": _pairs, "cwd": _text,
    "url": _url, "headers": _headers, "timeout": _timeout,
    "tools": lambda key, value: frozenset(_each(key, value, _plain)),
    "roots": partial(_each, read=_root, what="folders or file:// URIs"),
}


def _kind(value: object) -> str:
    """The kind of a value, without the value itself."""
    return {"NoneType": "nothing", "str": "text", "dict": "a mapping", "list": "a list", "bool": "a boolean"}.get(
        type(value).__name__, type(value).__name__
    )


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
    file = Path(check_type(path, str | os.PathLike, "path must be a file's path", "; kernai.mcp.setup takes a mapping"))
    readers: dict[str, Callable[[str], Any]] = {
        ".yml": _yaml, ".yaml": _yaml, ".json": partial(loads, unique_keys=True), ".toml": tomllib.loads,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise McpConfigError("the file's name must end in .yml, .yaml, .json or .toml")
    try:
        return reader(file.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise McpConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, RecursionError) as error:
        raise McpConfigError(str(error)) from None


def _yaml(text: str) -> Any:
    """Parses YAML with a safe loader that also refuses duplicate keys."""
    try:
        import yaml
    except ImportError:
        raise ImportError('YAML needs PyYAML: pip install "kernai[mcp]"') from None

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

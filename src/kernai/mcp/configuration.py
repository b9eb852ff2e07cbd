"""Server configurations: read from a file, expanded from the environment, checked.

Files are YAML, JSON or TOML, by their ending. ``${VAR}`` and ``${VAR:-default}`` are expanded after parsing, so no
value of the environment can add keys, servers or arguments; ``$${`` is a literal ``${``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from kernai._util.redaction import Redactor
from kernai.mcp.errors import McpConfigError

Transport = Literal["stdio", "sse", "streamable_http"]

DEFAULT_TIMEOUT = 60.0
#: the layout of kernai, and the one that desktop clients use
LAYOUTS = ("servers", "mcpServers")
KEYS = ("transport", "command", "args", "env", "cwd", "url", "headers", "timeout", "tools", "roots")
_TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "sse": "sse",
    "streamable_http": "streamable_http",
    "streamablehttp": "streamable_http",
    "http": "streamable_http",
}
_OF_STDIO = ("command", "args", "env", "cwd")
_OF_HTTP = ("url", "headers")
# What a name may hold: it is shown to the model inside JSON and in events.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server. `transport` is None where the caller hands the server in; `timeout` is in seconds.

    `env`, `headers` and `args` may hold secrets, so neither `repr` nor any error shows them.
    """

    name: str
    transport: Transport | None = None
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = DEFAULT_TIMEOUT
    tools: frozenset[str] | None = None
    roots: tuple[tuple[str, str | None], ...] = ()

    def allows(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools


def read_servers(mapping: Mapping[str, Any], given: frozenset[str] = frozenset()) -> dict[str, ServerConfig]:
    """The servers of a configuration whose references are expanded; those in `given` need no way to reach them."""
    if not isinstance(mapping, Mapping):
        hint = "; kernai.mcp.load reads a file" if isinstance(mapping, str) else ""
        raise McpConfigError(f"the configuration must be a mapping with the key 'servers', got {_kind(mapping)}{hint}")
    unknown = [key for key in mapping if key not in LAYOUTS]
    if unknown and not any(layout in mapping for layout in LAYOUTS):
        raise McpConfigError(
            f"the configuration has no key 'servers' (or 'mcpServers'), but {unknown[0]!r}: write "
            "{'servers': {'NAME': {'command': ...}}}"
        )
    if unknown and "servers" in mapping:
        raise McpConfigError(f"unknown key {unknown[0]!r} beside 'servers': remove it")
    servers: dict[str, ServerConfig] = {}
    for layout in LAYOUTS:
        listed = mapping.get(layout)
        if listed is None:
            continue
        if not isinstance(listed, Mapping):
            raise McpConfigError(f"{layout} must be a mapping from names to servers, got {_kind(listed)}")
        for name, entry in listed.items():
            reader = _Reader(name, entry, foreign=layout == "mcpServers")
            if reader.name in servers:
                raise McpConfigError(f"server {name!r} is configured twice, in 'servers' and in 'mcpServers'")
            if not reader.is_disabled:
                servers[reader.name] = reader.read(given=reader.name in given)
    return servers


class _Reader:
    """Reads one server's entry; every fault names the server, the key and the fix, and shows no value of a secret."""

    def __init__(self, name: Any, entry: Any, *, foreign: bool) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise McpConfigError(
                f"a server's name must be letters, digits, '.', '_' and '-', beginning with one of the first two, "
                f"got {name!r}"
            )
        self.name = name
        self._foreign = foreign
        if entry is not None and not isinstance(entry, Mapping):
            raise McpConfigError(f"server {name!r}: must be a mapping such as {{'command': ...}}, got {_kind(entry)}")
        # a key without a value, as YAML allows it, is a key that is not there
        self._entry = {key: value for key, value in (entry or {}).items() if value is not None}

    @property
    def is_disabled(self) -> bool:
        """Desktop clients leave a server that is switched off in the file."""
        return self._foreign and self._entry.get("disabled") is True

    def read(self, *, given: bool) -> ServerConfig:
        self._check_keys()
        transport = self._transport(given=given)
        return ServerConfig(
            name=self.name,
            transport=transport,
            command=self._text("command"),
            args=self._texts("args"),
            env=self._pairs("env"),
            cwd=self._text("cwd"),
            url=self._url(),
            headers=self._headers(),
            timeout=self._timeout(),
            tools=frozenset(self._texts("tools")) if "tools" in self._entry else None,
            roots=self._roots(),
        )

    def _fault(self, key: str, complaint: str) -> McpConfigError:
        return McpConfigError(f"server {self.name!r}, key {key!r}: {complaint}")

    def _check_keys(self) -> None:
        if "type" in self._entry and "transport" not in self._entry:
            self._entry["transport"] = self._entry.pop("type")  # what several clients call it
        unknown = [key for key in self._entry if key not in KEYS]
        if not unknown or self._foreign:  # other clients' files hold keys of their own
            return
        close = difflib.get_close_matches(str(unknown[0]), KEYS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"remove it; there are {', '.join(KEYS)}"
        raise self._fault(str(unknown[0]), f"there is no such key; {hint}")

    def _transport(self, *, given: bool) -> Transport | None:
        has = {key for key in (*_OF_STDIO, *_OF_HTTP) if key in self._entry}
        named = self._text("transport")
        if given:
            if has or named:
                raise self._fault(min(has or {"transport"}), "this server is handed in by client=; remove the key")
            return None
        if "command" in has and "url" in has:
            raise self._fault("url", "a server has a command or a url, not both; remove one of them")
        transport = self._named(named) if named else self._detected(has)
        needed, strange = ("command", _OF_HTTP) if transport == "stdio" else ("url", _OF_STDIO)
        if needed not in has:
            raise self._fault(needed, f"is missing: transport {transport} needs it")
        for key in strange:
            if key in has:
                raise self._fault(key, f"does not belong to transport {transport}; remove it")
        return transport

    def _named(self, named: str) -> Transport:
        transport = _TRANSPORTS.get(named.lower().replace("-", "_"))
        if transport is None:
            raise self._fault("transport", f"must be stdio, sse or streamable_http, got {named!r}")
        return transport

    def _detected(self, has: set[str]) -> Transport:
        if "command" in has:
            return "stdio"
        if "url" not in has:
            raise self._fault("command", "is missing: give a command to start, or a url to connect to")
        path = (self._text("url") or "").partition("#")[0].partition("?")[0]
        return "sse" if path.rstrip("/").endswith("/sse") else "streamable_http"

    def _text(self, key: str) -> str | None:
        value = self._entry.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self._fault(key, f"must be text that is not blank, got {_kind(value)}")
        return value

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        if not isinstance(value, (list, tuple)):
            raise self._fault(key, f"must be a list of texts, got {_kind(value)}")
        return tuple(self._plain_text(f"{key}[{index}]", one) for index, one in enumerate(value))

    def _pairs(self, key: str) -> dict[str, str]:
        value = self._entry.get(key, {})
        if not isinstance(value, Mapping):
            raise self._fault(key, f"must be a mapping from names to texts, got {_kind(value)}")
        pairs = {}
        for name, one in value.items():
            if not isinstance(name, str) or not name or any(sign in name for sign in "=\0"):
                raise self._fault(key, f"{name!r} cannot be a name there")
            pairs[name] = self._plain_text(f"{key}.{name}", one)
        return pairs

    def _plain_text(self, key: str, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)  # YAML and TOML read `PORT: 8080` as a number
        if not isinstance(value, str):
            raise self._fault(key, f"must be text, got {_kind(value)}: put it in quotes")
        if "\0" in value:
            raise self._fault(key, "holds a NUL character; remove it")
        return value

    def _url(self) -> str | None:
        url = self._text("url")
        if url is None:
            return None
        if not re.match(r"https?://[^/?#\s]+[^\s]*\Z", url, re.IGNORECASE):
            raise self._fault("url", "must begin with http:// or https:// and name a host")
        return url

    def _headers(self) -> dict[str, str]:
        headers = self._pairs("headers")
        for name, value in headers.items():
            if not _HEADER.fullmatch(name):
                raise self._fault("headers", f"{name!r} is no name of an HTTP header")
            if not value.isascii() or not value.isprintable():
                raise self._fault(f"headers.{name}", "must be printable ASCII on one line")
        return headers

    def _timeout(self) -> float:
        value = self._entry.get("timeout", DEFAULT_TIMEOUT)
        if isinstance(value, str):  # from a reference, perhaps
            try:
                value = float(value)
            except ValueError:
                raise self._fault("timeout", f"must be a number of seconds, got {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._fault("timeout", f"must be a number of seconds, got {_kind(value)}")
        if not 0 < value <= sys.float_info.max:
            raise self._fault("timeout", f"must be more than 0 seconds and finite, got {value}")
        return float(value)

    def _roots(self) -> tuple[tuple[str, str | None], ...]:
        value = self._entry.get("roots", [])
        if not isinstance(value, (list, tuple)):
            raise self._fault("roots", f"must be a list of folders or file:// URIs, got {_kind(value)}")
        return tuple(self._root(f"roots[{index}]", one) for index, one in enumerate(value))

    def _root(self, key: str, value: Any) -> tuple[str, str | None]:
        name = None
        if isinstance(value, Mapping) and set(value) <= {"uri", "name"}:
            name, value = value.get("name"), value.get("uri")
        if not isinstance(value, str) or not value.strip() or not isinstance(name, str | None):
            raise self._fault(key, "must be a folder, a file:// URI, or {'uri': ..., 'name': ...}")
        if value.startswith("file://"):
            return value, name
        if "://" in value:
            raise self._fault(key, "only folders and file:// URIs can be roots")
        return Path(value).expanduser().resolve().as_uri(), name


def _kind(value: object) -> str:
    """What a value is, without showing it."""
    return {"NoneType": "nothing", "str": "text", "dict": "a mapping", "list": "a list", "bool": "a boolean"}.get(
        type(value).__name__, type(value).__name__
    )


SHORTEST_SECRET = 4
MAX_DEPTH = 50
MAX_VALUES = 10_000
_REFERENCE = re.compile(r"\$?\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?")


def expanded(value: Any, environment: Mapping[str, str], place: str = "") -> Any:
    """`value` with the references in all its texts replaced; keys stay as they are.

    As in a shell, a default serves for a variable that is unset or empty. `McpConfigError` names the variable and the
    place, such as ``servers.files.env.TOKEN``.
    """
    return _Expansion(environment).of(value, place, 0)


class _Expansion:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._values = 0

    def of(self, value: Any, place: str, depth: int) -> Any:
        self._values += 1
        if depth > MAX_DEPTH:
            raise McpConfigError(f"{place}: the configuration contains itself or nests deeper than {MAX_DEPTH} levels")
        if self._values > MAX_VALUES:  # a mapping that is shared within itself, as YAML's aliases make it
            raise McpConfigError(f"the configuration has more than {MAX_VALUES} values")
        if isinstance(value, str):
            return _REFERENCE.sub(lambda found: _replaced(found, self._environment, place), value)
        if isinstance(value, Mapping):
            return {
                key: self.of(one, f"{place}.{key}" if place else str(key), depth + 1) for key, one in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.of(one, f"{place}[{index}]", depth + 1) for index, one in enumerate(value)]
        return value


def _replaced(found: re.Match[str], environment: Mapping[str, str], place: str) -> str:
    if found[0].startswith("$$"):
        return found[0][1:]
    name, default = found["name"], found["default"]
    if name is None:
        raise McpConfigError(f"{place}: '${{' must begin ${{NAME}} or ${{NAME:-default}}; a literal '${{' is '$${{'")
    given = environment.get(name)
    if given or (given is not None and default is None):
        return given
    if default is not None:
        return default
    raise McpConfigError(
        f"{place}: the environment variable {name} is not set: set it, or write a default, ${{{name}:-default}}"
    )


def read_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The mapping in the file, nothing expanded. `McpConfigError` names the file and the line of a mistake in it."""
    file = Path(path)
    readers = {".yml": _yaml, ".yaml": _yaml, ".json": _json, ".toml": _toml}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise McpConfigError(f"{file}: the name must end in .yml, .yaml, .json or .toml")
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise McpConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        found = reader(text)
    except (ValueError, RecursionError) as error:
        raise McpConfigError(f"{file}: {error}") from None
    if not isinstance(found, Mapping):
        raise McpConfigError(f"{file}: must hold a mapping with the key 'servers'")
    return found


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {key!r} stands twice in one object; remove one")
        made[key] = value
    return made


def _toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError('YAML needs PyYAML: pip install "kernai[mcp]"') from None
    try:
        loader = _yaml_loader()(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        # the whole text of such an error quotes the line, which may hold a secret
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        said = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise ValueError(f"{place}not valid YAML: {said}") from None


@cache
def _yaml_loader() -> Any:
    """A safe loader that refuses duplicate keys, and aliases that blow a small file up."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._values = 0  # with every alias written out
            self._sizes: dict[yaml.Node, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias, before = self.check_event(yaml.AliasEvent), self._values
            self._values += 1
            node: Any = super().compose_node(parent, index)
            if not is_alias:
                self._sizes[node] = self._values - before
            elif node in self._sizes:
                self._values += self._sizes[node]
            else:
                raise _fault("an alias stands inside of what it stands for", node)
            if self._values > MAX_VALUES:
                raise _fault(f"there are more than {MAX_VALUES} values, aliases written out", node)
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                    raise _fault(f"the key {key.value!r} stands twice in one mapping; remove one", key)
                seen.add((key.tag, str(key.value)))
            return node

    def _fault(problem: str, node: Any) -> Exception:
        return yaml.composer.ComposerError(None, None, problem, node.start_mark)

    return Loader


def redactor_of(config: ServerConfig) -> Redactor:
    """Hides `env`, `headers` and the secret parts of the URL. Values of fewer than 4 characters occur in any text."""
    redactor = Redactor()
    for value, mark in _secrets_of(config):
        if len(value) >= SHORTEST_SECRET:
            redactor.add(value, mark)
    return redactor


def _secrets_of(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Each secret value, and what is shown instead."""
    for name, value in config.env.items():
        yield value, f"[env {name}]"
    for name, value in config.headers.items():
        yield value, f"[header {name}]"
        scheme, _, token = value.partition(" ")  # "Bearer KEY": the key alone is as secret
        if scheme.isalpha():
            yield token, f"[header {name}]"
    if config.url is not None:
        if shown_url(config.url) != config.url:
            yield config.url, shown_url(config.url)
        parts = urlsplit(config.url)
        for name, value in parse_qsl(parts.query):
            yield value, f"[url {name}]"
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        yield unquote(password), "[url password]"
        if not password:  # a key alone stands where the name would
            yield unquote(user), "[url user]"


def shown_url(url: str) -> str:
    """The URL without user name, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

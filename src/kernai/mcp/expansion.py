"""``${VAR}`` and ``${VAR:-default}`` in a configuration, expanded after it has been parsed.

After, so that no value of the environment can add keys, servers or arguments. ``$${`` stands for a literal ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernai.mcp.errors import McpConfigError

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

"""Reading a configuration file: YAML, JSON or TOML, by the file's ending."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kernai.mcp.errors import McpConfigError
from kernai.mcp.expansion import MAX_VALUES


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

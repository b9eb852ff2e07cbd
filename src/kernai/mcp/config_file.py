"""Reading a configuration file: YAML, JSON or TOML, by the file's ending."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernai.mcp.errors import McpConfigError


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
    return json.loads(text)


def _toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError('YAML needs PyYAML: pip install "kernai[mcp]"') from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # the whole text of such an error quotes the line, which may hold a secret
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(f"{place}not valid YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None

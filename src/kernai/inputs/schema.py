"""JSON Schema (2020-12) of inputs: what several types of one schema share.

A schema is read off the same nodes that check a call, so that the two cannot drift apart. What JSON Schema cannot say
stays unsaid, and the call itself has the last word: a number is finite, an `int` is not written ``3.0``. An enum offers
its values; that a member's name is taken too is not told, for one way to write it is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

Schema = dict[str, Any]

_PLACE = "#/$defs/"


class Definitions:
    """The records in one schema, each under a name of its own: several inputs may hold one, and one itself."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._names: dict[object, str] = {}

    def refer(self, record: object, name: str, make: Callable[[], Schema]) -> Schema:
        """A reference to the definition of `record`, which `make` gives when it is first wanted."""
        if record not in self._names:
            name = self._names[record] = self._free(name)
            self.schemas[name] = make()
        return {"$ref": _PLACE + self._names[record]}

    def adopt(self, schema: Schema) -> Schema:
        """A schema that was made elsewhere, its own definitions put beside the others."""
        foreign = schema.get("$defs", {})
        names = {name: self._free(name) for name in foreign}
        self.schemas |= {names[name]: _renamed(one, names) for name, one in foreign.items()}
        return {key: _renamed(one, names) for key, one in schema.items() if key != "$defs"}

    def _free(self, wanted: str) -> str:
        name = base = re.sub(r"[^A-Za-z0-9_.-]", "_", wanted)
        numbers = count(2)
        while name in self.schemas:
            name = f"{base}_{next(numbers)}"
        self.schemas[name] = {}  # its place, for it may hold itself
        return name


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """A schema with its references to definitions under their new names."""
    if isinstance(schema, dict):
        return {key: _renamed(one, names) for key, one in schema.items()}
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if isinstance(schema, str) and schema.startswith(_PLACE):
        name = schema.removeprefix(_PLACE)
        return _PLACE + names.get(name, name)
    return schema

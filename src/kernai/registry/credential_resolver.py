"""Where the values of credentials and settings come from.

A resolver is any object with ``resolve(skill_name, key) -> str | None``; None means that it knows no value. Resolvers
are asked each time a skill reads a key, so a rotated key is seen at once. Nothing here ever shows a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Protocol

_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9]")


class Resolver(Protocol):
    """Finds the value of a skill's credential or setting, or None."""

    def resolve(self, skill_name: str, key: str, /) -> str | None: ...


def environment_name(skill_name: str, key: str) -> str:
    """The environment variable of a skill's key: ``KERNAI_SKILL_<SKILL>_<KEY>``, what is not a letter or digit `_`."""
    return "KERNAI_SKILL_" + _NOT_IN_A_NAME.sub("_", f"{skill_name}_{key}".upper())


class EnvironmentResolver:
    """Reads ``KERNAI_SKILL_<SKILL>_<KEY>`` from the process environment. A variable set to nothing counts as unset."""

    def resolve(self, skill_name: str, key: str, /) -> str | None:
        return os.environ.get(environment_name(skill_name, key)) or None

    def __repr__(self) -> str:
        return "EnvironmentResolver()"


class MappingResolver:
    """Values out of a mapping, for tests and for secrets that are loaded by other means.

    ``MappingResolver({"search": {"api_key": "..."}})``. A key may also stand for one skill as the pair ``("search",
    "api_key")`` or under its environment variable's name, or for every skill that declares it as plain ``"api_key"``;
    the first of these that is there counts, in this order. The mapping is read when a skill asks, not copied.
    """

    def __init__(self, values: Mapping[object, object]) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping, skill name to keys to values, got {type(values).__name__}")
        self._values = values

    def resolve(self, skill_name: str, key: str, /) -> str | None:
        of_skill = self._values.get(skill_name)
        if isinstance(of_skill, Mapping) and key in of_skill:
            return _text_or_none(of_skill[key])
        for place in ((skill_name, key), environment_name(skill_name, key), key):
            found = self._values.get(place)
            if found is not None and not isinstance(found, Mapping):
                return _text_or_none(found)
        return None

    def __repr__(self) -> str:
        return f"MappingResolver({len(self._values)} entries)"  # never the values


def _text_or_none(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)

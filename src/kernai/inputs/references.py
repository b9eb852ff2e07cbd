"""`ReferenceType`: a type by its name, for an alias that holds itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import InputType


class ReferenceType(InputType):
    """Stands for `target`, which is set once it is built; `is_used` says whether it was needed before."""

    def __init__(self, name: str) -> None:
        self.name = self.label = name
        self.target: InputType | None = None
        self.is_used = False

    def stand_for(self, target: InputType) -> None:
        """The type that it is. `TypeError` for one that is nothing but itself."""
        if target is self:
            raise TypeError(f"the type {self.name} is defined by itself alone")
        self.target = target
        self.natural = target.natural
        self.label = f"{self.name} ({target.label})"

    def convert(self, value: object, validation: Validation) -> Any:
        assert self.target is not None
        return self.target.convert(value, validation)

    def from_text(self, text: str) -> Any:
        return NO_VALUE if self.target is None else self.target.from_text(text)

    def tags(self) -> frozenset[str]:
        return frozenset() if self.target is None else self.target.tags()

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        if self in inside or self.target is None:
            return NO_VALUE
        return self.target.sample((*inside, self))

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        if self not in seen and self.target is not None:
            seen.add(self)
            yield from self.target.outline(path, seen)

    def schema(self, definitions: Definitions) -> Schema:
        target = self.target
        assert target is not None
        return definitions.refer(self, self.name, lambda: target.schema(definitions))

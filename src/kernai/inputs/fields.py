"""`Field`: a named place for a value, whether in a call or in a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernai.inputs.faults import NO_VALUE
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import InputType, described
from kernai.values.skill_result import plain


@dataclass(slots=True, eq=False, repr=False)
class Field:
    """An input, or a field of a record. `default` is what a listing shows; NO_VALUE where there is nothing to show."""

    name: str
    type: InputType
    required: bool
    description: str = ""
    default: object = NO_VALUE

    def line(self, path: str) -> str:
        """The field at `path` in a listing."""
        return described(path, self.type.label, self.description, required=self.required, default=self.default)

    def json_default(self) -> Any:
        """The default as JSON, if the type takes it back: ``x: str = None`` has a default that no call could give."""
        if self.default is NO_VALUE:
            return NO_VALUE
        try:
            made = plain(self.default)
            return made if self.type.takes(made) else NO_VALUE
        except Exception:  # noqa: BLE001 - a default is whatever the author put there, and it is shown or it is not
            return NO_VALUE

    def schema(self, definitions: Definitions) -> Schema:
        """The schema of the type, with what is said about it here."""
        made = dict(self.type.schema(definitions))
        if self.description.strip():
            made["description"] = " ".join(self.description.split())
        default = self.json_default()
        return made if default is NO_VALUE else {**made, "default": default}


def object_schema(fields: Sequence[Field], definitions: Definitions) -> Schema:
    """The schema of an object with such fields. Others are allowed, for a call may have them: they are dropped."""
    made: Schema = {"type": "object", "properties": {one.name: one.schema(definitions) for one in fields}}
    required = [one.name for one in fields if one.required]
    return {**made, "required": required} if required else made

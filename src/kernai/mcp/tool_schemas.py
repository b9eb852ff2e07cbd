"""The inputs of a skill as JSON Schema (2020-12, the dialect of MCP's tools).

The schema is read off the same nodes that check a call, so that the two cannot drift apart. What JSON Schema cannot say
stays unsaid, and the call itself has the last word: a number is finite, an `int` is not written ``3.0``. An enum offers
its values; that a member's name is taken too is not told, for one way to write it is enough.

A skill's `Media` is the id of a media in its run's store. An MCP client has no such store, so here it is the payload
itself, `MediaObject`, in the words MCP has for an image or a sound: ``{"data": BASE64, "mimeType": "image/png"}``.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kernai.errors import KernaiError
from kernai.inputs.annotations import Namespace, TypeBuilder
from kernai.inputs.containers import DictType, ListType, TupleType, UnionType
from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.records import ModelType, RecordField, RecordType
from kernai.inputs.table import InputTable
from kernai.inputs.types import MEDIA, AnyType, ChoiceType, FloatType, InputType, PlainType, TextType, text_types
from kernai.registry.skill_definition import Skill
from kernai.values.media import Media
from kernai.values.skill_result import plain

Schema = dict[str, Any]

_REF = "#/$defs/"
_JSON_NAMES: Final[dict[type | None, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}
_DECIMAL = r"^[ \t\n\r\f\v]*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\r\f\v]*$"


class MediaObject(InputType):
    """A `Media` given with the call: its payload as base64, and its MIME type."""

    label = 'media object such as {"data": "iVBORw0KGgo=", "mimeType": "image/png"} with the payload as base64'
    natural = frozenset({dict})
    example: Any = {"data": "iVBORw0KGgo=", "mimeType": "image/png"}  # noqa: RUF012 - never changed

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, Media):
            return value
        data, mime = (value.get("data"), value.get("mimeType")) if isinstance(value, Mapping) else (None, None)
        if isinstance(data, str) and isinstance(mime, str):
            try:
                return Media.from_bytes(b64decode("".join(data.split()), validate=True), mime_type=mime)
            except ValueError:  # of the base64, or of the MIME type
                pass
        validation.refuse(self.label, value)
        return None

    schema: Final[Schema] = {
        "type": "object",
        "properties": {
            "data": {"type": "string", "contentEncoding": "base64", "description": "the payload as base64"},
            "mimeType": {"type": "string", "pattern": "^[^/\\s]+/[^/\\s]+$", "examples": ["image/png"]},
        },
        "required": ["data", "mimeType"],
    }


MEDIA_OBJECT: Final = MediaObject()


class _ServedTypes(TypeBuilder):
    """The usual types, with `MediaObject` in the place of a media id."""

    def _class(self, annotation: Any) -> InputType:
        return MEDIA_OBJECT if annotation is Media else super()._class(annotation)


def served_table(skill: Skill) -> InputTable:
    """What checks the calls of a client: the skill's own table, or a copy of it that takes media as payloads."""
    table = skill._table  # noqa: SLF001 - the nodes have no public name, and this is one package
    if not any(node is MEDIA for kind in nodes_of(table).values() for node in _inside(kind, set())):
        return table
    return InputTable(skill.name, skill.inputs, _ServedTypes(Namespace(skill.function)))


def nodes_of(table: InputTable) -> Mapping[str, InputType]:
    """The type of each input."""
    return table._types  # noqa: SLF001 - see above


def input_schema(table: InputTable) -> Schema:
    """The schema of a call's arguments: an object with a property for each input.

    Other properties are allowed, for a call may have them: they are dropped.
    """
    schemas = _Schemas()
    properties: dict[str, Schema] = {}
    for name, kind in nodes_of(table).items():
        one = table.inputs[name]
        default = NO_VALUE if one.required else one.default
        properties[name] = schemas.described(kind, one.description, default)
    made: Schema = {"type": "object", "properties": properties}
    required = [name for name, one in table.inputs.items() if one.required]
    if required:
        made["required"] = required
    if schemas.definitions:
        made["$defs"] = schemas.definitions
    return made


class _Schemas:
    """The schemas of one tool; records stand in `definitions`, since several inputs may hold one, or it itself."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[InputType, str] = {}

    def described(self, kind: InputType, description: str, default: object) -> Schema:
        """The schema with what is said about one place where it stands."""
        made = dict(self.of(kind))
        if description.strip():
            made["description"] = " ".join(description.split())
        value = _json_default(kind, default)
        if value is not NO_VALUE:
            made["default"] = value
        return made

    def of(self, kind: InputType) -> Schema:
        match kind:
            case AnyType():
                return {}
            case PlainType():
                return {"type": _JSON_NAMES[kind.exact]}
            case FloatType():
                return {"type": "number"}
            case TextType():
                return _text(kind)
            case MediaObject():
                return dict(kind.schema)
            case ChoiceType():
                return _choice(kind)
            case ListType():
                item = self.of(kind.item)
                return {"type": "array", "items": item} if item else {"type": "array"}
            case DictType():
                item = self.of(kind.item)
                return {"type": "object", "additionalProperties": item} if item else {"type": "object"}
            case _:
                return self._holder(kind)

    def _holder(self, kind: InputType) -> Schema:
        match kind:
            case TupleType():
                return self._tuple(kind)
            case UnionType():
                return self._union(kind)
            case RecordType():
                return self._record(kind)
            case ModelType():
                return self._model(kind)
            case _:
                raise KernaiError(f"the type {kind.label!r} has no JSON Schema")

    def _tuple(self, kind: TupleType) -> Schema:
        size = len(kind.items)
        made: Schema = {"type": "array", "minItems": size, "maxItems": size}
        if size:
            made["prefixItems"] = [self.of(item) for item in kind.items]
        return made

    def _dict(self, kind: Any) -> Schema:
        item = self.of(kind.item)
        return {"type": "object", "additionalProperties": item} if item else {"type": "object"}

    def _union(self, kind: UnionType) -> Schema:
        members: list[Schema] = []
        for member in kind.members:
            one = self.of(member)
            if one not in members:
                members.append(one)
        if {} in members:  # `Any` among them
            return {}
        return members[0] if len(members) == 1 else {"anyOf": members}

    def _record(self, kind: RecordType) -> Schema:
        if kind not in self._names:
            name = self._names[kind] = self._free_name(kind.name)
            self.definitions[name] = {}  # its place, for it may hold itself
            self.definitions[name] = self._object(kind.fields)
        return {"$ref": _REF + self._names[kind]}

    def _object(self, fields: tuple[RecordField, ...]) -> Schema:
        made: Schema = {
            "type": "object",
            "properties": {one.name: self.described(one.type, one.description, one.default) for one in fields},
        }
        required = [one.name for one in fields if one.required]
        if required:
            made["required"] = required
        return made

    def _model(self, kind: ModelType) -> Schema:
        """A model's own schema, its definitions put beside the others."""
        if kind not in self._names:
            try:
                schema = kind.model.model_json_schema()
            except Exception:  # noqa: BLE001 - a model may hold what JSON Schema cannot say; it still validates
                return {}
            schema = dict(schema) if isinstance(schema, dict) else {}
            inner = schema.pop("$defs", {})
            name = self._names[kind] = self._free_name(kind.model.__name__)
            self.definitions[name] = {}
            renamed: dict[str, str] = {}
            for old in inner:
                renamed[old] = self._free_name(old)
                self.definitions[renamed[old]] = {}
            for old, new in renamed.items():
                self.definitions[new] = _renamed(inner[old], renamed)
            self.definitions[name] = _renamed(schema, renamed)
        return {"$ref": _REF + self._names[kind]}

    def _free_name(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_.-]", "_", wanted)
        name, count = base, 1
        while name in self.definitions:
            count += 1
            name = f"{base}_{count}"
        return name


def _text(kind: TextType) -> Schema:
    name = next(one.__name__ for one, node in text_types().items() if node is kind)
    if name == "Decimal":
        return {"anyOf": [{"type": "string", "pattern": _DECIMAL}, {"type": "integer"}], "examples": [kind.example]}
    return {"type": "string", "format": {"datetime": "date-time"}.get(name, name.lower()),
            "examples": [kind.example]}


def _choice(kind: ChoiceType) -> Schema:
    # the first way to write each choice: an enum's value, else its name
    written: dict[tuple[type, object], object] = {}
    for (value_type, value), choice in kind._results.items():  # noqa: SLF001 - see `served_table`
        written.setdefault((type(choice), choice), value_type(value) if value_type is not type(None) else None)
    values = list(written.values())
    made: Schema = {"enum": values}
    names = {_JSON_NAMES.get(type(value)) for value in values}
    if len(names) == 1:
        made["type"] = names.pop()
    return made


def _json_default(kind: InputType, default: object) -> object:
    """A default as JSON, if the type takes it back: ``x: str = None`` has a default that no call could give."""
    if default is NO_VALUE:
        return NO_VALUE
    try:
        value = plain(default)
        validation = Validation()
        kind.convert(value, validation)
    except Exception:  # noqa: BLE001 - a default is whatever the author put there, and it is shown or it is not
        return NO_VALUE
    return NO_VALUE if validation.faults else value


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """A schema with its references to definitions under their new names."""
    if isinstance(schema, dict):
        return {key: _renamed(one, names) for key, one in schema.items()}
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if isinstance(schema, str) and schema.startswith(_REF):
        return _REF + names.get(schema.removeprefix(_REF), schema.removeprefix(_REF))
    return schema


def _inside(kind: InputType, seen: set[InputType]) -> Iterator[InputType]:
    """A type and all types in it."""
    if kind in seen:
        return
    seen.add(kind)
    yield kind
    held: tuple[InputType, ...] = ()
    if isinstance(kind, (ListType, DictType)):
        held = (kind.item,)
    elif isinstance(kind, TupleType):
        held = kind.items
    elif isinstance(kind, UnionType):
        held = kind.members
    elif isinstance(kind, RecordType):
        held = tuple(one.type for one in kind.fields)
    for one in held:
        yield from _inside(one, seen)

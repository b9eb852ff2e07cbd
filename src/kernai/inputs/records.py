"""Types with named fields: dataclasses, TypedDicts, and models that validate themselves as pydantic's do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernai.inputs.constraints import told_by
from kernai.inputs.faults import NO_VALUE, Fault, Validation, shown
from kernai.inputs.fields import Field, object_schema
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import ChoiceType, InputType, copied, described

_FINEST_STEP = 1e-9
_LONGEST_FOREIGN = 400  # characters of what a validator said


@dataclass(eq=False, repr=False)
class RecordType(InputType):
    """A dataclass or a TypedDict. `fields` is filled in after the node is known, for a record may hold itself.

    `build` makes the value out of the converted fields; `instance` is the class whose instances are taken as they are.
    """

    name: str
    build: Callable[[dict[str, Any]], Any]
    instance: type | None = None
    fields: tuple[Field, ...] = field(default=(), repr=False)

    natural = frozenset({dict})

    def __post_init__(self) -> None:
        self.label = f"{self.name} object"

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, Mapping):
            if self.instance is not None and isinstance(value, self.instance):
                return value
            validation.refuse(self._expected(), value)
            return None
        faults = validation.faults
        clean = len(faults)
        made = {}
        for one in self.fields:
            given = value.get(one.name, NO_VALUE)
            if type(given) is one.type.exact:
                made[one.name] = given
            elif given is not NO_VALUE:
                made[one.name] = validation.inside(one.name, one.type, given)
            elif one.required:
                validation.missing(one.name, one.type.label)
        if len(faults) != clean:
            return None
        try:
            return self.build(made)
        except Exception as error:  # noqa: BLE001 - `__post_init__` refuses values in its own ways
            validation.faults.extend(_faults_of(error, value))
            return None

    def _expected(self) -> str:
        required = ", ".join(one.name for one in self.fields if one.required)
        return f"{self.label} with {required}" if required else self.label

    def tags(self) -> frozenset[str]:
        return frozenset(one.name for one in self.fields if isinstance(one.type, ChoiceType))

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        if self in inside:
            return NO_VALUE
        samples = {one.name: one.type.sample((*inside, self)) for one in self.fields if one.required}
        return NO_VALUE if any(sample is NO_VALUE for sample in samples.values()) else samples

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        if self in seen:
            return
        seen.add(self)
        for one in self.fields:
            here = f"{path}.{one.name}"
            yield one.line(here)
            yield from one.type.outline(here, seen)

    def schema(self, definitions: Definitions) -> Schema:
        return definitions.refer(self, self.name, lambda: object_schema(self.fields, definitions))


class ModelType(InputType):
    """A class with `model_validate` and `model_json_schema`, which pydantic's models have. Its word is final."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.label = f"{model.__name__} object"
        root = getattr(model, "__pydantic_root_model__", False)
        self.natural = frozenset({dict} if not root else {dict, list, str, int, float, bool})

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.model):
            return value
        try:
            return self.model.model_validate(copied(value))
        except Exception as error:  # noqa: BLE001 - whatever a model's own validators raise
            validation.faults.extend(_faults_of(error, value))
            return None

    def tags(self) -> frozenset[str]:
        schema = self._schema()
        definitions = schema.get("$defs", {})
        parts = _resolved(schema, definitions)[1].get("properties", {})
        found = {key: _resolved(part, definitions)[1] for key, part in parts.items()}
        return frozenset(key for key, part in found.items() if "const" in part or "enum" in part)

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:  # noqa: ARG002 - its schema tells where it ends
        schema = self._schema()
        return sample_of(schema, schema.get("$defs", {}))

    def schema(self, definitions: Definitions) -> Schema:
        own = self._schema()
        return definitions.refer(self, self.model.__name__, lambda: definitions.adopt(own)) if own else {}

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        if self not in seen:
            seen.add(self)
            schema = self._schema()
            yield from outline_of(schema, schema.get("$defs", {}), path)

    def _schema(self) -> dict[str, Any]:
        try:
            schema = self.model.model_json_schema()
        except Exception:  # noqa: BLE001 - a model may hold what JSON schema cannot say; it still validates
            return {}
        return schema if isinstance(schema, dict) else {}


def _faults_of(error: Exception, value: object) -> list[Fault]:
    """The faults that a model's validation error lists, or one that says what the exception says."""
    entries = getattr(error, "errors", None)
    try:
        listed = [_fault_of(entry) for entry in entries()] if callable(entries) else []
    except Exception:  # noqa: BLE001 - an exception with an `errors` of another kind
        listed = []
    if listed:
        return listed
    said = _unmarked(str(error)) or type(error).__name__
    return [Fault((), f"{said}, received {shown(value)}")]


def _fault_of(entry: Mapping[str, Any]) -> Fault:
    path = tuple(key if isinstance(key, int) else str(key) for key in entry.get("loc", ()))
    received = "nothing" if entry.get("type") == "missing" else shown(entry.get("input"))
    return Fault(path, f"{_unmarked(str(entry.get('msg', 'invalid')))}, received {received}")


def _unmarked(text: str) -> str:
    """A foreign text, cut to a sane length, that cannot hold a tag."""
    return text[:_LONGEST_FOREIGN].replace("<", "&lt;")


# --------------------------------------------------------------------------------- what a JSON schema says of a model


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the definition a schema refers to, if it does, and what stands there."""
    if not isinstance(schema, dict):
        return "", {}
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found = definitions.get(name) if name else schema
    return name, found if isinstance(found, dict) else {}


def label_of(schema: Any, definitions: Mapping[str, Any]) -> str:
    """The type in a schema, in a few words."""
    name, found = _resolved(schema, definitions)
    if "enum" in found or "const" in found:
        return "one of " + ", ".join(json.dumps(one) for one in found.get("enum", [found.get("const")]))
    if name:
        return f"{name} object"
    if "anyOf" in found:
        return " or ".join(label_of(one, definitions) for one in found["anyOf"])
    kind = str(found.get("type", "any value"))
    if kind == "array":
        kind = f"list of {label_of(found['items'], definitions)}" if "items" in found else "list"
    elif "format" in found:
        kind = f"{kind} ({found['format']})"
    return ", ".join([kind, *told_by(found)])


def outline_of(
    schema: Any, definitions: Mapping[str, Any], path: str, inside: tuple[str, ...] = ()
) -> Iterator[str]:
    """A line for each nested property, as `InputType.outline` gives them."""
    name, found = _resolved(schema, definitions)
    if name and name in inside:
        return
    inside = (*inside, name)
    for one in found.get("anyOf", ()):
        yield from outline_of(one, definitions, path, inside)
    if "items" in found:
        yield from outline_of(found["items"], definitions, path + "[]", inside)
    for key, part in found.get("properties", {}).items():
        here = f"{path}.{key}"
        said = part if isinstance(part, dict) else {}
        yield described(
            here, label_of(part, definitions), str(said.get("description", "")),
            required=key in found.get("required", ()), default=said.get("default", NO_VALUE),
        )
        yield from outline_of(part, definitions, here, inside)


def sample_of(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """A JSON value in the shape that a schema asks for, within its simple bounds; patterns are not looked at."""
    name, found = _resolved(schema, definitions)
    if name and name in inside:
        return NO_VALUE
    inside = (*inside, name)
    for key in ("default", "const"):
        if key in found:
            return found[key]
    for key in ("examples", "enum"):
        if found.get(key):
            return found[key][0]
    if found.get("anyOf"):
        samples = [sample_of(one, definitions, inside) for one in found["anyOf"]]
        return next((sample for sample in samples if sample is not NO_VALUE), NO_VALUE)
    if found.get("type") == "object" or "properties" in found:
        parts = found.get("properties", {})
        made = {key: sample_of(parts.get(key), definitions, inside) for key in found.get("required", ())}
        return NO_VALUE if any(sample is NO_VALUE for sample in made.values()) else made
    if found.get("type") == "array":
        return _list_for(found, definitions, inside)
    return _scalar_of(found)


def _list_for(found: Mapping[str, Any], definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    prefix = found.get("prefixItems")
    first = [sample_of(one, definitions, inside) for one in prefix] if isinstance(prefix, list) else []
    if any(one is NO_VALUE for one in first):
        return NO_VALUE
    item = sample_of(found.get("items"), definitions, inside)
    if item is NO_VALUE or "items" not in found:
        return first
    more = max(0, _bounded(found, "Items", max(1, len(first))) - len(first))
    if found.get("uniqueItems") and more > 1:
        return [*first, *_distinct(item, _resolved(found["items"], definitions)[1], more)]
    return [*first, *[item] * more]


def _distinct(item: Any, found: Mapping[str, Any], wanted: int) -> list[Any]:
    """So many different ones, where they are easily found."""
    if "enum" in found:
        return list(found["enum"][:wanted])
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return [item + at * (_step(found) or 1) for at in range(wanted)]
    if isinstance(item, str) and "format" not in found:
        return [item[: -len(str(at))] + str(at) for at in range(wanted)]
    return [item] * wanted


_FORMS = {
    "date": "2024-01-31", "date-time": "2024-01-31T12:00:00Z", "time": "12:00:00Z", "email": "name@example.com",
    "uri": "https://example.com/", "uuid": "123e4567-e89b-42d3-a456-426614174000",
}


def _scalar_of(found: Mapping[str, Any]) -> Any:
    kind = str(found.get("type"))
    if kind in ("integer", "number"):
        sample = 1 if kind == "integer" else 1.5
        least, most = found.get("minimum"), found.get("maximum")
        if "exclusiveMinimum" in found and type(found["exclusiveMinimum"]) is not bool:
            least = found["exclusiveMinimum"] + 1
        sample = sample if least is None else max(sample, least)
        sample = sample if most is None else min(sample, most)
        step = _step(found)
        if not step:
            return sample
        whole = math.ceil(sample / step) * step
        return whole if most is None or whole <= most else math.floor(sample / step) * step
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return _FORMS.get(str(found.get("format"))) or "." * _bounded(found, "Length", 3)


def _step(found: Mapping[str, Any]) -> Any:
    """What a number is a multiple of; 0 where nothing says so, or what a server says is of no use."""
    step = found.get("multipleOf")
    return step if isinstance(step, (int, float)) and _FINEST_STEP <= step <= 1 / _FINEST_STEP else 0


def _bounded(found: Mapping[str, Any], of: str, wanted: int) -> int:
    """A length or number between a schema's bounds; no sample is longer than a line or two."""
    least, most = found.get(f"min{of}", 0), found.get(f"max{of}", wanted)
    return int(min(max(wanted, least), max(most, least), _LONGEST_FOREIGN))

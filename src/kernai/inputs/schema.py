"""JSON Schema (2020-12) of inputs, and what models read about a value: its type in words, its fields, a sample.

Types check values and provide their schema; everything else is derived from that schema, in the same way for
dataclasses, pydantic models and the tools of MCP servers. What JSON Schema cannot express is left to the check of a
call: a number is finite, an `int` is not written ``3.0``. The schema of an enum has only its values, although the name
of a member is accepted too.

Inside this package, the value of a ``$ref`` is the `Definition` itself, which may contain itself, and `WORDS` may
override the words derived from a schema. `published` turns such a schema into a plain JSON document.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import count
from threading import get_ident
from typing import Any, Final

from kernai.jsonio.json_data import quoted


class Sentinel(Enum):
    """Values that are compared by identity, even copied and pickled ones."""

    NO_VALUE = "NO_VALUE"
    REQUIRED = "REQUIRED"

    def __repr__(self) -> str:
        return self.name


NO_VALUE: Final = Sentinel.NO_VALUE
"""No value was given, or there can be none."""
REQUIRED: Final = Sentinel.REQUIRED
"""The `default` of an input without a default."""

Schema = dict[str, Any]

WORDS = "\0words"
"""The key of a type's description in words, if it cannot be derived from the schema's keywords. Never published."""
MARK = "x-trusted"
"""The key that marks a value as one that must be trusted, see `kernai.inputs.trusted`."""
_PLACE = "#/$defs/"
_SHOWN_CHOICES = 50
_LONGEST_DEFAULT = 60  # characters of a default in a listing
_LONGEST_BOUND = 100  # characters of a pattern or a number
_LONGEST_SAMPLE = 400  # characters, or items
_LARGEST_SAMPLE = 2_000  # characters of a list or object that is filled up with copies
_PLACES, _FINEST_STEP = 9, 1e-9  # rounded to so many places, a multiple has no rounding errors: 3 * 0.1 becomes 0.3
_LARGEST = 1e200  # samples ignore larger bounds
_MOST_HOPS = 20  # references that are followed in a row


def is_multiple(value: Any, of: Any) -> bool:
    """Whether a number is a multiple of another one. Compares them as they are written: 0.3 is a multiple of 0.1."""
    if isinstance(value, float) or isinstance(of, float):
        from fractions import Fraction  # few types have such a bound

        return math.isfinite(value) and (Fraction(repr(float(value))) / Fraction(repr(float(of)))).denominator == 1
    if isinstance(value, int):
        return not value % of
    from decimal import Context  # the program's own one may be too narrow for the quotient

    return not Context(prec=1_000).remainder(value, of)


def _sized(of: str, unit: str) -> dict[str, tuple[str, Callable[[Any, Any], object]]]:
    return {
        f"min{of}": (f"of at least {{}} {unit}", lambda value, least: len(value) >= least),
        f"max{of}": (f"of at most {{}} {unit}", lambda value, most: len(value) <= most),
    }


#: the keywords that bound a value: in words for the model, and as a check of a value and its bound
_CONDITIONS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "minimum": ("at least {}", operator.ge), "exclusiveMinimum": ("more than {}", operator.gt),
    "maximum": ("at most {}", operator.le), "exclusiveMaximum": ("less than {}", operator.lt),
    "multipleOf": ("a multiple of {}", is_multiple),
    **_sized("Length", "characters"), **_sized("Items", "items"), **_sized("Properties", "items"),
    "pattern": ("that matches {}", lambda value, pattern: re.search(pattern, value) is not None),
}
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
#: the keywords that mean something only for values of a type
_OF_TYPE = {
    "integer": {*_BOUNDS, "multipleOf", "format"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"items", "prefixItems", "uniqueItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"},
}
_OF_TYPE["number"] = _OF_TYPE["integer"]
_TYPED = frozenset().union(*_OF_TYPE.values())
_NOTES = {"title", "description", "default"}
_VALUES = {"const", "default", "enum", "examples"}  # the keywords with values that are not schemas
_FORMS = {
    "date": "2024-01-31", "date-time": "2024-01-31T12:00:00Z", "time": "12:00:00Z", "email": "name@example.com",
    "uri": "https://example.com/", **dict.fromkeys(("uuid", "uuid4"), "123e4567-e89b-42d3-a456-426614174000"),
    "duration": "PT1H", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "hostname": "example.com",
}


class Definition(Schema):
    """A schema with a name, to which others refer. Compared by identity, since it may contain itself.

    `compute` returns its contents, when `full` is called first. Several threads may do so, and get the same.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # a dict has none

    def __init__(self, name: str, compute: Callable[[], Schema] = dict) -> None:
        super().__init__()
        self.name = name
        self._compute = compute
        self._computing: set[int] = set()  # the threads that do: to compute it, a thread may need it itself

    def full(self) -> Definition:
        """The definition with its contents."""
        me = get_ident()
        if not self and me not in self._computing:
            self._computing.add(me)
            try:
                self.update(self._compute())
            finally:
                self._computing.discard(me)
        return self


def published(schema: Schema) -> Schema:
    """A copy as a JSON document: definitions are under ``$defs``, each with a unique name."""
    names: dict[Definition, str] = {}
    definitions: dict[str, Schema] = {}

    def copy(one: Any) -> Any:
        if isinstance(one, Definition):
            if one not in names:
                name = base = re.sub(r"[^A-Za-z0-9_.-]", "_", one.name)
                numbers = count(2)
                while name in definitions:
                    name = f"{base}_{next(numbers)}"
                names[one] = name
                definitions[name] = {}  # reserved, since it may contain itself
                definitions[name] = copy({**one.full()})
            return _PLACE + names[one]
        if isinstance(one, dict):
            return {key: copy(inner) for key, inner in one.items() if key != WORDS}
        return [copy(inner) for inner in one] if isinstance(one, list) else one

    made = copy(schema)
    return {**made, "$defs": definitions} if definitions else made


def adopted(schema: Mapping[str, Any], name: str) -> Schema:
    """A JSON document's schema in this package's form: a reference, and a `Definition` for each of its ``$defs``."""
    definitions = {key: Definition(key) for key in schema.get("$defs", {})}

    def copy(one: Any, *, named: bool = False) -> Any:
        if isinstance(one, dict):  # a schema or, if `named`, the schemas of fields
            return {
                key: inner if key in _VALUES and not named else copy(inner, named=key == "properties" and not named)
                # early drafts had a bool for `required`, and authors still write it
                for key, inner in one.items() if key != "required" or not isinstance(inner, bool)
            }
        if isinstance(one, str) and one.startswith(_PLACE):
            key = one.removeprefix(_PLACE)
            return definitions.setdefault(key, Definition(key))
        return [copy(inner) for inner in one] if isinstance(one, list) else one

    for key, inner in schema.get("$defs", {}).items():
        definitions[key].update(copy(inner))
    made: Schema = copy({key: inner for key, inner in schema.items() if key != "$defs"})
    if [*made] == ["$ref"]:
        return made  # pydantic's schema of a model that contains itself
    whole = Definition(name)
    whole.update(made)
    return {"$ref": whole}


def resolved(schema: Any) -> tuple[Definition | None, Schema]:
    """The definition that a schema refers to, if any, and the schema that it stands for.

    In the latter, references are followed, and all alternatives are under ``anyOf``.
    """
    first: Definition | None = None
    found: Schema = schema if isinstance(schema, dict) else {}
    for _ in range(_MOST_HOPS):
        match found.get("allOf"):
            case [dict(part)] if found.keys() - _NOTES == {"allOf"}:  # so pydantic before 2.9 describes a reference
                found = {**part, **{key: one for key, one in found.items() if key != "allOf"}}
        target = found.get("$ref")
        if not isinstance(target, Definition):
            break
        first = first or target
        found = {**target.full(), **{key: one for key, one in found.items() if key != "$ref"}}
    if "oneOf" in found:
        found = {**found, "anyOf": [*found.get("anyOf", ()), *found["oneOf"]]}
    return first, with_one_type(found)


def alternatives(found: Schema) -> list[Any]:
    """The schemas under ``anyOf``, each with the keywords beside it that describe its values too."""
    shared = {key: one for key, one in found.items() if key == "type" or key in _TYPED}
    return [merged(shared, one) if isinstance(one, dict) and "$ref" not in one else one for one in found["anyOf"]]


def merged(one: Schema, other: Schema) -> Schema:
    """Combines two schemas that both apply to a value, as far as listings need it."""
    both = {**one, **other}
    match one, other:
        case {"properties": dict(mine)}, {"properties": dict(others)}:
            both["properties"] = mine | others
    match one, other:  # a bool is ignored: earlier drafts of JSON Schema had one
        case {"required": [*names]}, {"required": [*more]}:
            both["required"] = names + [name for name in more if name not in names]
    return both


def with_one_type(schema: Schema) -> Schema:
    """A schema with alternatives under ``anyOf`` in place of a list of types. Each has the keywords of its type."""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    if len(kinds) == 1:
        return {**schema, "type": kinds[0]}
    others = {key: one for key, one in schema.items() if key != "type" and key not in _TYPED}
    ways = [{key: one for key, one in schema.items() if key in _OF_TYPE.get(str(kind), ())} for kind in kinds]
    return {"anyOf": [{"type": kind, **one} for kind, one in zip(kinds, ways, strict=True)], **others}


# ------------------------------------------------------------------------------------------------------------- words


def label_of(schema: Any, seen: set[Definition] | None = None) -> str:
    """The type in a few words: ``list of integer``. An alias that occurs again is only named."""
    seen = set() if seen is None else seen
    definition, found = resolved(schema)
    if WORDS in found:
        return str(found[WORDS])
    if "enum" in found or "const" in found:
        values = found.get("enum", [found.get("const")])
        named = [quoted(one) if isinstance(one, str) else json.dumps(one) for one in values[:_SHOWN_CHOICES]]
        more = ["…"] if len(values) > _SHOWN_CHOICES else []
        return ("one of " if len(values) > 1 else "") + ", ".join([*named, *more])
    if definition in seen:
        return definition.name
    if definition is not None and "anyOf" not in found and found.get("type", "object") == "object":
        return f"{definition.name} object"
    if definition is not None:
        seen.add(definition)
        return f"{definition.name} ({label_of(found, seen)})"
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(label_of(one, seen) for one in alternatives(found)))
    return ", ".join([_kind(found, seen), *_conditions(found)])


def _kind(found: Schema, seen: set[Definition]) -> str:
    kind = str(found.get("type", "any value"))
    prefix, items, values = found.get("prefixItems"), found.get("items", {}), found.get("additionalProperties", {})
    if kind == "array" and isinstance(prefix, list):
        return f"list of {len(prefix)}: ({', '.join(label_of(one, seen) for one in prefix)})"
    if kind == "array" and found.get("uniqueItems") is True:
        return f"list of distinct items, each {_grouped(items, seen)}"
    if kind == "array":
        return f"list of {_grouped(items, seen)}" if items not in ({}, True) else "list"
    if kind == "object" and "properties" not in found and isinstance(values, dict) and values:
        return f"object with values of type {_grouped(values, seen)}"
    return f"{kind} ({found['format']})" if "format" in found else kind


def _grouped(item: Any, seen: set[Definition]) -> str:
    definition, found = resolved(item)
    label = label_of(item, seen)
    is_several = definition is None and "anyOf" in found and WORDS not in found and " or " in label
    return f"({label})" if is_several else label


def _conditions(found: Schema) -> Iterator[str]:
    of_type = _OF_TYPE.get(str(found.get("type")), _TYPED)
    for keyword in _CONDITIONS if not isinstance(found.get("prefixItems"), list) else ():
        value = found.get(keyword)
        is_bound = isinstance(value, str if keyword == "pattern" else (int, float)) and not isinstance(value, bool)
        if is_bound and keyword in of_type and len(str(value)) <= _LONGEST_BOUND:
            yield condition(keyword, value)


def condition(keyword: str, value: Any) -> str:
    """One keyword that bounds a value, in words for the model."""
    words = _CONDITIONS[keyword][0].format(json_in_block(value) if keyword == "pattern" else value)
    return words.removesuffix("s") if value == 1 else words  # not "1 items"


def satisfies(value: Any, keyword: str, bound: Any) -> bool:
    """Whether a value is within the bound that one keyword sets."""
    return bool(_CONDITIONS[keyword][1](value, bound))


def json_in_block(value: Any) -> str:
    """JSON that cannot end the block it is in: each ``<`` is escaped, which does not change the value."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def outline_of(schema: Any, path: str, seen: set[Definition] | None = None) -> Iterator[str]:
    """A line for each field inside the value at `path`, and for each of several types that have fields.

    A record that occurs again is described once.
    """
    seen = set() if seen is None else seen
    definition, found = resolved(schema)
    if definition is not None:
        if definition in seen:
            return
        seen.add(definition)
    prefix = found.get("prefixItems")
    ways = [(one, lines) for one in found.get("anyOf", ()) if (lines := [*outline_of(one, path, seen)])]
    for one, lines in ways:  # a model must not take the fields of one type for those of another
        yield from [f"{path} as {label_of(one)}:".strip(), *lines] if len(ways) > 1 else lines
    inner = [(one, f"{path}[{at}]") for at, one in enumerate(prefix if isinstance(prefix, list) else ())]
    inner += [(found[key], path + at) for key, at in (("items", "[]"), ("additionalProperties", ".*")) if key in found]
    for one, place in inner:
        yield from outline_of(one, place, seen)
    for key, part in found.get("properties", {}).items():
        place = f"{path}.{key}" if path else key
        yield from lines_of(place, part, required=key in found.get("required", ()), seen=seen)


def lines_of(path: str, schema: Any, *, required: bool, seen: set[Definition] | None = None) -> Iterator[str]:
    """The line of a field in a listing, ``limit (integer, default 10): how many``, then its `outline_of`."""
    found: Schema = schema if isinstance(schema, dict) else {}
    need = "required" if required else "optional"
    if not required and "default" in found:
        default = json.dumps(found["default"], ensure_ascii=False)
        need = f"default {default}" if len(default) <= _LONGEST_DEFAULT else need
    about = " ".join(str(found.get("description", "")).split())
    yield f"{path} ({label_of(schema)}, {need})" + (f": {about}" if about else "")
    yield from outline_of(schema, path, seen)


def takes_whole(schema: Schema, value: dict[str, Any] | list[Any]) -> bool:
    """Whether the schema accepts any value, or any list or object, whichever the value is."""
    _, found = resolved(schema)
    if "anyOf" in found:
        return any(takes_whole(one, value) for one in found["anyOf"])
    if found.keys() <= _NOTES:
        return True
    return found.get("type") == ("array" if isinstance(value, list) else "object") and "properties" not in found


def tags_of(schema: Schema) -> frozenset[str]:
    """The fields with a fixed set of values, by which the members of a union may be distinguished."""
    parts = {key: resolved(part)[1] for key, part in resolved(schema)[1].get("properties", {}).items()}
    return frozenset(key for key, part in parts.items() if "const" in part or "enum" in part)


def marks_of(schema: Schema) -> Iterator[str]:
    """The paths of the parts that must be trusted in a value of this schema: ``items[].to``, or "" for the whole value.

    If several paths share a definition, only one is reported, since a foreign schema may repeat it a million times.
    """
    waiting: list[tuple[str, Any]] = [("", schema)]
    seen: set[Definition] = set()
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, list):
            waiting += [(path, each) for each in one]
        elif isinstance(one, dict):
            if MARK in one:
                yield path
            if isinstance(one, Definition):
                if one in seen:
                    continue
                seen.add(one.full())
            for key, inner in one.items():
                if key == "properties" and isinstance(inner, dict):
                    waiting += [(f"{path}.{name}", each) for name, each in inner.items()]
                else:
                    waiting.append((f"{path}[]" if key in ("items", "prefixItems") else path, inner))


# ----------------------------------------------------------------------------------------------------------- samples


def sample_of(schema: Any, inside: tuple[Definition, ...] = ()) -> Any:
    """A JSON value that fits the schema, but may not match its patterns. NO_VALUE if every value would be infinite."""
    definition, found = resolved(schema)
    if definition is not None:
        if definition in inside:
            return NO_VALUE
        inside = (*inside, definition)
    lists = [found[key] for key in ("examples", "enum") if isinstance(found.get(key), (list, tuple))]
    given = [*(found[key] for key in ("default", "const") if key in found), *(one[0] for one in lists if one)]
    if given:
        return given[0]
    if found.get("anyOf"):
        members = sorted(alternatives(found), key=lambda one: isinstance(one, dict) and one.get("type") == "null")
        return next((one for member in members if (one := sample_of(member, inside)) is not NO_VALUE), NO_VALUE)
    kind = found.get("type")
    if kind == "object" or "properties" in found:
        return _object(found, inside)
    if kind == "array":
        return _list(found, inside)
    if kind in ("integer", "number"):
        return _number(found, whole=kind == "integer")
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return _FORMS.get(str(found.get("format"))) or "." * _count(found, "Length", 3, ".")


def _object(found: Schema, inside: tuple[Definition, ...]) -> Any:
    values = found.get("additionalProperties", {})
    if "properties" not in found and "required" not in found and values is not False:
        one = sample_of(values, inside)
        if one is NO_VALUE:
            return NO_VALUE if found.get("minProperties") else {}
        size = _count(found, "Properties", 1, one)
        return {f"key{at}" if size > 1 else "key": one for at in range(size)}
    made = {key: sample_of(found.get("properties", {}).get(key), inside) for key in found.get("required", ())}
    return NO_VALUE if any(one is NO_VALUE for one in made.values()) else made


def _list(found: Schema, inside: tuple[Definition, ...]) -> Any:
    prefix = found.get("prefixItems")
    first = [sample_of(one, inside) for one in prefix] if isinstance(prefix, list) else []
    if any(one is NO_VALUE for one in first):
        return NO_VALUE
    items = found.get("items", {})
    item = sample_of(items, inside)
    if item is NO_VALUE:
        return first if found.get("minItems", 0) <= len(first) else NO_VALUE
    more = max(0, _count(found, "Items", max(1, len(first)), item) - len(first))
    _, item_schema = resolved(items)
    rest = [item] * more
    if found.get("uniqueItems") and more > 1:
        if "enum" in item_schema:
            rest = item_schema["enum"][:more]
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            rest = [item + at * (_step(item_schema) or 1) for at in range(more)]
        elif isinstance(item, str) and "format" not in item_schema:
            rest = [item[: -len(str(at))] + str(at) for at in range(more)]
    return [*first, *rest]


def _number(found: Schema, *, whole: bool) -> int | float:
    """A number between the bounds, preferably 1, or 1.5 if it may have a fraction."""
    given = {key: found.get(key) for key in _BOUNDS}
    bounds = {key: one for key, one in given.items() if isinstance(one, (int, float)) and -_LARGEST < one < _LARGEST}
    tried: list[int | float] = [1 if whole else 1.5, *(one + by for one in bounds.values() for by in (0, 1, -1))]
    if len(bounds) > 1:
        tried.append(sum(bounds.values()) / 2)
    step = _step(found) or (1 if whole else 0)
    if step:
        tried += [round(turn(one / step) * step, _PLACES) for one in tried for turn in (math.ceil, math.floor)]
        bounds["multipleOf"] = step
    return next((one for one in tried if all(satisfies(one, *bound) for bound in bounds.items())), tried[0])


def _step(found: Schema) -> Any:
    """The schema's ``multipleOf``; 0 if there is none, or none that can be used."""
    step = found.get("multipleOf")
    return step if isinstance(step, (int, float)) and _FINEST_STEP <= step <= 1 / _FINEST_STEP else 0


def _count(found: Schema, of: str, wanted: int, item: Any) -> int:
    """How many items a sample has, as close to `wanted` as the bounds allow. Nested lists may each require hundreds."""
    least, most = found.get(f"min{of}", 0), found.get(f"max{of}", wanted)
    count = int(min(max(wanted, least), max(most, least), _LONGEST_SAMPLE))
    return min(count, max(1, _LARGEST_SAMPLE // len(json.dumps(item)))) if count > 1 else count

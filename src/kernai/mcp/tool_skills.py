"""Tools of a server as skills: listed, validated and called like any other skill.

A tool's JSON schema is untrusted. For listings, samples and grammars, its references are resolved and it is written out
as one tree of limited size. Arguments are checked against the original schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mcp_types import Tool
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from kernai._util.api import likely
from kernai.blocks.block import neutralize
from kernai.inputs.annotations import TypeBuilder
from kernai.inputs.schema import NO_VALUE, WORDS, Schema, label_of, published, sample_of
from kernai.inputs.table import REQUIRED, Input, InputTable
from kernai.inputs.trusted import marked
from kernai.inputs.types import Fault, InputType, Validation
from kernai.jsonio.json_data import copy_of
from kernai.mcp.dispatch import is_repeatable
from kernai.mcp.errors import McpConfigError
from kernai.mcp.language import Returned
from kernai.mcp.schemas import found_faults, is_schema
from kernai.registry.skill_context import SkillContext
from kernai.registry.skill_definition import Skill

#: limit for the parts of a schema that is written out
MAX_PARTS = 5000
_MOST_INSIDE = 100  # references that lead to one another
_PYTHON: Mapping[str, tuple[type, ...]] = {"integer": (int,), "number": (float,), "boolean": (bool,)}
_SEVERAL = ("anyOf", "oneOf")


class SchemaType(InputType):
    """The type of one input: a property of a tool's schema, written out."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.schema = {**schema, WORDS: plain_line(label_of(schema))}
        self.natural = frozenset(_PYTHON.get(str(schema.get("type")), ()))

    def convert(self, value: object, validation: Validation) -> Any:
        faults = found_faults({"properties": {"": self._schema}}, {"": value})
        validation.faults.extend(Fault(path[1:], message) for path, message in faults)
        return copy_of(value)


class SchemaTable(InputTable):
    """Checks a call with the tool's own schema. Does not fill in defaults, because the server does that."""

    def __init__(self, skill_name: str, schema: Mapping[str, Any], trusted: Collection[str]) -> None:
        self._own = schema
        self._written_out = written_out(schema)
        properties = self._written_out.get("properties", {})
        for name in trusted:
            if name not in properties:
                raise ValueError(f"trusted={name!r}: it has no such input{likely(name, properties, 'it has')}")
            if _is_closed(properties[name]):
                raise ValueError(f"trusted={name!r}: its values are a closed set, so none needs to be found")
            properties[name] = marked(properties[name])
        super().__init__(skill_name, dict(_inputs(self._written_out)), TypeBuilder())
        self._may_be_marked = bool(trusted)

    def _bound(
        self, params: Mapping[str, object], validation: Validation, before: Mapping[str, object]
    ) -> dict[str, object]:
        params = {**before, **params}
        given = {one.name: params[one.name] for one in self._fields if one.name in params}
        for one in self._fields if validation.repair else ():
            value = given.get(one.name)
            made = one.type.from_text(value) if isinstance(value, str) else NO_VALUE
            given |= {} if made is NO_VALUE else {one.name: made}
        for path, message in found_faults(self._own, given):
            validation.faults.append(Fault(path, message.replace("<", "&lt;")))
        return {name: copy_of(value) for name, value in given.items()}

    def schema(self) -> Schema:
        return published({"type": "object", **self._written_out})

    def describe(self) -> Iterator[str]:
        for line in super().describe():
            yield line[: len(line) - len(line.lstrip())] + plain_line(line)

    def sample(self) -> dict[str, object]:
        """If there are several ways to call the tool, the sample also has what the first one requires."""
        ways = self._written_out.get("anyOf") or [{}]
        needed = [one for one in self._fields if not one.required and one.name in ways[0].get("required", ())]
        return {**super().sample(), **{one.name: sample_of(one.type.schema) for one in needed}}


def written_out(schema: Mapping[str, Any]) -> Schema:
    """Resolves all references in a schema of arguments. Raises `ValueError` if it cannot be a skill's."""
    if not is_schema(schema):
        raise ValueError("it is not a valid JSON schema")
    try:
        made = _Writer(schema).written(schema, ("#",))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if made.get("type", "object") != "object":
        raise ValueError(f"its arguments are not an object, but {label_of(made)}")
    others = made.get("additionalProperties", False)  # {} also stands for any value
    free = made.get("patternProperties") or (not made.get("properties") and others is not False)
    if free:
        raise ValueError("it takes arguments of any name, and an input must have a fixed name")
    if "properties" not in made and any(key in made for key in (*_SEVERAL, "if", "not")):
        raise ValueError("it does not list its arguments as properties")
    listed = made.get("properties", {})
    unlisted: dict[str, Any] = {name: {} for name in made.get("required", ()) if name not in listed}
    if unlisted:  # required but not described; each needs an input, too
        made["properties"] = listed = {**listed, **unlisted}
    for name in listed:
        if plain_line(name) != name or not name or "<" in name:
            raise ValueError(f"no input can have the name {name!r}")
    return made


def plain_line(text: str) -> str:
    """An untrusted text for a listing, on one line and with its tags neutralised."""
    return neutralize(" ".join(text.split()))


def _inputs(schema: Schema) -> Iterator[tuple[str, Input]]:
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        # as in `missing`: many servers list inputs as required although they have a default
        default = one.get("default", REQUIRED if name in required else NO_VALUE)
        yield name, Input(SchemaType(one), default, plain_line(str(one.get("description", ""))))


def _is_closed(schema: Schema) -> bool:
    members = schema.get("anyOf")
    if members:
        return all(map(_is_closed, members))
    return "enum" in schema or "const" in schema or schema.get("type") in ("boolean", "null")


class _Writer:
    """Writes a schema out. A recursive reference is not followed: its value is checked, but not described."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._resolver = Registry().with_resource("", DRAFT202012.create_resource(root)).resolver()
        self._left = MAX_PARTS

    def written(self, schema: Any, inside: tuple[str, ...]) -> Schema:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"with its references written out it has more than {MAX_PARTS} parts")
        if not isinstance(schema, Mapping):  # True accepts any value, False none; the check reports that
            return {}
        if "$ref" in schema:
            return self._referred(schema, inside)
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise ValueError("it contains a dynamic reference")
        made = {key: one for key, one in schema.items() if key not in ("$defs", "definitions", "$schema", "$id")}
        if "properties" in made:
            made["properties"] = {name: self.written(one, inside) for name, one in made["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(made.get(key), Mapping):
                made[key] = self.written(made[key], inside)
        if "prefixItems" in made:
            made["prefixItems"] = [self.written(one, inside) for one in made["prefixItems"]]
        for one in made.pop("allOf", ()):
            made = _merged(made, self.written(one, inside))
        for key in _SEVERAL:
            if key in made:
                made["anyOf"] = [self.written(one, inside) for one in made.pop(key)]
        if isinstance(made.get("type"), list):
            kinds = made.pop("type")
            made |= {"type": kinds[0]} if len(kinds) == 1 else {"anyOf": [{**made, "type": kind} for kind in kinds]}
        return made

    def _referred(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Schema:
        reference = str(schema["$ref"])
        siblings = self.written({key: one for key, one in schema.items() if key != "$ref"}, inside)
        try:
            found = self._resolver.lookup(reference).contents
        except Unresolvable:
            raise ValueError(f"it refers to {reference!r}, which it does not contain") from None
        if len(inside) > _MOST_INSIDE:
            raise RecursionError
        if not is_schema(found):  # it may be any part of the document, such as a default
            raise ValueError(f"it refers to {reference!r}, which is no schema")
        if reference in inside:
            kind = found.get("type") if isinstance(found, Mapping) else None
            return {**siblings, **({"type": kind} if isinstance(kind, str) else {})}
        return _merged(self.written(found, (*inside, reference)), siblings)


def _merged(one: Schema, other: Schema) -> Schema:
    """Combines two schemas that both apply to a value, as far as listings need it."""
    both = {**one, **other}
    if "properties" in both:
        both["properties"] = {**one.get("properties", {}), **other.get("properties", {})}
    if "required" in both:
        both["required"] = list(dict.fromkeys([*one.get("required", ()), *other.get("required", ())]))
    return both


#: calls a tool by its name
Perform = Callable[[str, Mapping[str, Any], SkillContext[Any]], Returned]


class ToolSkill(Skill):
    """A skill that calls a server's tool. Its inputs and their checks come from the tool's schema."""

    is_foreign = True

    def __init__(self, name: str, tool: Tool, table: SchemaTable, perform: Perform, *, acts: bool) -> None:
        def call(**arguments: Any) -> Returned:
            return self.invoke(arguments)

        call.__name__ = call.__qualname__ = name
        super().__init__(
            name, execute=call, description=plain_line(tool.description or tool.title or ""), inputs=table.inputs,
            idempotent=is_repeatable(tool), acts=acts,
        )
        self.table = table
        self._perform = perform
        self._tool = tool.name
        self.wants_context = True

    def invoke(self, arguments: Mapping[str, object], context: SkillContext[Any] | None = None) -> Returned:
        return self._perform(self._tool, arguments, SkillContext(self) if context is None else context)


def tool_skill(
    server: str, tool: Tool, perform: Perform, prefix: str, trusted: Collection[str], *, acts: bool
) -> ToolSkill:
    """Makes a skill from a tool. Raises `McpConfigError` if that is not possible."""
    name = prefix + tool.name
    try:
        if plain_line(name) != name:
            raise ValueError(f"no skill can have the name {name!r}")
        return ToolSkill(name, tool, SchemaTable(name, tool.input_schema, trusted), perform, acts=acts)
    except ValueError as error:
        raise McpConfigError(
            f"the tool {tool.name!r} of server {server!r} cannot be a skill: {error}. Name those that you want with "
            f"only=[...]; the protocol can call this one"
        ) from error

"""Tools of a server as skills: listed, validated and called like any other skill.

A tool's JSON schema is untrusted. For listings, samples and grammars, its references are resolved and it is written out
as one tree of limited size. Arguments are checked against the original schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from mcp_types import Tool

from kernai import Input, Skill, SkillContext, neutralize
from kernai._util.api import likely
from kernai.inputs.annotations import TypeBuilder
from kernai.inputs.schema import NO_VALUE, REQUIRED, Schema, alternatives, label_of
from kernai.inputs.table import InputTable
from kernai.inputs.trusted import marked
from kernai.inputs.types import ANY, PLAIN, Fault, InputType, Validation
from kernai.jsonio.json_data import copy_of
from kernai.mcp.dispatch import is_repeatable
from kernai.mcp.errors import McpConfigError
from kernai.mcp.language import Returned
from kernai.mcp.schemas import example, found_faults, inputs_of, value_faults, written_out

#: the class of a JSON value that the core's type for it takes without conversion
_CLASSES = {one.schema["type"]: kind for kind, one in PLAIN.items()} | {"object": dict, "array": list}


class SchemaType(InputType):
    """The type of one input: a property of a tool's schema, written out."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.label = plain_line(label_of(schema))
        self.natural = _natural(schema)

    def convert(self, value: object, validation: Validation) -> Any:
        validation.faults.extend(Fault(*one) for one in value_faults(self.schema, value))
        return copy_of(value)


def _natural(schema: Schema) -> frozenset[type]:
    if "anyOf" in schema:
        return frozenset().union(*map(_natural, alternatives(schema)))
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    kind = _CLASSES.get(str(schema.get("type")))
    return frozenset(map(type, values) if values else ANY.natural if kind is None else [kind])


class SchemaTable(InputTable):
    """Checks a call with the tool's own schema. Does not fill in defaults, because the server does that."""

    def __init__(self, skill_name: str, schema: Mapping[str, Any], trusted: Collection[str]) -> None:
        self._own = schema
        full = _for_inputs(schema)
        properties = full["properties"]
        for name in trusted:
            if name not in properties:
                raise ValueError(f"trusted={name!r}: it has no such input{likely(name, properties, 'it has')}")
            if _is_closed(properties[name]):
                raise ValueError(f"trusted={name!r}: its values are a closed set, so none needs to be found")
            properties[name] = marked(properties[name])
        inputs = {
            # as in `missing`: many servers list inputs as required although they have a default
            name: Input(SchemaType(one), one.get("default", REQUIRED if name in full.get("required", ()) else NO_VALUE),
                        plain_line(str(one.get("description", ""))))
            for name, one in properties.items()
        }
        super().__init__(skill_name, inputs, TypeBuilder())
        self.whole = {"type": "object", **full}
        if not trusted:
            self.trusted = []  # a server's own marks do not count

    def _converted(
        self, params: Mapping[str, object], *_: object, repair: bool = False, bound: Mapping[str, object] | None = None
    ) -> tuple[dict[str, object], list[Fault]]:
        params = {**(bound or {}), **params}
        given = {one.name: params[one.name] for one in self._fields if one.name in params}
        for one in self._fields if repair else ():
            if isinstance(value := given.get(one.name), str):
                given[one.name] = one.type.from_text(value)
        faults = [Fault(path, message.replace("<", "&lt;")) for path, message in found_faults(self._own, given)]
        return {name: copy_of(value) for name, value in given.items()}, faults

    def describe(self) -> Iterator[str]:
        for line in super().describe():
            yield line[: len(line) - len(line.lstrip())] + plain_line(line)

    def sample(self) -> dict[str, object]:
        """If there are several ways to call the tool, the sample also has what the first one requires."""
        return example(self._own, super().sample())


def _for_inputs(schema: Mapping[str, Any]) -> Schema:
    """Resolves all references in a schema of arguments. Raises `ValueError` if it cannot be a skill's."""
    made = written_out(schema)
    others = made.get("additionalProperties", False)  # {} also stands for any value
    if made.get("patternProperties") or (not made.get("properties") and others is not False):
        raise ValueError("it takes arguments of any name, and an input must have a fixed name")
    listed = inputs_of(made)
    in_ways = {name for one in made.get("anyOf", ()) for name in inputs_of(one)}
    if in_ways - listed.keys() or ("properties" not in made and any(key in made for key in ("anyOf", "if", "not"))):
        raise ValueError("it does not list its arguments as properties")
    made["properties"] = listed
    for name in listed:
        if plain_line(name) != name or not name or "<" in name:
            raise ValueError(f"no input can have the name {name!r}")
    return made


def plain_line(text: str) -> str:
    """An untrusted text for a listing, on one line and with its tags neutralised."""
    return neutralize(" ".join(text.split()))


def _is_closed(schema: Schema) -> bool:
    members = schema.get("anyOf")
    if members:
        return all(map(_is_closed, members))
    return "enum" in schema or "const" in schema or schema.get("type") in ("boolean", "null")


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
        self._perform = partial(perform, tool.name)
        self.wants_context = True

    def invoke(self, arguments: Mapping[str, object], context: SkillContext[Any] | None = None) -> Returned:
        return self._perform(arguments, SkillContext(self) if context is None else context)


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
            f"the tool {tool.name!r} of server {server!r} cannot be a skill ({error}). Name those that you want with "
            f"only=[...]; the protocol can call this one"
        ) from error

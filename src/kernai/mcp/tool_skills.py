"""A tool of a server as a skill: listed, validated and called like any other. `Adapter.skills` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_types import Tool

from kernai.mcp.dispatch import is_repeatable
from kernai.mcp.errors import McpConfigError
from kernai.mcp.tool_inputs import SchemaTable, UnheldSchemaError, plain_line
from kernai.registry.skill_context import SkillContext
from kernai.registry.skill_definition import Skill
from kernai.values.message import Part

#: calls the tool of that name
Perform = Callable[[str, Mapping[str, Any], SkillContext[Any]], list[Part]]


class ToolSkill(Skill):
    """A skill that asks a server. Its inputs, and what is checked, are those of the tool's schema."""

    def __init__(self, name: str, tool: Tool, table: SchemaTable, perform: Perform) -> None:
        def call(**arguments: Any) -> list[Part]:
            return perform(tool.name, arguments, SkillContext(self))

        call.__name__ = call.__qualname__ = name
        description = plain_line(tool.description or tool.title or "")
        idempotent = is_repeatable(tool)
        super().__init__(name, execute=call, description=description, inputs=table.inputs, idempotent=idempotent)
        self.table = table
        self._perform = perform
        self._tool = tool.name
        self.wants_context = True

    def invoke(self, arguments: Mapping[str, object], context: SkillContext[Any] | None = None) -> list[Part]:
        return self._perform(self._tool, arguments, SkillContext(self) if context is None else context)


def tool_skill(server: str, tool: Tool, perform: Perform, prefix: str) -> ToolSkill:
    """The skill of a tool; `McpConfigError` where none can be made of it."""
    name = prefix + tool.name
    try:
        if plain_line(name) != name:
            raise UnheldSchemaError(f"no skill can have the name {name!r}")
        return ToolSkill(name, tool, SchemaTable(name, tool.input_schema), perform)
    except (UnheldSchemaError, ValueError) as error:
        raise McpConfigError(
            f"the tool {tool.name!r} of server {server!r} cannot be a skill: {error}. Name those that you want with "
            f"only=[...]; the protocol can call this one"
        ) from error

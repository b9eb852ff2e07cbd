"""`Tools`: what an agent may call, as a provider with native calls gets it. Few agents need this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernai._util.api import Value
from kernai.blocks.plan import STRATEGIES
from kernai.inputs.schema import MARK
from kernai.values.message import Message, Part, Wording

if TYPE_CHECKING:
    from kernai.agents.setup import Setup


def _object(*required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


_TEXT = {"type": "string"}
_NO_PARAMETERS = _object()
_PROTOCOL = _object("content", name=_TEXT, content=_TEXT)
_TASK = _object(
    "id", "input",
    id={**_TEXT, "description": "used once"},
    input={**_TEXT, "description": "everything that the sub-agent needs; it sees nothing else"},
    parallel={"type": "boolean", "description": "may run at the same time as others, for the strategy mixed"},
    depends_on={
        "type": "array", "items": _TEXT,
        "description": "ids of tasks whose results this one needs; they are put before its input",
    },
)
_PLAN = _object(
    "tasks",
    goal=_TEXT, strategy={"type": "string", "enum": list(STRATEGIES)},
    tasks={"type": "array", "items": _TASK, "minItems": 1},
)
_PLAN_DESCRIPTION = (
    "Gives tasks to sub-agents with your skills, for work that can be split into independent parts. All results come "
    "back together; the result of a task that failed begins with error:. Make no other call in the same response."
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Value):
    """One thing that a model may call. `schema` is the JSON Schema of its parameters, an object.

    A call becomes a block of this `type`: a ``command`` with this name, a `plan`, a `final`, or the block of a
    protocol, whose parameters are `name` and `content`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    type: str = "command"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tools(Value):
    """The tools of a model call that may use native calls, and the wording of the conversation for it.

    `output` is the JSON Schema of the answer; None for text. `blocks_system` is the system message for a provider
    without native calls, `system` the one for a provider with them. `constrained` is `Agent.constrain`.
    """

    tools: tuple[Tool, ...]
    blocks_system: Message
    system: Message
    output: Mapping[str, Any] | None = None
    constrained: bool = False

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation for a model that calls natively."""
        shown = list(map(_native, messages))
        if shown and shown[0].role == "system":
            # middleware may have added something to the original, which stays
            text = shown[0].text.replace(self.blocks_system.text, self.system.text, 1)
            if text != shown[0].text:
                shown[0] = Message("system", text)
        return shown


def _native(message: Message) -> Message:
    if not any(type(part) is Wording for part in message.content):
        return message
    parts: list[Part] = [part.native if type(part) is Wording else part for part in message.content]
    return message.rewritten(parts)


def native_tools(setup: Setup) -> Iterator[Tool]:
    """Yields an agent's tools. Skills come first, so that other tools get new names if a vendor's rules require it."""
    for skill in setup.skills.visible():
        produces = f"Produces: {', '.join(skill.produces)}" if skill.produces else ""
        schema = _explained(skill.schema()) if skill.table.trusted else skill.schema()
        yield Tool(skill.name, "\n".join(filter(None, [skill.description, produces])), schema)
    for one in setup.protocols.visible():
        yield Tool(one.name, f"The protocol {one.name}. {one.documentation or ''}".strip(), _PROTOCOL, one.name)
    if setup.workflows and setup.can_call:
        yield Tool("plan", _PLAN_DESCRIPTION, _PLAN, "plan")
        yield Tool("/tasks", "Shows the tasks of your plan and their results.", _NO_PARAMETERS)
    if setup.know_how is not None:
        named = _object("name", name={**_TEXT, "enum": list(setup.know_how.folders)}, file=_TEXT)
        yield Tool("/read", "Reads know-how: its instructions, or one of its files.", named)


_TRUSTED = "Only a value that is in the user's own words; ask for it if it is not."


def _explained(schema: Any) -> Any:
    """Returns a schema whose descriptions say which values must come from the user: vendors have no keyword for it."""
    if isinstance(schema, list):
        return [_explained(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _explained(one) for key, one in schema.items() if key != MARK}
    if schema.get(MARK) is True:
        made["description"] = " ".join(filter(None, [schema.get("description"), _TRUSTED]))
    return made

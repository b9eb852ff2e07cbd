"""What is the same for all vendors' native calls: names, ids, schemas, and which result answers which call.

`Toolbox` translates between the vendor's calls and the kernel's blocks. `conversation` turns messages into assistant
turns and user turns, in which every call has its result, as vendors require. An adapter only has to write these turns
in its vendor's format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal

from kernai import Media, Message, NativeCall, Tool, Tools, parse
from kernai.jsonio.json_data import loads
from kernai.values.message import Part

#: names of tools that every vendor accepts
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
#: types of blocks whose content is the arguments of a call
_BY_ARGUMENTS: Final = ("command", "plan", "final")
_RUNTIME: Final = ('<block type="result"', '<block type="error"')
_MEDIA_TAG: Final = re.compile(r'<block type="media" id="([^"]*)" kind="([^"]*)" mime="[^"]*"/>')
#: models that reject calls without the signature of their reasoning; and what Google accepts in place of the signature,
#: for calls that another model made; on 1 December 2026, Gemini 2.5 Pro and Flash become names of later models
NEEDS_SIGNATURE: Final = re.compile(r"(?:.*/)?gemini-(?:[3-9]|[1-9]\d|[a-z-]+-latest|2\.5-(?:pro|flash)$)")
NO_SIGNATURE: Final = "skip_thought_signature_validator"
#: JSON Schema keywords that OpenAI's strict mode supports; and others that only narrow a value and may be left out,
#: since values are checked anyway
_KNOWN: Final = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "description", "title",
})  # fmt: skip
#: keywords that OpenAI and Anthropic reject at the root of a tool's schema; values are checked against them anyway
_NOT_AT_ROOT: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const"})
_REFERENCE: Final = re.compile(r'"\$ref": "#/\$defs/([^"]*)"')
#: of these, the strict mode requires one
_TYPED: Final = frozenset({"type", "anyOf", "$ref"})
_NARROWING: Final = frozenset({
    "default", "examples", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
})  # fmt: skip


@dataclass(slots=True)
class Call:
    """A call that the model made, and its result, at first that it was not run.

    In `media`, a text that names it is before each medium.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    text: str = "not run"
    media: list[Part] = field(default_factory=list)
    is_error: bool = True
    is_known: bool = False

    @property
    def marked(self) -> str:
        """The result's text, marked if it is an error, for vendors that have no other place to say so."""
        return f"Error: {self.text}" if self.is_error else self.text


@dataclass(slots=True)
class AssistantTurn:
    """What the model wrote: text and calls; and media, which only a history of the caller's has."""

    text: str
    calls: list[Call]
    reasoning: Sequence[Mapping[str, Any]] = ()
    media: list[Media] = field(default_factory=list)

    def thoughts(self, before: int, *kinds: str) -> list[dict[str, Any]]:
        """Returns the reasoning of these kinds that came before the call with this number, as the vendor sent it."""
        own = [item for item in self.reasoning if item.get("type") in kinds and item.get("at", 0) == before]
        return [{name: one for name, one in item.items() if name not in ("at", "vendor")} for item in own]


@dataclass(slots=True)
class UserTurn:
    """What the model reads next: first the results of its calls, then everything else."""

    results: list[Call] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


class NativeRules:
    """What a vendor accepts in native calls."""

    #: which schemas it enforces: those of tools and answers without optional properties ("closed"); also those of tools
    #: with optional properties, which may then be null ("nullable"); or only that of an answer without tools
    enforces: Literal["closed", "nullable", "without tools"] | None = None
    #: the ids of calls
    call_ids: re.Pattern[str] = re.compile(r"[A-Za-z0-9_-]{1,40}")
    #: the names of a tool's inputs
    input_names: re.Pattern[str] = re.compile(r"(?s).*")

    def closed(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the schema for a strict mode without optional properties; None if that does not accept it."""
        return strict(schema, nullable=False)


class Toolbox:
    """The tools of one model call, under names that the vendor accepts."""

    def __init__(self, tools: Tools, vendor: NativeRules) -> None:
        self.output = output = portable(root_of(tools.output))
        #: whether the answer is the `value` of an object, since every vendor requires an object for parameters
        self.wraps = output is not None and output.get("type") != "object"
        #: the schema of the answer, if the vendor enforces it; if not, the model answers with a tool named `final`
        self.answer: Mapping[str, Any] | None = None
        if output is not None and not self.wraps:
            if vendor.enforces == "without tools":
                self.answer = None if tools.tools else output
            elif vendor.enforces is not None:
                self.answer = vendor.closed(output)
        self.constrained = tools.constrained
        #: for a vendor whose reasoning belongs to one request: what to keep with it
        self.request: Mapping[str, int] = {}
        self._ids = vendor.call_ids
        listed = list(tools.tools)
        if output is not None and self.answer is None:
            schema = output
            if self.wraps:
                value = {name: one for name, one in output.items() if name != "$defs"}
                schema = {"type": "object", "properties": {"value": value}, "required": ["value"],
                          "additionalProperties": False, **({"$defs": output["$defs"]} if "$defs" in output else {})}
            listed.append(Tool("final", "Gives your answer and ends the task.", schema, "final"))
        self.tools: dict[str, Tool] = {}
        self._names: dict[tuple[str, str], str] = {}
        #: of each tool: the vendor's names for inputs whose own names it rejects
        self._inputs: dict[str, dict[str, str]] = {}
        for tool in listed:
            name = _free(tool.name, self.tools)
            self._names[_key(tool.type, tool.name)] = name
            schema, renamed = portable(tool.schema), dict[str, str]()
            schema = {key: one for key, one in schema.items() if key not in _NOT_AT_ROOT}
            for own in schema.get("properties", ()):
                if not vendor.input_names.fullmatch(own):
                    renamed[own] = _free(own, [*schema["properties"], *renamed.values()])
            if renamed:
                required = [renamed.get(one, one) for one in schema.get("required", ())]
                schema = {**schema, "properties": _renamed(schema["properties"], renamed), "required": required}
            self._inputs[name], self.tools[name] = renamed, replace(tool, schema=schema)
        #: the schemas of the tools that are sent for the strict mode
        strict_tools = self.tools if vendor.enforces == "nullable" else {}
        self.strict = {name: strict(tool.schema) for name, tool in strict_tools.items()}

    def name_of(self, block: Mapping[str, Any]) -> str | None:
        """Returns the vendor's name for the tool that a block calls; None for a block that is just text."""
        kind, name = str(block["type"]), str(block.get("name") or "")
        known = self._names.get(_key(kind, name))
        return _free(name, ()) if known is None and kind == "command" else known

    def block(self, name: str, text: str, id: str | None, *, is_cut: bool) -> NativeCall:
        """Returns a call's block. Arguments that are not JSON stay unchanged: the loop repairs or rejects them."""
        data = json_or_text(text) if text.strip() else {}
        is_open = is_cut and not (text.strip() and isinstance(data, dict))
        tool = self.tools.get(name)
        if tool is None:
            return NativeCall("command", name, text, id=id, is_open=is_open)
        kind, named = tool.type, tool.name if tool.type == "command" else None
        if isinstance(data, dict):
            definitions, is_strict = tool.schema.get("$defs", {}), bool(self.strict.get(name))
            pruned = without_nulls(data, [tool.schema], definitions, is_strict=is_strict)
            pruned = _renamed(pruned, {sent: own for own, sent in self._inputs[name].items()})
            data, text = pruned, text if pruned == data else json.dumps(pruned, ensure_ascii=False)
        if kind == "command":
            text = "" if tool.name.startswith("/") and not tool.schema.get("properties") else text
        # a model may leave out what is null
        elif kind == "final" and self.wraps and isinstance(data, dict) and ("value" in data or not (data or is_open)):
            text = json.dumps(data.get("value"), ensure_ascii=False)
        elif kind not in _BY_ARGUMENTS and isinstance(data, dict):
            named, content = data.get("name"), data.get("content", "" if data.keys() <= {"name"} else text)
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return NativeCall(kind, named if isinstance(named, str) else None, text, id=id, is_open=is_open)

    def streams(self, name: str) -> tuple[str, str | None] | None:
        """Returns the type and name of a call's block if its content is exactly the arguments, which can stream."""
        tool = self.tools.get(name)
        if tool is None or tool.type not in _BY_ARGUMENTS or tool.name.startswith("/") or self._inputs[name]:
            return None
        if tool.type == "final" and self.wraps:
            return None
        if self.strict.get(name) and self.strict[name] != strict(tool.schema, nullable=False):
            return None  # the block's content may lack nulls that were streamed
        return tool.type, tool.name if tool.type == "command" else None

    def function(self, name: str) -> dict[str, Any]:
        """Returns a tool in the format of OpenAI and Ollama."""
        tool, schema = self.tools[name], self.strict.get(name)
        described = {"name": name, "description": tool.description, "parameters": schema or tool.schema}
        return described | ({"strict": True} if schema else {})

    def arguments(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call in the conversation; always an object, as vendors require."""
        kind, content = block["type"], str(block["content"])
        if kind not in _BY_ARGUMENTS:
            return {**({"name": block["name"]} if block.get("name") else {}), "content": content}
        data = json_or_text(content)
        if kind == "final" and self.wraps:
            return {"value": data}
        name = self._names.get(_key(kind, str(block.get("name") or "")), "")
        if isinstance(data, dict):
            return _renamed(data, self._inputs.get(name, {}))
        if not content.strip():
            return {}
        tool = self.tools.get(name)
        inputs = [] if tool is None else list(tool.schema.get("properties", ()))
        return {inputs[0] if len(inputs) == 1 else "input": content.strip()}

    def id_of(self, given: object, place: str) -> str:
        """Returns a call's id if this vendor accepts it, else one derived from it or from the call's place."""
        if isinstance(given, str) and self._ids.fullmatch(given):
            return given
        return "c" + sha256(str(given or place).encode("utf-8", "replace")).hexdigest()[:8]


def conversation(messages: Iterable[Message], box: Toolbox) -> list[AssistantTurn | UserTurn]:
    """Returns the turns after the system message. After an assistant turn with calls, a user turn has their results."""
    turns: list[AssistantTurn | UserTurn] = []
    results: dict[int, Call] = {}  # the newest calls, by the index of their block
    used: set[str] = set()
    for at, message in enumerate(messages):
        last = turns[-1] if turns else None
        if message.role == "assistant":
            turn, results = _assistant_turn(message, box, at, used)
            if [call.name for call in turn.calls] == [box.name_of({"type": "final"})]:
                turn.calls[0].text, turn.calls[0].is_error = "accepted", False  # if it was refused, a message says so
            if isinstance(last, AssistantTurn) and not turn.calls:
                last.text = "\n\n".join(filter(None, [last.text, turn.text]))
                last.media += turn.media
                continue
            turns += [turn, UserTurn([*turn.calls])] if turn.calls else [turn]
        elif message.role == "user":
            if not isinstance(last, UserTurn):
                turns.append(last := UserTurn())
            _add_message(message, last, results, is_first=len(turns) == 1)
    return turns


def _assistant_turn(message: Message, box: Toolbox, at: int, used: set[str]) -> tuple[AssistantTurn, dict[int, Call]]:
    """Returns an assistant turn, and its calls by their block's index. `used`: ids that some servers use again."""
    blocks: Sequence[Mapping[str, Any]]
    if message.blocks is None:
        parsed = parse(message.text)
        cut = parsed.incomplete.content if parsed.incomplete and parsed.incomplete.type == "final" else ""
        blocks, text = [block.to_dict() for block in parsed.blocks], "".join([*parsed.text_segments, cut])
    else:
        blocks = message.blocks
        text = message.text.removesuffix("\n".join(str(NativeCall(**block)) for block in blocks))
    calls: dict[int, Call] = {}
    for index, block in enumerate(blocks):
        name = None if block.get("is_open") else box.name_of(block)
        if name is not None:
            id = box.id_of(block.get("id"), f"call {at}.{index}")
            if id in used:
                id = box.id_of(None, f"{id} {at}.{index}")
            used.add(id)
            calls[index] = Call(id, name, box.arguments(block))
        elif not block.get("is_open"):
            text = f"{text}\n{block['content']}"
    media = [part for part in message.content if isinstance(part, Media)]
    return AssistantTurn(text.strip(), list(calls.values()), message.reasoning, media), calls


def _add_message(message: Message, turn: UserTurn, results: Mapping[int, Call], *, is_first: bool) -> None:
    """Adds a message to a user turn: as the result of a call, or else to the other parts."""
    text, media, is_error = _text_and_media(message)
    is_runtimes = message.text.startswith(_RUNTIME) and not is_first
    result = None if message.answers is None else results.get(message.answers)
    if message.answers is None and is_runtimes:  # written for blocks: results are in order
        result = next((one for one in results.values() if not one.is_known), None)
    if result is None:
        between: list[Part] = ["\n\n"] if turn.parts else []
        turn.parts += [*between, *([text, *media] if is_runtimes else message.content)]
    elif result.is_known:
        result.text += f"\n{text}"
        result.media += media
    else:
        result.text, result.media, result.is_error, result.is_known = text, media, is_error, True


def _text_and_media(message: Message) -> tuple[str, list[Part], bool]:
    """Returns a message's text, without the runtime's markup, its media, and whether it is an error."""
    first, *rest = message.content or ("",)
    if not isinstance(first, str) or not first.startswith(_RUNTIME):
        texts = "".join(part for part in message.content if isinstance(part, str))
        return texts, [part for part in message.content if isinstance(part, Media)], False
    blocks = parse(first).blocks
    text = "\n".join(block.content for block in blocks) if blocks else first
    named = [_MEDIA_TAG.sub(r"[\1: \2]", part) if isinstance(part, str) else part for part in rest]
    return text, named, bool(blocks) and blocks[0].type == "error"


# ---------------------------------------------------------------------------------------------------- schemas


def strict(schema: Any, *, nullable: bool = True) -> dict[str, Any] | None:
    """Returns the schema for a vendor's strict mode, which has neither open objects nor optional properties.

    With `nullable`, an optional property becomes a required one that may be null. Returns None if that is impossible.
    """
    if not isinstance(schema, Mapping) or schema.keys() - _KNOWN - _NARROWING:
        return None
    made = {key: value for key, value in schema.items() if key not in _NARROWING}
    if not made.keys() & _TYPED or ("$ref" in made and len(made) > 1):
        return None
    closed: dict[str, Any] = {}
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        if schema.get("additionalProperties", False) is not False or (not nullable and set(properties) - required):
            return None
        closed = {name: strict(one, nullable=nullable) for name, one in properties.items()}
        made["properties"] = {
            name: one if name in required else {"anyOf": [one, {"type": "null"}]} for name, one in closed.items()
        }
        made |= {"required": list(closed), "additionalProperties": False}
    if "items" in made:
        made["items"] = strict(made["items"], nullable=nullable)
    if "anyOf" in made:
        made["anyOf"] = [strict(one, nullable=nullable) for one in made["anyOf"]]
    if "$defs" in made:
        made["$defs"] = {name: strict(one, nullable=nullable) for name, one in made["$defs"].items()}
    inner = [made.get("items", {}), *made.get("anyOf", ()), *made.get("$defs", {}).values(), *closed.values()]
    return None if None in inner else made


def without_nulls(data: Any, schemas: Iterable[Any], definitions: Mapping[str, Any], *, is_strict: bool) -> Any:
    """Returns the data without nulls for optional properties: many models write null for one that they leave out.

    Where a property may be null, null is its value, except in strict mode, in which no property can be left out. The
    data match one of several schemas: a null stays if one of them requires the property.
    """
    if isinstance(data, list):
        items = [one.get("items") for one in _alternatives(schemas, definitions)]
        return [without_nulls(one, items, definitions, is_strict=is_strict) for one in data]
    if not isinstance(data, dict):
        return data
    known: dict[str, list[Any]] = {}
    kept: set[str] = set()
    for schema in _alternatives(schemas, definitions):
        kept.update(schema.get("required", ()))
        for name, one in schema.get("properties", {}).items():
            known.setdefault(name, []).append(one)
    if not is_strict:
        kept.update(name for name, ways in known.items() if any(map(_takes_null, _alternatives(ways, definitions))))
    return {
        name: without_nulls(one, known.get(name, ()), definitions, is_strict=is_strict)
        for name, one in data.items() if one is not None or name in kept or name not in known
    }


def _takes_null(schema: Mapping[str, Any]) -> bool:
    """Whether null fits the schema itself, apart from its alternatives."""
    values, kind = schema.get("enum", [schema["const"]] if "const" in schema else [None]), schema.get("type", "null")
    return None in values and "null" in kind and not schema.keys() & {"anyOf", "$ref"}


def _alternatives(schemas: Iterable[Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the schemas without references and unions: with all definitions and members that these lead to."""
    found, waiting = [], list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, Mapping) and schema not in found:  # a foreign schema may contain itself
            found.append(schema)
            waiting += [*schema.get("anyOf", ()), definitions.get(str(schema.get("$ref", "")).rpartition("/")[2])]
    return found


def portable(schema: Any) -> Any:
    """Returns an equal schema in the form that vendors require: a list has `items`, and nothing is beside a `$ref`."""
    return json.loads(json.dumps(schema), object_hook=_portable)


def _portable(made: dict[str, Any]) -> dict[str, Any]:
    kind = made.get("type")
    if kind == "array" or (isinstance(kind, list) and "array" in kind):
        made.setdefault("items", {})
    if isinstance(made.get("$ref"), str) and len(made) > 1 and "anyOf" not in made:
        made["anyOf"] = [{"$ref": made.pop("$ref")}]
    return made


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a definition contains itself."""
    left = {name: set(_REFERENCE.findall(json.dumps(one))) for name, one in schema.get("$defs", {}).items()}
    while ended := [name for name, inside in left.items() if not inside & left.keys()]:
        for name in ended:
            del left[name]
    return bool(left)


def root_of(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the schema with the reference at its root resolved, and without definitions that are not needed."""
    if schema is None or "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    contains_itself = json.dumps(schema["$ref"]) in json.dumps(schema["$defs"])
    needed = {key: one for key, one in schema["$defs"].items() if contains_itself or key != name}
    return {**schema["$defs"][name], **({"$defs": needed} if needed else {})}


# ------------------------------------------------------------------------------------------------------ names


def json_or_text(text: str) -> Any:
    """Returns the JSON in a text; the text itself if it is none."""
    try:
        return loads(text)
    except ValueError:
        return text


def is_whole(text: str) -> bool:
    """Whether a call's arguments are complete, which is the case for an object."""
    return text.rstrip().endswith("}") and isinstance(json_or_text(text), dict)


def _key(kind: str, name: str) -> tuple[str, str]:
    return (kind, name) if kind == "command" else (kind, "")


def _renamed(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): one for name, one in data.items()}


def _free(name: str, taken: Iterable[str]) -> str:
    """Returns a name similar to this one that every vendor accepts and that is not `taken`."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name.lstrip("/"))[:60]
    plain = plain if NAME.fullmatch(plain) else f"_{plain}"
    made, number, others = plain, 2, set(taken)
    while made in others:
        made, number = f"{plain[:60]}_{number}", number + 1
    return made

"""The tools that are served, and their calls.

Skills are looked up for each request, so that a reloaded registry takes effect at once. In a run, the value of a
`Media` input is an id in the run's media store. An MCP client has no such store, so it sends the payload itself, as MCP
writes images and audio: ``{"data": BASE64, "mimeType": "image/png"}``.

Every failure of a skill becomes a result, even `sys.exit()`. A cancelled call returns at once, and
`SkillContext.cancelled` is true from then on. An async skill runs in its own task, which receives a single
`CancelledError`; the SDK would raise it at every await, so that the skill could not clean up. A sync skill that ignores
the cancellation runs to its end.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypedDict, TypeGuard, Unpack

from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kernai import Agent, Context, Media, SkillContext, __version__, arun, config, parse
from kernai._util.api import check_count, check_type, close_matches
from kernai._util.worker_pool import DEFAULT_SIZE, WorkerPool, in_worker, outcome_of
from kernai.errors import SkillInputError, as_failure, described, error_text
from kernai.events import Event, ProgressRow, SkillExecuteRow
from kernai.inputs.annotations import Namespace, TypeBuilder
from kernai.inputs.schema import WORDS
from kernai.inputs.table import InputTable
from kernai.inputs.types import InputType, Validation
from kernai.jsonio.json_data import quoted
from kernai.recording.log import warn
from kernai.registry.skill_definition import AgentSkill, Skill
from kernai.registry.skill_registry import REGISTRY, SkillRegistry
from kernai.values.message import Part
from kernai.values.skill_result import SkillResult, is_data, plain

AgentAs = Literal["tool", "skills"]
Source = Skill | Iterable[Skill] | SkillRegistry | Agent[Any]

# Revision 2025-11-25, server/tools, "Tool Names".
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class ServeOptions(TypedDict, total=False):
    """The options of a server. All are optional.

    - `name`, `version`, `instructions`: how the server describes itself; `instructions` are for the client's model.
    - `agent_as`: how an `Agent` is served, as ``"tool"`` (one tool with ``input: str``) or as its ``"skills"``.
    - `description`: the description of that one tool.
    - `context`: a function that makes the `Context` of each call, for skills that read your own state from it.
    - `max_workers`: how many sync skills run at the same time; further calls wait.

    Only for HTTP:

    - `host`: ``"127.0.0.1"`` by default. A host that other machines can reach needs a `token`.
    - `port`: 8000 by default; 0 takes any free port. `path`: ``"/mcp"`` by default.
    - `token`: if set, requests need ``Authorization: Bearer TOKEN``.
    - `allowed_hosts`: further names of this server, for example behind a proxy.
    - `allowed_origins`: origins of web pages that may use the server, such as ``"https://app.example.org"``.
    """

    name: str | None
    version: str | None
    instructions: str | None
    agent_as: AgentAs
    description: str | None
    context: Callable[[], Context] | None
    max_workers: int
    host: str
    port: int
    path: str
    token: str | None
    allowed_hosts: Iterable[str]
    allowed_origins: Iterable[str]


class MediaObject(InputType):
    """A `Media` input whose payload is sent with the call: base64 data and a MIME type."""

    natural = frozenset({dict})

    def __init__(self) -> None:
        self.schema = {
            "type": "object",
            "properties": {
                "data": {"type": "string", "contentEncoding": "base64", "examples": ["iVBORw0KGgo="],
                         "description": "the payload as base64"},
                "mimeType": {"type": "string", "pattern": "^[^/\\s]+/[^/\\s]+$", "examples": ["image/png"]},
            },
            "required": ["data", "mimeType"],
            WORDS: 'media object such as {"data": "iVBORw0KGgo=", "mimeType": "image/png"} with the payload as base64',
        }

    def convert(self, value: object, validation: Validation) -> Any:
        data, mime = (value.get("data"), value.get("mimeType")) if isinstance(value, Mapping) else (None, None)
        if isinstance(data, str) and isinstance(mime, str):
            with suppress(ValueError):  # invalid base64 or MIME type
                return Media.from_bytes(b64decode("".join(data.split()), validate=True), mime_type=mime)
        return validation.refuse(self.label, value)


def served_table(skill: Skill) -> InputTable:
    """The table that checks a client's calls: the skill's own, or a variant that takes the payloads of media."""
    if not skill.table.has_media:
        return skill.table
    return InputTable(skill.name, skill.inputs, TypeBuilder(Namespace(skill.function), MediaObject()))


class Tools:
    """The tools of one server, and the calls of its clients. `app` is the SDK's server.

    Raises `TypeError` or `ValueError` for a source or an option that cannot be used, and for a skill whose name cannot
    be a tool's name; such skills are left out if they are registered later.
    """

    def __init__(self, source: Source, **options: Unpack[ServeOptions]) -> None:
        make = options.get("context") or Context
        self.new_context = check_type(make, Callable, "context must be a function that gives a Context")
        name, version, instructions = (
            check_type(options.get(option), str | None, f"{option} must be text")
            for option in ("name", "version", "instructions")
        )
        self.pool = WorkerPool(check_count("max_workers", options.get("max_workers", DEFAULT_SIZE)))
        self._select = _selected(source, options.get("agent_as", "tool"), options.get("description"))
        for skill in self._select():
            if not _NAME.fullmatch(skill.name):
                raise ValueError(
                    f"the skill's name {skill.name!r} cannot be the name of an MCP tool: take 1 to 128 of the "
                    f"characters A-Z a-z 0-9 _ - . (@skill(name=...))"
                )
        #: set when the server ends: every running call is then cancelled, and answered with an error
        self.ending = asyncio.Event()
        agent_name = source.name if isinstance(source, Agent) else None
        self.app: Server[Any] = Server(
            name or agent_name or "kernai", version=version or __version__, instructions=instructions,
            on_list_tools=self.list, on_call_tool=self._call,
        )

    def skills(self) -> dict[str, Skill]:
        return {one.name: one for one in self._select() if _NAME.fullmatch(one.name)}

    async def list(self, *_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[
            types.Tool(name=name, description=one.description or None, input_schema=served_table(one).schema())
            for name, one in self.skills().items()
        ])

    async def _call(
        self, request: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Performs a call and returns its result, or a tool error if it fails."""
        skills = self.skills()
        skill = skills.get(params.name)
        if skill is None:
            hint = ", ".join(close_matches(params.name, skills, 3) or [*skills][:10])
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool {params.name[:128]!r}{hint and f'; there is {hint}'}")
        progress = Progress(request.session.report_progress)
        # older clients accept only objects as structured content
        only_objects = request.protocol_version not in MODERN_PROTOCOL_VERSIONS
        call = _Call(self, skill, progress.add, only_objects)
        task = asyncio.create_task(call.outcome(params.arguments or {}))
        ending = asyncio.create_task(self.ending.wait())
        try:
            await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return failure("the server is shutting down")
            await progress.finish()
            return task.result()
        finally:
            ending.cancel()
            progress.sending.cancel()
            if not task.done():
                call.cancellation.set()
                task.cancel()


def _selected(source: Source, agent_as: AgentAs, description: str | None) -> Callable[[], list[Skill]]:
    """Returns a function that finds the skills to serve at that moment."""
    if agent_as != "tool" and not (agent_as == "skills" and isinstance(source, Agent)):
        raise ValueError(f"agent_as must be 'tool' or, for an Agent, 'skills', got {agent_as!r}")
    if isinstance(source, Agent) and agent_as == "tool":
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", source.name or "").strip("_")[:128] or "agent"
        # never the instructions: clients must not see them
        about = f"Ask the agent {source.name or ''}".rstrip() + ". It works on the request and answers in text."
        only = source.as_skill(name, about if description is None else description)
        return lambda: [only]
    if description is not None:
        raise ValueError("description is for an Agent that is served as a tool; a skill has its own")
    if isinstance(source, Agent):
        if source.skills is None:
            raise ValueError("the Agent has no skills to serve: give it skills=..., or serve it with agent_as='tool'")
        find = partial(REGISTRY.select, source.skills, source.model)
    elif isinstance(source, SkillRegistry):
        find = partial(source.select, "all")
    elif isinstance(source, str) or not isinstance(source, (Skill, Iterable)):
        raise TypeError(f"serve takes a Skill, a list of Skills, a SkillRegistry or an Agent, got {source!r}")
    else:
        hint = ": decorate it with @skill, or turn an Agent into one with agent.as_skill(name, description)"
        skills = [source] if isinstance(source, Skill) else source
        checked = [check_type(one, Skill, "a list may hold Skills", hint) for one in skills]
        if not checked:
            raise ValueError("there is no skill to serve: the list is empty")
        find = partial(REGISTRY.select, Agent(instructions="", skills=checked).skills)  # it refuses two of one name

    def select() -> list[Skill]:
        allowed = config.allowed_skills
        return [one for one in find() if allowed is None or one.name in allowed]

    return select


@dataclass(slots=True)
class _Call:
    tools: Tools
    skill: Skill
    emit: Callable[[Any], object]
    only_objects: bool
    context: SkillContext[Any] = field(default_factory=lambda: SkillContext(None))
    cancellation: threading.Event = field(default_factory=threading.Event)

    async def outcome(self, arguments: Mapping[str, Any]) -> types.CallToolResult:
        result: types.CallToolResult
        result, error = await outcome_of(self._result(arguments))
        if error is None:
            return result
        if isinstance(error, SkillInputError):
            text = self._for_clients(error)
        elif isinstance(error, (SystemExit, KeyboardInterrupt)):  # no real Ctrl-C gets here
            text = described(error)
        else:
            text = error_text(as_failure(error))
        text = str(self.context.scrub(text))
        warn("skill.error", skill=self.skill.name, error=text)  # as in a run, since the client's log is not the host's
        return failure(text)

    async def _result(self, arguments: Mapping[str, Any]) -> types.CallToolResult:
        run_context = check_type(self.tools.new_context(), Context, "the server's context= must return a Context")
        skill, run_id = self.skill, os.urandom(12).hex()
        self.context = SkillContext(
            skill, run_context, call_id="0.0", run_id=run_id, emit=self.emit, cancelled=self.cancellation.is_set,
        )
        table = served_table(skill)
        bound = table.bind(arguments, run_context.media_store, repair=False)
        invoke = partial(skill.invoke, bound, self.context if skill.wants_context else None)
        value: Any
        if isinstance(skill, AgentSkill):
            value = await arun(
                skill.agent, str(bound["input"]), context=run_context, cancel=self.cancellation,
                on_event=self._on_event, run_id=run_id,
            )
        else:
            value = invoke() if skill.is_async else await in_worker(self.tools.pool, invoke)
        if hasattr(value, "__await__"):
            value = await value
        value = self.context.scrub(value)
        data = self.context.scrub(plain(value)) if is_data(value) else None
        if self.only_objects and data is not None and not isinstance(data, dict):
            data = {"result": data}
        parts = self.context.scrub(SkillResult.of(value)).parts
        encode: Callable[[], list[types.ContentBlock]] = partial(list, map(_content, parts))
        # encoding media may read files, so it must not happen on the event loop
        content = encode() if all(isinstance(part, str) for part in parts) else await in_worker(self.tools.pool, encode)
        for name, one in table.dropped(arguments).items():
            said = f"there is no argument {quoted(name)}, did you mean {quoted(one)}? What you gave for it was ignored."
            content += [_content(f"The call was made, but {said}")] if one else []
        return types.CallToolResult(content=content, structured_content=_sendable(data))

    def _on_event(self, event: Event) -> None:
        """Emits an agent's progress and the skills that it calls, so that clients do not give up on a long run."""
        row = event.row
        if isinstance(row, ProgressRow):
            self.emit(as_message(row.data_))  # sent as text, because its numbers describe one skill, not the run
        elif isinstance(row, SkillExecuteRow):
            self.emit(f"step {event.step}: {row.skill}")

    def _for_clients(self, error: SkillInputError) -> str:
        """The faults, and right arguments instead of the block that a model in kernai would write."""
        faults, _, usage = str(error).rpartition("\nUsage: ")
        for call in parse(usage).blocks if faults else ():
            if call.name == self.skill.name:
                return f"{faults}\nRight arguments: {call.content or '{}'}"
        return faults or usage  # from another skill that this one has called; its usage means nothing to the client


def failure(text: str) -> types.CallToolResult:
    """A tool error: the client's model reads its text and can correct the call."""
    return types.CallToolResult(content=[_content(text)], is_error=True)


def _sendable(data: Any) -> Any:
    """JSON data, or a text, with ``?`` for each lone surrogate, which UTF-8 cannot express."""
    return json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))


def _content(part: Part) -> types.ContentBlock:
    """A part of a skill's result for MCP. Raises `KernaiError` for a media file that cannot be read.

    Images and audio have their own kinds of content. Other media become embedded resources, with text if they are text,
    and a URL becomes a link, which is never fetched. The metadata of the result is for recordings and is not sent.
    """
    if isinstance(part, str):
        return types.TextContent(text=_sendable(part))
    if part.is_url:
        return types.ResourceLink(uri=_sendable(str(part.data)), name=part.id, mime_type=part.mime_type)
    if part.kind == "image":
        return types.ImageContent(data=part.to_base64(), mime_type=part.mime_type)
    if part.kind == "audio":
        return types.AudioContent(data=part.to_base64(), mime_type=part.mime_type)
    about: dict[str, Any] = {"uri": f"kernai://media/{part.id}", "mime_type": part.mime_type}
    if part.mime_type.startswith("text/"):
        with suppress(UnicodeDecodeError):
            text = part.read_bytes().decode()
            return types.EmbeddedResource(resource=types.TextResourceContents(**about, text=text))
    return types.EmbeddedResource(resource=types.BlobResourceContents(**about, blob=part.to_base64()))


#: progress notifications kept for a client that reads slowly
MAX_WAITING = 1000
_END = object()


class Progress:
    """Sends what a skill emits as progress notifications, in order and before the result.

    A client that reads slowly does not delay the skill: beyond `MAX_WAITING` notifications the oldest are dropped,
    because the newest says how far the call is. Must be made on the running event loop.
    """

    def __init__(self, send: Callable[[float, float | None, str | None], Awaitable[None]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Any] = asyncio.Queue()
        self._last: float | None = None
        self.sending = self._loop.create_task(self._send_all())

    def add(self, data: Any) -> None:
        """Adds a notification; may be called from any thread. `data` must be JSON data."""
        with suppress(RuntimeError):  # the event loop is closed, because the server has ended before the call
            self._loop.call_soon_threadsafe(self._put, data)

    def _put(self, data: Any) -> None:
        if self._waiting.qsize() >= MAX_WAITING:
            self._waiting.get_nowait()
        self._waiting.put_nowait(data)

    async def finish(self) -> None:
        """Waits until everything added so far is sent. Nothing is sent afterwards."""
        self._loop.call_soon(self._waiting.put_nowait, _END)
        await self.sending

    async def _send_all(self) -> None:
        while (data := await self._waiting.get()) is not _END:
            with suppress(Exception):  # the client has left, or refuses notifications; the call continues
                await self._send(*self._read(_sendable(data)))

    def _read(self, data: Any) -> tuple[float, float | None, str | None]:
        """Converts emitted data to progress, total and message. By the specification, the number always increases."""
        fields = data if isinstance(data, Mapping) else {"progress": data}
        number, total, message = fields.get("progress"), fields.get("total"), fields.get("message")
        least = -math.inf if self._last is None else math.nextafter(self._last, math.inf)
        if not _is_number(number):
            self._last = 1.0 if self._last is None else max(math.floor(self._last) + 1.0, least)
            return self._last, None, as_message(data)
        self._last = max(float(number), least)
        return self._last, float(total) if _is_number(total) else None, message if isinstance(message, str) else None


def as_message(data: Any) -> str:
    """Emitted data as text: its message if it has one, or its JSON."""
    if isinstance(data, Mapping) and isinstance(data.get("message"), str):
        return str(data["message"])
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

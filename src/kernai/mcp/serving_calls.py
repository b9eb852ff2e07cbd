"""One call of a served skill: its result, its progress, its cancellation.

A sync skill runs in a worker thread; an async one on the event loop, in an asyncio task of its own; an agent as an
asyncio run. Every failure of a skill is a result, `sys.exit()` included. A cancelled call stops waiting at once and
`SkillContext.cancelled` is true from then on. An async skill gets its `CancelledError` once (the SDK would repeat it at
every await, and the skill could not clean up). A sync skill that ignores it is left to end on its own.

Results: text is text, an image or a sound its own kind of content, other media an embedded resource (as text where it
is text), a URL a link that is never fetched. Data is its JSON text and also `structuredContent`. The metadata of a
`SkillResult` is for recordings and is not sent.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from mcp import types

from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.agents.agent_skill import AgentSkill
from kernai.errors import RunCancelledError, SkillInputError, as_failure, error_text
from kernai.events import Event, ProgressRow, SkillExecuteRow
from kernai.mcp.serving_tools import ServedSkill
from kernai.registry.skill_context import SkillContext
from kernai.runs.running import arun
from kernai.values.context import Context
from kernai.values.media import Media
from kernai.values.message import Part
from kernai.values.skill_result import SkillResult, is_data, plain

Scrub = Callable[[Any], Any]


class Outcome:
    """What a call came to, without credentials and ready to be written."""

    def __init__(self, value: object, scrub: Scrub) -> None:
        """`KernaiError` for what has no text, such as bytes."""
        value = scrub(value)
        self.result: SkillResult = scrub(SkillResult.of(value))
        self.data: dict[str, Any] | None = None
        if is_data(value):
            data = scrub(plain(value))
            self.data = data if isinstance(data, dict) else {"result": data}

    @property
    def reads_files(self) -> bool:
        """Whether writing it takes time that the event loop has not."""
        return bool(self.result.media)

    def written(self) -> types.CallToolResult:
        """`KernaiError` for a media file that cannot be read."""
        return types.CallToolResult(
            content=[_content(part) for part in self.result.parts], structured_content=self.data
        )


def failure(text: str) -> types.CallToolResult:
    """A tool error: the client's model reads its text and can mend the call."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _content(part: Part) -> types.ContentBlock:
    if isinstance(part, str):
        return types.TextContent(text=_encodable(part))
    if part.is_url:
        return types.ResourceLink(uri=str(part.data), name=part.id, mime_type=part.mime_type)
    if part.kind == "image":
        return types.ImageContent(data=part.to_base64(), mime_type=part.mime_type)
    if part.kind == "audio":
        return types.AudioContent(data=part.to_base64(), mime_type=part.mime_type)
    return types.EmbeddedResource(resource=_resource(part))


def _resource(media: Media) -> types.TextResourceContents | types.BlobResourceContents:
    uri = f"kernai://media/{media.id}"
    if media.mime_type.startswith("text/"):
        try:
            return types.TextResourceContents(uri=uri, mime_type=media.mime_type, text=media.read_bytes().decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=media.mime_type, blob=media.to_base64())


def _encodable(text: str) -> str:
    """A text without lone surrogates, which no UTF-8 line can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


MOST_WAITING = 1000
_MOST = 1e300  # beyond it a float is nearly out of range, and no call gets that far

Send = Callable[[float, float | None, str | None], Awaitable[None]]


class Progress:
    """The notifications of one call, on the running event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Any] = deque(maxlen=MOST_WAITING)
        self._wake = asyncio.Event()
        self._ended = False
        self._last: float | None = None
        self._sending = asyncio.ensure_future(self._send_all())

    def tell(self, data: Any) -> None:
        """From any thread; `data` is JSON-ready."""
        with suppress(RuntimeError):  # the event loop is closed: the call has outlived its server
            self._loop.call_soon_threadsafe(self._add, data)

    async def finish(self) -> None:
        """Waits until all that was told is sent."""
        self._loop.call_soon_threadsafe(self._end)  # behind what a thread has just told
        await self._sending

    def abandon(self) -> None:
        """Sends no more."""
        self._ended = True
        self._sending.cancel()

    def _add(self, data: Any) -> None:
        if not self._ended:
            self._waiting.append(data)
            self._wake.set()

    def _end(self) -> None:
        self._ended = True
        self._wake.set()

    async def _send_all(self) -> None:
        while self._waiting or not self._ended:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            with suppress(Exception):  # the client is gone, or takes no more: the call itself goes on
                await self._send(*self._read(self._waiting.popleft()))

    def _read(self, data: Any) -> tuple[float, float | None, str | None]:
        """Emitted data as progress, total and message.

        The specification wants a number that grows each time. A number, or ``{"progress": n, "total": m, "message":
        text}``, is taken as that; one that does not grow is raised by next to nothing. Anything else is a message.
        """
        total = message = None
        number = data
        if isinstance(data, Mapping) and _is_number(data.get("progress")):
            number = data["progress"]
            total = float(data["total"]) if _is_number(data.get("total")) else None
            message = data["message"] if isinstance(data.get("message"), str) else None
        if _is_number(number):
            self._last = float(number) if self._last is None or float(number) > self._last else self._just_more()
        else:
            self._last = 1.0 if self._last is None else max(math.floor(self._last) + 1.0, self._just_more())
            message = as_message(data)
        return self._last, total, message

    def _just_more(self) -> float:
        return math.nextafter(self._last or 0.0, math.inf)


def as_message(data: Any) -> str:
    """Emitted data as a text: its message, where it has one, or its JSON."""
    if isinstance(data, Mapping) and isinstance(data.get("message"), str):
        return str(data["message"])
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST


_SERIOUS = (SystemExit, KeyboardInterrupt)  # of a skill; a real Ctrl-C never reaches one here


class Calls:
    """The calls of one server; `new_context` makes the run context of each."""

    def __init__(self, new_context: Callable[[], Context], max_workers: int) -> None:
        self._new_context = new_context
        self._pool = WorkerPool(max_workers)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def perform(
        self, served: ServedSkill, arguments: Mapping[str, Any], progress: Progress | None
    ) -> types.CallToolResult:
        """The result of one call, or its failure as a tool error. Raises nothing but the cancellation of its task.

        `progress` is made on the running loop and ended here.
        """
        try:
            call = _Call(served, self._new_context(), progress)
        except Exception as error:  # noqa: BLE001 - the host's function failed: the call does, and the server goes on
            if progress is not None:
                progress.abandon()
            return failure(error_text(error))
        task = asyncio.ensure_future(call.outcome(arguments, self._pool))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            result = await asyncio.shield(task)
            if progress is not None:
                await progress.finish()
        except asyncio.CancelledError:
            call.cancellation.set()
            task.cancel()
            if progress is not None:
                progress.abandon()
            raise
        return result

    async def close(self, patience: float) -> None:
        """Waits for what was cancelled and still tidies up, for at most `patience` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience)


class _Call:
    def __init__(self, served: ServedSkill, run_context: Context, progress: Progress | None) -> None:
        self.cancellation = threading.Event()
        self._served = served
        self._run_context = run_context
        self._tell: Callable[[Any], object] = (lambda _: None) if progress is None else progress.tell
        self._run_id = os.urandom(12).hex()
        self._context: SkillContext[Any] | None = None
        if served.skill.wants_context:
            self._context = SkillContext(
                served.skill, run_context, call_id="0.0", run_id=self._run_id, emit=self._tell,
                cancelled=self.cancellation.is_set,
            )

    async def outcome(self, arguments: Mapping[str, Any], pool: WorkerPool) -> types.CallToolResult:
        """The result, or the failure as a tool error."""
        try:
            bound = self._served.table.bind(arguments, self._run_context.media_store, repair=False)
            outcome = await self._performed(bound, pool)
            return await in_worker(pool, outcome.written) if outcome.reads_files else outcome.written()
        except asyncio.CancelledError as error:
            if self.cancellation.is_set():
                raise
            return self._failed(as_failure(error))  # the skill awaited something that was cancelled
        except SkillInputError as error:
            return failure(str(self._scrubbed(self._for_clients(error))))
        except Exception as error:  # noqa: BLE001 - whatever a skill raises is for the client's model to read
            return self._failed(error)

    async def _performed(self, bound: dict[str, Any], pool: WorkerPool) -> Outcome:
        skill = self._served.skill
        if isinstance(skill, AgentSkill):
            return self._outcome(await self._agent_run(skill, str(bound["input"])))
        invoke = partial(skill.invoke, bound, self._context)
        value = _contained(invoke) if skill.is_async else await in_worker(pool, partial(self._in_worker, invoke))
        if hasattr(value, "__await__"):
            value = await _contained_later(value)
        return value if isinstance(value, Outcome) else self._outcome(value)

    def _in_worker(self, invoke: Callable[[], Any]) -> Any:
        """What a sync skill gave, made ready in its own thread; an awaitable is for the event loop."""
        if self.cancellation.is_set():  # while it waited for a place
            raise RunCancelledError("the call was cancelled")
        value = _contained(invoke)
        return value if hasattr(value, "__await__") else self._outcome(value)

    async def _agent_run(self, skill: AgentSkill, text: str) -> str:
        return await arun(
            skill.agent, text, context=self._run_context, cancel=self.cancellation, on_event=self._on_event,
            run_id=self._run_id,
        )

    def _on_event(self, event: Event) -> None:
        """What a client is told of an agent's run: what its skills emit, and which one is called.

        That much keeps a client from giving up on a long run; parameters and results stay here.
        """
        row = event.row
        if isinstance(row, ProgressRow):
            self._tell(as_message(row.data_))  # its numbers are those of one skill, not of the run
        elif isinstance(row, SkillExecuteRow):
            self._tell(f"step {event.step}: {row.skill}")

    def _outcome(self, value: object) -> Outcome:
        return Outcome(value, self._scrubbed)

    def _failed(self, error: BaseException) -> types.CallToolResult:
        return failure(str(self._scrubbed(error_text(error))))

    def _for_clients(self, error: SkillInputError) -> str:
        """The faults; and the right arguments in place of the block that a model in kernai would write."""
        table = self._served.table
        faults, _, usage = str(error).rpartition("\nUsage: ")
        if usage == table.usage():
            return f"{faults}\nRight arguments: {json.dumps(table.sample(), ensure_ascii=False)}"
        return faults or usage  # of another skill, which this one called: its inputs are nobody's concern here

    def _scrubbed(self, value: Any) -> Any:
        return value if self._context is None else self._context.scrub(value)


def _contained(call: Callable[[], Any]) -> Any:
    """What the call gives; what would end the process is an error of the call."""
    try:
        return call()
    except _SERIOUS as error:
        raise _as_error(error) from error


async def _contained_later(value: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await value
    except _SERIOUS as error:
        raise _as_error(error) from error


def _as_error(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}".rstrip(": "))

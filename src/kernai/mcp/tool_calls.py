"""Performing one call of a served skill.

Guarantees: a sync skill runs in a worker thread, an async one on the event loop, in an asyncio task of its own; an
agent as an asyncio run. Whatever the skill does, what comes back is a result: `sys.exit()` is an error of the call.
Cancelled, the call stops waiting at once, `SkillContext.cancelled` is true from then on, an async skill gets its
`CancelledError` once (not at each await, as the SDK's own cancellation would have it, so that it can tidy up), a sync
one that takes no notice is left to end by itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from mcp import types

from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.agents.agent_skill import AgentSkill
from kernai.errors import RunCancelledError, SkillInputError, as_failure, error_text
from kernai.events import Event, ProgressRow, SkillExecuteRow
from kernai.mcp.tool_progress import Progress, as_message
from kernai.mcp.tool_results import Outcome, failure
from kernai.mcp.tool_source import ServedSkill
from kernai.registry.skill_context import SkillContext
from kernai.runs.running import arun
from kernai.values.context import Context

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
            return f"{faults}\nRight arguments: {table.sample() or '{}'}"
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

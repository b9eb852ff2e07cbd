"""`ResumeRequest`: what a resume, or a replay, is given, and what it makes of the run that is on record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from kernai.agents.agent import Agent
from kernai.blocks.plan import Plan
from kernai.drivers.delivery import ThreadsDelivery
from kernai.durable.approvals import Decision
from kernai.durable.comparison import divergence
from kernai.durable.durable_run import IN_FLIGHT, DurableRun
from kernai.durable.host_state import HostState
from kernai.durable.recorded_run import RecordedRun, TruncatedHistory
from kernai.durable.store import check_run_id, check_store
from kernai.errors import KernaiError, ReplayDivergenceError, SkillInputError
from kernai.events import Event, RunStartRow
from kernai.loop.effects import Work
from kernai.loop.run_state import Run
from kernai.recording_file import read_recording
from kernai.registry.provider import Provider
from kernai.runs.plan_request import checked_agents, checked_plan
from kernai.runs.run_request import RunOptions, RunRequest, UserInput, check_options
from kernai.values.context import Context
from kernai.values.message import Part, as_parts
from kernai.values.result import Result, StopReason

if TYPE_CHECKING:
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.durable.store import Store
    from kernai.recording.recorder import Recorder
    from kernai.values.limits import Limits
    from kernai.values.model import Model
    from kernai.values.result import PendingCall


class ResumeOptions(TypedDict, total=False):
    """What `resume` can be given besides agent and run id; `store` must be.

    - `approvals`: a decision for each call that waits, by call id: True, False, a text that says why not,
      ``{"params": {...}}``, or a `Decision`. For a call that does not wait it is a `ValueError`.
    - `in_flight`: what becomes of calls that had begun and not ended: ``"fail"`` (the default), ``"skip"``,
      ``"retry"``, or a function of the `PendingCall` that gives one of these.
    - `input`: what the user says next; the same conversation goes on.
    - `agents`: those that tasks of a plan were given by `run_plan`, by task id.
    - the others are those of `RunOptions`. Limits are those given now; what was used before counts.
    """

    store: Store
    approvals: Mapping[str, Any]
    in_flight: str | Callable[[PendingCall], str]
    input: UserInput | None
    agents: Mapping[str, Agent] | None
    provider: Provider | None
    model: Model | None
    recorder: Recorder | None
    context: Context | None
    limits: Limits | None
    cancel: Any
    on_event: Callable[[Event], Any] | None
    on_task_complete: Callable[..., Any] | None
    metadata: Mapping[str, Any] | None


class StreamOptions(RunOptions, total=False):
    """What `stream` can be given besides agent and input: with `resume`, also what `ResumeOptions` tells."""

    resume: bool
    approvals: Mapping[str, Any]
    in_flight: str | Callable[[PendingCall], str]
    agents: Mapping[str, Agent] | None


class ReplayOptions(TypedDict, total=False):
    """What `replay` can be given: `store`, or `recording` (a file's path, or entries); `model`, `context`, `agents`."""

    store: Store
    recording: str | os.PathLike[str] | Iterable[Event | Mapping[str, Any]]
    model: Model | None
    context: Context | None
    agents: Mapping[str, Agent] | None


class ResumeRequest(RunRequest):
    """A run that a store has, and how it is to go on."""

    def __init__(self, agent: Agent[Any], run_id: str, options: Mapping[str, Any]) -> None:
        check_options(options, ResumeOptions)
        store = options.get("store")
        if store is None:
            raise TypeError("resume needs the store that has the run: pass store=...")
        check_store(store)
        check_run_id(run_id)
        entries = store.load(run_id)
        if not entries:
            raise KernaiError(f"the store has no run {run_id!r}; its runs() lists those it has")
        self._recorded = RecordedRun(run_id, entries)
        context = _context(options.get("context"))
        self._stored = [context.media_store.put(media).id for media in store.load_media(run_id)]
        start = self._recorded.start
        given = {key: options[key] for key in options if key not in ("approvals", "in_flight", "input", "agents")}
        given |= {"context": context, "run_id": run_id, "history": self._recorded.history(context.media_store)}
        given["metadata"] = options.get("metadata") or start.metadata
        super().__init__(agent, [*self._recorded.input(context.media_store)], given)  # type: ignore[arg-type]  # it checks them
        may_call = not self._recorded.is_over or options.get("input") is not None
        self._plan, self._task_agents = _given_plan(start, options.get("agents"), needed=may_call)
        self._input = None if options.get("input") is None else as_parts(options["input"], "input")
        self._approvals = self._checked_approvals(options.get("approvals"))
        self._in_flight = options.get("in_flight", "fail")
        if not callable(self._in_flight) and self._in_flight not in IN_FLIGHT:
            raise ValueError(f"in_flight must be one of {', '.join(IN_FLIGHT)}, or a function, got {self._in_flight!r}")

    def begin(self, delivery: ThreadsDelivery | AsyncioDelivery) -> tuple[Run, Work]:
        recorded = self._recorded
        spent = recorded.seconds()
        self.cancellation.begin(self._limits.timeout, spent)
        delivery.kept = None  # what is replayed is compared first
        run = self._run(delivery)
        if recorded.is_over and self._input is None:
            self.writer.record_nothing()
            return run, _told_again(run, recorded)
        durable = DurableRun(run.root)
        root = durable.take_up(
            run, self.parts, recorded, self._past(), inputs=self._inputs(), approvals=self._approvals,
            in_flight=self._in_flight,
        )
        if root.is_parked and not durable.news:
            self.writer.record_nothing()
            durable.parked_result(run)
            return run, _ended(run)
        durable.journal = self._journal(seq=recorded.length, stored=self._stored, sent=recorded.sent())
        return run, durable.going_on()

    def _past(self) -> TruncatedHistory:
        """What is kept of the recording: all, where the conversation goes on behind the run's end."""
        end = self._recorded.result
        kept = end is not None and end.stop_reason not in (StopReason.INTERRUPT, StopReason.CLOSED)
        ended = self._input is not None and kept
        return self._recorded.whole() if ended else self._recorded.truncated()

    def _inputs(self) -> list[tuple[Part, ...]]:
        """What was added to the run since it began, and what is added now."""
        added = self._recorded.inputs(self._context.media_store)
        return added if self._input is None else [*added, self._input]

    def _checked_approvals(self, given: object) -> dict[str, Decision]:
        waiting = {} if self._recorded.is_closed else self._recorded.waiting
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise TypeError(f"approvals must be a mapping of call ids to decisions, got {type(given).__name__}")
        approvals = {}
        for call_id, decision in given.items():
            if call_id not in waiting:
                known = f"those that wait: {', '.join(waiting)}" if waiting else "no call of this run waits"
                raise ValueError(f"approvals: call {call_id!r} does not wait for a decision; {known}")
            try:
                approvals[call_id] = Decision.of(decision)
                approvals[call_id].check_for(waiting[call_id].params)
            except ValueError as error:
                raise ValueError(f"approvals[{call_id!r}]: {error}") from error
        if self._input is not None and waiting.keys() - approvals.keys():
            raise ValueError(f"input: the run waits for a decision on {', '.join(waiting)}; pass approvals=... first")
        return approvals


class ReplayRequest(RunRequest):
    """A recording, and the agent that is compared with it."""

    def __init__(self, agent: Agent[Any], run_id: str | None, options: Mapping[str, Any]) -> None:
        check_options(options, ReplayOptions)
        store, recording = options.get("store"), options.get("recording")
        context = _context(options.get("context"))
        if (store is None) == (recording is None):
            raise TypeError("replay needs one of store=... (with a run id) and recording=...")
        if store is not None:
            if run_id is None:
                raise TypeError("replay needs the id of the run in the store")
            check_store(store)
            entries: list[Any] = store.load(run_id)
            if not entries:
                raise KernaiError(f"the store has no run {run_id!r}; its runs() lists those it has")
            for media in store.load_media(run_id):
                context.media_store.put(media)
        else:
            entries = _entries(recording, run_id)
        self._recorded = RecordedRun(run_id or str(entries[0].get("run_id")), entries)
        start = self._recorded.start
        super().__init__(agent, [*self._recorded.input(context.media_store)], {
            "context": context, "history": self._recorded.history(context.media_store), "model": options.get("model"),
            "run_id": self._recorded.run_id, "metadata": start.metadata,
        })
        self._plan, self._task_agents = _given_plan(start, options.get("agents"))

    def result(self) -> Result[Any] | None:
        """The run's end as it comes out of the recording."""
        try:
            return self._compared(self._recorded.whole())
        except ReplayDivergenceError as error:
            past = self._recorded.before_ctrl_c(error)
            if past is None:
                raise
        return self._compared(past)

    def _compared(self, past: TruncatedHistory) -> Result[Any] | None:
        self.cancellation.begin(None)
        delivery = ThreadsDelivery(self.writer)
        delivery.kept = None  # as above
        run = self._run(delivery)
        durable = DurableRun(run.root)
        root = durable.take_up(
            run, self.parts, self._recorded, past, approvals={}, in_flight="skip", compares=True,
            inputs=self._recorded.inputs(self._context.media_store),
        )
        if self._recorded.is_closed:
            return self._recorded.final_result(self._context.media_store)
        if root.is_parked:
            return durable.parked_result(run)
        return run.result if root.ended is not None and not root.has_unrecorded else None


def _given_plan(
    start: RunStartRow, agents: Mapping[str, Agent] | None, *, needed: bool = True
) -> tuple[Plan | None, dict[str, Agent]]:
    """The plan that the caller had given to the run, and its tasks' agents; all it had, where they are `needed`."""
    if start.plan is None:
        if agents:
            raise ValueError("agents are for the tasks of a plan, and this run was not given one")
        return None, {}
    plan = checked_plan(start.plan)
    checked = checked_agents(agents, plan)
    missing = [task for task in start.agents or () if needed and task not in checked]
    if missing:
        tasks = ", ".join(missing)
        raise ValueError(f"the run was given agents for {tasks}: pass agents={{{missing[0]!r}: ...}} again")
    return plan, checked


def _context(given: object) -> Context:
    if given is not None and not isinstance(given, Context):
        raise TypeError(f"context must be a Context, got {type(given).__name__}: write context=Context(...)")
    return Context() if given is None else given


def _entries(recording: Any, run_id: str | None) -> list[Any]:
    """The entries of one run in a recording."""
    if isinstance(recording, (str, os.PathLike)):
        recording = read_recording(recording)
    if not isinstance(recording, Iterable):
        raise TypeError(f"recording must be a file's path or a recording's entries, got {type(recording).__name__}")
    entries = [entry.to_dict() if isinstance(entry, Event) else entry for entry in recording]
    strange = [type(entry).__name__ for entry in entries if not isinstance(entry, Mapping)]
    if strange:
        raise TypeError(f"recording must hold events or their dicts, got {strange[0]}")
    starts = [entry for entry in entries if entry.get("event") == RunStartRow.type and not entry.get("scope")]
    runs = [entry.get("run_id") for entry in starts]
    if run_id is None and len(runs) != 1:
        if not runs:
            raise KernaiError("the recording holds no run_start, so there is no run to replay")
        known = ", ".join(map(str, runs))
        raise KernaiError(f"the recording holds {len(runs)} runs ({known}); say which: replay(agent, RUN)")
    wanted = runs[0] if run_id is None else run_id
    if wanted not in runs:
        raise KernaiError(f"the recording has no run {wanted!r}; it has {', '.join(map(str, runs))}")
    return [entry for entry in entries if entry.get("run_id") == wanted]


def _told_again(run: Run, recorded: RecordedRun) -> Work:
    """A finished run: its result as it is on record, and the state that the host had at the end."""
    HostState(recorded.contexts).restore(run)
    run.root.repair = recorded.repair(run.root.repair)
    run.result = recorded.final_result(run.context.media_store)
    text, answer_type = run.result.text, run.answer_type
    if run.given_plan is not None and run.result.steps == 1:
        answer_type = None  # it ended with the plan: its text are the results
    if answer_type is not None and text is not None:
        try:
            output = answer_type.read(text, run.context.media_store, repair=run.root.repair)
        except SkillInputError as error:
            end = recorded.scopes[""][-1]
            raise divergence(end, text, f"Agent(output=...) does not take this answer: {error}") from error
        run.result = replace(run.result, output=output)
    end = recorded.scopes[""][-1]
    run.outbox.waiting.append(end.row)
    return _ended(run)


def _ended(run: Run) -> Work:
    return run.result
    yield

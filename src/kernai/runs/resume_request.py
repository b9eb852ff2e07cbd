"""`ResumeRequest`: continues a recorded run. `ReplayRequest`: compares an agent with a recorded run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import eq
from time import time
from typing import TYPE_CHECKING, Any, Generic

from kernai._util.api import Value, check_function, check_texts, check_type
from kernai._util.redaction import one_line
from kernai.agents.agent import Agent
from kernai.agents.definition import Comparison
from kernai.drivers.background_loop import BackgroundLoop
from kernai.drivers.delivery import ThreadsDelivery
from kernai.durable.approvals import WOKEN, Decision
from kernai.durable.durable_run import IN_FLIGHT, DurableRun, InFlight
from kernai.durable.history import NOT_DECIDED, History, divergence, shown
from kernai.durable.host_state import restore
from kernai.durable.lease import busy, key_of
from kernai.durable.recorded_run import Recorded, RecordedRun, reading
from kernai.durable.store import RunInfo, Store, check_run_id, check_store, leased
from kernai.errors import Control, KernaiError, ReplayDivergenceError, ReplayLoosenedError, SkillInputError, error_text
from kernai.events import KINDS, Event, RunResumedRow, RunStartRow, SkillErrorRow, SkillResultRow
from kernai.loop.effects import CallSkill, Completion, Effect, Raise, Sleep, Work, advance, alone
from kernai.loop.run_state import Run, recorded_parts
from kernai.middleware.chain import wrap
from kernai.recording.recorder import Shortening, expand
from kernai.recording_file import read_recording
from kernai.registry.skill_context import SkillContext
from kernai.runs.plan_request import checked_plan
from kernai.runs.run_request import Agents, ResumeOptions, RunRequest, UserInput, check_options, checked_context
from kernai.values.context import Context
from kernai.values.message import INPUT_PARTS, as_parts
from kernai.values.result import Output_co, Result, StopReason
from kernai.values.skill_result import SkillResult

if TYPE_CHECKING:
    from kernai.drivers.asyncio_delivery import AsyncioDelivery

Same = Callable[[Any, Any], bool]
#: events that are shown but not recorded; a list of a stream's events has them, too
LIVE = [kind.type for kind in KINDS.values() if kind.role == "live"]


class _RecordedRequest(RunRequest):
    """The arguments of a recorded run, taken from the recording."""

    def __init__(
        self, agent: Agent[Any], recorded: RecordedRun, agents: Agents, context: Context, options: Mapping[str, Any], *,
        may_call: bool,
    ) -> None:
        self.recorded = recorded
        media = context.media_store
        super().__init__(agent, [*recorded.inputs(media)[0]], {
            **options, "context": context, "run_id": recorded.run_id, "history": recorded.history(media),
        })
        plan = recorded.start.plan
        if plan is not None:
            self.give_plan(checked_plan(plan), agents)
            missing = [task for task in recorded.start.agents or () if may_call and task not in self._task_agents]
            if missing:
                tasks = ", ".join(missing)
                raise ValueError(f"the run was given agents for {tasks}: pass agents={{{missing[0]!r}: ...}} again")
        elif agents:
            raise ValueError("agents are for the tasks of a plan, and this run has no plan: leave agents out")

    def _changes(self, run: Run, accept: Iterable[str]) -> list[str]:
        """Describes the agent's changes. Raises `ReplayLoosenedError` for a lost protection that is not in `accept`."""
        recorded = self.recorded.definition
        if recorded is None:
            return ["the recording was made by an older kernai and does not describe the agent", *_stale(accept, {})]
        start = self.recorded.scopes[""][0]
        compared = reading(start, Comparison, recorded, run.definition())
        left = {key: words for key, words in compared.loosened.items() if key not in accept}
        if left:
            listed = "\n".join(f"  {words} (accept with {key!r})" for key, words in left.items())
            raise ReplayLoosenedError(
                f"the agent decides as in the recording, but has lost protections:\n{listed}", left, seq=start.seq,
                event=RunStartRow.type, expected="; ".join(left), got="; ".join(left.values()),
            )
        return [*compared.changes, *_stale(accept, compared.loosened)]


def _stale(accept: Iterable[str], loosened: Mapping[str, str]) -> list[str]:
    return [f"{key} is in accept, but that protection was not lost" for key in accept if key not in loosened]


class ResumeRequest(_RecordedRequest):
    """Continues a stored run."""

    def __init__(
        self, agent: Agent[Any], run_id: str, input: UserInput | None, approvals: Mapping[str, Any] | None,
        in_flight: InFlight, agents: Agents, options: Mapping[str, Any], accept: Iterable[str] | None = None,
    ) -> None:
        check_options(options, ResumeOptions, "input", "approvals", "in_flight", "agents", "wait", "accept")
        self._accept = None if accept is None else check_texts("accept", accept, "keys")
        store, context = check_store(options.get("store")), checked_context(options.get("context"))
        check_run_id(run_id)
        self._run_store, self._info, entries, known = leased(store), None, list[Any](), -1
        # loads the entries, and again as long as another worker has continued the run meanwhile
        while known < len(entries):
            known, self._info = len(entries), None if self._run_store is None else self._run_store.info(run_id)
            if self._info is not None and (lease := self._info.lease) is not None:
                raise busy(lease)
            if known == 0 or (self._info is not None and self._info.length > known):
                entries, self._stored = _load(store, run_id, context)
        recorded = RecordedRun(run_id, entries)
        may_call = not recorded.needs_input or input is not None
        super().__init__(agent, recorded, agents, context, options, may_call=may_call)
        self._added = [] if input is None else [as_parts(input, "input", INPUT_PARTS)]
        self._approvals = self._checked_approvals(approvals)
        self._in_flight = in_flight
        if callable(in_flight):
            check_function("in_flight", in_flight, "the call", None)
        elif in_flight not in IN_FLIGHT:
            raise ValueError(f"in_flight must be one of {', '.join(IN_FLIGHT)}, or a function, got {in_flight!r}")
        decisions = {} if self._info is None else self._info.decisions
        #: people's decisions in the store; those of the caller take precedence
        self._stored_decisions = {call: Decision(one["decision"], one["by"]) for call, one in decisions.items()}
        waits = RunInfo(run_id, pending=tuple(recorded.waiting.values()))  # a store without leases has no clock
        due = dict.fromkeys(waits.due_by(time()) if self._info is None else self._info.due, Decision(WOKEN))
        for call_id, decision in {**due, **self._stored_decisions}.items():
            if call_id in recorded.waiting:
                self._approvals.setdefault(call_id, decision)
        self._check_input()

    def _check_input(self) -> None:
        left = [call_id for call_id in self.recorded.waiting if call_id not in self._approvals]
        if self._added and left:
            raise ValueError(f"input: the run waits for a decision on {', '.join(left)}; pass approvals=... first")

    # `was_interrupted`: whether Ctrl-C ended the last turn at a place where the loop would not have ended it
    def begin(self, delivery: ThreadsDelivery | AsyncioDelivery, *, was_interrupted: bool = False) -> tuple[Run, Work]:
        recorded, end = self.recorded, self.recorded.result
        self.cancellation.begin(self._limits.timeout, recorded.seconds())
        run = self._run(delivery)
        if recorded.needs_input and not self._added:
            delivery.record_nothing()
            return run, _recorded_end(run, recorded)
        self._prepare_approvals(run)
        durable = DurableRun(run)
        # an input follows the end of the run, so that this end stays; otherwise rows written because of a stop go
        was_ended = recorded.is_closed or was_interrupted
        is_whole = self._added and end is not None and end.stop_reason not in NOT_DECIDED and not was_ended
        try:
            root = durable.replay(
                run, recorded, (History.whole if is_whole else History.truncated)(recorded), added=self._added,
                approvals=self._approvals, in_flight=self._in_flight,
                stored_decisions=self._stored_decisions, ends=end if was_ended else None,
            )
        except ReplayDivergenceError as differs:
            if not is_whole or History.before_ctrl_c(recorded, differs) is None:
                raise
            return self.begin(delivery, was_interrupted=True)
        for call_id, decision in self._approvals.items():
            try:
                durable.use(call_id, decision)
            except (KernaiError, ValueError) as error:
                why = f"approvals[{call_id!r}]: {error}"
                if self._run_store is None or decision is not self._stored_decisions.get(call_id):
                    raise ValueError(why) from error
                # drop it instead of raising: the person who made the decision is not here
                self._run_store.drop_decision(self.run_id, call_id, why)
                del self._approvals[call_id]
                self._check_input()
                return self.begin(delivery)
        if self._accept is not None:
            self._changes(run, self._accept)
        was_waiting = end is not None and end.stop_reason == StopReason.INTERRUPT
        if root.is_parked and was_waiting and not durable.new_rows:
            delivery.record_nothing()
            durable.parked_result()
            return run, _ended(run)
        self._begin_journal(
            delivery, run, seq=len(recorded.all), stored=self._stored, info=self._info, sent=recorded.sent())
        return run, durable.continued()

    def _checked_approvals(self, given: Any) -> dict[str, Decision]:
        waiting = self.recorded.waiting
        check_type(given, Mapping | None, "approvals must be a mapping of call ids to decisions, such as {'0.0': True}")
        approvals = {}
        for call_id, decision in (given or {}).items():
            if call_id not in waiting:
                known = f"those that wait: {', '.join(map(repr, waiting))}" if waiting else "no call of this run waits"
                raise ValueError(f"approvals: call {call_id!r} does not wait for a decision; {known}")
            try:
                approvals[call_id] = Decision.of(decision)
                approvals[call_id].check_for(waiting[call_id].params)
            except ValueError as error:
                raise ValueError(f"approvals[{call_id!r}]: {error}") from error
        return approvals


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Replay(Value, Generic[Output_co]):
    """What a replay has found.

    `result` is the run's result; None if the recording stops in the middle of the run. `changes` describes the
    differences from the recorded agent, except lost protections; see docs/replay.md.
    """

    result: Result[Output_co] | None
    changes: tuple[str, ...] = ()


class ReplayRequest(_RecordedRequest):
    """Compares an agent with a recorded run."""

    #: the prefix of the run's idempotency keys; None for the run's id
    _key: str | None = None

    def __init__(
        self, agent: Agent[Any], run_id: str | None, store: Store | None, recording: Any, agents: Agents,
        options: Mapping[str, Any], *, accept: Iterable[str] = (), skills: str = "recorded", same: Same | None = None,
    ) -> None:
        context = checked_context(options["context"])
        if skills not in ("recorded", "run"):
            raise ValueError(f"skills must be 'recorded' or 'run', got {skills!r}")
        if same is not None and skills != "run":
            raise ValueError("same compares what skills return: pass skills='run'")
        if same is not None:
            check_function("same", same, "(recorded, now)", None, None)
        self._accepted, self._runs_skills = check_texts("accept", accept, "keys"), skills == "run"
        self._same = same or eq
        if (store is None) == (recording is None):
            raise TypeError("replay needs a run_id and store=..., or else recording=..., such as 'run.jsonl'")
        if store is None:
            entries = _entries(recording, run_id)
        elif run_id is None:
            raise TypeError("replay needs the id of the run in the store")
        else:
            entries, _ = _load(store, run_id, context)
            if self._runs_skills and (leasing := leased(store)) and (info := leasing.info(run_id)) is not None:
                self._key = key_of(leasing, run_id, info.number)
        recorded = RecordedRun(run_id or str(entries[0].get("run_id")), entries)
        super().__init__(agent, recorded, agents, context, options, may_call=True)

    def replay(self) -> Replay[Any]:
        result, run = self.decided()
        return Replay(result, tuple(self._changes(run, self._accepted)))

    def decided(self) -> tuple[Result[Any] | None, Run]:
        """Replays the run and returns its result, even if the agent has lost protections."""
        try:
            return self._compared(History.whole(self.recorded))
        except ReplayDivergenceError as error:
            before = History.before_ctrl_c(self.recorded, error)
            if before is None:
                raise
        return self._compared(before)

    def _compared(self, history: History) -> tuple[Result[Any] | None, Run]:
        run = self._run(self._delivery())
        durable = DurableRun(run)
        self._facts, self._loop = history.facts, BackgroundLoop("kernai-async")
        durable.check_skill = self._check_skill if self._runs_skills else None
        try:
            root = durable.replay(run, self.recorded, history, compares=True)
        finally:
            self._loop.close()
        if self.recorded.is_closed:
            return self.recorded.final_result(run.context.media_store), run
        if root.is_parked:
            return durable.parked_result(), run
        # after Ctrl-C and the like there is none
        has_ended = root.ended is not None and isinstance(root.ended.error, Exception | None)
        return run.result if has_ended and not root.has_unrecorded else None, run

    # ------------------------------------------------------------------------------------------ with ``skills="run"``

    def _check_skill(self, run: Run, call: CallSkill, recorded: Recorded) -> None:
        """Calls a skill of the recorded run again. Raises `ReplayDivergenceError` if it returns something else.

        It is called through the agent's middleware, with the parameters of the original call, including a person's
        edits. Calls that were refused or broken off are skipped. `same` compares the recorded result with the new one;
        each is a text, or a list of texts and media references.
        """
        row = recorded.row
        assert isinstance(row, (SkillResultRow, SkillErrorRow))
        made = self._facts.as_agreed(run, call)
        if row.is_broken_off or not isinstance(made, CallSkill):
            return
        then = row.result if isinstance(row, SkillResultRow) else f"{row.exception}: {row.error}"
        has_failed, now = self._outcome(run, made)
        if has_failed == isinstance(row, SkillErrorRow) and (eq if has_failed else self._same)(then, now):
            return
        raise ReplayDivergenceError(
            f"skill {row.skill} returned something other than in the recording: event {recorded.seq} ({row.type}, "
            f"call {row.call_id})\n  recorded: {shown(then)}\n  now:      {shown(now)}",
            seq=recorded.seq, event=row.type, expected=shown(then), got=shown(now),
        )

    def _outcome(self, run: Run, call: CallSkill) -> tuple[bool, Any]:
        """Returns whether the call fails, and its result or failure as it would be recorded."""
        root, skill = run.root, run.held_skill(call.skill)
        decided = self._facts.decided.get(call.call_id)
        is_woken = decided is not None and decided[-1].is_woken
        context = SkillContext[Any](
            skill, run.context, run.context.media_store, root.credential_resolver, root.setting_resolver,
            call_id=call.call_id, run_id=root.run_id, key=self._key, approval=None if is_woken else call.approval,
        )
        context.woken = is_woken
        work = wrap(run, call, alone(call))
        value: Any = None
        error: BaseException | None = None
        while not isinstance(effect := advance(work, value, error), Completion):
            try:
                value, error = self._performed(run, effect, context), None
            except (Exception, SystemExit, Control) as raised:  # noqa: BLE001 - the middleware may handle it
                value, error = None, raised
        try:
            if effect.error is not None:
                raise effect.error
            result = context.scrub(SkillResult.of(context.scrub(effect.value)))
            return False, recorded_parts(result.parts or ("",))
        except (Exception, SystemExit, Control) as failure:  # noqa: BLE001 - compared with the recorded failure
            return True, f"{type(failure).__name__}: {context.scrub(error_text(failure))}"

    def _performed(self, run: Run, effect: Effect, context: SkillContext[Any]) -> Any:
        if isinstance(effect, Raise):
            raise effect.error
        if isinstance(effect, CallSkill):
            value = run.held_skill(effect.skill).invoke(effect.arguments, context)
            return self._loop.run(value) if hasattr(value, "__await__") else value
        if not isinstance(effect, Sleep):
            raise KernaiError(f"skills='run' only calls skills, but a middleware yielded {type(effect).__name__}")
        return None


def recorded_result(agent: Agent[Any], run_id: str, store: Store, context: Context | None = None) -> Result[Any] | None:
    """The result of a stored run, even if the agent has lost protections since; what was recorded if Ctrl-C ended it.
    None if the recording stops earlier.
    """
    request = ReplayRequest(agent, run_id, store, None, None, {"model": None, "context": context})
    result, run = request.decided()
    if result is None and request.recorded.result is not None:
        result = request.recorded.final_result(run.context.media_store)
    return result


def _load(store: Store, run_id: str, context: Context) -> tuple[list[Any], list[str]]:
    """Loads a stored run's entries, and its media into the context's media store. Returns the entries and media ids."""
    check_store(store)
    return store.load(run_id), [context.media_store.put(media).id for media in store.load_media(run_id)]


def _entries(recording: Any, run_id: str | None) -> list[Any]:
    if isinstance(recording, (str, os.PathLike)):
        if '"event":' in str(recording):  # an `OSError` would repeat all of it
            raise TypeError("recording must be a file's path or entries, got a recording's text: pass its path")
        recording = read_recording(recording)
    check_type(recording, Iterable, "recording must be a file's path or entries, such as recorder.to_list()")
    entries = [entry.to_dict() if isinstance(entry, Event) else entry for entry in recording]
    for entry in entries:
        check_type(entry, Mapping, "recording must hold events or their dicts")
    runs = [one.get("run_id") for one in entries if one.get("event") == RunStartRow.type and not one.get("scope")]
    known = one_line(", ".join(map(str, runs)), 200)
    if not runs:
        raise KernaiError("the recording has no run_start event: after a resume, replay the run from its store")
    if run_id is None and len(set(map(str, runs))) > 1:  # a damaged id may be any JSON
        raise KernaiError(f"the recording holds {len(runs)} runs ({known}); say which: replay(agent, RUN)")
    wanted = runs[0] if run_id is None else run_id
    if wanted not in runs:
        raise KernaiError(f"the recording has no run {wanted!r}; it has {known}")
    if runs.count(wanted) > 1:
        raise KernaiError(f"{runs.count(wanted)} runs in the recording have the id {wanted!r}: pass the entries of one")
    own = [entry for entry in entries if entry.get("run_id") == wanted and entry.get("event") not in LIVE]
    # in full, since some may follow messages that were lost; then in short, so that each message is compared once
    return [*map(Shortening().entry, _stored(expand(own, "the recording")))]


def _stored(entries: Iterable[Any]) -> list[Any]:
    """The entries without those that were recorded, but lost before they were stored."""
    found: list[Any] = []
    for entry in entries:
        if entry.get("event") == RunResumedRow.type and isinstance(data := entry.get("data"), Mapping):
            since = data.get("from_seq")
            if type(since) is int and since > 0:
                del found[since:]
        found.append(entry)
    return found


def _recorded_end(run: Run, recorded: RecordedRun) -> Work:
    """Ends a finished run with its recorded result, and restores the context's last saved state."""
    restore(run, recorded.facts.contexts)
    run.root.configured_repair = [run.root.configured_repair, *(one for _, one in recorded.repairs())][-1]
    run.result = recorded.final_result(run.context.media_store)
    text, answer_type, end = run.result.text, run.answer_type, recorded.scopes[""][-1]
    if run.given_plan is not None and run.result.steps == 1 and text is not None:
        run.result = replace(run.result, output=reading(end, _task_values, run, text))
    elif answer_type is not None and text is not None:
        try:
            output = answer_type.read(text, run.context.media_store, repair=run.gate.repair(run))
        except SkillInputError as error:
            raise divergence(end, text, f"Agent(output=...) does not take this answer: {error}") from error
        run.result = replace(run.result, output=output)
    run.outbox.waiting.append(end.row)
    return _ended(run)


def _task_values(run: Run, text: str) -> dict[str, Any]:
    """Returns the results of a caller's plan, converted to the output types of its tasks' agents."""
    values: dict[str, Any] = json.loads(text)
    for task_id, own in run.task_agents.items():
        if own.answer_type is not None:
            result = values[task_id]
            said = result if isinstance(result, str) else json.dumps(result)
            with suppress(SkillInputError):  # the task failed
                values[task_id] = own.answer_type.read(said, run.context.media_store, repair=run.gate.repair(run))
    return values


def _ended(run: Run) -> Work:
    return run.result
    yield

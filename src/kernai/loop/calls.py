"""Runs the commands and protocol blocks of one response.

Each call goes through three stages: `_prepare` finds what is called, checks that the call is allowed, and records
`*_execute`; a driver performs the effect; `_Call.end` or `_Call.fail` records the outcome and returns the message for
the model. Calls run one after the other. With `parallel_skills` they are prepared in source order, end in any order,
and reach the model in source order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from kernai.agents.definition import LAST_OUTCOMES
from kernai.blocks.block import Block, error_block, neutralize, result_block, result_parts
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import SkillInputError, Stop, error_text
from kernai.events import (
    BuiltinErrorRow,
    BuiltinResultRow,
    ProtocolErrorRow,
    ProtocolExecuteRow,
    ProtocolResultRow,
    QuotedCallRow,
    SkillErrorRow,
    SkillExecuteRow,
    SkillResultRow,
)
from kernai.jsonio.json_data import dumps
from kernai.loop import corrections
from kernai.loop.builtin_commands import LISTINGS, builtin_command
from kernai.loop.effects import (
    CallProtocol,
    CallSkill,
    Cancelled,
    Completion,
    Effect,
    Join,
    NotPerformed,
    Spawn,
    SubRun,
    how_broken_off,
)
from kernai.loop.model_stream import ParsedResponse
from kernai.loop.quoted_calls import MEDIA_NAMES, Keys, called_name, content_keys, passed_on, skill_keys
from kernai.loop.run_state import Run, recorded_parts
from kernai.registry.skill_definition import AgentSkill, Skill
from kernai.values.message import By, Message, Part
from kernai.values.skill_result import SkillResult

MAX_CALLS_PER_RESPONSE = 100

#: what the model reads about one call
Payload = Part | list[Part] | Message
#: the same, and who writes it
Reply = tuple[Payload, By]


def run_calls(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    """Runs the calls and injects one message for each. Of calls beyond the limit, the model only reads how many."""
    run.skill_contexts.clear()
    if run.agent.parallel_skills and len(blocks) > 1:
        yield from _run_at_once(run, blocks[:MAX_CALLS_PER_RESPONSE])
    else:
        for index, block in enumerate(blocks[:MAX_CALLS_PER_RESPONSE]):
            found = _prepare(run, index, block)
            reply: Reply = ((yield from _perform(found, block)), "tool") if isinstance(found, _Call) else found
            run.inject(reply[0], block, by=reply[1])
    if len(blocks) > MAX_CALLS_PER_RESPONSE:
        run.inject(corrections.too_many_calls(MAX_CALLS_PER_RESPONSE, len(blocks) - MAX_CALLS_PER_RESPONSE))


def plain_call(run: Run, response: ParsedResponse) -> _Call | None:
    """Prepares a response's only call, if nothing but its parameters has to be checked; otherwise returns None.

    Most steps take this fast path. For all other responses, `run_calls` does the same with all checks.
    """
    block = response.only
    if block is None or block._type != "command" or run.unfinished or run.was_corrected:  # noqa: SLF001 - faster
        return None
    if run.most_repeats is not None or run.trust is not None or not run.quoted.knows_none:
        return None
    skill = run.setup.plain(block._name)  # noqa: SLF001 - faster
    prepared = None if skill is None else skill.table.prepare(block._content)  # noqa: SLF001 - faster
    if skill is None or prepared is None:
        return None
    run.held[skill.name] = skill
    params, arguments = prepared
    run.gate.spend_call()
    call_id = f"{run.scope}/{run.step}.0" if run.scope else f"{run.step}.0"
    run.put(SkillExecuteRow(call_id, skill.name, params))
    return _Call(run, call_id, skill.name, CallSkill(run.scope, call_id, skill.name, arguments))


def _perform(call: _Call, block: Block) -> Generator[Effect, Any, Payload]:
    try:
        value = yield call.effect
    except BaseException as error:  # noqa: BLE001 - raised again unless it is the call's own
        return failed(call, error, block)
    return call.end(value)


def failed(call: _Call, error: BaseException, block: Block | None) -> Payload:
    """Records a block's failed call and returns what the model reads. An error that ends the run is raised again."""
    try:
        if isinstance(error, GeneratorExit):
            raise error
        payload = call.fail(error)  # every recorded call gets an outcome
        if isinstance(error, Exception) and not isinstance(error, Stop):
            return payload
        if how_broken_off(error) != "not_run" and ((call.stop and call.stop.is_final) or _keeps_outcomes(call.run)):
            call.run.inject(payload, block, by="tool")
        if call.stop is not None:
            raise call.stop from None  # it is without credentials, which `error` may quote
        raise error
    finally:
        del error  # its traceback refers to this frame; without the cycle, a run is freed without garbage collection


def _keeps_outcomes(run: Run) -> bool:
    """Whether the messages of a run that breaks off have the outcomes of the calls that were made."""
    return run.gate.rules(run).answers >= LAST_OUTCOMES


def _run_at_once(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    calls: dict[int, _Call] = {}
    payloads: dict[int, Reply] = {}
    running: set[int] = set()

    def join_all() -> Generator[Effect, Any, None]:
        while running:
            ended: Completion = yield Join()
            running.discard(ended.key)
            call = calls[ended.key]
            payload = call.end(ended.value) if ended.error is None else call.fail(ended.error)
            payloads[ended.key] = payload, "tool"

    def inject_all() -> None:
        for index, (payload, by) in sorted(payloads.items()):
            run.inject(payload, blocks[index], by=by)

    try:
        for index, block in enumerate(blocks):
            prepared = _prepare(run, index, block)
            if isinstance(prepared, _Call):
                calls[index] = prepared
            else:
                payloads[index] = prepared
        for index, call in calls.items():
            yield Spawn(index, call.effect)
            running.add(index)
        yield from join_all()
    except GeneratorExit:  # other calls wait for a decision, or the driver has abandoned the run
        inject_all()
        raise
    except BaseException as error:
        run.stops_all(error)
        # wait for running calls, and record an outcome for every call that was announced
        try:
            yield from join_all()
        finally:
            for index in sorted(calls.keys() - payloads.keys()):
                calls[index].fail(Cancelled() if index in running else NotPerformed())
            if _keeps_outcomes(run):
                inject_all()
        raise
    stops = [call.stop for call in calls.values() if call.stop is not None]
    stops.sort(key=lambda stop: stop.is_final)  # an answer counts if nothing else ends the run
    if not stops or stops[0].is_final or _keeps_outcomes(run):
        inject_all()
    if stops:
        raise stops[0]


def _prepare(run: Run, index: int, block: Block) -> _Call | Reply:
    """Prepares a block's call. If it cannot be made, or is a built-in command, returns what the model reads."""
    call_id = run.call_id(index)
    if block.type != "command":
        return _prepare_protocol(run, call_id, block)
    name = (block.name or "").strip(ASCII_SPACE)
    skill = run.skills.find(name)
    if skill is not None and run.skills.allows(skill):
        return _prepare_skill(run, call_id, skill, block)
    run.check_repeats("skill", name, block.content)
    command = builtin_command(run, name, block.content)
    if command is not None:
        output = run.gate.builtin(run, command)
        run.write(BuiltinResultRow(command, output))
        run.quoted.record_untrusted(command, passed_on(output))
        # text by others in it is neutralised, the runtime's own examples are not
        return result_block(command, output), "runtime" if command in LISTINGS else "tool"
    if name.startswith("/"):
        error = f"Unknown command '{name}'"
        run.write(BuiltinErrorRow(name, error))
        return error_block(name, neutralize(error)), "runtime"
    if not name:
        return _refused(run, call_id, None, "Command block missing skill name")
    return _refused(run, call_id, name, f"Skill '{name}' " + ("not found" if skill is None else "is not allowed"))


def _refused(
    run: Run, call_id: str, name: str | None, error: str, *, exception: str | None = None, payload: str | None = None
) -> Reply:
    run.write(SkillErrorRow(call_id, name, error, exception))
    return error_block(name, neutralize(error)) if payload is None else payload, "runtime"


def _prepare_skill(run: Run, call_id: str, skill: Skill, block: Block) -> _Call | Reply:
    name = skill.name
    quoted = refuse_quoted(run, block, call_id, skill_keys(run, skill))
    if quoted is not None:
        return quoted, "runtime"
    run.held[name] = skill
    table, repair = skill.table, run.gate.repair(run)
    params = skill.read(block.content, repair=repair)
    run.check_repeats("skill", name, params)
    run.gate.spend_call()
    dropped = {} if table.is_flat and params.keys() <= table.inputs.keys() else table.dropped(params)
    repaired = None if type(params) is dict else getattr(params, "repairs", None)
    run.write(SkillExecuteRow(call_id, name, params, dropped=[*dropped] or None, repaired=repaired or None))
    try:
        arguments = skill.bind(params, run.context.media_store, repair=repair)
    except SkillInputError as error:
        payload = corrections.invalid_call(name, error)
        if skill.is_foreign:
            run.quoted.record_untrusted(name, passed_on(str(error)))
        return _refused(run, call_id, name, str(error), exception="SkillInputError", payload=payload)
    if meant := {place: name for place, name in dropped.items() if name}:
        run.warnings += (corrections.not_inputs(name, meant),)
    if run.trust is not None or skill.is_guarded:
        run.needs_trust().sent[call_id] = params, arguments
    if skill.is_guarded and run.root.durable is None and (doubts := run.doubts(call_id, skill, arguments)):
        return _refused(run, call_id, name, corrections.untrusted(doubts), exception="CallRefusedError")
    call = _Call(run, call_id, name, CallSkill(run.scope, call_id, name, arguments))
    if isinstance(skill, AgentSkill):
        try:
            child = run.child(skill.agent, call_id)
        except Exception as error:  # noqa: BLE001 - `Context.child` is user code: if it fails, this call fails
            return call.fail(error), "runtime"
        call.effect = SubRun(child.scope, child.agent, (str(arguments["input"]),), name)
    return call


def _prepare_protocol(run: Run, call_id: str, block: Block) -> _Call | Reply:
    quoted = refuse_quoted(run, block, call_id)
    if quoted is not None:
        return quoted, "runtime"
    protocol = run.protocols.find(block.type)
    run.check_repeats("protocol", block.type, [block.name, block.content])
    if protocol is None or not run.protocols.allows(protocol):
        error = f"Protocol '{block.type}' is not allowed"
        run.write(ProtocolErrorRow(call_id, block.type, error, None, 0))
        return error_block(block.type, error), "runtime"
    name = protocol.name
    run.gate.spend_call()
    run.write(ProtocolExecuteRow(call_id, name, block.content))
    return _Call(run, call_id, name, CallProtocol(run.scope, call_id, name, block))


def refuse_quoted(
    run: Run, block: Block, call_id: str | None = None, keys_of: Callable[[str], Keys] = content_keys
) -> str | None:
    """Refuses a call, or a plan or a final, which have no call id, that is quoted and not confirmed.

    Returns what the model reads; None if the block counts.
    """
    if run.quoted.knows_none:
        return None
    rules, name, source = run.gate.rules(run), called_name(block), None
    mode = rules.quoted_calls
    if mode == "refuse" and block.type == "final":
        mode = "confirm"  # a result that contains the right answer must not make that answer impossible
    if mode != "run":
        source = run.quoted.source_of(
            block.type, name, block.content, keys_of, may_confirm=mode == "confirm", spelled=rules.quotes > 1
        )
    if source is None:
        return None
    if mode == "refuse":
        run.check_repeats(block.type, name or "", block.content)
    run.write(QuotedCallRow(call_id or run.call_id(0), block.type, name, source))
    return corrections.quoted_call(block, source, may_confirm=mode == "confirm")


#: error texts for calls that were prevented or interrupted when the run stopped, by the field set in their row
_STOPPED = {
    "not_run": "not run: the run was stopped before this call",
    "interrupted": "interrupted: the run was stopped during this call; whether it took effect is unknown",
}


class _Call:
    """One call, from its `*_execute` event to its outcome.

    The effect of an agent's call is a sub-run, whose usage is added to the caller's however it ends.
    """

    __slots__ = ("_started", "call_id", "effect", "name", "run", "stop")

    def __init__(self, run: Run, call_id: str, name: str, effect: CallSkill | CallProtocol | SubRun) -> None:
        self.run = run
        self.call_id = call_id
        self.name = name
        self.effect = effect
        #: the `Stop` with which the call ended the run, if it did
        self.stop: Stop | None = None
        self._started = run.clock.monotonic()

    def end(self, value: Any) -> Payload:
        """Records the result and returns what the model reads."""
        run, name = self.run, self.name
        if type(value) is str and run.trust is None and not (run.skill_contexts and self.call_id in run.skill_contexts):
            duration_ms = int((run.clock.monotonic() - self._started) * 1000)
            kind = ProtocolResultRow if type(self.effect) is CallProtocol else SkillResultRow
            run.put(kind(self.call_id, name, value, duration_ms))
            run.quoted.record_untrusted(name, value)
            return result_block(name, neutralize(value) if "<" in value else value)
        if isinstance(self.effect, SubRun):
            run.end_of(self.call_id)
            if value.error is not None:
                return self.fail(value.error)
            value = self.effect.agent.answer_text(value)
        payload: Payload
        recorded: object
        try:
            if isinstance(value, Message) and isinstance(self.effect, CallProtocol):
                if value.role == "system":
                    raise ValueError("a handler may not return a system message")
                payload, recorded, metadata, media, outside = value, value.to_dict(), None, value.media, value.text
            else:
                result = run.scrub(self.call_id, SkillResult.of(run.scrub(self.call_id, value)))
                recorded, metadata, media = recorded_parts(result.parts or ("",)), result.metadata or None, result.media
                payload = result_block(name, neutralize(result.text))
                if not isinstance(recorded, str):
                    payload = result_parts(name, result.parts)
                outside = result.text
            for one in media:
                run.context.media_store.put(one)
        except Exception as error:  # noqa: BLE001 - the model reads whatever a call raises
            return self.fail(error)
        kind = ProtocolResultRow if isinstance(self.effect, CallProtocol) else SkillResultRow
        row = kind(self.call_id, name, recorded, run.ms_since(self._started), metadata=metadata)
        run.write(row)
        if run.trust is not None and isinstance(row, SkillResultRow):
            run.trust.add_result(run.held[name], row)
        run.quoted.record_untrusted(name, outside)
        if not isinstance(payload, Message) or run.gate.rules(run).quotes >= MEDIA_NAMES:  # they are untrusted too
            run.quoted.record_untrusted(name, dumps([one.to_dict() for one in media]))
        return payload

    def fail(self, error: BaseException) -> str:
        """Records the error and returns what the model reads."""
        run, name = self.run, self.name
        if isinstance(self.effect, SubRun):
            run.end_of(self.call_id)
        marks: dict[str, Any] = {}
        if isinstance(error, Stop):
            has_context = self.call_id in run.skill_contexts
            self.stop = Stop(error.reason, run.scrub(self.call_id, error.message)) if has_context else error
            marks["stop_reason"] = error.reason
        broken_off = how_broken_off(error)
        if broken_off is not None:
            run.stops(error, ends=False)
            marks[broken_off] = True
        text = run.scrub(self.call_id, error_text(error) if broken_off is None else _STOPPED[broken_off])
        if isinstance(error, SystemExit) and text != error_text(error):  # unlike other exceptions, it ends the run
            error.args, error.code = (text,), text
            vars(error).pop("__notes__", None)  # the text has them
        exception = type(error).__name__ if broken_off is None else None
        if isinstance(self.effect, CallProtocol):
            run.write(ProtocolErrorRow(self.call_id, name, text, exception, run.ms_since(self._started), **marks))
        else:
            run.write(SkillErrorRow(self.call_id, name, text, exception, **marks))
        run.quoted.record_untrusted(name, text)
        is_answer = self.stop is not None and self.stop.is_final
        return (result_block if is_answer else error_block)(name, neutralize(text))

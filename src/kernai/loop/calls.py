"""Running the commands and protocol blocks of one response.

Each call goes through the same three stages: `_prepare` finds what is called, checks that it may be, and tells
`*_execute`; a driver performs its effect; `_Call.end` tells the outcome and gives the message to the model. Sequential
calls go through one by one, parallel ones are prepared in source order, end as they come, and reach the model in source
order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernai.agents.agent_skill import AgentSkill
from kernai.blocks.disguises import may_hold_calls
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.runtime_blocks import error_block, neutralize, result_block, result_parts
from kernai.errors import KernaiError, LimitReachedError, SkillInputError, Stop, error_text
from kernai.events import (
    BuiltinErrorRow,
    BuiltinResultRow,
    CallEndedRow,
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
from kernai.loop.builtin_commands import BUILTINS
from kernai.loop.effects import (
    CallBuiltin,
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
from kernai.loop.quoted_calls import content_keys, passed_on, skill_keys
from kernai.values.media import Media
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason
from kernai.values.skill_result import SkillResult

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.loop.decision import ParsedResponse
    from kernai.loop.quoted_calls import Keys
    from kernai.loop.run_state import Run
    from kernai.registry.skill_definition import Skill

MAX_CALLS = 100

#: what the model reads of one call
Payload = Part | list[Part] | Message


def run_calls(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    """Runs the calls and tells the model one message each; of more than `MAX_CALLS` the rest is reported, not run."""
    run.skill_contexts.clear()
    if len(blocks) > MAX_CALLS:
        return _run_some(run, blocks)
    if run.agent.parallel_skills and len(blocks) > 1:
        return _run_at_once(run, blocks)
    return _run_in_order(run, blocks)


def _run_some(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    yield from run_calls(run, blocks[:MAX_CALLS])
    run.inject(corrections.too_many_calls(MAX_CALLS, len(blocks) - MAX_CALLS))


def plain_call(run: Run, response: ParsedResponse) -> _Call | None:
    """The one call that a response holds, ready to be performed, where nothing but its parameters need be looked at.

    This is the way of most steps; for any other response None, and `run_calls` does the same with all that may come.
    """
    blocks = response.blocks
    if len(blocks) != 1 or response.incomplete is not None or response.certain is not None or run.unfinished:
        return None
    block = blocks[0]
    if block._type != "command" or run.most_repeats is not None or not run.quoted.is_idle():  # noqa: SLF001 - a call less
        return None
    if not run.setup.holds(run.agent.options_version):  # a skill was taken away while the model was asked, say
        return None
    skill = run.setup.plain(block._name)  # noqa: SLF001 - likewise
    prepared = None if skill is None else skill.table.prepare(block._content)  # noqa: SLF001 - likewise
    if skill is None or prepared is None:
        return None
    run.held[skill.name] = skill
    if run.skill_contexts:
        run.skill_contexts.clear()
    params, arguments = prepared
    run.gate.spend_call()
    call_id = run.call_id(0)
    run.write(SkillExecuteRow(call_id, skill.name, params), own=True)
    return _Call(run, call_id, skill.name, CallSkill(run.scope, call_id, skill.name, arguments))


def _run_in_order(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    for index, block in enumerate(blocks):
        prepared = _prepare(run, index, block)
        run.inject((yield from _perform(prepared)) if isinstance(prepared, _Call) else prepared)


def _perform(call: _Call) -> Generator[Effect, Any, Payload]:
    try:
        value = yield call.effect
    except BaseException as error:  # noqa: BLE001 - raised again where it is not the call's own
        return failed(call, error)
    return call.end(value)


def failed(call: _Call, error: BaseException) -> Payload:
    """What the model reads of a call that returned nothing; raises what ends the run, once it is recorded."""
    try:
        if isinstance(error, GeneratorExit):
            raise error
        payload = call.fail(error)  # whatever was announced gets its outcome recorded
        if isinstance(error, Stop):
            raise call.stop or error from None  # without the credentials that it may have quoted
        if not isinstance(error, Exception):
            raise error
        return payload
    finally:
        del error  # whose traceback holds this frame: a run is freed without waiting for a collection


def _run_at_once(run: Run, blocks: Sequence[Block]) -> Generator[Effect, Any, None]:
    calls: dict[int, _Call] = {}
    payloads: dict[int, Payload] = {}
    running: set[int] = set()
    try:
        for index, block in enumerate(blocks):
            prepared = _prepare(run, index, block)
            if not isinstance(prepared, _Call):
                payloads[index] = prepared
            elif isinstance(prepared, _BuiltinCall):
                payloads[index] = prepared.end((yield prepared.effect))
            else:
                calls[index] = prepared
        for index, call in calls.items():
            assert isinstance(call.effect, (CallSkill, CallProtocol, SubRun))
            yield Spawn(index, call.effect)
            running.add(index)
        while running:
            _conclude((yield Join()), calls, payloads, running)
        _stop_where_one_said_so(calls)
    except GeneratorExit:
        raise
    except BaseException as error:
        run.stop_if_interrupted(error)
        run.stops(error)
        # what has begun is waited for, and whatever was announced gets its outcome told
        try:
            while running:
                _conclude((yield Join()), calls, payloads, running)
        finally:
            for index in sorted(calls.keys() - payloads.keys()):
                calls[index].fail(Cancelled() if index in running else NotPerformed())
        raise
    for index in range(len(blocks)):
        run.inject(payloads[index])


def _conclude(ended: Completion, calls: dict[int, _Call], payloads: dict[int, Payload], running: set[int]) -> None:
    call = calls[ended.key]
    running.discard(ended.key)
    payloads[ended.key] = call.end(ended.value) if ended.error is None else call.fail(ended.error)


def _stop_where_one_said_so(calls: dict[int, _Call]) -> None:
    for call in calls.values():
        if call.stop is not None:
            raise call.stop


def _prepare(run: Run, index: int, block: Block) -> _Call | Payload:
    """A call that is ready to be performed, or at once what the model is told in its place."""
    call_id = run.call_id(index)
    if block.type != "command":
        return _prepare_protocol(run, call_id, block)
    name = (block.name or "").strip(ASCII_SPACE)
    skill, allowed = run.skills.look_up(name)
    if skill is not None and allowed:
        return _prepare_skill(run, call_id, skill, block)
    _check_repeats(run, "skill", name, block.content)
    if not name:
        return _refused(run, call_id, None, "Command block missing skill name")
    if name.startswith("/"):
        return _prepare_builtin(run, call_id, name)
    return _refused(run, call_id, name, f"Skill '{name}' " + ("not found" if skill is None else "is not allowed"))


def _refused(
    run: Run, call_id: str, name: str | None, error: str, *, exception: str | None = None, payload: str | None = None
) -> str:
    run.write(SkillErrorRow(call_id, name, error, exception))
    return error_block(name, error if payload is None else payload)


def _prepare_builtin(run: Run, call_id: str, command: str) -> _Call | Payload:
    if command in BUILTINS:
        return _BuiltinCall(run, call_id, command, CallBuiltin(run.scope, call_id, command))
    error = f"Unknown command '{command}'"
    run.write(BuiltinErrorRow(command, error))
    return error_block(command, error)


def _prepare_skill(run: Run, call_id: str, skill: Skill, block: Block) -> _Call | Payload:
    name = skill.name
    if not run.quoted.knows_none():
        quoted = _refuse_quoted(run, call_id, block, (block.name or "").strip(ASCII_SPACE), skill_keys(run, skill))
        if quoted is not None:
            return quoted
    run.held[name] = skill
    table, repair = skill.table, run.root.repair
    params = skill.read(block.content, repair=repair)
    if run.most_repeats is not None:
        _check_repeats(run, "skill", name, params)
    run.gate.spend_call()
    dropped = [] if params.keys() <= table.inputs.keys() else table.dropped(params)
    repaired = None if type(params) is dict else getattr(params, "repairs", None)
    run.write(SkillExecuteRow(call_id, name, params, dropped=dropped or None, repaired=repaired or None))
    try:
        arguments = skill.bind(params, run.context.media_store, repair=repair)
    except SkillInputError as error:
        usage = corrections.with_usage(error)
        return _refused(run, call_id, name, str(error), exception="SkillInputError", payload=usage)
    if dropped and (meant := table.meant(params, dropped)):
        run.warnings += (corrections.not_inputs(name, meant),)
    call = _Call(run, call_id, name, CallSkill(run.scope, call_id, name, arguments))
    if not isinstance(skill, AgentSkill):
        return call
    try:
        child = run.for_agent(skill.agent, call_id)
    except Exception as error:  # noqa: BLE001 - Context.child is the host's: its failure is this call's
        return call.fail(error)
    return _AgentCall(run, call_id, name, SubRun(child.scope, child.agent, (str(arguments["input"]),), name))


def _prepare_protocol(run: Run, call_id: str, block: Block) -> _Call | Payload:
    quoted = _refuse_quoted(run, call_id, block, block.name and block.name.strip(ASCII_SPACE), content_keys)
    if quoted is not None:
        return quoted
    protocol = run.protocols.find(block.type)
    _check_repeats(run, "protocol", block.type, [block.name, block.content])
    if protocol is None or not run.protocols.allows(protocol):
        error = f"Protocol '{block.type}' is not allowed"
        run.write(ProtocolErrorRow(call_id, block.type, error, None, 0))
        return error_block(block.type, error)
    name = protocol.name
    run.gate.spend_call()
    run.write(ProtocolExecuteRow(call_id, name, block.content))
    return _ProtocolCall(run, call_id, name, CallProtocol(run.scope, call_id, name, block))


def _refuse_quoted(
    run: Run, call_id: str, block: Block, name: str | None, keys_of: Callable[[str], Keys]
) -> str | None:
    """What the model is told of a call that stands in outside text and that it has not confirmed."""
    mode, source = run.gate.rules(run).quoted_calls, None
    if mode == "refuse" and block.type == "final":
        mode = "confirm"  # who quotes the right answer must not keep it from being given
    if mode != "run":
        source = run.quoted.source_of(block.type, name, block.content, keys_of, may_confirm=mode == "confirm")
    if source is None:
        return None
    if mode == "refuse":
        _check_repeats(run, block.type, name or "", block.content)
    run.write(QuotedCallRow(call_id, block.type, name, source))
    return corrections.quoted_call(block, source, may_confirm=mode == "confirm")


def refuse_quoted_block(run: Run, block: Block) -> str | None:
    """The same for a plan or a final, whose names mean nothing."""
    return None if run.quoted.knows_none() else _refuse_quoted(run, run.call_id(0), block, None, content_keys)


def _check_repeats(run: Run, kind: str, name: str, params: object) -> None:
    """Stops the run where the same call comes again and again, before anything of it is told or done."""
    is_decided = run.gate.is_decided()  # which raises a recorded stop, whatever the limits are now
    most = run.most_repeats
    if most is not None and run.came_again(kind, name, params) >= most and not is_decided:
        raise LimitReachedError(f"the same call of {kind} '{name}' came {most} times in a row", StopReason.LOOP)


#: calls that came to no outcome of their own, by the field that marks their event
_BROKEN_OFF = {
    "not_run": "not run: the run was stopped before this call",
    "interrupted": "interrupted: the run was stopped during this call; whether it took effect is unknown",
}


class _Call:
    """One call between `*_execute` and its outcome."""

    result_row: type[SkillResultRow | ProtocolResultRow] = SkillResultRow

    __slots__ = ("_started", "call_id", "effect", "name", "run", "stop")

    def __init__(self, run: Run, call_id: str, name: str, effect: Effect) -> None:
        self.run = run
        self.call_id = call_id
        self.name = name
        self.effect = effect
        #: what the call ended the run with, if it did
        self.stop: Stop | None = None
        self._started = run.clock.monotonic()

    def end(self, value: Any) -> Payload:
        """Tells the result and gives what the model is told."""
        run, name = self.run, self.name
        context = run.skill_contexts.get(self.call_id)
        if type(value) is str and context is None:
            duration = int((run.clock.monotonic() - self._started) * 1000)
            run.write(self.result_row(self.call_id, name, value, duration), own=True)
            if may_hold_calls(value):
                run.quoted.record_untrusted(name, value)
            return result_block(name, neutralize(value) if "<" in value else value)
        try:
            result = SkillResult.of(value if context is None else context.scrub(value))
            if context is not None:
                result = context.scrub(result)
            parts, metadata = result.parts, result.metadata
            for part in parts:
                if isinstance(part, Media):
                    self.run.context.media_store.put(part)
        except Exception as error:  # noqa: BLE001 - whatever a call raises is for the model to read
            return self.fail(error)
        if all(isinstance(part, str) for part in parts) and len(parts) <= 1:
            self._write_result(result.text, metadata)
            self.run.quoted.record_untrusted(self.name, result.text)
            return result_block(self.name, neutralize(result.text))
        listed = [part if isinstance(part, str) else part.to_dict() for part in parts]
        self._write_result(listed, metadata)
        self.run.quoted.record_untrusted(self.name, "".join(part for part in parts if isinstance(part, str)))
        references = [part for part in listed if not isinstance(part, str)]
        self.run.quoted.record_untrusted(self.name, dumps(references))  # a file's name is untrusted too
        return result_parts(self.name, parts)

    def _write_result(self, result: object, metadata: Mapping[str, Any] | None = None) -> None:
        self.run.write(self.result_row(self.call_id, self.name, result, self._duration_ms(), metadata=metadata or None))

    def _duration_ms(self) -> int:
        return int((self.run.clock.monotonic() - self._started) * 1000)

    def fail(self, error: BaseException) -> str:
        """Tells the error and gives what the model is told."""
        context = self.run.skill_contexts.get(self.call_id)
        if isinstance(error, Stop):
            self.stop = error if context is None else Stop(error.reason, context.scrub(error.message))
        broken_off = how_broken_off(error)
        if broken_off is not None:
            self.run.stops(error, ends=False)
        text = error_text(error) if broken_off is None else _BROKEN_OFF[broken_off]
        if context is not None:
            text = context.scrub(text)
        exception = type(error).__name__ if broken_off is None else None
        marks: dict[str, Any] = {} if broken_off is None else {broken_off: True}
        if isinstance(error, Stop):
            marks["stop_reason"] = error.reason
        self.run.write(self._error_row(text, exception, marks))
        self.run.quoted.record_untrusted(self.name, text)
        return error_block(self.name, neutralize(text))

    def _error_row(self, text: str, exception: str | None, marks: dict[str, Any]) -> CallEndedRow:
        return SkillErrorRow(self.call_id, self.name, text, exception, **marks)


class _BuiltinCall(_Call):
    """One of the runtime's own commands. What it passes on of others is neutralised, its own examples are not."""

    def end(self, value: Any) -> Payload:
        self.run.write(BuiltinResultRow(self.name, value))
        self.run.quoted.record_untrusted(self.name, passed_on(value))
        return result_block(self.name, value)


class _ProtocolCall(_Call):
    result_row = ProtocolResultRow

    def end(self, value: Any) -> Payload:
        if not isinstance(value, Message):
            return super().end(value)
        if value.role == "system":
            return self.fail(ValueError("a handler may not return a system message"))
        try:
            for media in value.media:
                self.run.context.media_store.put(media)
        except KernaiError as error:  # other media of the same id
            return self.fail(error)
        self._write_result(value.to_dict())
        self.run.quoted.record_untrusted(self.name, value.text)
        return value

    def _error_row(self, text: str, exception: str | None, marks: dict[str, Any]) -> CallEndedRow:
        return ProtocolErrorRow(self.call_id, self.name, text, exception, self._duration_ms(), **marks)


class _AgentCall(_Call):
    """An agent called as a skill: its effect is a sub-run, whose usage is the caller's too, however it ended."""

    def __init__(self, run: Run, call_id: str, name: str, effect: SubRun) -> None:
        super().__init__(run, call_id, name, effect)
        self._agent = effect.agent

    def end(self, value: Any) -> Payload:
        self.run.end_of(self.call_id)
        result: Result[Any] = value
        if result.error is not None:
            return super().fail(result.error)
        return super().end(self._agent.answer_text(result))

    def fail(self, error: BaseException) -> str:
        self.run.end_of(self.call_id)
        return super().fail(error)

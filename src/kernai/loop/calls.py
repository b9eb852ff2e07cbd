"""Running the commands and protocol blocks of one response.

Each call goes through the same three stages: `_prepare` finds what is called, checks that it may be, and tells
`*_execute`; a driver performs it; `_Call.end` tells the outcome and gives the message to inject. Sequential calls go
through one by one, parallel ones are prepared in source order, end as they come, and are injected in source order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from kernai.agents.agent_skill import AgentSkill
from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.runtime_blocks import error_block, neutralize, result_block, result_parts
from kernai.errors import LimitReachedError, SkillInputError, error_text
from kernai.loop import corrections
from kernai.loop.builtin_commands import run_builtin
from kernai.loop.effects import CallProtocol, CallSkill, Effect, Ended, NextEnded, Start, Work, alone
from kernai.loop.outbox import Outbox
from kernai.loop.run_state import Scope
from kernai.registry.skill_definition import Skill
from kernai.values.media import Media
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason
from kernai.values.skill_result import SkillResult

MAX_CALLS = 100

#: runs a sub-run: the loop itself, handed down because the loop stands above this module
Loop = Callable[[Scope, "tuple[Part, ...]"], Work]
#: what is put on the tape for one call
Injected = Part | list[Part] | Message


def run_calls(scope: Scope, blocks: Sequence[Block], loop: Loop) -> Generator[Effect, Any, None]:
    """Runs the calls and injects one message each; of more than `MAX_CALLS` the rest is reported, not run."""
    if len(blocks) > MAX_CALLS:
        return _run_some(scope, blocks, loop)
    run = _run_at_once if scope.agent.parallel_skills and len(blocks) > 1 else _run_in_order
    return run(scope, blocks, loop)


def _run_some(scope: Scope, blocks: Sequence[Block], loop: Loop) -> Generator[Effect, Any, None]:
    yield from run_calls(scope, blocks[:MAX_CALLS], loop)
    scope.inject(corrections.too_many_calls(MAX_CALLS, len(blocks) - MAX_CALLS))


def _run_in_order(scope: Scope, blocks: Sequence[Block], loop: Loop) -> Generator[Effect, Any, None]:
    for index, block in enumerate(blocks):
        call = _prepare(scope, index, block, loop)
        if not isinstance(call, _Call):
            _inject(scope, call)
            continue
        try:
            value = (yield call.effect) if call.effect is not None else (yield from call.work(scope.outbox))
        except Exception as error:  # noqa: BLE001 - whatever a call raises is for the model to read
            _inject(scope, call.fail(error))
        else:
            _inject(scope, call.end(value))


def _run_at_once(scope: Scope, blocks: Sequence[Block], loop: Loop) -> Generator[Effect, Any, None]:
    calls: dict[int, _Call] = {}
    injected: dict[int, Injected] = {}
    running: set[int] = set()
    try:
        for index, block in enumerate(blocks):
            prepared = _prepare(scope, index, block, loop)
            if isinstance(prepared, _Call):
                calls[index] = prepared
            else:
                injected[index] = prepared
        for index, call in calls.items():
            outbox = scope.outbox.beside()
            yield Start(index, call.work(outbox), outbox)
            running.add(index)
        while running:
            _conclude((yield NextEnded()), calls, injected, running)
    except GeneratorExit:
        raise
    except BaseException:
        # what has begun is waited for, and whatever was announced gets its outcome told
        while running:
            _conclude((yield NextEnded()), calls, injected, running)
        for index in calls.keys() - injected.keys():
            calls[index].fail(RuntimeError("not run: the run was stopped before this call"))
        raise
    for index in range(len(blocks)):
        _inject(scope, injected[index])


def _conclude(ended: Ended, calls: dict[int, _Call], injected: dict[int, Injected], running: set[int]) -> None:
    call = calls[ended.key]
    running.discard(ended.key)
    injected[ended.key] = call.end(ended.value) if ended.error is None else call.fail(ended.error)


def _inject(scope: Scope, content: Injected) -> None:
    if isinstance(content, Message):
        scope.tape.append(content)
        scope.inject_warnings()
    else:
        scope.inject(content)


def _prepare(scope: Scope, index: int, block: Block, loop: Loop) -> _Call | Injected:
    """A call that is ready to be performed, or at once what is to be injected in its place."""
    call_id = scope.call_id(index)
    if block.type != "command":
        return _prepare_protocol(scope, call_id, block)
    name = (block.name or "").strip(ASCII_SPACE)
    if not name:
        error = "Command block missing skill name"
        scope.emit("skill_error", {"call_id": call_id, "skill": None, "error": error})
        return error_block(None, error)
    if name.startswith("/"):
        return run_builtin(scope, name)
    skill, allowed = scope.skills.look_up(name)
    if skill is None or not allowed:
        error = f"Skill '{name}' " + ("not found" if skill is None else "is not allowed")
        scope.emit("skill_error", {"call_id": call_id, "skill": name, "error": error})
        return error_block(name, error)
    return _prepare_skill(scope, call_id, skill, block, loop)


def _prepare_skill(scope: Scope, call_id: str, skill: Skill, block: Block, loop: Loop) -> _Call | Injected:
    params = skill.read(block.content)
    _spend(scope, "skill", skill.name, params)
    scope.emit("skill_execute", {"call_id": call_id, "skill": skill.name, "params": params})
    try:
        arguments = skill.bind(params, scope.context.media_store)
    except SkillInputError as error:
        scope.emit("skill_error", {"call_id": call_id, "skill": skill.name, "error": str(error)})
        return error_block(skill.name, _with_usage(error))
    if isinstance(skill, AgentSkill):
        return _AgentCall(scope, call_id, skill, arguments, loop)
    context = scope.skill_context(skill, call_id) if skill.wants_context else None
    return _SkillCall(scope, call_id, skill.name, CallSkill(call_id, skill, arguments, context), context)


def _prepare_protocol(scope: Scope, call_id: str, block: Block) -> _Call | Injected:
    protocol = scope.protocols.find(block.type)
    if protocol is None or not scope.protocols.allows(protocol):
        error = f"Protocol '{block.type}' is not allowed"
        scope.emit("protocol_error", {"call_id": call_id, "protocol": block.type, "error": error, "duration_ms": 0})
        return error_block(block.type, error)
    _spend(scope, "protocol", protocol.name, [block.name, block.content])
    scope.emit("protocol_execute", {"call_id": call_id, "protocol": protocol.name, "request": block.content})
    context = scope.skill_context(protocol, call_id)
    return _ProtocolCall(scope, call_id, protocol.name, CallProtocol(call_id, protocol, block, context), context)


def _spend(scope: Scope, kind: str, name: str, params: object) -> None:
    """Counts the call against the limits; stops the run before anything of the call is told or done."""
    scope.check_cancelled()
    budget = scope.root.budget
    budget.spend_call(scope.clock.monotonic)
    most = budget.limits.repeated_calls
    if most is not None and scope.came_again(kind, name, params) >= most:
        raise LimitReachedError(f"the same call of {kind} '{name}' came {most} times in a row", StopReason.LOOP)


def _with_usage(error: SkillInputError) -> str:
    """The faults quote what the model sent, so they are neutralised; the usage line is the runtime's own."""
    faults, line, usage = str(error).rpartition("\nUsage: ")
    return f"{neutralize(faults)}{line}{usage}"


class _Call:
    """One call between `*_execute` and its outcome."""

    kind: str
    effect: Effect | None

    def __init__(self, scope: Scope, call_id: str, name: str, effect: Effect | None, context: Any = None) -> None:
        self.scope = scope
        self.call_id = call_id
        self.name = name
        self.effect = effect
        self.context = context
        self._started = scope.clock.monotonic()

    def work(self, outbox: Outbox) -> Work:
        """The call as a piece of work of its own."""
        del outbox  # a single effect tells nothing by itself
        assert self.effect is not None
        return alone(self.effect)

    def end(self, value: Any) -> Injected:
        """Tells the result and gives what is injected for it."""
        if type(value) is str and self.context is None:
            return self._end_with_text(value, {})
        try:
            result = self._scrubbed(SkillResult.of(self._scrubbed(value)))
            parts, metadata = result.parts, result.metadata
            for part in parts:
                if isinstance(part, Media):
                    self.scope.context.media_store.put(part)
        except Exception as error:  # noqa: BLE001 - whatever a call raises is for the model to read
            return self.fail(error)
        if all(isinstance(part, str) for part in parts) and len(parts) <= 1:
            return self._end_with_text(result.text, metadata)
        self._tell_result([part if isinstance(part, str) else part.to_dict() for part in parts], metadata)
        return result_parts(self.name, parts)

    def _end_with_text(self, text: str, metadata: Mapping[str, Any]) -> str:
        self._tell_result(text, metadata)
        return result_block(self.name, neutralize(text))

    def _tell_result(self, result: str | list[Any], metadata: Mapping[str, Any]) -> None:
        data: dict[str, Any] = {
            "call_id": self.call_id, self.kind: self.name, "result": result, "duration_ms": self._duration(),
        }
        if metadata:
            data["metadata"] = metadata
        self.scope.emit(f"{self.kind}_result", data)

    def _scrubbed(self, value: Any) -> Any:
        return value if self.context is None else self.context.scrub(value)

    def fail(self, error: BaseException) -> str:
        """Tells the error and gives what is injected for it."""
        text = error_text(error)
        if self.context is not None:
            text = self.context.scrub(text)
        data: dict[str, Any] = {"call_id": self.call_id, self.kind: self.name, "error": text}
        if self.kind == "protocol":
            data["duration_ms"] = self._duration()
        self.scope.emit(f"{self.kind}_error", data)
        return error_block(self.name, neutralize(text))

    def _duration(self) -> int:
        return int((self.scope.clock.monotonic() - self._started) * 1000)


class _SkillCall(_Call):
    kind = "skill"


class _ProtocolCall(_Call):
    kind = "protocol"

    def end(self, value: Any) -> Injected:
        if not isinstance(value, Message):
            return super().end(value)
        if value.role == "system":
            return self.fail(ValueError("a handler may not return a system message"))
        for media in value.media:
            self.scope.context.media_store.put(media)
        self.scope.emit("protocol_result", {
            "call_id": self.call_id,
            "protocol": self.name,
            "result": value.to_dict(),
            "duration_ms": self._duration(),
        })
        return value


class _AgentCall(_Call):
    """An agent called as a skill: a sub-run in the place of an effect."""

    kind = "skill"

    def __init__(
        self, scope: Scope, call_id: str, skill: AgentSkill, arguments: dict[str, Any], loop: Loop
    ) -> None:
        super().__init__(scope, call_id, skill.name, None)
        self._skill = skill
        self._child: Scope | None = None
        self._input = (str(arguments["input"]),)
        self._loop = loop

    def work(self, outbox: Outbox) -> Work:
        self._child = self.scope.for_agent(self._skill.agent, self.call_id, outbox)
        return (yield from self._loop(self._child, self._input))

    def end(self, value: Any) -> Injected:
        result: Result = value
        if result.error is not None:
            return self.fail(result.error)
        self._count()
        return super().end(result.text)

    def fail(self, error: BaseException) -> str:
        self._count()
        return super().fail(error)

    def _count(self) -> None:
        """What the sub-run used is the parent's too, however it ended; here, for it may have run in a worker."""
        if self._child is not None and self._child.result is not None:
            self.scope.meter.add(self._child.result.usage)
            self._child = None

"""Decisions on calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from string import punctuation, whitespace
from typing import Any

from kernai._util.api import Value, check_type
from kernai.durable.store import utc
from kernai.errors import Control, KernaiError, Pause, Stop, error_text
from kernai.events import ApprovalGivenRow
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import copied, jsonable
from kernai.loop import corrections
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, NotApproved, NotBegun, SubRun
from kernai.loop.run_state import Run
from kernai.values.pending_calls import PendingCall, UntrustedValue
from kernai.values.result import StopReason

#: marks a recorded decision whose parameters replace all of the call's, as in format 1
REPLACES = "replaces"
#: recorded as the decision if nobody decided before the call's `until`
WOKEN = {"woken": True}
#: texts that people may write when they mean True
_CONSENTS = frozenset((
    "accept", "accepted", "allow", "approve", "approved", "go", "go ahead", "ok", "okay", "sure", "true", "y", "yes",
))
#: a call that may wait for a decision; a `SubRun` for the call of an agent
Call = CallModel | CallSkill | CallProtocol | SubRun


class CallRefusedError(KernaiError):
    """A call was refused; the model reads why."""


class DoubtfulPause(Pause):
    """A pause because of values that neither the user nor the host supplied."""

    def __init__(self, reason: str, untrusted: tuple[UntrustedValue, ...]) -> None:
        super().__init__(reason)
        self.untrusted = untrusted


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Decision(Value):
    """A decision on a waiting call.

    `value` is True (make the call), False or a text (refuse it; the model reads the text as the reason),
    ``{"params": {...}}`` (make it with these inputs changed and the others as the model sent them), or
    ``{"answer": data}`` (make it; the code that paused reads the answer to its question). `by` says who decided. With
    `trusted`, a function given as `Agent(approve=)` also accepts values that neither the user nor the host supplied
    (`PendingCall.untrusted`); a person's decision covers them anyway.
    """

    value: bool | str | Mapping[str, Any]
    by: str | None = None
    trusted: bool = False
    #: the metadata of the pause that this decision answers, and the skill whose call waited; set by the runtime
    asked: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    skill: str | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_type(self.trusted, bool, "trusted must be True or False")
        check_type(self.by, str | None, "by must be text")
        value = self.value
        if isinstance(value, (bool, str)):
            return
        if isinstance(value, Mapping) and (value == WOKEN or [*value] == ["answer"] or (
            {"params"} <= set(value) <= {"params", REPLACES} and isinstance(value["params"], Mapping)
        )):
            # a copy, since the caller may change theirs; an answer as the recording has it
            object.__setattr__(self, "value", jsonable(value) if "answer" in value else copied(value))
            return
        known = 'True, False, a text that says why not, {"params": {...}} or {"answer": ...}'
        raise ValueError(f"a decision is {known}, got {value!r}")

    @classmethod
    def of(cls, given: object) -> Decision:
        """Wraps a value in a decision; returns a decision as it is."""
        return given if isinstance(given, Decision) else cls(given)  # type: ignore[arg-type]  # the constructor checks it

    @property
    def refusal(self) -> str | None:
        """The reason for refusing the call; None if it is not refused."""
        if isinstance(self.value, str):
            return str.__str__(self.value) if self.value.strip() else "refused"
        return "refused" if self.value is False else None

    @property
    def is_woken(self) -> bool:
        """Whether nobody decided before the call's `until`."""
        return self.value == WOKEN

    @property
    def params(self) -> Mapping[str, Any] | None:
        """The parameters to change."""
        return self.value.get("params") if isinstance(self.value, Mapping) else None

    def about(self, call: PendingCall) -> Decision:
        """Returns the decision as one on this call."""
        return replace(self, asked=call.metadata, skill=call.skill if isinstance(call.params, Mapping) else None)

    @property
    def answer(self) -> Any:
        """The answer to the pause's question; an empty dict if the call was approved without one."""
        return self.value.get("answer", {}) if isinstance(self.value, Mapping) else {}

    def check_for(self, params: object) -> None:
        """Raises `ValueError` for a text that sounds like consent, or for parameters if the call has none."""
        if isinstance(self.value, str) and self.value.lower().strip(punctuation + whitespace) in _CONSENTS:
            raise ValueError(f"a text refuses the call, but {self.value!r} sounds like consent: pass True to approve")
        if self.params is not None and not isinstance(params, Mapping):
            raise ValueError("only a skill's call has parameters that can be changed: decide True, False or a text")

    def row(self, call_id: str) -> ApprovalGivenRow:
        return ApprovalGivenRow(call_id, self.value, self.by)


def called(call: Call) -> tuple[str | None, Any]:
    """The name of the skill or protocol, and its parameters; None and None for a model call.

    Of a protocol's block with a name, that is the whole block, since its handler reads the name too.
    """
    if isinstance(call, CallSkill):
        return call.skill, jsonable(dict(call.arguments))
    if isinstance(call, CallProtocol):
        return call.protocol, call.block.content if call.block.name is None else str(call.block)
    return (call.skill, {"input": call.input[0]}) if isinstance(call, SubRun) else (None, None)


def ask(run: Run, call: CallSkill | CallProtocol | SubRun) -> Decision | None:
    """Returns the host's decision on a call; None if none is needed. Raises `Pause` if somebody else must decide.

    Raises `CallRefusedError` for a call with untrusted values if nobody can decide on it.
    """
    approve, doubts = run.agent.approve, _doubts(run, call)
    needs_approval = isinstance(call, CallSkill) and run.held_skill(call.skill).approval
    if approve is None and not doubts and not needs_approval:
        return None
    both = f"each call of {called(call)[0]} needs approval; " if doubts and needs_approval else ""
    reason = both + corrections.listed(doubts)
    if approve is not None:
        decision = _answer(run, call, approve, reason, doubts)
        if not doubts or decision.refusal is not None or decision.trusted:
            return decision
    if doubts and run.root.journal is None and (approve is not None or not needs_approval):
        raise CallRefusedError(corrections.untrusted(doubts))
    raise DoubtfulPause(reason, doubts)


@calls_out
def _answer(
    run: Run, call: Call, approve: Callable[[PendingCall], Any], reason: str, doubts: tuple[UntrustedValue, ...]
) -> Decision:
    """The decision of `approve`. Raises the `Pause` that it returns, and `NotBegun` after Ctrl-C and the like."""
    root = run.root
    try:
        asked = PendingCall(call.call_id, *called(call), reason, untrusted=doubts)
        answer = approve(asked)
        if isinstance(answer, Pause):
            raise answer
        decision = answer if isinstance(answer, Decision) else Decision(answer, by="approve")
        decision.check_for(asked.params)
    except (Control, SystemExit):
        raise
    except Exception as error:  # noqa: BLE001 - without approval the call is not made; the model reads why
        root.warn("approve.failed", call_id=call.call_id, error=error_text(error))
        return Decision(f"approval could not be asked for: {type(error).__name__}: {error_text(error)}", by="approve")
    except BaseException as interrupt:  # noqa: BLE001 - the call has not begun
        assert root.durable is not None
        root.cancellation.set()
        root.durable.interrupt = root.durable.interrupt or interrupt
        raise NotBegun from None
    return decision


def _doubts(run: Run, call: CallSkill | CallProtocol | SubRun) -> tuple[UntrustedValue, ...]:
    """The values in a call that neither the user nor the host supplied."""
    if isinstance(call, CallProtocol) or call.skill is None:
        return ()
    skill = run.held_skill(call.skill)
    if not skill.is_guarded:
        return ()
    return run.doubts(call.call_id, skill, {"input": call.input[0]} if isinstance(call, SubRun) else call.arguments)


def pending_call(run: Run, call: Call, pause: Pause) -> PendingCall:
    """Returns the call as shown to the person who decides, without the credentials that it has read."""
    name, params = called(call)
    asked = pause if isinstance(pause, NotApproved) else pause.__context__  # a middleware may raise another one for it
    if isinstance(asked, NotApproved) and asked.call is not None:
        name, params = run.scrub(call.call_id, jsonable(asked.call))
    reason, metadata = run.scrub(call.call_id, (pause.reason, jsonable(dict(pause.metadata))))
    untrusted = pause.untrusted if isinstance(pause, DoubtfulPause) else ()
    until = None if pause.until is None else utc(pause.until)
    return PendingCall(call.call_id, name, params, reason, metadata, until, untrusted)


def edited(run: Run, name: str, arguments: Mapping[str, Any], decision: Decision) -> Mapping[str, Any]:
    """Returns the arguments of a skill's call after a decision that changes some.

    Raises `SkillInputError` for a value that the skill does not accept, `ValueError` for a name that is not one of its
    inputs.
    """
    assert decision.params is not None
    skill, store, changes = run.held_skill(name), run.context.media_store, decision.params
    if isinstance(decision.value, Mapping) and REPLACES in decision.value:
        return skill.bind(changes, store, repair=run.gate.repair(run))
    return skill.rebind(arguments, changes, store, repair=run.gate.repair(run))


def decided(run: Run, call: Call, decision: Decision) -> Call:
    """Returns the call to make. Raises the error of a refused call, or what `edited` raises."""
    refusal = decision.refusal
    if refusal is not None:
        raise Stop(StopReason.GUARDRAIL, refusal) if isinstance(call, CallModel) else CallRefusedError(refusal)
    return as_edited(run, call.replace(approval=decision), [decision])


def as_edited(run: Run, call: Call, decisions: Iterable[Decision]) -> Call:
    """Returns the call with the inputs that decisions on it change. Raises what `edited` raises."""
    for one in decisions:
        if one.params is None or one.skill not in (None, called(call)[0]):
            continue
        if isinstance(call, SubRun):
            call = call.replace(input=(str(edited(run, call.skill or "", {"input": call.input[0]}, one)["input"]),))
        elif isinstance(call, CallSkill):
            call = Effect.replace(call, arguments=edited(run, call.skill, call.arguments, one))
    return call

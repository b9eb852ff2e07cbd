"""`SkillChecks`: the skills of a recorded run, called again during its replay and compared with what they gave then.

Through the agent's middleware and with the parameters that were called, also where a person had edited them. Not
called are those whose call was refused or broken off.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from typing import Any

from kernai.drivers.background_loop import BackgroundLoop
from kernai.durable.approvals import Decision, decided
from kernai.durable.history import History
from kernai.durable.recorded_run import Recorded
from kernai.durable.replay_cursor import shown
from kernai.errors import Control, KernaiError, ReplayDivergenceError, error_text
from kernai.events import SkillErrorRow, SkillResultRow
from kernai.loop.calls import recorded_result
from kernai.loop.effects import CallSkill, Completion, Effect, Sleep, Work, advance, alone
from kernai.loop.run_state import Run
from kernai.registry.skill_context import SkillContext
from kernai.values.skill_result import SkillResult

Same = Callable[[Any, Any], bool]


class SkillChecks:
    """`same` judges what is recorded and what a skill gives now: a text, or a list of texts and media references."""

    def __init__(self, wrap: Callable[[Run, Effect, Work], Work], history: History, same: Same | None) -> None:
        self._wrap = wrap
        self._history = history
        self._same = same
        self._loop = BackgroundLoop("kernai-async")

    def close(self) -> None:
        self._loop.close()

    def check(self, run: Run, call: CallSkill, recorded: Recorded) -> None:
        """`ReplayDivergenceError` where a skill does not give what it gave."""
        row = recorded.row
        assert isinstance(row, (SkillResultRow, SkillErrorRow))
        decision = self._history.decided.get(call.call_id)
        made = call if decision is None else decided(run, call, Decision.recorded(decision))
        if row.is_broken_off or not isinstance(made, CallSkill):
            return
        then = row.result if isinstance(row, SkillResultRow) else f"{row.exception}: {row.error}"
        failed, now = self._outcome(run, made)
        same = eq if self._same is None or failed else self._same
        if failed == isinstance(row, SkillErrorRow) and same(then, now):
            return
        raise ReplayDivergenceError(
            f"skill {row.skill} returned something else than in the recording: event {recorded.seq} ({row.type}, "
            f"call {row.call_id})\n  recorded: {shown(then)}\n  now:      {shown(now)}",
            seq=recorded.seq, event=row.type, expected=shown(then), got=shown(now),
        )

    def _outcome(self, run: Run, call: CallSkill) -> tuple[bool, Any]:
        """Whether the call fails, and its result or failure as it would be recorded."""
        work, answer = self._wrap(run, call, alone(call)), Completion(None)
        context = self._context(run, call)
        while True:
            effect = advance(work, answer.value, answer.error)
            if isinstance(effect, Completion):
                break
            try:
                answer = Completion(None, self._performed(run, effect, context))
            except (Exception, Control) as error:  # noqa: BLE001 - the middleware's, and then this call's
                answer = Completion(None, error=error)
        if effect.error is None:
            try:
                return False, recorded_result(context.scrub(SkillResult.of(context.scrub(effect.value))))
            except Exception as error:  # noqa: BLE001 - as `Call.end` does
                effect = Completion(None, error=error)
        assert effect.error is not None
        if not isinstance(effect.error, (Exception, Control)):
            raise effect.error
        return True, f"{type(effect.error).__name__}: {context.scrub(error_text(effect.error))}"

    def _performed(self, run: Run, effect: Effect, context: SkillContext[Any]) -> Any:
        if isinstance(effect, Sleep):
            return None
        if not isinstance(effect, CallSkill):
            raise KernaiError(f"skills='run' makes calls of skills, and a middleware asked for {type(effect).__name__}")
        value = run.held_skill(effect.skill).invoke(effect.arguments, context)
        return self._loop.run(value) if hasattr(value, "__await__") else value

    def _context(self, run: Run, call: CallSkill) -> SkillContext[Any]:
        root, skill = run.root, run.held_skill(call.skill)
        return SkillContext(
            skill, run.context, run.context.media_store, root.credential_resolver, root.setting_resolver,
            call_id=call.call_id, run_id=root.run_id,
        )

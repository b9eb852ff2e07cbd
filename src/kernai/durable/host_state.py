"""The host's state: what `Context.save` returns, recorded with the outcome that changed it, and restored on resume.

A sub-run's context may share attributes with its parent's, or have its own. An attribute is shared if both contexts
hold the same object: `Context.child` passed it on, and neither has replaced it. If all attributes are shared, the state
is recorded under the scope that owns it. Otherwise it is recorded under the sub-run's own scope, with the names of the
shared attributes (`shared`), which a resume takes from the parent again.

A half-finished change by one task must not be saved with another task's outcome. So calls of skills that share state
take turns, each until its outcome and the state are in the journal. No call is waited for longer than `LONGEST_WAIT`,
and a skill that once took longer is not waited for again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from kernai.errors import Control
from kernai.events import ApprovalRequestedRow, CallEndedRow, ContextSavedRow, Row
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import Conversion
from kernai.loop.effects import CallProtocol, CallSkill, Effect, Sleep
from kernai.loop.run_state import Run
from kernai.values.context import Context

#: the longest wait for another call, and the pause between checks, in seconds
LONGEST_WAIT, _PAUSE = 0.1, 0.001


class Turn(NamedTuple):
    """The call that may change a state now, or the run that is saving it. `what` is the called skill."""

    who: str
    what: str
    since: float


def restore(run: Run, recorded: Mapping[str, ContextSavedRow]) -> None:
    """Restores a run's state. `recorded` has the last states before a resume, by scope."""
    row, parent = recorded.get(run.scope), _parent(run)
    if row is None:
        return
    for name, value in _attributes(run.context).items() if parent is not None else ():
        if isinstance(value, (list, dict, set)):  # the parent's, which the context may change
            setattr(run.context, name, copy(value))
    run.context.restore(row.value)
    if parent is not None:
        for name in row.shared or ():
            setattr(run.context, name, getattr(parent.context, name))


class HostState:
    """The host's state for a root run and its sub-runs."""

    def __init__(self) -> None:
        #: by scope, the last recorded state, at first the initial one
        self._known: dict[str, ContextSavedRow] = {}
        self._saving = threading.Lock()
        self._number = 0
        #: the states to be recorded with a row, by the row's `id()`
        self._with: dict[int, Sequence[ContextSavedRow]] = {}
        #: whose turn it is to change a state, by the scope that owns it; the skills that took too long
        self._turns: dict[str, Turn] = {}
        self._slow: set[str] = set()

    def begin(self, run: Run) -> None:
        """Notes the state with which a run begins or continues. Raises what `save` raises."""
        owner, _ = next(_owners(run))
        if owner is run:
            self._known[run.scope] = ContextSavedRow(_saved(run))

    def changes(self, run: Run) -> list[ContextSavedRow]:
        """The states changed by an outcome of this run. If its `save` raises, the run ends as if its store had."""
        found: list[ContextSavedRow] = []
        for at, (owner, shared) in enumerate(_owners(run)):
            try:
                with self._saving:
                    row = ContextSavedRow(_saved(owner))
                    self._number = row.number = self._number + 1
            except Exception as error:  # noqa: BLE001 - a state that cannot be saved ends only its own run
                if at == 0 and run.root.journal is not None:
                    run.root.journal.fail(error)
                break
            known = self._known.get(owner.scope)
            if known is None or row.value != known.value:
                row.shared = shared
                owner.sealed(row)
                found.append(row)
        return found

    # ------------------------------------------------------------------------------------------------------- turns

    def in_turn(self, run: Run, call: CallSkill | CallProtocol | None = None) -> Generator[Effect, Any, bool]:
        """Waits until no other call is changing this run's state, then takes the turn for `call`, or for saving.

        Returns False if it need not be saved yet: a call of the run has the turn, and the run records its outcome next.
        """
        *_, (highest, _) = _owners(run)
        owner, now = highest.scope, run.clock.monotonic
        who = run.scope if call is None else call.call_id
        what = "" if call is None else call.skill if isinstance(call, CallSkill) else call.protocol
        while what not in self._slow:
            turn = self._turns.setdefault(owner, Turn(who, what, now()))
            if turn.who == who:
                break
            if now() - turn.since >= LONGEST_WAIT:
                self._slow.update([turn.what] if turn.what else [])
                self.end_turn(turn.who)
            elif call is None and turn.what and turn.who.rpartition("/")[0] == run.scope:
                return False
            else:
                try:
                    yield Sleep(_PAUSE, run.scope, who)
                except Control:  # the run must stop
                    break
        return True

    def end_turn(self, who: str) -> None:
        """Ends a turn, after the call's outcome is recorded or if there was nothing to save."""
        for owner, turn in list(self._turns.items()):
            if turn.who == who:
                self._turns.pop(owner, None)

    # --------------------------------------------------------------------------------------------- with outcomes

    def accompany(self, row: Row, states: Sequence[ContextSavedRow]) -> None:
        """Makes the journal record these states together with this outcome row."""
        self._with[id(row)] = states

    def recorded_with(self, row: Row) -> Sequence[ContextSavedRow]:
        """Returns the states to record with this row. Called by one thread at a time."""
        states = self._with.pop(id(row), ())
        for saved in states:
            known = self._known.get(saved.place[3], saved)
            if known.number > saved.number:
                saved.value = known.value  # a later state of another call was recorded first
            else:
                self._known[saved.place[3]] = saved
        if isinstance(row, (CallEndedRow, ApprovalRequestedRow)):
            self.end_turn(row.call_id)
        if states:  # also for the call of an agent, whose state its caller's run saves
            self.end_turn(row.place[3])
        return states


#: immutable types: two contexts may hold the same object by chance
_PLAIN = (str, int, float, complex, bytes, bool, type(None), frozenset)
_NOT_THE_HOSTS = frozenset(Context.__annotations__)


def _owners(run: Run) -> Iterator[tuple[Run, list[str]]]:
    """The run and those above it that own its state or a part of it. The latter is recorded with the names of the other
    attributes: those with mutable values that the context shares with its parent's.
    """
    while (parent := _parent(run)) is not None:
        mine, theirs = _attributes(run.context), _attributes(parent.context)
        same = {name for name, value in mine.items() if name in theirs and theirs[name] is value}
        if len(same) < len(mine):  # otherwise it owns nothing
            shared = sorted(name for name in same if not isinstance(mine[name], _PLAIN))
            yield run, shared
            if not shared:
                return
        run = parent
    yield run, []


def _attributes(context: Context) -> dict[str, Any]:
    state: Any = object.__getstate__(context)
    named = {**state[0], **state[1]} if isinstance(state, tuple) else state
    return {name: value for name, value in named.items() if name not in _NOT_THE_HOSTS and name not in context.own}


def _parent(run: Run) -> Run | None:
    return run.root.runs.get(run.scope.rpartition("/")[0]) if run.scope else None


@calls_out
def _saved(run: Run) -> Any:
    """The saved state. Raises `TypeError` for data that JSON does not have; a tuple will be restored as a list."""
    return _JsonCheck().of(run.context.save())


class _JsonCheck(Conversion):
    """Checks JSON data without converting anything: an object recorded as text would be restored as text."""

    def held(self, value: object) -> Any:
        return value if isinstance(value, (dict, list, tuple)) else None

    def key(self, key: object) -> str:
        return str.__str__(key) if isinstance(key, str) else self.refuse(f"the key {key!r:.80} is not text")

    def leaf(self, value: Any) -> Any:
        self.refuse(f"{value!r:.80} cannot be stored as JSON")

    def refuse(self, why: str) -> Any:
        raise TypeError(f"Context.save must give JSON data: {why}")

    def failed(self, value: object, error: Exception) -> Any:  # noqa: ARG002 - the error says it
        raise error

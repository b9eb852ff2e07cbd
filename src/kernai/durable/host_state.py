"""The host's state: what `Context.save` returns, recorded with the outcome that changed it, and restored on resume.

A sub-run's context may share attributes with its parent's, or have some of its own. Identity decides: `Context.child`
gave it the same objects, and it still has them. A state that is shared as a whole is recorded under the scope that it
belongs to. Any other one is recorded under the sub-run's own scope, with the names of what it shares (`shared`), which
a resume takes from the parent again.

A change that one task is just making must not be saved with another task's outcome. So calls of skills that share a
state take turns, each until its outcome and the state are in the journal. No call is waited for longer than `PATIENCE`,
and a skill that takes longer than that is not waited for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernai.errors import KernaiError, error_text
from kernai.events import ApprovalRequestedRow, CallEndedRow, ContextSavedRow
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import Conversion
from kernai.loop.effects import CallSkill, Sleep, attempted
from kernai.values.context import Context

if TYPE_CHECKING:
    from kernai.events import Row
    from kernai.loop.effects import CallProtocol, Effect
    from kernai.loop.run_state import Run

#: how long a call is waited for, and how often that is checked, in seconds
PATIENCE, _PAUSE = 0.1, 0.001
_UNKNOWN = object()


class Saved(NamedTuple):
    """A state that is to be recorded; of two for one scope the later one has the greater `number`."""

    row: ContextSavedRow
    scope: str
    number: int


class Turn(NamedTuple):
    """Who changes a state just now: a call, or a run that saves it. `what` is the skill that is called."""

    who: str
    what: str
    since: float


class HostState:
    """That of a root run and its sub-runs, by scope. `recorded` is what was recorded last, before a resume."""

    def __init__(self, recorded: Mapping[str, ContextSavedRow]) -> None:
        self._recorded = recorded
        #: by scope, what is on record, or what there was at first; and the number of that
        self._known: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}
        self._saving = threading.Lock()
        self._number = 0
        #: by the id of a row, the states that go with it
        self._with: dict[int, Sequence[Saved]] = {}
        #: by the scope that a state belongs to, whose turn it is to change it; and which skills took too long
        self._turns: dict[str, Turn] = {}
        self._slow: set[str] = set()

    def restore(self, run: Run) -> None:
        """Restores the last recorded state into a context that was created again."""
        row = self._recorded.get(run.scope)
        if row is None:
            return
        run.context.restore(row.state)
        parent = _parent(run)
        if parent is not None:
            for name in row.shared or ():
                setattr(run.context, name, getattr(parent.context, name))

    def begin(self, run: Run) -> None:
        """A run begins, or continues. Raises what `save` raises."""
        parent = _parent(run)
        if parent is None or not _compared(run.context, parent.context).is_whole:
            self._known[run.scope] = _saved(run)

    def changes(self, run: Run, failed: Callable[[Exception], object]) -> list[Saved]:
        """What an outcome of this run has changed. `failed` is given what its `save` raised."""
        found: list[Saved] = []
        is_foreign = False
        above: Run | None = run
        while above is not None:
            run, above = above, _parent(above)
            sharing = None if above is None else _compared(run.context, above.context)
            if sharing is not None and sharing.is_whole:
                continue
            try:
                with self._saving:
                    data = _saved(run)
                    self._number += 1
                    number = self._number
            except Exception as error:  # noqa: BLE001 - a state that cannot be kept ends its own run alone
                if not is_foreign:
                    failed(error)
                break
            is_foreign = True
            if data != self._known.get(run.scope, _UNKNOWN):
                row = ContextSavedRow(data)
                row.shared = None if sharing is None else sharing.names
                run.sealed(row)
                found.append(Saved(row, run.scope, number))
            if sharing is not None and not sharing.names:
                break
        return found

    # ------------------------------------------------------------------------------------------------------- turns

    def owner(self, run: Run) -> str:
        """The uppermost scope with which this run shares anything."""
        while (parent := _parent(run)) is not None:
            sharing = _compared(run.context, parent.context)
            if not (sharing.is_whole or sharing.names):
                break
            run = parent
        return run.scope

    def in_turn(self, run: Run, call: CallSkill | CallProtocol | None = None) -> Generator[Effect, Any, None]:
        """Waits until nobody else changes the state that this run has: a call is to, or the run is to save it."""
        owner, now = self.owner(run), run.clock.monotonic
        who = run.scope if call is None else call.call_id
        what = "" if call is None else call.skill if isinstance(call, CallSkill) else call.protocol
        while what not in self._slow:
            turn = self._turns.setdefault(owner, Turn(who, what, now()))
            if turn.who == who:
                return
            if now() - turn.since >= PATIENCE:
                self._slow.update([turn.what] if turn.what else [])
                self.end_turn(turn.who)
            elif (yield from attempted(Sleep(_PAUSE, run.scope, who))).error is not None:
                return  # the run is to stop

    def end_turn(self, who: str) -> None:
        """A call has ended and is recorded, or there was nothing to save."""
        for owner, turn in list(self._turns.items()):
            if turn.who == who:
                self._turns.pop(owner, None)

    # --------------------------------------------------------------------------------------------- with outcomes

    def accompany(self, row: Row, states: Sequence[Saved]) -> None:
        """Has these states recorded together with this row, which is an outcome."""
        self._with[id(row)] = states

    def recorded_with(self, row: Row) -> list[ContextSavedRow]:
        """The states that are recorded with this row. Called by one thread at a time."""
        found = []
        states = self._with.pop(id(row), ())
        for saved in states:
            scope, number = saved.scope, saved.number
            if number < self._numbers.get(scope, 0):
                saved.row.state = self._known[scope]  # another call's was faster, and was saved after this one
            else:
                self._known[scope], self._numbers[scope] = saved.row.state, number
            found.append(saved.row)
        if isinstance(row, (CallEndedRow, ApprovalRequestedRow)):
            self.end_turn(row.call_id)
        elif states:
            self.end_turn(row.place[3])
        return found


def is_kept(run: Run) -> bool:
    """Whether the host's context has a state to save."""
    return type(run.context).save is not Context.save


class _Sharing(NamedTuple):
    """What a child context shares with its parent's."""

    is_whole: bool
    #: of what can be changed
    names: list[str]


#: immutable: that two contexts have the same one means nothing
_PLAIN = (str, int, float, complex, bytes, bool, type(None), frozenset)
_NOT_THE_HOSTS = frozenset(Context.__annotations__)


def _compared(child: Context, parent: Context) -> _Sharing:
    mine, theirs = _attributes(child), _attributes(parent)
    same = {name for name, value in mine.items() if name in theirs and theirs[name] is value}
    return _Sharing(len(same) == len(mine), sorted(name for name in same if not isinstance(mine[name], _PLAIN)))


def _attributes(context: Context) -> dict[str, Any]:
    state: Any = object.__getstate__(context)
    named = {**state[0], **state[1]} if isinstance(state, tuple) else state
    return {name: value for name, value in named.items() if name not in _NOT_THE_HOSTS and name not in context.own}


def _parent(run: Run) -> Run | None:
    return run.root.runs.get(run.scope.rpartition("/")[0]) if run.scope else None


@calls_out
def _save(context: Context) -> Any:
    return context.save()


def _saved(run: Run) -> Any:
    """None if the host saves nothing. `TypeError` for data that would come back as something else."""
    kind = type(run.context)
    if kind.save is Context.save:
        return None
    try:
        data = _save(run.context)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # unchanged, it would be taken for Ctrl-C
        raise KernaiError(f"{kind.__name__}.save raised {type(error).__name__}: {error_text(error)}") from error
    return _Kept(kind.__name__).of(data)


class _Kept(Conversion):
    """Converts nothing: a text in place of an object would come back as a text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def held(self, value: object) -> Any:
        return value if isinstance(value, (dict, list, tuple)) else None

    def key(self, key: object) -> str:
        return str.__str__(key) if isinstance(key, str) else self.refuse(f"the key {key!r:.80} is no text")

    def leaf(self, value: Any) -> Any:
        self.refuse(f"{value!r:.80} is none")

    def refuse(self, why: str) -> Any:
        raise TypeError(f"{self._name}.save must give JSON data: {why}")

    def failed(self, value: object, error: Exception) -> Any:  # noqa: ARG002 - the error says it
        raise error

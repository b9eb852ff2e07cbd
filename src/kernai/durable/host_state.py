"""The host's state: what `Context.save` gives, told where an outcome has changed it, and taken up again.

The context of a sub-run may refer to what its parent's refers to, or have a state of its own. A state that is its own
is told under its scope. One that has equalled the parent's from the start on, and has changed together with it, is the
parent's: it is told under the parent's scope, right behind the outcome of the sub-run that changed it, for the parent
hears of that only when the sub-run has ended. Taken up again, it is shared again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernai.errors import KernaiError, error_text
from kernai.events import ContextSavedRow
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import Conversion
from kernai.values.context import Context

if TYPE_CHECKING:
    from kernai.events import Row
    from kernai.loop.run_state import Run

#: how often two states are compared that work beside this one may change just then
_LOOKS = 3


class HostState:
    """That of a root run and its sub-runs, by scope. `recorded` is what was told last before it was taken up again."""

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self._recorded = recorded
        #: under which scope each one's state is told, and what was told there last, or what there was at first
        self._under: dict[str, str] = {}
        self._told: dict[str, Any] = {}
        #: where sub-runs have told, perhaps in another order than they changed it: told once more by the run itself
        self._unsure: set[str] = set()

    def restore(self, run: Run) -> None:
        """Gives a context that was made anew what was told last of it."""
        if run.scope in self._recorded:
            run.context.restore(self._recorded[run.scope])

    def begin(self, run: Run) -> None:
        """A run begins, or goes on. Raises what `save` raises."""
        scope, data = run.scope, _saved(run)
        under = scope
        if scope and scope not in self._recorded:
            parent = _above(scope)
            under = self._under.get(parent, parent)
            if data != self._told.get(under):
                under = scope
        self._under[scope] = under
        if under == scope:
            self._told[scope] = data

    def change(self, run: Run) -> Row | None:
        """What is to be told after an outcome of this run. Raises what `save` raises."""
        if type(run.context).save is Context.save:
            return None
        scope, data = run.scope, _saved(run)
        under = self._under.get(scope, scope)
        if data == self._told.get(under) and scope not in self._unsure:
            return None
        if under != scope:
            under = self._under[scope] = self._owner(run, under)
        self._told[under] = data
        if under == scope:
            self._unsure.discard(scope)
        else:
            self._unsure.add(under)
        return run.root.runs[under].sealed(ContextSavedRow(data))

    def _owner(self, run: Run, under: str) -> str:
        """The uppermost scope, `under` at most, whose state is still the same as that of `run`."""
        scope = run.scope
        while scope != under:
            parent = run.root.runs.get(_above(scope))
            if parent is None or not _are_same(run, parent):
                break
            scope = parent.scope
        self._under[scope] = scope
        return scope


def _above(scope: str) -> str:
    return scope.rpartition("/")[0]


def _are_same(run: Run, parent: Run) -> bool:
    try:
        return any(_saved(run) == _saved(parent) for _ in range(_LOOKS))
    except Exception:  # noqa: BLE001 - a state that cannot be looked at from here is not shared
        return False


@calls_out
def _save(context: Context) -> Any:
    return context.save()


def _saved(run: Run) -> Any:
    """None where the host says nothing. `TypeError` for what would come back as something else."""
    kind = type(run.context)
    if kind.save is Context.save:
        return None
    try:
        data = _save(run.context)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # as it stands it would be taken for Ctrl-C
        raise KernaiError(f"{kind.__name__}.save raised {type(error).__name__}: {error_text(error)}") from error
    return _Kept(kind.__name__).of(data)


class _Kept(Conversion):
    """The policy for what is given back: a text in the place of an object would be taken for the object."""

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

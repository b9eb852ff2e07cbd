"""`Context`: the workflow of a run, and the host's own state."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex

from kernai._util.api import Once, annotated_names, is_async
from kernai.errors import Control
from kernai.interrupts import calls_out
from kernai.values.media import MediaStore

if TYPE_CHECKING:
    from kernai.blocks.plan import Plan, Task


#: attributes that a run sets on its context, so a subclass must not use these names
_OF_THE_RUN = frozenset({"depth", "is_root", "media_store", "plan", "task_id", "task_results", "tasks", "trusted"})


class Context:
    """The context of a run. Subclass it to pass the host's state to skills (`ctx.run_context`) and instructions.

    `plan` is the last workflow that was started, `tasks` are its tasks, `task_results` their results by task id. `own`
    names attributes that each sub-run makes for itself, such as a connection: `child` sets them to None.
    """

    own: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in {*vars(cls), *annotated_names(cls)} & _OF_THE_RUN:
            raise TypeError(f"{cls.__name__}.{name}: runs set an attribute of this name, so take another one")
        if isinstance(cls.own, str):
            raise TypeError(f"{cls.__name__}.own must be a tuple of names, such as ({cls.own!r},)")
        for name in ("child", "restore", "save"):
            if is_async(getattr(cls, name)):
                raise TypeError(f"{cls.__name__}.{name} is an async function, but sync runs call it too")

    # not made by `__init__`: a subclass may be a dataclass, whose own `__init__` does not call this class's
    depth: int = 0
    task_id: str | None = None
    media_store: MediaStore = Once(lambda _: MediaStore())  # type: ignore[assignment]  # the value of an instance
    plan: Plan | None = None
    task_results: dict[str, Any] = Once(lambda _: {})  # type: ignore[assignment]
    #: the values that `trust` has added, until the run collects them
    trusted: tuple[str, ...] = ()

    def __init__(self, depth: int = 0, task_id: str | None = None, media_store: MediaStore | None = None) -> None:
        self.depth = depth
        self.task_id = task_id
        if media_store is not None:
            self.media_store = media_store

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        _ = self.media_store, self.task_results  # creates them, since copies share them
        return super().__reduce_ex__(protocol)

    def trust(self, *values: object) -> None:
        """Allows these values in `Trusted` inputs, as if the user had said them.

        An example is an account number that your database has for the user; docs/security.md explains when to do this.
        The values count from the model's next response on, in the current run, or else in the next run with this
        context, and when that run is resumed. They are texts, numbers or dates; raises `TypeError` for anything else.
        """
        for one in values:
            if not isinstance(one, (str, int, float)) and type(one).__module__ not in ("datetime", "decimal", "uuid"):
                raise TypeError(f"trust() takes texts, numbers and dates, got {type(one).__name__}")
        self.trusted = (*self.trusted, *map(str, values))

    @property
    def is_root(self) -> bool:
        """Whether this run may start workflows."""
        return self.depth == 0

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.plan.tasks if self.plan is not None else ()

    def save(self) -> Any:
        """The host's state that a resumed run needs, as JSON data. By default none: override this, and `restore` too.

        The run raises `TypeError` for anything else. It calls this after each outcome, and records the result
        (`context_saved`) if it has changed. If a sub-run shares objects with its parent, it calls the parent's `save`,
        in the sub-run's thread.
        """

    def restore(self, data: Any) -> None:
        """Restores the last result of `save` in a new context, before a run continues."""

    def child(self, task_id: str | None) -> Self:
        """The context of a sub-run: a shallow copy one level deeper, without a plan of its own.

        `__init__` is not called, so sub-runs share the host's attributes by reference. If a sub-run needs attributes of
        its own, override this: call `super().child(task_id)` and replace them.
        """
        child = copy(self)
        for name in self.own:
            setattr(child, name, None)
        child.depth = self.depth + 1
        child.task_id = task_id
        child.plan = None
        child.task_results = {}
        child.trusted = ()
        return child


@calls_out
def child_of(context: Context, task_id: str | None) -> Context:
    """Returns `context.child(task_id)`. Raises `TypeError` if that is not a context, as after a missing `return`, or if
    it stops or pauses, as only calls may.
    """
    try:
        child: object = context.child(task_id)
    except Control as control:
        name = f"{type(context).__name__}.child"
        raise TypeError(f"{name} raised {type(control).__name__}, which only calls may: {control}") from control
    if not isinstance(child, Context):
        raise TypeError(f"{type(context).__name__}.child must return the sub-run's context, got {child!r:.80}")
    return child

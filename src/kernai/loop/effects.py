"""Effects: what the loop asks a driver to do, as data.

The loop yields an effect. A driver performs it and sends the outcome back, or throws the failure into the loop. Effects
contain only values and names: providers, skills, contexts and stores are looked up in the root run (`root.Root`). So
one loop serves threads, asyncio, manual tests and replays, and middleware can read, store or replace an effect.

==============  =========================================  ====================================================
effect          sent back                                  may be thrown
==============  =========================================  ====================================================
`CallModel`     the `LlmResponse`                          whatever the provider raises
`CallSkill`     what the skill returned                    whatever it raises
`CallProtocol`  what the handler returned                  whatever it raises
`SubRun`        its `Result`                               what the host's own code raised in it
`Spawn`         None, at once                              that no thread can be started
`Join`          the `Completion` of one spawned piece      nothing: the error is in the `Completion`
`Sleep`         None, after that time                      nothing
`Raise`         nothing                                    its error, as if a call had raised it
`Commit`        None, when the rows are stored             `NotPerformed`, if the store fails
==============  =========================================  ====================================================

Any effect may also throw: `KeyboardInterrupt` and asyncio's `CancelledError`, unchanged; `Cancelled` if a call was
interrupted because the run must stop; `NotPerformed` if the effect was not started. A call may also throw a `Stop` or
`Pause` that it raised. An exception at a `Spawn` means that the work was not started.

The loop yields none of the last three: `Sleep` is for middleware, as are some fields of the call effects, `Raise` for
the chain of middleware, and `Commit` for `kernai.durable`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, final

from kernai._util.api import check_seconds, check_type
from kernai.agents.agent import Agent, check_model
from kernai.errors import Control, Pause, Stop
from kernai.registry.provider import Provider, check_provider
from kernai.values.message import InputPart, Message
from kernai.values.model import GenerationOptions, Model

if TYPE_CHECKING:
    from kernai.agents.native_tools import Tools
    from kernai.blocks.block import Block


class Cancelled(Control):
    """The run must stop, because it timed out or was cancelled. Never seen outside of a run."""


class LimitStop(Stop):
    """A limit of the root run was reached during a call. Never seen outside of a run.

    This is a `Stop`, so that middleware does not mistake it for the call's failure.
    """


class NotBegun(Cancelled):
    """The run must stop, and an announced call was not started."""


class NotApproved(Pause):
    """A call was not made because it needs approval. `call`: its name and parameters, if a middleware has chosen it."""

    def __init__(self, reason: str, call: tuple[str | None, Any] | None = None) -> None:
        super().__init__(reason)
        self.call = call


class NotPerformed(Control):
    """Events could not be delivered, so the effect after them was not started. Never seen outside of a run."""

    def __init__(self) -> None:
        super().__init__("the run was stopped")


class Parked(Control):
    """Work waits for a decision, so whatever waits for that work has to wait too. Never seen outside of a run."""


def task_scope(scope: str, step: int, task_id: str) -> str:
    """Returns the scope of a workflow's task: ``2.a``, or ``0.1/2.a`` in a sub-run."""
    # `/` separates scopes, so it is escaped in an id; `%` is escaped first, so that this can be reversed
    escaped = task_id.replace("%", "%25").replace("/", "%2F")
    return f"{scope}/{step}.{escaped}" if scope else f"{step}.{escaped}"


def how_broken_off(error: BaseException) -> Literal["not_run", "interrupted"] | None:
    """Returns how work is marked in its event if a stop of the run prevented or interrupted it; None if it failed."""
    if isinstance(error, (Exception, SystemExit, Stop)):
        return None
    return "not_run" if isinstance(error, (NotBegun, NotPerformed)) else "interrupted"


class Effect:
    """Base class of the effects. Two are equal if their fields are.

    Effects are plain slotted classes instead of dataclasses for speed: each step creates two.
    """

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:  # all effects that a middleware receives have both
        scope: str
        call_id: str

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed."""
        return type(self)(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    def __replace__(self, /, **changes: Any) -> Self:
        return self.replace(**changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # arguments may be anything

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class CallModel(Effect):
    """One turn of the model.

    - `provider`: the provider to call; None for the scope's.
    - `tools`: for a provider with native calls, what the model may call.
    - `stream`: if False, the text is only shown once it is complete.
    - `timeout`: how many seconds the call may take before it fails with a `ProviderError`.
    - `approval`: the decision on a call that had been paused.
    """

    __slots__ = (
        "approval", "generation", "messages", "model", "provider", "scope", "step", "stream", "timeout", "tools",
    )

    def __init__(  # noqa: PLR0917 - a step passes all by position, which is faster
        self, scope: str, step: int, messages: Sequence[Message], model: Model, generation: GenerationOptions,
        tools: Tools | None = None, provider: Provider | None = None, stream: bool = True,
        timeout: float | None = None, approval: Any = None,
    ) -> None:
        self.scope = scope
        self.step = step
        self.messages = messages
        self.model = model
        self.generation = generation
        self.provider = provider
        self.stream = stream
        self.timeout = timeout
        self.approval = approval
        self.tools = tools

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed. Raises `TypeError` or `ValueError` for a wrong value."""
        check_model(changes.get("model", self.model))
        check_provider(changes.get("provider"))
        if changes.get("timeout") is not None:
            check_seconds("timeout", changes["timeout"])
        if "generation" in changes:
            changes["generation"] = GenerationOptions.coerce(changes["generation"])
        if "messages" in changes:
            given = changes["messages"]
            changes["messages"] = [check_type(one, Message, "messages must be a list of Messages") for one in given]
        return super().replace(**changes)

    @property
    def call_id(self) -> str:  # type: ignore[override]  # nothing sets it
        """``0``, or ``2.a/1`` in a sub-run."""
        return f"{self.scope}/{self.step}" if self.scope else str(self.step)


class CallSkill(Effect):
    """One call of a skill, by name, with arguments that have been checked and converted."""

    __slots__ = ("approval", "arguments", "call_id", "scope", "skill")

    def __init__(
        self, scope: str, call_id: str, skill: str, arguments: Mapping[str, Any], approval: Any = None
    ) -> None:
        self.scope = scope
        self.call_id = call_id
        self.skill = skill
        self.arguments = arguments
        self.approval = approval

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed. Unless the skill changes, `arguments` are merged."""
        if "arguments" in changes and changes.get("skill", self.skill) == self.skill:
            changes["arguments"] = {**self.arguments, **changes["arguments"]}
        return super().replace(**changes)


class CallProtocol(Effect):
    """One block, to be passed to the protocol of that name."""

    __slots__ = ("approval", "block", "call_id", "protocol", "scope")

    def __init__(self, scope: str, call_id: str, protocol: str, block: Block, approval: Any = None) -> None:
        self.scope, self.call_id, self.protocol = scope, call_id, protocol
        self.block, self.approval = block, approval


class SubRun(Effect):
    """A sub-run. `Root.runs` has its state, by `scope`. Unless it is spawned, the loop that yields it waits for it.

    For an agent called as a skill, `skill` is the name by which it was called and `scope` the call's id. For a task,
    `skill` is None.
    """

    __slots__ = ("agent", "approval", "input", "scope", "skill")

    def __init__(
        self, scope: str, agent: Agent[Any], input: tuple[InputPart, ...], skill: str | None = None,
        approval: Any = None,
    ) -> None:
        self.scope, self.agent, self.input, self.skill, self.approval = scope, agent, input, skill, approval

    @property
    def call_id(self) -> str:  # type: ignore[override]  # nothing sets it
        return self.scope


class Spawn(Effect):
    """Starts `what` concurrently; `key` identifies its `Completion`."""

    __slots__ = ("key", "what")

    def __init__(self, key: str | int, what: CallSkill | CallProtocol | SubRun) -> None:
        self.key, self.what = key, what


class Join(Effect):
    """Waits for the next of the spawned pieces of work to end."""

    __slots__ = ()


class Sleep(Effect):
    """Waits for `seconds`, from 0 and below 1,000,000, else `ValueError`. Ends early if the run must stop.

    Before the retry of a model call, `reason` is why the call failed and `attempt` the number of the retry, from 1.
    """

    __slots__ = ("attempt", "call_id", "reason", "scope", "seconds")

    def __init__(
        self, seconds: float, scope: str = "", call_id: str = "", *, reason: str | None = None, attempt: int = 1
    ) -> None:
        self.seconds = check_seconds("seconds", seconds, or_zero=True)
        self.scope, self.call_id, self.reason, self.attempt = scope, call_id, reason, attempt


class Raise(Effect):
    """Makes the driver treat an exception from a middleware as if a call had raised it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Commit(Effect):
    """Appends the new rows to the run's store, before something that cannot be undone is performed."""

    __slots__ = ()


@final
class Completion:
    """How a spawned piece of work ended: with `value`, or with `error`."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: Any, value: Any = None, error: BaseException | None = None) -> None:
        self.key, self.value, self.error = key, value, error


#: a generator of effects: the loop itself, or one effect on its own
Work = Generator[Effect, Any, Any]


def advance(work: Work, outcome: Any, error: BaseException | None) -> Effect | Completion:
    """Sends an outcome or throws an error into a piece of work; returns its next effect, or how the work ended."""
    try:
        effect: Effect = work.send(outcome) if error is None else work.throw(error)
    except StopIteration as stop:
        return Completion(None, stop.value)
    except BaseException as raised:  # noqa: BLE001 - how the work ended
        return Completion(None, error=raised)
    return effect


def alone(effect: Effect) -> Work:
    """Turns one effect into a piece of work."""
    return (yield effect)

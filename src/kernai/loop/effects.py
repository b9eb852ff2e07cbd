"""What the loop can ask for, as data.

The loop yields one of these and is sent what came of it; a failure is thrown into it. A driver performs them. They hold
values and names alone: providers, skills, contexts and stores are looked up in the root run (`root.Root`). So one loop
serves threads, asyncio, tests by hand and replays, and whatever stands between loop and driver can read an effect, keep
it, or put another in its place.

==============  =========================================  ====================================================
effect          sent back                                  may be thrown
==============  =========================================  ====================================================
`CallModel`     the `LlmResponse`                          whatever the provider raises
`CallSkill`     what the skill returned                    whatever it raises
`CallProtocol`  what the handler returned                  whatever it raises
`CallBuiltin`   the text to show                           nothing
`SubRun`        its `Result`                               what the host's own code raised in it
`Spawn`         None, at once                              nothing
`Join`          the `Completion` of one spawned piece      nothing of that piece: its `Completion` carries it
`Sleep`         None, after that time                      nothing
`Raise`         nothing                                    its error, as a call's
==============  =========================================  ====================================================

At any of them may be thrown: Ctrl-C and the cancellation of an asyncio task, as they are; `Cancelled`, where a call was
broken off because the run is to stop; `NotPerformed`, where the effect was not even begun. At a call also `Stop` and
`Pause`, which it raised. What is thrown at a `Spawn` says that the work was not begun.

The loop never asks for `Sleep` or `Raise`: they are for whatever stands between it and the driver. So are some fields
of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal

from kernai.errors import Control, Stop

if TYPE_CHECKING:
    from typing import Self

    from kernai.agents.agent import Agent
    from kernai.blocks.block import Block
    from kernai.registry.provider import Provider
    from kernai.values.generation_options import GenerationOptions
    from kernai.values.message import Message
    from kernai.values.model import Model
    from kernai.values.outside_text import InputPart
    from kernai.values.tools import Tools


class Cancelled(Control):
    """The run is to stop: its time is up, or it was cancelled. Never seen outside of a run."""


class LimitStop(Stop):
    """A limit of the root run is used up in the middle of a call: no middleware may take that for the call's failure.

    Never seen outside of a run.
    """


class NotBegun(Cancelled):
    """The run is to stop, and the call that it had announced was not begun."""


class NotPerformed(Control):
    """Events could not be delivered, so the effect behind them was not begun. Never seen outside of a run."""

    def __init__(self) -> None:
        super().__init__("the run was stopped")


def task_scope(scope: str, step: int, task_id: str) -> str:
    """The scope of a workflow's task: ``2.a``, or ``0.1/2.a`` below another run."""
    # `/` separates scopes, so an id may not hold one; `%` first, so that the escape can be undone
    escaped = task_id.replace("%", "%25").replace("/", "%2F")
    return f"{scope}/{step}.{escaped}" if scope else f"{step}.{escaped}"


def how_broken_off(error: BaseException) -> Literal["not_run", "interrupted"] | None:
    """The mark of an event that tells of work which came to no outcome of its own, since its run was to stop."""
    if isinstance(error, (Exception, SystemExit, Stop)):
        return None
    return "not_run" if isinstance(error, (NotBegun, NotPerformed)) else "interrupted"


class Effect:
    """Equal by its fields. Slotted classes written out, not dataclasses: two are made each step."""

    __slots__: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
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

    The provider is that of the scope, unless `provider` names another. One that can call natively gets `tools`, if
    there are any. Without `stream`, the text is shown when it is whole. `timeout` is how many seconds the call may take
    from when it is performed; then it is a `ProviderError`. `approval` is what was decided on it, where it had been
    paused.
    """

    __slots__ = (
        "approval", "generation", "messages", "model", "provider", "scope", "step", "stream", "timeout", "tools",
    )

    def __init__(
        self,
        scope: str,
        step: int,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        *,
        provider: Provider | None = None,
        stream: bool = True,
        timeout: float | None = None,
        approval: Any = None,
        tools: Tools | None = None,
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

    @property
    def call_id(self) -> str:
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
        """A copy with some fields changed; of the `arguments` of the same skill those that are named."""
        if "arguments" in changes and changes.get("skill", self.skill) == self.skill:
            changes["arguments"] = {**self.arguments, **changes["arguments"]}
        return super().replace(**changes)


class CallProtocol(Effect):
    """One block handed to the protocol of that name."""

    __slots__ = ("approval", "block", "call_id", "protocol", "scope")

    def __init__(self, scope: str, call_id: str, protocol: str, block: Block, approval: Any = None) -> None:
        self.scope = scope
        self.call_id = call_id
        self.protocol = protocol
        self.block = block
        self.approval = approval


class CallBuiltin(Effect):
    """One of the runtime's own commands. An effect, since what it shows depends on what is registered just now."""

    __slots__ = ("call_id", "command", "scope")

    def __init__(self, scope: str, call_id: str, command: str) -> None:
        self.scope = scope
        self.call_id = call_id
        self.command = command


class SubRun(Effect):
    """A run within the run, whose state stands in the root under `scope`. Yielded by itself it runs in place.

    Of an agent that was called, `skill` is the name it was called by, and `scope` the call's id; of a task it is None.
    """

    __slots__ = ("agent", "approval", "input", "scope", "skill")

    def __init__(
        self, scope: str, agent: Agent[Any], input: tuple[InputPart, ...], skill: str | None = None,
        approval: Any = None,
    ) -> None:
        self.scope = scope
        self.agent = agent
        self.input = input
        self.skill = skill
        self.approval = approval

    @property
    def call_id(self) -> str:
        return self.scope


class Spawn(Effect):
    """Begin `what` beside everything else; `key` tells its `Completion` from others."""

    __slots__ = ("key", "what")

    def __init__(self, key: str | int, what: CallSkill | CallProtocol | SubRun) -> None:
        self.key = key
        self.what = what


class Join(Effect):
    """Wait for the next of the spawned pieces of work to end."""

    __slots__ = ()


class Sleep(Effect):
    """Wait so many seconds, at least 0 and finite, else `ValueError`. Ends at once when the run is to stop.

    Before a model call is made again: `reason` is what it failed with, `attempt` the number of the retry, from 1.
    """

    __slots__ = ("attempt", "call_id", "reason", "scope", "seconds")

    def __init__(
        self, seconds: float, scope: str = "", call_id: str = "", *, reason: str | None = None, attempt: int = 1
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"seconds must be a number, got {seconds!r}")
        if not 0 <= seconds <= float_info.max:
            raise ValueError(f"seconds must be at least 0 and finite, got {seconds!r}")
        self.seconds = seconds
        self.scope = scope
        self.call_id = call_id
        self.reason = reason
        self.attempt = attempt


class Raise(Effect):
    """Have the driver judge what was raised between loop and driver, as if a call had raised it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Commit(Effect):
    """Append what was told to the run's store, before something is performed that cannot be undone.

    Not the loop's: `kernai.durable` asks for it.
    """

    __slots__ = ()


class Parked(Control):
    """A piece of work waits for somebody's decision, and so does whatever waits for it. Never seen outside of a run."""


class Completion:
    """How a spawned piece of work ended: with `value`, or with `error`."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: Any, value: Any = None, error: BaseException | None = None) -> None:
        self.key = key
        self.value = value
        self.error = error


#: a generator of effects: the loop itself, or one effect on its own
Work = Generator[Effect, Any, Any]


def advance(work: Work, outcome: Any, error: BaseException | None) -> Effect | Completion:
    """Sends an outcome into a piece of work, or throws an error; returns its next effect, or how it has ended."""
    try:
        effect: Effect = work.send(outcome) if error is None else work.throw(error)
    except StopIteration as stop:
        return Completion(None, stop.value)
    except BaseException as raised:  # noqa: BLE001 - how the work has ended
        return Completion(None, error=raised)
    return effect


def alone(effect: Effect) -> Work:
    """One effect as a piece of work."""
    return (yield effect)


def attempted(effect: Effect) -> Generator[Effect, Any, Completion]:
    """What came of an effect, as a value."""
    try:
        return Completion(None, (yield effect))
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - it belongs to the loop, which decides
        return Completion(None, error=error)

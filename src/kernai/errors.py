"""Everything kernai raises.

::

    KernaiError
    ├── ProviderError            the model's vendor failed, or no provider is set
    ├── RunStoppedError          the run ended without an answer
    │   ├── LimitReachedError    a limit of `Limits` tripped
    │   │   └── MaxStepsReachedError   the loop used up `Agent.max_steps`
    │   └── RunCancelledError    `cancel`, Ctrl-C, or a closed stream
    ├── ReplayDivergenceError    an agent decides differently than in the recording
    │   └── ReplayLoosenedError      it decides the same, and is less protected
    ├── InFlightError            calls were started before a crash, and their outcome is unknown
    ├── SkillInputError          parameters that do not fit a skill's inputs
    ├── CredentialMissingError   a required credential has no value
    ├── DeadlockError            tasks that wait for one another
    ├── RunConflictError         another worker has continued the run
    │   └── RunBusyError         another worker holds the run's lease
    ├── StoreNeededError         a run waits for a decision, and no store keeps it
    └── RunDamagedError          a stored run cannot be read to its end

    Control                      raised on purpose, and never the failure of a call
    ├── Stop                     ends the run in which it is raised
    └── Pause                    holds a call until somebody has decided on it

There are two kinds of mistakes. The *caller's* is a `TypeError`, a `ValueError` or one of these, raised at the call.
The *model's* is never raised: it becomes an error block that the model reads and can correct.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from kernai.values.media import Media
    from kernai.values.pending_calls import PendingCall
    from kernai.values.result import Result

AnyError = TypeVar("AnyError", bound=Exception)


class KernaiError(Exception):
    """Base of every error of this package. `result` is the `Result` if a run has ended with the error, else None."""

    result: Result[Any] | None = None


class ProviderError(KernaiError):
    """The vendor's call failed, or its stream broke off.

    `status` is the HTTP status, `code` the vendor's own word for the failure, `retryable` whether the same call may
    succeed later, `retry_after` the seconds that the vendor asked to wait, `vendor` its name. None is unknown. The
    message never contains a key.
    """

    def __init__(
        self,
        message: str = "the provider failed",
        *,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        vendor: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.vendor = vendor


class RunStoppedError(KernaiError):
    """The run ended without an answer; `result.stop_reason` says why."""


class LimitReachedError(RunStoppedError):
    """A limit tripped. `reason` is the `StopReason` value (``"max_tokens"``, ``"timeout"``, …).

    Raise the limit, or continue with the messages in `result.messages`.
    """

    def __init__(self, message: str, reason: str = "error") -> None:
        super().__init__(message)
        self.reason = reason


class MaxStepsReachedError(LimitReachedError):
    """The agent used all its steps without an answer."""

    def __init__(self, message: str, reason: str = "max_steps") -> None:
        super().__init__(message, reason)


class RunCancelledError(RunStoppedError):
    """The run was cancelled from outside."""


class ReplayDivergenceError(KernaiError):
    """The agent decides differently than in the recording; nothing was changed.

    `seq` is the place of the first event that differs, `event` its type, `expected` what is recorded there and `got`
    what the agent does now. Use the agent that made the recording, or fork the run before that place.
    """

    def __init__(self, message: str, *, seq: int = 0, event: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        self.event = event
        self.expected = expected
        self.got = got


class ReplayLoosenedError(ReplayDivergenceError):
    """The agent decides as in the recording, and something that protects was loosened since, such as an approval.

    `loosened` says what, by the key under which `replay` accepts it: ``replay(..., accept=["refund.approval"])``.
    """

    def __init__(self, message: str, loosened: Mapping[str, str] = MappingProxyType({}), **where: Any) -> None:
        super().__init__(message, **where)
        self.loosened = dict(loosened)


class InFlightError(KernaiError):
    """Calls had started and not ended when the run broke off, so they may have taken effect; nothing was changed.

    `calls` holds each as a `PendingCall`. Find out what happened to them, and pass ``in_flight="skip"`` (the model
    reads that the outcome is unknown), ``"retry"`` (they are made again), or a function that decides for each call.
    """

    def __init__(self, message: str, calls: Sequence[PendingCall] = ()) -> None:
        super().__init__(message)
        self.calls = tuple(calls)


class SkillInputError(KernaiError):
    """Parameters that do not fit. `faults` holds a pair (dotted path, what is wrong) for each fault of the call."""

    def __init__(self, message: str, faults: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class CredentialMissingError(KernaiError):
    """A required credential has no value; the message names the key and where to set it, never a value."""


class DeadlockError(KernaiError):
    """Tasks are left, but none is running and none can start."""


class RunConflictError(KernaiError):
    """The store has entries of the run that this worker does not know: another worker has continued it.

    Nothing was written. Load the run again and continue from there, or leave it to the other worker.
    """


class RunBusyError(RunConflictError):
    """Another worker works on the run: `holder` says who, `since` and `until` are the times of its lease.

    Nothing was called or written. Wait (``resume(..., wait=60)``), or leave the run to that worker.
    """

    def __init__(self, run_id: str, holder: str = "", since: str = "", until: str = "") -> None:
        super().__init__(run_id, holder, since, until)
        self.run_id, self.holder, self.since, self.until = run_id, holder, since, until

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} is being worked on by {self.holder}, since {self.since}; its lease lasts until "
            f"{self.until} unless it is renewed. Nothing was called or written: pass wait=SECONDS to wait, or let "
            "the other process finish"
        )


class StoreNeededError(KernaiError):
    """A run would have to wait for somebody's decision, and has no store to keep it; `why` says what for."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}, and a pause needs a store: pass store=..."


class RunDamagedError(KernaiError):
    """A stored run cannot be read to its end. The message names the file, the run and the entry.

    From `load`, `entries` holds those before the damage; from `load_media`, `media` holds all that are whole. Append
    them to a new run to continue from there.
    """

    def __init__(self, message: str, entries: Iterable[dict[str, Any]] = (), media: Iterable[Media] = ()) -> None:
        super().__init__(message)
        self.entries = list(entries)
        self.media = list(media)


class Control(BaseException):
    """Raised on purpose. Not an `Exception`, so that no error handling mistakes it for the failure of a call."""


#: the error of a run that Ctrl-C has ended
INTERRUPTED = "the run was interrupted"
#: why a run may be stopped: the values of `StopReason` but ``final``
STOP_REASONS = (
    "max_steps", "max_tokens", "max_cost", "max_calls", "timeout", "max_depth", "loop", "output", "guardrail",
    "interrupt", "error", "cancelled", "closed",
)


class Stop(Control):
    """Raised by a skill, a protocol's handler, instructions or a middleware to end the run in which it is raised.

    Its `Result` has the stop reason `reason`, for example ``"guardrail"``, and as its error a `LimitReachedError` that
    says `message`. An unknown reason is a `ValueError`. If a sub-run is stopped, its caller continues.

    ``Stop("final", text)`` out of a call (a skill, a hook, a middleware) finishes the run: `text` is its answer, and is
    checked as the model's answers are.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        if reason == "final":
            if not isinstance(message, str) or not message:
                raise ValueError(f"Stop('final', text) needs the answer as text, got {message!r}")
        elif reason not in STOP_REASONS:
            raise ValueError(f"reason must be 'final' or one of {', '.join(STOP_REASONS)}, got {reason!r}")
        # both, so that it can be copied
        super().__init__(reason, message)
        self.reason = str(reason)
        self.message = message or f"the run was stopped: {reason}"

    @property
    def is_final(self) -> bool:
        """Whether it finishes the run with an answer."""
        return self.reason == "final"

    def __str__(self) -> str:
        return self.message


class Pause(Control):
    """Raised by a skill, a protocol's handler or a middleware to let the call wait for a decision. Needs a store.

    `reason` and `metadata` are for whoever decides. `until`, a datetime with a time zone, ends the wait: a resume after
    that time makes the call again without a decision, with ``ctx.woken`` True. `kernai.postgres.Workers` resume such
    runs on time; ``store.runs(due=True)`` lists them.
    """

    def __init__(
        self, reason: str = "", metadata: Mapping[str, Any] | None = None, *, until: datetime | None = None
    ) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"reason must be text, got {type(reason).__name__}")
        if not isinstance(metadata, Mapping | None):
            raise TypeError(f"metadata must be a mapping or None, got {type(metadata).__name__}")
        if until is not None and (not hasattr(until, "tzinfo") or until.tzinfo is None):
            raise TypeError(f"until must be a datetime with a time zone, got {until!r}")
        super().__init__(reason, metadata)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.until = until

    def __str__(self) -> str:
        return self.reason


#: how many exceptions of a group are quoted
_MOST_MEMBERS = 10


def error_text(error: BaseException) -> str:
    """The text of an exception with its notes, or its class if it has no text; of a group the texts of its members."""
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(map(_member_text, error.exceptions[:_MOST_MEMBERS]))
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - a broken __str__ must not end a run
            text = ""
        text = text if text.strip() else type(error).__name__
        text = f"KeyError: {text}" if isinstance(error, KeyError) else text
    notes = getattr(error, "__notes__", ())
    return "\n".join([text, *map(str, notes)]) if isinstance(notes, list) else text


def _member_text(error: BaseException) -> str:
    text, name = error_text(error), type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}"


def copied(error: AnyError) -> AnyError:
    """A copy of an error, since a run attaches its `result` to the error that ends it.

    If a class's constructor does not take its `args`, it is not called.
    """
    with suppress(Exception):  # a foreign constructor may do anything
        made = copy(error)
        if str(made) == str(error):
            return made
    made = error.__class__.__new__(error.__class__, *error.args)
    made.__dict__.update(vars(error))
    return made


def as_failure(error: BaseException) -> BaseException:
    """What a call raised, as its failure: asyncio's cancellation (a skill that awaited a cancelled future) and
    StopIteration, which no coroutine can raise, become errors of the call; Ctrl-C and the like stay unchanged.
    """
    asyncio_errors = sys.modules.get("asyncio.exceptions")
    cancelled = asyncio_errors is not None and isinstance(error, asyncio_errors.CancelledError)
    if not cancelled and not isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
        return error
    text = error_text(error)
    name = type(error).__name__
    failure = RuntimeError(name if text == name else f"{name}: {text}")
    failure.__cause__ = error
    return failure

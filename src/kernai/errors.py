"""All exceptions that kernai raises, and `StopReason`, why a run ended.

::

    KernaiError
    ├── ProviderError            the model's vendor failed, or no provider is set
    ├── RunStoppedError          the run ended without an answer
    │   ├── LimitReachedError    a limit of `Limits` tripped
    │   │   └── MaxStepsReachedError   the loop used up `Agent.max_steps`
    │   └── RunCancelledError    `cancel`, Ctrl-C, or a closed stream
    ├── ReplayDivergenceError    an agent decides differently from the recording
    │   └── ReplayLoosenedError      it decides the same, but has lost protections
    ├── InFlightError            calls were started before a crash, and their outcome is unknown
    ├── SkillInputError          parameters do not match a skill's inputs
    ├── CredentialMissingError   a required credential has no value
    ├── DeadlockError            tasks wait for one another
    ├── RunConflictError         another worker has continued the run
    │   └── RunBusyError         another worker holds the run's lease
    ├── StoreNeededError         a run waits for a decision, and no store keeps it
    └── RunDamagedError          a stored run cannot be read to its end

    Control                      raised on purpose; not a failure of the call
    ├── Stop                     ends the run in which it is raised
    └── Pause                    holds a call until somebody has decided on it

There are two kinds of mistakes. A mistake of the *caller* raises a `TypeError`, a `ValueError` or one of these at the
call. A mistake of the *model* is never raised: it becomes an error block that the model reads and can correct.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from datetime import datetime

    from kernai.values.media import Media
    from kernai.values.pending_calls import PendingCall
    from kernai.values.result import Result

AnyError = TypeVar("AnyError", bound=BaseException)


class StopReason(StrEnum):
    """Why a run ended. It compares, prints and serialises as the plain word."""

    FINAL = "final"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    MAX_COST = "max_cost"
    MAX_CALLS = "max_calls"
    TIMEOUT = "timeout"
    MAX_DEPTH = "max_depth"
    LOOP = "loop"
    OUTPUT = "output"
    GUARDRAIL = "guardrail"
    INTERRUPT = "interrupt"
    ERROR = "error"
    CANCELLED = "cancelled"
    CLOSED = "closed"


def _check_reason(reason: str, also: str = "") -> None:
    without_answer = [one for one in StopReason if one is not StopReason.FINAL]
    if reason not in without_answer:
        raise ValueError(f"reason must be {also}one of {', '.join(without_answer)}, got {reason!r}")


class KernaiError(Exception):
    """Base class of this package's errors. If a run has ended with the error, `result` is its `Result`, else None."""

    result: Result[Any] | None = None


class ProviderError(KernaiError):
    """The call to the vendor failed, or its stream broke off.

    `status` is the HTTP status, `code` the vendor's own code for the failure, `retryable` says whether the same call
    may succeed later, `retry_after` is the wait in seconds that the vendor asked for, `vendor` its name. None means
    unknown. The message never contains a key.
    """

    def __init__(
        self, message: str = "the provider failed", *, status: int | None = None, code: str | None = None,
        retryable: bool = False, retry_after: float | None = None, vendor: str | None = None,
    ) -> None:
        if not isinstance(retry_after, int | float | None):
            raise TypeError(f"retry_after must be a number of seconds or None, got {retry_after!r}")
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.vendor = vendor


class RunStoppedError(KernaiError):
    """The run ended without an answer; `result.stop_reason` says why."""


class LimitReachedError(RunStoppedError):
    """The run reached a limit. `reason` is the `StopReason` value (``"max_tokens"``, ``"timeout"``, …).

    Raise the limit, or continue with the messages in `result.messages`. Raises `ValueError` for an unknown reason.
    """

    def __init__(self, message: str, reason: str = "error") -> None:
        _check_reason(reason)
        super().__init__(message)
        self.reason = reason


class MaxStepsReachedError(LimitReachedError):
    """The agent used all its steps without an answer."""

    def __init__(self, message: str, reason: str = "max_steps") -> None:
        super().__init__(message, reason)


class RunCancelledError(RunStoppedError):
    """The run was cancelled from outside."""


def stopped(reason: str, text: str) -> RunStoppedError:
    """Returns the error of a run that was stopped for `reason`."""
    if reason == StopReason.CANCELLED:
        return RunCancelledError(text)
    return (MaxStepsReachedError if reason == StopReason.MAX_STEPS else LimitReachedError)(text, reason)


def no_run(run_id: str) -> KernaiError:
    """The error for a run that does not exist."""
    return KernaiError(f"the store has no run {run_id!r}; its runs() lists those it has")


class ReplayDivergenceError(KernaiError):
    """The agent decides differently from the recording; nothing was changed.

    `seq` is the number of the first event that differs, `event` its type, `expected` what was recorded, and `got` what
    the agent does now. Use the agent that made the recording, or fork the run before that event.
    """

    def __init__(self, message: str, *, seq: int = 0, event: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        self.event = event
        self.expected = expected
        self.got = got


class ReplayLoosenedError(ReplayDivergenceError):
    """The agent decides as in the recording, but has since lost a protection, such as an approval.

    `loosened` describes the lost protections by their keys, with which `replay` accepts them:
    ``replay(..., accept=["refund.approval"])``.
    """

    def __init__(self, message: str, loosened: Mapping[str, str] = MappingProxyType({}), **where: Any) -> None:
        super().__init__(message, **where)
        self.loosened = dict(loosened)


class InFlightError(KernaiError):
    """Calls had started but not ended when the run broke off, so they may have taken effect; nothing was changed.

    `calls` has them as `PendingCall` objects. Find out what happened to them, then pass ``in_flight="skip"`` (the model
    reads that the outcome is unknown), ``"retry"`` (they are made again), or a function that decides for each call.
    """

    def __init__(self, message: str, calls: Sequence[PendingCall] = ()) -> None:
        super().__init__(message)
        self.calls = tuple(calls)


class SkillInputError(KernaiError):
    """Parameters do not match a skill's inputs. `faults` has a pair (dotted path, what is wrong) for each fault."""

    def __init__(self, message: str, faults: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class CredentialMissingError(KernaiError):
    """A required credential has no value; the message names the key and where to set it, never a value."""


class DeadlockError(KernaiError):
    """Tasks are left, but none is running and none can start."""


class RunConflictError(KernaiError):
    """The store has entries of the run that this worker did not write: another worker has continued the run.

    Nothing was written. Load the run again and continue from there, or leave it to the other worker.
    """

    #: set if this worker could not claim the run, so that it has called nothing
    run_id: str | None = None


class RunBusyError(RunConflictError):
    """Another worker is working on the run: `holder` says who, `since` and `until` are the times of its lease.

    Nothing was called or written. Wait (``resume(..., wait=60)``), or leave the run to that worker.
    """

    run_id: str

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
    """A run would have to wait for a decision, but has no store to keep it; `why` says what it would wait for."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}, and a pause needs a store: pass store=..."


class RunDamagedError(KernaiError):
    """A stored run cannot be read to its end. The message names the file, the run and the entry.

    If `load` raises it, `entries` has the entries before the damage; if `load_media` does, `media` has the undamaged
    media. Append them to a new run to continue from there.
    """

    def __init__(self, message: str, entries: Iterable[dict[str, Any]] = (), media: Iterable[Media] = ()) -> None:
        super().__init__(message)
        self.entries = list(entries)
        self.media = list(media)


class Control(BaseException):
    """Raised on purpose. Not an `Exception`, so that no error handling takes it for a failure of the call."""


#: the error text of a run that Ctrl-C has ended
INTERRUPTED = "the run was interrupted"


class Stop(Control):
    """Raised by a skill, a protocol's handler, instructions or a middleware to end the run in which it is raised.

    The run's `Result` has `reason` as its stop reason, for example ``"guardrail"``, and a `LimitReachedError` with
    `message` as its error: a `Stop` travels inside a run, and that error is what the caller gets. Raises `ValueError`
    for an unknown reason. If a sub-run is stopped, its caller continues.

    ``Stop("final", text)``, raised from a call (a skill, a hook, a middleware), finishes the run with the answer
    `text`, which is checked like an answer from the model.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        if reason != "final":
            _check_reason(reason, "'final' or ")
        elif not isinstance(message, str) or not message:
            raise ValueError(f"Stop('final', text) needs the answer as text, got {message!r}")
        # pass both to `args`, so that the exception can be copied
        super().__init__(reason, message)
        self.reason = str(StopReason(reason))
        text = str.__str__(message) if isinstance(message, str) else str(message)  # of an enum, its value
        self.message = text if message else f"the run was stopped: {self.reason}"

    @property
    def is_final(self) -> bool:
        """Whether this finishes the run with an answer."""
        return self.reason == "final"

    def __str__(self) -> str:
        return self.message


class Pause(Control):
    """Raised by a skill, a protocol's handler or a middleware to make the call wait for a decision. Needs a store.

    `reason` and `metadata` are for the person who decides. `until`, a datetime with a time zone, ends the wait: a
    resume after that time makes the call again without a decision, with ``ctx.woken`` True. `kernai.postgres.Workers`
    resumes such runs on time; ``store.runs(due=True)`` lists them.
    """

    def __init__(
        self, reason: str = "", metadata: Mapping[str, Any] | None = None, *, until: datetime | None = None
    ) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"reason must be text, got {type(reason).__name__}")
        if not isinstance(metadata, Mapping | None):
            raise TypeError(f"metadata must be a mapping or None, got {type(metadata).__name__}")
        if until is not None and (not hasattr(until, "astimezone") or until.tzinfo is None):
            raise TypeError(f"until must be a datetime with a time zone, got {until!r}")
        super().__init__(reason, metadata)
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.until = until

    def __str__(self) -> str:
        return self.reason


def error_text(error: BaseException) -> str:
    """The text of an exception with its notes. If it has no text, its class; for a group, the texts of its members."""
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(map(described, error.exceptions[:10]))  # the model pays for each: there may be thousands
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - a broken __str__ must not end a run
            text = ""
        text = text if text.strip() else type(error).__name__
        text = f"KeyError: {text}" if isinstance(error, KeyError) else text
    notes = getattr(error, "__notes__", ())  # an error that answers for any attribute may give something else
    return "\n".join([text, *map(str, notes)]) if isinstance(notes, list) else text


def described(error: BaseException) -> str:
    """``ValueError: text``, or the class alone if there is no text."""
    name, text = type(error).__name__, error_text(error)
    return text if text == name or text.startswith(f"{name}: ") else f"{name}: {text}"


def copied(error: AnyError) -> AnyError:
    """Copies an error, since a run attaches its `result` to the error that ends it.

    The class's constructor is not called, since it may not accept the error's `args`.
    """
    made = error.__class__.__new__(error.__class__, *error.args)
    made.__dict__.update(vars(error))
    return made


def as_failure(error: BaseException) -> BaseException:
    """Converts the exception that a call raised into its failure.

    asyncio's cancellation (the skill awaited a cancelled future) and StopIteration (which a coroutine cannot raise)
    become a RuntimeError. Everything else, including Ctrl-C and the like, is returned unchanged.
    """
    asyncio_errors = sys.modules.get("asyncio.exceptions")
    cancelled = asyncio_errors is not None and isinstance(error, asyncio_errors.CancelledError)
    if not cancelled and not isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)):
        return error
    failure = RuntimeError(described(error))
    failure.__cause__ = error
    return failure

"""Everything kernai raises.

::

    KernaiError
    ├── ProviderError            the model's vendor failed, or no provider is set
    ├── RunStoppedError          the run ended without an answer
    │   ├── LimitReachedError    a limit of `Limits` tripped
    │   │   └── MaxStepsReachedError   the loop used up `Agent.max_steps`
    │   └── RunCancelledError    `cancel`, Ctrl-C, or a closed stream
    ├── ReplayDivergenceError    an agent decides otherwise than in the recording
    ├── InFlightError            calls were begun before a crash, and their outcome is unknown
    ├── SkillInputError          parameters that do not fit a skill's inputs
    ├── CredentialMissingError   a required credential has no value
    ├── DeadlockError            tasks that wait for one another
    ├── RunConflictError         another worker has gone on with the run
    ├── StoreNeededError         a run waits for a decision, and nothing keeps it
    └── RunDamagedError          a stored run cannot be read to its end

    Control                      raised on purpose, and never the failure of a call
    ├── Stop                     ends the run in which it is raised
    └── Pause                    parks a call until somebody has decided on it

Two kinds are told apart. What the *caller* did wrong is a `TypeError`, a `ValueError` or one of these, raised at the
call. What the *model* did wrong is never raised: it becomes an error block that the model reads and can mend.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernai.values.media import Media
    from kernai.values.pending_call import PendingCall
    from kernai.values.result import Result

AnyError = TypeVar("AnyError", bound=Exception)


class KernaiError(Exception):
    """Base of every error of this package. `result` is the run's `Result` where a run was under way, else None."""

    result: Result[Any] | None = None


class ProviderError(KernaiError):
    """The vendor's call failed, or its stream broke off.

    `status` is the HTTP status, `code` the vendor's own word for the failure, `retryable` whether the same call may
    succeed later, `retry_after` how many seconds the vendor asked to wait, `vendor` its name. Unknown is None. The
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

    Raise the limit, or go on with the messages in `result.messages`.
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
    """An agent that is replayed decides otherwise than in the recording; nothing was changed.

    `seq` is the place of the first event that differs, `event` its type, `expected` what is recorded there and `got`
    what the agent does now. Take the agent that made the recording, or fork the run before that place.
    """

    def __init__(self, message: str, *, seq: int = 0, event: str = "", expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.seq = seq
        self.event = event
        self.expected = expected
        self.got = got


class InFlightError(KernaiError):
    """Calls had begun and not ended when the run was broken off, so they may have taken effect; nothing was changed.

    `calls` holds each as a `PendingCall`. Find out what became of them, and pass ``in_flight="skip"`` (the model reads
    that the outcome is unknown), ``"retry"`` (they are made again), or a function of the call that says which.
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
    """A required credential has no value; the message names the key and where it is looked for, never a value."""


class DeadlockError(KernaiError):
    """Tasks are left over, none is running and none can start."""


class RunConflictError(KernaiError):
    """The store has other entries of the run than this worker knows of: another worker has gone on with it.

    Nothing was written. Load the run anew and go on from there, or leave it to the other worker.
    """


class StoreNeededError(KernaiError):
    """A run would have to wait for somebody's decision, and has no store that could keep it; `why` says what for."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}, and a pause needs a store: pass store=..."


class RunDamagedError(KernaiError):
    """A stored run cannot be read to its end. The message names the file, the run and the entry.

    Where `load` raised it, `entries` holds those before the damage; where `load_media` did, `media` holds all that are
    whole. Append them to a new run to go on from there.
    """

    def __init__(
        self, message: str, entries: Iterable[dict[str, Any]] = (), media: Iterable[Media] = ()
    ) -> None:
        super().__init__(message)
        self.entries = list(entries)
        self.media = list(media)


class Control(BaseException):
    """What is raised on purpose. Not an `Exception`, so that no error handling takes it for the failure of a call."""


#: what is told of a run that Ctrl-C has ended
INTERRUPTED = "the run was interrupted"
#: why a run may be stopped: the values of `StopReason` but ``final``
STOP_REASONS = (
    "max_steps", "max_tokens", "max_cost", "max_calls", "timeout", "max_depth", "loop", "output", "guardrail",
    "interrupt", "error", "cancelled", "closed",
)


class Stop(Control):
    """Raised by a skill, a protocol's handler, instructions or a middleware: the run in which it is raised ends.

    Its `Result` has the stop reason `reason`, for example ``"guardrail"``, and as its error a `LimitReachedError` that
    says `message`. An unknown reason is a `ValueError`, ``"final"`` too. A sub-run ends by itself: its caller goes on.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        if reason not in STOP_REASONS:
            raise ValueError(f"reason must be one of {', '.join(STOP_REASONS)}, got {reason!r}")
        # both, so that it can be copied
        super().__init__(reason, message)
        self.reason = str(reason)
        self.message = message or f"the run was stopped: {reason}"

    def __str__(self) -> str:
        return self.message


class Pause(Control):
    """Raised by a skill, a protocol's handler or a middleware: the call waits for a decision. Needs a store.

    `reason` and `metadata` are for whoever decides.
    """

    def __init__(self, reason: str = "", metadata: Mapping[str, Any] | None = None) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"reason must be text, got {type(reason).__name__}")
        if not isinstance(metadata, Mapping | None):
            raise TypeError(f"metadata must be a mapping or None, got {type(metadata).__name__}")
        super().__init__(reason, metadata)
        self.reason = reason
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return self.reason


#: how many exceptions of a group are quoted
_MOST_MEMBERS = 10


def error_text(error: BaseException) -> str:
    """What an exception says, its notes included; its class where it says nothing; of a group what its members say."""
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(f"{type(one).__name__}: {error_text(one)}" for one in error.exceptions[:_MOST_MEMBERS])
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - a broken __str__ must not end a run
            text = ""
        text = text if text.strip() else type(error).__name__
        text = f"KeyError: {text}" if isinstance(error, KeyError) else text
    notes = getattr(error, "__notes__", ())
    return "\n".join([text, *map(str, notes)]) if isinstance(notes, list) else text


def copied(error: AnyError) -> AnyError:
    """The same error anew, for a run hangs its `result` on the one that ends it.

    A class whose constructor takes something else than its `args` is copied without it.
    """
    with suppress(Exception):  # a foreign constructor may do anything
        made = copy(error)
        if str(made) == str(error):
            return made
    made = error.__class__.__new__(error.__class__, *error.args)
    made.__dict__.update(vars(error))
    return made


def as_failure(error: BaseException) -> BaseException:
    """What a call raised, as its failure. asyncio's own cancellation (a skill that awaited a cancelled future) and
    StopIteration, which no coroutine can pass on, become errors of the call; Ctrl-C and the like stay what they are.
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

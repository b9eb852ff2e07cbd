"""`Store`: where runs are kept so that they outlive their process. `RunStore`: the rest of what a team needs of one.

A store keeps entries, and reads from them only what `runs` lists; it knows nothing about resuming. What a resume relies
on is the order of entries: of two workers that append the same `first_seq`, one wins and the other gets a
`RunConflictError`. `kernai.testing.StoreRules` tests any store against this contract, `RunStoreRules` one with leases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from kernai._util.api import Value, is_async
from kernai.errors import KernaiError, RunConflictError
from kernai.events import (
    KINDS,
    ApprovalGivenRow,
    ApprovalRequestedRow,
    InFlightRow,
    LlmResponseRow,
    MessagesSentRow,
    ModelFailedRow,
    ResultRow,
    RunResumedRow,
    RunStartRow,
    stamp,
)
from kernai.jsonio.json_data import jsonable
from kernai.values.media import Media
from kernai.values.pending_calls import PendingCall
from kernai.values.result import StopReason, Usage

if TYPE_CHECKING:
    from kernai.durable.lease import Lease

Entry = dict[str, Any]
"""What happened, as `Event.to_dict` returns it."""

#: statuses of a run that has not ended: a worker has it, its worker is gone, no worker has begun it, it waits for a
#: decision on a call, and a person must say what became of a call or remove what stops it
RUNNING, ABANDONED, QUEUED, WAITING, BLOCKED = "running", "abandoned", "queued", "waiting", "blocked"
#: how many runs an iteration fetches at once
PAGE = 500

_RUN_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")

_METHODS = ("append", "load", "load_media", "runs", "delete")
_TAKES_KEYWORDS = 8  # the flag of a function with **keywords


def check_store(store: object) -> None:
    """`TypeError` unless it is a store."""
    if isinstance(store, type) or not all(callable(getattr(store, name, None)) for name in _METHODS):
        path = store if isinstance(store, str) else "runs.db"
        raise TypeError(f"store must be a store, such as SqliteStore({path!r}), got {_shown(store)}")
    for name in _METHODS:
        if is_async(getattr(store, name)):
            raise TypeError(f"{type(store).__name__}.{name} is an async function: a store's methods are plain ones")


def leased(store: Any) -> RunStore | None:
    """The store, if it has leases: one whose `append` takes no lease has none, whatever it inherits."""
    if not callable(getattr(store, "claim", None)):
        return None
    code = getattr(store.append, "__code__", None)
    takes = code is None or code.co_flags & _TAKES_KEYWORDS or "lease" in code.co_varnames
    return store if takes else None


def _shown(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def check_run_id(run_id: str, what: str = "run_id") -> None:
    """`ValueError` unless the id is fit for a store, where it may become a part of a path or an address."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"with a store, {what} must be 1 to 128 of the characters A-Z a-z 0-9 . _ - and not start with a dot, "
            f"got {run_id!r}"
        )


def utc(at: datetime | str) -> str:
    """A time as entries have it; a text is taken for one. `ValueError` for a time without a zone."""
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        raise ValueError(f"a time needs its zone, such as datetime.now(timezone.utc), got {at!r}")
    with suppress(OverflowError):  # within a day of the first or the last that there is
        at = at.astimezone(UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunInfo(Value):
    """What `Store.runs` lists of a run.

    `status` is ``running`` while somebody works on it, ``abandoned`` where nobody does any more and it has not ended
    (in a store without leases, ``running`` too), ``queued`` before it begins, ``waiting`` for a person's decision on
    a call, ``blocked`` where a person has to say how it continues; then its stop reason. `why` says why it is
    blocked. `created_at` and `updated_at` are the times of its first and last entry, ISO 8601 in UTC. `steps` and
    `usage` are those of the whole run. `pending` are the calls that wait. `tags` are its ``metadata["tags"]``,
    `parent` is the run that it is a fork of, `lease` who works on it, `number` how many runs before had the same id,
    `length` how many entries it has, `due` the calls whose `Pause(until=...)` has passed. `decisions` are those that
    wait for somebody to resume the run, by call id: ``{"decision": ..., "by": ...}``.
    """

    run_id: str
    agent: str | None = None
    status: str = RUNNING
    updated_at: str = ""
    created_at: str = ""
    steps: int = 0
    usage: Usage = field(default=Usage())
    pending: tuple[PendingCall, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    why: str | None = None
    lease: Lease | None = None
    number: int = 0
    length: int = 0
    decisions: Mapping[str, Any] = field(default_factory=dict)
    due: tuple[str, ...] = ()

    def after(self, entries: Iterable[Mapping[str, Any]]) -> RunInfo:
        """What is to be listed once these entries have been appended. A store keeps it beside the run, so that `runs`
        need not read every entry.
        """
        changes: dict[str, Any] = {}
        for entry in entries:
            changes["updated_at"] = at = entry.get("timestamp") or changes.get("updated_at", self.updated_at)
            if not self.created_at:
                changes["created_at"] = changes.get("created_at") or at
            if entry.get("event") in _FOLLOWED:
                try:
                    self._follow(entry, changes)
                except (TypeError, ValueError, LookupError, AttributeError):  # not as kernai writes it
                    continue
        values: Iterable[Any] = map(changes.get, self.__slots__, _ALL(self))
        return RunInfo(*values)  # `replace` takes three times as long

    def _follow(self, entry: Mapping[str, Any], changes: dict[str, Any]) -> None:
        data, of_root = entry["data"], not entry.get("scope")
        match entry["event"]:
            case MessagesSentRow.type if of_root:
                changes["steps"] = entry["step"] + 1
            case LlmResponseRow.type | ModelFailedRow.type:
                used = KINDS[entry["event"]].read(data).usage()
                changes["usage"] = changes.get("usage", self.usage) + (used or Usage())
            case RunStartRow.type if of_root:
                changes.update(agent=data["agent"], status=RUNNING, **_from_metadata(data.get("metadata") or {}))
            case RunResumedRow.type if of_root:
                changes.update(status=RUNNING, why=None, pending=self.without_in_flight().pending)
            case ResultRow.type if of_root:
                changes["status"] = WAITING if data["stop_reason"] == "interrupt" else str(data["stop_reason"])
                changes.update(usage=Usage(**data["usage"]), steps=data["steps"])
                if data["stop_reason"] == StopReason.CLOSED:
                    changes["pending"] = ()
            case ApprovalRequestedRow.type | ApprovalGivenRow.type | InFlightRow.type:
                others = [one for one in changes.get("pending", self.pending) if one.call_id != data["call_id"]]
                asked = [PendingCall.from_dict(data)] if entry["event"] == ApprovalRequestedRow.type else []
                changes["pending"] = (*others, *asked)

    def without_in_flight(self) -> RunInfo:
        """Without the calls that it was blocked on."""
        pending = tuple([one for one in self.pending if not one.metadata.get("in_flight")])
        return replace(self, why=None, pending=pending)

    def due_by(self, now: float) -> tuple[str, ...]:
        """The calls whose wait is over at `now`, by the store's clock."""
        return tuple([one.call_id for one in self.pending if one.until is not None and one.until <= stamp(now)])

    def due_at(self) -> str | None:
        """When the first of the waits that end on their own does."""
        return min((one.until for one in self.pending if one.until is not None), default=None)

    def is_behind(self, other: RunInfo) -> bool:
        """Whether it comes later in a list, which is newest first."""
        same_time = self.updated_at == other.updated_at
        return self.run_id > other.run_id if same_time else self.updated_at < other.updated_at

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, without the lease."""
        return {
            "run_id": self.run_id, "agent": self.agent, "status": self.status, "updated_at": self.updated_at,
            "created_at": self.created_at, "steps": self.steps, "usage": self.usage.to_dict(),
            "pending": [one.to_dict() for one in self.pending], "tags": dict(self.tags), "parent": self.parent,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunInfo:
        """Back from `to_dict`."""
        pending = tuple(map(PendingCall.from_dict, data["pending"]))
        return cls(**{**data, "usage": Usage(**data["usage"]), "pending": pending})


_ALL = attrgetter(*RunInfo.__slots__)
#: what changes what is listed of a run
_FOLLOWED = frozenset(
    row.type for row in (
        RunStartRow, RunResumedRow, MessagesSentRow, LlmResponseRow, ModelFailedRow, ResultRow, ApprovalRequestedRow,
        ApprovalGivenRow, InFlightRow,
    )
)


def _from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tags, fork = metadata.get("tags"), metadata.get("forked_from")
    found: dict[str, Any] = {}
    if isinstance(tags, Mapping):
        found["tags"] = {str(name): str(value) for name, value in tags.items()}
    if isinstance(fork, Mapping):
        found["parent"] = fork.get("run_id")
    return found


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs `runs` is asked for; see there."""

    status: str | None = None
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    waiting: str | None = None
    parent: str | None = None
    updated_before: str | None = None
    due: bool = False

    def matches(self, info: RunInfo) -> bool:
        """Whether the run is one of them."""
        return (
            self.status in (None, info.status)
            and self.agent in (None, info.agent)
            and self.parent in (None, info.parent)
            and all(info.tags.get(name) == value for name, value in self.tags.items())
            and (self.updated_before is None or info.updated_at < self.updated_before)
            and (self.waiting is None or any(self.waiting == one.skill for one in info.pending))
            and (not self.due or (info.status == WAITING and info.due != ()))
        )


class Codec(Protocol):
    """Encrypts what a store keeps of entries and media. What `runs` lists is kept in the clear, so that it can be
    found.
    """

    def encode(self, data: bytes) -> bytes: ...
    def decode(self, data: bytes) -> bytes: ...


class RunPage:
    """The runs that were asked for, newest first. They are fetched while you iterate; `page` fetches some."""

    def __init__(self, find: Callable[[RunFilter, int, RunInfo | None], list[RunInfo]], wanted: RunFilter) -> None:
        self._find = find
        self.wanted = wanted

    def __iter__(self) -> Iterator[RunInfo]:
        last: RunInfo | None = None
        while found := self.page(PAGE, last):
            yield from found
            last = found[-1]

    def page(self, limit: int, after: RunInfo | None = None) -> list[RunInfo]:
        """At most `limit` runs that follow `after`, the last run of the page before (its `run_id` and `updated_at`)."""
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a whole number of at least 1, got {limit!r}")
        return self._find(self.wanted, limit, after)


class Store(Protocol):
    """Where runs are kept. Thread-safe. Every method but `append` may be called for a run that is not there."""

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> object:
        """Keeps all of it, durably when this returns, or nothing.

        A run's entries are counted from 0; the first of these is to be number `first_seq`. If it is not the next one,
        that is a `RunConflictError`. Media belong to the run: bytes are kept as they are, a file as it is now (`kept`),
        a URL whole. Media that are there already stay as they are.
        """

    def load(self, run_id: str) -> list[Entry]:
        """The run's entries as JSON data; none for a run that is not there."""

    def load_media(self, run_id: str) -> list[Media]:
        """The run's media, in the order in which they came, with their payloads."""

    def runs(self) -> Iterable[RunInfo]:
        """All runs, by `updated_at`, newest first, then by id."""

    def delete(self, run_id: str) -> object:
        """Forgets the run, its entries and its media. The id may be used again."""


#: who claims, and for how many seconds
Claim = tuple[str, float]


class Terms(TypedDict, total=False):
    """The keyword arguments of `RunStore.append`; see there."""

    info: RunInfo | None
    lease: Lease | None
    claim: Claim | None
    release: bool
    writer: str | None


class RunStore(Store, Protocol):
    """A `Store` whose runs have leases, and that can be asked more. The built-in stores are all of this kind.

    For a run that another worker holds it raises `RunBusyError`. Methods that change a run raise `KernaiError` if it
    does not exist.
    """

    @property
    def tenant_name(self) -> str:
        """Whose view of a store this is; empty for the store itself."""

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], *,
        info: RunInfo | None = None, lease: Lease | None = None, claim: Claim | None = None,
        release: bool = False, writer: str | None = None,
    ) -> Lease | None:
        """`Store.append`, under a lease. Gives the lease, which the append has also renewed.

        `lease` is the one held: if it is not the latest claim, nothing is written. `claim` (worker, seconds) takes
        one with the append, `release` gives it back with it. `info` is what `runs` lists from now on; by default it
        is worked out from the entries. `writer` identifies this append: to repeat it, because its answer was lost, is
        no conflict.
        """

    def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
        """The entries from number `from_seq` on."""

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        """The run's media, or those with these ids."""

    def info(self, run_id: str) -> RunInfo | None:
        """The run as `runs` lists it; None if it does not exist."""

    def runs(
        self, *, status: str | None = None, agent: str | None = None, tags: Mapping[str, str] | None = None,
        waiting: str | None = None, parent: str | None = None, updated_before: datetime | str | None = None,
        due: bool = False,
    ) -> RunPage:
        """The runs for which all of this holds: all `tags` are there with these values, a call of the skill `waiting`
        waits, one of the waits has ended on its own (`due`).
        """

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        """Takes the run's lease if nobody has it."""

    def renew(self, lease: Lease) -> Lease:
        """Makes the lease last for `lease.seconds` from now. `RunConflictError` if it is not the latest claim."""

    def release(self, lease: Lease) -> None:
        """Gives the lease back. Nothing happens if it is not the latest claim."""

    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        """Keeps the decision on a waiting call until the run is resumed. `ValueError` if it is not valid for this call.

        The append that records it uses it up. For a call that a run is `blocked` on: True calls again, False or a text
        does not.
        """

    def drop_decision(self, run_id: str, call_id: str, why: str) -> None:
        """Forgets a decision that proved invalid. The run's `why` says what was wrong with it."""

    def block(self, run_id: str, why: str, calls: Sequence[PendingCall] = ()) -> None:
        """Marks a run that no worker can continue until a person has decided, for example on `calls` in flight."""

    def request_cancel(self, run_id: str, reason: str = "") -> None:
        """Ends the run as cancelled, by its worker within seconds, or else by the next one that resumes it."""

    def cancel_requests(self, run_ids: Iterable[str]) -> Mapping[str, str]:
        """The reasons for those of these runs that are to end."""

    def close(self, run_id: str, reason: str) -> None:
        """Ends a run that waits, or whose process died, with the stop reason ``closed``; its entries stay.

        `resume` then gives that result, and only ``resume(input=...)`` opens the run again. `KernaiError` for a run
        that is finished or closed already.
        """

    def delete(
        self, run_id: str | None = None, *, updated_before: datetime | str | None = None, status: str | None = None
    ) -> int:
        """Forgets a run, or all that were last changed before a time, and have that status. Gives how many.

        `RunBusyError` for a run that somebody works on; of several, those are left out. Two numbers remain of a
        run, so that a worker that has not heard of its end cannot write into a new run of that id.
        """

    def watch(self, run_id: str, from_seq: int = 0, *, timeout: float | None = None) -> Iterator[Entry]:
        """The entries from number `from_seq` on, those that exist and those that follow. Ends when none has come for
        `timeout` seconds.
        """

    def tenant(self, name: str) -> RunStore:
        """The same store for one tenant, who sees and makes no other runs. Idempotency keys have the tenant's name."""


def check_append(run_id: str, entries: Sequence[Entry]) -> None:
    """`ValueError` for what no store can append."""
    check_run_id(run_id)
    if not entries:
        raise ValueError("append needs at least one entry: media come with the entries that name them")


def check_next(run_id: str, first_seq: int, count: int) -> None:
    """`RunConflictError` unless entry `first_seq` is the next one of a run that has `count`."""
    if first_seq == count:
        return
    if first_seq > count:
        raise RunConflictError(
            f"run {run_id!r} has {count} entries in the store, and entry {first_seq} was to be written: the run "
            "was deleted or replaced in the meantime, or this is another store. Nothing was written; load the run again"
        )
    advice = "resume it, or choose another run_id" if first_seq == 0 else "load it again, or leave it to that worker"
    raise RunConflictError(
        f"run {run_id!r} has {count} entries in the store, and this worker was about to write entry {first_seq}: "
        f"another worker has started or continued the run. Nothing was written; {advice}"
    )


def kept(media: Media) -> Media:
    """The media as a store keeps it: a file with the bytes that it holds now, metadata as JSON data.

    A file that cannot be read stays a reference, and `read_bytes` says why.
    """
    payload = media.payload
    if media.is_path and payload is None:
        try:
            payload = media.read_bytes()
        except KernaiError:  # raised again when the bytes are read
            payload = None
    return replace(media, metadata=jsonable(dict(media.metadata)), payload=payload)


def first_read(known: Media | None, brought: Media) -> Media:
    """Which of two with one id stays: the first, unless its file could not be read and now can."""
    return brought if known is None or (known.payload is None and brought.payload is not None) else known


def newest_first(infos: Iterable[RunInfo]) -> list[RunInfo]:
    """In the order of `Store.runs`, which does not depend on a store's own."""
    by_id = sorted(infos, key=lambda info: info.run_id)
    return sorted(by_id, key=lambda info: info.updated_at, reverse=True)

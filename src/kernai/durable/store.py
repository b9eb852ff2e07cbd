"""`Store`: keeps runs so that they outlive their process. `RunStore`: a store with leases, filters and decisions.

A store keeps entries and reads them only to build the list that `runs` returns; it knows nothing about resuming. A
resume relies on the numbering of entries: if two workers append the same `first_seq`, one succeeds and the other gets a
`RunConflictError`. `kernai.testing.StoreRules` tests any store against this contract, `RunStoreRules` a store with
leases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from kernai import events
from kernai._util.api import Value, check_count, check_methods, check_type, likely
from kernai.jsonio.json_data import jsonable
from kernai.values.media import Media
from kernai.values.pending_calls import PendingCall
from kernai.values.result import StopReason, Usage

if TYPE_CHECKING:
    from kernai.durable.lease import Lease

Entry = dict[str, Any]
"""One event, as `Event.to_dict` returns it."""

#: statuses of a run that has not ended: a worker holds it, its worker is gone, no worker has started it, it waits for a
#: decision on a call, a person must say what happened to a call or remove an obstacle
RUNNING, ABANDONED, QUEUED, WAITING, BLOCKED = "running", "abandoned", "queued", "waiting", "blocked"
UNFINISHED = (RUNNING, ABANDONED, QUEUED, WAITING, BLOCKED)
#: all statuses that a run can have; one that waits for a decision is not listed as ``interrupt``
STATUSES = (*UNFINISHED, *(one.value for one in StopReason if one is not StopReason.INTERRUPT))
#: how many runs iterating over a `RunPage` fetches at first, and later: a store may read all its runs for each page
PAGE, LONGEST_PAGE = 500, 8000

_RUN_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")


def check_store(store: Any) -> Any:
    """Returns a store. Raises `TypeError` for anything else."""
    wanted = f"store must be a store, such as SqliteStore({store if isinstance(store, str) else 'runs.db'!r})"
    return check_methods(store, wanted, "append", "load", "load_media", "runs", "delete")


def leased(store: Any) -> RunStore | None:
    """Returns the store if it supports leases, else None."""
    return store if hasattr(store, "claim") else None


def check_run_id(run_id: str, what: str = "run_id") -> None:
    """Raises `ValueError` unless the id is safe in a store, which may use it in a path or a URL."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"with a store, {what} must be 1 to 128 of the characters A-Z a-z 0-9 . _ - and not start with a dot, "
            f"got {run_id!r:.80}"
        )


#: a time as entries have it, or its beginning
_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}(T[0-9:.]+Z)?)?)?")


def utc(at: datetime | str) -> str:
    """Formats a time the way entries do; text is returned unchanged. Raises `ValueError` for a time without a zone, and
    for text that is not a time in UTC.
    """
    if isinstance(at, str):
        if not _TIME.fullmatch(at):  # it would be compared all the same, and delete too much
            raise ValueError(f"a time as text must be a date, or like 2026-11-20T10:00:00.000Z, got {at!r}")
        return at
    if check_type(at, datetime, "a time must be a datetime with its zone").tzinfo is None:
        raise ValueError(f"a time needs its zone, such as datetime.now(timezone.utc), got {at!r}")
    with suppress(OverflowError):  # too close to datetime.min or datetime.max to convert
        at = at.astimezone(UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


@dataclass(frozen=True, eq=False, repr=False)
class RunInfo(Value):
    """The summary of a run that `Store.runs` returns.

    `status` is ``running`` while somebody works on the run, ``abandoned`` if nobody does and it has not ended (a store
    without leases says ``running`` here too), ``queued`` before it starts, ``waiting`` for a person's decision on a
    call, ``blocked`` if a person has to say how it continues. Once the run has ended, it is the stop reason. `why` says
    why the run is blocked. `created_at` and `updated_at` are the times of the first and last entry, ISO 8601 in UTC.
    `steps` and `usage` are totals for the whole run. `pending` are the waiting calls. `tags` are the run's
    ``metadata["tags"]``, `parent` is the run it was forked from, `lease` says who works on it, `number` is how many
    earlier runs had the same id, `length` the number of entries, `due` the calls whose `Pause(until=...)` has passed.
    `decisions` are decisions that the next resume will use, by call id: ``{"decision": ..., "by": ...}``.
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
        """Returns the summary after these entries. A store keeps it with the run, so that `runs` reads no entries."""
        made = object.__new__(RunInfo)
        known = vars(made)  # each append makes a summary: this takes a fraction of the time of `replace`
        known.update(vars(self))
        for entry in entries:
            known["updated_at"] = entry.get("timestamp") or known["updated_at"]
            known["created_at"] = known["created_at"] or known["updated_at"]
            if entry.get("event") in _FOLLOWED:
                try:
                    made._follow(entry, known)
                except (TypeError, ValueError, LookupError, AttributeError):  # not as kernai writes it
                    continue
        return made

    def _follow(self, entry: Mapping[str, Any], known: dict[str, Any]) -> None:
        data, of_root = entry["data"], not entry.get("scope")
        match entry["event"]:
            case events.MessagesSentRow.type if of_root:
                known["steps"] = entry["step"] + 1
            case events.LlmResponseRow.type | events.ModelFailedRow.type:
                known["usage"] += events.KINDS[entry["event"]].usage_in(data) or Usage()
            case events.RunStartRow.type if of_root:
                known.update(agent=data["agent"], status=RUNNING)
                metadata = data.get("metadata") or {}
                if isinstance(tags := metadata.get("tags"), Mapping):
                    known["tags"] = _as_texts(tags)
                if isinstance(fork := metadata.get("forked_from"), Mapping):
                    known["parent"] = fork.get("run_id")
            case events.RunResumedRow.type if of_root:
                known.update(status=RUNNING, why=None, pending=self.not_in_flight())
            case events.ResultRow.type if of_root:
                known["status"] = WAITING if data["stop_reason"] == "interrupt" else str(data["stop_reason"])
                known.update(usage=Usage(**data["usage"]), steps=data["steps"])
                if data["stop_reason"] == StopReason.CLOSED:
                    known.update(pending=(), why=None)
            case events.ApprovalRequestedRow.type | events.ApprovalGivenRow.type | events.InFlightRow.type:
                others = [one for one in self.pending if one.call_id != data["call_id"]]
                asked = [PendingCall.from_dict(data)] if entry["event"] == events.ApprovalRequestedRow.type else []
                known["pending"] = (*others, *asked)

    def not_in_flight(self) -> tuple[PendingCall, ...]:
        """The waiting calls without those in flight that the run was blocked on."""
        return tuple([one for one in self.pending if not one.metadata.get("in_flight")])

    def due_by(self, now: float) -> tuple[str, ...]:
        """The ids of calls whose `until` has passed at `now`, by the store's clock."""
        return tuple([one.call_id for one in self.pending if one.until is not None and one.until <= events.stamp(now)])

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON data, without the lease."""
        return {
            "run_id": self.run_id, "agent": self.agent, "status": self.status, "updated_at": self.updated_at,
            "created_at": self.created_at, "steps": self.steps, "usage": self.usage.to_dict(),
            "pending": [one.to_dict() for one in self.pending], "tags": dict(self.tags), "parent": self.parent,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunInfo:
        """The inverse of `to_dict`."""
        pending = tuple(map(PendingCall.from_dict, data["pending"]))
        return cls(**{**data, "usage": Usage(**data["usage"]), "pending": pending})


#: events that change a run's summary
_FOLLOWED = frozenset(row.type for row in (
    events.RunStartRow, events.RunResumedRow, events.MessagesSentRow, events.LlmResponseRow, events.ModelFailedRow,
    events.ResultRow, events.ApprovalRequestedRow, events.ApprovalGivenRow, events.InFlightRow,
))


def _as_texts(tags: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in tags.items()}


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filters of `RunStore.runs`, which describes them."""

    status: str | None = None
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    waiting: str | None = None
    parent: str | None = None
    updated_before: str | None = None
    due: bool = False

    def __post_init__(self) -> None:
        """Raises `ValueError` or `TypeError` for a filter that no run can match."""
        if self.status is not None and self.status not in STATUSES:
            raise ValueError(f"no run can have the status {self.status!r}{likely(self.status, STATUSES, 'there are')}")
        for name in ("agent", "waiting", "parent"):
            check_type(getattr(self, name), str | None, f"{name} must be a name or an id")
        check_type(self.tags, Mapping, "tags must be a mapping of names to values")
        object.__setattr__(self, "tags", _as_texts(jsonable(self.tags)))  # as they were recorded

    def matches(self, info: RunInfo) -> bool:
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
    """Encrypts stored entries and media, but not the summaries that `runs` returns, so that runs can be searched."""

    def encode(self, data: bytes) -> bytes: ...
    def decode(self, data: bytes) -> bytes: ...


class RunPage:
    """Runs that match a filter, newest first. Iterating fetches all of them in pages; `page` fetches one page."""

    def __init__(self, find: Callable[[RunFilter, int, RunInfo | None], list[RunInfo]], wanted: RunFilter) -> None:
        self._find = find
        self.wanted = wanted

    def __iter__(self) -> Iterator[RunInfo]:
        last, limit = None, PAGE
        while found := self.page(limit, last):
            yield from found
            last, limit = found[-1], min(2 * limit, LONGEST_PAGE)

    def __bool__(self) -> bool:
        return bool(self.page(1))

    def page(self, limit: int, after: RunInfo | None = None) -> list[RunInfo]:
        """Returns at most `limit` runs after `after`, the last run of the previous page. Only its `run_id` and
        `updated_at` are used.
        """
        check_count("limit", limit)
        return self._find(self.wanted, limit, after)


class Store(Protocol):
    """Keeps runs. Thread-safe. Every method except `append` may be called for a run that does not exist."""

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> object:
        """Stores all entries and media, or none of them. They must be durable when this returns.

        A run's entries are numbered from 0, and `first_seq` is the number of the first new entry. If that is not the
        run's next number, raise a `RunConflictError`. Raise a `ValueError` unless `run_id` is 1 to 128 of the
        characters ``A-Z a-z 0-9 . _ -``, without a dot at the start.

        Media belong to the run, and come back with all their fields: bytes are stored as they are, a file with its
        current content (`Media.payload`) if it can be read, a URL in full. A stored payload never changes; that of a
        file that could not be read is added when the file comes again.
        """

    def load(self, run_id: str) -> list[Entry]:
        """The run's entries as JSON data; an empty list if the run does not exist."""

    def load_media(self, run_id: str) -> list[Media]:
        """The run's media with their payloads, in the order in which they were stored."""

    def runs(self) -> Iterable[RunInfo]:
        """All runs, sorted by `updated_at`, newest first, then by id."""

    def delete(self, run_id: str) -> object:
        """Deletes the run, its entries and its media. The id may be used again."""


#: the worker that claims a lease, and for how many seconds
Claim = tuple[str, float]


class Terms(TypedDict, total=False):
    """The keyword arguments of `RunStore.append`, which describes them."""

    info: RunInfo | None
    lease: Lease | None
    claim: Claim | None
    release: bool
    writer: str | None


class RunStore(Store, Protocol):
    """A `Store` with leases, filters, decisions and tenants. All built-in stores are `RunStore`s.

    While a worker holds a run, `claim`, `block`, `close`, `delete` and an `append` without its lease raise
    `RunBusyError`. Methods that change a run, except `delete` and `release`, raise `KernaiError` if it does not exist.
    """

    @property
    def tenant_name(self) -> str:
        """The tenant whose view this is; empty for the store itself."""

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], *,
        info: RunInfo | None = None, lease: Lease | None = None, claim: Claim | None = None,
        release: bool = False, writer: str | None = None,
    ) -> Lease | None:
        """`Store.append` under a lease. Returns the lease, which the append also renews.

        `lease` is the lease held: if it is not the latest claim, nothing is written. `claim` (worker, seconds) claims
        a lease with the append, `release` releases it. `info` is the run's new summary; by default it is derived from
        the entries. `writer` identifies this append, so that repeating it after a lost response is not a conflict.
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
        """The runs that match all of these filters.

        `tags`: the run has all of these tags, with these values. `waiting`: a call of this skill waits for a decision.
        `updated_before`: the run has not changed since. `due`: the `Pause(until=...)` of a waiting call has passed.
        """

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        """Claims the run's lease if nobody holds it."""

    def renew(self, lease: Lease) -> Lease:
        """Makes the lease last `lease.seconds` from now. Raises `RunConflictError` if it is not the latest claim."""

    def release(self, lease: Lease) -> None:
        """Releases the lease. Does nothing if it is not the latest claim."""

    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        """Stores the decision on a waiting call until the run is resumed.

        Raises `ValueError` if it is invalid for this call.

        The append that records the decision removes it; if its `info` lacks it, because its worker has not read it, the
        append raises `RunConflictError`. If the run is ``blocked`` on the call, True repeats the call; False or a text
        does not, and the model reads the text.
        """

    def drop_decision(self, run_id: str, call_id: str, why: str) -> None:
        """Drops a decision that proved invalid, and stores what was wrong with it as the run's `why`."""

    def block(self, run_id: str, why: str, calls: Sequence[PendingCall] = ()) -> None:
        """Marks a run that no worker can continue until a person has decided, for example on `calls` in flight."""

    def request_cancel(self, run_id: str, reason: str = "") -> None:
        """Asks for the run to end as cancelled, by its worker within seconds or else by the next one to resume it.

        Raises `KernaiError` if the run has finished or was closed.
        """

    def cancel_requests(self, run_ids: Iterable[str]) -> Mapping[str, str]:
        """Why the workers of these runs must end them, by run id: on request, or since somebody else has ended them."""

    def close(self, run_id: str, reason: str) -> None:
        """Ends a run that waits, or whose process died, with the stop reason ``closed``. Its entries are kept.

        `resume` then returns that result, and only ``resume(input=...)`` opens the run again. Raises `KernaiError` if
        the run has already finished or was closed.
        """

    def delete(
        self, run_id: str | None = None, *, updated_before: datetime | str | None = None, status: str | None = None
    ) -> int:
        """Deletes one run, or all runs last changed before a time and with that status. Returns how many were deleted.

        Raises `RunBusyError` if somebody works on the one run; when deleting several, such runs are skipped. Two
        numbers are kept for a deleted run, so that a worker unaware of the deletion cannot write into a new run with
        the same id.
        """

    def watch(self, run_id: str, from_seq: int = 0, *, timeout: float | None = None) -> Iterator[Entry]:
        """Yields the entries from number `from_seq` on: those that exist, then new ones as they are written. Ends after
        `timeout` seconds without an entry.
        """

    def tenant(self, name: str) -> RunStore:
        """A view of this store with only one tenant's runs. Their idempotency keys include the tenant's name."""


def check_load(run_id: str, from_seq: int, limit: int | None = None) -> None:
    """Raises `ValueError` unless these can be the id of a run, the number of an entry, and a number of entries."""
    check_run_id(run_id)
    if limit is not None:
        check_count("limit", limit, or_zero=True)
    check_count("from_seq", from_seq, or_zero=True)

"""`Head`: what a store keeps of a run beside its entries. `LeasedStore`: all store methods that need only heads.
`MemoryStore`: keeps heads and entries in memory.

The built-in stores differ in where they keep heads and entries. The rules are the same for all of them and are here:
who may write, what a decision does, when a run may be deleted. A store reads a head, lets this module change it, and
writes it back, in one transaction.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from operator import attrgetter
from time import monotonic, sleep, time
from typing import Any, Self, TypeVar, Unpack

from kernai._util.api import Closing, NotCopied, check_methods, check_seconds, check_texts, check_type
from kernai._util.redaction import printable
from kernai.durable.approvals import Decision
from kernai.durable.lease import Lease, busy, is_dead, new_worker, shown_worker
from kernai.durable.store import (
    ABANDONED,
    BLOCKED,
    RUNNING,
    Claim,
    Codec,
    Entry,
    RunFilter,
    RunInfo,
    RunPage,
    RunStore,
    Terms,
    check_load,
    check_run_id,
    utc,
)
from kernai.errors import KernaiError, RunConflictError, error_text, no_run
from kernai.events import ApprovalGivenRow, InFlightRow, ResultRow, stamp
from kernai.jsonio.json_data import copied, dumps_data, jsonable
from kernai.values.media import Media
from kernai.values.pending_calls import PendingCall
from kernai.values.result import StopReason

T = TypeVar("T")
#: how often `watch` polls a store that cannot notify it, in seconds
POLL = 0.2
WRONG_TIMEOUT = "timeout must be a number of seconds"
#: add this to `monotonic()` for the time of day without jumps
_SINCE = time() - monotonic()


@dataclass(slots=True)
class Head:
    """What a store keeps of one run. Times are in seconds by the store's clock. A run without entries was deleted, or
    never existed.
    """

    info: RunInfo
    entries: int = 0
    media: int = 0
    token: int = 0
    holder: str | None = None
    seconds: float = 0.0
    since: float = 0.0
    until: float = 0.0
    number: int = 0
    writer: str | None = None
    cancel: str | None = None
    decisions: dict[str, Any] = field(default_factory=dict)
    #: the present time by the store's clock; not stored
    now: float = 0.0

    def to_data(self) -> list[Any]:
        return [self.info.to_dict(), *_KEPT(self)]

    def shown(self) -> RunInfo:
        """The run's summary, as `runs` returns it."""
        lease = self.lease() if self.is_busy() else None
        status = RUNNING if lease is not None else self.info.status
        if lease is None and status == RUNNING:
            status = ABANDONED
        return replace(  # with copies, since the caller may change them
            self.info, status=status, lease=lease, number=self.number, length=self.entries, tags=dict(self.info.tags),
            pending=tuple(map(replace, self.info.pending)), decisions=copied(self.decisions),
            due=self.info.due_by(self.now),
        )

    def lease(self) -> Lease:
        times = stamp(self.since), stamp(self.until)
        return Lease(self.info.run_id, self.holder or "", self.token, self.seconds, *times, self.number, self.cancel)

    def is_busy(self) -> bool:
        return self.holder is not None and self.now < self.until and not is_dead(self.holder)

    def check_free(self) -> None:
        if self.is_busy():
            raise busy(self.lease())

    def check_held(self, lease: Lease) -> None:
        """Raises `RunConflictError` unless the lease is the latest claim."""
        if self.holder is None or self.token != lease.token:
            why = "it was released" if self.entries else "the store has no such run"
            why = why if self.holder is None else f"{shown_worker(self.holder)} has the run now"
            raise RunConflictError(f"the lease on run {lease.run_id!r} has ended: {why}. Nothing was written")

    def existing(self) -> Head:
        """Returns the head itself. Raises `KernaiError` if the run does not exist."""
        if self.entries == 0:
            raise no_run(self.info.run_id)
        return self

    def unfinished(self) -> Head:
        """Returns the head itself. Raises `KernaiError` if the run has an answer or was closed."""
        if self.info.status in (StopReason.FINAL, StopReason.CLOSED):
            raise KernaiError(f"run {self.info.run_id!r} has ended already: {self.info.status}")
        return self

    def claim(self, worker: str, seconds: float) -> Lease:
        check_type(worker, str, "worker must be a name")  # each look at the run reads it
        check_seconds("seconds", seconds)
        self.check_free()
        self.token += 1
        self.holder, self.seconds, self.since, self.until = worker, seconds, self.now, self.now + seconds
        return self.lease()

    def renew(self, lease: Lease) -> Lease:
        self.check_held(lease)
        self.seconds, self.until = lease.seconds, self.now + lease.seconds
        return self.lease()

    def release(self, lease: Lease) -> None:
        if self.token == lease.token:
            self.holder = None

    def append(
        self, first_seq: int, entries: Sequence[Entry], *, info: RunInfo | None = None, lease: Lease | None = None,
        claim: Claim | None = None, release: bool = False, writer: str | None = None,
    ) -> bool:
        """Updates the head for these entries. Returns False if this append was already made (a retry).

        Raises `RunConflictError` if the entries may not be written.
        """
        length = first_seq + len(entries)
        if writer is not None and writer == self.writer and self.entries == length:
            return False
        if lease is not None:
            self.check_held(lease)
        elif first_seq != 0:
            self.check_free()
        if first_seq != self.entries:
            others = "another worker has started or continued the run"
            raise RunConflictError(
                f"run {self.info.run_id!r} has {self.entries} entries in the store, and entry {first_seq} was to be "
                f"written: {others if first_seq < self.entries else 'the run was deleted, or this is another store'}. "
                "Nothing was written; resume it, or choose another run_id"
            )
        if self.decisions:
            self._use_up(entries, self.decisions if info is None else info.decisions)
        if claim is not None:
            self.claim(*claim)
        elif lease is not None:
            self.until = self.now + lease.seconds
        if release:
            self.holder = self.cancel = None
        self.info = self.info.after(entries) if info is None else info
        self.entries, self.writer = length, writer
        if self.info.status == StopReason.CLOSED:
            self.decisions = {}
        return True

    def lease_after(self, *, lease: Lease | None = None, claim: Claim | None = None, **_: object) -> Lease | None:
        """The lease that an append returns: the one it was made under, with any request to cancel."""
        return self.lease() if claim is not None or (lease is not None and self.cancel is not None) else lease

    def _use_up(self, entries: Iterable[Entry], known: Mapping[str, Any]) -> None:
        """Removes the decisions that the entries record. Raises `RunConflictError` for one that is not in `known`."""
        recorded = (ApprovalGivenRow.type, InFlightRow.type)
        used = {entry["data"]["call_id"] for entry in entries if entry.get("event") in recorded} & self.decisions.keys()
        late = [call_id for call_id in used if self.decisions[call_id] != known.get(call_id)]
        if late:
            why = f"somebody has just decided on {', '.join(sorted(late))}"
            raise RunConflictError(f"run {self.info.run_id!r}: {why}. Nothing was written; resume it again")
        self.decisions = {call_id: one for call_id, one in self.decisions.items() if call_id not in used}

    def decide(self, call_id: str, decision: Decision) -> None:
        waiting = {call.call_id: call for call in self.info.pending}
        if call_id not in waiting:
            known = f"those that do: {', '.join(waiting)}" if waiting else "no call of this run does"
            raise ValueError(f"call {call_id!r} of run {self.info.run_id!r} waits for no decision; {known}")
        if waiting[call_id].metadata.get("in_flight") and isinstance(decision.value, Mapping):
            raise ValueError(
                f"call {call_id!r} was in progress when its process died: decide True to make it again as it was, or "
                "False or a text to leave it"
            )
        decision.check_for(waiting[call_id].params)
        self.decisions[call_id] = {"decision": jsonable(decision.value), "by": decision.by}

    def drop_decision(self, call_id: str, why: str) -> None:
        self.decisions.pop(call_id, None)
        self.info = replace(self.info, why=why)

    def block(self, why: str, calls: Sequence[PendingCall]) -> None:
        self.check_free()
        in_flight = [replace(one, reason=one.reason or why, metadata={"in_flight": True}) for one in calls]
        self.info = replace(self.info, status=BLOCKED, why=why, pending=(*self.info.not_in_flight(), *in_flight))

    def request_cancel(self, reason: str) -> None:
        self.unfinished()  # otherwise it would cancel the next input
        # PostgreSQL takes no NUL and no lone surrogates
        reason = printable(check_type(reason or "", str, "reason must be text"))
        self.cancel = reason or self.cancel or "somebody cancelled the run"

    def why_cancelled(self) -> str | None:
        """Why its worker must end the run. If it was suspended, somebody else may have ended it."""
        is_over = self.info.status in (StopReason.CANCELLED, StopReason.CLOSED)
        return self.cancel or ("somebody cancelled the run" if is_over else None)

    def delete(self) -> bool:
        """Empties the head but for `token` and `number`: no worker of this run may write to a later one of its id."""
        if self.entries == 0:
            return False
        self.check_free()
        Head.__init__(self, RunInfo(self.info.run_id), token=self.token, number=self.number + 1, now=self.now)
        return True


_KEPT = attrgetter(*Head.__slots__[1:-1])


class LeasedStore(Closing, NotCopied, RunStore):
    """The methods of `RunStore` that need only heads. A store adds `_change`, `_find` and the methods of `Store`.

    A context manager, which closes the store.
    """

    _HOLDS = "locks and connections; open another store, or copy a run with fork"
    _tenant = ""

    def __init__(self, codec: Codec | None = None) -> None:
        """Raises `TypeError` for an object that is no `Codec`, such as a cipher with other methods."""
        if codec is not None:
            check_methods(codec, "codec must be an object with encode(data) and decode(data)", "encode", "decode")
        self._codec = codec

    def _sealed(self, data: object) -> str:
        """The JSON text of an entry, as it is stored. With a codec, that is base64 after an ``=``."""
        text, codec = dumps_data(data), self._codec
        return text if codec is None else f"={b64encode(codec.encode(text.encode('ascii'))).decode('ascii')}"

    def _opened(self, text: str) -> Any:
        """The inverse of `_sealed`, parsed. Raises `ValueError` if the text is not JSON."""
        if text.startswith("="):
            text = self._decoded(b64decode(text[1:])).decode("ascii")
        return json.loads(text)

    def _decoded(self, data: bytes) -> bytes:
        if self._codec is None:
            raise KernaiError("the run was stored with a codec: use it in Python, from a store opened with codec=...")
        try:
            return self._codec.decode(data)
        except Exception as error:
            raise KernaiError(f"the codec cannot decode the run: {error_text(error)}; is it the right one?") from error

    def _sealed_append(
        self, run_id: str, entries: Sequence[Entry], media: Sequence[Media], terms: Terms
    ) -> tuple[list[str], list[tuple[str, str, bytes | None]]]:
        """What an append stores: a text for each entry, and the id, text and payload of each of the media.

        Raises `ValueError` for an append that no store accepts.
        """
        check_run_id(run_id)
        if not entries:
            raise ValueError("append needs at least one entry: media come with the entries that name them")
        for name in ("info", "lease"):
            if (one := terms.get(name)) is not None and getattr(one, "run_id", None) != run_id:
                raise ValueError(f"{name} must be that of run {run_id!r}, got {one!r}")
        for one in entries if terms.get("info") is None else ():  # the list of runs is sorted by it
            check_type(one.get("timestamp", ""), str, "the timestamp of an entry must be text")
        return list(map(self._sealed, entries)), [(one.id, *self._sealed_media(one)) for one in media]

    def _sealed_media(self, media: Media) -> tuple[str, bytes | None]:
        """The text has the path or URL; the payload of a file is its current content."""
        data, payload = (None, media.data) if isinstance(media.data, bytes) else (media.data, media.payload)
        if media.is_path and payload is None:
            with suppress(KernaiError):  # raised again when the bytes are read
                payload = media.read_bytes()
        about = self._sealed({
            "kind": media.kind, "mime_type": media.mime_type, "source": media.source, "data": data,
            "metadata": dict(media.metadata),
        })
        return about, payload if payload is None or self._codec is None else self._codec.encode(payload)

    def _opened_media(self, about: str, payload: bytes | None) -> Media:
        found = self._opened(about)
        if payload is not None and about.startswith("="):
            payload = self._decoded(payload)
        data = found.pop("data")
        return Media(data=payload or b"", **found) if data is None else Media(data=data, payload=payload, **found)

    def _change(self, run_id: str, change: Callable[[Head], T], *, writes: bool = True) -> T:
        """Checks the id, passes the run's head to `change`, and stores the changed head in the same transaction."""
        raise NotImplementedError

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        """The first runs that match `wanted`, in the order of `runs`, after the run `after`."""
        raise NotImplementedError

    @contextmanager
    def _news_of(self, run_id: str) -> Iterator[Callable[[float], object]]:
        """For `watch`: yields a function that waits until there may be new entries, for at most `seconds`."""
        del run_id
        yield lambda seconds: sleep(min(seconds, POLL))

    def _disconnect(self) -> None:
        """Closes files and connections, if the store has any."""

    def tenant(self, name: str) -> Self:
        """A view of this store that sees and creates only the tenant's runs. Closing the view closes the store."""
        if self._tenant:
            raise ValueError(f"this is already the view of tenant {self._tenant!r}")
        check_run_id(name, "tenant")
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        view._tenant = str.__str__(name)  # of a text that is an enum, f-strings show the member
        return view

    @property
    def tenant_name(self) -> str:
        return self._tenant

    def info(self, run_id: str) -> RunInfo | None:
        return self._change(run_id, lambda head: head.shown() if head.entries else None, writes=False)

    def runs(
        self, *, status: str | None = None, agent: str | None = None, tags: Mapping[str, str] | None = None,
        waiting: str | None = None, parent: str | None = None, updated_before: datetime | str | None = None,
        due: bool = False,
    ) -> RunPage:
        before = None if updated_before is None else utc(updated_before)
        return RunPage(self._find, RunFilter(status, agent, tags or {}, waiting, parent, before, due))

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        return self._change(run_id, lambda head: head.existing().claim(worker, seconds))

    def renew(self, lease: Lease) -> Lease:
        return self._change(lease.run_id, lambda head: head.renew(lease))

    def release(self, lease: Lease) -> None:
        self._change(lease.run_id, lambda head: head.release(lease))

    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        made = Decision.of(decision)
        self._change(run_id, lambda head: head.existing().decide(call_id, made))

    def drop_decision(self, run_id: str, call_id: str, why: str) -> None:
        self._change(run_id, lambda head: head.existing().drop_decision(call_id, why))

    def block(self, run_id: str, why: str, calls: Sequence[PendingCall] = ()) -> None:
        self._change(run_id, lambda head: head.existing().block(why, calls))

    def request_cancel(self, run_id: str, reason: str = "") -> None:
        self._change(run_id, lambda head: head.existing().request_cancel(reason))

    def cancel_requests(self, run_ids: Iterable[str]) -> dict[str, str]:
        found = {one: self._change(one, Head.why_cancelled, writes=False) for one in check_texts("run_ids", run_ids)}
        return {run_id: reason for run_id, reason in found.items() if reason is not None}

    def close(self, run_id: str | None = None, reason: str = "") -> None:
        """Closes the store; may be called twice. With a run's id, ends that run instead, as `RunStore.close` does."""
        if run_id is None and not reason:
            self._disconnect()
            return
        run_id = check_type(run_id, str, "run_id must say which run to close")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"reason must say why the run is closed, got {reason!r}")
        info = self._change(run_id, lambda head: head.existing().unfinished().shown(), writes=False)
        error = f"the run was closed: {reason}"
        row = ResultRow(None, StopReason.CLOSED.value, info.steps, info.usage.to_dict(), error)
        row.place = (max(info.steps - 1, 0), 0, None, "", run_id, StopReason.CLOSED.value)
        row.at = time()
        self.append(run_id, info.length, [row.entry()], [], claim=(new_worker(), 1.0), release=True)

    def delete(
        self, run_id: str | None = None, *, updated_before: datetime | str | None = None, status: str | None = None
    ) -> int:
        if (run_id is None) == (updated_before is None and status is None):
            raise TypeError("delete needs either a run_id, or updated_before=... or status=... that says which runs")
        if run_id is not None:
            return int(self._change(run_id, Head.delete))
        found = self.runs(updated_before=updated_before, status=status)

        def change(head: Head) -> bool:  # the run may have changed since it was listed, or been claimed
            return not head.is_busy() and found.wanted.matches(head.shown()) and head.delete()

        return sum(self._change(one.run_id, change) for one in found)

    def watch(self, run_id: str, from_seq: int = 0, *, timeout: float | None = None) -> Iterator[Entry]:
        last, limit = monotonic(), inf if timeout is None else check_type(timeout, int | float, WRONG_TIMEOUT)
        with self._news_of(run_id) as wait:
            while True:
                if found := self.load(run_id, from_seq):
                    yield from found
                    from_seq, last = from_seq + len(found), monotonic()
                elif (left := last + limit - monotonic()) > 0:
                    wait(left)
                else:
                    return


class MemoryStore(LeasedStore):
    """Keeps runs as long as the process lives: for tests, and for pauses that a person answers soon.

    Entries are kept as JSON text, so that `load` returns the same as other stores.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], _Run] = {}

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Unpack[Terms]
    ) -> Lease | None:
        texts, brought = self._sealed_append(run_id, entries, media, terms)
        with self._lock:
            run = self._run(run_id)
            if run.head.append(first_seq, entries, **terms):
                run.texts += texts
                for media_id, about, payload in brought:
                    if media_id not in run.media or (payload is not None and run.media[media_id][1] is None):
                        run.media[media_id] = about, payload
                self._runs[self._tenant, run_id] = run
            return run.head.lease_after(**terms)

    def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
        check_load(run_id, from_seq)
        with self._lock:
            texts = self._run(run_id).texts[from_seq:]
        return [json.loads(text) for text in texts]

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        check_run_id(run_id)
        wanted = None if ids is None else set(check_texts("ids", ids, "ids"))
        with self._lock:
            found = list(self._run(run_id).media.items())
        return [self._opened_media(*one) for media_id, one in found if wanted is None or media_id in wanted]

    def _change(self, run_id: str, change: Callable[[Head], T], *, writes: bool = True) -> T:
        del writes
        check_run_id(run_id)
        with self._lock:
            run = self._run(run_id)
            made = change(run.head)
            if run.head.entries == 0:
                run.texts, run.media = [], {}
            return made

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        with self._lock:
            runs = [self._run(run_id) for tenant, run_id in self._runs if tenant == self._tenant]
            found = [info for info in (run.head.shown() for run in runs if run.texts) if wanted.matches(info)]
        if after is not None:
            last, last_id = after.updated_at, after.run_id
            found = [one for one in found if one.updated_at < last or (one.updated_at == last and one.run_id > last_id)]
        found.sort(key=lambda one: one.run_id)
        return sorted(found, key=lambda one: one.updated_at, reverse=True)[:limit]

    def _run(self, run_id: str) -> _Run:
        """The run as it is now; without entries if it does not exist."""
        run = self._runs.get((self._tenant, run_id)) or _Run(run_id)
        run.head.now = monotonic() + _SINCE
        return run


class _Run:
    def __init__(self, run_id: str) -> None:
        self.head = Head(RunInfo(run_id))
        self.texts: list[str] = []
        self.media: dict[str, tuple[str, bytes | None]] = {}

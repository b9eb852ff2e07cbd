"""`MemoryStore`: runs in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar, Unpack

from kernai.durable.lease import Lease
from kernai.durable.run_head import Head, LeasedStore
from kernai.durable.store import (
    Entry,
    RunFilter,
    RunInfo,
    Terms,
    check_append,
    check_run_id,
    first_read,
    kept,
    newest_first,
)
from kernai.jsonio.json_data import dumps_data
from kernai.values.media import Media

T = TypeVar("T")
#: from the process's monotonic clock, which never jumps, to the time of day when it began
_SINCE = time.time() - time.monotonic()


class MemoryStore(LeasedStore):
    """Keeps runs for as long as the process lives: for tests, and for pauses that a person answers soon.

    Entries are kept as JSON text, so that what comes back is what another store would give.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._runs: dict[tuple[str, str], _Run] = {}

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Unpack[Terms]
    ) -> Lease | None:
        check_append(run_id, entries)
        texts = list(map(dumps_data, entries))
        brought = [kept(one) for one in media]
        with self._lock:
            run = self._runs.get((self._tenant, run_id)) or _Run(run_id)
            run.head.now = self._now()
            if run.head.append(first_seq, entries, **terms):
                run.texts += texts
                for one in brought:
                    run.media[one.id] = first_read(run.media.get(one.id), one)
                self._runs[self._tenant, run_id] = run
                self._news.notify_all()
            return run.head.lease_after(**terms)

    def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
        check_run_id(run_id)
        with self._lock:
            run = self._runs.get((self._tenant, run_id))
            texts = run.texts[from_seq:] if run else []
        return [json.loads(text) for text in texts]

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        check_run_id(run_id)
        wanted = None if ids is None else set(ids)
        with self._lock:
            run = self._runs.get((self._tenant, run_id))
            found = list(run.media.values()) if run else []
        return [one for one in found if wanted is None or one.id in wanted]

    def _change(self, run_id: str, change: Callable[[Head], T], *, writes: bool = True) -> T:
        del writes
        with self._lock:
            run = self._runs.get((self._tenant, run_id)) or _Run(run_id)
            run.head.now = self._now()
            made = change(run.head)
            if run.head.entries == 0:
                run.texts, run.media = [], {}
            return made

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        with self._lock:
            now = self._now()
            heads = [run.head for (tenant, _), run in self._runs.items() if tenant == self._tenant and run.head.entries]
            for head in heads:
                head.now = now
            found = [info for info in (head.shown() for head in heads) if wanted.matches(info)]
        ordered = newest_first(found if after is None else [info for info in found if info.is_behind(after)])
        return list(islice(ordered, limit))

    def _now(self) -> float:
        return time.monotonic() + _SINCE

    @contextmanager
    def _news_of(self, run_id: str) -> Iterator[Callable[[int, float], object]]:
        def wait(from_seq: int, seconds: float) -> None:
            with self._news:
                run = self._runs.get((self._tenant, run_id))
                if run is None or len(run.texts) <= from_seq:
                    self._news.wait(seconds)

        yield wait


class _Run:
    def __init__(self, run_id: str) -> None:
        self.head = Head(RunInfo(run_id))
        self.texts: list[str] = []
        self.media: dict[str, Media] = {}

"""`fork`: copies a run up to a step, under another id, to continue differently from there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kernai.durable.recorded_run import RecordedRun
from kernai.durable.store import check_store
from kernai.errors import KernaiError
from kernai.events import MessagesSentRow, RunStartRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernai.durable.store import Entry, Store


def fork(store: Store, source: str, *, at_step: int, run_id: str) -> str:
    """Copies a run up to where its step `at_step` begins, to the new `run_id`, and returns that id; then `resume` it.

    Steps count from 0; at step 0 only the input is kept. `KernaiError` for a run that the store does not have,
    `ValueError` for a step that the run did not reach, `RunConflictError` if the new id is taken.
    """
    check_store(store)
    entries = store.load(source)
    if not entries:
        raise KernaiError(f"the store has no run {source!r}; its runs() lists those it has")
    recorded = RecordedRun(source, entries)
    begins = {one.step: one.seq for one in recorded.scopes[""] if isinstance(one.row, MessagesSentRow)}
    if type(at_step) is not int or at_step not in begins:
        known = ", ".join(map(str, begins)) or "none"
        raise ValueError(f"at_step must be a step in which run {source!r} called the model ({known}), got {at_step!r}")
    # including rows that a resume left out: they were paid for, and `run_resumed` has their numbers
    copies = [_copied(entry, run_id) for entry in entries[:begins[at_step]]]
    start = copies[0]["data"]
    start["metadata"] = {**(start.get("metadata") or {}), "forked_from": {"run_id": source, "at_step": at_step}}
    text = json.dumps(copies, default=str)
    store.append(run_id, 0, copies, [one for one in store.load_media(source) if one.id in text])
    return run_id


def _copied(entry: Mapping[str, Any], run_id: str) -> Entry:
    """The entry as the other run's."""
    copy = {**entry, "run_id": run_id}
    if entry["event"] == RunStartRow.type:
        copy["data"] = {**entry["data"], "run_id": run_id}
    return copy

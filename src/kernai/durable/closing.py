"""`closing`: how a run ends on record that nobody is to continue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kernai.durable.recorded_run import RecordedRun
from kernai.errors import KernaiError
from kernai.events import ResultRow
from kernai.values.result import StopReason


def closing(run_id: str, entries: Sequence[Mapping[str, Any]], reason: str) -> dict[str, Any]:
    """The entry that closes a run which has these entries.

    `ValueError` without a reason; `KernaiError` for a run that is not there, is finished or is closed already.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"reason must say why the run is closed, got {reason!r}")
    if not entries:
        raise KernaiError(f"the store has no run {run_id!r}; its runs() lists those it has")
    recorded = RecordedRun(run_id, entries)
    if recorded.is_over:
        assert recorded.result is not None
        raise KernaiError(f"run {run_id!r} has ended already: {recorded.result.stop_reason}")
    error = f"the run was closed: {reason}"
    row = ResultRow(None, StopReason.CLOSED.value, recorded.steps, recorded.usage().to_dict(), error)
    row.place = (max(recorded.steps - 1, 0), 0, None, "", recorded.start.run_id, StopReason.CLOSED.value)
    row.at = time.time()
    return row.entry()

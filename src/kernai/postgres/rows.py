"""A run's row in the table `runs`: its `Head`, and the columns by which it is found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kernai.durable.run_head import Head
from kernai.durable.store import RunInfo
from kernai.jsonio.json_data import dumps_data

NOW = "extract(epoch FROM clock_timestamp())::float8"
IS_DUE = """due <= to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
_HEAD = ("entries", "token", "holder", "seconds", "since", "until", "number", "writer", "cancel")
LISTED = ("status", "updated_at", "agent", "parent", "due", "tags", "waiting", "info")
COLUMNS = ("decisions", *_HEAD, *LISTED)
#: what `head_of` reads
SELECTED = f"info, decisions, {', '.join(_HEAD)}, {NOW}"


def head_of(info: str, decisions: str, *rest: Any) -> Head:
    """The head of a row."""
    *values, now = rest
    head = Head(RunInfo.from_dict(json.loads(info)), now=now, decisions=json.loads(decisions))
    for name, value in zip(_HEAD, values, strict=True):
        setattr(head, name, value)
    return head


def row_of(head: Head) -> dict[str, Any]:
    """The columns of a head."""
    row = {name: getattr(head, name) for name in _HEAD} | listed(head.info)
    row["decisions"] = json.dumps(head.decisions)
    return row if head.entries else {**row, "status": ""}


def listed(info: RunInfo) -> dict[str, Any]:
    """The columns by which a run is found, and what is shown of it."""
    return {
        "status": info.status, "updated_at": info.updated_at, "agent": dumps_data(info.agent),
        "parent": dumps_data(info.parent), "due": info.due_at(), "tags": tagged(info.tags.items()),
        "waiting": [dumps_data(one.skill) for one in info.pending], "info": dumps_data(info.to_dict()),
    }


def tagged(tags: Iterable[tuple[str, str]]) -> list[str]:
    """Tags as they are stored."""
    return [json.dumps([name, value]) for name, value in tags]

"""Events: read-only, stamped, and the same after a trip through JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Event

FIELDS = ("type", "data", "step", "depth", "task_id", "scope", "run_id", "timestamp")


def test_an_event_says_what_happened_and_where() -> None:
    event = Event("skill_result", {"skill": "echo"}, 2, 1, "a", "2.a", "run-1", 0.25)
    said = ["skill_result", {"skill": "echo"}, 2, 1, "a", "2.a", "run-1", "1970-01-01T00:00:00.250Z"]
    assert [getattr(event, name) for name in FIELDS] == said
    assert event.to_dict() == dict(zip(("event", *FIELDS[1:]), said, strict=True))
    assert repr(event).startswith("Event(")
    assert all(part in repr(event) for part in ("skill_result", "echo", "step=2", "2.a"))


def test_an_event_needs_no_more_than_a_type() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    event = Event("final")
    assert [getattr(event, name) for name in FIELDS[:-1]] == ["final", None, None, 0, None, "", ""]
    assert before <= datetime.fromisoformat(event.timestamp) <= datetime.now(UTC)
    with pytest.raises(TypeError):
        hash(event)


@pytest.mark.parametrize("name", FIELDS)
def test_an_event_is_read_only(name: str) -> None:
    event = Event("final", "42")
    with pytest.raises(AttributeError):
        setattr(event, name, "other")
    with pytest.raises(AttributeError):
        delattr(event, name)
    assert "attrgetter" not in str(getattr(Event, name).__doc__), "which `help` would show"
    with pytest.raises(AttributeError):
        event.more = 1  # type: ignore[attr-defined]  # the point


@given(st.floats(0, 2**33))
def test_a_timestamp_is_iso_8601_in_utc_with_milliseconds(seconds: float) -> None:
    stamp = Event("final", timestamp=seconds).timestamp
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    read = datetime.fromisoformat(stamp)
    assert read.utcoffset() == timedelta(0)
    assert abs(read.timestamp() - seconds) < 0.0011

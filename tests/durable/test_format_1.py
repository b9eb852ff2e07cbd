"""Recordings that an older version made, in format 1: each is cut, resumed and replayed, and a user
notices what that version's own resume gave.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kernai.durable.recorded_run import RecordedRun
from tests.durable.format_1.world import RUN, replayed, resumed, store_of

FILE = Path(__file__).with_name("format_1") / "recordings.jsonl.gz"
COUNT = 200
PER_TEST = 10
STRIDE = 39
#: cuts after which the older version forgot a `Stop` beside a call that waited
FORGOTTEN = {(60, length) for length in range(14, 30)}
#: a run that ended in an observer of its task, which the older version could not replay
UNREPLAYED = 177


@lru_cache
def lines() -> list[str]:
    return gzip.decompress(FILE.read_bytes()).decode("ascii").splitlines()


def cases(numbers: range) -> Iterator[dict[str, Any]]:
    return (json.loads(lines()[number]) for number in numbers)


def allow_outcomes(now: dict[str, Any] | None, then: dict[str, Any] | None) -> None:
    """Since then, the messages have the outcomes of calls that ended the run, or were made while others waited."""
    if now and then and then.get("stop", "final") != "final" and set(then["read"]) <= set(now.get("read", [])):
        then["read"] = now["read"]


def check_cut(case: dict[str, Any], length: int) -> None:
    """A recording of so many entries is resumed to its end with fresh objects, by one of the twins."""
    known = case["cuts"][length - 1]
    if known is None or (case["number"], length) in FORGOTTEN:
        return  # the older version broke down here
    expected = [dict(one) for one in case["facts"][known]]
    if expected[0].get("stop") == "interrupt" and RecordedRun(RUN, case["entries"][:length]).result is None:
        expected[0]["wrote"] = True  # since then it is put on record that the run waits
    is_async = (case["number"] + length) % 2 == 1
    got = json.loads(json.dumps(resumed(case["world"], store_of(case, length), is_async=is_async)))
    if expected[0].get("raised") == "ReplayDivergenceError":  # steps on record had to fit the world's `max_steps` of today
        assert got[0].get("raised") in (None, "InFlightError")
        return
    for one, now in zip(expected, got, strict=True):
        if now.get("replay", one) is None and one["replay"] is not None and one["replay"]["stop"] == "cancelled":
            one["replay"] = None  # since then a replay of a run that `sys.exit` ended has no result, as after Ctrl-C
        allow_outcomes(now, one)
        allow_outcomes(now.get("replay"), one.get("replay"))
    assert got == expected, f"recording {case['number']}, its first {length} entries, {'async' if is_async else 'sync'}"


def check_replay(case: dict[str, Any]) -> None:
    got = json.loads(json.dumps(replayed(case["world"], store_of(case))))
    expected = {"replay": None, "effects": []} if case["number"] == UNREPLAYED else case["replay"]
    allow_outcomes(got.get("replay"), expected.get("replay"))
    assert got == expected, f"recording {case['number']}"


def test_the_recordings_are_of_format_1() -> None:
    assert len(lines()) == COUNT
    assert all(
        entry["data"]["format"] == 1
        for case in cases(range(0, COUNT, 20)) for entry in case["entries"] if entry["event"] == "run_start"
    )


def test_a_recording_of_format_1_cut_off_at_some_events_is_resumed_as_before() -> None:
    for case in cases(range(0, COUNT, 4)):
        check_cut(case, 1 + case["number"] * 7 % len(case["entries"]))


def test_a_complete_recording_of_format_1_is_replayed_as_before() -> None:
    for case in cases(range(1, COUNT, 4)):
        check_replay(case)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_a_recording_of_format_1_cut_off_anywhere_is_resumed_as_before(first: int) -> None:
    """One cut in `STRIDE`, starting elsewhere in each recording: nearly every kind of event. An odd one uses both twins."""
    for case in cases(range(first, first + PER_TEST)):
        if case["number"] % 4 != 1:  # the test above replays those
            check_replay(case)
        for length in range(1 + case["number"] * 17 % STRIDE, len(case["entries"]) + 1, STRIDE):
            check_cut(case, length)

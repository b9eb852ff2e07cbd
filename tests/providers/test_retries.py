"""Whether a failed call is tried again, and what the vendors' hints say."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import ProviderError
from kernai_providers.failures import LONGEST_HINT, RetryPolicy, retry_after_of

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()
BUSY = ProviderError("busy", status=429, retryable=True, vendor="acme")


def asking(seconds: float | None) -> ProviderError:
    return ProviderError(
        "acme: HTTP 429 slow_down: busy", status=429, code="slow_down", retryable=True, retry_after=seconds, vendor="acme"
    )


# --------------------------------------------------------------------------------------------------- the policy


@pytest.mark.parametrize("attempt,longest", [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (5000, 8.0)])
def test_without_a_hint_the_wait_doubles_up_to_its_cap_and_chance_takes_off_up_to_half(
    attempt: int, longest: float
) -> None:
    policy = RetryPolicy(max_retries=10_000)
    assert policy.wait_before(attempt, BUSY, lambda: 0.0) == longest / 2
    assert policy.wait_before(attempt, BUSY, lambda: 0.5) == longest * 0.75
    assert policy.wait_before(attempt, BUSY, lambda: 1.0) == longest


def test_by_default_chance_is_real() -> None:
    waits = {RetryPolicy().wait_before(0, BUSY) for _ in range(20)}
    assert len(waits) > 1
    assert all(wait is not None and 0.25 <= wait <= 0.5 for wait in waits)


def test_the_wait_without_a_hint_is_never_longer_than_the_limit() -> None:
    assert RetryPolicy(max_retry_wait=0.1).wait_before(0, BUSY, lambda: 1.0) == 0.1


@pytest.mark.parametrize("hint", [0.0, 0.001, 0.7, 37.0, 60.0])
def test_a_hint_is_obeyed_exactly(hint: float) -> None:
    for chance in (0.0, 1.0):
        assert RetryPolicy().wait_before(1, asking(hint), lambda: chance) == hint  # noqa: B023 - called at once


@pytest.mark.parametrize("hint", [-1.0, math.nan, -math.inf])
def test_a_hint_that_is_no_time_is_none(hint: float) -> None:
    assert RetryPolicy().wait_before(0, asking(hint), lambda: 1.0) == 0.5


def test_retries_are_counted_and_permanent_failures_are_not_retried() -> None:
    policy = RetryPolicy(max_retries=2)
    assert [policy.wait_before(attempt, BUSY) is None for attempt in range(4)] == [False, False, True, True]
    assert RetryPolicy(max_retries=0).wait_before(0, BUSY) is None
    assert policy.wait_before(0, ProviderError("bad request", status=400, retry_after=1)) is None


@pytest.mark.parametrize("hint,shown", [(60.5, "61 s"), (86_400.0, "86400 s"), (math.inf, "inf s")])
def test_a_hint_beyond_the_limit_ends_the_call_and_says_what_to_do(hint: float, shown: str) -> None:
    error = asking(hint)
    with pytest.raises(ProviderError) as caught:
        RetryPolicy(max_retry_wait=60).wait_before(0, error)
    raised = caught.value
    assert str(raised) == (
        f"acme: HTTP 429 slow_down: busy; acme asks to wait {shown}, which is longer than the limit of 60 s: "
        "call again after that time, or raise the limit (max_retry_wait)"
    )
    assert raised.__cause__ is error
    fields = ("status", "code", "retryable", "retry_after", "vendor")
    assert [getattr(raised, name) for name in fields] == [getattr(error, name) for name in fields]


def test_a_hint_beyond_the_limit_says_nothing_where_no_retry_is_left() -> None:
    assert RetryPolicy(max_retries=0).wait_before(0, asking(3600)) is None


@pytest.mark.parametrize(
    "arguments,error,message",
    [
        ({"max_retries": -1}, ValueError, "max_retries must be at least 0"),
        ({"max_retries": 1.5}, TypeError, "max_retries must be an int, got 1.5"),
        ({"max_retries": True}, TypeError, "max_retries must be an int, got True"),
        ({"max_retries": None}, TypeError, "max_retries must be an int"),
        ({"base": -0.1}, ValueError, "base must be at least 0 and finite, got -0.1"),
        ({"base": "1"}, TypeError, "base must be a number of seconds, got '1'"),
        ({"cap": math.inf}, ValueError, "cap must be at least 0 and finite"),
        ({"max_retry_wait": math.nan}, ValueError, "max_retry_wait must be at least 0 and finite"),
        ({"max_retry_wait": None}, TypeError, "max_retry_wait must be a number of seconds"),
        ({"base": 9}, ValueError, "cap=8.0 must be at least base=9"),
    ],
)
def test_a_policy_that_cannot_be_is_an_error_that_names_the_argument(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        RetryPolicy(**arguments)


def test_a_policy_is_a_value() -> None:
    policy = RetryPolicy()
    assert policy == RetryPolicy(2, 0.5, 8.0, 60.0)
    assert replace(policy, max_retries=0) != policy
    with pytest.raises(FrozenInstanceError):
        policy.cap = 1.0  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------- the hints


def google(*delays: object) -> dict[str, Any]:
    return {"error": {"code": 429, "details": [{"@type": "…/google.rpc.RetryInfo", "retryDelay": one} for one in delays]}}


@pytest.mark.parametrize(
    "headers,body,seconds",
    [
        ({}, None, None),
        ({"retry-after": "7"}, None, 7.0),
        ({"Retry-After": " 7 "}, None, 7.0),
        ({"retry-after": "0"}, None, 0.0),
        ({"retry-after": "7, 7"}, None, 7.0),  # of two headers, which a transport joins
        ({"retry-after": "0, 2.5, 1"}, None, 2.5),
        ({"retry-after": "7,"}, None, None),
        ({"retry-after": "7, soon"}, None, None),
        ({"retry-after": "1.25"}, None, 1.25),
        ({"retry-after": "3600"}, None, 3600.0),
        ({"retry-after-ms": "1500"}, None, 1.5),
        ({"Retry-After-Ms": "12.5"}, None, 0.0125),
        # the dates of RFC 9110, section 5.6.7
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, None, 30.0),
        ({"retry-after": "Sunday, 01-Mar-26 12:00:30 GMT"}, None, 30.0),
        ({"retry-after": "Sun Mar  1 12:00:30 2026"}, None, 30.0),
        ({"retry-after": "Wed Mar 11 12:00:00 2026"}, None, 864_000.0),
        ({"retry-after": "sun, 01 mar 2026 12:00:59 gmt"}, None, 59.0),
        ({"retry-after": "Sun, 01 Mar 2026 13:00:30 +0100"}, None, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:59:59 GMT"}, None, 0.0),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:37 GMT"}, None, 0.0),
        ({"retry-after": "Sun Nov  6 08:49:37 1994"}, None, 0.0),
        ({"retry-after": "Sat, 30 Feb 2026 12:00:00 GMT"}, None, None),
        ({"retry-after": "Sun, 01 Mrz 2026 12:00:30 GMT"}, None, None),
        ({"retry-after": "Sun, 01 Mar 2026 25:00:30 GMT"}, None, None),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30"}, None, 30.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, None, None),
        ({}, google("37s"), 37.0),
        ({}, google("0.5s"), 0.5),
        ({}, google("1.000000001s", "2s"), 2.0),
        ({}, [google("37s")], 37.0),
        ({}, google("37"), None),
        ({}, google("-1s", 5, None), None),
        ({}, {"error": {"details": "37s"}}, None),
        ({}, {"error": {"details": ["37s", None]}}, None),
        ({}, {"error": "37s"}, None),
        ({}, [], None),
        ({}, "37s", None),
        # the more exact one first, and the next where it says nothing
        ({"retry-after-ms": "100", "retry-after": "9"}, google("37s"), 0.1),
        ({"retry-after-ms": "soon", "retry-after": "9"}, google("37s"), 9.0),
        ({"retry-after-ms": "-5", "retry-after": "nan"}, google("37s"), 37.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, None, 0.0),
        ({"x-retry-after": "9"}, None, None),
    ],
)
def test_hints_are_read_where_vendors_put_them(headers: dict[str, str], body: object, seconds: float | None) -> None:
    assert retry_after_of(headers, body, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    ["", " ", "soon", "-1", "+1", "nan", "inf", "Infinity", "1e3", "0x10", "1_000", "1,5", "5s", "5 5", "٣", "²", "."
     , "9" * 12, "9" * 13, "9" * 5000, "1." + "0" * 5000, str(int(LONGEST_HINT) + 1), "\x005"],
)  # fmt: skip
def test_what_is_no_time_or_an_absurd_one_is_no_hint(value: str) -> None:
    assert retry_after_of({"retry-after": value}, None, NOW) is None
    assert retry_after_of({"retry-after-ms": f"{value}000" if value.strip() else value}, None, NOW) is None
    assert retry_after_of({}, google(value + "s"), NOW) is None


@given(st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)), st.integers(-9_999, 9_999_999))  # noqa: DTZ001 - as UTC
def test_a_date_in_any_of_the_three_formats_means_the_same(now: datetime, ahead: int) -> None:
    now = now.replace(microsecond=0, tzinfo=UTC)
    then = now + timedelta(seconds=ahead)
    formats = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b ~ %H:%M:%S %Y")
    for written in formats:
        value = then.strftime(written).replace("~", f"{then.day:2}")
        assert retry_after_of({"retry-after": value}, None, now.timestamp()) == max(0, ahead)


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text(max_size=30)), st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["error", "details", "retryDelay"]), inner, max_size=3),
))  # fmt: skip
def test_nothing_that_is_sent_makes_it_fail(headers: dict[str, str], body: object) -> None:
    hint = retry_after_of(headers, body, NOW)
    assert hint is None or 0 <= hint <= LONGEST_HINT

"""What each vendor's failure becomes: one error, one readable line, no secret."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import ProviderError
from kernai._util.redaction import Redactor
from kernai_providers.failures import LONGEST_HINT, Recipient, RetryPolicy, failure, failure_in_stream, retry_after_of

NOW = 1_772_366_400.0
BUSY_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def failed(status: int, body: object = b"", headers: dict[str, str] | None = None, **options: Any) -> ProviderError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return failure(status, headers or {}, raw, Recipient("acme", **options), NOW)


def openai(code: str | None, kind: str | None, message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"}


def gemini(code: int, status: str, message: str = "no", *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def quota(name: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": name}]}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
PER_MINUTE = quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")
PER_DAY = quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")


# --------------------------------------------------------------------------------------- the vendors' shapes


@pytest.mark.parametrize("status,body,headers,code,message", [
    # OpenAI: the code, else the type
    (429, openai("rate_limit_exceeded", "tokens", "Rate limit reached"), {"x-request-id": "req_123"},
     "rate_limit_exceeded", "acme: HTTP 429 rate_limit_exceeded: Rate limit reached (request id req_123)"),
    (400, openai(None, "invalid_request_error", "Bad\n  value"), {},
     "invalid_request_error", "acme: HTTP 400 invalid_request_error: Bad value"),
    # Anthropic: the header's request id before the body's
    (529, anthropic("overloaded_error", "Overloaded"), {"Request-Id": "req_head"},
     "overloaded_error", "acme: HTTP 529 overloaded_error: Overloaded (request id req_head)"),
    (500, anthropic("api_error"), {}, "api_error", "acme: HTTP 500 api_error: no (request id req_body)"),
    # Gemini, as the only item of a list
    (503, [gemini(503, "UNAVAILABLE", "Try later")], {}, "UNAVAILABLE", "acme: HTTP 503 UNAVAILABLE: Try later"),
    # Ollama
    (404, {"error": "model 'm' not found"}, {}, None, "acme: HTTP 404: model 'm' not found; check the model's name and base_url"),
    (401, {"error": "unauthorized", "signin_url": "https://ollama.com/connect?key=k"}, {}, None,
     "acme: HTTP 401: unauthorized: https://ollama.com/connect?key=k; check that api_key holds a valid key for this address"),
    # those who say it in other words
    (400, {"status": 400, "error": "Bad Request", "message": "max_tokens is too large", "path": "/v1"}, {}, None,
     "acme: HTTP 400: Bad Request: max_tokens is too large"),
    (400, {"error": "bad", "message": " bad "}, {}, None, "acme: HTTP 400: bad"),
    (400, {"error": "invalid_token", "error_description": "It is expired"}, {}, None, "acme: HTTP 400: invalid_token: It is expired"),  # RFC 6749
    (401, {"message": "No token", "type": "auth"}, {}, "auth", "acme: HTTP 401 auth: No token; check that api_key holds a valid key for this address"),
    (422, {"detail": [{"loc": ["body"], "msg": "é"}]}, {}, None, 'acme: HTTP 422: [{"loc": ["body"], "msg": "é"}]'),
    (400, {"code": "Client error", "error": "Wrong model"}, {}, "Client error", "acme: HTTP 400 Client error: Wrong model"),
    (502, {"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": "upstream: boom"}}}, {},
     "502", "acme: HTTP 502: Provider returned error: upstream: boom"),
    (400, {"error": {"code": "tool_use_failed", "message": "See 'failed_generation'.", "failed_generation": "<function=f"}}, {},
     "tool_use_failed", "acme: HTTP 400 tool_use_failed: See 'failed_generation'.: <function=f"),
    (400, {"error": {"code": "1234", "type": "bad_thing", "message": "x"}}, {}, "bad_thing", "acme: HTTP 400 bad_thing: x"),
    (400, {"type": "error", "message": "x"}, {}, None, "acme: HTTP 400: x"),
    (400, b'\xef\xbb\xbf{"error": "x"}', {}, None, "acme: HTTP 400: x"),
    (400, {"error": {"code": True, "type": ["a"], "message": "x"}}, {}, None, "acme: HTTP 400: x"),
    (400, {"error": {"code": "bad_thing"}}, {}, "bad_thing", "acme: HTTP 400 bad_thing: Bad Request"),
])  # fmt: skip
def test_each_vendors_error_keeps_its_own_words(status: int, body: object, headers: dict[str, str], code: str | None, message: str) -> None:
    error = failed(status, body, headers)
    assert str(error) == message
    assert (error.status, error.code, error.vendor) == (status, code, "acme")


@pytest.mark.parametrize("status,body,message", [
    (502, b"", "HTTP 502 Bad Gateway"), (599, b"", "HTTP 599 without an explanation"),
    *((status, b" \r\n ", f"HTTP {status} {reason}") for status, reason in (
        (520, "Unknown Origin Error"), (522, "Origin Timed Out"), (524, "Origin Timed Out"), (529, "Overloaded"))),
    (500, b"upstream\tconnect \x00\x1b error\n", "HTTP 500: upstream connect error"),
    (500, "\ufeffça va\u202e\u2028!".encode(), "HTTP 500: ça va !"),
    (500, b"\xff\xfe", "HTTP 500: \ufffd\ufffd"),
    (500, b'{"error": {"message": "cut', 'HTTP 500: {"error": {"message": "cut'),
    (500, b'{"unknown": 1}', 'HTTP 500: {"unknown": 1}'),
    (500, b'{"error": {}}', 'HTTP 500: {"error": {}}'),
    (500, b'{"error": {"message": "\\ud800"}}', "HTTP 500 Internal Server Error"),
    (502, b"<html><head><title>502 Bad\nGateway</title></head><body>x</body>", "HTTP 502: 502 Bad Gateway"),
    (502, b"<!DOCTYPE html>\n<STYLE>a{}</style>\n<h1>Sorry &amp; &lt;bye&gt;</h1><script>if(a<b)\n</Script >",
     "HTTP 502: Sorry & <bye>"),
    (502, b"<html>" + b"<br>" * 9_000 + b"beyond what is read", "HTTP 502 Bad Gateway"),
    (502, b"<html><title> </title><!-- secret <b>", "HTTP 502 Bad Gateway"),
    (502, b"<html><title>&#" + b"1" * 5000, f"HTTP 502: &#{'1' * 297}…"),
    (500, b"<3 we are sorry", "HTTP 500: <3 we are sorry"),
])  # fmt: skip
def test_a_body_of_no_known_shape_is_shown_in_one_line(status: int, body: bytes, message: str) -> None:
    assert str(failed(status, body)) == f"acme: {message}"


def test_the_text_of_an_error_is_bounded() -> None:
    for body, longest in ((b"word " * 9999, 300), (b"<html>" + b"<p>word" * 9999, 300), ({"error": "word " * 9999}, 1000)):
        error = failed(500, body, secrets=["a-secret"])
        assert str(error).endswith("…")
        assert len(str(error)) <= longest + len("acme: HTTP 500: ")
    assert str(failed(500, b"x" * 300)) == f"acme: HTTP 500: {'x' * 300}"
    assert str(failed(500, b"x" * 301)) == f"acme: HTTP 500: {'x' * 299}…"
    error = failed(500, openai("c" * 500, None, "m"), {"x-request-id": "r" * 500})
    assert len(error.code or "") == 100
    assert len(str(error)) < 300


def test_an_error_body_with_deep_nesting_or_absurd_numbers_is_handled() -> None:
    for body in (b"[" * 100_000, b'{"error":' * 50_000, b'{"error": {"code": ' + b"9" * 5000 + b', "message": "x"}}'):
        assert str(failed(500, body)).startswith("acme: HTTP 500")


# ------------------------------------------------------------------------------------------ may it work later


def test_the_status_decides_whether_a_call_is_retried() -> None:
    retryable = [status for status in range(300, 600) if failed(status).retryable]
    assert retryable == [408, 409, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529]
    for code, may in ((None, True), ("insufficient_credits", False)):
        assert failed(402, openai(code, None, "in flight"), {"Retry-After": "3"}).retryable is may


@pytest.mark.parametrize("status,body,retryable", [
    (429, openai("insufficient_quota", "insufficient_quota", BUSY_QUOTA), False),
    (429, openai(None, "insufficient_quota"), False),
    (429, openai("strange", "insufficient_quota"), False),
    (429, openai("billing_hard_limit_reached", "x"), False),
    (429, openai(None, None, "Your credit balance is too low"), False),
    (429, openai(None, "rate_limit_error", "This would exceed your monthly spend limit"), False),
    (429, openai(None, None, "You have run out of credits"), False),
    (429, openai(None, None, "See your billing settings"), False),
    (429, anthropic("billing_error"), False),
    (402, openai(None, None, "slow down"), False),
    # an ordinary rate limit with friendly advice
    (429, openai("rate_limit_exceeded", "requests", "Limit 3 / min. To increase it, add a payment method at "
                 "https://acme.example/account/billing"), True),
    (429, openai(None, None, "Slow down, see https://acme.example/billing"), True),
    (429, gemini(429, "RESOURCE_EXHAUSTED", BUSY_QUOTA, PER_MINUTE, RETRY_INFO), True),
    (429, [gemini(429, "RESOURCE_EXHAUSTED", BUSY_QUOTA, RETRY_INFO, PER_MINUTE, PER_DAY)], False),
    (429, gemini(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted"), False),
    (429, {"error": {"details": [{"violations": ["PerDay", None]}, {"violations": "PerDay"}], "message": "x"}}, True),
    (503, openai("insufficient_quota", "insufficient_quota", "You exceeded your current quota"), False),
    # the vendor's accounting is down, not the caller's money
    (503, openai(None, None, "billing service unavailable"), True),
    (429, b"credit_balance_too_low", False),
    (429, b"busy", True),
])  # fmt: skip
def test_an_exhausted_quota_is_not_retried(status: int, body: object, retryable: bool) -> None:
    assert failed(status, body).retryable == retryable


@pytest.mark.parametrize("wish,retryable", [("true", True), (" False ", False), ("maybe", None), ("", None)])
def test_the_vendors_statement_about_retries_takes_precedence(wish: str, retryable: bool | None) -> None:
    for status, usual in ((429, True), (400, False)):
        error = failed(status, openai("x", "y"), {"X-Should-Retry": wish})
        assert error.retryable == (usual if retryable is None else retryable)
    spent = failed(429, openai("insufficient_quota", None), {"x-should-retry": wish})
    assert spent.retryable == bool(retryable)


# ------------------------------------------------------------------------------------------- what to do about it


@pytest.mark.parametrize("status,body,advice", [
    (401, openai("invalid_api_key", None), "; check that ACME_API_KEY holds a valid key for this address"),
    (403, b"", "; check that the key in ACME_API_KEY may use this model, project and region"),
    (400, gemini(400, "INVALID_ARGUMENT", "no", {"reason": "API_KEY_INVALID"}),
     "; check that ACME_API_KEY holds a valid key for this address"),
    (400, gemini(400, "INVALID_ARGUMENT", "no", {"reason": "OTHER"}), ""),
])  # fmt: skip
def test_a_refused_key_says_which_variable_to_check(status: int, body: object, advice: str) -> None:
    message = str(failed(status, body, key_hint="ACME_API_KEY"))
    assert message.endswith(advice)
    assert ("ACME_API_KEY" in message) == bool(advice)


@pytest.mark.parametrize("location,shown", [
    ("https://new.example/v1/chat?key=abc#part", "https://new.example/v1/chat"),
    ("https://user:pass@new.example/v1", "https://new.example/v1"),
    ("//user@new.example/v1", "//new.example/v1"),
    ("/a@b/c", "/a@b/c"),
    ("https://new.example/\x1b[31m", "https://new.example/ [31m"),
    ("https://new.example/sk-secret-1/x", "https://new.example/[hidden]/x"),
    ("", "nowhere"),
])
def test_a_redirect_names_its_target_without_query_or_user_and_the_argument_to_set(location: str, shown: str) -> None:
    error = failed(307, b"moved", {"Location": location, "x-should-retry": "true"}, secrets=["sk-secret-1"])
    assert str(error) == (
        f"acme: HTTP 307 Temporary Redirect, to {shown}: redirects are not followed; "
        "set base_url to the final address"
    )
    assert (error.status, error.retryable, error.code) == (307, False, None)


# -------------------------------------------------------------------------------------------- errors in a stream


@pytest.mark.parametrize("data,code,retryable,message", [
    (anthropic("overloaded_error", "Overloaded"), "overloaded_error", True, "overloaded_error: Overloaded (request id req_body)"),
    (anthropic("never_heard_of"), "never_heard_of", True, "never_heard_of: no (request id req_body)"),
    (anthropic("invalid_request_error"), "invalid_request_error", False, "invalid_request_error: no (request id req_body)"),
    (openai("server_error", "server_error", "Sorry"), "server_error", True, "server_error: Sorry"),
    (openai(None, "timeout"), "timeout", True, None),
    (openai("strange", "invalid_request_error"), "strange", False, None),
    *((anthropic(kind), kind, False, None) for kind in (
        "authentication_error", "permission_error", "not_found_error", "billing_error", "forbidden", "payment_required",
        "request_too_large", "unsupported_value", "context_length_exceeded", "content_filter", "content_policy", "insufficient_quota",
        "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED")),
    ({"type": "error", "code": "server_error", "message": "flat"}, "server_error", True, "server_error: flat"),
    (gemini(429, "RESOURCE_EXHAUSTED", BUSY_QUOTA, PER_MINUTE), "RESOURCE_EXHAUSTED", True, None),
    (gemini(429, "RESOURCE_EXHAUSTED", BUSY_QUOTA, PER_DAY), "RESOURCE_EXHAUSTED", False, None),
    (gemini(400, "STRANGE"), "STRANGE", False, None),
    ({"id": "x", "error": {"code": 502, "message": "Upstream"}, "choices": []}, "502", True, "502: Upstream"),
    ({"error": {"code": 402, "message": "x"}}, "402", False, "402: x"),
    ({"error": {"code": "429", "message": "x"}}, "429", True, "429: x"),
    ({"error": "model runner\x07has stopped"}, None, True, "an error: model runner has stopped"),
    ({}, None, True, "an error: without a message"),
    (None, None, True, "an error: without a message"),
])  # fmt: skip
def test_an_error_in_a_stream_is_reported_and_retried_if_transient(
    data: object, code: str | None, retryable: bool, message: str | None
) -> None:
    error = failure_in_stream(data, "acme", Redactor({}))
    assert (error.code, error.retryable, error.status, error.vendor) == (code, retryable, 200, "acme")
    if message is not None:
        assert str(error) == f"acme: the stream broke off with {message}"


# -------------------------------------------------------------------------------------------------- no secrets

def test_a_secret_at_the_place_where_a_message_is_cut_leaves_no_half_behind() -> None:
    for before in range(250, 310):
        assert "sk-se" not in str(failed(500, b"x" * before + b" sk-secret-1 " + b"y" * 99, secrets=["sk-secret-1"]))
    for before in range(32_750, 32_770):
        page = b"<p " + b" " * (before - 4) + b">sk-secret-1"
        assert "sk-se" not in str(failed(500, page, secrets=["sk-secret-1"]))


@pytest.mark.parametrize("space", [" ", "\n", "\r\n  ", "\t", "\x07"])
def test_white_space_inside_of_a_secret_hides_nothing_of_it(space: str) -> None:
    for body in (f"key two{space}words!".encode(), {"error": f"key two{space}words!"}):
        for secret in ("two words", f"two{space}words"):
            assert str(failed(500, body, secrets=[secret])) == "acme: HTTP 500: key [hidden]!"


def test_short_and_empty_secrets_hide_nothing() -> None:
    assert str(failed(500, b"a short longer", secrets=["", "a", "short", "longer"])) == "acme: HTTP 500: a short [hidden]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["error", "message", "code", "type", "status", "details", "violations", "quotaId", "retryDelay", "metadata", "raw"]),
        inner, max_size=4,
    ),
)  # fmt: skip


@given(
    st.integers(100, 599), JSON | st.binary(),
    st.dictionaries(st.sampled_from(["x-should-retry", "retry-after", "retry-after-ms", "location"]) | st.text(max_size=8), st.text(max_size=30)),
)  # fmt: skip
def test_any_error_body_can_be_read(status: int, body: object, headers: dict[str, str]) -> None:
    for error in (failed(status, body, headers), failure_in_stream(body, "acme", Redactor({}))):
        assert str(error).startswith("acme: ")
        assert str(error).isprintable()
        assert error.code is None or error.code
        assert error.retry_after is None or 0 <= error.retry_after <= LONGEST_HINT


# Whether a failed call is tried again, and what the vendors' hints say.


#: drawn for the jitter
CHANCE = 0.25


def asking(seconds: float | None) -> ProviderError:
    return ProviderError(
        "acme: HTTP 429 slow_down: busy", status=429, code="slow_down", retryable=True, retry_after=seconds, vendor="acme"
    )


# --------------------------------------------------------------------------------------------------- the policy


@pytest.mark.parametrize("policy,attempt,hint,wait", [
    # without a hint: exponential, with a maximum and jitter
    *(({"max_retries": 10_000}, attempt, None, longest * (1 + CHANCE) / 2)
      for attempt, longest in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 8.0))),
    ({"max_retries": 10_000}, 5000, None, 8.0 * (1 + CHANCE) / 2), ({"max_retry_wait": 0.1}, 0, None, 0.1 * (1 + CHANCE) / 2), ({"max_retry_wait": 0}, 0, None, 0.0),
    *(({}, 1, hint, hint) for hint in (0.0, 0.001, 37.0, 60.0)),  # obeyed exactly
    ({}, 2, None, None), ({"max_retries": 0}, 0, None, None), ({"max_retries": 0}, 0, 3600, None),
])  # fmt: skip
def test_a_call_is_retried_after_the_wait_that_the_hint_or_the_number_of_attempts_says(
    policy: Any, attempt: int, hint: float | None, wait: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: CHANCE)
    assert RetryPolicy(**policy).wait_before(attempt, asking(hint)) == wait


@pytest.mark.parametrize("hint,shown", [(60.5, "61 s"), (86_400.0, "86400 s")])
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


# --------------------------------------------------------------------------------------------------- the hints


def google(*delays: object) -> dict[str, Any]:
    return {"error": {"code": 429, "details": [{"@type": "…/google.rpc.RetryInfo", "retryDelay": one} for one in delays]}}


def openrouter(reset: object) -> dict[str, Any]:
    return {"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Reset": reset}}}}


NO_HINTS: list[Any] = [None, [], google("37"), google("-1s", 5, None), *({"error": {"details": one}} for one in ("37s", ["37s", None]))]


@pytest.mark.parametrize("headers,body,seconds", [
    ({"Retry-After": " 7 "}, None, 7.0),
    ({"retry-after": "0"}, None, 0.0),
    ({"retry-after": "0, 2.5, 1"}, None, 2.5),  # of several headers, which a transport joins
    ({"retry-after": "1.25"}, None, 1.25),
    ({"retry-after-ms": "1500"}, None, 1.5),
    ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, None, 30.0),
    ({"retry-after": "sun, 01 mar 2026 12:00:59 gmt"}, None, 59.0),
    ({"retry-after": "Sun, 01 Mar 2026 13:00:30 +0100"}, None, 30.0),
    ({"retry-after": "Sun, 01 Mar 2026 11:59:59 GMT"}, None, 0.0),
    ({"retry-after": "Sun, 01 Mar 2026 12:00:30"}, None, 30.0),
    *(({"retry-after": one}, None, None) for one in (
        "7,", "7, soon", "Sat, 30 Feb 2026 12:00:00 GMT", "Sun, 01 Mar 2026 25:00:30 GMT", "Fri, 31 Dec 9999 23:59:59 GMT")),
    *(({}, body, None) for body in NO_HINTS),
    ({}, google("37s"), 37.0),
    ({}, google("1.000000001s", "2s"), 2.0),
    ({}, [google("37s")], 37.0),
    # the more exact one first, and the next where it says nothing
    ({"retry-after-ms": "100", "retry-after": "9"}, google("37s"), 0.1),
    ({"retry-after-ms": "soon", "retry-after": "9"}, google("37s"), 9.0),
    ({"retry-after-ms": "-5", "retry-after": "nan"}, google("37s"), 37.0),
    ({"retry-after-ms": "0", "retry-after": "9"}, None, 0.0),
    ({"x-retry-after": "9"}, None, None),
    ({"X-RateLimit-Reset": "1772366437000"}, None, 37.0),
    ({"x-ratelimit-reset": "1"}, openrouter("1772366437000"), 37.0),
    ({"x-ratelimit-reset": "1772366399000"}, openrouter(None), None),  # in the past
    *(({"x-ratelimit-reset": reset}, None, None) for reset in ("37", "1772366437", "2m59.56s", "2026-03-01T12:00:37Z")),
])
def test_hints_are_read_where_vendors_put_them(headers: dict[str, str], body: object, seconds: float | None) -> None:
    assert failed(429, body, headers).retry_after == seconds
    assert failed(503, None, {"x-ratelimit-reset": "1772366437000"}).retry_after is None
    assert headers or failure_in_stream(body, "acme", Redactor({})).retry_after == seconds


@pytest.mark.parametrize(
    "value",
    ["", " ", "soon", "-1", "+1", "nan", "inf", "Infinity", "1e3", "0x10", "1_000", "1,5", "5s", "5 5", "٣", "²", "."
     , "9" * 12, "9" * 13, "9" * 5000, "1." + "0" * 5000, str(int(LONGEST_HINT) + 1), "\x005"],
)  # fmt: skip
def test_an_invalid_or_absurd_time_is_not_a_hint(value: str) -> None:
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

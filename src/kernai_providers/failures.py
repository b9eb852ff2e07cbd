"""Errors of vendors: `failure` makes a `ProviderError` from a response, and `RetryPolicy` decides whether to retry.

Vendors, and the proxies in front of them, report errors in many shapes. Nothing here depends on the vendor: every known
field is read, and a body without any is shown as text. Text from outside becomes one line of limited length, without
secrets.

Retries follow the vendor's hints exactly (RFC 9110, section 10.2.3, and Google's `RetryInfo`); without a hint, they use
exponential backoff with jitter. Nothing here waits or looks at a clock.
"""

from __future__ import annotations

import html
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any

from kernai import ProviderError
from kernai._util.api import check_count, check_seconds
from kernai._util.redaction import Redactor
from kernai.jsonio.json_data import loads

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504, *range(520, 525), 529})  # 520 to 524 are Cloudflare's
HIDDEN = "[hidden]"
#: how much is shown, in characters: of a vendor's message, of a body without a message, of a code
MAX_MESSAGE, MAX_RAW, MAX_CODE = 1000, 300, 100
#: how much of an HTML page is searched for text; and the shortest secret: shorter ones may be ordinary syllables
MAX_PAGE, SHORTEST_SECRET = 32_768, 6

_BAD_REQUEST, _UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _NOT_FOUND, _RATE_LIMITED = 400, 401, 402, 403, 404, 429
_REASONS = responses | {520: "Unknown Origin Error", **dict.fromkeys((522, 524), "Origin Timed Out"), 529: "Overloaded"}
#: headers with the vendor's id of a request
REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "x-amzn-requestid", "apim-request-id")

# failures that waiting does not cure, even if the status is 429
_MONEY = re.compile(
    r"insufficient[ _-]?(quota|funds|balance|credit)|credit[ _-]?balance|spend(ing)?[ _-]?(limit|cap)|out of credits"
    r"|credits? (are|is|have been|has been) (depleted|exhausted|used up)|hard[ _-]limit|usage_limit_reached",
    re.IGNORECASE,
)
# also a sign that the account is out of money, but ordinary rate limits mention it too ("check your plan and billing")
_BILLING = re.compile(r"billing|payment", re.IGNORECASE)
_RATE = re.compile(r"rate[ _-]?limit|RESOURCE_EXHAUSTED", re.IGNORECASE)
# errors in a stream have no status; these words mean that a retry cannot help
_FINAL = re.compile(
    r"invalid|authentic|permission|forbidden|not[ _]?found|billing|payment|insufficient|too[ _]large|unsupported"
    r"|context[ _]length|content[ _](filter|policy)|failed_precondition|out_of_range|unimplemented",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://\S+", re.IGNORECASE)
_STATUS_NUMBER = re.compile(r"[345]\d\d", re.ASCII)

_PAGE = re.compile(r"\s*(<!doctype|<html|<head|<body|<\?xml|<!--|<h\d|<p\b|<center)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
# each alternative runs to the end of the text if it is not closed; backtracking would make this quadratic
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1[^>]*>?|\Z)|<[^>]*(?:>|\Z)", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class _ErrorBody:
    """The contents of an error's body. `words` are its codes and types; the first one is used as the code."""

    message: str = ""
    words: tuple[str, ...] = ()
    details: tuple[Mapping[str, Any], ...] = ()
    request_id: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Recipient:
    """Whom a request goes to, as its errors need it."""

    vendor: str
    url: str = ""
    #: the variables that should contain the key
    key_hint: str | None = None
    #: each is replaced by ``[hidden]``, however it is escaped, unless it has fewer than 6 characters
    secrets: Sequence[str] = ()


def failure(status: int, headers: Mapping[str, str], body: bytes, to: Recipient, now: float) -> ProviderError:
    """Returns the error for a response with a status other than 200. Never raises, whatever the body contains.

    `now` is in seconds since 1970, for a `retry-after` that is a date.
    """
    redact, vendor = redactor(to.secrets), to.vendor
    given = {name.lower(): value for name, value in headers.items()}
    reason = _REASONS.get(status, "without an explanation")
    if 300 <= status < 400:  # noqa: PLR2004 - the redirects
        # a query or user part may contain a key. Redirects are not followed: they would send our key to another host
        target = re.sub(r"^([^/]*//)[^/]*@", r"\1", re.split(r"[?#]", given.get("location", "").strip(), maxsplit=1)[0])
        return ProviderError(
            f"{vendor}: HTTP {status} {reason}, to {one_line(target, redact, MAX_RAW) or 'nowhere'}: "
            "redirects are not followed; set base_url to the final address",
            status=status, vendor=vendor,
        )
    text = body.decode("utf-8-sig", "replace")
    data: Any = None
    with suppress(ValueError, RecursionError):
        data = loads(text)  # with the same limits as a model's JSON
    error = _read_body(data)
    if not error.message and not error.words:
        error = replace(error, message=_raw_line(text, redact))
    if status != _RATE_LIMITED:
        given.pop("x-ratelimit-reset", None)  # some send it with every response
    request_id = next(filter(None, map(given.get, REQUEST_IDS)), error.request_id)
    code, message, numbered = _shown(replace(error, request_id=request_id), redact)
    named = f" {code}" if code and code != str(status) else ""
    said = f": {message or reason}" if message or named else f" {reason}"
    return ProviderError(
        f"{vendor}: HTTP {status}{named}{said}{numbered}{one_line(_advice(status, error, to), redact)}",
        status=status, code=code, retryable=_retryable(status, error, given),
        retry_after=retry_after_of(given, data, now), vendor=vendor,
    )


def failure_in_stream(data: object, vendor: str, redact: Redactor) -> ProviderError:
    """Returns the error for an error object in a stream, after status 200. `data` is JSON data.

    An overloaded or failing vendor is retried, and so is an unknown error. Errors in the request, the key or the
    account are not.
    """
    error = _read_body(data)
    code, message, numbered = _shown(error, redact)
    return ProviderError(
        f"{vendor}: the stream broke off with {code or 'an error'}: {message or 'without a message'}{numbered}",
        status=200, code=code, retryable=_retryable_in_stream(error), retry_after=retry_after_of({}, data, 0.0),
        vendor=vendor,
    )


def _shown(error: _ErrorBody, redact: Redactor) -> tuple[str | None, str, str]:
    """The code, the message, and the request's id in parentheses."""
    code = one_line("".join(error.words[:1]), redact, MAX_CODE) or None
    numbered = f" (request id {one_line(error.request_id, redact, MAX_CODE)})" if error.request_id else ""
    return code, one_line(error.message, redact, MAX_MESSAGE), numbered


# ------------------------------------------------------------------------------------------------- error bodies


def at(data: object, *path: str) -> Any:
    """Returns the value at this path in JSON data, or None."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def objects(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON list; none for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read_body(data: object) -> _ErrorBody:
    """Reads the known shapes of errors.

    `{"error": {...}}`, also alone in a list, with `message` and one or more of `code`, `type` and `status`;
    `{"error": "text"}`; and the same fields at the top, also beside `"error": "text"`.
    """
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return _ErrorBody()
    error = data.get("error")
    inner = error if isinstance(error, dict) else data
    message = ": ".join(filter(None, dict.fromkeys((_text(error), _message(inner)))))  # gateways also send both
    words, number = [_text(inner.get(name)) for name in ("code", "status", "type", "__type")], inner.get("code")
    if type(number) is int and number >= 0:
        words.append(str(number))
    # words before numbers; "error" is the type of the object, not of the error
    words = sorted((word for word in words if word not in ("", "error")), key=str.isdecimal)
    request_id = _text(data.get("request_id")) or _text(inner.get("request_id"))
    return _ErrorBody(message, tuple(words), tuple(objects(inner.get("details"))), request_id)


def _message(error: Mapping[str, Any]) -> str:
    given = next(filter(None, map(error.get, ("message", "Message", "detail", "msg", "error_description"))), "")
    message = _text(given)
    if isinstance(given, (dict, list)):  # errors per field, which some vendors send
        with suppress(RecursionError):
            message = json.dumps(given, ensure_ascii=False)
    # a router's own message may only say that a vendor failed; Groq's, where to read what the model wrote;
    # Ollama's, that a cloud model needs a login
    causes = (at(error, "metadata", "raw"), error.get("failed_generation"), error.get("signin_url"))
    cause = next(filter(None, map(_text, causes)), "")
    return f"{message}: {cause}" if message and cause else message or cause


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _raw_line(text: str, redact: Redactor) -> str:
    """Returns a body without any known field as one line: the title or text of a page, or the start of the text."""
    text = redact.text(text)
    if _PAGE.match(text):
        page = text[:MAX_PAGE]
        title = _TITLE.search(page)
        text = (title[1] if title and title[1].strip() else "") or _MARKUP.sub(" ", page)
        with suppress(ValueError):  # a character's number may have thousands of digits
            text = html.unescape(text)
    return one_line(text, redact, MAX_RAW)


def _advice(status: int, error: _ErrorBody, to: Recipient) -> str:
    where = to.key_hint or "api_key"
    wrong_key = any(one.get("reason") == "API_KEY_INVALID" for one in error.details)
    if status == _UNAUTHORIZED or (status == _BAD_REQUEST and wrong_key):
        return f"; check that {where} holds a valid key for this address"
    if status == _FORBIDDEN:
        return f"; check that the key in {where} may use this model, project and region"
    went_to = to.url and f": the request went to {to.url.partition('?')[0]}"
    return f"; check the model's name and base_url{went_to}" if status == _NOT_FOUND else ""


# ------------------------------------------------------------------------------------------- is a retry useful


def _retryable(status: int, error: _ErrorBody, headers: Mapping[str, str]) -> bool:
    wish = headers.get("x-should-retry", "").strip().lower()
    if wish in ("true", "false"):
        return wish == "true"
    # OpenRouter: requests under way reserve the balance until they end
    is_reserved = status == _PAYMENT_REQUIRED and "retry-after" in headers
    if not (status in RETRYABLE or is_reserved) or any(_MONEY.search(word) for word in error.words):
        return False
    return status != _RATE_LIMITED or not _is_used_up(error)


def _retryable_in_stream(error: _ErrorBody) -> bool:
    if _is_used_up(error) or any(_FINAL.search(word) for word in error.words):
        return False
    numbers = [int(word) for word in error.words if _STATUS_NUMBER.fullmatch(word)]
    return not numbers or numbers[0] in RETRYABLE


def _is_used_up(error: _ErrorBody) -> bool:
    """Whether the account's money or its quota for the day is used up, which no retry can wait for."""
    violations = [one for detail in error.details for one in objects(detail.get("violations"))]
    if any("perday" in _text(one.get("quotaId")).lower() for one in violations):
        return True
    words = " ".join(error.words)
    message = _URL.sub("", error.message)
    if _MONEY.search(words) or _MONEY.search(message) or _BILLING.search(words):
        return True
    return not _RATE.search(words) and _BILLING.search(message) is not None


# ------------------------------------------------------------------------------------------- one readable line


def redactor(secrets: Sequence[str]) -> Redactor:
    """Returns what hides these secrets, except those so short that they may be ordinary syllables."""
    return Redactor({one: HIDDEN for one in secrets if len(one) >= SHORTEST_SECRET})


def one_line(text: str, redact: Redactor, longest: int = MAX_MESSAGE) -> str:
    """Returns text from outside as one printable line of limited length, without secrets."""
    # redacted before it is cut, because a cut could leave half of a secret; and again, for a line break in a secret
    plain = "".join(char if char.isprintable() else " " for char in redact.text(text))
    shown = redact.text(" ".join(plain.split()))
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"


# ---------------------------------------------------------------------------------------------------- retries

#: seconds; a longer hint is ignored as nonsense
LONGEST_HINT = 366 * 24 * 3600.0
#: the longest wait without a hint before the first retry, in seconds, and how often it doubles: to 8 seconds
FIRST_WAIT, DOUBLINGS = 0.5, 4
# few digits, since converting a number of a million digits takes seconds
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?)s")
#: in milliseconds since 1970
_MOMENT = re.compile(r"1[0-9]{12}")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed call is retried, and how long to wait before each retry, in seconds.

    Without a hint from the vendor the wait before retry `n` (from 0) is between half and all of ``0.5 * 2 ** n``, and
    at most 8. A hint longer than `max_retry_wait` fails at once. Invalid arguments raise `ValueError`.
    """

    max_retries: int = 2
    max_retry_wait: float = 60.0

    def __post_init__(self) -> None:
        check_count("max_retries", self.max_retries, or_zero=True)
        check_seconds("max_retry_wait", self.max_retry_wait, or_zero=True)

    def wait_before(self, attempt: int, error: ProviderError) -> float | None:
        """Seconds to wait before the next retry; None if there should be none.

        `attempt` is the number of retries so far, 0 after the first failure.
        Raises a `ProviderError` with the fields of `error` if the vendor asks to wait longer than `max_retry_wait`:
        call again after that time, or raise the limit.
        """
        if not error.retryable or attempt >= self.max_retries:
            return None
        hint = error.retry_after
        if hint is None:
            longest = min(FIRST_WAIT * 2.0 ** min(attempt, DOUBLINGS), self.max_retry_wait)
            return longest * (1 + random.random()) / 2  # noqa: S311 - jitter
        if hint > self.max_retry_wait:
            asked, limit = _seconds(hint), _seconds(self.max_retry_wait)
            raise ProviderError(
                f"{error}; {error.vendor or 'the vendor'} asks to wait {asked} s, which is longer than the limit of "
                f"{limit} s: call again after that time, or raise the limit (max_retry_wait)",
                status=error.status, code=error.code, retryable=error.retryable, retry_after=hint, vendor=error.vendor,
            ) from error
        return hint


def retry_after_of(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """Seconds the vendor asks to wait, or None. The first of these that is valid counts:

    of `headers`, whose names are in lower case, `retry-after-ms`, and `retry-after` in seconds or as a date (0 for one
    in the past); in the `body`, which is JSON data, Google's ``error.details[].retryDelay``; OpenRouter's moment
    `x-ratelimit-reset`, in a header or in the body. Negative, infinite and absurd numbers are ignored. `now` is in
    seconds since 1970.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    delays = [_text(detail.get("retryDelay")) for detail in _read_body(body).details]
    moment = str(at(body, "error", "metadata", "headers", "X-RateLimit-Reset") or headers.get("x-ratelimit-reset"))
    left = int(moment) / 1000 - now if _MOMENT.fullmatch(moment) else 0.0
    hints = (
        float(milliseconds) / 1000 if _NUMBER.fullmatch(milliseconds) else None,
        _header_seconds(headers.get("retry-after", "").strip(), now),
        max((float(found[1]) for found in map(_DURATION.fullmatch, delays) if found), default=None),
        left if left > 0 else None,
    )
    return next((hint for hint in hints if hint is not None and hint <= LONGEST_HINT), None)


def _header_seconds(value: str, now: float) -> float | None:
    # repeated headers, such as a proxy's and the vendor's, are joined by ", "; no vendor writes "1,5"
    seconds = value.split(", ")
    if all(map(_NUMBER.fullmatch, seconds)):
        return max(map(float, seconds))
    with suppress(ValueError, TypeError, IndexError, OverflowError):  # in a format of RFC 9110, section 5.6.7, or none
        moment = parsedate_to_datetime(value)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - now)
    return None


def _seconds(value: float) -> str:
    """Formats a number of seconds for people, rounded up so that waiting that long is enough."""
    return f"{math.ceil(value)}" if value >= 10 else f"{value:g}"  # noqa: PLR2004 - digits

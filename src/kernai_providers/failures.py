"""What a vendor's failure says: from a status, headers and a body to one `ProviderError`.

Every vendor has a shape of its own for errors, and in front of each stand proxies with theirs. So nothing here depends
on which vendor it is: whatever a body holds in a known place is used, and a body that holds nothing known is shown.
Whatever came from outside becomes one line, without secrets, of bounded length.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from kernai import ProviderError
from kernai._util.redaction import Redactor
from kernai.jsonio.json_data import loads
from kernai_providers.retries import retry_after_of

RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
HIDDEN = "[hidden]"
#: characters: of a vendor's own message, of a body without one, of a code
MAX_MESSAGE, MAX_RAW, MAX_CODE = 1000, 300, 100
#: of a page: what is read to find its text; and what can be a secret at all, and not some everyday syllable
MAX_PAGE, SHORTEST_SECRET = 32_768, 6
LARGEST_NUMBER = 10**9

_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _RATE_LIMITED = 400, 401, 403, 429
_OWN_REASONS = {520: "Unknown Origin Error", 522: "Origin Timed Out", 524: "Origin Timed Out", 529: "Overloaded"}
_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "x-amzn-requestid", "apim-request-id")

# a 429 that waiting does not mend: said in plain words, whatever the code
_MONEY = re.compile(
    r"insufficient[ _-]?(quota|funds|balance|credit)|credit[ _-]?balance|spend(ing)?[ _-]?(limit|cap)|out of credits"
    r"|credits? (are|is|have been|has been) (depleted|exhausted|used up)|hard[ _-]limit|usage_limit_reached",
    re.IGNORECASE,
)
# the same in words that ordinary rate limits use too, in a friendly hint ("check your plan and billing details")
_BILLING = re.compile(r"billing|payment", re.IGNORECASE)
_RATE = re.compile(r"rate[ _-]?limit|RESOURCE_EXHAUSTED", re.IGNORECASE)
# in a stream there is no status to go by: what a second try cannot mend
_FINAL = re.compile(
    r"invalid|authentic|permission|forbidden|not[ _]?found|billing|payment|insufficient|too[ _]large|unsupported"
    r"|context[ _]length|content[ _](filter|policy)|failed_precondition|out_of_range|unimplemented",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://\S+", re.IGNORECASE)
_STATUS_NUMBER = re.compile(r"[345]\d\d", re.ASCII)

_PAGE = re.compile(r"\s*(<!doctype|<html|<head|<body|<\?xml|<!--|<h\d|<p\b|<center)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
# each runs to the end of the text where it is not closed: a second look at the same text would make it quadratic
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1[^>]*>?|\Z)|<[^>]*(?:>|\Z)", re.IGNORECASE | re.DOTALL
)
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class _Said:
    """What a body says. `words` are all of its words for the failure, the one that serves as the code first."""

    message: str = ""
    words: tuple[str, ...] = ()
    details: tuple[Mapping[str, Any], ...] = ()
    request_id: str = ""

    @property
    def code(self) -> str | None:
        return self.words[0] if self.words else None


def failure(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    vendor: str,
    now: float,
    *,
    key_hint: str | None = None,
    secrets: Sequence[str] = (),
) -> ProviderError:
    """The error for a response with another status than 200. Never raises, whatever the body holds.

    `now` is in seconds since 1970, for a `retry-after` that is a date. `key_hint` names the variable that holds the
    key, for the advice after a 401 or 403. Each of `secrets` is replaced by ``[hidden]``, in whatever way it is
    escaped; those of fewer than 6 characters are not looked for.
    """
    redact = redactor(secrets)
    given = {name.lower(): value for name, value in headers.items()}
    if 300 <= status < 400:  # noqa: PLR2004 - the redirects
        return _redirect(status, given, vendor, redact)
    text = body.decode("utf-8-sig", "replace")
    data = _parsed(text)
    said = _said(data)
    if not said.message and not said.words:
        said = replace(said, message=_raw_line(text, redact))
    message = one_line(said.message, redact, MAX_MESSAGE)
    code = one_line(said.code or "", redact, MAX_CODE) or None
    what = [f"{vendor}: HTTP {status}"]
    if code and code != str(status):
        what.append(f" {code}")
    what.append(f": {message}" if message else f" {_reason(status)}" if len(what) == 1 else f": {_reason(status)}")
    request_id = next(filter(None, map(given.get, _REQUEST_IDS)), said.request_id)
    return ProviderError(
        f"{''.join(what)}{_numbered(request_id, redact)}{_advice(status, said, key_hint)}",
        status=status,
        code=code,
        retryable=_retryable(status, said, given),
        retry_after=retry_after_of(given, data, now),
        vendor=vendor,
    )


def failure_in_stream(data: object, vendor: str, *, secrets: Sequence[str] = ()) -> ProviderError:
    """The error for an error object that came in a stream, after status 200. `data` is JSON data, or text.

    An overloaded or failing vendor may answer at the next try, and so may one whose word is unknown; what is wrong
    with the request, the key or the account stays so.
    """
    redact = redactor(secrets)
    said = _said(data) if isinstance(data, (dict, list)) else _Said(data if isinstance(data, str) else "")
    code = one_line(said.code or "", redact, MAX_CODE) or None
    message = one_line(said.message, redact, MAX_MESSAGE) or "no more was said"
    return ProviderError(
        f"{vendor}: the stream broke off with {code or 'an error'}: {message}{_numbered(said.request_id, redact)}",
        status=200,
        code=code,
        retryable=_retryable_in_stream(said),
        retry_after=retry_after_of({}, data, 0.0),
        vendor=vendor,
    )


def _redirect(status: int, headers: Mapping[str, str], vendor: str, redact: Redactor) -> ProviderError:
    # a query or a user part may carry a key; and a redirect that is followed would take ours to another host
    target = re.split(r"[?#]", headers.get("location", "").strip(), maxsplit=1)[0]
    target = one_line(re.sub(r"^([^/]*//)[^/]*@", r"\1", target), redact, MAX_RAW)
    return ProviderError(
        f"{vendor}: HTTP {status} {_reason(status)}, to {target or 'no named target'}: redirects are not followed; "
        "set base_url to the address that answers itself",
        status=status,
        vendor=vendor,
    )


def _numbered(request_id: str, redact: Redactor) -> str:
    return f" (request id {one_line(request_id, redact, MAX_CODE)})" if request_id else ""


# ---------------------------------------------------------------------------------------------- what a body says


def _parsed(text: str) -> Any:
    """The body's JSON data; None where it is none. The bounds are those for a model's JSON."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def _said(data: object) -> _Said:
    """Reads the shapes that are about.

    `{"error": {...}}`, also alone in a list, with `message` and one or more of `code`, `type` and `status`;
    `{"error": "text"}`; and the same fields at the top.
    """
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return _Said()
    error = data.get("error")
    inner = error if isinstance(error, dict) else data
    message = error if isinstance(error, str) else _message(inner)
    details = inner.get("details")
    return _Said(
        message,
        tuple(_words(inner)),
        tuple(one for one in details if isinstance(one, dict)) if isinstance(details, list) else (),
        _text(data.get("request_id")) or _text(inner.get("request_id")),
    )


def _message(error: Mapping[str, Any]) -> str:
    given = next(filter(None, (error.get(name) for name in ("message", "Message", "detail", "msg"))), "")
    message = _text(given) or _as_json(given)
    # a router's own message may say no more than that somebody else failed; what that one said stands beside it
    metadata = error.get("metadata")
    behind = _text(metadata.get("raw")) if isinstance(metadata, dict) else ""
    return f"{message}: {behind}" if message and behind else message or behind


def _as_json(given: object) -> str:
    """A list of the faults of each field, as some send it, in a line."""
    if not isinstance(given, (dict, list)):
        return ""
    try:
        return json.dumps(given, ensure_ascii=False)
    except RecursionError:
        return ""


def _words(error: Mapping[str, Any]) -> Iterator[str]:
    """The vendor's words for the failure, speaking ones before numbers."""
    number = error.get("code")
    found = [_text(error.get(name)) for name in ("code", "status", "type", "__type")]
    if type(number) is int and 0 <= number < LARGEST_NUMBER:
        found.append(str(number))
    # "error" says what kind of object it is, and not what kind of error
    found = [word for word in found if word and word != "error"]
    yield from sorted(found, key=str.isdecimal)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _raw_line(text: str, redact: Redactor) -> str:
    """A line that shows a body in which nothing is known: the title or the text of a page, or the start of the text."""
    text = redact.text(text)
    if _PAGE.match(text):
        page = text[:MAX_PAGE]
        title = _TITLE.search(page)
        text = (title[1] if title and title[1].strip() else "") or _MARKUP.sub(" ", page)
        text = html.unescape(text)
    return one_line(text, redact, MAX_RAW)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return _OWN_REASONS.get(status, "without a word of explanation")


def _advice(status: int, said: _Said, key_hint: str | None) -> str:
    where = key_hint or "api_key"
    wrong_key = any(one.get("reason") == "API_KEY_INVALID" for one in said.details)
    if status == _UNAUTHORIZED or (status == _BAD_REQUEST and wrong_key):
        return f"; check that {where} holds a valid key for this address"
    if status == _FORBIDDEN:
        return f"; check that the key in {where} may use this model, project and region"
    return ""


# -------------------------------------------------------------------------------------------- may it work later


def _retryable(status: int, said: _Said, headers: Mapping[str, str]) -> bool:
    wish = headers.get("x-should-retry", "").strip().lower()
    if wish in ("true", "false"):
        return wish == "true"
    if status not in RETRYABLE or any(_MONEY.search(word) for word in said.words):
        return False
    return status != _RATE_LIMITED or not _is_used_up(said)


def _retryable_in_stream(said: _Said) -> bool:
    if _is_used_up(said) or any(_FINAL.search(word) for word in said.words):
        return False
    numbers = [int(word) for word in said.words if _STATUS_NUMBER.fullmatch(word)]
    return not numbers or numbers[0] in RETRYABLE


def _is_used_up(said: _Said) -> bool:
    """Whether money or a day's quota has run out: nothing that comes back within a retry."""
    for violation in _violations(said):
        if "perday" in _text(violation.get("quotaId")).lower():
            return True
    words = " ".join(said.words)
    message = _URL.sub("", said.message)
    if _MONEY.search(words) or _MONEY.search(message) or _BILLING.search(words):
        return True
    return not _RATE.search(words) and _BILLING.search(message) is not None


def _violations(said: _Said) -> Iterator[Mapping[str, Any]]:
    for detail in said.details:
        violations = detail.get("violations")
        if isinstance(violations, list):
            yield from (one for one in violations if isinstance(one, dict))


# ------------------------------------------------------------------------------------------- one readable line


def redactor(secrets: Sequence[str]) -> Redactor:
    """Hides these secrets, but not those that are too short to be told from an everyday syllable."""
    return Redactor({one: HIDDEN for one in secrets if len(one) >= SHORTEST_SECRET})


def one_line(text: str, redact: Redactor, longest: int = MAX_MESSAGE) -> str:
    """Text from outside as one printable line of bounded length, without secrets."""
    # redacted before anything is cut, so that no half of a secret is left; and once more, since a line break may have
    # been where the secret has a space
    plain = "".join(char if char.isprintable() else " " for char in redact.text(text))
    shown = redact.text(_SPACES.sub(" ", plain).strip())
    return shown if len(shown) <= longest else shown[: longest - 1].rstrip() + "…"

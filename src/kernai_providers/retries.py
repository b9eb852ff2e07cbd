"""Whether a failed call is tried again, and after how long. Nothing here waits, and nothing looks at a clock.

The vendors' hints (RFC 9110, section 10.2.3, and Google's `RetryInfo`) are obeyed to the letter; without one, the wait
doubles with each attempt, and chance spreads it so that clients which failed together do not come back together.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from kernai import ProviderError
from kernai.values.value import Value

#: seconds; what asks for more is taken for nonsense and not for a hint
LONGEST_HINT = 366 * 24 * 3600.0
#: beyond so many doublings any wait has reached its cap
_MOST_DOUBLINGS = 64
# few digits: a number of a million digits costs seconds to convert, and means nothing
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?)s")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
# RFC 9110, section 5.6.7: what is sent today, and two older ways that a recipient must understand
_DATES = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT",
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} GMT",
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",
    )
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RetryPolicy(Value):
    """How often a failed call is tried again, and how long to wait before. Times are in seconds.

    `max_retries` counts the tries after the first one. Without a hint from the vendor the wait before retry `n`
    (from 0) lies between half of and the whole of ``base * 2 ** n``, at most `cap`. A hint longer than `max_retry_wait`
    is not waited for. `TypeError` or `ValueError` names the argument that cannot be.
    """

    max_retries: int = 2
    base: float = 0.5
    cap: float = 8.0
    max_retry_wait: float = 60.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            whole = one.name == "max_retries"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise TypeError(f"{one.name} must be {'an int' if whole else 'a number of seconds'}, got {value!r}")
            if not 0 <= value < math.inf:
                raise ValueError(f"{one.name} must be at least 0 and finite, got {value!r}")
        if self.cap < self.base:
            raise ValueError(f"cap={self.cap} must be at least base={self.base}: it is the longest wait without a hint")

    def wait_before(
        self, attempt: int, error: ProviderError, draw: Callable[[], float] = random.random
    ) -> float | None:
        """Seconds to wait before the next try; None where there is to be none and `error` is the end of it.

        `attempt` is how many retries were made already, 0 after the first failure. `draw` gives a number from 0 to 1.
        Raises a `ProviderError` with the fields of `error` where the vendor asks for a longer wait than
        `max_retry_wait`: call again after that time, or allow a longer wait.
        """
        if not error.retryable or attempt >= self.max_retries:
            return None
        hint = error.retry_after
        if hint is None or not hint >= 0:  # in this order NaN is no hint either
            longest = min(self.cap, self.base * 2.0 ** min(attempt, _MOST_DOUBLINGS), self.max_retry_wait)
            return longest * (1 + draw()) / 2
        if hint > self.max_retry_wait:
            raise self._too_long(error, hint) from error
        return hint

    def _too_long(self, error: ProviderError, hint: float) -> ProviderError:
        return ProviderError(
            f"{error}; {error.vendor or 'the vendor'} asks to wait {_seconds(hint)} s, which is longer than the limit "
            f"of {_seconds(self.max_retry_wait)} s: call again after that time, or raise the limit (max_retry_wait)",
            status=error.status,
            code=error.code,
            retryable=error.retryable,
            retry_after=error.retry_after,
            vendor=error.vendor,
        )


def retry_after_of(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """Seconds the vendor asks to wait, from the first of these that says so in a way that can be understood.

    The header `retry-after-ms`; the header `retry-after`, in seconds or as a date (one that has passed gives 0); in the
    `body`, which is JSON data, Google's ``error.details[].retryDelay``. `now` is in seconds since 1970. None is no
    hint; a negative, endless or absurd number is none either.
    """
    given = {name.lower(): value.strip() for name, value in headers.items() if name.lower().startswith("retry-after")}
    milliseconds = _number(given.get("retry-after-ms", ""))
    hints = (
        None if milliseconds is None else milliseconds / 1000,
        _header_seconds(given.get("retry-after", ""), now),
        _retry_delay(body),
    )
    return next((hint for hint in hints if hint is not None and hint <= LONGEST_HINT), None)


def _header_seconds(value: str, now: float) -> float | None:
    # several headers of the name, a proxy's beside the vendor's, are joined so; "1,5" is nobody's way to say it
    seconds = [_number(one) for one in value.split(", ")]
    known = [one for one in seconds if one is not None]
    if len(known) == len(seconds):
        return max(known)
    moment = _date(value, now)
    return None if moment is None else max(0.0, moment - now)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _date(text: str, now: float) -> float | None:
    found = next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)
    if found is None or found["month"].lower() not in _MONTHS:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:  # noqa: PLR2004 - of the years that end so, the one within fifty years from now
        earliest = datetime.fromtimestamp(now, UTC).year - 49
        year = earliest + (year - earliest) % 100
    month = _MONTHS.index(found["month"].lower()) + 1
    hour, minute, second = (int(found[name]) for name in ("hour", "minute", "second"))
    try:  # a leap second is written as 60
        return datetime(year, month, int(found["day"]), hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _retry_delay(body: object) -> float | None:
    """The longest of the delays that the details of Google's errors ask for."""
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    if not isinstance(details, list):
        return None
    delays = (one.get("retryDelay") for one in details if isinstance(one, dict))
    found = (_DURATION.fullmatch(delay) for delay in delays if isinstance(delay, str))
    return max((float(match[1]) for match in found if match), default=None)


def _seconds(value: float) -> str:
    """A number of seconds as people write it; upwards, so that waiting as long as it says is long enough."""
    return f"{math.ceil(value)}" if math.isfinite(value) and value >= 10 else f"{value:g}"  # noqa: PLR2004 - digits

"""The log: one line per event on a standard library logger, silent until the application configures logging."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception
from typing import Any

from kernai.errors import described
from kernai.events import KINDS, BlocksParsedRow, MessagesSentRow, Row
from kernai.jsonio.json_data import dumps

NAME = "kernai"
MAX_VALUE = 200

#: events that are logged as warnings; all others are logged as information
_WARNINGS = frozenset(kind.type for kind in KINDS.values() if kind.is_warning)
#: fields with texts by people or models, which may be long or private: they are not logged unless `config.debug`
_PRIVATE = frozenset({
    "input", "content", "params", "result", "results", "request", "raw", "text", "data", "prose_preview", "metadata",
    "tasks", "goal", "usage",
})

# a library must print nothing unasked, not even through logging's handler of last resort
_LOGGER = logging.getLogger(NAME)  # once, since `getLogger` takes a lock
_LOGGER.addHandler(logging.NullHandler())


class EventLog:
    """Writes events to one logger."""

    __slots__ = ("_debug", "_logger", "loud")

    def __init__(self, logger: logging.Logger | None, *, debug: bool) -> None:
        self._logger = _LOGGER if logger is None else logger
        #: the types of events that are logged, None for all; computed once per run
        self.loud: frozenset[str] | None = None
        if not self._logger.isEnabledFor(logging.INFO):
            self.loud = _WARNINGS if self._logger.isEnabledFor(logging.WARNING) else frozenset()
        self._debug = debug

    def write(self, row: Row) -> None:
        """Logs the row as one line; with `config.debug`, also a second line with its data."""
        fields = _fields(row)
        self._log(logging.WARNING if row.is_warning else logging.INFO, fields)
        if self._debug and self._logger.isEnabledFor(logging.DEBUG):  # the data may be long
            self._log(logging.DEBUG, {**fields, "data": dumps(row.fields())})

    def observer_failed(self, what: str, row: Row, error: BaseException) -> None:
        """Logs that a callback or a sink raised; the run continues."""
        fields = {"event": f"{what}.failed", "run_id": row.place[4], "during": row.type, "error": described(error)}
        if self._debug:
            fields["trace"] = "".join(format_exception(error))
        # not as `exc_info`: a formatter would write the exception's text unescaped, with its line breaks
        self._log(logging.ERROR, fields, error)

    @property
    def trace(self) -> Callable[..., None] | None:
        """A function that logs a traceback line by line; None unless `config.debug` is on and the level allows it."""
        return self._trace if self._debug and self._logger.isEnabledFor(logging.DEBUG) else None

    def _trace(self, name: str, text: str, **fields: object) -> None:
        for line in filter(str.strip, text.splitlines()):
            self._log(logging.DEBUG, {"event": name, **fields, "trace": line})

    def warn(self, name: str, **fields: object) -> None:
        """Logs a warning that is not an event."""
        self._log(logging.WARNING, {"event": name, **fields})

    def _log(self, level: int, fields: dict[str, Any], error: BaseException | None = None) -> None:
        # if a log handler raises, nobody is left to report it to
        with suppress(Exception):
            self._logger.log(level, "%s", line(fields), extra={"kernai": fields, "kernai_error": error})


def warn(name: str, **fields: object) -> None:
    """Logs a warning outside of any run, on the logger `kernai`."""
    EventLog(None, debug=False).warn(name, **fields)


def line(fields: dict[str, Any]) -> str:
    """Formats fields as ``key=value`` pairs. A value with anything but plain printable characters is a JSON string."""
    return " ".join(f"{key}={_shown(value)}" for key, value in fields.items())


def _fields(row: Row) -> dict[str, Any]:
    step, _, _, scope, run_id, _ = row.place
    fields: dict[str, Any] = {"event": row.type.replace("_", ".", 1), "run_id": run_id}
    if scope:
        fields["scope"] = scope
    if step is not None:
        fields["step"] = step
    data = row.fields()
    if isinstance(data, dict):
        hidden = _PRIVATE.union(fields)  # the host chooses the names in its saved state
        fields |= {key: one for key, one in data.items() if key not in hidden and isinstance(one, (str, int, float))}
    elif isinstance(row, (MessagesSentRow, BlocksParsedRow)):
        fields["count"] = len(data)
    return fields


def _shown(value: object) -> str:
    text = str(value)
    if len(text) <= MAX_VALUE and text.isascii() and text.isprintable() and text and not re.search(r"[\s\"'=]", text):
        return text
    quoted = dumps(text[:MAX_VALUE])
    while len(quoted) > MAX_VALUE:  # an escaped character takes up to twelve
        text = text[: min(len(text), MAX_VALUE) - 1 - (len(quoted) - MAX_VALUE) // 12]
        quoted = dumps(text)
    return quoted

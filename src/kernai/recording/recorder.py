"""`Recorder` and its sinks: the complete recording of a run.

A sink is any object with `record(event)`. Three are included: `MemorySink`, `JsonlSink`, `CompositeSink`. If a sink
raises, the driver logs that, and the run continues.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from kernai._util.api import Closing, ForkSafeLock, NotCopied, check_methods, likely
from kernai.errors import KernaiError
from kernai.events import KINDS, Event, MessagesSentRow, ResultRow, Row, RunStartRow
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import dumps_data
from kernai.recording.log import warn
from kernai.values.result import Usage

ROOT = "root"


class Sink(Protocol):
    """Receives recorded events."""

    def record(self, event: Event) -> None: ...


def _checked(sink: Sink) -> Sink:
    checked: Sink = check_methods(sink, "sink must be an object with a record(event) method", "record")
    return checked


class MemorySink:
    """Keeps events in a list."""

    def __init__(self) -> None:
        #: drivers append to it directly if no other observer needs the events
        self.rows: list[Row] = []

    @property
    def entries(self) -> list[Event]:
        """A new list of the events so far. To add an event, call `record`."""
        return list(map(Event.of, self.rows))

    def record(self, event: Event) -> None:
        self.rows.append(event.row)

    def clear(self) -> None:
        self.rows.clear()


class CompositeSink:
    """Passes every event to several sinks. If one raises, the others still get it; then the first error is raised."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = tuple(map(_checked, sinks))

    @calls_out
    def record(self, event: Event) -> None:
        first: BaseException | None = None
        for sink in self.sinks:
            try:
                sink.record(event)
            except BaseException as error:  # noqa: BLE001 - the other sinks must still get the event
                first = first or error
        if first is not None:
            raise first


class JsonlSink(Closing, NotCopied):
    """Appends each event as a line of ASCII JSON to a file with mode 0600. Thread-safe; a context manager.

    For `messages_sent`, only the messages that are new in the scope are written, with ``"since"``, the number of
    messages before them. `JsonlSink.read` restores the full lists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._lock = ForkSafeLock()
        self._delta = MessageDelta()
        # a descriptor, not a buffered file: when `record` returns, the line is in the file, even if the process crashes
        self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._cut_off = False
        if stat.S_ISREG(os.fstat(self._file).st_mode):  # the mode of a device or a pipe is not ours to change
            if hasattr(os, "fchmod"):  # not on every system; an existing file may have been readable by others
                os.fchmod(self._file, 0o600)
            with open(self.path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                self._cut_off = file.read(1) not in (b"", b"\n")

    def record(self, event: Event) -> None:
        with self._lock:
            if self._file is None:
                raise KernaiError(f"the sink on {self.path!r} is closed")
            entry = self._delta.entry(event.row)
            # start a new line if a crash or a full disk has cut off the last one
            left = (("\n" if self._cut_off else "") + dumps_data(entry) + "\n").encode("ascii")
            try:
                while left:
                    written = os.write(self._file, left)
                    self._cut_off = written < len(left)
                    left = left[written:]
            except BaseException:
                self._delta.forget(event.row)
                raise

    def close(self) -> None:
        """Closes the file; may be called twice."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    @staticmethod
    def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Returns the entries of such a file as `Recorder.to_list` does, with all messages in each `messages_sent`.

        Raises `KernaiError` if a line is not a JSON object; it names the line. Lines that a crash or a full disk has
        cut off are left out; unless it is the last line, that is logged.
        """
        return list(expand(read_lines(read_text(path), os.fspath(path)), os.fspath(path)))


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a recording's file. Raises `KernaiError` if it is not text."""
    try:
        return read_whole(path).decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise KernaiError(f"{os.fspath(path)} is not a recording: byte {error.start} is not UTF-8 text") from error


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Returns the contents of a file, a pipe or stdin. Raises `OSError` for any other device, which may never end."""
    with open(path, "rb") as file:  # noqa: PTH123 - `path` may be any os.PathLike
        found = os.fstat(file.fileno())
        has_an_end = stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
        is_stdin = file.fileno() > 0 and os.path.samestat(found, os.fstat(0))  # 0 if stdin was closed before
        if not has_an_end and not is_stdin:  # stdin may be a terminal
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe", path)
        return file.read()


def read_lines(text: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields the entries of a `JsonlSink`'s file, as they were written. `name` stands for the file in errors."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            if isinstance(error, json.JSONDecodeError) and _is_cut_off(line, error):
                warn("recording.cut_off", file=name, line=number, reason="this line was cut off, and is left out")
                continue
            raise KernaiError(f"{name}:{number} is not JSON: {error}") from error
        if not isinstance(entry, dict):
            raise KernaiError(f"{name}:{number} is not an event: it must be a JSON object")
        yield entry


#: matches the rest of a cut-off JSON value, from the place where the decoder fails; strings are handled separately
_CUT_OFF = r"t(ru?)?|f(a(ls?)?)?|nu?l?|-|[.eE][+-]?|u[0-9a-fA-F]{0,4}|\\\\?"


def _is_cut_off(line: str, error: json.JSONDecodeError) -> bool:
    """Whether the line is an event's, and only its end is missing."""
    in_text = error.msg.startswith("Unterminated string")
    return line[:1] == "{" and (in_text or not line[error.pos:] or bool(re.fullmatch(_CUT_OFF, line[error.pos:])))


class Recorder:
    """Records a run: ``execute(agent, "…", recorder=Recorder())``. By default it keeps events in memory."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.sink: Sink = MemorySink() if sink is None else _checked(sink)

    @calls_out
    def record(self, event: Event) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"record takes an Event, got {type(event).__name__}: make one with Event(type, data)")
        self.sink.record(event)

    @property
    def entries(self) -> list[Event]:
        """The events so far. Raises `KernaiError` if no sink keeps them: add a `MemorySink`."""
        if (memory := _memory(self.sink)) is None:
            raise KernaiError("no sink of this recorder keeps events: use CompositeSink(MemorySink(), your_sink)")
        return memory.entries

    def to_list(self) -> list[dict[str, Any]]:
        """The events as dicts of JSON data."""
        return [event.to_dict() for event in self.entries]

    def to_json(self, expand: bool = True) -> str:
        """The recording as one JSON list in ASCII. With ``expand=False``, each `messages_sent` has only new messages,
        so the text grows linearly with the run, not quadratically.
        """
        if expand:
            return dumps_data(self.to_list())
        delta = MessageDelta()
        return dumps_data([delta.entry(event.row) for event in self.entries])

    def for_event(self, type: str) -> list[Event]:
        """The events of one type. Raises `ValueError` if none was recorded and the type looks like a misspelled one."""
        found = [event for event in self.entries if event.type == type]
        if not found and type not in KINDS and (meant := likely(type, KINDS)):
            raise ValueError(f"there is no event {type!r}{meant}")
        return found

    def for_step(self, step: int) -> list[Event]:
        return [event for event in self.entries if event.step == step]

    @property
    def steps(self) -> list[int]:
        """The step numbers that occur, in order."""
        return sorted({event.step for event in self.entries if event.step is not None})

    def clear(self) -> None:
        """Deletes the events kept in memory."""
        if (memory := _memory(self.sink)) is not None:
            memory.clear()

    def token_usage(self) -> Usage:
        """The sum over all model calls. Values that no call reported are None."""
        return sum(self._usages(lambda _: None).values(), Usage())

    def token_usage_per_step(self) -> dict[int | None, Usage]:
        return self._usages(lambda event: event.step)

    def token_usage_per_task(self) -> dict[str, Usage]:
        """The usage by workflow task. Usage outside of tasks is under ``"root"``."""
        return self._usages(lambda event: event.task_id or ROOT)

    def _usages(self, part_of: Callable[[Event], Any]) -> dict[Any, Usage]:
        sums: dict[Any, Usage] = {}
        for event in self.entries:
            usage = event.row.usage()
            if usage is not None:
                part = part_of(event)
                sums[part] = sums.get(part, Usage()) + usage
        return sums


def expand(entries: Iterable[Mapping[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Restores the full messages in entries that were written with only the new ones in `messages_sent`.

    Raises `KernaiError` for an entry that does not match the one before; `name` stands for the recording in errors.
    """
    sent: _Sent = {}
    for number, given in enumerate(entries, 1):
        entry = dict(given)
        known = _known_to(sent, entry)
        if entry.get("event") == MessagesSentRow.type:
            since, new = entry.pop("since", None), entry.get("data")
            if since is None:
                known[:] = new if isinstance(new, list) else []
            else:
                _extend(known, since, new, f"{name}: entry {number}")
                entry["data"] = [*known]
        yield entry


class Shortening:
    """Undoes `expand`, entry by entry: leaves only the messages in each `messages_sent` that are new in its scope.

    If the messages do not continue those before, they stay whole. Any field of an entry may be missing or malformed,
    but with the `name` of the recording, an entry that is short and does not match the one before is a `KernaiError`.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._sent: _Sent = {}

    def entry(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        known, new, since = _known_to(self._sent, entry), entry.get("data"), entry.get("since")
        if entry.get("event") != MessagesSentRow.type or not isinstance(new, list):
            return entry
        if since is not None:  # it is short already
            _extend(known, since, new, self._name)
            return entry
        count, first = len(known), known[:1]
        is_longer = first and len(new) >= count and new[1:count] == known[1:]
        known[:] = new
        short = new[count:] if new[:1] == first else [*new[:1], *new[count:]]
        return {**entry, "data": short, "since": count} if is_longer else entry


#: the messages that were sent so far, by run and scope
_Sent = dict[str, dict[str, list[Any]]]


def _known_to(sent: _Sent, entry: Mapping[str, Any]) -> list[Any]:
    """The messages that the entry's scope has sent so far. A run that reuses an id is another run."""
    run, scope = (one if isinstance(one, str) else "" for one in (entry.get("run_id"), entry.get("scope")))
    if entry.get("event") == RunStartRow.type and not entry.get("scope"):
        sent.pop(run, None)
    return sent.setdefault(run, {}).setdefault(scope, [])


def _extend(known: list[Any], since: object, new: object, where: str) -> None:
    """Puts `new` after `since` messages in `known`. Raises `KernaiError` if it cannot, unless `where` is empty."""
    if isinstance(new, list) and isinstance(since, int) and 0 <= since <= len(known):
        if new and isinstance(new[0], dict) and new[0].get("role") == "system":  # it replaces the first message
            known[:1], since, new = new[:1], max(since, 1), new[1:]
        known[since:] = new
    elif where:
        raise KernaiError(f'{where}: "since" of messages_sent does not fit what was before')


class MessageDelta:
    """Reduces each `messages_sent` to the messages that its scope has not sent before.

    `sent` has, by run and scope, the number of messages last sent, the first of them, and the run's conversation, if it
    is known: another one under the same id and at the same time has all its messages.
    """

    def __init__(self, sent: dict[str, dict[str, tuple[int, Any, object]]] | None = None) -> None:
        self._sent = {} if sent is None else sent

    def entry(self, row: Row) -> dict[str, Any]:
        if not isinstance(row, MessagesSentRow) or row.since is not None:  # read from an entry that is reduced already
            if isinstance(row, (RunStartRow, ResultRow)):
                # a new run with the same id starts with empty conversations; an ended run sends nothing more
                self.forget(row)
            return row.entry()
        scope, run = row.place[3:5]
        messages, sent = row.messages, self._sent.setdefault(run, {})
        count, system, before = sent.get(scope, (0, None, None))
        first = messages[0] if messages else None
        sent[scope] = len(messages), first, row.conversation
        if count == 0 or count > len(messages) or before not in (None, row.conversation):
            return row.entry()
        return row.delta(count, [] if first == system else [first]).entry()

    def forget(self, row: Row) -> None:
        """Makes the next entry of the row's scope have all messages; if it is the root's, that of each scope."""
        scope, run = row.place[3:5]
        if scope:
            self._sent.get(run, {}).pop(scope, None)
        else:
            self._sent.pop(run, None)


def _memory(sink: object) -> MemorySink | None:
    """The first sink that keeps events."""
    if isinstance(sink, MemorySink):
        return sink
    if isinstance(sink, CompositeSink):
        return next((found for found in map(_memory, sink.sinks) if found is not None), None)
    return None

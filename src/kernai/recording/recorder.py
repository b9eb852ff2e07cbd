"""`Recorder` and its sinks: the complete recording of a run.

A sink is any object with `record(event)`. Three come with the package: `MemorySink`, `JsonlSink`, `CompositeSink`.
A sink that raises is logged by the driver and the run goes on.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kernai.errors import KernaiError
from kernai.values.conversation import MessageDicts
from kernai.values.event import Event
from kernai.values.json_data import dumps
from kernai.values.result import Usage

if TYPE_CHECKING:
    from typing import Self

ROOT = "root"


class Sink(Protocol):
    """Where events go."""

    def record(self, event: Event) -> None: ...


class MemorySink:
    """Keeps events in a list."""

    def __init__(self) -> None:
        self.entries: list[Event] = []

    def record(self, event: Event) -> None:
        self.entries.append(event)

    def clear(self) -> None:
        self.entries.clear()


class CompositeSink:
    """Gives every event to several sinks. One that raises does not keep it from the others; the first error is raised
    when all have had it.
    """

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = tuple(sinks)

    def record(self, event: Event) -> None:
        first: Exception | None = None
        for sink in self.sinks:
            try:
                sink.record(event)
            except Exception as error:  # noqa: BLE001 - the other sinks must have the event too
                first = first or error
        if first is not None:
            raise first


class JsonlSink:
    """Appends one line of ASCII JSON an event to a file of mode 0600. Thread-safe; a context manager.

    Of `messages_sent` only what is new since the scope's last one is written, with ``"since"``: how many messages
    stand from before. `JsonlSink.read` puts them back together.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._lock = threading.Lock()
        self._news = _MessageNews()
        # a descriptor, not a buffered file: a line is in the file when `record` returns, also before a crash
        self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if hasattr(os, "fchmod"):  # not on every system; a file that was there may have been open to others
            os.fchmod(self._file, 0o600)

    def record(self, event: Event) -> None:
        with self._lock:
            if self._file is None:
                raise KernaiError(f"the sink on {self.path!r} is closed")
            line = (dumps(self._news.entry(event)) + "\n").encode("ascii")
            while line:
                line = line[os.write(self._file, line):]

    def close(self) -> None:
        """Closes the file; closing twice is fine."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """The entries of such a file as `Recorder.to_list` gives them, `messages_sent` whole again.

        `KernaiError` names the line that is no JSON object; a last line that a crash cut off is left out.
        """
        return read_lines(read_text(path), os.fspath(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a recording's file; `KernaiError` where it holds none."""
    with open(path, "rb") as file:  # noqa: PTH123 - `path` may be any os.PathLike
        raw = file.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KernaiError(f"{os.fspath(path)} is no recording: byte {error.start} is not UTF-8 text") from error


def read_lines(text: str, name: str) -> list[dict[str, Any]]:
    """What `JsonlSink.read` does, for text at hand; `name` is what errors call it."""
    lines = text.split("\n")
    entries = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise KernaiError(f"{name}:{number} is not JSON: {error}") from error
        if not isinstance(entry, dict):
            raise KernaiError(f"{name}:{number} is no event: it must be a JSON object")
        entries.append(entry)
    return expand(entries, name)


class Recorder:
    """Records a run: ``execute(agent, "…", recorder=Recorder())``. A fresh one keeps events in memory."""

    def __init__(self, sink: Sink | None = None) -> None:
        if sink is not None and not callable(getattr(sink, "record", None)):
            raise TypeError(f"sink must have a record(event) method, {type(sink).__name__} has none")
        self.sink: Sink = MemorySink() if sink is None else sink

    def record(self, event: Event) -> None:
        self.sink.record(event)

    @property
    def entries(self) -> list[Event]:
        """The events so far. `KernaiError` when no sink keeps them: add a `MemorySink`."""
        memory = _memory(self.sink)
        if memory is None:
            raise KernaiError("no sink of this recorder keeps events: use CompositeSink(MemorySink(), your_sink)")
        return list(memory.entries)

    def to_list(self) -> list[dict[str, Any]]:
        """The events as JSON-ready dicts."""
        return [event.to_dict() for event in self.entries]

    def to_json(self, expand: bool = True) -> str:
        """The recording as one JSON list in ASCII. With ``expand=False`` each `messages_sent` holds only what is new,
        so that the text grows with the run and not with its square.
        """
        if expand:
            return dumps(self.to_list())
        news = _MessageNews()
        return dumps([news.entry(event) for event in self.entries])

    def for_event(self, type: str) -> list[Event]:
        return [event for event in self.entries if event.type == type]

    def for_step(self, step: int) -> list[Event]:
        return [event for event in self.entries if event.step == step]

    @property
    def steps(self) -> list[int]:
        """The step numbers that occur, in order."""
        return sorted({event.step for event in self.entries if event.step is not None})

    def clear(self) -> None:
        """Forgets the events kept in memory."""
        memory = _memory(self.sink)
        if memory is not None:
            memory.clear()

    def token_usage(self) -> Usage:
        """The sum over all model calls; what no call reported is None."""
        return sum(self._usages(lambda _: None).values(), Usage())

    def token_usage_per_step(self) -> dict[int | None, Usage]:
        return self._usages(lambda event: event.step)

    def token_usage_per_task(self) -> dict[str, Usage]:
        """By workflow task; what the root itself used stands under ``"root"``."""
        return self._usages(lambda event: event.task_id or ROOT)

    def _usages(self, part_of: Callable[[Event], Any]) -> dict[Any, Usage]:
        """The sums over the model calls of each part."""
        sums: dict[Any, Usage] = {}
        for event in self.for_event("llm_response"):
            data, part = event.data, part_of(event)
            usage = Usage(data["prompt_tokens"], data["completion_tokens"], data["total_tokens"], data.get("cost"), 1)
            sums[part] = sums.get(part, Usage()) + usage
        return sums


def expand(entries: Iterable[Mapping[str, Any]], name: str = "recording") -> list[dict[str, Any]]:
    """Entries written with only what is new in `messages_sent`, made whole.

    `KernaiError` for one that does not fit the one before; `name` is what it calls them.
    """
    last: dict[str, list[Any]] = {}
    whole = []
    for number, given in enumerate(entries, 1):
        entry = dict(given)
        if entry.get("event") == "messages_sent":
            key = repr((entry.get("run_id"), entry.get("scope")))
            since, new = entry.pop("since", None), entry.get("data")
            if since is not None:
                before = last.get(key, [])
                if not isinstance(new, list) or not isinstance(since, int) or not 0 <= since <= len(before):
                    raise KernaiError(f'{name}: entry {number}: "since" of messages_sent does not fit what was before')
                if new and isinstance(new[0], dict) and new[0].get("role") == "system":
                    entry["data"] = [new[0], *before[1:since], *new[1:]]
                else:
                    entry["data"] = [*before[:since], *new]
            last[key] = entry["data"] if isinstance(entry.get("data"), list) else []
        whole.append(entry)
    return whole


class _MessageNews:
    """Reduces each `messages_sent` to what its scope has not sent before."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], tuple[int, Any]] = {}

    def entry(self, event: Event) -> dict[str, Any]:
        data = event.data
        if event.type == "run_start":
            # a run that takes up an id again starts with an empty conversation
            self._sent.pop((event.run_id, event.scope), None)
        if event.type != "messages_sent" or not isinstance(data, (MessageDicts, list)):
            return event.to_dict()
        key = (event.run_id, event.scope)
        count, system = self._sent.get(key, (0, None))
        first = data[0] if data else None
        self._sent[key] = (len(data), first)
        if count == 0 or count > len(data):
            return event.to_dict()
        new: Sequence[Any] = [data[at] for at in range(count, len(data))]
        entry = Event(event.type, new if first == system else [first, *new], *_place(event)).to_dict()
        return {**entry, "since": count}


def _place(event: Event) -> tuple[int | None, int, str | None, str, str, str]:
    return event.step, event.depth, event.task_id, event.scope, event.run_id, event.timestamp


def _memory(sink: object) -> MemorySink | None:
    """The first sink that keeps events."""
    if isinstance(sink, MemorySink):
        return sink
    if isinstance(sink, CompositeSink):
        return next((found for found in map(_memory, sink.sinks) if found is not None), None)
    return None

"""Recordings: reads one from a file or a store, writes one with the media of its run, and shows one: `kernai view`."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from kernai._util.private_file import new_part, write_private
from kernai.command_line import output
from kernai.command_line.output import NO, OK, CommandError, failing, is_address, without_password
from kernai.command_line.program import Command, argument, group, number
from kernai.command_line.stores import StoreAt, command
from kernai.errors import KernaiError, error_text
from kernai.events import RECORDING_FORMAT, Event, RunResumedRow, RunStartRow
from kernai.recording.recorder import JsonlSink, MemorySink, Recorder, Shortening, read_text
from kernai.recording_file import entries_in
from kernai.values.media import MIME_TYPES, Media, MediaStore

FORMS = "a recording (.json, .jsonl, or a log with events), or STORE RUN for a run in a store"
HINT = "`kernai run AGENT ... --record FILE` makes a recording; with --store STORE the run is STORE RUN"
_SQLITE = b"SQLite format 3\0"


class Source(NamedTuple):
    """A recording in the file at `path`, or the run `run_id` of the store at `path`."""

    path: str
    run_id: str | None = None

    def __str__(self) -> str:
        return self.path if self.run_id is None else f"{without_password(self.path)} {self.run_id}"

    def events(self) -> Sequence[Mapping[str, Any]]:
        """The events, each `messages_sent` with only its new messages; notes a newer format. Raises `CommandError`
        without any.
        """
        events = self._read()
        starts = [one.get("data") for one in events if one["event"] in (RunStartRow.type, RunResumedRow.type)]
        formats = [one["format"] for one in starts if isinstance(one, dict) and isinstance(one.get("format"), int)]
        newest = max(formats, default=0)
        if newest > RECORDING_FORMAT:
            newer = f"note: {self} is in format {newest}, and this kernai knows up to {RECORDING_FORMAT}"
            output.note(f"{newer}: it may misunderstand some events; update it", "yellow")
        return events

    def _read(self) -> Sequence[Mapping[str, Any]]:
        if self.run_id is not None:
            with StoreAt(self.path) as store:
                store.existing(self.run_id)
                return store.store.load(self.run_id)
        if is_store(self.path):
            path = without_password(self.path)
            hint = f"{path} RUN; `{command('runs', path)}` lists them"
            raise CommandError(f"{path} is a store: say which of its runs", hint)
        with failing("", HINT, KernaiError), failing(f"cannot read {self.path}", HINT):
            events = list(map(Shortening(self.path).entry, entries_in(self.path)))
        if not events:
            raise CommandError(f"{self.path} is not a recording: it has no events", HINT)
        return events

    def media(self) -> list[Media]:
        """The media of a run in a store; empty for a file, whose media are in a folder next to it."""
        if self.run_id is None:
            return []
        with StoreAt(self.path) as store:
            return store.store.load_media(self.run_id)


def sources(words: Iterable[str]) -> list[Source]:
    """The recordings that the words of a command line name: files, and stores that are each followed by a run."""
    rest = iter(words)
    return [Source(word, next(rest, None)) if is_store(word) else _file_or_run(word) for word in rest]


def source(words: Sequence[str]) -> Source:
    """The recording or run that these words name. Raises `CommandError` if they name several."""
    found, *more = sources(words)
    if more:
        found.events()  # raises the more precise error if the recording does not exist
        raise CommandError(f"unrecognized arguments: {more[0]}", f"{found} is a recording, not a store with runs")
    return found


def _file_or_run(name: str) -> Source:
    """Also accepts ``STORE:RUN``, an older spelling of a run in a store, unless a file has that whole name."""
    path, _, run_id = name.rpartition(":")
    return Source(path, run_id) if is_store(path) and not os.path.exists(name) else Source(name)


def is_store(path: str) -> bool:
    """Whether `path` is a file of `SqliteStore`, or the address of a PostgreSQL database."""
    if os.path.isfile(path):  # a pipe must not be read twice
        with suppress(OSError), open(path, "rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    return is_address(path)


# ---------------------------------------------------------------------------------------------------------- writing

WRITABLE = "name a file that can be written, such as run.jsonl"
#: Larger media are left out: a page that shows a thumbnail is not worth a copy of a film.
MAX_BYTES = 64 * 1024 * 1024
_KEYS = Event("").to_dict().keys()
#: the beginning of each entry, without the event's type
_HEAD = '{"event":"","step":'
#: the first file ending of each media type
_ENDINGS = {mime: ending for ending, mime in reversed(MIME_TYPES.items())}


class Recording:
    """Writes the events of its ``with`` block's recorder to `path`, and the media of `store` to the folder next to it.

    A ``.jsonl`` is written line by line, a ``.json`` at the end. An earlier recording is replaced (if it is a symbolic
    link, the link is replaced, not its target). For any other existing file the constructor raises `CommandError`; the
    block does if another process is recording to the file. The first later failure is reported at the end of the block:
    a `CommandError`, or a warning if another exception ends it. Files have mode 0600. Media are written if they are
    bytes or files; URLs are never fetched. Media that are too large are left out, with a note unless `quiet`.
    """

    def __init__(self, path: str, store: MediaStore, *, quiet: bool = False) -> None:
        self.path = path
        self._file = os.path.abspath(path)  # the agent's file may change the working directory
        #: for media, such as ``RUN.jsonl.media/ID.ending``; created with the first file
        self.folder = f"{self._file}.media"
        self._failure: str | None = None
        self._store = store
        self._quiet = quiet
        self._handled = 0  # how many media of the store were written; it keeps their order
        self._sink: JsonlSink | MemorySink = MemorySink()
        if not path.endswith((".json", ".jsonl")):
            raise CommandError(f"--record: {path!r} must end in .json or .jsonl", WRITABLE)
        with failing(f"--record: cannot write {path}", WRITABLE):
            if os.path.exists(path) and not _is_recording(path):
                reason = "exists and is not a recording, so it is left unchanged"
                raise CommandError(f"--record: {path} {reason}", "name another file")
            part, descriptor = new_part(path)  # fails if the folder is not writable
            os.close(descriptor)
            os.unlink(part)

    def record(self, event: Event) -> None:
        """Writes an event. Media are written first, so that a program that follows the file finds them."""
        with self._going_on():
            if len(self._store) > self._handled:
                for media in islice(self._store, self._handled, None):
                    self._handled += 1
                    self._write(media)
        with self._going_on():
            self._sink.record(event)

    def _write(self, media: Media) -> None:
        """Writes one of the media. Raises `KernaiError` if that fails; it is not tried again."""
        if media.is_url:
            return
        is_on_disk = media.is_path and media.payload is None and os.path.isfile(media.data)
        is_huge = is_on_disk and os.path.getsize(media.data) > MAX_BYTES  # such a file is not read
        data = b"" if is_huge else media.read_bytes()
        if is_huge or len(data) > MAX_BYTES:
            if not self._quiet:
                output.note(f"note: {media.id} is over {MAX_BYTES:,} bytes and left out of {self.folder}", "yellow")
            return
        if os.path.islink(self.folder):
            raise KernaiError(f"{self.folder} is a link, and kernai does not write media through links")
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            write_private(os.path.join(self.folder, f"{media.id}.{_ENDINGS.get(media.mime_type, 'bin')}"), data)
        except OSError as error:
            raise KernaiError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def __enter__(self) -> Recorder:
        is_jsonl = self.path.endswith(".jsonl")
        with failing(f"--record: cannot write {self.path}", WRITABLE):
            if is_store(self._file):  # it did not exist before
                raise CommandError(f"--record: {self.path} is the store of the run", "name another file")
            with _lock(self._file) if os.path.exists(self._file) else nullcontext():
                if is_jsonl or not os.path.exists(self._file):
                    write_private(self._file, b"")  # replaces an existing file by a new one
            self._locked = _lock(self._file)
            if is_jsonl:
                self._sink = JsonlSink(self._file)
        return Recorder(self)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._going_on():
            if isinstance(self._sink, JsonlSink):
                self._sink.close()
            else:
                write_private(self._file, (Recorder(self._sink).to_json(expand=False) + "\n").encode("ascii"))
        self._locked.close()
        if self._failure is not None and kind is None:
            raise CommandError(self._failure, WRITABLE, NO)
        if self._failure is not None:
            output.note(f"warning: {self._failure}", "yellow")

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Keeps the first failure of such blocks."""
        try:
            yield
        except (OSError, KernaiError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            self._failure = self._failure or f"the recording {self.path} is incomplete: {reason or error_text(error)}"


def _lock(path: str) -> BinaryIO:
    """Opens and locks a file until it is closed. Raises `CommandError` if another process is recording to it."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # on Windows, where an open file cannot be replaced
        return open(os.devnull, "rb")
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    with suppress(OSError):  # on file systems without locks
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise CommandError(f"--record: another process is recording to {path}", "name another file") from error
    return file


def _is_recording(path: str) -> bool:
    """Whether the file is empty, or a `Recording` wrote it. `entries_in` accepts more, such as logs with events."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return os.path.isfile(path)
    try:
        begun = re.sub(r'^(\{"event":")\w+', r"\1", read_text(path).strip("[]\n"))  # perhaps incomplete
        is_ours = begun.startswith(_HEAD) or _HEAD.startswith(begun)
        return is_ours and all(one.keys() >= _KEYS for one in entries_in(path))
    except KernaiError:
        return False


# ---------------------------------------------------------------------------------------------------------- showing

_ELSEWHERE = "name another file with -o"


def _view(options: Namespace) -> int:
    recording = source([options.recording] if options.run is None else [options.recording, options.run])
    folder = f"{recording.path}.media" if options.media is None else options.media
    if options.media is not None and not os.path.isdir(folder):
        raise CommandError(f"--media: {folder} is not a folder", "name the one that holds the files media_...")
    title = recording.run_id or os.path.basename(recording.path) if options.title is None else options.title
    if options.follow:
        return _follow(recording, options, title, folder)
    if options.port is not None:
        raise CommandError("--port belongs to --follow", "a file needs no port")
    target = _target(recording) if options.output is None else options.output
    from pathlib import Path  # the other commands on recordings need neither

    from kernai.viewer import render_page, write_page

    page = render_page(recording.events(), title=title, media_folder=folder, media=recording.media())
    if target == "-":
        sys.stdout.buffer.write(page.encode("utf-8"))  # in another encoding, its script would not match its hash
        return OK
    with failing("", _ELSEWHERE, KernaiError), failing(f"cannot write {target}", _ELSEWHERE):
        write_page(target, page)
    output.write(target)
    if options.open:
        _open(Path(target).resolve().as_uri())
    return OK


def _target(recording: Source) -> str:
    """The file of the page, next to the recording."""
    path, run_id = recording
    if run_id is not None:
        return os.path.join("" if is_address(path) else os.path.dirname(path), f"{run_id}.html")
    return re.sub(r"(?i)\.(jsonl|json|ndjson)\Z", "", path) + ".html"


def _follow(recording: Source, options: Namespace, title: str, folder: str) -> int:
    if recording.run_id is not None:
        raise CommandError("--follow needs a file of JSON lines, and this run is in a store",
                           "without it the page shows the run so far; `--record FILE.jsonl` can be followed")
    if recording.path.lower().endswith(".json"):
        raise CommandError("--follow needs JSON lines, and a .json is written when the run has ended",
                           "record to a .jsonl; other JSON lines can be followed under such a name")
    if is_store(recording.path) or os.path.isdir(recording.path):
        recording.events()  # raises an error that says so
    from kernai.viewer import FollowServer

    taken = f"--port: cannot listen on port {options.port}"
    with failing(taken, "leave --port out to take any free one", (OSError, OverflowError)):
        server = FollowServer(recording.path, port=options.port or 0, title=title, media_folder=folder)
    with server:
        output.write(server.url)
        sys.stdout.flush()
        output.note("Whoever has this address can read the recording. Ctrl-C ends.")
        with suppress(KeyboardInterrupt):  # Ctrl-C is how the user stops the server
            if options.open:
                _open(server.opening_url)
            server.serve()
    return OK


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        output.note("No browser could be opened.", "yellow")


COMMANDS = {"view": Command(_view, (
    argument("RECORDING|STORE", FORMS, name="recording"),
    argument("RUN", "the run's id; `kernai runs STORE` lists them", nargs="?"),
    group(
        argument("-o --output FILE", "write the page to FILE; - is stdout"),
        argument("--follow", "serve the page while the recording grows; Ctrl-C stops it"),
    ),
    argument("--open", "open the page in the browser"),
    argument("--media FOLDER", "take images from FOLDER (default: RECORDING.media)"),
    argument("--title TEXT", "the page's title (default: the recording's name)"),
    argument("--port N", "the port for --follow (default: any free port)", number(int, 1)),
), """\
Write a recorded run as one HTML file that needs no network. It shows a time line of the run, its steps and sub-agents,
the conversation, and every event, with filters and search. With --follow, serve the page while the run is being
recorded, on this machine only, at an address with a random token.

The page is written next to the recording (run.html for run.jsonl) unless -o gives another file. An earlier page is
overwritten; any other file is left unchanged. Images come from the folder run.jsonl.media, which `kernai run --record`
creates, or from the store if the run is in one.""", """\
kernai view run.jsonl --open
kernai view run.json -o report.html
kernai view runs.db refund-42 --open
kernai run agent.py "Take stock." --record run.jsonl & kernai view run.jsonl --follow --open
""")}

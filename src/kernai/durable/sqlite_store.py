"""`SqliteStore`: runs in one SQLite file, for many threads and processes at once.

- Each store has one connection and one lock: SQLite has one writer anyway. Processes take turns by `BEGIN IMMEDIATE`.
- If the database is locked, this module waits, not SQLite: Ctrl-C can interrupt the wait, and SQLite does not wait at
  all when it opens a new file.
- A connection must not survive a fork: parent and child would share one set of locks, and the first to close would
  remove the log that the other still writes to. So connections are closed before a fork and reopened on demand.
- Closing any descriptor of a file drops all locks that the process has on it. So this module opens the database file
  only to create it, and never while this process opens a connection.
- Every row has a checksum: SQLite notices a flipped bit only if it breaks the structure of the file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from binascii import crc32
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Literal, TypeVar, Unpack
from weakref import WeakSet, finalize

from kernai._util.api import check_texts, check_type
from kernai.durable.lease import Lease
from kernai.durable.run_head import Head, LeasedStore
from kernai.durable.store import ABANDONED, RUNNING, Codec, Entry, RunFilter, RunInfo, Terms, check_load, check_run_id
from kernai.errors import KernaiError, RunDamagedError
from kernai.interrupts import INTERRUPTS
from kernai.jsonio.json_data import dumps_data
from kernai.values.media import Media

T = TypeVar("T")

#: seconds to wait for a locked database before raising an error
RETRY_SECONDS = 10.0

APPLICATION = 0x6B726E69  # "krni", which marks the file as a kernai store
FORMAT = 2
# the `run_id` columns hold TENANT/RUN for a tenant's run; neither name may contain a slash
_SCHEMA = f"""
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, summary TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, entry TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)) WITHOUT ROWID;
CREATE TABLE media (
    run_id TEXT NOT NULL, id TEXT NOT NULL, about TEXT NOT NULL, payload BLOB, checksum INTEGER NOT NULL,
    PRIMARY KEY (run_id, id));
PRAGMA application_id = {APPLICATION}
"""
# each append changes `updated_at`, so the index of running runs leaves it out
_FORMAT_2 = """
ALTER TABLE runs ADD COLUMN status TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN updated_at TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_under_way ON runs (run_id) WHERE status = 'running';
CREATE INDEX other_runs ON runs (status, updated_at DESC, run_id) WHERE status != 'running';
PRAGMA user_version = 2
"""

Durability = Literal["power", "process"]
_PRAGMAS = {
    # without fullfsync, macOS may leave synced data in the disk's cache
    "power": ("PRAGMA synchronous = FULL", "PRAGMA fullfsync = ON"),
    # the log is synced only when it is copied into the file; let it reach 16 MB, so that this is rare
    "process": ("PRAGMA synchronous = NORMAL", "PRAGMA wal_autocheckpoint = 4000"),
}

#: SQLite reports both as a lock that somebody else holds, or as a faulty disk
_NO_LOCKS = "its file system does not support locks: keep the store on a local disk"
_HINTS = {
    sqlite3.SQLITE_FULL: "free some space and resume the run; what was appended before is safe",
    sqlite3.SQLITE_READONLY: "this user may not write to the file or to its folder",
    sqlite3.SQLITE_CANTOPEN: "the folder must exist and be writable, and the path must not be a folder",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite file, or its first page is damaged",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: put a backup in its place, or save what `load` still returns",
    sqlite3.SQLITE_IOERR: f"the disk may be full, or faulty, or {_NO_LOCKS}",
    sqlite3.SQLITE_TOOBIG: "SQLite stores texts and payloads of up to 1 GB",
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for {RETRY_SECONDS:.0f} seconds, or {_NO_LOCKS}",
}
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR})

# Read as bytes: after a bit flip the text may not be valid UTF-8.
_ENTRIES = "SELECT seq, CAST(entry AS BLOB), checksum FROM entries WHERE run_id = ? AND seq >= ? ORDER BY seq LIMIT ?"
_MEDIA = """
SELECT id, CAST(about AS BLOB), CAST(payload AS BLOB), checksum FROM media
WHERE run_id = :run AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids))) ORDER BY rowid"""
_KEEP_MEDIA = """
INSERT INTO media VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
SET about = excluded.about, payload = excluded.payload, checksum = excluded.checksum
WHERE payload IS NULL AND excluded.payload IS NOT NULL"""  # a file that could not be read at first
_RUNS = "SELECT run_id, CAST(summary AS BLOB), checksum, status, updated_at FROM runs"
_IS_HELD = "json_valid(summary) AND json_extract(summary, '$[4]') IS NOT NULL"  # the holder in `Head.to_data`
#: the runs of each status in a filter. NOT INDEXED: a damaged index would hide runs
_LISTED = {
    None: "NOT INDEXED WHERE status != ''",
    # also a run that waited, and is held but not resumed yet
    RUNNING: f"NOT INDEXED WHERE (status = 'running' OR (status != '' AND {_IS_HELD}))",
    ABANDONED: "WHERE status = 'running'",
}
_LISTED_OTHERS = "WHERE status != 'running' AND status = :status"
# a statement that sets `status` also writes to the indexes
_UPDATE_RUN = "UPDATE runs SET summary = ?, checksum = ?, updated_at = ? WHERE run_id = ?"
_KEEP_RUN = "REPLACE INTO runs (summary, checksum, updated_at, run_id, status) VALUES (?, ?, ?, ?, ?)"
_COUNT_MEDIA = "SELECT count(*) FROM media WHERE run_id = ?"


class SqliteStore(LeasedStore):
    """Keeps runs in the SQLite file at `path`. A new file is created with mode 0600.

    `durability` says what an append survives once it has returned: with ``"power"`` a power cut, with ``"process"`` the
    death of the process. `codec` encrypts entries and media. All threads may share one store; it survives a fork. Close
    it, or use it as a context manager.

    Raises `KernaiError` for a file that cannot be opened, is not a kernai store, or was written by a newer kernai.
    """

    def __init__(
        self, path: str | os.PathLike[str], durability: Durability = "power", *, codec: Codec | None = None
    ) -> None:
        if durability not in _PRAGMAS:
            raise ValueError(f"durability must be 'power' or 'process', got {durability!r}")
        super().__init__(codec)
        text = os.fsdecode(check_type(path, str | os.PathLike, "path must be text or a Path"))
        if text in ("", ":memory:"):
            raise ValueError(f"path must name a file, got {text!r}: runs in memory are kept by MemoryStore")
        # SQLite's other files are where the file is, not where a link to it is; not relative to the working directory
        self.path = os.path.realpath(text)
        self.durability = durability
        self._file = _File(self.path, durability)
        self._file.perform("open the store", lambda _: None, "BEGIN")

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Unpack[Terms]
    ) -> Lease | None:
        key, (texts, sealed) = self._key(run_id), self._sealed_append(run_id, entries, media, terms)
        rows = [(key, seq, text, crc32(text.encode("ascii"))) for seq, text in enumerate(texts, first_seq)]
        brought = [(key, *one, _checksum(one[1].encode("ascii"), one[2])) for one in sealed]

        def work(connection: sqlite3.Connection) -> Lease | None:
            head = self._file.latest(connection, key)
            if head.append(first_seq, entries, **terms):
                if brought:
                    connection.executemany(_KEEP_MEDIA, brought)
                    head.media = connection.execute(_COUNT_MEDIA, (key,)).fetchone()[0]
                self._file.keep(connection, key, head)
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
            return head.lease_after(**terms)

        return self._file.perform(f"append entries {first_seq} to {first_seq + len(rows) - 1} of run {run_id!r}", work)

    def load(self, run_id: str, from_seq: int = 0, limit: int | None = None) -> list[Entry]:
        """At most `limit` entries. Raises `RunDamagedError` if one is unreadable; its `entries` are those before it."""
        check_load(run_id, from_seq, limit)
        key = self._key(run_id)
        most = -1 if limit is None else limit

        def work(connection: sqlite3.Connection) -> list[Entry]:
            found: list[Entry] = []
            try:
                for seq, text, checksum in connection.execute(_ENTRIES, (key, from_seq, most)):
                    if seq != from_seq + len(found):
                        raise _DamageError("it is missing")
                    found.append(_intact(self._opened, text, checksum))
                if len(found) not in (max(self._file.latest(connection, key).entries - from_seq, 0), most):
                    raise _DamageError("it is missing")
            except (sqlite3.DatabaseError, UnicodeDecodeError) as damage:
                if _code(damage) not in _DAMAGE:
                    raise
                raise RunDamagedError(
                    f"cannot load entry {from_seq + len(found)} of run {run_id!r} in {self.path!r}: {damage}. The "
                    f"{len(found)} before it are in this error's `entries`: append them to a new run to continue there",
                    found,
                ) from damage
            return found

        return self._file.perform(f"load run {run_id!r}", work, "BEGIN")

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        """Returns the run's media. Raises `RunDamagedError` if some cannot be read; its `media` are the others."""
        check_run_id(run_id)
        key, wanted = self._key(run_id), None if ids is None else json.dumps(check_texts("ids", ids, "ids"))

        def work(connection: sqlite3.Connection) -> list[Media]:
            found: list[Media] = []
            lost: list[str] = []
            try:
                for media_id, about, payload, checksum in connection.execute(_MEDIA, {"run": key, "ids": wanted}):
                    try:
                        found.append(_intact(self._opened_media, about, checksum, payload))
                    except _DamageError as damage:
                        lost.append(f"{media_id} ({damage})")
                head = self._file.latest(connection, key)
                # count ids: a damaged index may return one row twice
                if wanted is None and len({one.id for one in found}) + len(lost) != head.media:
                    raise _DamageError("not all of them are there")
            except (sqlite3.DatabaseError, UnicodeDecodeError) as damage:
                if _code(damage) not in _DAMAGE:
                    raise
                lost.append(str(damage))
            if lost:
                raise RunDamagedError(
                    f"cannot load media of run {run_id!r} in {self.path!r}: {', '.join(lost)}. "
                    "The others are in this error's `media`",
                    media=found,
                )
            return found

        return self._file.perform(f"load the media of run {run_id!r}", work, "BEGIN")

    def _disconnect(self) -> None:
        self._file.close()

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r}, durability={self.durability!r})"

    def _key(self, run_id: str) -> str:
        return self._tenant + "/" + run_id if self._tenant else run_id

    def _change(self, run_id: str, change: Callable[[Head], T], *, writes: bool = True) -> T:
        check_run_id(run_id)  # TENANT/RUN would be a tenant's run
        key = self._key(run_id)

        def work(connection: sqlite3.Connection) -> T:
            head = self._file.latest(connection, key)
            existed = head.entries
            made = change(head)
            if writes and existed:
                self._file.keep(connection, key, head)
                if not head.entries:
                    connection.execute("DELETE FROM entries WHERE run_id = ?", (key,))
                    connection.execute("DELETE FROM media WHERE run_id = ?", (key,))
            return made

        return self._file.perform(f"look up or change run {run_id!r}", work, "BEGIN IMMEDIATE" if writes else "BEGIN")

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        own = "run_id BETWEEN :tenant || '/' AND :tenant || '/~'" if self._tenant else "instr(run_id, '/') = 0"
        where = f"{_LISTED.get(wanted.status, _LISTED_OTHERS)} AND {own}"
        given = {"status": wanted.status, "tenant": self._tenant}
        if after is not None:
            where += " AND updated_at <= :at AND (updated_at < :at OR run_id > :id)"
            given |= {"at": after.updated_at, "id": self._key(after.run_id)}

        def work(connection: sqlite3.Connection) -> list[RunInfo]:
            rows = connection.execute(f"{_RUNS} {where} ORDER BY updated_at DESC, run_id", given)
            infos = (_head_of(*row).shown() for row in rows)
            return list(islice(filter(wanted.matches, infos), limit))

        return self._file.perform("list the runs", work, "BEGIN")


class _File:
    """The connection shared by a store and its tenants' views. It caches the head of the last run written."""

    def __init__(self, path: str, durability: Durability) -> None:
        self.path = path
        self.durability = durability
        # reentrant: a signal handler may fork in the middle of an append
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        #: closes the connection, also of a store that was never closed: Python 3.13 would issue a ResourceWarning
        self._close: Callable[[], object] = lambda: None
        #: of the connection's file; empty if the connection cannot see changes, so that each call makes a new one
        self._identity: tuple[int, ...] | None = None
        self._closed = False
        #: the run last read or written, the file's version then, the run's head, its row's `status` (None: no row)
        self._last: tuple[str, int, Head, str | None] | None = None
        with _FORKING:
            _FILES.add(self)

    def perform(self, doing: str, work: Callable[[sqlite3.Connection], T], begin: str = "BEGIN IMMEDIATE") -> T:
        """Runs `work` in one transaction and returns its result, retrying while the database is locked."""
        with self.lock:
            until = monotonic() + RETRY_SECONDS
            while True:
                try:
                    return self._attempt(work, begin)
                except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
                    if _code(error) != sqlite3.SQLITE_BUSY or monotonic() > until:
                        hint = _HINTS.get(_code(error) or 0)
                        why = (isinstance(error, OSError) and error.strerror) or error
                        raise KernaiError(
                            f"cannot {doing} in {self.path!r}: {why}" + (f" ({hint})" if hint else "")
                        ) from error
                sleep(0.002)
                INTERRUPTS.look()

    def _attempt(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        if self._closed:
            raise KernaiError(f"the store on {self.path!r} is closed")
        if self._connection is not None and self._connection.in_transaction:
            raise KernaiError(f"the store on {self.path!r} is in the middle of a call: let signal handlers set a flag")
        if self._connection is not None and _identity(self.path) != self._identity:
            self.disconnect()  # the file was removed or replaced, so appends to the old one would be lost
        if self._connection is None:
            connection, self._identity = _connected(self.path, self.durability)
            self._close = finalizer = finalize(self, connection.close)
            finalizer.atexit = False  # at exit, a daemon thread may still use it
            self._connection = connection
        connection = self._connection
        try:
            connection.execute(begin)
            made = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._last = None
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.disconnect()  # this also rolls back
            raise
        return made

    def latest(self, connection: sqlite3.Connection, key: str) -> Head:
        """Returns the run's head. It is read again only if another connection has written to the file meanwhile."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if self._last is None or self._last[:2] != (key, version):
            row = connection.execute(f"{_RUNS} WHERE run_id = ?", (key,)).fetchone()
            head = _head_of(*row[:3]) if row else Head(RunInfo(key.rpartition("/")[2]))
            self._last = key, version, head, row[3] if row else None
        head = self._last[2]
        head.now = time()
        return head

    def keep(self, connection: sqlite3.Connection, key: str, head: Head) -> None:
        """Writes the head that `latest` returned. An empty status keeps a deleted run out of `runs`."""
        status, text = head.info.status if head.entries else "", dumps_data(head.to_data())
        row = text, crc32(text.encode("ascii")), head.info.updated_at, key
        if self._last is not None and self._last[3] == status:
            connection.execute(_UPDATE_RUN, row)
        else:
            connection.execute(_KEEP_RUN, (*row, status))
            self._last = self._last and (*self._last[:3], status)  # None if a signal handler has forked meanwhile

    def disconnect(self) -> None:
        self._connection = self._last = None
        self._close()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self.disconnect()


# Each run has one row with its head, updated by each append, so that listing runs need not read entries. The head
# counts the entries, so a loss is noticed.


def _head_of(key: str, text: object, checksum: object, *listed_by: str) -> Head:
    data = _intact(json.loads, text, checksum)
    if isinstance(data[0], str):  # written in format 1
        run_id, agent, status, updated_at, entries, media = data
        data = [RunInfo(run_id, agent, status, updated_at).to_dict(), entries, media]
    info = RunInfo.from_dict(data[0])
    head = Head(info, *data[1:])
    head.now = time()
    if info.run_id != key.rpartition("/")[2] or listed_by not in ((), (info.status, info.updated_at)):
        raise _DamageError(f"the row of run {info.run_id!r} is damaged")
    return head


class _DamageError(sqlite3.DatabaseError):
    """A row cannot be read; the message says why."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _code(error: BaseException) -> int | None:
    """The primary SQLite error code; None if the error is not SQLite's."""
    if isinstance(error, UnicodeDecodeError):  # its message quotes the damaged place
        return sqlite3.SQLITE_CORRUPT
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _connected(path: str, durability: Durability) -> tuple[sqlite3.Connection, tuple[int, ...] | None]:
    """Opens a connection. Also returns the file's identity; empty for a read-only and immutable one (see `_frozen`)."""
    with _CONNECTING:
        _make(path)
        connection = _connection(path)
        try:
            _prepare(connection, path)
            for name in (path, f"{path}-wal", f"{path}-shm"):  # only now is the file known to be a store
                with suppress(FileNotFoundError):
                    _close_to_others(name, 0o600)
            for pragma in _PRAGMAS[durability]:
                connection.execute(pragma)
        except BaseException as error:
            connection.close()
            folder, as_user = os.path.dirname(path), os.access in os.supports_effective_ids  # noqa: PTH120 - text in, text out
            may_write = os.access(folder, os.W_OK, effective_ids=as_user)
            if may_write or _code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                raise
            return _frozen(path), ()
        return connection, _identity(path)


def _connection(path: str, *, uri: bool = False) -> sqlite3.Connection:
    # a short timeout: Ctrl-C cannot interrupt SQLite's own wait
    return sqlite3.connect(path, timeout=0.1, isolation_level=None, check_same_thread=False, uri=uri)


def _frozen(path: str) -> sqlite3.Connection:
    """Opens the file read-only and immutable: this user may not create SQLite's -wal and -shm files in the folder."""
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size > 0:  # it holds data that is not yet in the file
        raise KernaiError(
            f"{path!r} can only be read together with {str(log)!r}, and this user may not write to their folder: "
            "copy both into another one, and open them there"
        )
    connection = _connection(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        _format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - text in, text out
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make(path: str) -> None:
    """Creates the file if it does not exist. SQLite gives its log and index files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if not os.path.isfile(path):  # noqa: PTH113 - text in, text out
        raise KernaiError(f"cannot store runs in {path!r}: it is not a regular file")
    # Fail now if the file is another user's: SQLite would create files next to it that the owner cannot open.
    _close_to_others(path, os.stat(path).st_mode)  # noqa: PTH116 - text in, text out


def _close_to_others(path: str, mode: int) -> None:
    """Sets the mode of a file that others may open. Raises `KernaiError` if this user may not change it."""
    if not os.stat(path).st_mode & 0o077:  # noqa: PTH116 - text in, text out
        return
    try:
        os.chmod(path, stat.S_IMODE(mode))  # noqa: PTH101 - text in, text out
    except PermissionError:  # raised without its cause: the failed chmod would only mislead
        raise KernaiError(
            f"{path!r} belongs to another user, and only its owner may use a store: use another file"
        ) from None


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Turns a new file into a store. Refuses any other program's file before writing to it."""
    connection.execute("BEGIN")  # a consistent view, even if another process is creating the store right now
    before = _format(connection, path)
    connection.execute("COMMIT")
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise KernaiError(f"cannot keep runs in {path!r}: its file system does not support SQLite's write-ahead log")
    if before < FORMAT:
        connection.execute("BEGIN IMMEDIATE")
        before = _format(connection, path)  # another process may have been faster
        if before == 0:
            _execute(connection, _SCHEMA)
        if before < FORMAT:
            _migrate(connection)
        connection.execute("COMMIT")


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Runs a script one statement at a time, since `executescript` would commit first."""
    for statement in script.strip().split(";\n"):
        connection.execute(statement)


def _migrate(connection: sqlite3.Connection) -> None:
    """Migrates a file from format 1, without leases or tenants. Damaged rows stay, and raise when they are read."""
    _execute(connection, _FORMAT_2)
    for key, text, checksum, *_ in connection.execute(_RUNS).fetchall():
        try:
            info = _head_of(key, text, checksum).info
        except _DamageError:
            info = RunInfo(key, status="damaged")
        row = (info.status, info.updated_at, key)
        connection.execute("UPDATE runs SET status = ?, updated_at = ? WHERE run_id = ?", row)


def _format(connection: sqlite3.Connection, path: str) -> int:
    """The format of the store; 0 for a new file. Raises `KernaiError` if it is another program's, or too new."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if application == APPLICATION and version > FORMAT:
        raise KernaiError(
            f"{path!r} was written by a newer kernai (format {version}, this one knows {FORMAT}): upgrade kernai, "
            "or use another file"
        )
    is_new = not (application or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone())
    if application != APPLICATION and not is_new:
        raise KernaiError(f"{path!r} is another program's database, so nothing was written to it: use another file")
    return int(version)


def _checksum(text: bytes, *payload: bytes | None) -> int:
    """The checksum of a row, also of its payload if its table has them."""
    found = crc32(text)
    return crc32(text if payload[0] is None else payload[0], found) if payload else found


def _intact(read: Callable[..., T], text: object, checksum: object, *payload: Any) -> T:
    """Reads a row's text if it matches its checksum. A `ValueError` also means that it is damaged."""
    if not isinstance(text, bytes) or _checksum(text, *payload) != checksum:
        raise _DamageError("its checksum is wrong: the file is damaged, or was changed by another program")
    try:
        return read(text.decode("ascii"), *payload)
    except ValueError as error:
        raise _DamageError(str(error)) from error


# ---------------------------------------------------------------------------------------------------------- forks

_FILES: WeakSet[_File] = WeakSet()
#: held while a connection is opened; see the module docstring
_CONNECTING = threading.Lock()
#: held while the process forks, so that no store is added whose connection would stay open
_FORKING = threading.Lock()
_forking = ExitStack()


def _before_fork() -> None:
    _forking.enter_context(_FORKING)
    for file in list(_FILES):
        _forking.enter_context(file.lock)
        file.disconnect()


def _after_fork() -> None:
    _forking.pop_all().close()  # emptied first: another thread may fork as soon as the locks are free


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

"""`SqliteStore` as one file: its mode, what may be in its place, damage, locks, what is refused."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import stat
import tempfile
from binascii import crc32
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernai import KernaiError, Media, MemoryStore, RunConflictError, RunDamagedError, RunInfo, SqliteStore
from kernai.durable import sqlite_store
from kernai.durable.lease import Lease
from kernai.testing.store_rules import entry
from tests.durable.durable_cases import Reversed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path) as made:
        yield made


def modes(folder: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}


def altered(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# ------------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("before", [None, 0o644, 0o666], ids=["no file", "readable by all", "writable by all"])
def test_only_the_owner_can_read_the_file_and_those_beside_it(path: Path, before: int | None) -> None:
    mask = os.umask(0)
    try:
        if before is not None:
            path.touch(before)
        with SqliteStore(path) as store:
            store.append("r", 0, [entry()], [])
            assert modes(path.parent) == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}
    finally:
        os.umask(mask)
    assert modes(path.parent) == {"runs.db": 0o600}


@pytest.mark.parametrize("durability, level", [("power", 2), ("process", 1)])
def test_durability_sets_sqlites_synchronous_level(path: Path, durability: Any, level: int) -> None:
    with SqliteStore(path, durability=durability) as store:
        assert store._file._connection is not None
        assert store._file._connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert store._file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("options, error, message", [
    ({"path": ""}, ValueError, "path must name a file, got ''"), ({"path": ":memory:"}, ValueError, "MemoryStore"),
    ({"path": b"runs.db"}, TypeError, "path must be text or a Path"), ({"path": 5}, TypeError, "path must be text or a Path, got int"),
    *[({"path": name}, KernaiError, "it is not a regular file") for name in (".", "pipe")],
    ({"path": "none/runs.db"}, KernaiError, r"cannot open the store in '.*none/runs\.db': .*No such file"),
    ({"durability": "none"}, ValueError, "durability must be 'power' or 'process', got 'none'"),
    ({"codec": "utf-8"}, TypeError, r"codec must be an object with encode\(data\) and decode\(data\), got str"),
    ({"codec": str}, TypeError, "got the class str"),
])
def test_a_path_durability_or_codec_that_no_store_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(error, match=message):
        SqliteStore(**{"path": "runs.db", **options})
    assert sorted(os.listdir()) == ["pipe"]


def test_a_relative_path_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteStore("runs.db") as store:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        store._file.disconnect()  # as before a fork
        store.append("r", 0, [entry()], [])
        assert os.listdir() == []


@pytest.mark.parametrize("content", [b"not a database, but longer than its header would be" * 9, b"SQLite format 3\0" * 99, b""])
def test_a_file_that_is_not_a_store_is_left_unchanged(path: Path, content: bytes) -> None:
    if content:
        path.write_bytes(content)
    else:
        altered(path, "CREATE TABLE books (title TEXT)")
    path.chmod(0o664)
    before = path.read_bytes()
    with pytest.raises(KernaiError, match=re.escape(str(path)) + ("" if content else "' is another program's database")):
        SqliteStore(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, os.listdir(path.parent)) == (before, 0o664, ["runs.db"])


def test_a_store_of_a_newer_kernai_says_what_to_do(path: Path) -> None:
    SqliteStore(path).close()
    altered(path, "PRAGMA user_version = 3")
    with pytest.raises(KernaiError, match=r"runs\.db' was written by a newer kernai \(format 3, .* 2\): upgrade kernai"):
        SqliteStore(path)


OLD_SCHEMA = """
CREATE TABLE runs (run_id TEXT PRIMARY KEY, summary TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, entry TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)) WITHOUT ROWID;
CREATE TABLE media (
    run_id TEXT NOT NULL, id TEXT NOT NULL, about TEXT NOT NULL, payload BLOB, checksum INTEGER NOT NULL,
    PRIMARY KEY (run_id, id));
PRAGMA application_id = 1802661481;
PRAGMA user_version = 1;
"""


def test_a_file_of_a_version_without_leases_can_be_used(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(OLD_SCHEMA)
    for run_id, status in (("w", "waiting"), ("r", "running"), ("damaged", "final")):
        summary = json.dumps([run_id, "clerk", status, "2026-11-20", 1, 0])
        old.execute("INSERT INTO runs VALUES (?, ?, ?)", (run_id, summary, crc32(summary.encode()) ^ (run_id == "damaged")))
        text = json.dumps(entry())
        old.execute("INSERT INTO entries VALUES (?, 0, ?, ?)", (run_id, text, crc32(text.encode())))
    old.commit()
    old.close()
    for _ in range(2):
        with SqliteStore(path) as store:
            assert [one.run_id for one in store.runs(status="waiting")] == ["w"]
            assert [(one.run_id, one.agent) for one in store.runs(status="abandoned")] == [("r", "clerk")]
            with pytest.raises(KernaiError, match=r"its checksum is wrong.*put a backup in its place"):
                list(store.runs())
            seq = len(store.load("r"))
            store.append("r", seq, [entry()], [], claim=("somebody", 60), release=True)
            assert len(store.load("r")) == seq + 1


def test_using_a_closed_store_is_an_error_that_says_so(path: Path) -> None:
    with SqliteStore(path) as store:
        store.append("r", 0, [entry()], [])
    store.close()
    for act in (lambda: store.load("r"), lambda: store.append("r", 1, [entry()], []), lambda: list(store.runs())):
        with pytest.raises(KernaiError, match=r"the store on '.*runs\.db' is closed"):
            act()
    assert repr(store) == f"SqliteStore({str(path)!r}, durability='power')"


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_appending_to_a_removed_file_is_an_error(path: Path, store: SqliteStore, replaced: bool) -> None:
    lease = store.append("r", 0, [entry()], [], claim=("somebody", 60))
    os.rename(path, path.with_suffix(".old"))
    if replaced:
        SqliteStore(path).close()
    for held, why in (None, "has 0 entries in the store, and entry 1 was to be written"), (lease, "has ended: the store has no such run"):
        with pytest.raises(RunConflictError, match=f"run 'r' {why}"):
            store.append("r", 1, [entry()], [], lease=held)
    store.append("s", 0, [entry()], [])
    with SqliteStore(path) as again:
        assert [info.run_id for info in again.runs()] == ["s"]


# ------------------------------------------------------------------------------------------------------ conflicts


@pytest.mark.parametrize("first_seq, message", [
    (0, "has 2 entries .* entry 0 was to be written: another worker has started .*; resume it, or choose another run_id"),
    (1, "has 2 entries .* entry 1 was to be written: another worker .* continued the run"),
    (3, "has 2 entries .* entry 3 was to be written: the run was deleted"),
])
def test_a_conflict_says_what_to_do(path: Path, store: SqliteStore, first_seq: int, message: str) -> None:
    memory = MemoryStore()
    for one, other in (store, SqliteStore(path)), (memory, memory):
        assert one.load("r") == []  # before another worker starts the run
        other.append("r", 0, [entry(), entry()], [])
        with pytest.raises(RunConflictError, match=f"^run 'r' {message}"):
            one.append("r", first_seq, [entry()], [])
        with pytest.raises(TypeError, match="the timestamp of an entry must be text, got float"):
            one.append("r", 2, [{"event": "progress", "timestamp": 1.5}], [])
        with pytest.raises(ValueError, match="append needs at least one entry"):
            one.append("r", 2, [], [])
        with pytest.raises(ValueError, match="info must be that of run 'r'"):
            one.append("r", 2, [entry()], [], info=RunInfo("q"))
        with pytest.raises(ValueError, match="lease must be that of run 'r'"):
            one.append("r", 2, [entry()], [], lease=Lease("q", "w", 1, 9.0))
        one.append("r", 2, [entry()], [], writer="w")
        other.delete("r")
        with pytest.raises(RunConflictError, match="has 0 entries"):  # it is no retry of an append that was made
            one.append("r", 2, [entry()], [], writer="w")


# ------------------------------------------------------------------------------------------------------- the data


@pytest.mark.parametrize("wrong", [ValueError("wrong key"), LookupError("wrong key")])
def test_a_codec_that_cannot_decode_a_run_is_reported_as_such_and_not_as_damage(path: Path, wrong: Exception) -> None:
    codec = Reversed()
    with SqliteStore(path, codec=codec) as store:
        picture = Media.from_bytes(b"a secret", mime_type="image/png")
        store.append("r", 0, [entry(data="a secret")], [picture])
        assert (store.load("r"), store.load_media("r")) == ([entry(data="a secret")], [picture])
        assert b"a secret" not in path.read_bytes() + Path(f"{path}-wal").read_bytes()
        codec.error = wrong
        for read in (store.load, store.load_media):
            with pytest.raises(KernaiError, match=r"the codec cannot decode the run: .*wrong key") as caught:
                read("r")
            assert (type(caught.value), caught.value.__cause__) == (KernaiError, wrong)


@pytest.mark.parametrize("why", ["too big.*up to 1 GB", r"database or disk is full \(free some space"])
def test_an_entry_too_large_for_the_file_or_the_disk_is_an_error_and_nothing_is_stored(store: SqliteStore, why: str) -> None:
    assert store._file._connection is not None
    if "GB" in why:
        store._file._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    else:
        store._file._connection.execute("PRAGMA max_page_count = 12")
    with pytest.raises(KernaiError, match=rf"cannot append entries 0 to 1 of run 'r' in .*runs\.db': .*{why}"):
        store.append("r", 0, [entry(), entry(data="x" * 100_000)], [])
    assert store.load("r") == []
    store.append("r", 0, [entry()], [])
    with pytest.raises(ValueError, match="limit must be 0 or a positive int, got -1"):
        store.load("r", 0, -1)


# ---------------------------------------------------------------------------------------------------------- locks


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.close()


def test_a_database_that_stays_locked_is_reported(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "RETRY_SECONDS", 0.05)
    with locked(path):
        with pytest.raises(KernaiError, match=r"cannot append .* of run 'r' in '.*': .*another process .* does not support locks"):
            store.append("r", 0, [entry()], [])
        assert store.load("r") == []  # reading needs no lock
    store.append("r", 0, [entry()], [])


@contextmanager
def folder_that_may_only_be_read() -> Iterator[Path]:
    """Root may do anything, so it becomes somebody else meanwhile."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SqliteStore(folder / "runs.db") as store:
            store.append("r", 0, [entry()], [])
            for one in [folder / "runs.db", folder / "runs.db-wal"]:  # as a process that was killed leaves it
                one.with_name(f"open-{one.name}").write_bytes(one.read_bytes())
        for one in folder.iterdir():
            one.chmod(0o600)
            if is_root:
                os.chown(one, 65534, 65534)
        (folder / "links").mkdir()
        (folder / "links" / "runs.db").symlink_to(folder / "runs.db")
        (folder / "links").chmod(0o777)
        folder.chmod(0o755 if is_root else 0o500)
        if is_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a folder's mode")
@pytest.mark.parametrize("name", ["runs.db", "links/runs.db"])
def test_a_store_in_a_folder_that_may_only_be_read_is_opened_for_reading(name: str) -> None:
    with folder_that_may_only_be_read() as folder, SqliteStore(folder / name) as store:
        assert store.load("r") == [entry()]
        assert [one.run_id for one in store.runs()] == ["r"]
        with pytest.raises(KernaiError, match=r"readonly database .*this user may not write to the file"):
            store.append("r", 1, [entry()], [])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a folder's mode")
def test_a_read_only_file_that_needs_recovery_is_an_error_that_says_so() -> None:
    with folder_that_may_only_be_read() as folder, pytest.raises(KernaiError, match=r"open-runs\.db.* copy both into another one"):
        SqliteStore(folder / "open-runs.db")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone can be two users")
def test_a_store_that_is_only_read_shows_what_its_owner_appends_meanwhile() -> None:
    with folder_that_may_only_be_read() as folder, SqliteStore(folder / "runs.db") as store:
        for length, names in (1, ()), (2, ("runs.db-wal", "runs.db-shm")):
            assert len(store.load("r")) == length
            os.seteuid(0)
            with SqliteStore(folder / "runs.db") as owner:
                owner.append("r", length, [entry()], [])
                for name in names:  # the owner's log
                    os.chown(folder / name, 65534, 65534)
                os.seteuid(65534)
                assert not names or len(store.load("r")) == 3
                os.seteuid(0)
            os.seteuid(65534)


def test_a_signal_handler_does_not_end_the_append_that_it_interrupts(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(data: Any) -> str:
        with pytest.raises(KernaiError, match="in the middle of a call"):
            store.info("r")
        return json.dumps(data)

    monkeypatch.setattr(sqlite_store, "dumps_data", interrupted)
    store.append("r", 0, [entry()], [])
    assert store.load("r") == [entry()]


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_lock(store: SqliteStore, path: Path) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with locked(path), pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            store.append("r", 0, [entry()], [])
    finally:
        signal.signal(signal.SIGALRM, before)
    store.append("r", 0, [entry()], [])
    assert len(store.load("r")) == 1


# --------------------------------------------------------------------------------------------------------- damage

ENTRIES = [entry("run_start", {"agent": "clerk"}), *(entry(data=f"number {number}") for number in range(60))]
MEDIA = [Media.from_bytes(bytes([number]) * 300, mime_type="image/png", metadata={"page": number}) for number in range(8)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store's file with two runs."""
    path = tmp_path_factory.mktemp("whole") / "runs.db"
    with SqliteStore(path) as store:
        store.append("r", 0, ENTRIES, MEDIA)
        store.append("s", 0, ENTRIES[:3], MEDIA[:1])
    return path.read_bytes()


def read(store: SqliteStore) -> dict[str, Any]:
    """What can be read from the file: each part whole, or the error with what is left of it."""
    found: dict[str, Any] = {}
    for name, act in (("entries", lambda: store.load("r")), ("media", lambda: store.load_media("r")), ("runs", lambda: list(store.runs()))):
        try:
            found[name] = act()
        except KernaiError as error:
            found[name] = error
    return found


@pytest.mark.parametrize("statement, entry_number", [
    ("DELETE FROM entries WHERE run_id = 'r' AND seq = 20", 20),
    ("DELETE FROM entries WHERE run_id = 'r' AND seq >= 50", 50),
    ("DELETE FROM entries WHERE run_id = 'r'", 0),
    ("INSERT INTO entries SELECT run_id, 70, entry, checksum FROM entries WHERE run_id = 'r' AND seq = 60", 61),
    ("UPDATE entries SET entry = '{' WHERE run_id = 'r' AND seq = 7", 7),
    ("UPDATE entries SET entry = '{', checksum = 2711477844 WHERE run_id = 'r' AND seq = 7", 7),
    ("UPDATE entries SET entry = 7 WHERE run_id = 'r' AND seq = 8", 8),
    ("UPDATE runs SET summary = '{}' WHERE run_id = 'r'", 61),
    ("DELETE FROM runs WHERE run_id = 'r'", 61),
    ("UPDATE entries SET entry = replace(entry, '40', '4!') WHERE run_id = 'r' AND seq = 41", 41),
])
def test_a_lost_or_changed_entry_is_detected_and_those_before_it_stay_readable(
    path: Path, whole: bytes, statement: str, entry_number: int
) -> None:
    path.write_bytes(whole)
    altered(path, statement)
    with SqliteStore(path) as store:
        with pytest.raises(RunDamagedError, match=rf"cannot load entry {entry_number} of run 'r' in '.*runs\.db'") as caught:
            store.load("r")
        assert caught.value.entries == ENTRIES[:entry_number]
        assert store.load("s") == ENTRIES[:3]
        if entry_number == 41:
            store.append("again", 0, caught.value.entries, store.load_media("r"))
            assert store.load("again") == ENTRIES[:41]


@pytest.mark.parametrize("statement, message, left", [
    ("UPDATE media SET payload = x'00' WHERE rowid = 3", f"{MEDIA[2].id} \\(its checksum is wrong", [*MEDIA[:2], *MEDIA[3:]]),
    ("UPDATE media SET about = '{}' WHERE rowid = 1", f"{MEDIA[0].id} ", MEDIA[1:]),
    ("DELETE FROM media WHERE rowid = 8", "not all of them are there", MEDIA[:7]),
])
def test_lost_or_changed_media_are_reported(path: Path, whole: bytes, statement: str, message: str, left: list[Media]) -> None:
    path.write_bytes(whole)
    altered(path, statement)
    with SqliteStore(path) as store, pytest.raises(RunDamagedError, match=f"cannot load media of run 'r'.*{message}") as caught:
        store.load_media("r")
    assert caught.value.media == left


def checked(path: Path, damaged: bytes) -> str:
    """Compares what can be read from a damaged file with the original; returns the parts that were refused."""
    for name in os.listdir(path.parent):
        os.unlink(path.parent / name)
    path.write_bytes(damaged)
    try:
        store = SqliteStore(path)
    except KernaiError as error:
        return "the file" if str(path) in str(error) else "a file without its name"
    with store:
        found = read(store)
    refused = [name for name, one in found.items() if isinstance(one, KernaiError)]
    assert all(str(path) in str(found[name]) for name in refused)
    entries, media = found["entries"], found["media"]
    if isinstance(entries, RunDamagedError):
        assert entries.entries == ENTRIES[: len(entries.entries)]
    if isinstance(media, RunDamagedError):
        assert [one for one in media.media if one not in MEDIA] == []
    assert "entries" in refused or entries == ENTRIES
    # in any order: a rowid decides only the order, and may be damaged
    assert "media" in refused or sorted(one.id for one in media) == sorted(one.id for one in MEDIA)
    assert "runs" in refused or [(one.run_id, one.agent, one.status) for one in found["runs"]] == [
        ("r", "clerk", "abandoned"), ("s", "clerk", "abandoned")]
    return " ".join(refused) or "nothing"


@pytest.mark.slow
def test_a_flipped_bit_is_detected_or_harmless(path: Path, whole: bytes) -> None:
    random = Random(7)
    outcomes: dict[str, int] = {}
    for at in range(0, len(whole), 41):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << random.randrange(8)
        outcome = checked(path, bytes(damaged))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert "a file without its name" not in outcomes
    assert outcomes["entries"] > 100
    assert outcomes["media"] > 30


def test_a_truncated_file_is_detected(path: Path, whole: bytes) -> None:
    for length in itertools.chain(range(2, len(whole), 1500), [len(whole) - 1]):
        assert checked(path, whole[:length]) not in ("nothing", "a file without its name")


def test_a_file_that_another_process_is_making_a_store_is_not_taken_for_something_else(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)

    def faster(statement: str) -> None:
        if "user_version" in statement and "=" not in statement:  # between two reads of the file
            other = sqlite3.connect(path, isolation_level=None, timeout=0)
            with suppress(sqlite3.OperationalError):  # locked, as it is meanwhile
                other.executescript(f"BEGIN;{sqlite_store._SCHEMA};{sqlite_store._FORMAT_2};COMMIT")
            other.close()

    connection.set_trace_callback(faster)
    sqlite_store._prepare(connection, str(path))
    connection.close()
    assert list(SqliteStore(path).runs()) == []
